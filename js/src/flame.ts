// The icicle of the Live view: one row a depth, the outermost frame on top, as wide as its bytes. Owns drawing, pointing
// and the keys that walk it; what a frame is called and coloured comes in. Draws from the tree's arrays; what would be
// thinner than a pixel is not visited.

import { FONT } from "./axes.js";
import { h, isolated } from "./dom.js";
import { bytes } from "./format.js";
import { childrenOf, type Tree } from "./live.js";
import { CHROME, type Theme } from "./theme.js";

const ROW = 20;
/** Narrower frames are left out, CSS pixels. */
const LEAST = 0.5;
/** Room that a label needs before it is written. */
const LABEL_FROM = 28;

export interface FlameState {
  tree: Tree;
  /** The node that fills the width. */
  zoomed: number;
  /** Where the keys stand, -1 for nowhere. */
  cursor: number;
  theme: Theme;
  label(node: number): string;
  /** "#rrggbb" or "" for none of its own; pale for frames that only lead on. */
  color(node: number): { color: string; pale: boolean };
}

export interface FlameActions {
  hover(node: number, x: number, y: number): void;
  click(node: number): void;
  move(node: number): void;
}

export class Flame {
  readonly element: HTMLElement;
  readonly #scroll = h("div", {
    class: "mw-flame-scroll",
    tabindex: "0",
    role: "img",
    "aria-label": "Flame graph: arrow keys walk the frames, Enter zooms, Escape goes back",
  });
  readonly #sizer = h("div", {});
  readonly #canvas = h("canvas", { "aria-hidden": "true" });
  #state: FlameState | null = null;
  #hovered = -1;

  constructor(actions: FlameActions, signal: AbortSignal) {
    this.#scroll.append(this.#sizer);
    this.element = h("div", { class: "mw-flame", "data-testid": "memwidget-flame" }, this.#canvas, this.#scroll);
    const at = (event: MouseEvent): number => {
      const box = this.#scroll.getBoundingClientRect();
      return this.nodeAt(event.clientX - box.left, event.clientY - box.top);
    };
    const hover = (node: number, event: MouseEvent): void => {
      const box = this.element.getBoundingClientRect();
      this.#hovered = node;
      this.#scroll.style.cursor = node >= 0 ? "pointer" : "default";
      actions.hover(node, event.clientX - box.left, event.clientY - box.top);
      this.draw();
    };
    this.#scroll.addEventListener("pointermove", (event) => hover(at(event), event), { signal });
    this.#scroll.addEventListener("pointerleave", (event) => hover(-1, event), { signal });
    this.#scroll.addEventListener(
      "click",
      (event) => {
        const node = at(event);
        if (node >= 0) actions.click(node);
      },
      { signal },
    );
    this.#scroll.addEventListener("scroll", () => this.draw(), { signal, passive: true });
    this.#scroll.addEventListener(
      "keydown",
      (event) => {
        const state = this.#state;
        if (!state || event.ctrlKey || event.metaKey || event.altKey) return;
        const { tree, zoomed } = state;
        const here = state.cursor < 0 ? zoomed : state.cursor;
        const siblings = here > zoomed ? childrenOf(tree, tree.parent[here] as number) : [here];
        const place = siblings.indexOf(here);
        const goals: Record<string, number | undefined> = {
          ArrowDown: childrenOf(tree, here)[0],
          ArrowUp: here > zoomed ? tree.parent[here] : here,
          ArrowLeft: siblings[place - 1],
          ArrowRight: siblings[place + 1],
          Home: zoomed,
        };
        if (event.key === "Enter" || event.key === " ") actions.click(here);
        else if (event.key in goals) actions.move(goals[event.key] ?? here);
        else return;
        event.preventDefault();
        event.stopPropagation();
      },
      { signal },
    );
  }

  show(state: FlameState): void {
    this.#state = state;
    const { tree, zoomed } = state;
    let deepest = 0;
    for (let i = zoomed; i < (tree.end[zoomed] as number); i++) deepest = Math.max(deepest, tree.depth[i] as number);
    const height = (deepest - (tree.depth[zoomed] as number) + 1) * ROW;
    this.element.style.flexBasis = `${height + 1}px`;
    this.#sizer.style.height = `${height}px`;
    if (state.cursor > zoomed) {
      const y = ((tree.depth[state.cursor] as number) - (tree.depth[zoomed] as number)) * ROW;
      const { scrollTop, clientHeight } = this.#scroll;
      if (y < scrollTop) this.#scroll.scrollTop = y;
      else if (y + ROW > scrollTop + clientHeight) this.#scroll.scrollTop = y + ROW - clientHeight;
    }
    this.draw();
  }

  focus(): void {
    this.#scroll.focus({ preventScroll: true });
  }

  /** Visits what is drawn: node, left edge, width, top, in CSS pixels of the visible part. */
  #each(visit: (node: number, x: number, width: number, y: number) => void): void {
    const state = this.#state;
    const { clientWidth: width, clientHeight: height, scrollTop } = this.#scroll;
    if (!state || width === 0) return;
    const { tree, zoomed } = state;
    const whole = tree.bytes[zoomed] as number;
    const left = tree.from[zoomed] as number;
    const depth = tree.depth[zoomed] as number;
    for (let i = zoomed; i < (tree.end[zoomed] as number); ) {
      const wide = whole > 0 ? ((tree.bytes[i] as number) / whole) * width : i === zoomed ? width : 0;
      const y = ((tree.depth[i] as number) - depth) * ROW - scrollTop;
      if (wide < LEAST || y > height) {
        i = tree.end[i] as number;
        continue;
      }
      if (y > -ROW) visit(i, whole > 0 ? (((tree.from[i] as number) - left) / whole) * width : 0, wide, y);
      i++;
    }
  }

  nodeAt(x: number, y: number): number {
    let found = -1;
    this.#each((node, left, width, top) => {
      if (x >= left && x < left + width && y >= top && y < top + ROW) found = node;
    });
    return found;
  }

  draw(): void {
    const state = this.#state;
    const { clientWidth: width, clientHeight: height } = this.#scroll;
    const context = this.#canvas.getContext("2d");
    if (!state || !context || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
    const snap = (value: number): number => Math.round(value * ratio) / ratio;
    const gap = 1 / ratio;
    const { tree, theme } = state;
    const chrome = CHROME[theme];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
    this.#each((node, left, wide, y) => {
      const { color, pale } = state.color(node);
      const lit = (tree.lit[node] as number) > 0;
      const x = snap(left);
      const w = Math.max(gap, snap(left + wide) - x - gap);
      context.globalAlpha = (pale ? 0.4 : 1) * (lit ? 1 : 0.25);
      context.fillStyle = color || chrome.bands[0];
      context.fillRect(x, y, w, ROW - 1);
      context.globalAlpha = lit ? 1 : 0.6;
      if (wide >= LABEL_FROM) {
        context.save();
        context.beginPath();
        context.rect(x, y, w - 4, ROW);
        context.clip();
        context.fillStyle = color && !pale && lit ? inkOn(color) : chrome.text;
        const text = isolated(state.label(node), 160);
        context.fillText(text, x + 6, y + ROW / 2);
        const size = bytes(tree.bytes[node] as number);
        const end = x + 6 + context.measureText(text).width + 8;
        if (end + context.measureText(size).width < x + w - 6) {
          context.globalAlpha *= 0.75;
          context.fillText(size, end, y + ROW / 2);
        }
        context.restore();
      }
      context.globalAlpha = 1;
      if (node === this.#hovered || node === state.cursor) {
        context.strokeStyle = node === state.cursor ? chrome.accent : chrome.text;
        context.lineWidth = node === state.cursor ? 2 : 1;
        context.strokeRect(x + 1, y + 1, Math.max(1, w - 2), ROW - 3);
      }
    });
  }
}

/** Black or white, whichever is read more easily on a colour. */
function inkOn(color: string): string {
  const value = Number.parseInt(color.slice(1), 16);
  const light = 0.299 * (value >> 16) + 0.587 * ((value >> 8) & 255) + 0.114 * (value & 255);
  return light > 140 ? "#1f2328" : "#ffffff";
}
