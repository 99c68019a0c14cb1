// Axes, grid and the lines of the drawing: reserved, capacity, marks of peak and out of memory. Draws on the overlay
// canvas in CSS pixels; decides nothing about the view.

import { axisTicks, bytesToY, byteTicks, type Camera, momentToX, toAxis } from "./camera.js";
import type { Picture } from "./columns.js";
import { bytes } from "./format.js";
import type { Layout, Rect } from "./layout.js";
import type { Chrome } from "./theme.js";
import type { Timeline } from "./timeline.js";

/** Room a label needs, CSS pixels. */
const X_LABEL = 104;
const Y_LABEL = 44;

export const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

type Context = CanvasRenderingContext2D;

/** A hairline of one device pixel, whole. */
function hairline(context: Context, layout: Layout, color: string): void {
  context.lineWidth = 1 / layout.ratio;
  context.strokeStyle = color;
}

function snap(layout: Layout, value: number): number {
  return (Math.round(value * layout.ratio) + 0.5) / layout.ratio;
}

/** Text readable on any colour: a rim in the background's colour around it. */
function rimmed(context: Context, chrome: Chrome, text: string, x: number, y: number, color: string): void {
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = chrome.background;
  context.strokeText(text, x, y);
  context.fillStyle = color;
  context.fillText(text, x, y);
}

/** In the unit in which `peak` is said. */
export function drawByteAxis(
  context: Context,
  layout: Layout,
  chrome: Chrome,
  bottom: number,
  top: number,
  peak: number,
): void {
  const { plot } = layout;
  const ticks = byteTicks(bottom, top, Math.max(1, plot.height / Y_LABEL), peak);
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "middle";
  hairline(context, layout, chrome.grid);
  context.beginPath();
  for (const { value, label } of ticks) {
    const y = plot.y + plot.height * (1 - (value - bottom) / (top - bottom));
    context.fillStyle = chrome.muted;
    context.fillText(label, plot.x - 8, Math.max(y, 6));
    if (value > bottom) {
      context.moveTo(plot.x, snap(layout, y));
      context.lineTo(plot.x + plot.width, snap(layout, y));
    }
  }
  context.stroke();
  frame(context, layout, chrome);
}

function frame(context: Context, layout: Layout, chrome: Chrome): void {
  const { plot } = layout;
  hairline(context, layout, chrome.line);
  context.beginPath();
  context.moveTo(snap(layout, plot.x) - 1 / layout.ratio, plot.y);
  context.lineTo(snap(layout, plot.x) - 1 / layout.ratio, snap(layout, plot.y + plot.height));
  context.lineTo(plot.x + plot.width, snap(layout, plot.y + plot.height));
  context.stroke();
}

export function drawMomentAxis(
  context: Context,
  layout: Layout,
  chrome: Chrome,
  timeline: Timeline,
  camera: Camera,
): void {
  const { plot, xAxis } = layout;
  const from = toAxis(timeline, camera.axis, camera.lo);
  const to = toAxis(timeline, camera.axis, camera.hi);
  const y = xAxis.y + 13;
  context.font = FONT;
  context.textBaseline = "middle";
  context.fillStyle = chrome.muted;
  context.textAlign = "right";
  context.fillText(camera.axis === "time" && timeline.hasTime ? "time" : "events", plot.x - 8, y);
  hairline(context, layout, chrome.line);
  context.beginPath();
  for (const { value, label } of axisTicks(timeline, camera, Math.max(1, plot.width / X_LABEL))) {
    const x = plot.x + ((value - from) / (to - from)) * plot.width;
    const half = context.measureText(label).width / 2;
    context.textAlign = x + half > layout.width - 4 ? "right" : x - half < plot.x - 4 ? "left" : "center";
    const at = context.textAlign === "right" ? Math.min(x + half, layout.width - 4) : Math.max(x, plot.x);
    context.fillText(label, context.textAlign === "center" ? x : at, y);
    context.moveTo(snap(layout, x), plot.y + plot.height);
    context.lineTo(snap(layout, x), plot.y + plot.height + 4);
  }
  context.stroke();
}

/** Small triangles under the drawing: where the peak is, and where memory ran out. */
export function drawMarks(
  context: Context,
  layout: Layout,
  timeline: Timeline,
  camera: Camera,
  marks: readonly { moment: number; color: string }[],
): void {
  const { plot } = layout;
  for (const { moment, color } of marks) {
    const x = plot.x + momentToX(timeline, camera, moment + 0.5, plot.width);
    if (x >= plot.x && x <= plot.x + plot.width) {
      const y = plot.y + plot.height + 1;
      context.fillStyle = color;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x - 4, y + 6);
      context.lineTo(x + 4, y + 6);
      context.fill();
    }
  }
}

/** The reserved curve as steps, one a device column, and its name at the right end where there is room. */
export function drawReserved(context: Context, layout: Layout, chrome: Chrome, picture: Picture): void {
  const { plot, ratio } = layout;
  const { reserved, width, view } = picture;
  const span = view.top - view.bottom;
  const yAt = (x: number): number => plot.y + plot.height * (1 - ((reserved[x] as number) - view.bottom) / span);
  context.save();
  clipTo(context, plot);
  context.beginPath();
  for (let x = 0; x < width; x++) {
    const y = yAt(x);
    if (x === 0) {
      context.moveTo(plot.x, y);
    } else if (reserved[x] !== reserved[x - 1]) {
      context.lineTo(plot.x + x / ratio, yAt(x - 1));
      context.lineTo(plot.x + x / ratio, y);
    }
  }
  context.lineTo(plot.x + plot.width, yAt(width - 1));
  context.lineWidth = 1;
  context.strokeStyle = chrome.reserved;
  context.stroke();
  context.restore();
  const y = yAt(width - 1);
  if (y > plot.y && y < plot.y + plot.height - 16) {
    const text = `reserved ${bytes(reserved[width - 1] as number)}`;
    label(context, plot, chrome, text, y < plot.y + 18 ? y + 16 : y - 3, chrome.reserved);
  }
}

function label(context: Context, plot: Rect, chrome: Chrome, text: string, y: number, color: string): void {
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "bottom";
  rimmed(context, chrome, text, plot.x + plot.width - 4, y, color);
}

/** The device's capacity: a dashed line where it fits the scale, else a word at the top edge. */
export function drawCapacity(context: Context, layout: Layout, chrome: Chrome, camera: Camera, capacity: number): void {
  const { plot } = layout;
  const y = plot.y + bytesToY(camera, capacity, plot.height);
  if (y >= plot.y && y <= plot.y + plot.height) {
    context.save();
    context.setLineDash([6, 4]);
    context.lineWidth = 1;
    context.strokeStyle = chrome.capacity;
    context.beginPath();
    context.moveTo(plot.x, snap(layout, y));
    context.lineTo(plot.x + plot.width, snap(layout, y));
    context.stroke();
    context.restore();
    label(context, plot, chrome, `capacity ${bytes(capacity)}`, y < plot.y + 16 ? y + 16 : y - 3, chrome.capacity);
  }
}

/** What lies above the scale, in a word at the top left: the right end has the names of the lines. */
export function drawAbove(context: Context, layout: Layout, chrome: Chrome, texts: readonly string[]): void {
  context.font = FONT;
  context.textAlign = "left";
  context.textBaseline = "bottom";
  texts.forEach((text, row) => {
    rimmed(context, chrome, `${text} ↑`, layout.plot.x + 8, layout.plot.y + 15 + 14 * row, chrome.muted);
  });
}

export function clipTo(context: Context, rect: Rect): void {
  context.beginPath();
  context.rect(rect.x, rect.y, rect.width, rect.height);
  context.clip();
}
