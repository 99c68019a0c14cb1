/** What a query finds, and how many bytes that is. */

import { describe, expect, it } from "vitest";
import { compileQuery, splitQuery } from "../src/search.js";
import { Timeline } from "../src/timeline.js";
import { blockName } from "../src/wire.js";
import { history } from "./histories.js";

const STRINGS = [
  "/home/me/Model.py",
  "forward",
  "Model.py:7 in forward",
  "/usr/lib/linear.py",
  "addmm",
  "layer 3",
  "cell 3",
  "encoder.weight",
];
/** Blocks 0 and 1 from forward -> addmm, 2 from forward alone, 3 without a stack; 1 has metadata, 3 an odd address. */
const made = history(8, [512, 1024, 2048, 4096], [0, 1, 2, 3], [4, 6, -1, 5], [4, 6, -1, 5]);
const data = {
  ...made,
  header: { ...made.header, strings: STRINGS, categories: ["parameter", "buffer", "gradient", "optimizer_state"] },
  stack: Int32Array.of(0, 0, 1, -1),
  metadata: Int32Array.of(-1, 5, -1, -1),
  label: Int32Array.of(-1, 7, 7, -1),
  category: Uint8Array.of(0, 2, 3, 10),
  address_hi: Uint32Array.of(0x7f6d, 0x7f6d, 0x7f6d, 0xfedcba98),
  address_lo: Uint32Array.of(0x3a000000, 0x3a000200, 0x3a000000, 0x76543210),
  use: Uint32Array.of(0, 0, 1, 0),
  stack_offset: Int32Array.of(0, 2, 3),
  stack_frame: Int32Array.of(1, 0, 0),
  stack_site: Int32Array.of(0, 0),
  stack_color: new Uint8Array(2),
  frame_file: Int32Array.of(0, 3),
  frame_line: Int32Array.of(7, 114),
  frame_name: Int32Array.of(1, 4),
  frame_source: Int32Array.of(-1, -1),
  frame_source_now: new Uint8Array(2),
  frame_label: Int32Array.of(2, 4),
  frame_kind: Uint8Array.of(0, 1),
};
const timeline = new Timeline(data);

function found(query: string): number[] {
  const { blocks, count } = compileQuery(data, query, timeline);
  const ids = [...(blocks ?? [])].flatMap((hit, b) => (hit ? [b] : []));
  expect(count).toBe(ids.length);
  return ids;
}

describe("search", () => {
  it.each([
    ["forward", [0, 1, 2]],
    ["FORWARD", [0, 1, 2]],
    ["model.py:7", [0, 1, 2]],
    ["addmm", [0, 1]],
    ["forward addmm", [0, 1]],
    ["addmm layer", [1]],
    ['"layer 3"', [1]],
    ['"layer 4"', []],
    ["nothing", []],
    ["encoder.w", [1, 2]],
    ["category:gradient", [1]],
    ['"category:optimizer state"', [2]],
    ["encoder category:optimizer_state", [2]],
    ["category:grad", []],
  ])("finds by function, file, line and metadata, all words together: %s", (query, ids) => {
    expect(found(query)).toEqual(ids);
  });

  it.each([
    ["0x7f6d3a000000", [0, 2]],
    ["0x7f6d3a", [0, 1, 2]],
    ["0x7f6d", [0, 1, 2]],
    ["0x7F6D3A000210", [1, 2]],
    ["0xfedcba9876543210", [3]],
    ["0xfedcba98765", [3]],
    ["0xfed", [3]],
    ["0xf", [3]],
    ["b7f6d3a000000_1", [2]],
    ["b7f6d3a000000_", [0, 2]],
    ["b7f6d3a000000", [0, 2]],
    ["b7f6d3a0000_1", []],
    ["0x", []],
    ["bad", []],
  ])("finds by address, by its first digits, by one inside a block, by name: %s", (query, ids) => {
    expect(found(query)).toEqual(ids);
  });

  it("finds every block by the name that is shown for it", () => {
    for (let b = 0; b < 4; b++) expect(found(blockName(data, b))).toEqual([b]);
    expect(blockName(data, 3)).toBe("bfedcba9876543210_0");
  });

  it("tells the bytes at a moment and the most at once", () => {
    const hits = compileQuery(data, "forward", timeline);
    expect([0, 1, 2, 3, 4, 5, 8].map((m) => hits.bytesAt(m))).toEqual([0, 512, 1536, 3584, 3584, 3072, 2048]);
    expect(hits.max()).toEqual({ bytes: 3584, moment: 3 });
    expect(compileQuery(data, "nothing", timeline).max()).toEqual({ bytes: 0, moment: 0 });
  });

  it("asks for nothing with an empty query, and survives odd ones", () => {
    expect(compileQuery(data, "  ", timeline)).toMatchObject({ blocks: null, count: 0 });
    expect(splitQuery('a "b c" "open d')).toEqual(["a", "b c", "open d"]);
    expect(found("((*[")).toEqual([]);
  });
});
