/** The map's layout and its pixels: every byte of every segment has its place once, and no block is without a pixel. */

import { describe, expect, it } from "vitest";
import { Addresses, FREE } from "../src/addresses.js";
import { groupsOf, layRows, pieceAt, pieceOf, scaleFor } from "../src/rows.js";
import { runsOf } from "../src/runs.js";
import { Timeline } from "../src/timeline.js";
import { readGolden } from "./golden.js";

const data = readGolden("allocator");
const addresses = new Addresses(data, new Timeline(data));
/** After event 25: an expandable segment of 60 MiB, a small one, a graph's and a MemPool's. */
const map = addresses.at(26);
const MIB = 1 << 20;

describe("rows", () => {
  it("puts what serves the same requests together, private pools last", () => {
    const groups = groupsOf(data, map).map(({ pool, stream, small, isPrivate, segments }) => [
      data.header.pools[pool],
      stream,
      small,
      isPrivate,
      segments.map((s) => (map.segment_size[s] as number) / MIB),
    ]);
    expect(groups).toEqual([
      ["default", 0, false, false, [60]],
      ["default", 0, true, false, [2]],
      ["graph (1, 0)", 0, false, true, [20]],
      ["MemPool (0, 2)", 1, false, true, [32]],
    ]);
  });

  it.each([
    [{ large: 25 * MIB, small: 8 * MIB, row: 20 }, 600],
    [{ large: 60 * MIB, small: 512, row: 12 }, 333],
  ])("has every byte once, where it is found again: %o", (scale, width) => {
    const rows = layRows(data, map, scale, width);
    const next = new Float64Array(map.nSegments);
    rows.pieces.forEach((piece, i) => {
      expect(piece.from).toBe(next[piece.segment]);
      next[piece.segment] = piece.to;
      expect(piece.x + piece.width).toBeLessThanOrEqual(width + 0.01);
      expect(pieceAt(rows, piece.x + piece.width / 2, piece.y + scale.row / 2)).toBe(i);
      expect(pieceOf(rows, piece.segment, (piece.from + piece.to) / 2)).toBe(i);
    });
    expect([...next]).toEqual([...map.segment_size]);
    expect(pieceAt(rows, 1, rows.height + 1)).toBe(-1);
    expect(pieceAt(rows, 1, 2)).toBe(-1); // the head of the first group
  });

  it("fits everything into a height that allows it", () => {
    const scale = scaleFor(data, map, 640, 300);
    expect(layRows(data, map, scale, 640).height).toBeLessThanOrEqual(300);
  });
});

describe("runs", () => {
  it("fills a piece, and gives the thinnest block a pixel", () => {
    const early = addresses.at(6); // 300 bytes in a small segment of 2 MiB, behind a hole of 512
    const small = [...early.segment_size].indexOf(2 * MIB);
    const runs = runsOf(early, { segment: small, from: 0, to: 2 * MIB, x: 0, y: 0, width: 100 }, 100);
    const taken = runs.filter((run) => early.state[run.stretch] !== FREE);
    expect(taken).toEqual([{ stretch: expect.any(Number), x0: 0, x1: 1 }]);
    expect(early.size[(taken[0] as { stretch: number }).stretch]).toBe(512);
    expect(runs.at(-1)).toMatchObject({ x0: 1, x1: 100 });
  });

  it("parts blocks and holes at their bytes", () => {
    const s = [...map.segment_size].indexOf(60 * MIB);
    const runs = runsOf(map, { segment: s, from: 10 * MIB, to: 40 * MIB, x: 0, y: 0, width: 300 }, 300);
    // 18 MiB are taken, the rest of the 60 is one hole.
    expect(runs.map(({ stretch, x0, x1 }) => [map.state[stretch], x0, x1])).toEqual([
      [0, 0, 80],
      [FREE, 80, 300],
    ]);
  });
});
