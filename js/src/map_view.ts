// The map of the Allocator view: two canvases over a scrolling area. Owns drawing, scrolling, zoom and pointing; which
// stretch has which pixel is the business of rows.ts and runs.ts.

import { type AddressMap, FREE, PENDING_FREE } from "./addresses.js";
import { FONT } from "./axes.js";
import { h, isolated } from "./dom.js";
import { bytes } from "./format.js";
import { GROUP_HEAD, layRows, type Piece, pieceAt, pieceOf, type Rows, type Scale } from "./rows.js";
import { type Run, runsOf } from "./runs.js";
import { CHROME, type Chrome, type Theme } from "./theme.js";
import type { Data } from "./wire.js";

/** Nearer than this no block gets larger. */
const CLOSEST = 4_096;
const WHEEL_RATE = 0.008;
const WHEEL_CAP = 0.7;
/** Blocks as wide as this get a hairline at their end, device pixels. */
const HAIRLINE_FROM = 4;

/** What lies under the pointer. `stretch` is -1 on the frame of a segment. */
export interface MapHit {
  segment: number;
  stretch: number;
}

export interface MapState {
  data: Data;
  map: AddressMap;
  scale: Scale;
  /** Pixels by block + 1, as the timeline has them. */
  table: Uint32Array;
  theme: Theme;
  /** Block and segment (of the map) that are pinned; -1 for none. */
  block: number;
  segment: number;
}

export interface MapActions {
  hover(hit: MapHit | null, x: number, y: number): void;
  click(hit: MapHit | null): void;
}

export class MapView {
  readonly element: HTMLElement;
  readonly #scroll = h("div", { class: "mw-map-scroll" });
  readonly #sizer = h("div", {});
  readonly #ground = h("canvas", { "aria-hidden": "true" });
  readonly #over = h("canvas", { "aria-hidden": "true" });
  #state: MapState | null = null;
  #rows: Rows | null = null;
  #runs = new Map<number, Run[]>();
  #zoom = 1;
  #patterns: Patterns | null = null;
  #hovered: MapHit | null = null;

  constructor(actions: MapActions, signal: AbortSignal) {
    this.#scroll.append(this.#sizer);
    this.element = h(
      "div",
      { class: "mw-map", "data-testid": "memwidget-map" },
      this.#ground,
      this.#over,
      this.#scroll,
    );
    this.#scroll.addEventListener("scroll", () => this.draw(), { signal, passive: true });
    this.#scroll.addEventListener(
      "pointermove",
      (event) => {
        const box = this.#scroll.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        this.#hovered = this.hitAt(x, y);
        this.#scroll.style.cursor = this.#hovered ? "pointer" : "default";
        actions.hover(this.#hovered, x, y);
        this.#drawOver();
      },
      { signal },
    );
    this.#scroll.addEventListener(
      "pointerleave",
      () => {
        this.#hovered = null;
        actions.hover(null, 0, 0);
        this.#drawOver();
      },
      { signal },
    );
    this.#scroll.addEventListener(
      "click",
      (event) => {
        const box = this.#scroll.getBoundingClientRect();
        actions.click(this.hitAt(event.clientX - box.left, event.clientY - box.top));
      },
      { signal },
    );
    this.#scroll.addEventListener(
      "wheel",
      (event) => {
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          const box = this.#scroll.getBoundingClientRect();
          const by = Math.max(-WHEEL_CAP, Math.min(WHEEL_CAP, event.deltaY * WHEEL_RATE));
          this.zoom(2 ** -by, event.clientX - box.left, event.clientY - box.top);
        }
      },
      { signal, passive: false },
    );
  }

  get size(): { width: number; height: number } {
    return { width: this.#scroll.clientWidth, height: this.#scroll.clientHeight };
  }

  show(state: MapState): void {
    this.#state = state;
    this.#lay();
    this.draw();
  }

  /** Above 1 goes closer; what is at a point stays there. */
  zoom(factor: number, x = 0, y = 0): void {
    const before = this.#rows;
    const zoom = Math.max(1, Math.min(this.#zoom * factor, CLOSEST));
    if (!this.#state || !before || zoom === this.#zoom) {
      return;
    }
    const index = pieceAt(before, x, y + this.#scroll.scrollTop);
    const piece = before.pieces[index];
    this.#zoom = zoom;
    this.#lay();
    if (piece && this.#rows) {
      const byte = piece.from + ((x - piece.x) / piece.width) * (piece.to - piece.from);
      const now = this.#rows.pieces[pieceOf(this.#rows, piece.segment, byte)];
      this.#scroll.scrollTop = (now?.y ?? 0) + this.#rows.row / 2 - y;
    }
    this.draw();
  }

  fit(): void {
    this.#zoom = 1;
    this.#lay();
    this.draw();
  }

  /** Scroll so that a byte of a segment is in sight. */
  reveal(segment: number, offset: number): void {
    const rows = this.#rows;
    const piece = rows?.pieces[pieceOf(rows, segment, offset)];
    if (!rows || !piece) {
      return;
    }
    const { scrollTop, clientHeight } = this.#scroll;
    if (piece.y < scrollTop + GROUP_HEAD || piece.y + rows.row > scrollTop + clientHeight) {
      this.#scroll.scrollTop = piece.y - clientHeight / 3;
    }
  }

  #lay(): void {
    const state = this.#state;
    const { width } = this.size;
    if (!state || width === 0) {
      return;
    }
    const scale = {
      large: Math.max(512, state.scale.large / this.#zoom),
      small: Math.max(512, state.scale.small / this.#zoom),
      row: state.scale.row,
    };
    this.#rows = layRows(state.data, state.map, scale, width);
    this.#sizer.style.height = `${this.#rows.height}px`;
    this.#runs.clear();
  }

  hitAt(x: number, y: number): MapHit | null {
    const rows = this.#rows;
    const state = this.#state;
    if (!rows || !state) {
      return null;
    }
    const index = pieceAt(rows, x, y + this.#scroll.scrollTop);
    const piece = rows.pieces[index];
    if (!piece) {
      return null;
    }
    const place = Math.floor((x - piece.x) * ratio());
    const run = this.#runsOf(index, piece).find((each) => place < each.x1);
    return { segment: piece.segment, stretch: run?.stretch ?? -1 };
  }

  #runsOf(index: number, piece: Piece): Run[] {
    let runs = this.#runs.get(index);
    if (!runs) {
      const [left, right] = edges(piece);
      runs = runsOf((this.#state as MapState).map, piece, Math.max(1, right - left));
      this.#runs.set(index, runs);
    }
    return runs;
  }

  draw(): void {
    const state = this.#state;
    const rows = this.#rows;
    const { width, height } = this.size;
    const context = this.#ground.getContext("2d", { alpha: false });
    if (!state || !rows || !context || width === 0 || height === 0) {
      return;
    }
    fitCanvas(this.#ground, width, height);
    fitCanvas(this.#over, width, height);
    const chrome = CHROME[state.theme];
    if (this.#patterns?.theme !== state.theme || this.#patterns.ratio !== ratio()) {
      this.#patterns = new Patterns(context, state.theme);
    }
    const top = this.#scroll.scrollTop;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = chrome.background;
    context.fillRect(0, 0, this.#ground.width, this.#ground.height);
    for (const group of rows.groups) {
      const y = group.y - top;
      if (y > -GROUP_HEAD && y < height) {
        this.#drawHead(context, chrome, group, y, width);
      }
    }
    const privates = new Set(rows.groups.filter((group) => group.isPrivate).flatMap((group) => group.segments));
    rows.pieces.forEach((piece, index) => {
      if (piece.y + rows.row >= top && piece.y <= top + height) {
        this.#drawPiece(context, chrome, piece, index, top, privates.has(piece.segment));
      }
    });
    this.#drawOver();
  }

  #drawHead(
    context: CanvasRenderingContext2D,
    chrome: Chrome,
    group: Rows["groups"][number],
    y: number,
    width: number,
  ): void {
    const { header } = (this.#state as MapState).data;
    const pool = header.pools[group.pool] ?? "unknown pool";
    const stream = header.streams[group.stream] ?? "unknown stream";
    context.save();
    context.scale(ratio(), ratio());
    context.font = FONT;
    context.textBaseline = "alphabetic";
    const parts = [
      group.isPrivate ? `private pool: ${isolated(pool)}` : "",
      group.small ? "small segments" : "large segments",
    ];
    if (header.streams.length > 1) {
      parts.push(stream === "default" ? "default stream" : isolated(stream, 40));
    }
    const count = `${group.segments.length} · ${bytes(group.reserved)}`;
    context.textAlign = "right";
    context.fillStyle = chrome.muted;
    context.fillText(count, width, y + 15);
    const room = width - context.measureText(count).width - 12;
    context.textAlign = "left";
    context.fillStyle = group.isPrivate ? chrome.text : chrome.muted;
    context.beginPath();
    context.rect(0, y, room, GROUP_HEAD);
    context.clip();
    context.fillText(parts.filter(Boolean).join(" · "), 0, y + 15);
    context.restore();
  }

  #drawPiece(
    context: CanvasRenderingContext2D,
    chrome: Chrome,
    piece: Piece,
    index: number,
    top: number,
    kept: boolean,
  ): void {
    const { map, data, table } = this.#state as MapState;
    const rows = this.#rows as Rows;
    const patterns = this.#patterns as Patterns;
    const [left, right] = edges(piece);
    const y = Math.round((piece.y - top) * ratio());
    const tall = Math.round(rows.row * ratio());
    const scale = (right - left) / (piece.to - piece.from);
    // Patterns hang on the piece, not on the canvas: they move with it when one scrolls.
    const overlay = (pattern: CanvasPattern | null, x0: number, x1: number): void => {
      if (pattern && x1 > x0) {
        context.save();
        context.translate(left, y);
        context.fillStyle = pattern;
        context.fillRect(x0, 0, x1 - x0, tall);
        context.restore();
      }
    };
    for (const { stretch, x0, x1 } of this.#runsOf(index, piece)) {
      const wide = x1 - x0;
      if (map.state[stretch] === FREE) {
        if (kept) {
          overlay(patterns.kept, x0, x1);
        }
        continue;
      }
      const block = map.block[stretch] as number;
      context.fillStyle = css(table[block + 1] as number);
      context.fillRect(left + x0, y, wide, tall);
      if (map.state[stretch] === PENDING_FREE) {
        overlay(patterns.pending, x0, x1);
      }
      const ends = (map.offset[stretch] as number) + (map.size[stretch] as number) <= piece.to;
      const lost = Math.floor(((map.size[stretch] as number) - (data.requested[block] as number)) * scale);
      if (lost >= 1 && wide > 1 && ends) {
        overlay(patterns.rounding, Math.max(x0, x1 - lost), x1);
      }
      if (wide >= HAIRLINE_FROM && ends) {
        context.fillStyle = chrome.background;
        context.fillRect(left + x1 - 1, y, 1, tall);
      }
    }
    context.strokeStyle = chrome.muted;
    context.globalAlpha = 0.75;
    context.lineWidth = 1;
    const open = piece.to < (map.segment_size[piece.segment] as number);
    context.beginPath();
    context.moveTo(right, y + 0.5);
    context.lineTo(left, y + 0.5);
    context.moveTo(left, y + tall - 0.5);
    context.lineTo(right, y + tall - 0.5);
    if (piece.from === 0) {
      context.moveTo(left + 0.5, y);
      context.lineTo(left + 0.5, y + tall);
    }
    if (!open) {
      context.moveTo(right - 0.5, y);
      context.lineTo(right - 0.5, y + tall);
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  /** The outlines of what is pointed at and of what is pinned. */
  #drawOver(): void {
    const state = this.#state;
    const context = this.#over.getContext("2d");
    if (!state || !this.#rows || !context) {
      return;
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.#over.width, this.#over.height);
    const chrome = CHROME[state.theme];
    const accent = state.data.header.palette[state.theme].accent;
    const { map } = state;
    const pinned = state.block >= 0 ? map.block.indexOf(state.block) : -1;
    if (pinned >= 0) {
      this.#outline(context, segmentOf(map, pinned), pinned, accent, chrome.background, 2);
    } else if (state.segment >= 0) {
      this.#outline(context, state.segment, -1, accent, chrome.background, 2);
    }
    if (this.#hovered && this.#hovered.segment < map.nSegments) {
      this.#outline(context, this.#hovered.segment, this.#hovered.stretch, chrome.text, chrome.background, 1);
    }
  }

  #outline(
    context: CanvasRenderingContext2D,
    segment: number,
    stretch: number,
    color: string,
    rim: string,
    width: number,
  ): void {
    const { map } = this.#state as MapState;
    const rows = this.#rows as Rows;
    const top = this.#scroll.scrollTop;
    const from = stretch < 0 ? 0 : (map.offset[stretch] as number);
    const to = stretch < 0 ? (map.segment_size[segment] as number) : from + (map.size[stretch] as number);
    rows.pieces.forEach((piece, index) => {
      if (piece.segment !== segment || piece.to <= from || piece.from >= to) {
        return;
      }
      const [left, right] = edges(piece);
      let [x0, x1] = [0, right - left];
      if (stretch >= 0) {
        const own = this.#runsOf(index, piece).filter((run) => run.stretch === stretch);
        const scale = (right - left) / (piece.to - piece.from);
        x0 = own[0]?.x0 ?? Math.floor((Math.max(from, piece.from) - piece.from) * scale);
        x1 = own.at(-1)?.x1 ?? x0 + 1;
      }
      const y = Math.round((piece.y - top) * ratio());
      const tall = Math.round(rows.row * ratio());
      for (const [line, style] of [
        [(width + 2) * ratio(), rim],
        [width * ratio(), color],
      ] as const) {
        context.lineWidth = line;
        context.strokeStyle = style;
        context.strokeRect(left + x0, y, Math.max(1, x1 - x0), tall);
      }
    });
  }
}

/** Three patterns that are told apart by their shape: diagonals, dots, upright bars. */
class Patterns {
  readonly theme: Theme;
  readonly ratio = ratio();
  readonly pending: CanvasPattern | null;
  readonly kept: CanvasPattern | null;
  readonly rounding: CanvasPattern | null;

  constructor(context: CanvasRenderingContext2D, theme: Theme) {
    this.theme = theme;
    const chrome = CHROME[theme];
    const r = Math.max(1, Math.round(this.ratio));
    const tile = (size: number, draw: (to: CanvasRenderingContext2D) => void): CanvasPattern | null => {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = size * r;
      const to = canvas.getContext("2d");
      if (!to) {
        return null;
      }
      draw(to);
      return context.createPattern(canvas, "repeat");
    };
    this.pending = tile(6, (to) => {
      // As on the timeline: a third of the colour in stripes, the rest nearly background.
      to.globalAlpha = 0.78;
      to.fillStyle = chrome.background;
      for (let y = 0; y < 6 * r; y++) {
        for (let x = 0; x < 6 * r; x++) {
          if ((x + y) % (6 * r) >= 2 * r) {
            to.fillRect(x, y, 1, 1);
          }
        }
      }
    });
    this.kept = tile(5, (to) => {
      to.fillStyle = chrome.muted;
      to.fillRect(2 * r, 2 * r, r, r);
    });
    this.rounding = tile(3, (to) => {
      to.fillStyle = chrome.background;
      to.fillRect(0, 0, 2 * r, 3 * r);
    });
  }
}

function segmentOf(map: AddressMap, stretch: number): number {
  let s = 0;
  while (s + 1 < map.nSegments && (map.segment_first[s + 1] as number) <= stretch) {
    s++;
  }
  return s;
}

/** Left and right edge in device pixels. */
function edges(piece: Piece): [number, number] {
  return [Math.round(piece.x * ratio()), Math.round((piece.x + piece.width) * ratio())];
}

function ratio(): number {
  return window.devicePixelRatio || 1;
}

function fitCanvas(canvas: HTMLCanvasElement, width: number, height: number): void {
  const [w, t] = [Math.round(width * ratio()), Math.round(height * ratio())];
  if (canvas.width !== w || canvas.height !== t) {
    canvas.width = w;
    canvas.height = t;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
}

const known = new Map<number, string>();

/** A pixel of the tables as CSS. */
function css(value: number): string {
  let text = known.get(value);
  if (text === undefined) {
    const part = (shift: number): string => ((value >>> shift) & 255).toString(16).padStart(2, "0");
    text = `#${part(0)}${part(8)}${part(16)}`;
    if (known.size > 4_096) {
      known.clear();
    }
    known.set(value, text);
  }
  return text;
}
