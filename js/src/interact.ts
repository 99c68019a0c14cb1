// Pointer and wheel events on the drawing -> intents. Owns gestures: what is a click, a drag, a pinch, a brush. It asks
// the app which part lies under the pointer and says what the user wants; it changes nothing itself.

import type { BrushPart } from "./minimap.js";

export type Zone = "plot" | "yAxis" | "xAxis" | "bands" | `minimap-${BrushPart | "new"}` | "none";

/** What gestures mean. Coordinates are CSS pixels of the main canvas. */
export interface Intents {
  zoneAt(x: number, y: number): Zone;
  hover(x: number, y: number): void;
  leave(): void;
  click(x: number, y: number): void;
  pan(dx: number, dy: number): void;
  /** Below 1 goes closer. */
  zoom(x: number, factor: number): void;
  zoomBytes(y: number, factor: number): void;
  fit(): void;
  range(fromX: number, toX: number, done: boolean): void;
  brush(part: "lo" | "hi" | "body", dx: number): void;
  brushCenter(x: number): void;
  /** A new window, drawn on the minimap. */
  brushNew(fromX: number, toX: number): void;
  /** A plain wheel over the drawing: the page scrolls, and the user learns how to zoom. */
  hint(): void;
  grabbed(held: boolean): void;
}

/** A pointer may move this far and still click, CSS pixels. */
const CLICK_SLOP = 4;
/** A wheel's notch (100 units) goes 1.6 times closer; the cap tames free-spinning wheels. */
const WHEEL_RATE = 0.008;
const WHEEL_CAP = 0.7;
/** Trackpads report a pinch as many small wheel events with Ctrl; they need more weight. */
const PINCH_BELOW = 20;
const PINCH_RATE = 0.02;
/** Pixels of a line and a page, for wheels that report those. */
const LINE = 16;
const PAGE = 400;

interface Point {
  x: number;
  y: number;
}

type Gesture =
  | { kind: "press"; zone: Zone; start: Point; last: Point; shift: boolean }
  | { kind: "pan"; zone: Zone; last: Point }
  | { kind: "range"; start: Point }
  | { kind: "brush"; part: "lo" | "hi" | "body"; last: Point }
  | { kind: "draw"; start: Point }
  | { kind: "pinch"; centre: Point; distance: number };

export function attach(stage: HTMLElement, intents: Intents, signal: AbortSignal): void {
  const pointers = new Map<number, Point>();
  let gesture: Gesture | null = null;

  const at = (event: MouseEvent): Point => {
    const box = stage.getBoundingClientRect();
    // Offsets, not client widths: a host may scale the output with a transform.
    const scaleX = box.width > 0 ? stage.offsetWidth / box.width : 1;
    const scaleY = box.height > 0 ? stage.offsetHeight / box.height : 1;
    return { x: (event.clientX - box.left) * scaleX, y: (event.clientY - box.top) * scaleY };
  };

  const pinchState = (): { centre: Point; distance: number } => {
    const [a, b] = [...pointers.values()] as [Point, Point];
    return {
      centre: { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 },
      distance: Math.max(Math.hypot(a.x - b.x, a.y - b.y), 1),
    };
  };

  const end = (): void => {
    gesture = null;
    intents.grabbed(false);
  };

  stage.addEventListener(
    "pointerdown",
    (event) => {
      if (event.button !== 0) {
        return;
      }
      const point = at(event);
      pointers.set(event.pointerId, point);
      stage.setPointerCapture(event.pointerId);
      if (pointers.size === 2) {
        gesture = { kind: "pinch", ...pinchState() };
        return;
      }
      const zone = intents.zoneAt(point.x, point.y);
      if (zone === "minimap-lo" || zone === "minimap-hi" || zone === "minimap-body") {
        gesture = { kind: "brush", part: zone.slice(8) as "lo" | "hi" | "body", last: point };
      } else if (zone === "minimap-outside") {
        intents.brushCenter(point.x);
        gesture = { kind: "brush", part: "body", last: point };
      } else if (zone === "minimap-new") {
        gesture = { kind: "draw", start: point };
      } else if (zone !== "none") {
        gesture = { kind: "press", zone, start: point, last: point, shift: event.shiftKey };
      }
    },
    { signal },
  );

  stage.addEventListener(
    "pointermove",
    (event) => {
      const point = at(event);
      if (!pointers.has(event.pointerId)) {
        intents.hover(point.x, point.y);
        return;
      }
      pointers.set(event.pointerId, point);
      if (gesture?.kind === "press" && Math.hypot(point.x - gesture.start.x, point.y - gesture.start.y) > CLICK_SLOP) {
        if (gesture.shift) {
          gesture = { kind: "range", start: gesture.start };
        } else {
          gesture = { kind: "pan", zone: gesture.zone, last: gesture.last };
          intents.grabbed(true);
        }
        intents.leave();
      }
      move(point);
    },
    { signal },
  );

  function move(point: Point): void {
    switch (gesture?.kind) {
      case "pan":
        // On the y axis a drag is upright only, elsewhere it goes both ways; the app knows whether it can.
        intents.pan(
          gesture.zone === "yAxis" ? 0 : gesture.last.x - point.x,
          gesture.zone === "xAxis" ? 0 : point.y - gesture.last.y,
        );
        gesture.last = point;
        break;
      case "range":
        intents.range(gesture.start.x, point.x, false);
        break;
      case "brush":
        intents.brush(gesture.part, point.x - gesture.last.x);
        gesture.last = point;
        break;
      case "draw":
        if (Math.abs(point.x - gesture.start.x) > CLICK_SLOP) {
          intents.brushNew(gesture.start.x, point.x);
        }
        break;
      case "pinch": {
        if (pointers.size < 2) {
          break;
        }
        const now = pinchState();
        intents.zoom(now.centre.x, gesture.distance / now.distance);
        intents.pan(gesture.centre.x - now.centre.x, 0);
        gesture = { kind: "pinch", ...now };
        break;
      }
      default:
    }
  }

  stage.addEventListener(
    "pointerup",
    (event) => {
      const point = at(event);
      pointers.delete(event.pointerId);
      if (gesture?.kind === "press") {
        intents.click(point.x, point.y);
      } else if (gesture?.kind === "range") {
        intents.range(gesture.start.x, point.x, true);
      }
      end();
    },
    { signal },
  );

  stage.addEventListener(
    "pointercancel",
    (event) => {
      pointers.delete(event.pointerId);
      end();
    },
    { signal },
  );

  stage.addEventListener("pointerleave", () => intents.leave(), { signal });

  stage.addEventListener(
    "dblclick",
    (event) => {
      const point = at(event);
      if (intents.zoneAt(point.x, point.y) !== "none") {
        intents.fit();
      }
    },
    { signal },
  );

  stage.addEventListener(
    "wheel",
    (event) => {
      const point = at(event);
      const zone = intents.zoneAt(point.x, point.y);
      if (zone === "none") {
        return;
      }
      const unit = event.deltaMode === 1 ? LINE : event.deltaMode === 2 ? PAGE : 1;
      const dx = event.deltaX * unit;
      const dy = event.deltaY * unit;
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const rate = Math.abs(dy) < PINCH_BELOW ? PINCH_RATE : WHEEL_RATE;
        const factor = 2 ** Math.max(-WHEEL_CAP, Math.min(WHEEL_CAP, dy * rate));
        if (event.altKey || zone === "yAxis") {
          intents.zoomBytes(point.y, factor);
        } else {
          intents.zoom(point.x, factor);
        }
      } else if (Math.abs(dx) > Math.abs(dy) || event.shiftKey) {
        // Sideways nobody scrolls a page; a trackpad's swipe would even leave it.
        event.preventDefault();
        intents.pan(Math.abs(dx) > Math.abs(dy) ? dx : dy, 0);
      } else if (zone === "plot") {
        intents.hint();
      }
    },
    { signal, passive: false },
  );
}
