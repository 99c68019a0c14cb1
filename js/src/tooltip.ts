// The note beside the pointer: what lies under it, in three lines. Follows the pointer and stays inside the drawing.

import { h, name } from "./dom.js";
import { annotationsAt, categoryText, lifetime, siteLabel } from "./facts.js";
import { bytes, count, duration } from "./format.js";
import type { Timeline } from "./timeline.js";
import { type Data, noStackReason, phaseOf, stringAt } from "./wire.js";

const AWAY = 14;

export class Tooltip {
  readonly element = h("div", { class: "mw-tooltip", role: "tooltip", hidden: true });
  #shown = "";

  hide(): void {
    this.element.hidden = true;
    this.#shown = "";
  }

  /** `key` tells contents apart: the same contents only move. */
  #place(key: string, x: number, y: number, make: () => Node[]): void {
    if (this.#shown !== key) {
      this.element.replaceChildren(...make());
      this.#shown = key;
    }
    this.element.hidden = false;
    const { offsetWidth: width, offsetHeight: height, parentElement } = this.element;
    const room = parentElement ?? this.element;
    const left = x + AWAY + width > room.clientWidth ? x - AWAY - width : x + AWAY;
    const top = y + AWAY + height > room.clientHeight ? y - AWAY - height : y + AWAY;
    this.element.style.transform = `translate(${Math.max(4, Math.round(left))}px, ${Math.max(4, Math.round(top))}px)`;
  }

  block(data: Data, block: number, pending: boolean, color: string, x: number, y: number): void {
    this.#place(`block ${block} ${pending} ${color}`, x, y, () => {
      const size = data.size[block] ?? 0;
      const life = lifetime(data, block);
      const phase = phaseOf(data, block);
      const annotation = annotationsAt(data, (data.alloc_event[block] ?? -1) + 1).at(-1) ?? "";
      const kind = categoryText(data, block);
      const reason = noStackReason(data, block);
      const rows: (Node | null)[] = [
        h(
          "div",
          { class: "mw-tip-head" },
          h("span", { class: "mw-swatch", style: `background:${color}` }),
          name(siteLabel(data, block), "", 200),
        ),
        h("div", {}, h("span", {}, bytes(size)), h("span", { class: "mw-muted" }, `lived ${life.lived}`)),
        kind || phase || annotation
          ? h("div", { class: "mw-muted" }, name([kind, phase || annotation].filter(Boolean).join(" · "), "", 200))
          : null,
        pending ? h("div", { class: "mw-muted" }, "freed by the program, waiting for another stream") : null,
        reason ? h("div", { class: "mw-muted" }, reason) : null,
      ];
      return rows.filter((row) => row !== null);
    });
  }

  /** A headline with its colour, and lines under it; empty ones are left out. */
  lines(key: string, x: number, y: number, color: string, head: string, rest: readonly string[]): void {
    this.#place(`${key} ${color}`, x, y, () => [
      h(
        "div",
        { class: "mw-tip-head" },
        color ? h("span", { class: "mw-swatch", style: `background:${color}` }) : null,
        name(head, "", 200),
      ),
      ...rest.filter(Boolean).map((text) => h("div", { class: "mw-muted" }, name(text, "", 200))),
    ]);
  }

  band(data: Data, timeline: Timeline, band: number, x: number, y: number): void {
    this.#place(`band ${band}`, x, y, () => {
      const lo = data.band_lo[band] ?? 0;
      const hi = data.band_hi[band] ?? 0;
      const peak = timeline.maxIn(lo, hi);
      const took = timeline.hasTime ? `, ${duration(timeline.momentToTime(hi) - timeline.momentToTime(lo))}` : "";
      return [
        h("div", { class: "mw-tip-head" }, name(stringAt(data, data.band_name[band] ?? -1), "", 200)),
        h("div", { class: "mw-muted" }, `${count(hi - lo)} events${took}, peak ${bytes(peak.allocated)}`),
      ];
    });
  }
}
