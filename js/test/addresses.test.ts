/** The address map and the figures of fragmentation: against what Python says at every moment, and against a slow search. */

import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { dataOf, random } from "../bench/history.js";
import { Addresses, ALLOCATED, byAddress, FREE, PENDING_FREE } from "../src/addresses.js";
import { EventTable } from "../src/events.js";
import { fragmentation, requestAt } from "../src/fragmentation.js";
import { Timeline } from "../src/timeline.js";
import { type Data, hex, SEGMENT_KINDS } from "../src/wire.js";
import { golden, readGolden } from "./golden.js";

const STATES = ["allocated", "pending free", "free"];

const names = readdirSync(golden, { withFileTypes: true }).filter((entry) => entry.isDirectory());

describe.each(names.map((entry) => entry.name))("golden %s", (name) => {
  const data = readGolden(name);
  const timeline = new Timeline(data);
  const addresses = new Addresses(data, timeline);
  const events = new EventTable(data, addresses);
  const expected = JSON.parse(readFileSync(new URL(`${name}/addresses.json`, golden), "utf8"));

  it("has every block and hole where Python has it, at every moment", () => {
    expect(expected.length).toBe(data.n_events + 1);
    for (const { moment, segments } of expected) {
      const map = addresses.at(moment);
      const found = Array.from(map.segment_row, (row, s) => ({
        address: hex(data.seg_address_hi[row] as number, data.seg_address_lo[row] as number),
        size: map.segment_size[s],
        stream: data.seg_stream[row],
        pool: map.segment_pool[s],
        kind: SEGMENT_KINDS[data.seg_kind[row] as number],
        blocks: Array.from(map.offset.subarray(map.segment_first[s], map.segment_first[s + 1]), (offset, k) => {
          const i = (map.segment_first[s] as number) + k;
          const block = map.block[i] as number;
          return [offset, map.size[i], block < 0 ? 0 : data.requested[block], STATES[map.state[i] as number], block];
        }),
      }));
      expect(found, `moment ${moment}`).toEqual(segments);
    }
  });

  it("judges free memory as Python does, at every moment", () => {
    for (const { moment, fragmentation: want } of expected) {
      const request = requestAt(data, timeline, events, moment);
      const { request: _, ...found } = fragmentation(data, addresses.at(moment), request);
      expect([request.size, request.stream, request.pool]).toEqual(want.request);
      expect(want, `moment ${moment}`).toMatchObject(found);
    }
  });
});

describe("names and events", () => {
  const data = readGolden("allocator");
  const addresses = new Addresses(data, new Timeline(data));
  const events = new EventTable(data, addresses);

  it("counts the uses of a segment's address, and joins an event to its segment", () => {
    const named = (event: number) => [events.facts(event).action, events.facts(event).name];
    expect(named(4)).toEqual(["segment_alloc", "s7f0010000000_0"]);
    expect(named(21)).toEqual(["segment_free", "s7f0010000000_0"]);
    expect(named(24)).toEqual(["segment_alloc", "s7f0010000000_1"]);
    expect(named(11)).toEqual(["segment_unmap", "s7f0001400000_0"]);
    expect(named(22)).toEqual(["segment_map", "s7f0001400000_1"]);
    expect(named(1)).toEqual(["alloc", "b7f0000000000_0"]);
    expect(events.facts(23)).toMatchObject({ action: "oom", name: "", size: 24 << 20, block: -1, segment: -1 });
  });

  it("filters by action, in order", () => {
    expect([...(events.rows("oom") ?? [])]).toEqual([23]);
    expect([...(events.rows("segments") ?? [])]).toEqual([0, 2, 4, 8, 11, 12, 14, 21, 22, 24]);
    expect(events.rows("all")).toBeNull();
    const sum = events.counts().reduce((total, { count }) => total + count, 0);
    expect(sum).toBe(data.n_events);
  });
});

/** Blocks side by side in segments at addresses that need more than 32 bits, made and freed at random. */
function randomAllocator(seed: number, nEvents: number): Data {
  const next = random(seed);
  const pages = 24;
  const page = 4096;
  const base = 0x7fff_f000;
  const held: (number | null)[] = Array(pages * 4).fill(null);
  const made: number[] = [];
  const place: number[] = [];
  const freed: number[] = [];
  const asked: number[] = [];
  const waiting: number[] = [];
  for (let event = 0; event < nEvents; event++) {
    const slot = Math.floor(next() * held.length);
    const block = held[slot] ?? null;
    if (block === null) {
      held[slot] = made.length;
      made.push(event);
      place.push(slot);
      asked.push(-1);
      freed.push(-1);
    } else if (asked[block] === -1) {
      asked[block] = event;
      waiting.push(block);
    } else {
      freed[block] = event;
      held[slot] = null;
    }
  }
  const address = (slot: number) => base * 2 + slot * (page / 4);
  return dataOf({
    n_events: nEvents,
    size: Float64Array.from(place, (slot) => (slot % 3 === 0 ? 1024 : 512)),
    alloc_event: Int32Array.from(made),
    free_requested_event: Int32Array.from(asked),
    free_event: Int32Array.from(freed),
    address_hi: Uint32Array.from(place, (slot) => Math.floor(address(slot) / 2 ** 32)),
    address_lo: Uint32Array.from(place, (slot) => address(slot) % 2 ** 32),
    seg_size: new Float64Array(pages).fill(page),
    seg_address_hi: Uint32Array.from({ length: pages }, (_, i) => Math.floor(address(i * 4) / 2 ** 32)),
    seg_address_lo: Uint32Array.from({ length: pages }, (_, i) => address(i * 4) % 2 ** 32),
    seg_kind: Uint8Array.from({ length: pages }, (_, i) => (i % 5 === 4 ? 1 : 2)),
    seg_stream: Int32Array.from({ length: pages }, (_, i) => (i === 7 ? 1 : 0)),
    seg_pool: new Int32Array(pages),
    seg_stack: new Int32Array(pages),
    seg_alloc_event: new Int32Array(pages).fill(-1),
    seg_free_event: new Int32Array(pages).fill(-1),
  });
}

describe("a random allocator", () => {
  it("finds at each byte what a search of all blocks finds", () => {
    const data = randomAllocator(5, 40_000);
    const timeline = new Timeline(data);
    const addresses = new Addresses(data, timeline);
    for (const moment of [0, 1, 777, 16_383, 16_384, 20_000, 31_111, 40_000]) {
      const map = addresses.at(moment);
      const seen = new Map<number, [number, number]>();
      for (let s = 0; s < map.nSegments; s++) {
        const row = map.segment_row[s] as number;
        const start = (data.seg_address_hi[row] as number) * 2 ** 32 + (data.seg_address_lo[row] as number);
        let at = 0;
        for (let i = map.segment_first[s] as number; i < (map.segment_first[s + 1] as number); i++) {
          expect(map.offset[i]).toBe(at); // no gap, no overlap
          at += map.size[i] as number;
          if (map.state[i] !== FREE) {
            seen.set(map.block[i] as number, [start + (map.offset[i] as number), map.state[i] as number]);
          }
        }
        expect(at).toBe(map.segment_size[s]);
      }
      expect(map.reserved).toBe(24 * 4096);
      for (let block = 0; block < data.n_blocks; block++) {
        const there = (data.alloc_event[block] as number) < moment && ends(data.free_event, block) >= moment;
        const live = there && ends(data.free_requested_event, block) >= moment;
        const address = (data.address_hi[block] as number) * 2 ** 32 + (data.address_lo[block] as number);
        expect(seen.get(block)).toEqual(there ? [address, live ? ALLOCATED : PENDING_FREE] : undefined);
      }
    }
    // Pages 4, 9, 14, 19 are ordinary and page 7 is another stream's: the runs between them are one segment each.
    expect(addresses.at(0).nSegments).toBe(4 + 1 + 6);
  });

  it("orders addresses by all of their 64 bits, equal ones by their place", () => {
    const hi = Uint32Array.of(1, 0xffff_ffff, 0, 1, 0x8000_0000);
    const lo = Uint32Array.of(5, 0xffff_0000, 0xffff_ffff, 5, 0);
    expect([...byAddress(hi, lo)]).toEqual([2, 0, 3, 4, 1]);
  });
});

function ends(column: Int32Array, block: number): number {
  const event = column[block] as number;
  return event < 0 ? Number.POSITIVE_INFINITY : event;
}
