// The two canvases of the drawing: blocks below, everything thin above. Owns sizes and the order of drawing; what is
// shown comes in with each call.

import { clipTo, drawAbove, drawByteAxis, drawCapacity, drawMarks, drawMomentAxis, drawReserved } from "./axes.js";
import type { Bands } from "./bands.js";
import { bytesToY, type Camera, momentToX } from "./camera.js";
import type { Picture } from "./columns.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";
import { type Layout, layOut } from "./layout.js";
import { Minimap } from "./minimap.js";
import type { Overview } from "./model.js";
import { outlinePath, Painter } from "./paint.js";
import { CHROME, type Chrome, type Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";
import type { Data } from "./wire.js";

export interface Shown {
  data: Data;
  timeline: Timeline;
  bands: Bands;
  /** Where the user is; the picture may be a frame behind. */
  camera: Camera;
  picture: Picture;
  theme: Theme;
  /** The moment with the cursor; -1 for none. */
  moment: number;
  selection: number;
  hovered: number;
  hoveredBand: number;
  /** Colours of the phases, where blocks have them. */
  bandColors?: readonly string[] | null;
  range: readonly [number, number] | null;
  /** Draws what only one view has, over the blocks. */
  extra?: (context: CanvasRenderingContext2D, layout: Layout) => void;
}

export class Scene {
  readonly stage: HTMLElement;
  readonly #blocks = h("canvas", { class: "mw-blocks", "aria-hidden": "true" });
  readonly #over = h("canvas", { class: "mw-over", "aria-hidden": "true" });
  readonly #painter = new Painter();
  readonly #minimap = new Minimap();
  /** The outlines drawn last: finding one reads the whole id buffer. */
  readonly #outlines = new Map<number, Path2D | null>();
  #outlined: Picture | null = null;
  layout: Layout = layOut(0, 0, 1, 0);

  constructor() {
    this.stage = h("div", { class: "mw-stage" }, this.#blocks, this.#over);
  }

  /** Takes a new size; true where anything changed. */
  resize(width: number, height: number, ratio: number, bandRows: number): boolean {
    const next = layOut(width, height, ratio, bandRows);
    if (JSON.stringify(next) === JSON.stringify(this.layout)) {
      return false;
    }
    this.layout = next;
    this.#over.width = Math.round(width * ratio);
    this.#over.height = Math.round(height * ratio);
    this.#over.style.width = `${width}px`;
    this.#over.style.height = `${height}px`;
    const { plot } = next;
    Object.assign(this.#blocks.style, {
      left: `${plot.x}px`,
      top: `${plot.y}px`,
      width: `${plot.width}px`,
      height: `${plot.height}px`,
    });
    return true;
  }

  /** Device pixels of the drawing. */
  get pixels(): { width: number; height: number } {
    const { plot, ratio } = this.layout;
    return { width: Math.round(plot.width * ratio), height: Math.round(plot.height * ratio) };
  }

  paint(picture: Picture, table: Uint32Array, pale = false): void {
    this.#blocks.hidden = false;
    this.#painter.paint(this.#blocks, picture, table, this.layout.ratio, pale);
  }

  #begin(): CanvasRenderingContext2D | null {
    const context = this.#over.getContext("2d");
    if (context) {
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, this.#over.width, this.#over.height);
      context.setTransform(this.layout.ratio, 0, 0, this.layout.ratio, 0, 0);
    }
    return context;
  }

  draw(shown: Shown): void {
    const context = this.#begin();
    if (!context) {
      return;
    }
    const { layout } = this;
    const { data, timeline, picture, theme, camera } = shown;
    const chrome = CHROME[theme];
    const { accent } = data.header.palette[theme];
    // Everything over the blocks goes by the picture's own view, so that it moves with them.
    const { view } = picture;
    drawByteAxis(context, layout, chrome, view.bottom, view.top, timeline.peakActive);
    drawMomentAxis(context, layout, chrome, timeline, view);
    if (timeline.peakReserved > 0) {
      drawReserved(context, layout, chrome, picture);
    }
    const { capacity } = data.header;
    const above: string[] = [];
    if (capacity !== null) {
      drawCapacity(context, layout, chrome, view, capacity);
      if (capacity > view.top) {
        above.push(`capacity ${bytes(capacity)}`);
      }
    }
    const reserved = picture.reserved[picture.width - 1] ?? 0;
    if (reserved > view.top) {
      above.push(`reserved ${bytes(reserved)}`);
    }
    drawAbove(context, layout, chrome, above);
    shown.bands.draw(context, layout, chrome, timeline, view, shown.hoveredBand, shown.bandColors ?? null);
    this.#drawRange(context, shown, chrome, accent);
    this.#drawCursor(context, shown, accent);
    this.#outline(context, picture, shown.hovered, 1, chrome.text, chrome.background);
    if (!this.#outline(context, picture, shown.selection, 2, accent, chrome.background)) {
      this.#dot(context, shown, accent, chrome.background);
    }
    shown.extra?.(context, layout);
    drawMarks(context, layout, timeline, view, [
      { moment: data.header.peak_event, color: chrome.muted },
      ...data.header.oom.map(({ moment }) => ({ moment, color: chrome.capacity })),
    ]);
    this.#minimap.draw(context, layout, chrome, { timeline, camera }, accent);
  }

  #drawRange(context: CanvasRenderingContext2D, shown: Shown, chrome: Chrome, accent: string): void {
    if (!shown.range) {
      return;
    }
    const { plot, ratio } = this.layout;
    const [lo, hi] = shown.range;
    const x0 = plot.x + momentToX(shown.timeline, shown.picture.view, lo, plot.width);
    const x1 = plot.x + momentToX(shown.timeline, shown.picture.view, hi, plot.width);
    context.save();
    clipTo(context, plot);
    context.fillStyle = chrome.range;
    context.fillRect(x0, plot.y, x1 - x0, plot.height);
    context.strokeStyle = accent;
    context.lineWidth = 1;
    for (const x of [x0, x1]) {
      const at = (Math.round(x * ratio) + 0.5) / ratio;
      context.beginPath();
      context.moveTo(at, plot.y);
      context.lineTo(at, plot.y + plot.height);
      context.stroke();
    }
    context.restore();
  }

  #drawCursor(context: CanvasRenderingContext2D, shown: Shown, accent: string): void {
    if (shown.moment < 0) {
      return;
    }
    const { plot, ratio } = this.layout;
    const x = plot.x + momentToX(shown.timeline, shown.picture.view, shown.moment + 0.5, plot.width);
    if (x < plot.x || x > plot.x + plot.width) {
      return;
    }
    const at = (Math.floor(x * ratio) + 0.5) / ratio;
    context.save();
    context.strokeStyle = accent;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(at, plot.y);
    context.lineTo(at, plot.y + plot.height);
    context.stroke();
    context.restore();
  }

  /** Two strokes: a rim in the background's colour, so that the line shows on any block, then the line. */
  #outline(
    context: CanvasRenderingContext2D,
    picture: Picture,
    block: number,
    width: number,
    color: string,
    rim: string,
  ): boolean {
    if (block < 0) {
      return false;
    }
    if (this.#outlined !== picture) {
      this.#outlines.clear();
      this.#outlined = picture;
    }
    let path = this.#outlines.get(block);
    if (path === undefined) {
      path = outlinePath(picture, block);
      this.#outlines.set(block, path);
    }
    if (!path) {
      return false;
    }
    const { plot, ratio } = this.layout;
    context.save();
    clipTo(context, { x: plot.x - 2, y: plot.y - 2, width: plot.width + 4, height: plot.height + 4 });
    context.setTransform(1, 0, 0, 1, Math.round(plot.x * ratio), Math.round(plot.y * ratio));
    context.lineCap = "square";
    context.lineWidth = (width + 2) * ratio;
    context.strokeStyle = rim;
    context.stroke(path);
    context.lineWidth = width * ratio;
    context.strokeStyle = color;
    context.stroke(path);
    context.restore();
    return true;
  }

  /** A pinned block too thin for a pixel: a dot where it lies, at the shown moment or where its life begins. */
  #dot(context: CanvasRenderingContext2D, shown: Shown, accent: string, rim: string): void {
    const { timeline, picture, selection } = shown;
    if (selection < 0) {
      return;
    }
    const there = (moment: number): boolean =>
      timeline.isLive(selection, moment) || timeline.isPending(selection, moment);
    const begin = Math.max(0, (timeline.history.alloc_event[selection] as number) + 1);
    const moment = shown.moment >= 0 && there(shown.moment) ? shown.moment : begin;
    const { plot } = this.layout;
    const x = plot.x + momentToX(timeline, picture.view, moment + 0.5, plot.width);
    const y = plot.y + bytesToY(picture.view, timeline.offsetAt(selection, moment, picture.view.order), plot.height);
    context.save();
    clipTo(context, plot);
    context.beginPath();
    context.arc(x, y, 4, 0, 2 * Math.PI);
    context.fillStyle = accent;
    context.fill();
    context.lineWidth = 1.5;
    context.strokeStyle = rim;
    context.stroke();
    context.restore();
  }

  /** Before the data: the curves as silhouettes, on the axis that the blocks will have. */
  drawOverview(overview: Overview, top: number, theme: Theme, accent: string): void {
    this.#blocks.hidden = true;
    const context = this.#begin();
    if (!context) {
      return;
    }
    const { layout } = this;
    const { plot } = layout;
    const chrome = CHROME[theme];
    const heights = overview.allocated;
    const step = plot.width / Math.max(heights.length, 1);
    context.fillStyle = chrome.silhouette;
    context.beginPath();
    context.moveTo(plot.x, plot.y + plot.height);
    heights.forEach((value, i) => {
      const y = plot.y + plot.height * (1 - value / top);
      context.lineTo(plot.x + i * step, y);
      context.lineTo(plot.x + (i + 1) * step, y);
    });
    context.lineTo(plot.x + plot.width, plot.y + plot.height);
    context.fill();
    drawByteAxis(context, layout, chrome, 0, top, overview.peak_allocated);
    this.#minimap.draw(context, layout, chrome, { heights }, accent);
  }

  /** Nothing known yet: an empty frame that holds the place. */
  drawNothing(theme: Theme): void {
    this.#blocks.hidden = true;
    const context = this.#begin();
    if (context) {
      drawByteAxis(context, this.layout, CHROME[theme], 0, 2 ** 30, 2 ** 30);
    }
  }
}
