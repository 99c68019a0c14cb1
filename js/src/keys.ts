// Keys while the widget has the focus -> actions, and the list that `?` shows. Owns when a key is ours: never while
// someone types, never when a button has its own use for it, never without focus.

import { button, h } from "./dom.js";

export type Action =
  | "left"
  | "right"
  | "panLeft"
  | "panRight"
  | "up"
  | "down"
  | "zoomIn"
  | "zoomOut"
  | "taller"
  | "shorter"
  | "fit"
  | "peak"
  | "oom"
  | "pin"
  | "pageUp"
  | "pageDown"
  | "last"
  | "search"
  | "panel"
  | "mark"
  | "escape"
  | "help";

const KEYS: Record<string, Action> = {
  ArrowLeft: "left",
  ArrowRight: "right",
  "Shift+ArrowLeft": "panLeft",
  "Shift+ArrowRight": "panRight",
  a: "panLeft",
  d: "panRight",
  ArrowUp: "up",
  ArrowDown: "down",
  "+": "zoomIn",
  "=": "zoomIn",
  w: "zoomIn",
  "-": "zoomOut",
  _: "zoomOut",
  s: "zoomOut",
  "]": "taller",
  "[": "shorter",
  PageUp: "pageUp",
  PageDown: "pageDown",
  Home: "fit",
  End: "last",
  f: "fit",
  p: "peak",
  o: "oom",
  Enter: "pin",
  "/": "search",
  i: "panel",
  m: "mark",
  Escape: "escape",
  "?": "help",
};

const LIST: readonly (readonly [string, string])[] = [
  ["← →", "one event back, on"],
  ["↑ ↓", "next block up, down"],
  ["Enter", "pin the block"],
  ["Escape", "unpin, clear, leave"],
  ["+ −  or  W S", "zoom"],
  ["A D", "pan"],
  ["[ ]", "zoom the bytes"],
  ["Home", "fit everything"],
  ["↑ ↓ Home End", "Allocator: step the events"],
  ["M", "Live: mark the moment"],
  ["P", "peak"],
  ["O", "next out of memory"],
  ["/", "search"],
  ["I", "panel on, off"],
  ["Click", "pin a block"],
  ["Drag", "pan"],
  ["Shift+drag", "totals of a range"],
  ["Ctrl+wheel", "zoom"],
  ["Ctrl+Alt+wheel", "zoom the bytes"],
  ["Double click", "fit everything"],
];

/** The innermost focused element, also inside a shadow root. */
function target(event: KeyboardEvent): HTMLElement | null {
  const [first] = event.composedPath();
  return first instanceof HTMLElement ? first : null;
}

export function attachKeys(root: HTMLElement, act: (action: Action) => boolean, signal: AbortSignal): void {
  root.addEventListener(
    "keydown",
    (event) => {
      const element = target(event);
      const typing = element?.matches("input, select, textarea") ?? false;
      if (typing) {
        // The notebook must not see what is typed here; only Escape has a meaning of ours, and Enter leaves the box.
        event.stopPropagation();
        if (event.key === "Escape" && act("escape")) {
          event.preventDefault();
        }
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) {
        return;
      }
      const own = element?.closest("button, summary, a, [role=separator]");
      if (own && ["Enter", " ", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) {
        event.stopPropagation();
        return;
      }
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      const action = (event.shiftKey ? KEYS[`Shift+${event.key}`] : undefined) ?? KEYS[key];
      if (action && act(action)) {
        event.preventDefault();
        event.stopPropagation();
      }
    },
    { signal },
  );
}

/** The sheet that `?` shows, as a dialog over the widget. */
export function helpSheet(close: () => void): HTMLElement {
  const shut = button("Close", "Close (Escape)", "mw-link");
  shut.addEventListener("click", close);
  const sheet = h(
    "div",
    { class: "mw-help", role: "dialog", "aria-label": "Keys and gestures" },
    h(
      "div",
      {},
      h("div", { class: "mw-panel-head", style: "padding:0" }, h("h3", {}, "Keys and gestures"), shut),
      h(
        "div",
        { class: "mw-keys" },
        ...LIST.map(([keys, what]) => h("div", {}, h("kbd", {}, keys), h("span", {}, what))),
      ),
    ),
  );
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) {
      close();
    }
  });
  return sheet;
}
