/** Decoding: what front ends hand out, and what is refused with a clear sentence. */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { Timeline } from "../src/timeline.js";
import { type Data, decode, framesOf, type Header, stringAt } from "../src/wire.js";
import { randomHistory } from "./histories.js";

function payload(data: Data): { header: Header; buffers: Uint8Array[] } {
  const columns = data as unknown as Record<string, Uint8Array>;
  const buffers = data.header.columns.map(({ name }) => {
    const column = columns[name] as Uint8Array;
    return new Uint8Array(column.buffer, column.byteOffset, column.byteLength);
  });
  return { header: structuredClone(data.header), buffers };
}

const data = randomHistory(4, 60, 3);

describe("decode", () => {
  it("reads buffers, and views at odd places of a larger buffer", () => {
    const { header, buffers } = payload(data);
    const whole = decode(
      header,
      buffers.map((b) => b.slice().buffer),
    );
    const shifted = buffers.map((bytes, i) => {
      const box = new Uint8Array(bytes.length + 16).fill(0xee);
      box.set(bytes, 1 + (i % 7));
      return new DataView(box.buffer, 1 + (i % 7), bytes.length);
    });
    const odd = decode(header, shifted);
    for (const { name } of header.columns) {
      const key = name as "size";
      expect(whole[key], name).toEqual(data[key]);
      expect(odd[key], name).toEqual(data[key]);
      expect(odd[key].constructor).toBe(data[key].constructor);
    }
  });

  it("has null for times that the source did not have", () => {
    const { header, buffers } = payload(data);
    const at = header.columns.findIndex((c) => c.name === "time_us");
    header.columns.splice(at, 1);
    buffers.splice(at, 1);
    header.has_time = false;
    const timeless = decode(header, buffers);
    expect(timeless.time_us).toBeNull();
    expect(new Timeline(timeless).hasTime).toBe(false);
  });

  it("skips columns that a newer kernel adds", () => {
    const { header, buffers } = payload(data);
    header.columns.push({ name: "__proto__", dtype: "u1", length: 3 });
    expect(decode(header, [...buffers, new Uint8Array(3)]).size).toEqual(data.size);
  });

  it.each<[string, (header: Header, buffers: Uint8Array[]) => void, RegExp]>([
    ["another version", (h) => Object.assign(h, { wire: 2 }), /reads wire version 1 and was sent version 2; reload/],
    ["a buffer too few", (_, b) => b.pop(), /\d+ columns announced, \d+ received/],
    [
      "a cut buffer",
      (_, b) => b.splice(2, 1, (b[2] as Uint8Array).slice(1)),
      /column \w+ should have \d+ bytes and has \d+/,
    ],
    ["a wrong type", (h) => Object.assign(h.columns[0] as object, { dtype: "f8" }), /column \w+ is f8, not u1/],
    ["a wrong length", (h) => Object.assign(h, { n_events: 61 }), /column action has 60 rows, not 61/],
    ["a column missing", (h, b) => [h.columns.splice(4, 1), b.splice(4, 1)], /column \w+ is missing/],
  ])("refuses %s in one sentence", (_, spoil, message) => {
    const { header, buffers } = payload(data);
    spoil(header, buffers);
    expect(() => decode(header, buffers)).toThrow(message);
  });
});

/** Written by the Python tests: header.json and columns.bin, every column padded to 8 bytes. */
const golden = new URL("../../tests/golden/", import.meta.url);
const folders = existsSync(golden)
  ? readdirSync(golden, { withFileTypes: true }).filter((entry) =>
      existsSync(new URL(`${entry.name}/header.json`, golden)),
    )
  : [];

describe.runIf(folders.length > 0)("golden payloads", () => {
  it.each(folders.map((folder) => folder.name))("%s reads as Python wrote it", (name) => {
    const header = JSON.parse(readFileSync(new URL(`${name}/header.json`, golden), "utf8")) as Header;
    const bin = readFileSync(new URL(`${name}/columns.bin`, golden));
    const sizes = { f8: 8, i4: 4, u4: 4, u1: 1 };
    let offset = 0;
    const buffers = header.columns.map(({ dtype, length }) => {
      const bytes = new Uint8Array(bin.buffer, bin.byteOffset + offset, length * sizes[dtype]);
      offset += Math.ceil(bytes.length / 8) * 8;
      return bytes;
    });
    expect(offset).toBe(bin.length);
    const read = decode(header, buffers);
    const timeline = new Timeline(read);
    const last = timeline.nEvents;
    // The curves that are summed up here, against the counters that Python put in the header.
    expect(Math.max(...timeline.allocated)).toBe(header.peak_allocated);
    expect(timeline.allocated.indexOf(header.peak_allocated)).toBe(header.peak_event);
    expect(timeline.peakActive).toBe(header.peak_active);
    expect(timeline.peakReserved).toBe(header.peak_reserved);
    expect([timeline.allocated[last], timeline.active[last], timeline.reservedAt(last)]).toEqual([
      header.allocated,
      header.active,
      header.reserved,
    ]);
    for (const stack of read.stack) {
      for (const frame of framesOf(read, stack)) {
        expect(stringAt(read, read.frame_name[frame] as number)).not.toBe("");
      }
    }
  });
});
