/**
 * Where segments stand on the map: groups from the top, each of rows of equal height.
 *
 * Owns grouping, packing and scale; pure, in CSS pixels. A group holds the segments that can serve the same requests
 * (one pool, one stream, one size class), because only those holes count together. Private pools come last.
 *
 *     large · default stream                                group
 *     [ segment 0 ][ segment 1 ][ segment 2                  row: address order from left to right
 *                               ]..........[ segment 3 ]     a segment wider than a row goes on in the next
 *
 * Large segments share one scale and small ones another, taken from the moment with most reserved, so that nothing
 * changes its size while one steps through the events.
 */

import type { AddressMap } from "./addresses.js";
import { isSmall } from "./fragmentation.js";
import type { Data } from "./wire.js";

export const GROUP_HEAD = 22;
const GAP_X = 4;
const GAP_Y = 4;
const LEAST_ROW = 12;
const MOST_ROW = 36;
/** A segment narrower than this could not be pointed at. */
const LEAST_WIDTH = 4;
const MIB = 1 << 20;
/** Part of the rows that small segments may take when both kinds want more. */
const SMALL_SHARE = 0.3;

export interface Group {
  pool: number;
  stream: number;
  small: boolean;
  /** A pool that only its graph, or only code that asked for it, is served from. */
  isPrivate: boolean;
  /** Segments of the map, by address. */
  segments: number[];
  reserved: number;
}

/** What a full row holds, bytes. */
export interface Scale {
  large: number;
  small: number;
  row: number;
}

/** A segment's part in one row: bytes [from, to) of it. */
export interface Piece {
  segment: number;
  from: number;
  to: number;
  x: number;
  y: number;
  width: number;
}

export interface Rows {
  groups: (Group & { y: number })[];
  pieces: Piece[];
  row: number;
  height: number;
}

export function isPrivatePool(data: Data, pool: number): boolean {
  return pool >= 0 && data.header.pools[pool] !== "default";
}

export function groupsOf(data: Data, map: AddressMap): Group[] {
  const groups = new Map<string, Group>();
  for (let s = 0; s < map.nSegments; s++) {
    const row = map.segment_row[s] as number;
    const pool = map.segment_pool[s] as number;
    const stream = data.seg_stream[row] as number;
    const small = isSmall(data.seg_kind[row] as number, map.segment_size[s] as number);
    const key = `${pool} ${stream} ${small}`;
    let group = groups.get(key);
    if (!group) {
      group = { pool, stream, small, isPrivate: isPrivatePool(data, pool), segments: [], reserved: 0 };
      groups.set(key, group);
    }
    group.segments.push(s);
    group.reserved += map.segment_size[s] as number;
  }
  const stream = (group: Group): number => (data.header.streams[group.stream] === "default" ? -1 : group.stream);
  return [...groups.values()].sort(
    (a, b) =>
      Number(a.isPrivate) - Number(b.isPrivate) ||
      a.pool - b.pool ||
      stream(a) - stream(b) ||
      Number(a.small) - Number(b.small),
  );
}

/** The scale that shows a map in a height without scrolling, if rows of the least height allow that. */
export function scaleFor(data: Data, map: AddressMap, width: number, height: number): Scale {
  const groups = groupsOf(data, map);
  const room = Math.max(4, Math.floor((height - groups.length * GROUP_HEAD) / (LEAST_ROW + GAP_Y)));
  const small = groups.filter((group) => group.small);
  const large = groups.filter((group) => !group.small);
  const count = (some: Group[], bytes: number): number =>
    some.reduce((sum, group) => sum + pack(map, group.segments, bytes, width, 0, 0, null), 0);
  /** The least bytes a row, out of 1, 2, 3 ... segments of the usual size and the gaps between them. */
  const least = (some: Group[], unit: number, from: number, rows: number): number => {
    for (let n = from; ; n = Math.max(n + 1, Math.floor(n * 1.1))) {
      const gaps = Math.min((n - 1) * GAP_X, width / 2);
      const bytes = (n * unit * width) / (width - gaps);
      if (n > 1_000_000 || count(some, bytes) <= Math.max(rows, some.length)) return bytes;
    }
  };
  const smallBytes = least(small, 2 * MIB, 4, large.length > 0 ? Math.floor(room * SMALL_SHARE) : room);
  const smallRows = count(small, smallBytes);
  // Segments unbroken: all of them where the largest is not much larger than the usual one.
  const sizes = large
    .flatMap((group) => group.segments.map((s) => map.segment_size[s] as number))
    .sort((a, b) => a - b);
  const usual = Math.max(20 * MIB, sizes[Math.floor(sizes.length * 0.75)] ?? 0);
  const largest = sizes.at(-1) ?? 0;
  const largeBytes = least(large, largest <= 3 * usual ? Math.max(usual, largest) : usual, 1, room - smallRows);
  const rows = smallRows + count(large, largeBytes);
  const tall = Math.floor((height - groups.length * GROUP_HEAD) / Math.max(1, rows)) - GAP_Y;
  return { large: largeBytes, small: smallBytes, row: Math.max(LEAST_ROW, Math.min(tall, MOST_ROW)) };
}

export function layRows(data: Data, map: AddressMap, scale: Scale, width: number): Rows {
  const pieces: Piece[] = [];
  let y = 0;
  const groups = groupsOf(data, map).map((group) => {
    const at = y;
    y += GROUP_HEAD;
    const bytes = group.small ? scale.small : scale.large;
    y += pack(map, group.segments, bytes, width, y, scale.row + GAP_Y, pieces) * (scale.row + GAP_Y);
    return { ...group, y: at };
  });
  return { groups, pieces, row: scale.row, height: y };
}

/** Put segments into rows of `bytes` each; returns how many rows that takes. */
function pack(
  map: AddressMap,
  segments: readonly number[],
  bytes: number,
  width: number,
  top: number,
  pitch: number,
  out: Piece[] | null,
): number {
  let row = 0;
  let x = 0;
  for (const segment of segments) {
    const size = map.segment_size[segment] as number;
    const whole = Math.max(LEAST_WIDTH, (size / bytes) * width);
    if (x > 0 && x + whole > width + 0.01) {
      row++;
      x = 0;
    }
    for (let from = 0; from < size; ) {
      const to = Math.min(size, from + bytes);
      const part = whole <= LEAST_WIDTH ? whole : ((to - from) / bytes) * width;
      out?.push({ segment, from, to, x, y: top + row * pitch, width: part });
      x += part + GAP_X;
      from = to;
      if (from < size) {
        row++;
        x = 0;
      }
    }
  }
  return segments.length === 0 ? 0 : row + 1;
}

/** The piece at a point, -1 for none; pieces lie in order of y, then x. */
export function pieceAt(rows: Rows, x: number, y: number): number {
  let lo = 0;
  let hi = rows.pieces.length;
  while (lo < hi) {
    const mid = (lo + hi) >>> 1;
    const piece = rows.pieces[mid] as Piece;
    if (piece.y + rows.row <= y || (piece.y <= y && piece.x + piece.width <= x)) lo = mid + 1;
    else hi = mid;
  }
  const piece = rows.pieces[lo];
  return piece && y >= piece.y && y < piece.y + rows.row && x >= piece.x && x < piece.x + piece.width ? lo : -1;
}

/** The piece that shows a byte of a segment, -1 for none. */
export function pieceOf(rows: Rows, segment: number, offset: number): number {
  return rows.pieces.findIndex((piece) => piece.segment === segment && piece.from <= offset && offset < piece.to);
}
