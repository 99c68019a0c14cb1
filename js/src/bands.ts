// The strips above the drawing: steps, phases and annotations, 14 px a row. Owns which row a band stands in, how it is
// drawn and which one lies under the pointer.

import { clipTo, FONT } from "./axes.js";
import { type Camera, momentToX } from "./camera.js";
import { clip, isolated } from "./dom.js";
import { BAND_HEIGHT, type Layout, MAX_BAND_ROWS } from "./layout.js";
import type { Chrome } from "./theme.js";
import type { Timeline } from "./timeline.js";
import { type Data, stringAt } from "./wire.js";

/** Rows from the top: steps (kind 2), then phases (1), then annotations (0), each by depth. */
const ORDER = [2, 1, 0];
/** Value of band_kind. */
const PHASE = 1;
/** Below this a label is not readable, CSS pixels. */
const LABEL_FROM = 28;

export class Bands {
  readonly rows: number;
  readonly #row: Int16Array;

  constructor(readonly data: Data) {
    const { band_kind, band_depth } = data;
    const depths = new Map<number, number>();
    for (let i = 0; i < band_kind.length; i++) {
      const kind = band_kind[i] as number;
      depths.set(kind, Math.max(depths.get(kind) ?? 0, (band_depth[i] as number) + 1));
    }
    const first = new Map<number, number>();
    let rows = 0;
    for (const kind of ORDER) {
      first.set(kind, rows);
      rows += depths.get(kind) ?? 0;
    }
    this.rows = Math.min(rows, MAX_BAND_ROWS);
    this.#row = Int16Array.from(band_kind, (kind, i) => (first.get(kind) ?? 0) + (band_depth[i] as number));
  }

  /** Pixels of a band, CSS, at least one wide. A band covers the moments after `lo` up to `hi`. */
  #extent(i: number, layout: Layout, timeline: Timeline, camera: Camera): [number, number] {
    const { plot } = layout;
    const { band_lo, band_hi } = this.data;
    const from = momentToX(timeline, camera, band_lo[i] as number, plot.width);
    const to = momentToX(timeline, camera, band_hi[i] as number, plot.width);
    return [plot.x + from, plot.x + Math.max(to, from + 1)];
  }

  /** `colors`: those of the phases, where blocks have them. */
  draw(
    context: CanvasRenderingContext2D,
    layout: Layout,
    chrome: Chrome,
    timeline: Timeline,
    camera: Camera,
    hovered: number,
    colors: readonly string[] | null,
  ): void {
    const { bands, plot } = layout;
    const { phases } = this.data.header;
    context.save();
    clipTo(context, { ...bands, height: bands.height + 1 });
    context.font = FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    /** Right end of what is drawn in a row: bands that share a pixel are drawn once. */
    const covered = new Float64Array(layout.bandRows).fill(-1);
    for (let i = 0; i < this.#row.length; i++) {
      const row = this.#row[i] as number;
      if (row >= layout.bandRows) {
        continue;
      }
      const [x0, x1] = this.#extent(i, layout, timeline, camera);
      if (x1 < plot.x || x0 > plot.x + plot.width || (x1 <= (covered[row] as number) && i !== hovered)) {
        continue;
      }
      covered[row] = Math.floor(x1);
      const left = Math.max(x0, plot.x);
      const right = Math.min(x1, plot.x + plot.width);
      const y = bands.y + row * BAND_HEIGHT;
      context.fillStyle = chrome.bands[this.data.band_kind[i] as number] ?? "";
      const width = Math.max(right - left - (right - left > 3 ? 1 : 0), 1);
      context.fillRect(left, y, width, BAND_HEIGHT - 1);
      const color = this.data.band_kind[i] === PHASE && colors?.[phases.indexOf(this.data.band_name[i] as number)];
      if (color) {
        context.fillStyle = color;
        context.fillRect(left, y + BAND_HEIGHT - 3, width, 2);
      }
      if (i === hovered) {
        context.fillStyle = chrome.range;
        context.fillRect(left, y, width, BAND_HEIGHT - 1);
      }
      if (right - left >= LABEL_FROM) {
        context.fillStyle = chrome.text;
        const text = fitted(context, stringAt(this.data, this.data.band_name[i] as number), right - left - 9);
        context.fillText(isolated(text), left + 4, y + 7);
      }
    }
    context.restore();
  }

  /** The band under a point of the canvas, -1 for none. */
  at(x: number, y: number, layout: Layout, timeline: Timeline, camera: Camera): number {
    const row = Math.floor((y - layout.bands.y) / BAND_HEIGHT);
    let best = -1;
    for (let i = 0; i < this.#row.length; i++) {
      if (this.#row[i] === row) {
        const [x0, x1] = this.#extent(i, layout, timeline, camera);
        if (x >= x0 - 1 && x < x1 + 1) {
          best = i;
        }
      }
    }
    return best;
  }
}

/** As much of a text as fits a width, with an ellipsis where it was cut. */
function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  const whole = context.measureText(text.slice(0, 200)).width;
  if (text.length <= 200 && whole <= width) {
    return text;
  }
  const letter = whole / Math.min(text.length, 200);
  return clip(text, Math.max(1, Math.floor(width / letter) - 1));
}
