// Asks the kernel: for the columns, once a model and device, for the findings, and for the code of the other views. Owns
// the request: its id, resending on silence, the error reply. A server may drop a message while a cell prints a lot, and a
// busy kernel answers late: both are normal.

import type { AnyModel } from "@anywidget/types";
import type { Told } from "./compare_table.js";
import type { Finding } from "./findings.js";
import type { Traits } from "./model.js";
import { type Data, decode } from "./wire.js";

/** Waits before the same question is put again, ms. After the last one we only listen: a queue need not grow. */
const RESEND_AFTER = [5_000, 10_000, 20_000];

export type More = typeof import("./more.js");

/** Where the app gets its data. `waiting` is called when the kernel stays silent. */
export interface Source {
  load(device: number, waiting: () => void): Promise<Data>;
  findings(device: number, waiting: () => void): Promise<Finding[]>;
  more(): Promise<More>;
}

/** What a question of a kind is answered with. */
interface Replies {
  data: { header: unknown };
  findings: { findings: Finding[] };
  more: { source: string };
  compared: { compared: Told };
}

type Kind = keyof Replies;

interface Pending {
  device: number;
  promise: Promise<Data>;
  waiters: Set<() => void>;
  silent: boolean;
}

/** By model, not by view: an output that is rendered again (windowed notebooks do that) must not ask again. */
const pendings = new WeakMap<object, Pending>();
const findings = new WeakMap<object, { device: number; promise: Promise<Finding[]> }>();
let counter = 0;
/** The other views, for all widgets of a page. */
let further: Promise<More> | null = null;

export function kernelSource(model: AnyModel<Traits>): Source {
  return {
    load(device, waiting) {
      let pending = pendings.get(model);
      if (pending?.device !== device) {
        pending = load(model, device);
        pendings.set(model, pending);
        pending.promise.catch(() => {
          if (pendings.get(model) === pending) {
            pendings.delete(model);
          }
        });
      }
      const asked = pending as Pending;
      asked.waiters.add(waiting);
      if (asked.silent) {
        waiting();
      }
      return asked.promise.finally(() => asked.waiters.delete(waiting));
    },
    findings(device, waiting) {
      let known = findings.get(model);
      if (known?.device !== device) {
        const promise = ask(model, "findings", device, waiting).then(([reply]) => reply.findings);
        known = { device, promise };
        findings.set(model, known);
        promise.catch(() => findings.delete(model));
      }
      return known.promise;
    },
    more() {
      further ??= ask(model, "more", 0)
        .then(([{ source }]) => run(source))
        .catch((error) => {
          further = null;
          throw error;
        });
      return further;
    },
  };
}

/** Runs a module as anywidget runs the widget's own. */
async function run(source: string): Promise<More> {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return await import(/* webpackIgnore: true */ /* @vite-ignore */ url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

function load(model: AnyModel<Traits>, device: number): Pending {
  const pending: Pending = { device, waiters: new Set(), silent: false, promise: Promise.resolve() as never };
  const silence = (): void => {
    pending.silent = true;
    for (const waiter of pending.waiters) {
      waiter();
    }
  };
  pending.promise = ask(model, "data", device, silence).then(([{ header }, buffers]) =>
    decode(header as Parameters<typeof decode>[0], buffers),
  );
  return pending;
}

/** One question, put again while nobody answers; an error of the kernel is thrown. */
export function ask<K extends Kind>(
  model: AnyModel<Traits>,
  kind: K,
  device: number,
  silence: () => void = () => {},
): Promise<[Replies[K], DataView[]]> {
  counter += 1;
  const id = `${Date.now().toString(36)}-${counter}`;
  return new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const listen = (message: { kind?: string; id?: string; message?: string }, buffers: DataView[]): void => {
      if (message?.id !== id) {
        return;
      }
      clearTimeout(timer);
      model.off("msg:custom", listen);
      if (message.kind === kind) {
        resolve([message as Replies[K], buffers]);
      } else {
        reject(new Error(message.message));
      }
    };
    model.on("msg:custom", listen);
    const send = (attempt: number): void => {
      model.send({ kind, id, device });
      const wait = RESEND_AFTER[attempt];
      if (wait !== undefined) {
        timer = setTimeout(() => {
          silence();
          send(attempt + 1);
        }, wait);
      }
    };
    send(0);
  });
}
