// Where things lie on the main canvas, in CSS pixels. Pure numbers: no DOM, no data.
//
//   +--------+------------------------------+
//   |        | bands, 14 px a row           |
//   +--------+------------------------------+
//   | y axis | plot                         |
//   +--------+------------------------------+
//   |        | x axis                       |
//   |        | minimap, 36 px               |
//   +--------+------------------------------+

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Layout {
  width: number;
  height: number;
  /** Device pixels a CSS pixel. */
  ratio: number;
  bandRows: number;
  bands: Rect;
  yAxis: Rect;
  plot: Rect;
  xAxis: Rect;
  minimap: Rect;
}

export const BAND_HEIGHT = 14;
/** Rows of bands at most: deeper annotations would take the room that the blocks need. */
export const MAX_BAND_ROWS = 5;
const GUTTER = 64;
const X_AXIS = 22;
const MINIMAP = 36;
const RIGHT = 8;

/** Edges fall on device pixels, so that no hairline is smeared over two. */
export function layOut(width: number, height: number, ratio: number, bandRows: number): Layout {
  const snap = (value: number): number => Math.round(value * ratio) / ratio;
  const rows = Math.min(bandRows, MAX_BAND_ROWS);
  const left = snap(GUTTER);
  const inner = Math.max(snap(width - left - RIGHT), 1);
  const top = snap(rows > 0 ? rows * BAND_HEIGHT + 4 : 6);
  const bottom = snap(X_AXIS + MINIMAP);
  const plotHeight = Math.max(snap(height - top - bottom), 1);
  const x = left;
  return {
    width,
    height,
    ratio,
    bandRows: rows,
    bands: { x, y: 2, width: inner, height: rows * BAND_HEIGHT },
    yAxis: { x: 0, y: top, width: left, height: plotHeight },
    plot: { x, y: top, width: inner, height: plotHeight },
    xAxis: { x, y: top + plotHeight, width: inner, height: X_AXIS },
    minimap: { x, y: top + plotHeight + X_AXIS, width: inner, height: MINIMAP },
  };
}

export function inside(rect: Rect, x: number, y: number): boolean {
  return x >= rect.x && x < rect.x + rect.width && y >= rect.y && y < rect.y + rect.height;
}
