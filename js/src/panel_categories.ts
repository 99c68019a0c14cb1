// The panel's table of bytes by category: at the chosen moment, or at the one under the pointer, beside the peak. Rows are
// those that have bytes at any moment, so that none comes or goes while the pointer moves.

import { CategorySums } from "./category_sums.js";
import { h, name, setText } from "./dom.js";
import { bytes, bytesExact, count } from "./format.js";
import type { Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";
import type { Data } from "./wire.js";

export class CategoryTable {
  readonly element: HTMLElement;
  readonly #sums: CategorySums;
  readonly #chosen: number;
  readonly #head = h("span", {});
  readonly #cells: (readonly [code: number, cell: HTMLElement])[] = [];

  /** `pick`: a click on a category asks for its blocks. */
  constructor(data: Data, timeline: Timeline, theme: Theme, moment: number, pick: (query: string) => void) {
    this.#sums = CategorySums.of(data, timeline);
    this.#chosen = moment;
    const { header } = data;
    const palette = header.palette[theme];
    const peak = this.#sums.at(header.peak_event).slice();
    const body = h("tbody", {});
    for (const code of this.#sums.codes) {
      const label = (header.categories[code] ?? "").replaceAll("_", " ");
      const swatch = h("span", { class: "mw-swatch", style: `background:${palette.category[code] ?? palette.none}` });
      const button = h("button", { type: "button", class: "mw-site" }, swatch, name(label));
      button.addEventListener("click", () => pick(`category:${label}`));
      const [here, atPeak] = [h("td", { class: "mw-number" }), h("td", { class: "mw-number" })];
      write(atPeak, peak[code] as number);
      this.#cells.push([code, here]);
      body.append(h("tr", {}, h("td", {}, button), here, atPeak));
    }
    const heads = [this.#head, h("span", {}, "at the peak")];
    this.element = h(
      "table",
      { class: "mw-sites mw-categories", "aria-label": "Bytes by category" },
      h("colgroup", {}, h("col"), h("col", { class: "mw-number-column" }), h("col", { class: "mw-number-column" })),
      h("thead", {}, h("tr", {}, h("th", {}), ...heads.map((head) => h("th", { class: "mw-number mw-muted" }, head)))),
      body,
    );
    this.point(-1);
  }

  /** Shows the moment under the pointer; -1: the chosen one again. */
  point(moment: number): void {
    const at = moment < 0 ? this.#chosen : moment;
    setText(this.#head, moment < 0 ? "here" : "under the pointer");
    this.#head.title = `Moment ${count(at)}`;
    const sums = this.#sums.at(at);
    for (const [code, cell] of this.#cells) {
      write(cell, sums[code] as number);
    }
  }
}

function write(cell: HTMLElement, sum: number): void {
  setText(cell, bytes(sum));
  cell.title = bytesExact(sum);
  cell.classList.toggle("mw-muted", sum === 0);
}
