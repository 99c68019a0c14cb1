/**
 * The sweep: a window of the timeline -> an id buffer, one uint32 a pixel.
 *
 * Owns what a pixel shows. Each pixel column shows one moment, the highest (by active) of those that fall in it, so that
 * no spike is lost; from the bottom up stand the live blocks in order of id, then the pending frees in order of id. A
 * pixel belongs to the block that covers its centre, so a block of at least a pixel's height is never left out.
 *
 *     row 0      ..........pp......      0            nothing
 *                .......pppp3333...      id + 1       solid: together exactly `allocated` high
 *                ...333333332222...      id + 1 | PENDING: on top of it, up to `active`
 *     row h-1    111111111111111111
 *
 * The sweep goes from left to right and carries the live blocks along. They lie in chunks of 64, each with its sum and
 * with the earliest end of its blocks: a chunk in which nothing ended is not touched, pixels below the lowest change
 * stay as they are, and a chunk that reaches no pixel's centre is passed over whole. So a column costs what changes in
 * it plus what is seen of it, not what is live, and no event is replayed.
 */

import { NEVER, type Timeline } from "./timeline.js";

/** Set in a pixel whose block waits for its free to complete. */
export const PENDING = 0x80000000;
/** Takes the id out of a pixel (and then subtract 1). */
export const ID_MASK = 0x7fffffff;

export interface View {
  /** The window in moments, fractions allowed; lo < hi. */
  lo: number;
  hi: number;
  axis: "events" | "time";
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

/** Blocks in a chunk: small enough to refill one cheaply, large enough that 1,500 live blocks are 24 chunks. */
const CHUNK = 64;
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
  /** Slots of the chunks: chunk c has #count[c] blocks from slot c * CHUNK on. */
  #id = new Int32Array(0);
  #end = new Int32Array(0);
  #size = new Float64Array(0);
  #count = new Int32Array(0);
  #sum = new Float64Array(0);
  /** The earliest end in a chunk. */
  #first = new Int32Array(0);
  #chunks = 0;
  #live = 0;
  #pending: number[] = [];
  /** Blocks below this id have been taken in. */
  #made = 0;
  /** Lowest chunk that is no longer as drawn, and the bytes below it. */
  #dirty = 0;
  /** The column being drawn, bottom row first, and each row's centre in bytes (one more, Infinity, as a stop). */
  #column = new Uint32Array(0);
  #centre = new Float64Array(0);
  #tile = new Uint32Array(0);
  /** Rows of the column that are not 0. */
  #filled = 0;

  constructor(timeline: Timeline) {
    this.#timeline = timeline;
  }

  draw(view: View, reuse: Picture | null): Picture {
    const { width, height } = view;
    const picture = blank(view, reuse);
    const { moments, ids } = picture;
    columnMoments(this.#timeline, view, moments);
    this.#setRows(view);
    let shown = -1;
    for (let left = 0; left < width; left += TILE) {
      const right = Math.min(width, left + TILE);
      for (let x = left; x < right; x++) {
        const moment = moments[x] as number;
        if (moment !== shown) {
          const fresh = shown < 0;
          if (fresh) this.#start(moment);
          this.#advance(moment, fresh);
          this.#paint();
          shown = moment;
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

  /** Take in the nearest checkpoint before the first column's moment. */
  #start(moment: number): void {
    const { ids, moment: from } = this.#timeline.checkpoint(moment);
    this.#chunks = 0;
    this.#live = 0;
    this.#pending.length = 0;
    for (let i = 0; i < ids.length; i++) this.#admit(ids[i] as number, moment);
    this.#made = this.#timeline.madeBefore(from);
  }

  /** Let the blocks that ended before a moment go and take in those made since. */
  #advance(moment: number, fresh: boolean): void {
    const first = this.#first;
    const pending = this.#pending;
    const { end } = this.#timeline;
    const known = pending.length;
    let kept = 0;
    for (let i = 0; i < known; i++) {
      const block = pending[i] as number;
      if ((end[block] as number) >= moment) pending[kept++] = block;
    }
    pending.length = kept;
    this.#dirty = fresh ? 0 : this.#chunks;
    for (let c = this.#chunks - 1; c >= 0; c--) {
      if ((first[c] as number) < moment) {
        this.#sift(c, moment);
        this.#dirty = c;
      }
    }
    const stop = this.#timeline.madeBefore(moment);
    for (let block = this.#made; block < stop; block++) {
      if ((end[block] as number) >= moment) this.#admit(block, moment);
    }
    this.#made = stop;
    if (pending.length > kept) pending.sort((a, b) => a - b);
    if (this.#chunks > 16 && this.#chunks * CHUNK > 3 * this.#live) this.#compact();
  }

  /** Put a block on top, or among the pending ones where its free is already asked for. */
  #admit(block: number, moment: number): void {
    const solid = this.#timeline.solidEnd[block] as number;
    if (solid < moment) {
      if ((this.#timeline.end[block] as number) >= moment) this.#pending.push(block);
      return;
    }
    let c = this.#chunks - 1;
    if (c < 0 || this.#count[c] === CHUNK) {
      c = this.#chunks++;
      if (c === this.#count.length) this.#grow();
      this.#count[c] = 0;
      this.#sum[c] = 0;
      this.#first[c] = NEVER;
    }
    if (c < this.#dirty) this.#dirty = c;
    const bytes = this.#timeline.history.size[block] as number;
    const slot = c * CHUNK + (this.#count[c] as number);
    this.#id[slot] = block;
    this.#end[slot] = solid;
    this.#size[slot] = bytes;
    this.#count[c] = (this.#count[c] as number) + 1;
    this.#sum[c] = (this.#sum[c] as number) + bytes;
    if (solid < (this.#first[c] as number)) this.#first[c] = solid;
    this.#live++;
  }

  /** Drop the blocks of one chunk that ended before a moment. */
  #sift(c: number, moment: number): void {
    const id = this.#id;
    const end = this.#end;
    const size = this.#size;
    const from = c * CHUNK;
    const stop = from + (this.#count[c] as number);
    let to = from;
    let sum = 0;
    let first = NEVER;
    for (let s = from; s < stop; s++) {
      const e = end[s] as number;
      if (e >= moment) {
        const bytes = size[s] as number;
        id[to] = id[s] as number;
        end[to] = e;
        size[to] = bytes;
        to++;
        sum += bytes;
        if (e < first) first = e;
      } else if ((this.#timeline.end[id[s] as number] as number) >= moment) {
        this.#pending.push(id[s] as number);
      }
    }
    this.#live -= stop - to;
    this.#count[c] = to - from;
    this.#sum[c] = sum;
    this.#first[c] = first;
  }

  /** Close the gaps once two thirds of the slots stand empty; so no slot is moved more than a few times. */
  #compact(): void {
    const chunks = this.#chunks;
    this.#chunks = 0;
    this.#live = 0;
    for (let c = 0; c < chunks; c++) {
      const from = c * CHUNK;
      const stop = from + (this.#count[c] as number);
      // Writing never overtakes reading: the target slot is at or before the one read, in a chunk already read.
      for (let s = from; s < stop; s++) this.#admitSlot(s);
    }
    this.#dirty = 0;
  }

  #admitSlot(from: number): void {
    const c = Math.floor(this.#live / CHUNK);
    const to = this.#live++;
    const end = this.#end[from] as number;
    const bytes = this.#size[from] as number;
    if (c === this.#chunks) {
      this.#chunks++;
      this.#sum[c] = 0;
      this.#first[c] = NEVER;
    }
    this.#id[to] = this.#id[from] as number;
    this.#end[to] = end;
    this.#size[to] = bytes;
    this.#count[c] = to - c * CHUNK + 1;
    this.#sum[c] = (this.#sum[c] as number) + bytes;
    if (end < (this.#first[c] as number)) this.#first[c] = end;
  }

  #grow(): void {
    const chunks = Math.max(64, this.#count.length * 2);
    this.#id = grown(this.#id, new Int32Array(chunks * CHUNK));
    this.#end = grown(this.#end, new Int32Array(chunks * CHUNK));
    this.#size = grown(this.#size, new Float64Array(chunks * CHUNK));
    this.#count = grown(this.#count, new Int32Array(chunks));
    this.#sum = grown(this.#sum, new Float64Array(chunks));
    this.#first = grown(this.#first, new Int32Array(chunks));
  }

  /** Redraw the column from the lowest changed chunk up. */
  #paint(): void {
    const id = this.#id;
    const size = this.#size;
    const sum = this.#sum;
    const centre = this.#centre;
    const column = this.#column;
    const height = column.length;
    let bytes = 0;
    for (let c = 0; c < this.#dirty; c++) bytes += sum[c] as number;
    let row = 0;
    for (let hi = height; row < hi; ) {
      const mid = (row + hi) >>> 1;
      if ((centre[mid] as number) < bytes) row = mid + 1;
      else hi = mid;
    }
    let next = centre[row] as number;
    for (let c = this.#dirty; c < this.#chunks && row < height; c++) {
      const above = bytes + (sum[c] as number);
      if (above > next) {
        const stop = c * CHUNK + (this.#count[c] as number);
        for (let s = c * CHUNK; s < stop; s++) {
          bytes += size[s] as number;
          if (bytes > next) {
            const value = (id[s] as number) + 1;
            do {
              column[row++] = value;
              next = centre[row] as number;
            } while (bytes > next);
          }
        }
      }
      bytes = above;
    }
    for (const block of this.#pending) {
      bytes += this.#timeline.history.size[block] as number;
      while (bytes > next) {
        column[row++] = (block + 1) | PENDING;
        next = centre[row] as number;
      }
    }
    if (row < this.#filled) column.fill(0, row, this.#filled);
    this.#filled = row;
  }
}

function grown<A extends Int32Array | Float64Array>(from: A, to: A): A {
  to.set(from);
  return to;
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
