// The line under the drawing: what the pointer is at, and what the colours mean.

import type { Legend } from "./colors.js";
import { h, name, setText } from "./dom.js";

export class Foot {
  readonly #status = h("div", { class: "mw-status" });
  readonly #legend = h("div", { class: "mw-legend", role: "group", "aria-label": "Colours" });
  readonly element = h("div", { class: "mw-foot" }, this.#status, this.#legend);
  readonly #search: (query: string) => void;

  /** `search`: a click on a colour asks for its blocks. */
  constructor(search: (query: string) => void) {
    this.#search = search;
  }

  status(text: string): void {
    setText(this.#status, text);
  }

  legend({ ramp, entries }: Legend): void {
    this.#legend.setAttribute(
      "aria-label",
      `Colours: ${entries.map((entry) => entry.label).join(", ") || "by call site"}`,
    );
    if (ramp) {
      const steps = h("span", { class: "mw-ramp" });
      for (const { color, label } of entries) {
        steps.append(h("i", { style: `background:${color}`, title: label }));
      }
      const [first, last] = [entries[0]?.label ?? "", entries.at(-1)?.label ?? ""];
      this.#legend.replaceChildren(h("span", { class: "mw-legend-entry" }, first, steps, last));
      return;
    }
    this.#legend.replaceChildren(
      ...entries.map(({ color, label, query }) => {
        const entry = h(
          query ? "button" : "span",
          { class: "mw-legend-entry", type: query ? "button" : undefined },
          color ? h("span", { class: "mw-swatch", style: `background:${color}` }) : null,
          name(label),
        );
        if (query) {
          entry.addEventListener("click", () => this.#search(query));
        }
        return entry;
      }),
    );
  }
}
