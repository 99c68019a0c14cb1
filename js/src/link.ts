// Asks the kernel for the columns, once a model and device. Owns the request: its id, resending on silence, the error
// reply. A server may drop a message while a cell prints a lot, and a busy kernel answers late: both are normal.

import type { AnyModel } from "@anywidget/types";
import type { Traits } from "./model.js";
import { type Data, decode } from "./wire.js";

/** Waits before the same question is put again, ms. After the last one we only listen: a queue need not grow. */
const RESEND_AFTER = [5_000, 10_000, 20_000];

/** Where the app gets its data. `waiting` is called when the kernel stays silent. */
export interface Source {
  load(device: number, waiting: () => void): Promise<Data>;
}

type Reply =
  | { kind: "data"; id: string; header: unknown }
  | { kind: "error"; id: string; message: string }
  | { kind?: undefined; id?: undefined };

interface Pending {
  device: number;
  promise: Promise<Data>;
  waiters: Set<() => void>;
  silent: boolean;
}

/** By model, not by view: an output that is rendered again (windowed notebooks do that) must not ask again. */
const pendings = new WeakMap<object, Pending>();
let counter = 0;

export function kernelSource(model: AnyModel<Traits>): Source {
  return {
    load(device, waiting) {
      let pending = pendings.get(model);
      if (pending?.device !== device) {
        pending = ask(model, device);
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
  };
}

function ask(model: AnyModel<Traits>, device: number): Pending {
  counter += 1;
  const id = `${Date.now().toString(36)}-${counter}`;
  const pending: Pending = { device, waiters: new Set(), silent: false, promise: Promise.resolve() as never };
  pending.promise = new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const listen = (message: Reply, buffers: DataView[]): void => {
      if (message?.id !== id) {
        return;
      }
      clearTimeout(timer);
      model.off("msg:custom", listen);
      if (message.kind === "data") {
        try {
          resolve(decode(message.header as Parameters<typeof decode>[0], buffers));
        } catch (error) {
          reject(error);
        }
      } else {
        reject(new Error(message.message));
      }
    };
    model.on("msg:custom", listen);
    const send = (attempt: number): void => {
      model.send({ kind: "data", id, device });
      const wait = RESEND_AFTER[attempt];
      if (wait !== undefined) {
        timer = setTimeout(() => {
          pending.silent = true;
          for (const waiter of pending.waiters) {
            waiter();
          }
          send(attempt + 1);
        }, wait);
      }
    };
    send(0);
  });
  return pending;
}
