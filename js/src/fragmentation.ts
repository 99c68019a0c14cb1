/**
 * How much reserved memory is free at a moment, and whom it can serve.
 *
 * Owns the rule: a request is served by a hole of its own pool, its own stream and its own size class that is large
 * enough. The Python twin is trace/fragmentation.py; the golden address maps hold the two together.
 */

import { type AddressMap, FREE, PENDING_FREE } from "./addresses.js";
import type { EventTable } from "./events.js";
import type { Timeline } from "./timeline.js";
import { type Data, EXPANDABLE } from "./wire.js";

/** Requests up to this size go to small segments. */
const SMALL_REQUEST = 1 << 20;
/** Pages that expandable segments map for small and for larger requests; also the size of a small segment. */
const SMALL_PAGE = 2 << 20;
const LARGE_PAGE = 20 << 20;

/** What free memory is judged against; stream and pool are -1 where unknown. */
export interface Request {
  size: number;
  stream: number;
  pool: number;
  /** Whether it is the one that failed at this moment, not the peak's largest block. */
  failed: boolean;
}

/** Bytes. free = usable + too_small + other_stream + other_pool + other_class. */
export interface Fragmentation {
  request: Request;
  reserved: number;
  free: number;
  pending: number;
  rounding: number;
  /** What empty_cache() gives back: free segments, and whole free pages of expandable ones; none of private pools. */
  releasable: number;
  largest_hole: number;
  usable: number;
  too_small: number;
  other_stream: number;
  other_pool: number;
  other_class: number;
}

/** The request that fails at a moment; elsewhere the largest block live at the peak. */
export function requestAt(data: Data, timeline: Timeline, events: EventTable, moment: number): Request {
  if (data.header.oom.some((each) => each.moment === moment)) {
    const { size, stream, pool } = events.facts(moment);
    const known = pool >= 0 ? pool : data.header.pools.indexOf("default");
    return { size, stream, pool: known, failed: true };
  }
  let largest = -1;
  for (const block of timeline.liveAt(data.header.peak_event)) {
    if (largest < 0 || (data.size[block] as number) > (data.size[largest] as number)) largest = block;
  }
  if (largest < 0) return { size: 0, stream: -1, pool: -1, failed: false };
  return {
    size: data.size[largest] as number,
    stream: data.stream[largest] as number,
    pool: data.pool[largest] as number,
    failed: false,
  };
}

/** Whether a segment serves requests up to 1 MiB. */
export function isSmall(kind: number, size: number): boolean {
  return kind === EXPANDABLE ? size % LARGE_PAGE !== 0 && size % SMALL_PAGE === 0 : kind === 0;
}

export function fragmentation(data: Data, map: AddressMap, request: Request): Fragmentation {
  const found: Fragmentation = {
    request,
    reserved: map.reserved,
    free: 0,
    pending: 0,
    rounding: 0,
    releasable: 0,
    largest_hole: 0,
    usable: 0,
    too_small: 0,
    other_stream: 0,
    other_pool: 0,
    other_class: 0,
  };
  const byDefault = data.header.pools.indexOf("default");
  for (let s = 0; s < map.nSegments; s++) {
    const row = map.segment_row[s] as number;
    const whole = map.segment_size[s] as number;
    const pool = map.segment_pool[s] as number;
    const small = isSmall(data.seg_kind[row] as number, whole);
    const home =
      pool !== request.pool && pool >= 0 && request.pool >= 0
        ? "other_pool"
        : data.seg_stream[row] !== request.stream && request.stream >= 0
          ? "other_stream"
          : small !== request.size <= SMALL_REQUEST
            ? "other_class"
            : "";
    for (let i = map.segment_first[s] as number; i < (map.segment_first[s + 1] as number); i++) {
      const size = map.size[i] as number;
      if (map.state[i] === FREE) {
        found.free += size;
        found[home || (size < request.size ? "too_small" : "usable")] += size;
        found.largest_hole = Math.max(found.largest_hole, size);
        if (pool >= 0 && pool !== byDefault) continue;
        if (data.seg_kind[row] === EXPANDABLE) {
          const page = small ? SMALL_PAGE : LARGE_PAGE;
          const start = map.offset[i] as number;
          found.releasable += page * Math.max(0, Math.floor((start + size) / page) - Math.ceil(start / page));
        } else if (size === whole) found.releasable += size;
      } else {
        found.rounding += size - (data.requested[map.block[i] as number] as number);
        if (map.state[i] === PENDING_FREE) found.pending += size;
      }
    }
  }
  return found;
}
