/**
 * The engine: one payload, ready to be drawn, searched and asked.
 *
 * Owns where the work is done. Pictures are swept in a worker (a classic script from a Blob URL) where one is to be had,
 * and by the same code on this thread where not: no Worker, a page whose policy forbids it, a worker that dies. The main
 * thread keeps the whole Data and a Timeline of its own for panels and pointers; the worker gets copies of the few
 * columns that the sweep needs, once.
 */

import workerSource from "inline-worker:./worker.ts";
import { type Picture, sweep, type View } from "./columns.js";
import { type RangeTotals, rangeTotals } from "./range.js";
import { compileQuery, type SearchResult } from "./search.js";
import { Timeline } from "./timeline.js";
import type { Data, History } from "./wire.js";

export type Request =
  | { kind: "open"; history: History }
  | { kind: "draw"; id: number; view: View; reuse: Picture | null };

export type Reply =
  | { kind: "ready" }
  | { kind: "picture"; id: number; picture: Picture }
  | { kind: "error"; message: string };

export interface EngineOptions {
  /** "off": never try a worker. */
  worker?: "auto" | "off";
}

interface Order {
  id: number;
  view: View;
  resolve(picture: Picture | null): void;
  reject(error: Error): void;
}

/** A page that asks for no picture at first gets its worker after this long all the same, ms. */
const HIRE_WITHIN = 1_000;

export class Engine {
  readonly data: Data;
  readonly timeline: Timeline;
  /** Settles once pictures can be drawn, in the worker or here. */
  readonly ready: Promise<void>;
  #worker: Worker | null = null;
  #hireLater: ReturnType<typeof setTimeout> | undefined;
  #becomeReady: () => void = () => {};
  #isReady = false;
  #closed = false;
  /** The order being drawn, and the one that waits; a newer one takes its place. */
  #drawing: Order | null = null;
  #waiting: Order | null = null;
  #orders = 0;
  /** The picture handed out last is the caller's; the one before it is nobody's and its buffers are used again. */
  #shown: Picture | null = null;
  #spare: Picture | null = null;

  static create(data: Data, options: EngineOptions = {}): Engine {
    return new Engine(data, options);
  }

  private constructor(data: Data, options: EngineOptions) {
    this.data = data;
    this.ready = new Promise((resolve) => {
      this.#becomeReady = resolve;
    });
    // This thread prepares and draws the first picture; the worker comes after it.
    this.timeline = new Timeline(data);
    if (options.worker === "off") {
      this.#open();
    } else {
      this.#hireLater = setTimeout(() => this.#hireNow(), HIRE_WITHIN);
    }
  }

  /** After the first picture, or when none was asked for: handing the columns over takes this thread 300 ms. */
  #hireNow(): void {
    clearTimeout(this.#hireLater);
    if (this.#hireLater === undefined || this.#closed) return;
    this.#hireLater = undefined;
    this.#hire();
    if (this.#worker === null) this.#open();
  }

  /** Whether pictures come from a worker. */
  get inWorker(): boolean {
    return this.#worker !== null;
  }

  /**
   * Draw a view.
   *
   * The latest order wins: one that a newer one overtakes before it is begun resolves to null. A picture may be used
   * until the next one is handed out; after that its buffers are drawn into again.
   */
  draw(view: View): Promise<Picture | null> {
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        resolve(null);
        return;
      }
      this.#waiting?.resolve(null);
      this.#waiting = { id: ++this.#orders, view: { ...view }, resolve, reject };
      this.#next();
    });
  }

  /** Blocks that match a query; see search.ts. */
  async search(query: string): Promise<SearchResult> {
    return compileQuery(this.data, query, this.timeline);
  }

  /** What happened between two moments. */
  range(lo: number, hi: number): RangeTotals {
    return rangeTotals(this.data, this.timeline, lo, hi);
  }

  /** End the worker; orders still open resolve to null. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#hireLater);
    this.#dismiss();
    this.#drawing?.resolve(null);
    this.#waiting?.resolve(null);
    this.#drawing = this.#waiting = this.#shown = this.#spare = null;
    this.#becomeReady();
  }

  #hire(): void {
    if (typeof Worker === "undefined" || typeof Blob === "undefined" || workerSource === "") return;
    let url = "";
    try {
      url = URL.createObjectURL(new Blob([workerSource], { type: "text/javascript" }));
      const worker = new Worker(url);
      worker.onmessage = (event: MessageEvent<Reply>) => this.#receive(event.data);
      // A policy that forbids blob: workers shows only here, later, and in some browsers without a text.
      worker.onerror = (event) => {
        event.preventDefault?.();
        this.#fallBack();
      };
      worker.onmessageerror = () => this.#fallBack();
      this.#worker = worker;
      const history = copied(this.data);
      const request: Request = { kind: "open", history };
      worker.postMessage(request, transferables(history));
    } catch {
      this.#dismiss();
    } finally {
      // The worker has the address by now; forgetting it only frees the text. Not at once: Safari reads it late.
      if (url !== "") setTimeout(() => URL.revokeObjectURL(url), 10_000);
    }
  }

  #receive(reply: Reply): void {
    if (reply.kind === "ready") {
      this.#open();
    } else if (reply.kind === "picture") {
      if (this.#drawing?.id === reply.id) this.#deliver(reply.picture);
    } else {
      this.#fallBack();
    }
  }

  #open(): void {
    this.#isReady = true;
    this.#becomeReady();
    this.#next();
  }

  /** Go on without the worker: the order it was at is drawn here. */
  #fallBack(): void {
    if (this.#worker === null) return;
    this.#dismiss();
    this.#spare = null;
    if (this.#drawing !== null) {
      if (this.#waiting === null) this.#waiting = this.#drawing;
      else this.#drawing.resolve(null);
      this.#drawing = null;
    }
    this.#open();
  }

  #dismiss(): void {
    const worker = this.#worker;
    this.#worker = null;
    if (worker === null) return;
    worker.onmessage = worker.onerror = worker.onmessageerror = null;
    worker.terminate();
  }

  #next(): void {
    if (this.#drawing !== null || this.#waiting === null) return;
    // The first picture does not wait for the worker to start and prepare: this thread is prepared by then.
    if (!this.#isReady && this.#worker !== null && this.#shown !== null) return;
    const order = this.#waiting;
    this.#waiting = null;
    this.#drawing = order;
    const reuse = this.#spare;
    this.#spare = null;
    if (this.#worker !== null && this.#isReady) {
      const request: Request = { kind: "draw", id: order.id, view: order.view, reuse };
      this.#worker.postMessage(request, reuse === null ? [] : pictureBuffers(reuse));
      return;
    }
    // Not inside draw(): callers may ask several times in one turn and only the last one counts.
    setTimeout(() => {
      if (this.#drawing !== order) return;
      if (this.#waiting !== null) {
        this.#drawing = null;
        this.#spare = reuse;
        order.resolve(null);
        this.#next();
        return;
      }
      try {
        this.#deliver(sweep(this.timeline, order.view, reuse));
      } catch (error) {
        this.#drawing = null;
        order.reject(error instanceof Error ? error : new Error(String(error)));
        this.#next();
      }
    }, 0);
  }

  #deliver(picture: Picture): void {
    const order = this.#drawing as Order;
    this.#drawing = null;
    this.#spare = this.#shown;
    this.#shown = picture;
    order.resolve(picture);
    // After the caller has seen the picture: only then is the one before it free.
    queueMicrotask(() => this.#next());
    if (this.#hireLater !== undefined) setTimeout(() => this.#hireNow(), 0);
  }
}

/** The buffers of a picture, for a transfer. */
export function pictureBuffers(picture: Picture): ArrayBuffer[] {
  const { ids, moments, allocated, active, reserved } = picture;
  return [ids.buffer, moments.buffer, allocated.buffer, active.buffer, reserved.buffer] as ArrayBuffer[];
}

/** The sweep's columns in buffers of their own: 22 MB for 1.5 million events, copied in a few milliseconds. */
function copied(data: Data): History {
  return {
    n_events: data.n_events,
    n_blocks: data.n_blocks,
    time_us: data.time_us?.slice() ?? null,
    size: data.size.slice(),
    alloc_event: data.alloc_event.slice(),
    free_requested_event: data.free_requested_event.slice(),
    free_event: data.free_event.slice(),
    reserved_moment: data.reserved_moment.slice(),
    reserved: data.reserved.slice(),
    category: data.category.slice(),
  };
}

function transferables(history: History): ArrayBuffer[] {
  return Object.values(history)
    .filter((value) => ArrayBuffer.isView(value))
    .map((view) => view.buffer as ArrayBuffer);
}
