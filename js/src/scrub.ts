// The strip that chooses a moment: the course of the whole recording, a line at the moment, another at the mark. A slider
// for the keyboard and for screen readers.

import { type Camera, momentToX, xToMoment } from "./camera.js";
import { h } from "./dom.js";
import { bytes, count } from "./format.js";
import { drawSilhouette, silhouette } from "./minimap.js";
import type { Axis } from "./model.js";
import { CHROME, type Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";

const HEIGHT = 36;

export interface ScrubState {
  timeline: Timeline;
  axis: Axis;
  theme: Theme;
  moment: number;
  /** -1 for none. */
  mark: number;
  accent: string;
}

export class Scrub {
  readonly element = h("div", {
    class: "mw-scrub",
    role: "slider",
    tabindex: "0",
    "aria-label": "Moment",
    title: "Click or drag to choose a moment; the arrow keys step",
  });
  readonly #canvas = h("canvas", { "aria-hidden": "true" });
  #state: ScrubState | null = null;
  #image: HTMLCanvasElement | null = null;
  #key = "";
  #of: Timeline | null = null;

  constructor(choose: (moment: number) => void, signal: AbortSignal) {
    this.element.append(this.#canvas);
    const go = (event: PointerEvent): void => {
      const state = this.#state;
      if (state) {
        const { left, width } = this.element.getBoundingClientRect();
        const x = Math.max(0, Math.min(event.clientX - left, width));
        const moment = Math.floor(xToMoment(state.timeline, this.#camera(state), x, width));
        // Under one pixel lie many moments: the highest of them is what is drawn.
        const next = Math.floor(xToMoment(state.timeline, this.#camera(state), x + 1, width));
        const last = state.timeline.nEvents;
        choose(
          state.timeline.highest(Math.min(moment, last), Math.max(Math.min(moment, last), Math.min(next - 1, last))),
        );
      }
    };
    this.element.addEventListener(
      "pointerdown",
      (event) => {
        this.element.setPointerCapture(event.pointerId);
        go(event);
      },
      { signal },
    );
    this.element.addEventListener("pointermove", (event) => event.buttons === 1 && go(event), { signal });
  }

  #camera({ timeline, axis }: ScrubState): Camera {
    return { lo: 0, hi: timeline.nEvents + 1, axis, bottom: 0, top: 1 };
  }

  show(state: ScrubState): void {
    this.#state = state;
    const { timeline, moment } = state;
    this.element.setAttribute("aria-valuemin", "0");
    this.element.setAttribute("aria-valuemax", String(timeline.nEvents));
    this.element.setAttribute("aria-valuenow", String(moment));
    this.element.setAttribute("aria-valuetext", `moment ${count(moment)}, ${bytes(timeline.allocated[moment] ?? 0)}`);
    this.#draw(state);
  }

  #draw(state: ScrubState): void {
    const { clientWidth: width } = this.element;
    const context = this.#canvas.getContext("2d");
    if (!context || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const chrome = CHROME[state.theme];
    const [w, tall] = [Math.round(width * ratio), Math.round(HEIGHT * ratio)];
    const key = [w, ratio, state.axis, state.theme].join();
    if (key !== this.#key || this.#of !== state.timeline) {
      this.#image = drawSilhouette(silhouette(state.timeline, state.axis, w), w, tall, ratio, chrome);
      this.#key = key;
      this.#of = state.timeline;
    }
    this.#canvas.width = w;
    this.#canvas.height = tall;
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${HEIGHT}px`;
    if (this.#image) context.drawImage(this.#image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const at = (moment: number): number => momentToX(state.timeline, this.#camera(state), moment + 0.5, width);
    if (state.mark >= 0) {
      const [a, b] = [at(state.mark), at(state.moment)];
      context.fillStyle = chrome.range;
      context.fillRect(Math.min(a, b), 0, Math.abs(b - a), HEIGHT);
      this.#line(context, a, chrome.text, [3, 3]);
    }
    this.#line(context, at(state.moment), state.accent, []);
  }

  #line(context: CanvasRenderingContext2D, x: number, color: string, dash: number[]): void {
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, HEIGHT);
    context.stroke();
    context.setLineDash([]);
  }
}
