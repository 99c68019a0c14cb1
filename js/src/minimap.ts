// The whole recording, 36 px high, with the window as a brush. Owns its picture, which changes only with size, axis and
// theme, and where the brush's edges are.

import { type Camera, momentToX } from "./camera.js";
import { columnMoments } from "./columns.js";
import { inside, type Layout } from "./layout.js";
import type { Axis } from "./model.js";
import type { Chrome } from "./theme.js";
import type { Timeline } from "./timeline.js";

/** An edge can be caught this far off, CSS pixels. */
const CATCH = 6;
/** Air above and below the silhouette. */
const PADDING = 5;

export type BrushPart = "lo" | "hi" | "body" | "outside";

/** Highest allocated of each column of a picture of the whole recording. */
export function silhouette(timeline: Timeline, axis: Axis, width: number): Float64Array {
  const moments = new Int32Array(width);
  const view = { lo: 0, hi: timeline.nEvents + 1, axis, width, height: 1, bottom: 0, top: 1 };
  columnMoments(timeline, view, moments);
  return Float64Array.from(moments, (moment) => timeline.active[moment] ?? 0);
}

export class Minimap {
  #key = "";
  #image: HTMLCanvasElement | null = null;

  /** `heights`: bytes by column, for the overview; with a timeline they are worked out here. */
  draw(
    context: CanvasRenderingContext2D,
    layout: Layout,
    chrome: Chrome,
    source: { timeline: Timeline; camera: Camera } | { heights: readonly number[] },
    accent: string,
  ): void {
    const { minimap, ratio } = layout;
    const width = Math.max(1, Math.round(minimap.width * ratio));
    const height = Math.max(1, Math.round(minimap.height * ratio));
    const axis = "timeline" in source ? source.camera.axis : "overview";
    const key = [width, height, axis, chrome.background].join();
    if (key !== this.#key || !this.#image) {
      const heights = "timeline" in source ? silhouette(source.timeline, source.camera.axis, width) : source.heights;
      this.#image = drawSilhouette(heights, width, height, ratio, chrome);
      this.#key = key;
    }
    context.drawImage(this.#image, minimap.x, minimap.y, minimap.width, minimap.height);
    context.lineWidth = 1 / ratio;
    context.strokeStyle = chrome.line;
    context.beginPath();
    context.moveTo(minimap.x, minimap.y + minimap.height - 1);
    context.lineTo(minimap.x + minimap.width, minimap.y + minimap.height - 1);
    context.stroke();
    if ("timeline" in source) {
      const [from, to] = brush(layout, source.timeline, source.camera);
      const whole = from <= minimap.x + 0.5 && to >= minimap.x + minimap.width - 0.5;
      if (!whole) {
        drawBrush(context, layout, chrome, from, to, accent);
      }
    }
  }
}

export function drawSilhouette(
  heights: ArrayLike<number>,
  width: number,
  height: number,
  ratio: number,
  chrome: Chrome,
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  if (context && heights.length > 0) {
    let most = 1;
    for (let i = 0; i < heights.length; i++) {
      most = Math.max(most, heights[i] as number);
    }
    const room = height - 2 * PADDING * ratio;
    context.fillStyle = chrome.silhouette;
    for (let x = 0; x < width; x++) {
      const value = heights[Math.min(heights.length - 1, Math.floor((x * heights.length) / width))] as number;
      const tall = (value / most) * room;
      context.fillRect(x, height - PADDING * ratio - tall, 1, tall + PADDING * ratio);
    }
  }
  return canvas;
}

function drawBrush(
  context: CanvasRenderingContext2D,
  layout: Layout,
  chrome: Chrome,
  from: number,
  to: number,
  accent: string,
): void {
  const { minimap } = layout;
  const end = Math.max(to, from + 2);
  context.save();
  context.globalAlpha = 0.66;
  context.fillStyle = chrome.background;
  context.fillRect(minimap.x, minimap.y, from - minimap.x, minimap.height);
  context.fillRect(end, minimap.y, minimap.x + minimap.width - end, minimap.height);
  context.globalAlpha = 1;
  context.strokeStyle = accent;
  context.lineWidth = 1;
  context.strokeRect(
    Math.round(from) + 0.5,
    minimap.y + 1.5,
    Math.max(Math.round(end) - Math.round(from) - 1, 1),
    minimap.height - 3,
  );
  context.fillStyle = accent;
  for (const x of [from, end]) {
    context.fillRect(Math.round(x) - 1, minimap.y + minimap.height / 2 - 6, 3, 12);
  }
  context.restore();
}

/** The window's edges on the minimap, CSS pixels of the canvas. */
export function brush(layout: Layout, timeline: Timeline, camera: Camera): [number, number] {
  const { minimap } = layout;
  const whole = { ...camera, lo: 0, hi: timeline.nEvents + 1 };
  return [
    minimap.x + momentToX(timeline, whole, camera.lo, minimap.width),
    minimap.x + momentToX(timeline, whole, camera.hi, minimap.width),
  ];
}

/** Which part of the brush lies under a point of the minimap. */
export function brushPart(layout: Layout, timeline: Timeline, camera: Camera, x: number, y: number): BrushPart | null {
  if (!inside(layout.minimap, x, y) && !inside(layout.minimap, Math.min(x + CATCH, layout.width), y)) {
    return null;
  }
  const [from, to] = brush(layout, timeline, camera);
  const near = Math.min(CATCH, Math.max(2, (to - from) / 3));
  if (Math.abs(x - from) <= CATCH && x < from + near) {
    return "lo";
  }
  if (Math.abs(x - to) <= CATCH && x > to - near) {
    return "hi";
  }
  return x > from && x < to ? "body" : "outside";
}
