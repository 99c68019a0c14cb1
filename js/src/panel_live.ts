// The panel of a frame or call site that is live: how much it holds, its line, and what one can do with it.

import { button, h, name } from "./dom.js";
import { frameAt, shortFile, stackFrames, USER } from "./facts.js";
import { bytes, bytesExact, count, share } from "./format.js";
import type { Entry } from "./live_list.js";
import { facts } from "./panel_detail.js";
import { stackView } from "./stack_view.js";
import { type Data, noStackReason, stringAt } from "./wire.js";

export interface LivePanelActions {
  timeline(block: number): void;
  site(label: string): void;
  /** Puts the frames of a folded run one by one; null where it is none. */
  unfold: (() => void) | null;
}

/** `frame`: the row of its line, -1 for none; `actions`: none while it is only pointed at. */
export function livePanel(
  data: Data,
  entry: Entry,
  frame: number,
  whole: number,
  actions: LivePanelActions | null,
): HTMLElement {
  const line = frame >= 0 ? frameAt(data, frame) : null;
  const stack = data.stack[entry.largest] ?? -1;
  const act = (text: string, title: string, what: () => void): HTMLElement => {
    const made = button(text, title);
    made.addEventListener("click", what);
    return made;
  };
  const content = h(
    "div",
    { class: "mw-detail", "data-entry": entry.key },
    h(
      "div",
      { class: "mw-headline" },
      h("span", { class: `mw-swatch${entry.pale ? " mw-pale" : ""}`, style: `background:${entry.color}` }),
      h(
        "div",
        { class: "mw-headline-text" },
        name(entry.label, "mw-headline-site"),
        line?.source ? h("code", { class: "mw-source" }, line.source.trim()) : null,
        line && line.kind !== USER ? name(`${shortFile(line.file)}:${line.line}`, "mw-muted") : null,
        entry.note ? h("span", { class: "mw-muted" }, entry.note) : null,
      ),
    ),
    facts([
      ["Bytes", `${bytes(entry.bytes)}, ${share(entry.bytes, whole)}`, bytesExact(entry.bytes)],
      ["Made here", entry.own > 0 && entry.own < entry.bytes ? bytes(entry.own) : "", bytesExact(entry.own)],
      ["Blocks", count(entry.blocks)],
      ["Largest", bytes(entry.largestBytes), bytesExact(entry.largestBytes)],
      ["Oldest", entry.oldest < 0 ? "before the recording" : `event ${count(entry.oldest)}`],
      ["Found", entry.lit < entry.bytes ? bytes(entry.lit) : "", bytesExact(entry.lit)],
    ]),
  );
  if (actions) {
    const label = stringAt(data, data.frame_label[frame] ?? -1);
    const { unfold } = actions;
    content.append(
      h(
        "div",
        { class: "mw-actions" },
        act("Largest on the timeline", "Select its largest block and show it", () => actions.timeline(entry.largest)),
        label ? act("Light up", "Search for this line", () => actions.site(label)) : null,
        unfold ? act("Open the frames", "Show these frames one by one", unfold) : null,
      ),
    );
  }
  const frames = stackFrames(data, stack);
  content.append(
    frames.length > 0
      ? stackView("Stack of its largest block", frames, data.stack_site[stack] ?? -1)
      : h("p", { class: "mw-note" }, noStackReason(data, entry.largest) || "No stack was recorded."),
  );
  return content;
}
