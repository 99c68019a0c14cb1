/** The sweep against a slow, obvious second drawing: every column, every moment, filter, sort, stack. */

import { describe, expect, it } from "vitest";
import { random } from "../bench/history.js";
import { ID_MASK, PENDING, type Picture, sweep, type View } from "../src/columns.js";
import { Timeline } from "../src/timeline.js";
import type { Data } from "../src/wire.js";
import { history, parse, randomHistory } from "./histories.js";

interface Stack {
  solid: number[];
  pending: number[];
  allocated: number;
  active: number;
}

/** What is there at a moment, straight from the meaning of the columns. */
function stackAt(data: Data, m: number): Stack {
  const solid: number[] = [];
  const pending: number[] = [];
  for (let b = 0; b < data.n_blocks; b++) {
    const asked = data.free_requested_event[b] as number;
    const freed = data.free_event[b] as number;
    if ((data.alloc_event[b] as number) >= m) continue;
    if (asked === -1 || asked >= m) solid.push(b);
    else if (freed === -1 || freed >= m) pending.push(b);
  }
  const sum = (ids: number[]): number => ids.reduce((bytes, b) => bytes + (data.size[b] as number), 0);
  return { solid, pending, allocated: sum(solid), active: sum(solid) + sum(pending) };
}

/** In the view's order: by category is a stable sort of the stack by age. */
function ordered(data: Data, stack: Stack, view: View): Stack {
  if (view.order !== "category") return stack;
  const sorted = (ids: number[]): number[] =>
    [...ids].sort((a, b) => (data.category[a] as number) - (data.category[b] as number));
  return { ...stack, solid: sorted(stack.solid), pending: sorted(stack.pending) };
}

/** The place of a moment on the axis: its number, or the time of its event. */
function placeOf(data: Data, view: View, m: number): number {
  if (view.axis === "events") return m;
  return m === 0 ? Number.NEGATIVE_INFINITY : ((data.time_us as Float64Array)[m - 1] as number);
}

function edge(data: Data, view: View, moment: number): number {
  return view.axis === "events" ? moment : new Timeline(data).momentToTime(moment);
}

/** The moment of each column: the highest of those in it, else the last one before it. */
function slowMoments(data: Data, view: View, actives: number[]): number[] {
  const from = edge(data, view, view.lo);
  const step = (edge(data, view, view.hi) - from) / view.width;
  const out: number[] = [];
  for (let x = 0; x < view.width; x++) {
    const left = x === 0 && view.lo <= 0 ? Number.NEGATIVE_INFINITY : from + x * step;
    const right = x === view.width - 1 && view.hi >= data.n_events ? Number.POSITIVE_INFINITY : from + (x + 1) * step;
    let best = -1;
    let before = 0;
    for (let m = 0; m <= data.n_events; m++) {
      const place = placeOf(data, view, m);
      if (place < left) before = m;
      else if (place < right && (best < 0 || (actives[m] as number) > (actives[best] as number))) best = m;
    }
    out.push(best < 0 ? before : best);
  }
  return out;
}

function slowColumn(data: Data, stack: Stack, view: View): number[] {
  const out: number[] = [];
  const layers = [
    ...stack.solid.map((b) => [b, b + 1] as const),
    ...stack.pending.map((b) => [b, ((b + 1) | PENDING) >>> 0] as const),
  ];
  for (let row = 0; row < view.height; row++) {
    const j = view.height - 1 - row;
    const centre = view.bottom + (j + 0.5) * ((view.top - view.bottom) / view.height);
    let bytes = 0;
    let value = 0;
    for (const [block, id] of layers) {
      const above = bytes + (data.size[block] as number);
      if (bytes <= centre && centre < above) value = id;
      bytes = above;
    }
    out.push(value);
  }
  return out;
}

function columnOf(picture: Picture, x: number): number[] {
  return Array.from({ length: picture.height }, (_, y) => picture.ids[y * picture.width + x] as number);
}

function expectExact(data: Data, timeline: Timeline, view: View, reuse: Picture | null = null): Picture {
  const stacks = Array.from({ length: data.n_events + 1 }, (_, m) => ordered(data, stackAt(data, m), view));
  const moments = slowMoments(
    data,
    view,
    stacks.map((s) => s.active),
  );
  const picture = sweep(timeline, view, reuse);
  expect([...picture.moments]).toEqual(moments);
  for (let x = 0; x < view.width; x++) {
    const stack = stacks[moments[x] as number] as Stack;
    expect(columnOf(picture, x), `column ${x} of ${JSON.stringify(view)}`).toEqual(slowColumn(data, stack, view));
    expect([picture.allocated[x], picture.active[x]]).toEqual([stack.allocated, stack.active]);
  }
  return picture;
}

describe("sweep", () => {
  it("stacks in order of id, slides down when a lower block goes, and keeps pending frees on top", () => {
    //                     moment: 1     2     3     4  5   6
    const { data, id } = parse("a:100 b:200 c:100 -a -b --a");
    const view: View = { lo: 0, hi: 7, axis: "events", width: 7, height: 4, bottom: 0, top: 400 };
    const picture = sweep(new Timeline(data), view);
    const [a, b, c] = [id.a, id.b, id.c].map((block) => (block as number) + 1) as [number, number, number];
    const p = (value: number): number => (value | PENDING) >>> 0;
    expect([...picture.moments]).toEqual([0, 1, 2, 3, 4, 5, 6]);
    expect(Array.from({ length: 7 }, (_, x) => columnOf(picture, x).reverse())).toEqual([
      [0, 0, 0, 0],
      [a, 0, 0, 0],
      [a, b, b, 0],
      [a, b, b, c],
      [b, b, c, p(a)],
      [c, p(a), p(b), p(b)],
      [c, p(b), p(b), 0],
    ]);
    expect([...picture.allocated]).toEqual([0, 100, 300, 400, 300, 100, 100]);
    expect([...picture.active]).toEqual([0, 100, 300, 400, 400, 400, 300]);
  });

  it("shows the highest moment of a column, so that a spike of one event is seen from afar", () => {
    const quiet = Array.from({ length: 5000 }, () => ".").join(" ");
    const { data, id } = parse(`^base:1000 ${quiet} spike:9000 -spike --spike ${quiet}`);
    const view: View = { lo: 0, hi: 10_004, axis: "events", width: 10, height: 100, bottom: 0, top: 10_000 };
    const picture = sweep(new Timeline(data), view);
    const seen = [...picture.ids].filter((value) => value === (id.spike as number) + 1).length;
    expect(seen).toBe(90);
    expect(Math.max(...picture.allocated)).toBe(10_000);
  });

  it("gives a pixel whose centre is an edge to the block above it", () => {
    const { data, id } = parse("a:50 b:100 c:50");
    const view: View = { lo: 3, hi: 4, axis: "events", width: 1, height: 3, bottom: 0, top: 300 };
    const picture = sweep(new Timeline(data), view);
    expect(columnOf(picture, 0).reverse()).toEqual([(id.b as number) + 1, (id.c as number) + 1, 0]);
  });

  it("stays right over thousands of short lives, each seen in a column of its own", () => {
    const n = 5000;
    const lives = Array.from({ length: n }, (_, i) => i);
    const size = lives.map((i) => 512 * (1 + (i % 7)));
    // One event frees the block before the last and makes a new one in its place.
    const freed = lives.map((i) => (i + 3 < n ? i + 3 : -1));
    const data = history(n, size, lives, freed, freed);
    const view: View = { lo: 0, hi: n + 1, axis: "events", width: n + 1, height: 21, bottom: 0, top: 21 * 512 };
    const picture = sweep(new Timeline(data), view);
    for (let x = 0; x <= n; x += 37) {
      expect(columnOf(picture, x)).toEqual(slowColumn(data, stackAt(data, x), view));
    }
  });

  it.each([1, 2, 3, 4, 5, 6])("equals the slow drawing on a random history (seed %i)", (seed) => {
    const next = random(1000 + seed);
    const data = randomHistory(seed, 150 + 40 * seed, seed % 2 === 0 ? 90 : 3);
    const timeline = new Timeline(data);
    const n = data.n_events;
    let last: Picture | null = null;
    for (let round = 0; round < 14; round++) {
      const whole = round < 2;
      const lo = whole ? 0 : next() * n * 0.9;
      const hi = whole ? n + (round % 2) : lo + 0.5 + next() * (n - lo);
      const bottom = round % 3 === 0 ? 0 : next() * timeline.peakActive * 0.6;
      const view: View = {
        lo,
        hi,
        axis: round % 2 === 0 ? "events" : "time",
        order: round % 3 === 1 ? "category" : "age",
        width: round === 4 || round === 5 ? 1 : 19,
        height: round === 6 ? 1 : 37,
        bottom,
        top: bottom + timeline.peakActive * (0.05 + next()),
      };
      last = expectExact(data, timeline, view, last);
    }
  });

  it("equals the slow drawing where thousands of blocks are thinner than a pixel", () => {
    const data = randomHistory(77, 400, 3000);
    const timeline = new Timeline(data);
    for (const order of ["category", "age"] as const) {
      expectExact(data, timeline, {
        lo: 0,
        hi: 401,
        axis: "events",
        order,
        width: 40,
        height: 60,
        bottom: 0,
        top: timeline.peakActive,
      });
    }
  });

  it("puts a new block on top of its own category, under the categories that follow", () => {
    //                              moment: 1    2     3     4     5  6
    const { data, id } = parse("^old:100 act:100 par:100 grad:100 -act -old", {
      category: Uint8Array.of(0, 5, 0, 2),
    });
    const view: View = { lo: 0, hi: 6, axis: "events", order: "category", width: 6, height: 4, bottom: 0, top: 400 };
    const timeline = new Timeline(data);
    const picture = sweep(timeline, view);
    const [old, act, par, grad] = ["old", "act", "par", "grad"].map((name) => (id[name] as number) + 1);
    const p = (value = 0): number => (value | PENDING) >>> 0;
    expect(Array.from({ length: 6 }, (_, x) => columnOf(picture, x).reverse())).toEqual([
      [old, 0, 0, 0],
      [old, act, 0, 0],
      [old, par, act, 0],
      [old, par, grad, act],
      [old, par, grad, p(act)],
      [par, grad, p(old), p(act)],
    ]);
    expect(timeline.offsetAt(id.act as number, 2, "category")).toBe(200);
    expect(timeline.offsetAt(id.act as number, 3)).toBe(100);
    expect(timeline.offsetAt(id.act as number, 5, "category")).toBe(300);
  });

  it("starts right from any checkpoint of a long history", () => {
    const data = randomHistory(5, 60_000, 10);
    const timeline = new Timeline(data);
    for (const m of [0, 1, 16_383, 16_384, 16_385, 40_000, 59_999, 60_000]) {
      const view: View = {
        lo: m,
        hi: m + 1,
        axis: "events",
        width: 1,
        height: 64,
        bottom: 0,
        top: timeline.peakActive,
      };
      for (const order of ["age", "category"] as const) {
        const picture = sweep(timeline, { ...view, order });
        expect([...picture.moments]).toEqual([m]);
        expect(columnOf(picture, 0)).toEqual(
          slowColumn(data, ordered(data, stackAt(data, m), { ...view, order }), view),
        );
      }
      expect([...timeline.liveAt(m)]).toEqual(stackAt(data, m).solid);
      expect([...timeline.pendingAt(m)]).toEqual(stackAt(data, m).pending);
    }
  });

  it("leaves out no block that is at least a pixel high, and its solid pixels measure allocated", () => {
    const next = random(9);
    const n = 300;
    const size = Array.from({ length: n }, () => 1000 + Math.floor(next() * 4000));
    const made = size.map((_, i) => 2 * i);
    const data = history(
      2 * n + 2,
      size,
      made,
      size.map((_, i) => (i % 3 === 0 ? 2 * i + 1 : -1)),
      size.map(() => -1),
    );
    const timeline = new Timeline(data);
    const row = 1000; // the smallest block is one pixel high, at whatever place it lies
    const height = Math.ceil(timeline.peakActive / row);
    const view: View = { lo: 0, hi: 2 * n + 3, axis: "events", width: 2 * n + 3, height, bottom: 0, top: height * row };
    const picture = sweep(timeline, view);
    for (let x = 0; x < view.width; x++) {
      const column = columnOf(picture, x);
      const { solid, pending, allocated } = stackAt(data, picture.moments[x] as number);
      const wanted = [...solid.map((b) => b + 1), ...pending.map((b) => ((b + 1) | PENDING) >>> 0)];
      expect(new Set(column.filter((value) => value !== 0))).toEqual(new Set(wanted));
      const solidPixels = column.filter((value) => value !== 0 && value < PENDING).length;
      expect(Math.abs(solidPixels * row - allocated)).toBeLessThanOrEqual(row / 2);
      expect(column.every((value) => (value & ID_MASK) <= n)).toBe(true);
    }
  });
});
