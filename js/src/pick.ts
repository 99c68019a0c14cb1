/**
 * Picking: a pixel -> the block under it, a block -> its outline.
 *
 * Owns reading the id buffer back, so what is outlined is what is seen. It never asks the timeline.
 */

import { ID_MASK, PENDING, type Picture } from "./columns.js";

export interface Hit {
  block: number;
  pending: boolean;
}

/** Where a block is in a picture, column by column, in device pixels. */
export interface Outline {
  block: number;
  /** First column, and the one after the last. */
  x0: number;
  x1: number;
  /** Highest and lowest edge over all columns. */
  y0: number;
  y1: number;
  /** One a column from x0 on: upper edge and lower edge (rows; lower is not included); -1 where it has no pixel. */
  upper: Int32Array;
  lower: Int32Array;
}

/** The block under a pixel (fractions allowed), null over nothing. */
export function blockAt(picture: Picture, x: number, y: number): Hit | null {
  const column = Math.floor(x);
  const row = Math.floor(y);
  if (!(column >= 0 && row >= 0 && column < picture.width && row < picture.height)) return null;
  const value = picture.ids[row * picture.width + column] as number;
  return value === 0 ? null : { block: (value & ID_MASK) - 1, pending: value >= PENDING };
}

/**
 * Where a block is in the picture, its pending part included; null where it has no pixel.
 *
 * A block is one piece in every column, so two edges a column describe it. Reads the buffer once, row by row: 1 ms at
 * 1400x700.
 */
export function blockBox(picture: Picture, block: number): Outline | null {
  const { width, height, ids } = picture;
  const wanted = block + 1;
  const upper = new Int32Array(width).fill(-1);
  const lower = new Int32Array(width).fill(-1);
  let x0 = width;
  let x1 = 0;
  let y0 = height;
  let y1 = 0;
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      if (((ids[i] as number) & ID_MASK) !== wanted) continue;
      if (upper[x] === -1) upper[x] = y;
      lower[x] = y + 1;
      if (x < x0) x0 = x;
      if (x >= x1) x1 = x + 1;
      if (y < y0) y0 = y;
      y1 = y + 1;
    }
  }
  if (x1 === 0) return null;
  return { block, x0, x1, y0, y1, upper: upper.slice(x0, x1), lower: lower.slice(x0, x1) };
}

/** The strokes of an outline, four numbers each: x1, y1, x2, y2; columns of equal edges are joined. */
export function strokes(outline: Outline): number[] {
  const { x0, x1, upper, lower } = outline;
  const out: number[] = [];
  const upright = (x: number, a: number, b: number): void => {
    if (a !== b) out.push(x, a, x, b);
  };
  let before: readonly [number, number] = [-1, -1];
  for (let x = x0; x < x1; ) {
    const edge: readonly [number, number] = [upper[x - x0] as number, lower[x - x0] as number];
    let stop = x + 1;
    while (stop < x1 && upper[stop - x0] === edge[0] && lower[stop - x0] === edge[1]) stop++;
    if (edge[0] === -1 || before[0] === -1) {
      // The block comes or goes here: its whole side is an edge.
      upright(x, before[0], before[1]);
      upright(x, edge[0], edge[1]);
    } else {
      upright(x, before[0], edge[0]);
      upright(x, before[1], edge[1]);
    }
    if (edge[0] !== -1) out.push(x, edge[0], stop, edge[0], x, edge[1], stop, edge[1]);
    before = edge;
    x = stop;
  }
  upright(x1, before[0], before[1]);
  return out;
}
