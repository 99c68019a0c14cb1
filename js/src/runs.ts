/**
 * A piece of the map as runs of pixels.
 *
 * Owns which stretch a pixel shows. What is taken goes before what is free: a block of 512 bytes that keeps a segment
 * of 20 MiB from being returned has a pixel, however narrow the segment is drawn. Drawing and pointing both read the
 * runs, so what you click is what you see.
 */

import { type AddressMap, FREE } from "./addresses.js";
import type { Piece } from "./rows.js";

export interface Run {
  stretch: number;
  /** Device pixels from the piece's left edge. */
  x0: number;
  x1: number;
}

/** Runs of a piece that is `pixels` wide, from left to right without gaps. */
export function runsOf(map: AddressMap, piece: Piece, pixels: number): Run[] {
  const scale = pixels / (piece.to - piece.from);
  const first = firstStretch(map, piece.segment, piece.from);
  const stop = map.segment_first[piece.segment + 1] as number;
  const taken: Run[] = [];
  let painted = 0;
  for (let i = first; i < stop && (map.offset[i] as number) < piece.to; i++) {
    if (map.state[i] === FREE) continue;
    const from = Math.max(piece.from, map.offset[i] as number) - piece.from;
    const to = Math.min(piece.to, (map.offset[i] as number) + (map.size[i] as number)) - piece.from;
    const x0 = Math.min(pixels - 1, Math.floor(from * scale + 0.5));
    const x1 = Math.min(pixels, Math.max(x0 + 1, Math.floor(to * scale + 0.5)));
    const start = Math.max(x0, painted);
    if (start >= x1) continue; // every pixel of it shows a neighbour
    taken.push({ stretch: i, x0: start, x1 });
    painted = x1;
  }
  // Between them lies what is free; a hole thinner than a pixel has none.
  const runs: Run[] = [];
  let x = 0;
  let hole = first;
  const fill = (to: number): void => {
    if (to <= x) return;
    const byte = piece.from + (x + to) / 2 / scale;
    while (hole + 1 < stop && (map.offset[hole + 1] as number) <= byte) hole++;
    runs.push({ stretch: nearestFree(map, piece.segment, hole), x0: x, x1: to });
  };
  for (const run of taken) {
    fill(run.x0);
    runs.push(run);
    x = run.x1;
  }
  fill(pixels);
  return runs;
}

/** The stretch that holds a byte of a segment. */
export function firstStretch(map: AddressMap, segment: number, byte: number): number {
  let lo = map.segment_first[segment] as number;
  let hi = map.segment_first[segment + 1] as number;
  while (lo + 1 < hi) {
    const mid = (lo + hi) >>> 1;
    if ((map.offset[mid] as number) <= byte) lo = mid;
    else hi = mid;
  }
  return lo;
}

/** Rounding may put the middle of a hole's pixels into a neighbour: then the hole is beside it. */
function nearestFree(map: AddressMap, segment: number, stretch: number): number {
  const from = map.segment_first[segment] as number;
  const to = map.segment_first[segment + 1] as number;
  for (const i of [stretch, stretch + 1, stretch - 1]) {
    if (i >= from && i < to && map.state[i] === FREE) return i;
  }
  return stretch;
}
