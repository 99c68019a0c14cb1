/** Totals of a range of moments: what was allocated, what was freed, how high it went, and by whom. */

import { lowerBound, type Timeline } from "./timeline.js";
import { type Data, stringAt } from "./wire.js";

export interface SiteTotal {
  /** The site's label; "" where the blocks have no stack or none of the user's frames. */
  label: string;
  /** Frame row, or -1. */
  frame: number;
  bytes: number;
  count: number;
}

export interface RangeTotals {
  lo: number;
  hi: number;
  allocated_bytes: number;
  allocated_count: number;
  /** By the event that asked for the free. */
  freed_bytes: number;
  freed_count: number;
  /** Highest allocated in the range, and the first moment that has it. */
  peak: number;
  peak_moment: number;
  /** Allocated at the end less allocated at the start. */
  change: number;
  /** Call sites by bytes allocated in the range, largest first. */
  by_site: SiteTotal[];
}

/** Sites listed. */
const SITES = 8;

/** What the events lo..hi-1 did, that is, what happened between the moments lo and hi. */
export function rangeTotals(data: Data, timeline: Timeline, lo: number, hi: number): RangeTotals {
  const last = timeline.nEvents;
  const from = Math.min(last, Math.max(0, Math.ceil(Math.min(lo, hi))));
  const to = Math.max(from, Math.min(last, Math.floor(Math.max(lo, hi))));
  const { size, stack, alloc_event } = data;
  const { solidEnd, allocated } = timeline;
  const first = lowerBound(alloc_event, from);
  const stop = lowerBound(alloc_event, to);

  const siteBytes = new Float64Array(data.frame_label.length + 1);
  const siteCount = new Uint32Array(data.frame_label.length + 1);
  let allocatedBytes = 0;
  for (let b = first; b < stop; b++) {
    const bytes = size[b] as number;
    allocatedBytes += bytes;
    const row = siteRow(data, stack[b] as number) + 1;
    siteBytes[row] = (siteBytes[row] as number) + bytes;
    siteCount[row] = (siteCount[row] as number) + 1;
  }
  let freedBytes = 0;
  let freedCount = 0;
  for (let b = 0; b < stop; b++) {
    const freed = solidEnd[b] as number;
    if (freed >= from && freed < to) {
      freedBytes += size[b] as number;
      freedCount++;
    }
  }
  let peakMoment = from;
  for (let m = from + 1; m <= to; m++) {
    if ((allocated[m] as number) > (allocated[peakMoment] as number)) peakMoment = m;
  }
  return {
    lo: from,
    hi: to,
    allocated_bytes: allocatedBytes,
    allocated_count: stop - first,
    freed_bytes: freedBytes,
    freed_count: freedCount,
    peak: allocated[peakMoment] as number,
    peak_moment: peakMoment,
    change: (allocated[to] as number) - (allocated[from] as number),
    by_site: largestSites(data, siteBytes, siteCount),
  };
}

function siteRow(data: Data, stack: number): number {
  return stack < 0 ? -1 : (data.stack_site[stack] ?? -1);
}

/** Two frames of one function on one line differ by name only; one label is one site. */
function largestSites(data: Data, bytes: Float64Array, count: Uint32Array): SiteTotal[] {
  const byLabel = new Map<string, SiteTotal>();
  for (let row = 0; row < count.length; row++) {
    if (count[row] === 0) continue;
    const frame = row - 1;
    const label = frame < 0 ? "" : stringAt(data, data.frame_label[frame] as number);
    const total = byLabel.get(label) ?? { label, frame, bytes: 0, count: 0 };
    total.bytes += bytes[row] as number;
    total.count += count[row] as number;
    byLabel.set(label, total);
  }
  return [...byLabel.values()].sort((a, b) => b.bytes - a.bytes).slice(0, SITES);
}
