/** Curves, peaks, who lives when, moments and times; totals of a range. */

import { describe, expect, it } from "vitest";
import { random } from "../bench/history.js";
import { rangeTotals } from "../src/range.js";
import { Timeline } from "../src/timeline.js";
import { history, parse, randomHistory } from "./histories.js";

describe("Timeline", () => {
  it("sums up what is allocated and active", () => {
    //                          moment 0       1     2  3   4       5
    const { data, id } = parse("^old:50 a:100 b:200 -a --a !b>c:400");
    const timeline = new Timeline(data);
    expect([...timeline.allocated]).toEqual([50, 150, 350, 250, 250, 450]);
    expect([...timeline.active]).toEqual([50, 150, 350, 350, 250, 450]);
    expect([...timeline.liveAt(5)]).toEqual([id.old, id.c]);
    expect(timeline.isPending(id.a as number, 3)).toBe(true);
    expect(timeline.isLive(id.b as number, 4)).toBe(true);
    expect(timeline.isLive(id.b as number, 5)).toBe(false);
    expect(timeline.offsetAt(id.b as number, 2)).toBe(150);
    expect(timeline.offsetAt(id.b as number, 3)).toBe(50);
    expect(timeline.offsetAt(id.a as number, 3)).toBe(250);
  });

  it("counts a free that was asked for before the first event as pending from the start", () => {
    const timeline = new Timeline(history(2, [100, 300], [-1, -1], [-2, -1], [1, -1]));
    expect([...timeline.allocated]).toEqual([300, 300, 300]);
    expect([...timeline.active]).toEqual([400, 400, 300]);
    expect([...timeline.pendingAt(1)]).toEqual([0]);
    expect([...timeline.liveAt(0)]).toEqual([1]);
  });

  it("knows who lives when, however few checkpoints there is room for", () => {
    const data = randomHistory(31, 3000, 20);
    const once = new Timeline(data);
    for (const ids of [50, 400, 3000, 20_000]) {
      const often = new Timeline(data, { spacing: 7, ids });
      for (let m = 0; m <= 3000; m += 13) expect(often.activeAt(m)).toEqual(once.activeAt(m));
      expect(often.checkpoint(3000).moment).toBeLessThanOrEqual(3000);
    }
  });

  it("finds the first of the highest moments in any range", () => {
    const data = randomHistory(21, 5000, 4);
    const timeline = new Timeline(data);
    const next = random(5);
    for (let i = 0; i < 400; i++) {
      const lo = Math.floor(next() * 5001);
      const hi = lo + Math.floor(next() ** 4 * (5001 - lo));
      let best = lo;
      for (let m = lo; m <= hi; m++) {
        if ((timeline.active[m] as number) > (timeline.active[best] as number)) best = m;
      }
      expect(timeline.maxIn(lo, hi).moment).toBe(best);
    }
  });

  it("goes from moments to times and back, through bursts within one microsecond", () => {
    const { data } = parse("a:1 b:1 c:1 d:1 e:1", { time_us: Float64Array.of(0, 10, 10, 10, 30) });
    const timeline = new Timeline(data);
    expect([0, 1, 2, 3, 4, 4.5, 5, 6].map((m) => timeline.momentToTime(m))).toEqual([0, 0, 10, 10, 10, 20, 30, 30]);
    expect([-5, 0, 5, 10, 20, 29, 30, 99].map((t) => timeline.timeToMoment(t))).toEqual([
      0, 0, 1.5, 4, 4.5, 4.95, 6, 6,
    ]);
  });

  it("reads reserved as steps", () => {
    const { data } = parse("a:1 b:1 c:1", {
      reserved_moment: Int32Array.of(0, 2),
      reserved: Float64Array.of(512, 2048),
    });
    const timeline = new Timeline(data);
    expect([0, 1, 2, 3].map((m) => timeline.reservedAt(m))).toEqual([512, 512, 2048, 2048]);
    expect(timeline.peakReserved).toBe(2048);
  });

  it("refuses blocks out of order, since all rests on it", () => {
    const bad = history(4, [1, 1], [2, 0], [-1, -1], [-1, -1]);
    expect(() => new Timeline(bad)).toThrow(/block 1 has events out of order; run the cell again/);
    expect(() => new Timeline(history(4, [1], [2], [1], [-1]))).toThrow(/out of order/);
    expect(() => new Timeline(history(4, [1], [2], [9], [9]))).toThrow(/out of order/);
  });
});

describe("rangeTotals", () => {
  it("counts what was made and freed in the range, its peak and its sites", () => {
    //  event 0     1     2     3  4   5  6     7
    const text = "a:100 b:200 c:400 -b --b -a d:800 -d";
    const { data } = parse(text, {
      stack: Int32Array.of(0, 1, 1, 2),
      stack_offset: Int32Array.of(0, 1, 2, 3),
      stack_frame: Int32Array.of(0, 1, 0),
      stack_site: Int32Array.of(0, 1, -1),
      stack_color: new Uint8Array(3),
      frame_file: Int32Array.of(0, 0),
      frame_line: Int32Array.of(1, 2),
      frame_name: Int32Array.of(1, 1),
      frame_source: Int32Array.of(-1, -1),
      frame_source_now: new Uint8Array(2),
      frame_label: Int32Array.of(2, 1),
      frame_kind: new Uint8Array(2),
    });
    const totals = rangeTotals(data, new Timeline(data), 1, 7);
    expect(totals).toMatchObject({
      lo: 1,
      hi: 7,
      allocated_bytes: 1400,
      allocated_count: 3,
      freed_bytes: 300,
      freed_count: 2,
      peak: 1200,
      peak_moment: 7,
      change: 1100,
    });
    expect(totals.by_site.map((s) => [s.label, s.bytes, s.count])).toEqual([
      ["", 800, 1],
      ["step", 600, 2],
    ]);
    expect(totals.change).toBe(totals.allocated_bytes - totals.freed_bytes);
  });
});
