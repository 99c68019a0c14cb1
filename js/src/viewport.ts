// Where the user looks: the camera, its limits, and the short glide to a new place. Owns every change of the camera.

import { type Camera, clamp, fit, momentToX, pan, withAxis, xToMoment, zoomAt, zoomBytesAt } from "./camera.js";
import type { Axis } from "./model.js";
import type { Timeline } from "./timeline.js";

/** Reserved belongs to the picture unless it would press the blocks into less than this part of the height. */
const RESERVED_WITHIN = 1.6;
/** The same for the device's capacity. */
const CAPACITY_WITHIN = 1.25;
const GLIDE_MS = 180;
/** Air above the highest, as in camera.ts. */
const AIR = 1.04;

/** Highest of what the picture should hold: blocks always, reserved and capacity where they are near. */
export function worthSeeing(active: number, reserved: number, capacity: number | null): number {
  const most = reserved <= active * RESERVED_WITHIN ? Math.max(active, reserved) : active;
  return Math.max(1, capacity !== null && capacity <= most * CAPACITY_WITHIN ? Math.max(most, capacity) : most);
}

/** The upper edge of a picture that shows everything. */
export function topOf(active: number, reserved: number, capacity: number | null): number {
  return Math.max(512, worthSeeing(active, reserved, capacity) * AIR);
}

export class Viewport {
  camera: Camera;
  readonly #timeline: Timeline;
  readonly #top: number;
  readonly #limit: number;
  #glide: { from: Camera; to: Camera; start: number } | null = null;

  constructor(timeline: Timeline, axis: Axis, capacity: number | null) {
    this.#timeline = timeline;
    this.#top = worthSeeing(timeline.peakActive, timeline.peakReserved, capacity);
    this.#limit = Math.max(this.#top, timeline.peakReserved, capacity ?? 0) * AIR;
    this.camera = fit(timeline, axis, this.#top);
  }

  get isWhole(): boolean {
    const { lo, hi } = this.camera;
    return lo <= 0 && hi >= this.#timeline.nEvents + 1;
  }

  /** The window as the trait holds it: whole moments, [0, 0] for everything. */
  get window(): [number, number] {
    return this.isWhole
      ? [0, 0]
      : [Math.floor(this.camera.lo), Math.min(Math.ceil(this.camera.hi), this.#timeline.nEvents)];
  }

  /** One frame of a glide; true while it goes on. */
  step(now: number): boolean {
    if (!this.#glide) {
      return false;
    }
    const { from, to, start } = this.#glide;
    const t = Math.min(1, Math.max(0, (now - start) / GLIDE_MS));
    const eased = 1 - (1 - t) ** 3;
    const between = (a: number, b: number): number => (t === 1 ? b : a + (b - a) * eased);
    this.camera = {
      axis: to.axis,
      lo: between(from.lo, to.lo),
      hi: between(from.hi, to.hi),
      bottom: between(from.bottom, to.bottom),
      top: between(from.top, to.top),
    };
    if (t === 1) {
      this.#glide = null;
    }
    return t < 1;
  }

  #go(to: Camera): void {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.camera = to;
      this.#glide = null;
    } else {
      this.#glide = { from: this.camera, to, start: performance.now() };
    }
  }

  #jump(to: Camera): void {
    this.#glide = null;
    this.camera = to;
  }

  get gliding(): boolean {
    return this.#glide !== null;
  }

  fit(): void {
    this.#go(fit(this.#timeline, this.camera.axis, this.#top));
  }

  /** Shows a window; [0, 0] and the like are everything. */
  show(lo: number, hi: number, glide = true): void {
    const wanted = hi > lo ? { ...this.camera, lo, hi } : { ...this.camera, lo: 0, hi: this.#timeline.nEvents + 1 };
    const to = clamp(this.#timeline, wanted, this.#limit);
    if (glide) {
      this.#go(to);
    } else {
      this.#jump(to);
    }
  }

  axis(axis: Axis): void {
    this.#jump(withAxis(this.#timeline, this.camera, axis));
  }

  zoom(x: number, width: number, factor: number): void {
    this.#jump(zoomAt(this.#timeline, this.camera, x, width, factor));
  }

  zoomBytes(y: number, height: number, factor: number): void {
    this.#jump(zoomBytesAt(this.camera, y, height, factor, this.#limit));
  }

  pan(dx: number, width: number, dy: number, height: number): void {
    this.#jump(pan(this.#timeline, this.camera, dx, width, dy, height, this.#limit));
  }

  /** Brings a moment into the window, in its middle where it was outside. */
  reveal(moment: number, glide = true): void {
    const width = 1000;
    const x = momentToX(this.#timeline, this.camera, moment + 0.5, width);
    if (x >= 0 && x <= width) {
      return;
    }
    const to = pan(this.#timeline, this.camera, x - width / 2, width);
    if (glide) {
      this.#go(to);
    } else {
      this.#jump(to);
    }
  }

  /** Moves the brush on the minimap, which is `width` wide. */
  brush(part: "lo" | "hi" | "body", dx: number, width: number): void {
    const whole = { ...this.camera, lo: 0, hi: this.#timeline.nEvents + 1 };
    const edge = (moment: number): number =>
      xToMoment(this.#timeline, whole, momentToX(this.#timeline, whole, moment, width) + dx, width);
    const { camera } = this;
    if (part === "body") {
      const from = momentToX(this.#timeline, whole, camera.lo, width);
      const span = momentToX(this.#timeline, whole, camera.hi, width) - from;
      // As a pan of the window itself, so that its width stays.
      this.pan((dx / Math.max(span, 1e-9)) * width, width, 0, 1);
    } else {
      const lo = part === "lo" ? Math.min(edge(camera.lo), camera.hi - 1) : camera.lo;
      const hi = part === "hi" ? Math.max(edge(camera.hi), camera.lo + 1) : camera.hi;
      this.#jump(clamp(this.#timeline, { ...camera, lo, hi }, this.#limit));
    }
  }

  /** A window between two pixels of the minimap. */
  brushNew(fromX: number, toX: number, width: number): void {
    const whole = { ...this.camera, lo: 0, hi: this.#timeline.nEvents + 1 };
    const moment = (x: number): number => xToMoment(this.#timeline, whole, Math.max(0, Math.min(x, width)), width);
    this.show(moment(Math.min(fromX, toX)), moment(Math.max(fromX, toX)), false);
  }

  /** Puts the middle of the brush at a pixel of the minimap. */
  brushCenter(x: number, width: number): void {
    const whole = { ...this.camera, lo: 0, hi: this.#timeline.nEvents + 1 };
    const middle = (this.camera.lo + this.camera.hi) / 2;
    this.brush("body", x - momentToX(this.#timeline, whole, middle, width), width);
  }
}
