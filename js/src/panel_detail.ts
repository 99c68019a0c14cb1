// The panel of a pinned block: what it is, who made it, who freed it.

import { h, name } from "./dom.js";
import {
  annotationsAt,
  categoryText,
  doubts,
  frameAt,
  frameLabel,
  lifetime,
  nativeHint,
  siteLabel,
  siteRow,
  stackFrames,
  stackSite,
} from "./facts.js";
import { bytes, bytesExact } from "./format.js";
import { stackView } from "./stack_view.js";
import { blockName, type Data, noStackReason, phaseOf, stringAt } from "./wire.js";

/** Two columns: what, how much. Rows without a value are left out. */
export function facts(rows: readonly (readonly [string, string | Node, string?])[]): HTMLElement {
  const list = h("dl", { class: "mw-facts" });
  for (const [term, value, title] of rows) {
    if (value !== "") {
      const shown = typeof value === "string" ? h("dd", { title }, value) : h("dd", { title }, value);
      list.append(h("dt", {}, term), shown);
    }
  }
  return list;
}

function foreign(text: string): string | Node {
  return text === "" ? "" : name(text, "mw-wrap");
}

export function detailPanel(data: Data, block: number, color: string): HTMLElement {
  const size = data.size[block] ?? 0;
  const requested = data.requested[block] ?? 0;
  const site = siteRow(data, block);
  const life = lifetime(data, block);
  const made = stackFrames(data, data.stack[block] ?? -1);
  const freed = stackFrames(data, data.free_stack[block] ?? -1);
  const moment = (data.alloc_event[block] ?? -1) + 1;
  const metadata = stringAt(data, data.metadata[block] ?? -1);
  const frame = site >= 0 ? frameAt(data, site) : null;

  const forward = stackSite(data, data.forward_stack[block] ?? -1);
  const hint = frame || made.length === 0 ? "" : nativeHint(made);

  const head = h(
    "div",
    { class: "mw-headline" },
    h("span", { class: "mw-swatch", style: `background:${color}` }),
    h(
      "div",
      { class: "mw-headline-text" },
      name(siteLabel(data, block), "mw-headline-site"),
      frame?.source ? h("code", { class: "mw-source" }, frame.source.trim()) : null,
      hint ? name(hint, "mw-muted") : null,
    ),
  );
  const rounding = size - requested;
  const body = h(
    "div",
    { class: "mw-detail", "data-block": block },
    head,
    facts([
      ["Size", bytes(size), bytesExact(size)],
      [
        "Requested",
        requested > 0 ? `${bytes(requested)}${rounding > 0 ? ` (+ ${bytes(rounding)} rounding)` : ""}` : "",
        bytesExact(requested),
      ],
      ["Name", foreign(stringAt(data, data.label[block] ?? -1))],
      ["Category", categoryText(data, block)],
      ["Forward line", forward >= 0 && forward !== site ? foreign(frameLabel(data, forward)) : ""],
      ["Allocated", life.born],
      ["Freed", life.died],
      ["Lived", life.lived],
      ["Step", foreign(stringAt(data, data.step[block] ?? -1))],
      ["Phase", foreign(phaseOf(data, block))],
      ["Annotation", foreign(annotationsAt(data, moment).slice(-3).join(" › "))],
      ["Stream", data.header.streams[data.stream[block] ?? -1] ?? ""],
      ["Pool", data.header.pools[data.pool[block] ?? -1] ?? ""],
      ["Block", h("span", { class: "mw-mono" }, blockName(data, block))],
      ["Metadata", foreign(metadata)],
    ]),
    ...doubts(data, block).map((text) => h("p", { class: "mw-note" }, text)),
  );
  if (made.length > 0) {
    body.append(stackView("Allocated by", made, site));
  } else {
    const reason = noStackReason(data, block) || "No stack was recorded for this block.";
    body.append(
      h(
        "section",
        { class: "mw-stack" },
        h("div", { class: "mw-section-head" }, h("h4", {}, "Allocated by")),
        h("p", { class: "mw-note mw-nostack" }, reason),
      ),
    );
  }
  if (freed.length > 0) {
    body.append(stackView("Freed by", freed, -1));
  }
  return body;
}
