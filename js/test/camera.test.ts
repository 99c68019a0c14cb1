/** Zoom, pan and their limits; the way between pixels and moments on both axes; ticks. */

import { describe, expect, it } from "vitest";
import { random } from "../bench/history.js";
import * as camera from "../src/camera.js";
import { Timeline } from "../src/timeline.js";
import { randomHistory } from "./histories.js";

const timeline = new Timeline(randomHistory(3, 2000, 5));
const limit = timeline.peakActive * 1.04;
const WIDTH = 900;

describe.each(["events", "time"] as const)("on the axis %s", (axis) => {
  const place = (c: camera.Camera, x: number): number =>
    camera.toAxis(timeline, axis, camera.xToMoment(timeline, c, x, WIDTH));

  it("keeps what is under the pointer while zooming, unless an end of the recording is met", () => {
    const next = random(11);
    let c = camera.zoomAt(timeline, camera.fit(timeline, axis), 450, WIDTH, 0.3);
    for (let i = 0; i < 200; i++) {
      const x = next() * WIDTH;
      const zoomed = camera.zoomAt(timeline, c, x, WIDTH, 0.7 + 0.6 * next());
      if (zoomed.lo > 0 && zoomed.hi < timeline.nEvents + 1) {
        expect(place(zoomed, x)).toBeCloseTo(place(c, x), 6);
        c = zoomed;
      }
    }
  });

  it("never leaves the recording and never turns inside out, whatever is asked", () => {
    const next = random(12);
    let c = camera.fit(timeline, axis);
    for (let i = 0; i < 500; i++) {
      const dice = next();
      if (dice < 0.4) c = camera.zoomAt(timeline, c, next() * WIDTH, WIDTH, 4 ** (2 * next() - 1));
      else if (dice < 0.7) c = camera.pan(timeline, c, 4000 * (next() - 0.5), WIDTH, 900 * (next() - 0.5), 400, limit);
      else c = camera.zoomBytesAt(c, next() * 400, 400, 4 ** (2 * next() - 1), limit);
      expect(c.lo).toBeGreaterThanOrEqual(0);
      expect(c.hi).toBeLessThanOrEqual(timeline.nEvents + 1);
      expect(c.hi).toBeGreaterThan(c.lo);
      expect(c.bottom).toBeGreaterThanOrEqual(0);
      expect(c.top).toBeLessThanOrEqual(limit + 1e-6);
      expect(c.top).toBeGreaterThan(c.bottom);
    }
  });

  it("pans back to where it was, and comes back to everything when zoomed out", () => {
    const close = camera.zoomAt(timeline, camera.fit(timeline, axis), 450, WIDTH, 0.1);
    const there = camera.pan(timeline, close, 120, WIDTH);
    expect(place(there, 0)).toBeCloseTo(place(close, 120), 6);
    const back = camera.pan(timeline, there, -120, WIDTH);
    expect(place(back, 0)).toBeCloseTo(place(close, 0), 6);
    const out = camera.zoomAt(timeline, back, 10, WIDTH, 1000);
    expect([out.lo, out.hi]).toEqual([0, timeline.nEvents + 1]);
  });

  it("finds the pixel of a moment again", () => {
    const c = camera.zoomAt(timeline, camera.fit(timeline, axis), 300, WIDTH, 0.2);
    for (const x of [0, 1.5, 300, 899]) {
      expect(camera.momentToX(timeline, c, camera.xToMoment(timeline, c, x, WIDTH), WIDTH)).toBeCloseTo(x, 4);
    }
  });
});

describe("limits", () => {
  it("keep a window from Python inside the recording, and leave a good one as it is to the last digit", () => {
    const whole = camera.fit(timeline, "time");
    const good = { ...whole, lo: 100.25, hi: 1700.125, bottom: 0, top: limit };
    expect(camera.clamp(timeline, good, limit)).toEqual(good);
    expect(camera.clamp(timeline, { ...whole, axis: "events", lo: -50, hi: 50 }, limit)).toMatchObject({
      lo: 0,
      hi: 100,
    });
    expect(camera.clamp(timeline, { ...whole, lo: 7, hi: 7 }, limit)).toMatchObject({ lo: 0, hi: 2001 });
  });

  it("let an empty recording be looked at", () => {
    const empty = new Timeline(randomHistory(1, 0, 0));
    const c = camera.zoomAt(empty, camera.fit(empty, "time"), 10, 100, 0.5);
    expect(c.lo).toBeLessThan(c.hi);
    expect(c.top).toBeGreaterThan(0);
  });
});

describe("ticks", () => {
  const GiB = 1024 ** 3;
  it("of bytes stand at powers of two", () => {
    expect(camera.byteTicks(0, 4.45 * GiB, 6).map((t) => t.label)).toEqual(["0", "1 GiB", "2 GiB", "3 GiB", "4 GiB"]);
    expect(camera.byteTicks(0, 1.2 * GiB, 6).map((t) => t.label)).toEqual([
      "0",
      "0.25 GiB",
      "0.5 GiB",
      "0.75 GiB",
      "1 GiB",
    ]);
    // One unit a picture, the header's: not MiB beside "peak 1.06 GiB".
    expect(camera.byteTicks(0, 1.1 * GiB, 9, 1.06 * GiB).map((t) => t.label)).toEqual([
      ...["0", "0.2 GiB", "0.4 GiB", "0.6 GiB", "0.8 GiB", "1 GiB"],
    ]);
    expect(camera.byteTicks(0, 1.02 * GiB, 5, 1000 * 1024 ** 2).map((t) => t.label)).toEqual([
      ...["0", "256 MiB", "512 MiB", "768 MiB", "1024 MiB"],
    ]);
    expect(camera.byteTicks(4 * GiB, 4 * GiB + 4096, 4).map((t) => t.value)).toEqual(
      [0, 1, 2, 3, 4].map((i) => 4 * GiB + 1024 * i),
    );
  });
  it("of bytes differ from their neighbours even far above zero", () => {
    const labels = camera.byteTicks(4 * GiB, 4 * GiB + 40_960, 8).map((t) => t.label);
    expect(new Set(labels).size).toBe(labels.length);
  });
  it("of events are whole numbers, of times have one unit", () => {
    expect(camera.eventTicks(0, 1_480_000, 4).map((t) => t.label)).toEqual(["0", "500,000", "1,000,000"]);
    expect(camera.eventTicks(10.2, 12.9, 10).map((t) => t.label)).toEqual(["11", "12"]);
    expect(camera.timeTicks(0, 1_100_000, 5).map((t) => t.label)).toEqual(["0", "0.5 s", "1.0 s"]);
    expect(camera.timeTicks(1_000_000, 1_000_900, 5).map((t) => t.label)).toEqual([
      "1000.0 ms",
      "1000.2 ms",
      "1000.4 ms",
      "1000.6 ms",
      "1000.8 ms",
    ]);
  });
});
