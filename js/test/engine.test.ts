/** Where pictures come from: the worker, or this thread when there is none to be had; the latest order wins. */

import { afterEach, describe, expect, it, vi } from "vitest";
import { type Picture, sweep, type View } from "../src/columns.js";
import { Engine, type Reply, type Request } from "../src/engine.js";
import { Timeline } from "../src/timeline.js";
import { randomHistory } from "./histories.js";

// The bundler puts the worker's text here; what it says does not matter, since the Worker is a stand-in.
vi.mock("inline-worker:./worker.ts", () => ({ default: "worker" }));

const data = randomHistory(6, 400, 5);
const peak = new Timeline(data).peakActive;
const view = (lo: number, hi: number): View => ({
  lo,
  hi,
  axis: "events",
  width: 40,
  height: 30,
  bottom: 0,
  top: peak,
});

/** A worker that runs the same code after a turn of the event loop, with real transfers. */
class StandIn {
  static made: StandIn[] = [];
  onmessage: ((event: { data: Reply }) => void) | null = null;
  onerror: ((event: object) => void) | null = null;
  onmessageerror: (() => void) | null = null;
  requests: Request[] = [];
  ended = false;
  #timeline: Timeline | null = null;

  constructor() {
    StandIn.made.push(this);
  }

  postMessage(message: Request, transfer: ArrayBuffer[]): void {
    const request = structuredClone(message, { transfer });
    this.requests.push(request);
    setTimeout(() => this.onmessage?.({ data: this.answer(request) }), 0);
  }

  answer(request: Request): Reply {
    if (request.kind === "open") {
      this.#timeline = new Timeline(request.history);
      return { kind: "ready" };
    }
    return { kind: "picture", id: request.id, picture: sweep(this.#timeline as Timeline, request.view, request.reuse) };
  }

  terminate(): void {
    this.ended = true;
  }
}

function withWorker(kind: unknown): void {
  StandIn.made = [];
  vi.stubGlobal("Worker", kind);
}

afterEach(() => vi.unstubAllGlobals());

function expectSame(picture: Picture | null, lo: number, hi: number): void {
  const wanted = sweep(new Timeline(data), view(lo, hi));
  expect(picture?.ids).toEqual(wanted.ids);
  expect(picture?.moments).toEqual(wanted.moments);
  expect(picture?.view).toEqual(wanted.view);
}

describe.each(["worker", "this thread"])("drawing in %s", (where) => {
  const create = (): Engine => {
    withWorker(StandIn);
    return Engine.create(data, { worker: where === "worker" ? "auto" : "off" });
  };

  it("draws what is asked for", async () => {
    const engine = create();
    await engine.ready;
    expect(engine.inWorker).toBe(where === "worker");
    expectSame(await engine.draw(view(0, 401)), 0, 401);
    expectSame(await engine.draw(view(100, 130.5)), 100, 130.5);
    const byCategory = { ...view(100, 130.5), order: "category" } as const;
    expect((await engine.draw(byCategory))?.ids).toEqual(sweep(new Timeline(data), byCategory).ids);
    expect(engine.data.size.length).toBe(data.n_blocks); // the main thread keeps its columns
  });

  it("lets the latest order win", async () => {
    const engine = create();
    const orders = [10, 20, 30, 40].map((lo) => engine.draw(view(lo, lo + 100)));
    const pictures = await Promise.all(orders);
    expect(pictures.slice(0, 3).filter((picture) => picture !== null).length).toBeLessThanOrEqual(1);
    expectSame(pictures[3] as Picture, 40, 140);
  });

  it("draws again into the picture before the last, never into the last", async () => {
    const engine = create();
    await engine.ready;
    let last: Picture | null = null;
    for (let lo = 0; lo < 100; lo += 10) {
      const order = engine.draw(view(lo, lo + 90));
      if (last !== null) expectSame(last, lo - 10, lo + 80);
      last = await order;
      expectSame(last, lo, lo + 90);
    }
    const reused = StandIn.made.at(-1)?.requests.filter((r) => r.kind === "draw" && r.reuse !== null).length ?? 8;
    expect(reused).toBe(8);
  });

  it("answers open orders with null when closed", async () => {
    const engine = create();
    const orders = [engine.draw(view(0, 10)), engine.draw(view(5, 10))];
    engine.close();
    expect(await Promise.all([...orders, engine.draw(view(0, 3))])).toEqual([null, null, null]);
    expect(StandIn.made.every((worker) => worker.ended)).toBe(true);
    await engine.ready;
  });
});

describe("without a worker that works, the same pictures come from this thread", () => {
  it("when there is no Worker at all", async () => {
    withWorker(undefined);
    const engine = Engine.create(data);
    expectSame(await engine.draw(view(0, 401)), 0, 401);
    expect(engine.inWorker).toBe(false);
  });

  it("when making one throws, as a strict policy does", async () => {
    withWorker(
      class {
        constructor() {
          throw new DOMException("blocked", "SecurityError");
        }
      },
    );
    const engine = Engine.create(data);
    expectSame(await engine.draw(view(0, 401)), 0, 401);
  });

  it("when it reports an error later, before it is ready", async () => {
    withWorker(
      class extends StandIn {
        override postMessage(): void {
          setTimeout(() => this.onerror?.({}), 0);
        }
      },
    );
    const engine = Engine.create(data);
    expectSame(await engine.draw(view(0, 401)), 0, 401);
    await engine.ready;
    expect(engine.inWorker).toBe(false);
    expect(StandIn.made[0]?.ended).toBe(true);
    expectSame(await engine.draw(view(3, 80)), 3, 80);
  });

  it("when it dies or fails in the middle of an order", async () => {
    withWorker(
      class extends StandIn {
        override answer(request: Request): Reply {
          return request.kind === "open" ? super.answer(request) : { kind: "error", message: "out of memory" };
        }
      },
    );
    const engine = Engine.create(data);
    await engine.ready;
    expect(engine.inWorker).toBe(true);
    expectSame(await engine.draw(view(3, 80)), 3, 80);
    expect(engine.inWorker).toBe(false);
    expectSame(await engine.draw(view(7, 90)), 7, 90);
  });
});
