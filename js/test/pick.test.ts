/** Reading the id buffer back. */

import { describe, expect, it } from "vitest";
import { sweep } from "../src/columns.js";
import { blockAt, blockBox, strokes } from "../src/pick.js";
import { Timeline } from "../src/timeline.js";
import { parse, randomHistory } from "./histories.js";

const { data, id } = parse("a:100 b:200 c:100 -a -b --a");
const view = { lo: 0, hi: 7, axis: "events", width: 7, height: 4, bottom: 0, top: 400 } as const;
const picture = sweep(new Timeline(data), view);

describe("blockAt", () => {
  it("tells the block and whether its free is pending", () => {
    expect(blockAt(picture, 1.9, 3.2)).toEqual({ block: id.a, pending: false });
    expect(blockAt(picture, 4, 0)).toEqual({ block: id.a, pending: true });
    expect(blockAt(picture, 0, 0)).toBeNull();
    expect(blockAt(picture, -0.1, 2)).toBeNull();
    expect(blockAt(picture, 7, 2)).toBeNull();
    expect(blockAt(picture, Number.NaN, 2)).toBeNull();
  });
});

describe("blockBox", () => {
  it("follows a block down when a lower one goes, and up into the pending layer", () => {
    expect(blockBox(picture, id.b as number)).toEqual({
      block: id.b,
      x0: 2,
      x1: 7,
      y0: 0,
      y1: 4,
      upper: Int32Array.of(1, 1, 2, 0, 1),
      lower: Int32Array.of(3, 3, 4, 2, 3),
    });
    expect(blockBox(picture, 99)).toBeNull();
  });

  it("draws round exactly the pixels of the block", () => {
    const timeline = new Timeline(randomHistory(8, 60, 4));
    const drawn = sweep(timeline, {
      lo: 0,
      hi: 61,
      axis: "events",
      width: 40,
      height: 30,
      bottom: 0,
      top: timeline.peakActive,
    });
    const shown = new Set([...drawn.ids].map((value) => (value & 0x7fffffff) - 1));
    shown.delete(-1);
    for (const block of shown) {
      // The strokes' upright edges change inside to outside: count them to the left of each pixel, even-odd.
      const lines = strokes(blockBox(drawn, block) as NonNullable<ReturnType<typeof blockBox>>);
      for (let y = 0; y < drawn.height; y++) {
        let inside = false;
        for (let x = 0; x < drawn.width; x++) {
          for (let i = 0; i < lines.length; i += 4) {
            const [x1, y1, x2, y2] = lines.slice(i, i + 4) as [number, number, number, number];
            if (x1 === x && x2 === x && Math.min(y1, y2) <= y && y < Math.max(y1, y2)) inside = !inside;
          }
          expect(inside).toBe(blockAt(drawn, x, y)?.block === block);
        }
      }
    }
  });
});
