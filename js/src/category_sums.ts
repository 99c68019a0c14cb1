/**
 * Bytes by category at any moment, fast enough to follow the pointer: no walk over what is live.
 *
 * The sums at every 1,024th moment are kept; from there on the blocks made until the moment are added and those that
 * ended are taken away. The latter lie together by the stretch between two kept moments in which they end, because one
 * event may end several blocks.
 */

import { NEVER, type Timeline } from "./timeline.js";
import type { Data } from "./wire.js";

/** Moments between two kept ones: a few microseconds of walking; 1.5 million events come to 130 kB of sums. */
const SPACING = 1_024;

const known = new WeakMap<Timeline, CategorySums>();

export class CategorySums {
  /** The categories that have bytes at any moment, ascending. */
  readonly codes: readonly number[];
  readonly #data: Data;
  readonly #timeline: Timeline;
  readonly #spacing: number;
  /** Bytes of category c at moment k * spacing: entry k * categories + c. */
  readonly #kept: Float64Array;
  /** Blocks that end within stretch k: ended[first[k] .. first[k + 1]). */
  readonly #first: Int32Array;
  readonly #ended: Int32Array;
  readonly #sums: Float64Array;

  /** Worked out once a course. */
  static of(data: Data, timeline: Timeline): CategorySums {
    let sums = known.get(timeline);
    if (!sums) {
      sums = new CategorySums(data, timeline);
      known.set(timeline, sums);
    }
    return sums;
  }

  /** `spacing` is there for tests. */
  constructor(data: Data, timeline: Timeline, spacing = SPACING) {
    this.#data = data;
    this.#timeline = timeline;
    this.#spacing = spacing;
    const { category, size, alloc_event, n_blocks } = data;
    const { solidEnd } = timeline;
    const n = data.header.categories.length;
    const stretches = Math.floor(timeline.nEvents / spacing) + 1;
    const kept = new Float64Array(n * (stretches + 1));
    const first = new Int32Array(stretches + 2);
    const has = new Uint8Array(n);
    for (let b = 0; b < n_blocks; b++) {
      const end = solidEnd[b] as number;
      const code = category[b] as number;
      const bytes = size[b] as number;
      const born = (Math.floor((alloc_event[b] as number) / spacing) + 1) * n + code;
      kept[born] = (kept[born] as number) + bytes;
      if (end !== NEVER) {
        // Both are 0 for a block that was pending before the first event: it is never in the stack.
        const stretch = Math.floor(end / spacing) + 1;
        kept[stretch * n + code] = (kept[stretch * n + code] as number) - bytes;
        first[stretch] = (first[stretch] as number) + 1;
      }
      if (bytes > 0 && end >= 0) {
        has[code] = 1;
      }
    }
    for (let i = n; i < kept.length; i++) {
      kept[i] = (kept[i] as number) + (kept[i - n] as number);
    }
    first[0] = 0;
    for (let k = 1; k < first.length; k++) {
      first[k] = (first[k] as number) + (first[k - 1] as number);
    }
    const next = first.slice();
    this.#ended = new Int32Array(first[stretches] as number);
    for (let b = 0; b < n_blocks; b++) {
      const end = solidEnd[b] as number;
      if (end >= 0 && end !== NEVER) {
        const k = Math.floor(end / spacing);
        this.#ended[next[k] as number] = b;
        next[k] = (next[k] as number) + 1;
      }
    }
    this.#kept = kept;
    this.#first = first;
    this.#sums = new Float64Array(n);
    this.codes = [...has.keys()].filter((code) => has[code] === 1);
  }

  /** Bytes of each category at a moment; good until the next call. */
  at(moment: number): Float64Array {
    const { category, size } = this.#data;
    const sums = this.#sums;
    const k = Math.floor(moment / this.#spacing);
    sums.set(this.#kept.subarray(k * sums.length, (k + 1) * sums.length));
    const stop = this.#timeline.madeBefore(moment);
    for (let b = this.#timeline.madeBefore(k * this.#spacing); b < stop; b++) {
      const code = category[b] as number;
      sums[code] = (sums[code] as number) + (size[b] as number);
    }
    const { solidEnd } = this.#timeline;
    for (let i = this.#first[k] as number; i < (this.#first[k + 1] as number); i++) {
      const b = this.#ended[i] as number;
      if ((solidEnd[b] as number) < moment) {
        const code = category[b] as number;
        sums[code] = (sums[code] as number) - (size[b] as number);
      }
    }
    return sums;
  }
}
