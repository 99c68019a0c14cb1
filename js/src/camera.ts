/**
 * The camera: which moments and which bytes are on screen.
 *
 * Owns zoom, pan, limits, the way between pixels and moments, and the ticks of the axes. Pure: every function returns a
 * new camera. The window is kept in moments on both axes; on the time axis a pixel's place is worked out in time.
 */

import { duration, UNITS, unitOf } from "./format.js";
import type { Timeline } from "./timeline.js";

export type Axis = "events" | "time";

export interface Camera {
  /** Moments, with fractions; 0 .. n + 1, so that the last state is as wide as any other. */
  lo: number;
  hi: number;
  axis: Axis;
  /** Bytes at the lower and the upper edge. */
  bottom: number;
  top: number;
}

export interface Tick {
  /** In bytes, moments, or microseconds. */
  value: number;
  label: string;
}

/** Smallest windows: 2 moments, 2 microseconds (the resolution of the clock is one), 512 bytes (a block). */
const MIN_MOMENTS = 2;
const MIN_US = 2;
const MIN_BYTES = 512;

/** The place of a moment on the camera's axis: itself, or its time. */
export function toAxis(timeline: Timeline, axis: Axis, moment: number): number {
  return axis === "time" && timeline.hasTime ? timeline.momentToTime(moment) : moment;
}

export function fromAxis(timeline: Timeline, axis: Axis, place: number): number {
  return axis === "time" && timeline.hasTime ? timeline.timeToMoment(place) : place;
}

/** Everything: all moments, from 0 up to `top` bytes (the highest of what is drawn, with some air above it). */
export function fit(timeline: Timeline, axis: Axis, top: number = timeline.peakActive): Camera {
  return { lo: 0, hi: timeline.nEvents + 1, axis, bottom: 0, top: Math.max(MIN_BYTES, top * 1.04) };
}

/** The moment (with fraction) at a pixel. */
export function xToMoment(timeline: Timeline, camera: Camera, x: number, width: number): number {
  const [from, to] = edges(timeline, camera);
  return fromAxis(timeline, camera.axis, from + (x / width) * (to - from));
}

/** The pixel of a moment; outside 0..width where the moment is not on screen. */
export function momentToX(timeline: Timeline, camera: Camera, moment: number, width: number): number {
  const [from, to] = edges(timeline, camera);
  return ((toAxis(timeline, camera.axis, moment) - from) / (to - from)) * width;
}

/** The pixel (0 = top) of an amount of bytes, and back. */
export function bytesToY(camera: Camera, bytes: number, height: number): number {
  return height * (1 - (bytes - camera.bottom) / (camera.top - camera.bottom));
}

export function yToBytes(camera: Camera, y: number, height: number): number {
  return camera.top - (y / height) * (camera.top - camera.bottom);
}

/** Zoom sideways: `factor` < 1 goes closer; what is at `x` of `width` stays there, as far as the limits allow. */
export function zoomAt(timeline: Timeline, camera: Camera, x: number, width: number, factor: number): Camera {
  const [from, to] = edges(timeline, camera);
  const [first, last] = bounds(timeline, camera.axis);
  const span = Math.min(last - first, Math.max(minSpan(timeline, camera.axis), (to - from) * factor));
  const fixed = from + (x / width) * (to - from);
  return placed(timeline, camera, fixed - (x / width) * span, span);
}

/** Zoom upright; what is at `y` of `height` stays there. `limit` is the most bytes worth seeing. */
export function zoomBytesAt(camera: Camera, y: number, height: number, factor: number, limit: number): Camera {
  const span = Math.min(limit, Math.max(MIN_BYTES, (camera.top - camera.bottom) * factor));
  const bottom = yToBytes(camera, y, height) - (1 - y / height) * span;
  return clampBytes({ ...camera, bottom, top: bottom + span }, limit);
}

/** Move by pixels: a positive `dx` shows what lies to the right, a positive `dy` what lies higher. */
export function pan(
  timeline: Timeline,
  camera: Camera,
  dx: number,
  width: number,
  dy = 0,
  height = 1,
  limit = Number.POSITIVE_INFINITY,
): Camera {
  const [from, to] = edges(timeline, camera);
  const bytes = (dy / height) * (camera.top - camera.bottom);
  const moved = dx === 0 ? camera : placed(timeline, camera, from + (dx / width) * (to - from), to - from);
  return bytes === 0 ? moved : clampBytes({ ...moved, bottom: moved.bottom + bytes, top: moved.top + bytes }, limit);
}

/** The same view on the other axis: the same moments at the edges. */
export function withAxis(timeline: Timeline, camera: Camera, axis: Axis): Camera {
  return clamp(timeline, { ...camera, axis }, Number.POSITIVE_INFINITY);
}

/** The nearest camera within the limits: inside the recording, not too narrow, bytes within 0..limit. */
export function clamp(timeline: Timeline, camera: Camera, limit: number): Camera {
  const sane = camera.hi > camera.lo ? camera : { ...camera, lo: 0, hi: timeline.nEvents + 1 };
  const [from, to] = edges(timeline, sane);
  const [first, last] = bounds(timeline, sane.axis);
  const least = minSpan(timeline, sane.axis);
  const span = Math.min(last - first, Math.max(least, to - from));
  // Inside the limits nothing is touched: a way there and back through time would cost the last digits.
  const inside = from >= first && to <= last && to - from >= least;
  const sideways = inside ? { ...sane } : placed(timeline, sane, (from + to - span) / 2, span);
  return clampBytes(sideways, limit);
}

function clampBytes(camera: Camera, limit: number): Camera {
  const span = Math.min(limit, Math.max(MIN_BYTES, camera.top - camera.bottom));
  const bottom = Math.max(0, Math.min(camera.bottom, limit - span));
  return { ...camera, bottom, top: bottom + span };
}

function edges(timeline: Timeline, camera: Camera): [number, number] {
  return [toAxis(timeline, camera.axis, camera.lo), toAxis(timeline, camera.axis, camera.hi)];
}

function bounds(timeline: Timeline, axis: Axis): [number, number] {
  return [toAxis(timeline, axis, 0), toAxis(timeline, axis, timeline.nEvents + 1)];
}

function minSpan(timeline: Timeline, axis: Axis): number {
  const [first, last] = bounds(timeline, axis);
  return Math.min(last - first, axis === "time" && timeline.hasTime ? MIN_US : MIN_MOMENTS);
}

/** A window of `span` from `from` on (on the axis), pushed back inside the recording. */
function placed(timeline: Timeline, camera: Camera, from: number, span: number): Camera {
  const [first, last] = bounds(timeline, camera.axis);
  const start = Math.max(first, Math.min(from, last - span));
  return {
    ...camera,
    lo: fromAxis(timeline, camera.axis, start),
    hi: start + span >= last ? timeline.nEvents + 1 : fromAxis(timeline, camera.axis, start + span),
  };
}

/**
 * Ticks of a byte axis, about `most` of them, all in one unit: that of `peak`, so that axis and header use one word,
 * or a finer one where two decimals would not tell neighbours apart.
 */
export function byteTicks(bottom: number, top: number, most: number, peak = top): Tick[] {
  for (let unit = unitOf(peak); ; unit--) {
    const scale = 1024 ** unit;
    const least = (top - bottom) / Math.max(1, most) / scale;
    // Powers of two down to a quarter; an eighth would read 0.125, 0.25, 0.375.
    const step = least > 1 / 8 ? 2 ** Math.ceil(Math.log2(least)) : roundStep(least);
    if (unit === 0 || step >= 0.01) {
      return ticksBy(Math.max(step * scale, 1), bottom, top, (value) =>
        value === 0 ? "0" : `${Number((value / scale).toFixed(2))} ${UNITS[unit]}`,
      );
    }
  }
}

/** Ticks of an axis of moments: 1, 2, 5 times a power of ten, whole numbers. */
export function eventTicks(lo: number, hi: number, most: number): Tick[] {
  const step = Math.max(1, roundStep((hi - lo) / Math.max(1, most)));
  return ticksBy(step, lo, hi, (value) => value.toLocaleString("en-US"));
}

/** Ticks of a time axis (microseconds since the start), in the unit that suits the step. */
export function timeTicks(from: number, to: number, most: number): Tick[] {
  const step = Math.max(1, roundStep((to - from) / Math.max(1, most)));
  return ticksBy(step, from, to, (value) => (value === 0 ? "0" : duration(value, step)));
}

/** Ticks for the camera's own horizontal axis; their values are moments on the axis "events", times on "time". */
export function axisTicks(timeline: Timeline, camera: Camera, most: number): Tick[] {
  const [from, to] = edges(timeline, camera);
  return camera.axis === "time" && timeline.hasTime ? timeTicks(from, to, most) : eventTicks(from, to, most);
}

function ticksBy(step: number, from: number, to: number, label: (value: number) => string): Tick[] {
  const ticks: Tick[] = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) {
    const value = i * step;
    ticks.push({ value, label: label(value) });
  }
  return ticks;
}

function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, Number.MIN_VALUE)));
  const lead = least / power;
  return (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10) * power;
}
