// The line under the drawing: what the pointer is at, and what the colours mean.

import type { Legend } from "./colors.js";
import { h, name, setText } from "./dom.js";

export class Foot {
  readonly #status = h("div", { class: "mw-status" });
  readonly #legend = h("div", { class: "mw-legend", role: "img", "aria-label": "Colours" });
  readonly element = h("div", { class: "mw-foot" }, this.#status, this.#legend);

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
      ...entries.map(({ color, label }) =>
        h(
          "span",
          { class: "mw-legend-entry" },
          color ? h("span", { class: "mw-swatch", style: `background:${color}` }) : null,
          name(label),
        ),
      ),
    );
  }
}
