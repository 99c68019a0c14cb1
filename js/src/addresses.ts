/**
 * The address map: which block or hole lies at which address at a moment.
 *
 * Owns the joining of mapped pieces into segments, holes, and names of segments. The Python twin is trace/segments.py;
 * tests/golden/*\/addresses.json holds the two together. Addresses are pairs of 32 bits, so that all 64 count; within
 * a segment, offsets are plain numbers.
 *
 *     segment   0x7f00_0000_0000 ..                                         + size
 *     stretches [ block 3 ][ block 7 (pending) ][ free          ][ block 12 ]     by address, without gaps
 *
 * One map costs a look at every segment of the recording and a sort of the blocks there at the moment.
 */

import type { Timeline } from "./timeline.js";
import { type Data, EXPANDABLE, hex } from "./wire.js";

/** Values of `state`. */
export const ALLOCATED = 0;
export const PENDING_FREE = 1;
export const FREE = 2;

export interface AddressMap {
  moment: number;
  /** Segments by address; adjoining pieces of one expandable segment are one. */
  nSegments: number;
  /** Row of the segment's table; of its first piece where it has several. */
  segment_row: Int32Array;
  segment_size: Float64Array;
  segment_pool: Int32Array;
  /** Stretches of segment s are segment_first[s] .. segment_first[s + 1] - 1. */
  segment_first: Int32Array;
  /** Per stretch: bytes from its segment's start, bytes, state, block (-1 for a hole). */
  offset: Float64Array;
  size: Float64Array;
  state: Uint8Array;
  block: Int32Array;
  reserved: number;
  /** Blocks, and their bytes, whose segment the recording does not know. */
  homeless: number;
  homeless_bytes: number;
}

export class Addresses {
  readonly data: Data;
  readonly timeline: Timeline;
  /** How often a segment's (or piece's) address had begun one before. */
  readonly seg_use: Uint32Array;
  /** Rows of the segments' table in order of address. */
  readonly segmentsByAddress: Uint32Array;
  readonly #blocksByAddress: Uint32Array;
  /** A block's place in that order. */
  readonly #rank: Uint32Array;
  #last: AddressMap | null = null;

  constructor(data: Data, timeline: Timeline) {
    this.data = data;
    this.timeline = timeline;
    this.segmentsByAddress = byAddress(data.seg_address_hi, data.seg_address_lo);
    this.#blocksByAddress = byAddress(data.address_hi, data.address_lo);
    this.#rank = new Uint32Array(data.n_blocks);
    this.#blocksByAddress.forEach((block, rank) => {
      this.#rank[block] = rank;
    });
    this.seg_use = new Uint32Array(data.seg_size.length);
    let before = -1;
    for (const row of this.segmentsByAddress) {
      const same = before >= 0 && this.#between(before, row) === 0;
      this.seg_use[row] = same ? (this.seg_use[before] as number) + 1 : 0;
      before = row;
    }
  }

  /** Bytes from one segment's start to another's. */
  #between(from: number, to: number): number {
    const { seg_address_hi: hi, seg_address_lo: lo } = this.data;
    return distance(hi[from] as number, lo[from] as number, hi[to] as number, lo[to] as number);
  }

  /** Bytes from a segment's start to a block's; negative where the block lies before it. */
  offsetIn(row: number, block: number): number {
    const { seg_address_hi, seg_address_lo, address_hi, address_lo } = this.data;
    return distance(
      seg_address_hi[row] as number,
      seg_address_lo[row] as number,
      address_hi[block] as number,
      address_lo[block] as number,
    );
  }

  /** "s7f6d3a000000_0": address and use, as torch's own viewer writes it. */
  segmentName(row: number): string {
    const { seg_address_hi: hi, seg_address_lo: lo } = this.data;
    return `s${hex(hi[row] ?? 0, lo[row] ?? 0)}_${this.seg_use[row] ?? 0}`;
  }

  /** Whether a segment (or piece) is there at a moment. */
  isThere(row: number, moment: number): boolean {
    const gone = this.data.seg_free_event[row] as number;
    return (this.data.seg_alloc_event[row] as number) < moment && (gone < 0 || gone >= moment);
  }

  /** The segment of a map that holds a row of the segments' table, -1 for none. */
  segmentOf(map: AddressMap, row: number): number {
    for (let s = map.nSegments - 1; s >= 0; s--) {
      const from = this.#between(map.segment_row[s] as number, row);
      if (from >= 0) return from < (map.segment_size[s] as number) ? s : -1;
    }
    return -1;
  }

  /** The map at a moment. The last one is kept: a pointer asks again and again. */
  at(moment: number): AddressMap {
    if (this.#last?.moment !== moment) this.#last = this.#make(moment);
    return this.#last;
  }

  #make(moment: number): AddressMap {
    const { data, timeline } = this;
    const segments = this.#segmentsAt(moment);
    const ranks = timeline.activeAt(moment).map((block) => this.#rank[block] as number);
    ranks.sort();
    const n = segments.rows.length;
    const most = 2 * ranks.length + n;
    const map: AddressMap = {
      moment,
      nSegments: n,
      segment_row: Int32Array.from(segments.rows),
      segment_size: Float64Array.from(segments.sizes),
      segment_pool: Int32Array.from(segments.pools),
      segment_first: new Int32Array(n + 1),
      offset: new Float64Array(most),
      size: new Float64Array(most),
      state: new Uint8Array(most),
      block: new Int32Array(most),
      reserved: segments.sizes.reduce((sum, size) => sum + size, 0),
      homeless: 0,
      homeless_bytes: 0,
    };
    const { address_hi: hi, address_lo: lo, seg_address_hi, seg_address_lo } = data;
    let count = 0;
    const put = (offset: number, size: number, state: number, block: number): void => {
      map.offset[count] = offset;
      map.size[count] = size;
      map.state[count] = state;
      map.block[count++] = block;
    };
    let i = 0;
    for (let s = 0; s < n; s++) {
      map.segment_first[s] = count;
      const row = map.segment_row[s] as number;
      const whole = map.segment_size[s] as number;
      const baseHi = seg_address_hi[row] as number;
      const baseLo = seg_address_lo[row] as number;
      let filled = 0;
      for (; i < ranks.length; i++) {
        const block = this.#blocksByAddress[ranks[i] as number] as number;
        const offset = distance(baseHi, baseLo, hi[block] as number, lo[block] as number);
        const size = data.size[block] as number;
        if (offset >= whole) break;
        if (offset < 0) {
          map.homeless++;
          map.homeless_bytes += size;
          continue;
        }
        if (offset > filled) put(filled, offset - filled, FREE, -1);
        put(offset, size, timeline.isLive(block, moment) ? ALLOCATED : PENDING_FREE, block);
        filled = offset + size;
      }
      if (whole > filled) put(filled, whole - filled, FREE, -1);
    }
    for (; i < ranks.length; i++) {
      map.homeless++;
      map.homeless_bytes += data.size[this.#blocksByAddress[ranks[i] as number] as number] as number;
    }
    map.segment_first[n] = count;
    map.offset = map.offset.slice(0, count);
    map.size = map.size.slice(0, count);
    map.state = map.state.slice(0, count);
    map.block = map.block.slice(0, count);
    return map;
  }

  #segmentsAt(moment: number): { rows: number[]; sizes: number[]; pools: number[] } {
    const { seg_size, seg_kind, seg_stream, seg_pool } = this.data;
    const rows: number[] = [];
    const sizes: number[] = [];
    const pools: number[] = [];
    let before = -1;
    for (const row of this.segmentsByAddress) {
      if (!this.isThere(row, moment)) continue;
      const pool = seg_pool[row] as number;
      const size = seg_size[row] as number;
      const pieces =
        before >= 0 &&
        seg_kind[row] === EXPANDABLE &&
        seg_kind[before] === EXPANDABLE &&
        seg_stream[row] === seg_stream[before] &&
        (pool === seg_pool[before] || pool < 0 || (seg_pool[before] as number) < 0) &&
        this.#between(before, row) === seg_size[before];
      if (pieces) {
        const last = rows.length - 1;
        sizes[last] = (sizes[last] as number) + size;
        // A piece that is gone at the end may not know its pool.
        pools[last] = Math.max(pools[last] as number, pool);
      } else {
        rows.push(row);
        sizes.push(size);
        pools.push(pool);
      }
      before = row;
    }
    return { rows, sizes, pools };
  }
}

/** Bytes from one address to another; exact where they are less than 2**53 apart, and of the right sign elsewhere. */
function distance(fromHi: number, fromLo: number, toHi: number, toLo: number): number {
  return (toHi - fromHi) * 0x1_0000_0000 + (toLo - fromLo);
}

/** Indices in order of address, equal ones in their own order: four passes of a radix sort, 20 ms for a million. */
export function byAddress(hi: Uint32Array, lo: Uint32Array): Uint32Array {
  const n = hi.length;
  let order = Uint32Array.from({ length: n }, (_, i) => i);
  let spare = new Uint32Array(n);
  for (const [word, shift] of [
    [lo, 0],
    [lo, 16],
    [hi, 0],
    [hi, 16],
  ] as const) {
    const counts = new Uint32Array(0x1_0000);
    for (let i = 0; i < n; i++) {
      const digit = ((word[i] as number) >>> shift) & 0xffff;
      counts[digit] = (counts[digit] as number) + 1;
    }
    if (n > 0 && counts[((word[0] as number) >>> shift) & 0xffff] === n) continue; // all alike: nothing to sort
    let sum = 0;
    for (let digit = 0; digit < counts.length; digit++) {
      const count = counts[digit] as number;
      counts[digit] = sum;
      sum += count;
    }
    for (let i = 0; i < n; i++) {
      const item = order[i] as number;
      const digit = ((word[item] as number) >>> shift) & 0xffff;
      const place = counts[digit] as number;
      counts[digit] = place + 1;
      spare[place] = item;
    }
    [order, spare] = [spare, order];
  }
  return order;
}
