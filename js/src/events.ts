/**
 * The events one by one: what each of them did to which block or segment.
 *
 * Owns the way from an event back to its block (most events belong to one), its name, and the filters of the event
 * list. Pure.
 */

import type { Addresses } from "./addresses.js";
import { lowerBound } from "./timeline.js";
import { ACTIONS, blockName, type Data, hex } from "./wire.js";

export const FILTERS = [
  ["all", "all events"],
  ["alloc", "allocations"],
  ["free", "frees"],
  ["segments", "segments"],
  ["oom", "out of memory"],
  ["other", "other"],
] as const;
export type Filter = (typeof FILTERS)[number][0];

type Action = (typeof ACTIONS)[number];

const OF_FILTER: Record<Exclude<Filter, "all">, readonly Action[]> = {
  alloc: ["alloc"],
  free: ["free_requested", "free_completed"],
  segments: ["segment_alloc", "segment_free", "segment_map", "segment_unmap"],
  oom: ["oom"],
  other: ["snapshot", "annotate", "other"],
};

/** What the list calls an action. */
export const ACTION_WORDS: Record<Action, string> = {
  alloc: "alloc",
  free_requested: "free",
  free_completed: "free done",
  segment_alloc: "seg alloc",
  segment_free: "seg free",
  segment_map: "map",
  segment_unmap: "unmap",
  oom: "OOM",
  snapshot: "snapshot",
  annotate: "annotate",
  other: "other",
};

export interface EventFacts {
  action: Action;
  /** "b7f6d3a000000_0", "s7f6d3a000000_0" or "". */
  name: string;
  /** Of a block: bytes really taken. */
  size: number;
  /** -1 for none. */
  block: number;
  segment: number;
  stack: number;
  stream: number;
  pool: number;
}

export class EventTable {
  readonly data: Data;
  readonly #addresses: Addresses;
  /** The block an event is about, -1 for none; where one block ends because another takes its place, the new one. */
  readonly #block: Int32Array;
  /** A segment's row by the event that took or returned it. */
  readonly #segments = new Map<number, number[]>();

  constructor(data: Data, addresses: Addresses) {
    this.data = data;
    this.#addresses = addresses;
    const block = new Int32Array(data.n_events).fill(-1);
    for (const column of [data.free_requested_event, data.free_event, data.alloc_event]) {
      for (let b = 0; b < column.length; b++) {
        if ((column[b] as number) >= 0) block[column[b] as number] = b;
      }
    }
    this.#block = block;
    for (const column of [data.seg_alloc_event, data.seg_free_event]) {
      column.forEach((event, row) => {
        const rows = this.#segments.get(event);
        if (event >= 0) rows ? rows.push(row) : this.#segments.set(event, [row]);
      });
    }
  }

  action(event: number): Action {
    return ACTIONS[this.data.action[event] ?? -1] ?? "other";
  }

  /** The block an event is about, -1 for none. */
  block(event: number): number {
    return this.#block[event] ?? -1;
  }

  facts(event: number): EventFacts {
    const { data } = this;
    const action = this.action(event);
    const block = this.block(event);
    if (block >= 0) {
      return {
        action,
        name: blockName(data, block),
        size: data.size[block] as number,
        block,
        segment: -1,
        stack: (action === "alloc" ? data.stack[block] : data.free_stack[block]) as number,
        stream: data.stream[block] as number,
        pool: data.pool[block] as number,
      };
    }
    const i = lowerBound(data.loose_event, event);
    const known = data.loose_event[i] === event;
    const at = <T>(column: ArrayLike<T>, none: T): T => (known ? (column[i] as T) : none);
    const segment = this.#segment(event, at(data.loose_address_hi, 0), at(data.loose_address_lo, 0));
    const isSegment = OF_FILTER.segments.includes(action);
    const address = hex(at(data.loose_address_hi, 0), at(data.loose_address_lo, 0));
    return {
      action,
      name:
        segment >= 0
          ? this.#addresses.segmentName(segment)
          : isSegment
            ? `s${address}`
            : this.#freeOfNothing(action, address),
      size: at(data.loose_size, 0),
      block,
      segment,
      stack: at(data.loose_stack, -1),
      stream: at(data.loose_stream, -1),
      pool: at(data.loose_pool, -1),
    };
  }

  /** The first row of the matching filter's events, or null for all. */
  rows(filter: Filter): Int32Array | null {
    if (filter === "all") return null;
    const wanted = ACTIONS.map((action) => OF_FILTER[filter].includes(action));
    const { action } = this.data;
    const out = new Int32Array(action.length);
    let n = 0;
    for (let event = 0; event < action.length; event++) {
      if (wanted[action[event] as number]) out[n++] = event;
    }
    return out.slice(0, n);
  }

  /** How many events there are of each action. */
  counts(): { action: Action; count: number }[] {
    const sums = new Float64Array(ACTIONS.length);
    for (const action of this.data.action) sums[action] = (sums[action] ?? 0) + 1;
    return ACTIONS.map((action, i) => ({ action, count: sums[i] as number }));
  }

  #freeOfNothing(action: Action, address: string): string {
    return action === "alloc" || action.startsWith("free") ? `b${address}` : "";
  }

  /** Of the rows that an event took or returned, the one that begins at its address; else the first. */
  #segment(event: number, hi: number, lo: number): number {
    const rows = this.#segments.get(event) ?? [];
    const { seg_address_hi, seg_address_lo } = this.data;
    return rows.find((row) => seg_address_hi[row] === hi && seg_address_lo[row] === lo) ?? rows[0] ?? -1;
  }
}
