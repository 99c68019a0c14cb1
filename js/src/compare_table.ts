// The table of a comparison: what differs by call site, category, phase or step. Owns the rows and which table is shown.

import { button, h, name } from "./dom.js";
import { bytes, bytesExact, count } from "./format.js";

/** One thing in both recordings, bytes. Sites also say what each recording calls them; empty where it has none. */
export interface Difference {
  name: string;
  before: number;
  after: number;
  labels?: [string, string];
}

/** What Python says of the two: show/compared.py. */
export interface Told {
  totals: Difference[];
  by_site: Difference[];
  by_category: Difference[];
  by_phase: Difference[];
  by_step: Difference[];
}

/** Rows on the page at most. */
const ROWS = 100;
const TABLES = [
  ["by_site", "call site"],
  ["by_category", "category"],
  ["by_phase", "phase"],
  ["by_step", "step"],
] as const;

export class CompareTable {
  readonly element: HTMLElement;
  readonly #tabs = h("div", { class: "mw-group", role: "group", "aria-label": "What differs by" });
  readonly #rows = h("div", { class: "mw-compare-table" });
  readonly #lines = new Map<Difference, HTMLElement>();
  readonly #choose: (row: Difference) => void;
  readonly #color: (row: Difference) => string;
  #told: Told | null = null;
  #picked: Difference | null = null;
  #by: (typeof TABLES)[number][0] = "by_site";

  /** `choose`: a call site was clicked. `color`: of a row, empty for none. */
  constructor(choose: (row: Difference) => void, color: (row: Difference) => string) {
    this.#choose = choose;
    this.#color = color;
    const head = h("div", { class: "mw-live-bar" }, "What differs, by", this.#tabs);
    this.element = h("div", { class: "mw-compare-list" }, head, this.#rows);
  }

  take(told: Told): void {
    this.#told = told;
    this.#tabs.replaceChildren(
      ...TABLES.filter(([key]) => told[key].length > 0).map(([key, label]) => {
        const tab = button(label, `What differs by ${label}`, "mw-segment");
        tab.dataset.by = key;
        tab.addEventListener("click", () => {
          this.#by = key;
          this.show(this.#picked);
        });
        return tab;
      }),
    );
  }

  /** Brings the call sites to the front. */
  sites(): void {
    if (this.#by !== "by_site") {
      this.#by = "by_site";
      this.show(this.#picked);
    }
  }

  /** Marks a row. The rows stay: one of them may have the focus. */
  pick(row: Difference | null): void {
    this.#picked = row;
    for (const [each, line] of this.#lines) line.setAttribute("aria-selected", String(each === row));
  }

  show(picked: Difference | null): void {
    this.#picked = picked;
    if (!this.#told) return;
    for (const tab of this.#tabs.children) {
      tab.setAttribute("aria-pressed", String((tab as HTMLElement).dataset.by === this.#by));
    }
    const rows = this.#told[this.#by];
    this.#lines.clear();
    for (const row of rows.slice(0, ROWS)) this.#lines.set(row, this.#line(row));
    const head = ["", "Before", "After", "Change"].map((text, i) =>
      h("th", { scope: "col", class: i > 0 ? "mw-number" : "" }, text),
    );
    const rest = rows.length - ROWS;
    this.#rows.replaceChildren(
      h(
        "table",
        { class: "mw-live-table", "aria-label": "What differs" },
        h("thead", {}, h("tr", {}, ...head)),
        h("tbody", {}, ...this.#lines.values()),
      ),
      ...(rows.some((row) => row.before !== row.after) ? [] : [h("p", { class: "mw-note" }, "No difference.")]),
      ...(rest > 0 ? [h("p", { class: "mw-note" }, `${count(rest)} more rows, with smaller changes.`)] : []),
    );
  }

  #line(row: Difference): HTMLElement {
    const site = this.#by === "by_site";
    const color = this.#color(row);
    const what = h(
      site ? "button" : "div",
      { type: site ? "button" : undefined, class: "mw-site" },
      h("span", { class: "mw-swatch", style: color ? `background:${color}` : undefined }),
      name(row.name),
    );
    const cell = (amount: number): HTMLElement =>
      h("td", { class: "mw-number", title: bytesExact(amount) }, amount > 0 ? bytes(amount) : "–");
    const line = h(
      "tr",
      { "data-same": String(row.before === row.after), "aria-selected": String(row === this.#picked) },
      h("td", {}, what),
      cell(row.before),
      cell(row.after),
      h("td", { class: "mw-number" }, h("b", {}, changeWords(row))),
    );
    if (site) line.addEventListener("click", () => this.#choose(row));
    return line;
  }
}

/** "+2.00 MiB", "−2.00 MiB", "same". */
export function changeWords({ before, after }: Difference): string {
  return after === before ? "same" : `${after > before ? "+" : "−"}${bytes(Math.abs(after - before))}`;
}
