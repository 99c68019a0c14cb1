/**
 * The Segments view's picture: reserved memory over time, each segment a layer, in the id buffer of the timeline.
 *
 * Owns which pixel shows which segment. Layers stand in order of making, private pools above all others; the lower part
 * of a layer is what is in use inside the segment at that column's moment, the upper part (flagged PENDING in the
 * buffer, drawn pale) is what is free. Each column shows the moment with most reserved of those that fall into it.
 */

import type { Addresses } from "./addresses.js";
import { columnMoments, PENDING, type Picture, type View } from "./columns.js";
import { isPrivatePool } from "./rows.js";
import { lowerBound, NEVER, Timeline } from "./timeline.js";
import { type Data, EXPANDABLE } from "./wire.js";

/** A private pool over the columns of a picture: its layers lie between base and top, used bytes of them in use. */
export interface PoolBand {
  pool: number;
  base: Float64Array;
  top: Float64Array;
  used: Float64Array;
}

export class Strata {
  readonly data: Data;
  /** Reserved memory as a timeline of its own: segments are its blocks. */
  readonly timeline: Timeline;
  bands: PoolBand[] = [];
  readonly #blocks: Timeline;
  /** Rows of the segments' table from the bottom up. */
  readonly #order: Int32Array;
  /** Bytes of block b inside segment share_row[i], for i in share_first[b] .. share_first[b + 1] - 1. */
  readonly #shareFirst: Int32Array;
  readonly #shareRow: number[] = [];
  readonly #shareBytes: number[] = [];
  /** The block that is completely gone with an event, -1 for none. */
  readonly #endsAt: Int32Array;
  /** Events at which a segment comes or goes, ascending. */
  readonly #changes: Int32Array;

  constructor(data: Data, blocks: Timeline, addresses: Addresses) {
    this.data = data;
    this.#blocks = blocks;
    this.timeline = new Timeline({
      n_events: data.n_events,
      n_blocks: data.seg_size.length,
      time_us: data.time_us,
      size: data.seg_size,
      alloc_event: data.seg_alloc_event,
      free_requested_event: data.seg_free_event,
      free_event: data.seg_free_event,
      reserved_moment: data.reserved_moment,
      reserved: data.reserved,
    });
    const rank = (row: number): number => {
      const pool = data.seg_pool[row] as number;
      return isPrivatePool(data, pool) ? pool + 1 : 0;
    };
    // The sort is stable: within a pool by row, which is by event.
    this.#order = Int32Array.from(data.seg_size, (_, row) => row).sort((a, b) => rank(a) - rank(b) || a - b);
    const events = [...data.seg_alloc_event, ...data.seg_free_event].filter((event) => event >= 0);
    this.#changes = Int32Array.from(events).sort();
    this.#endsAt = new Int32Array(data.n_events).fill(-1);
    blocks.end.forEach((event, block) => {
      if (event !== NEVER) this.#endsAt[event] = block;
    });
    this.#shareFirst = new Int32Array(data.n_blocks + 1);
    this.#share(addresses);
  }

  draw(view: View): Picture {
    const { width, height } = view;
    const picture: Picture = {
      width,
      height,
      view: { ...view },
      ids: new Uint32Array(width * height),
      moments: new Int32Array(width),
      allocated: new Float64Array(width),
      active: new Float64Array(width),
      reserved: new Float64Array(width),
    };
    const { moments, ids } = picture;
    columnMoments(this.timeline, view, moments);
    const { seg_size, seg_pool } = this.data;
    const used = new Float64Array(seg_size.length);
    const step = (view.top - view.bottom) / height;
    const row = (bytes: number): number => Math.max(0, Math.min(height, Math.ceil((bytes - view.bottom) / step - 0.5)));
    this.bands = this.#emptyBands(width);
    let alive: number[] = [];
    let seen = -1;
    let at = -1;
    for (let x = 0; x < width; x++) {
      const moment = moments[x] as number;
      if (at < 0) this.#start(moment, used);
      else this.#advance(at, moment, used);
      at = moment;
      const changes = lowerBound(this.#changes, moment);
      if (changes !== seen) {
        alive = this.#aliveAt(moment);
        seen = changes;
      }
      picture.allocated[x] = this.#blocks.allocated[moment] as number;
      picture.active[x] = this.#blocks.active[moment] as number;
      picture.reserved[x] = this.timeline.reservedAt(moment);
      let base = 0;
      let band: PoolBand | undefined;
      for (const segment of alive) {
        const size = seg_size[segment] as number;
        const full = base + Math.min(size, used[segment] as number);
        if (isPrivatePool(this.data, seg_pool[segment] as number)) {
          if (band?.pool !== seg_pool[segment]) band = this.bands.find((each) => each.pool === seg_pool[segment]);
          if (band) {
            if (band.top[x] === 0) band.base[x] = base;
            band.top[x] = base + size;
            band.used[x] = (band.used[x] as number) + (used[segment] as number);
          }
        }
        const middle = row(full);
        const to = row(base + size);
        for (let j = row(base); j < middle; j++) ids[(height - 1 - j) * width + x] = segment + 1;
        for (let j = Math.max(middle, row(base)); j < to; j++)
          ids[(height - 1 - j) * width + x] = (segment + 1) | PENDING;
        base += size;
      }
    }
    return picture;
  }

  #emptyBands(width: number): PoolBand[] {
    const pools = [...new Set(this.data.seg_pool)]
      .filter((pool) => isPrivatePool(this.data, pool))
      .sort((a, b) => a - b);
    return pools.map((pool) => ({
      pool,
      base: new Float64Array(width),
      top: new Float64Array(width),
      used: new Float64Array(width),
    }));
  }

  #aliveAt(moment: number): number[] {
    const out: number[] = [];
    for (const row of this.#order) {
      if (this.timeline.isLive(row, moment)) out.push(row);
    }
    return out;
  }

  #add(block: number, sign: number, used: Float64Array): void {
    for (let i = this.#shareFirst[block] as number; i < (this.#shareFirst[block + 1] as number); i++) {
      const row = this.#shareRow[i] as number;
      used[row] = (used[row] as number) + sign * (this.#shareBytes[i] as number);
    }
  }

  #start(moment: number, used: Float64Array): void {
    for (const block of this.#blocks.activeAt(moment)) this.#add(block, 1, used);
  }

  #advance(from: number, to: number, used: Float64Array): void {
    const stop = this.#blocks.madeBefore(to);
    for (let block = this.#blocks.madeBefore(from); block < stop; block++) this.#add(block, 1, used);
    for (let event = from; event < to; event++) {
      const block = this.#endsAt[event] as number;
      if (block >= 0) this.#add(block, -1, used);
    }
  }

  /** Lay every block over the segments that were there when it was made; in an expandable one over several pieces. */
  #share(addresses: Addresses): void {
    const { data } = this;
    const n = data.seg_size.length;
    const rankOf = new Int32Array(n);
    const rowOf = addresses.segmentsByAddress;
    rowOf.forEach((row, rank) => {
      rankOf[row] = rank;
    });
    const byEnd = Int32Array.from(data.seg_size, (_, row) => row)
      .filter((row) => (data.seg_free_event[row] as number) >= 0)
      .sort((a, b) => (data.seg_free_event[a] as number) - (data.seg_free_event[b] as number));
    /** Ranks of the segments there, ascending. */
    const there: number[] = [];
    let born = 0;
    let gone = 0;
    for (let block = 0; block < data.n_blocks; block++) {
      this.#shareFirst[block] = this.#shareRow.length;
      const event = data.alloc_event[block] as number;
      for (; born < n && (data.seg_alloc_event[born] as number) < Math.max(event, 0); born++) {
        there.splice(place(there, rankOf[born] as number), 0, rankOf[born] as number);
      }
      for (; gone < byEnd.length && (data.seg_free_event[byEnd[gone] as number] as number) < event; gone++) {
        const i = place(there, rankOf[byEnd[gone] as number] as number);
        if (there[i] === rankOf[byEnd[gone] as number]) there.splice(i, 1);
      }
      this.#shareOne(block, there, rowOf, addresses);
    }
    this.#shareFirst[data.n_blocks] = this.#shareRow.length;
  }

  #shareOne(block: number, there: readonly number[], rowOf: Uint32Array, addresses: Addresses): void {
    const { seg_size, seg_kind, size } = this.data;
    let lo = 0;
    let hi = there.length;
    while (lo < hi) {
      const mid = (lo + hi) >>> 1;
      if (addresses.offsetIn(rowOf[there[mid] as number] as number, block) >= 0) lo = mid + 1;
      else hi = mid;
    }
    let rest = size[block] as number;
    for (let i = lo - 1; i >= 0 && i < there.length && rest > 0; i++) {
      const row = rowOf[there[i] as number] as number;
      const from = Math.max(0, addresses.offsetIn(row, block));
      const bytes = Math.min(rest, (seg_size[row] as number) - from);
      if (bytes <= 0) break;
      this.#shareRow.push(row);
      this.#shareBytes.push(bytes);
      rest -= bytes;
      if (seg_kind[row] !== EXPANDABLE) break;
    }
  }
}

function place(sorted: readonly number[], value: number): number {
  let lo = 0;
  let hi = sorted.length;
  while (lo < hi) {
    const mid = (lo + hi) >>> 1;
    if ((sorted[mid] as number) < value) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}
