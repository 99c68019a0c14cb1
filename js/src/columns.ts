/**
 * The sweep: a window of the timeline -> an id buffer, one uint32 a pixel.
 *
 * Owns what a pixel shows. Each pixel column shows one moment, the highest (by active) of those that fall in it, so that
 * no spike is lost; from the bottom up stand the live blocks in order of id, then the pending frees in order of id; or
 * both by category, and in order of id within each. A pixel belongs to the block that covers its centre, so a block of
 * at least a pixel's height is never left out.
 *
 *     row 0      ..........pp......      0            nothing
 *                .......pppp3333...      id + 1       solid: together exactly `allocated` high
 *                ...333333332222...      id + 1 | PENDING: on top of it, up to `active`
 *     row h-1    111111111111111111
 *
 * The sweep goes from left to right and carries the live blocks along, in one lane (lane.ts) or one a category: ids come
 * in ascending order, so a new block always goes on top of its lane. Pixels below the lowest change stay as they are. So
 * a column costs the events since the last one (a look each) plus what is seen of it; the blocks that are live but
 * thinner than a pixel cost next to nothing.
 */

import { CHUNK, GROUP, Lane } from "./lane.js";
import type { Order } from "./model.js";
import { lowerBound, NEVER, type Timeline } from "./timeline.js";

/** Set in a pixel whose block waits for its free to complete. */
export const PENDING = 0x80000000;
/** Takes the id out of a pixel (and then subtract 1). */
export const ID_MASK = 0x7fffffff;

export interface View {
  /** The window in moments, fractions allowed; lo < hi. */
  lo: number;
  hi: number;
  axis: "events" | "time";
  /** How blocks are stacked; "age" where it is left out. */
  order?: Order;
  /** Device pixels. */
  width: number;
  height: number;
  /** Bytes at the lower and the upper edge. */
  bottom: number;
  top: number;
}

export interface Picture {
  width: number;
  height: number;
  /** The view that was drawn. */
  view: View;
  /** Row by row from the top: 0 nothing, else block id + 1, with PENDING set for a pending free. */
  ids: Uint32Array;
  /** The moment that each column shows. */
  moments: Int32Array;
  /** Bytes at those moments. */
  allocated: Float64Array;
  active: Float64Array;
  reserved: Float64Array;
}

/** Columns turned from columns to rows at once: 16 uint32 are one cache line of the picture. */
const TILE = 16;

/**
 * Draw a window.
 *
 * Parameters: `reuse` is a picture nobody needs any more; its buffers are taken where the size is the same.
 */
export function sweep(timeline: Timeline, view: View, reuse?: Picture | null): Picture {
  let sweeper = sweepers.get(timeline);
  if (sweeper === undefined) {
    sweeper = new Sweeper(timeline);
    sweepers.set(timeline, sweeper);
  }
  return sweeper.draw(view, reuse ?? null);
}

const sweepers = new WeakMap<Timeline, Sweeper>();

/** The moment that each of `view.width` columns shows: never falling from left to right. */
export function columnMoments(timeline: Timeline, view: View, out: Int32Array): void {
  const { width } = view;
  const last = timeline.nEvents;
  const byTime = view.axis === "time" && timeline.hasTime;
  const from = byTime ? timeline.momentToTime(view.lo) : view.lo;
  const step = ((byTime ? timeline.momentToTime(view.hi) : view.hi) - from) / width;
  // Column x holds the moments of [edge(x), edge(x + 1)); `before` counts the moments left of an edge. At the ends of
  // the recording the window is closed: moment 0 has no event of its own, and the last one lies on the edge itself.
  const before = (x: number): number => {
    if (x === 0 && view.lo <= 0) return 0;
    if (x === width && view.hi >= last) return last + 1;
    const edge = from + x * step;
    return Math.min(last + 1, Math.max(0, byTime ? timeline.eventsBefore(edge) + 1 : Math.ceil(edge)));
  };
  let first = before(0);
  for (let x = 0; x < width; x++) {
    const stop = before(x + 1);
    // No moment in the column: it shows the state that holds there.
    out[x] = stop > first ? timeline.highest(first, stop - 1) : Math.max(0, first - 1);
    first = Math.max(first, stop);
  }
}

/** The live blocks of one timeline, carried from column to column; see the top of the file. */
class Sweeper {
  readonly #timeline: Timeline;
  /** The block that leaves the solid stack at an event; NEVER, more than any id, for none. */
  readonly #leaves: Int32Array;
  /** The slot of a block that is in the stack. */
  readonly #slotOf: Int32Array;
  /** From the bottom up. */
  readonly #lanes: Lane[] = [];
  /** The lane of each block; null where one lane holds them all. */
  #laneOf: Uint8Array | null = null;
  #pending: number[] = [];
  /** The moment the slots stand at; blocks below `made` have been taken in. */
  #moment = 0;
  #made = 0;
  /** The column being drawn, bottom row first, and each row's centre in bytes (one more, Infinity, as a stop). */
  #column = new Uint32Array(0);
  #centre = new Float64Array(0);
  #tile = new Uint32Array(0);
  /** Rows of the column that are not 0. */
  #filled = 0;

  constructor(timeline: Timeline) {
    this.#timeline = timeline;
    this.#leaves = new Int32Array(timeline.nEvents).fill(NEVER);
    this.#slotOf = new Int32Array(timeline.nBlocks);
    const { solidEnd } = timeline;
    for (let block = 0; block < solidEnd.length; block++) {
      const event = solidEnd[block] as number;
      if (event >= 0 && event !== NEVER) this.#leaves[event] = block;
    }
  }

  draw(view: View, reuse: Picture | null): Picture {
    const { width, height } = view;
    const picture = blank(view, reuse);
    const { moments, ids } = picture;
    columnMoments(this.#timeline, view, moments);
    this.#setRows(view);
    this.#laneOf = view.order === "category" ? (this.#timeline.history.category ?? null) : null;
    this.#start(moments[0] as number);
    for (let left = 0; left < width; left += TILE) {
      const right = Math.min(width, left + TILE);
      for (let x = left; x < right; x++) {
        const moment = moments[x] as number;
        if (x === 0 || moment !== this.#moment) {
          this.#advance(moment);
          this.#paint();
        }
        this.#tile.set(this.#column, (x - left) * height);
        picture.allocated[x] = this.#timeline.allocated[moment] as number;
        picture.active[x] = this.#timeline.active[moment] as number;
        picture.reserved[x] = this.#timeline.reservedAt(moment);
      }
      turn(this.#tile, ids, left, right, width, height);
    }
    return picture;
  }

  #setRows(view: View): void {
    const { height, bottom, top } = view;
    if (this.#column.length !== height) {
      this.#column = new Uint32Array(height);
      this.#centre = new Float64Array(height + 1);
      this.#tile = new Uint32Array(height * TILE);
    }
    this.#column.fill(0);
    this.#filled = 0;
    const row = (top - bottom) / height;
    for (let j = 0; j < height; j++) this.#centre[j] = bottom + (j + 0.5) * row;
    this.#centre[height] = Number.POSITIVE_INFINITY;
  }

  /** Take in the blocks of the nearest checkpoint that are still there at the first column's moment. */
  #start(moment: number): void {
    const { ids, moment: from } = this.#timeline.checkpoint(moment);
    for (const lane of this.#lanes) lane.clear();
    this.#pending.length = 0;
    for (let i = 0; i < ids.length; i++) this.#admit(ids[i] as number, moment);
    this.#sortPending();
    this.#made = this.#timeline.madeBefore(from);
    this.#moment = moment;
  }

  /** Let the blocks that ended before a moment go and take in those made since. */
  #advance(moment: number): void {
    const { end } = this.#timeline;
    const pending = this.#pending;
    const leaves = this.#leaves;
    const made = this.#made;
    let kept = 0;
    for (let i = 0; i < pending.length; i++) {
      const block = pending[i] as number;
      if ((end[block] as number) >= moment) pending[kept++] = block;
    }
    pending.length = kept;
    for (let event = this.#moment; event < moment; event++) {
      const block = leaves[event] as number;
      // One that is not taken in yet is born and gone between two columns: the loop below passes it over.
      if (block < made) this.#remove(block, moment);
    }
    const stop = this.#timeline.madeBefore(moment);
    for (let block = made; block < stop; block++) {
      if ((end[block] as number) >= moment) this.#admit(block, moment);
    }
    this.#made = stop;
    this.#moment = moment;
    if (pending.length > kept) this.#sortPending();
    for (const lane of this.#lanes) lane.compact(this.#slotOf);
  }

  #sortPending(): void {
    const lane = this.#laneOf;
    this.#pending.sort((a, b) => (lane === null ? 0 : (lane[a] as number) - (lane[b] as number)) || a - b);
  }

  #lane(block: number): Lane {
    const place = this.#laneOf === null ? 0 : (this.#laneOf[block] as number);
    while (this.#lanes.length <= place) this.#lanes.push(new Lane());
    return this.#lanes[place] as Lane;
  }

  /** Put a block on top of its lane, or among the pending ones where its free is already asked for. */
  #admit(block: number, moment: number): void {
    if ((this.#timeline.solidEnd[block] as number) < moment) {
      if ((this.#timeline.end[block] as number) >= moment) this.#pending.push(block);
      return;
    }
    this.#lane(block).add(block, this.#timeline.history.size[block] as number, this.#slotOf);
  }

  #remove(block: number, moment: number): void {
    this.#lane(block).remove(this.#slotOf[block] as number);
    if ((this.#timeline.end[block] as number) >= moment) this.#pending.push(block);
  }

  /** Redraw the column from the lowest changed chunk up. */
  #paint(): void {
    const lanes = this.#lanes;
    const column = this.#column;
    let bytes = 0;
    let row = -1;
    for (const lane of lanes) {
      const foot = bytes;
      bytes += lane.bytes;
      if (row < 0 && lane.dirty === lane.used) continue;
      // What lies above a change has moved: it is drawn from its first slot on.
      if (row >= 0) lane.dirty = 0;
      let from = foot;
      for (let c = 0; c < lane.dirty >> CHUNK; c++) from += lane.chunkSum[c] as number;
      row = this.#paintLane(lane, from, row < 0 ? lowerBound(this.#centre, from) : row);
      lane.dirty = lane.used;
    }
    if (row < 0) row = lowerBound(this.#centre, bytes);
    let next = this.#centre[row] as number;
    for (const block of this.#pending) {
      bytes += this.#timeline.history.size[block] as number;
      while (bytes > next) {
        column[row++] = (block + 1) | PENDING;
        next = this.#centre[row] as number;
      }
    }
    if (row < this.#filled) column.fill(0, row, this.#filled);
    this.#filled = row;
  }

  /** Draw a lane from its lowest changed chunk, which begins at `bytes`; returns the first row above it. */
  #paintLane(lane: Lane, from: number, first: number): number {
    const { id, size, groupSum, chunkSum, used } = lane;
    const centre = this.#centre;
    const column = this.#column;
    const height = column.length;
    let bytes = from;
    let row = first;
    let next = centre[row] as number;
    for (let c = lane.dirty >> CHUNK; c << CHUNK < used && row < height; c++) {
      const chunkTop = bytes + (chunkSum[c] as number);
      if (chunkTop > next) {
        const lastGroup = Math.min((c + 1) << CHUNK, used + (1 << GROUP) - 1) >> GROUP;
        for (let g = c << (CHUNK - GROUP); g < lastGroup; g++) {
          const groupTop = bytes + (groupSum[g] as number);
          if (groupTop > next) {
            const stop = Math.min((g + 1) << GROUP, used);
            for (let slot = g << GROUP; slot < stop; slot++) {
              bytes += size[slot] as number;
              if (bytes > next) {
                const value = (id[slot] as number) + 1;
                do {
                  column[row++] = value;
                  next = centre[row] as number;
                } while (bytes > next);
              }
            }
          }
          bytes = groupTop;
        }
      }
      bytes = chunkTop;
    }
    return row;
  }
}

function blank(view: View, reuse: Picture | null): Picture {
  const { width, height } = view;
  if (reuse !== null && reuse.width === width && reuse.height === height && reuse.ids.length === width * height) {
    return { ...reuse, view: { ...view } };
  }
  return {
    width,
    height,
    view: { ...view },
    ids: new Uint32Array(width * height),
    moments: new Int32Array(width),
    allocated: new Float64Array(width),
    active: new Float64Array(width),
    reserved: new Float64Array(width),
  };
}

/** Write a tile of columns (bottom row first) into the rows of the picture (top row first). */
function turn(tile: Uint32Array, ids: Uint32Array, left: number, right: number, width: number, height: number): void {
  const columns = right - left;
  for (let j = 0; j < height; j++) {
    const to = (height - 1 - j) * width + left;
    for (let t = 0, from = j; t < columns; t++, from += height) ids[to + t] = tile[from] as number;
  }
}
