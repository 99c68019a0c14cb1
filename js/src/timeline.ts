/**
 * The course of one device: curves, who lives when, moments and times.
 *
 * Owns everything that is worked out once from the block columns and then asked often. A moment m in 0..n is the state
 * after the first m events. It knows nothing of pixels.
 *
 *     event        0     1     2            n-1
 *     moment    0     1     2     3 ...          n
 *     block        [alloc ............. free_requested)[pending .. free_completed)
 *                   solid at m: alloc < m <= solidEnd   pending at m: solidEnd < m <= end
 *
 * Blocks are numbered by their alloc event, so the ones made between two moments are a range of ids, and the live ones
 * at m are: those of an earlier moment that have not ended, then that range without the ended ones. No event is replayed.
 */

import type { Order } from "./model.js";
import type { History } from "./wire.js";

/** Stands for "not freed in this recording" in `solidEnd` and `end`. */
export const NEVER = 0x7fffffff;

/** `free_requested_event` of a block that was pending before the first event: it is never in the solid stack. */
const BEFORE = -2;

/** A level of the max pyramid joins this many entries of the level below. */
const FAN = 32;
/**
 * Moments between checkpoints of live blocks (walking this far takes well under a millisecond), and the ids that all of
 * them together may hold (32 MB); where more blocks are live, the spacing doubles.
 */
const CHECKPOINTS = { spacing: 16_384, ids: 8_000_000 };

export interface Peak {
  moment: number;
  allocated: number;
  active: number;
  reserved: number;
}

export class Timeline {
  readonly nEvents: number;
  readonly nBlocks: number;
  readonly history: History;
  /** Bytes at each moment, n + 1 entries. */
  readonly allocated: Float64Array;
  readonly active: Float64Array;
  /** Last moment at which a block is in the solid stack (the event that asked for the free), NEVER if it stays, -1 if never. */
  readonly solidEnd: Int32Array;
  /** Last moment at which a block is there at all, pending included. */
  readonly end: Int32Array;
  readonly peakActive: number;
  readonly peakReserved: number;
  readonly hasTime: boolean;
  readonly #time: Float64Array;
  readonly #levels: Int32Array[];
  #spacing: number;
  #checkpoints: Uint32Array[] = [];

  /** `checkpoints` is there for tests: what they cost and how many there are changes no answer. */
  constructor(history: History, checkpoints = CHECKPOINTS) {
    this.history = history;
    this.#spacing = checkpoints.spacing;
    this.nEvents = history.n_events;
    this.nBlocks = history.n_blocks;
    this.#time = history.time_us ?? new Float64Array(0);
    this.hasTime = this.#time.length > 0;
    this.solidEnd = new Int32Array(this.nBlocks);
    this.end = new Int32Array(this.nBlocks);
    this.allocated = new Float64Array(this.nEvents + 1);
    this.active = new Float64Array(this.nEvents + 1);
    this.#sumUp();
    this.#levels = pyramid(this.active);
    this.peakActive = this.active[this.#argmax(0, this.nEvents)] as number;
    let reserved = 0;
    for (const bytes of history.reserved) reserved = Math.max(reserved, bytes);
    this.peakReserved = reserved;
    this.#placeCheckpoints(checkpoints.ids);
  }

  /** Moment of the highest active memory within [lo, hi] (moments, ends included); the first one if several. */
  maxIn(lo: number, hi: number): Peak {
    const a = clampMoment(Math.ceil(lo), this.nEvents);
    const moment = this.#argmax(a, Math.max(a, clampMoment(Math.floor(hi), this.nEvents)));
    return {
      moment,
      allocated: this.allocated[moment] as number,
      active: this.active[moment] as number,
      reserved: this.reservedAt(moment),
    };
  }

  /** As maxIn, for whole moments known to be in range; returns the moment alone. */
  highest(lo: number, hi: number): number {
    return this.#argmax(lo, hi);
  }

  /** Bytes reserved from the device at a moment. */
  reservedAt(moment: number): number {
    const at = upperBound(this.history.reserved_moment, moment) - 1;
    return at < 0 ? 0 : (this.history.reserved[at] as number);
  }

  /** How many blocks were made before a moment; equally, the id of the first one made at or after it. */
  madeBefore(moment: number): number {
    return lowerBound(this.history.alloc_event, moment);
  }

  isLive(block: number, moment: number): boolean {
    return (this.history.alloc_event[block] as number) < moment && (this.solidEnd[block] as number) >= moment;
  }

  isPending(block: number, moment: number): boolean {
    return (this.solidEnd[block] as number) < moment && (this.end[block] as number) >= moment;
  }

  /** Ids of the blocks in the solid stack at a moment, lowest first. */
  liveAt(moment: number): Uint32Array {
    return this.#filtered(moment, this.solidEnd);
  }

  /** Ids of the blocks whose free waits for another stream at a moment, ascending. */
  pendingAt(moment: number): Uint32Array {
    return this.activeAt(moment).filter((block) => (this.solidEnd[block] as number) < moment);
  }

  /** Ids of all blocks there at a moment, solid and pending together, ascending. */
  activeAt(moment: number): Uint32Array {
    return this.#filtered(moment, this.end);
  }

  /** Bytes below a block at a moment at which it lives; for a pending one, counted through the pending layer. */
  offsetAt(block: number, moment: number, order: Order = "age"): number {
    const category = order === "category" ? this.history.category : undefined;
    const own = category?.[block] ?? 0;
    let below = 0;
    const pending = this.isPending(block, moment);
    if (pending) below = this.allocated[moment] as number;
    for (const other of pending ? this.pendingAt(moment) : this.liveAt(moment)) {
      const above = (category?.[other] ?? 0) - own || other - block;
      if (above < 0) below += this.history.size[other] as number;
    }
    return below;
  }

  /** The nearest checkpoint at or before a moment: its ids (solid and pending, ascending) and its moment. */
  checkpoint(moment: number): { ids: Uint32Array; moment: number } {
    const i = Math.floor(moment / this.#spacing);
    return { ids: this.#checkpoints[i] as Uint32Array, moment: i * this.#spacing };
  }

  /** Microseconds since the first event of a moment (fractions lie between its event and the next); 0 without times. */
  momentToTime(moment: number): number {
    const last = this.#time.length;
    if (last === 0 || moment <= 1) return this.#time[0] ?? 0;
    if (moment >= last) return this.#time[last - 1] as number;
    const whole = Math.floor(moment);
    const from = this.#time[whole - 1] as number;
    return from + (moment - whole) * ((this.#time[whole] as number) - from);
  }

  /** The moment (with fraction) that a time falls in; 0 before the first event, n + 1 from the last event on. */
  timeToMoment(time: number): number {
    const last = this.#time.length;
    if (last === 0 || time <= (this.#time[0] as number)) return 0;
    if (time >= (this.#time[last - 1] as number)) return last + 1;
    const whole = upperBound(this.#time, time);
    const from = this.#time[whole - 1] as number;
    return whole + (time - from) / ((this.#time[whole] as number) - from);
  }

  /** How many events happened before a time. */
  eventsBefore(time: number): number {
    return lowerBound(this.#time, time);
  }

  #sumUp(): void {
    const { alloc_event, free_requested_event, free_event, size } = this.history;
    const { allocated, active, solidEnd, end, nEvents } = this;
    let before = -1;
    for (let b = 0; b < this.nBlocks; b++) {
      const made = alloc_event[b] as number;
      const bytes = size[b] as number;
      const freed = free_event[b] as number;
      const asked = free_requested_event[b] as number;
      // A free seen only when it completed ends the solid part as well.
      const solid = asked !== -1 ? Math.max(asked, -1) : freed >= 0 ? freed : NEVER;
      const gone = freed >= 0 ? freed : NEVER;
      if (
        made < before ||
        made >= nEvents ||
        (asked === BEFORE && made >= 0) ||
        (solid <= made && asked !== BEFORE) ||
        gone < solid
      )
        throw outOfOrder(b);
      if ((solid >= nEvents && solid !== NEVER) || (gone >= nEvents && gone !== NEVER)) throw outOfOrder(b);
      before = made;
      solidEnd[b] = solid;
      end[b] = gone;
      allocated[made + 1] = (allocated[made + 1] as number) + bytes;
      active[made + 1] = (active[made + 1] as number) + bytes;
      // With solid at -1 this takes back what was added just now: made is -1 as well.
      if (solid !== NEVER) allocated[solid + 1] = (allocated[solid + 1] as number) - bytes;
      if (gone !== NEVER) active[gone + 1] = (active[gone + 1] as number) - bytes;
    }
    let a = 0;
    let c = 0;
    for (let m = 0; m <= nEvents; m++) {
      a += allocated[m] as number;
      c += active[m] as number;
      allocated[m] = a;
      active[m] = c;
    }
  }

  #argmax(lo: number, hi: number): number {
    const { active } = this;
    const levels = this.#levels;
    let best = lo;
    let most = active[lo] as number;
    let from = lo;
    let to = hi + 1;
    for (let level = 0; from < to; level++) {
      // Nodes that do not fill a node of the level above, at either side; at the top all that is left.
      const top = level === levels.length;
      const left = top ? to : Math.min(to, Math.ceil(from / FAN) * FAN);
      const right = top ? to : Math.max(left, Math.floor(to / FAN) * FAN);
      const nodes = level === 0 ? null : (levels[level - 1] as Int32Array);
      for (let i = from; i < to; i++) {
        if (i === left) i = right;
        if (i >= to) break;
        const moment = nodes === null ? i : (nodes[i] as number);
        const value = active[moment] as number;
        if (value > most || (value === most && moment < best)) {
          most = value;
          best = moment;
        }
      }
      from = left / FAN;
      to = right / FAN;
    }
    return best;
  }

  #placeCheckpoints(most: number): void {
    const scratch = new Uint32Array(this.nBlocks);
    let held = 0;
    let last: Uint32Array = new Uint32Array(0);
    let made = 0;
    for (let m = 0; m <= this.nEvents; m += this.#spacing) {
      const stop = this.madeBefore(m);
      last = scratch.slice(0, gather(last, made, stop, this.end, m, scratch));
      made = stop;
      this.#checkpoints.push(last);
      held += last.length;
      if (held > most && this.#checkpoints.length > 2) {
        // m is always the last checkpoint, at an even or odd place; walk on from it at the wider spacing.
        const odd = this.#checkpoints.length % 2 === 0;
        if (odd) this.#checkpoints.pop();
        this.#checkpoints = this.#checkpoints.filter((_, i) => i % 2 === 0);
        held = this.#checkpoints.reduce((sum, ids) => sum + ids.length, 0);
        if (odd) m -= this.#spacing;
        this.#spacing *= 2;
        last = this.#checkpoints[this.#checkpoints.length - 1] as Uint32Array;
        made = this.madeBefore(m);
      }
    }
  }

  #filtered(at: number, end: Int32Array): Uint32Array {
    const moment = clampMoment(Math.floor(at), this.nEvents);
    const start = this.checkpoint(moment);
    const first = this.madeBefore(start.moment);
    const stop = this.madeBefore(moment);
    const out = new Uint32Array(start.ids.length + stop - first);
    return out.slice(0, gather(start.ids, first, stop, end, moment, out));
  }
}

/** Write the ids of `ids` and of first..stop-1 that have not ended before `moment`; returns how many. */
function gather(
  ids: Uint32Array,
  first: number,
  stop: number,
  end: Int32Array,
  moment: number,
  out: Uint32Array,
): number {
  let n = 0;
  for (let i = 0; i < ids.length; i++) {
    const block = ids[i] as number;
    if ((end[block] as number) >= moment) out[n++] = block;
  }
  for (let block = first; block < stop; block++) {
    if ((end[block] as number) >= moment) out[n++] = block;
  }
  return n;
}

function pyramid(values: Float64Array): Int32Array[] {
  const levels: Int32Array[] = [];
  let below: Int32Array | null = null;
  let length = values.length;
  while (length > FAN) {
    const level: Int32Array = new Int32Array(Math.ceil(length / FAN));
    for (let i = 0; i < level.length; i++) {
      const stop = Math.min(length, (i + 1) * FAN);
      let best = below === null ? i * FAN : (below[i * FAN] as number);
      let most = values[best] as number;
      for (let k = i * FAN + 1; k < stop; k++) {
        const m: number = below === null ? k : (below[k] as number);
        const value = values[m] as number;
        if (value > most) {
          most = value;
          best = m;
        }
      }
      level[i] = best;
    }
    levels.push(level);
    below = level;
    length = level.length;
  }
  return levels;
}

/** First index whose value is at least `value`, in an array that never falls. */
export function lowerBound(sorted: Int32Array | Float64Array, value: number): number {
  let lo = 0;
  let hi = sorted.length;
  while (lo < hi) {
    const mid = (lo + hi) >>> 1;
    if ((sorted[mid] as number) < value) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

/** First index whose value is more than `value`, in an array that never falls. */
export function upperBound(sorted: Int32Array | Float64Array, value: number): number {
  let lo = 0;
  let hi = sorted.length;
  while (lo < hi) {
    const mid = (lo + hi) >>> 1;
    if ((sorted[mid] as number) <= value) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

function clampMoment(moment: number, nEvents: number): number {
  return Math.min(nEvents, Math.max(0, moment));
}

function outOfOrder(block: number): Error {
  return new Error(`The data for the picture is damaged: block ${block} has events out of order; run the cell again.`);
}
