// The list of the Live view: call sites, or the tree from the user's code down, in the same columns and the same order.
// Owns rows, sorting, which ones are open, and the keys; what a click does comes in.

import { h, name } from "./dom.js";
import { bytes, bytesExact, count, share } from "./format.js";

/** Rows on the page at most: a table is rebuilt for each moment that one steps through. */
const ROWS = 300;

/** One line of it, and all that the panel says. */
export interface Entry {
  /** Tells it from all others, at every moment. */
  key: string;
  /** Node of the tree, -1 for a call site. */
  node: number;
  label: string;
  note: string;
  color: string;
  pale: boolean;
  bytes: number;
  own: number;
  blocks: number;
  largest: number;
  largestBytes: number;
  oldest: number;
  lit: number;
  level: number;
  /** Whether it has something below; empty: no. */
  fold: "" | "open" | "closed";
}

type Column = "label" | "bytes" | "share" | "blocks" | "largest" | "oldest";

const COLUMNS: readonly (readonly [Column, string, string])[] = [
  ["label", "Call site", "The user's innermost line"],
  ["bytes", "Bytes", "Live bytes"],
  ["share", "Share", "Of all that is listed"],
  ["blocks", "Blocks", "Number of blocks"],
  ["largest", "Largest", "Its largest block; a click shows it on the timeline"],
  ["oldest", "Oldest", "The event that made its oldest block"],
];

export interface ListActions {
  pick(entry: Entry): void;
  toggle(entry: Entry): void;
  largest(entry: Entry): void;
  hover(entry: Entry | null): void;
  sorted(): void;
}

export class LiveList {
  readonly element: HTMLElement;
  readonly #body = h("tbody", {});
  readonly #heads = new Map<Column, HTMLElement>();
  readonly #rest = h("p", { class: "mw-note", hidden: true });
  readonly #actions: ListActions;
  #entries: readonly Entry[] = [];
  #by: Column = "bytes";
  #down = true;

  constructor(actions: ListActions, signal: AbortSignal) {
    this.#actions = actions;
    const row = h("tr", {});
    for (const [column, label, title] of COLUMNS) {
      const sort = h("button", { type: "button", class: "mw-sort", title }, label);
      sort.addEventListener("click", () => {
        // Numbers begin with the largest, names with the first of the alphabet, events with the oldest.
        this.#down = this.#by === column ? !this.#down : column !== "label" && column !== "oldest";
        this.#by = column;
        actions.sorted();
      });
      const head = h("th", { scope: "col", class: column === "label" ? "" : "mw-number" }, sort);
      this.#heads.set(column, head);
      row.append(head);
    }
    const table = h("table", { class: "mw-live-table" }, h("thead", {}, row), this.#body);
    this.element = h("div", { class: "mw-live-list" }, table, this.#rest);
    this.#body.addEventListener("pointerover", (event) => actions.hover(this.#entryOf(event)), { signal });
    this.#body.addEventListener("pointerleave", () => actions.hover(null), { signal });
    this.#body.addEventListener("focusin", (event) => actions.hover(this.#entryOf(event)), { signal });
    this.#body.addEventListener("click", (event) => this.#click(event), { signal });
    this.#body.addEventListener("keydown", (event) => this.#key(event), { signal });
  }

  /** The order in which siblings stand. */
  compare(a: Entry, b: Entry): number {
    const by = this.#by;
    const value = (e: Entry): number =>
      by === "largest" ? e.largestBytes : by === "label" || by === "share" ? e.bytes : e[by];
    const order = by === "label" ? (a.label < b.label ? -1 : a.label > b.label ? 1 : 0) : value(a) - value(b);
    return (this.#down ? -order : order) || b.bytes - a.bytes;
  }

  /** `whole`: bytes that shares are of; `picked`: key of the stressed row. */
  show(entries: readonly Entry[], tree: boolean, whole: number, picked: string): void {
    this.#entries = entries;
    for (const [column, head] of this.#heads) {
      head.setAttribute("aria-sort", column !== this.#by ? "none" : this.#down ? "descending" : "ascending");
    }
    const [label] = this.#heads.get("label")?.children ?? [];
    if (label) label.textContent = tree ? "Frame" : "Call site";
    const table = this.#body.parentElement;
    table?.setAttribute("role", tree ? "treegrid" : "grid");
    table?.setAttribute("aria-label", tree ? "Live bytes, from your code down" : "Live bytes by call site");
    const focused = this.#focused;
    const shown = entries.slice(0, ROWS);
    const stop = shown.some((entry) => entry.key === focused) ? focused : (shown[0]?.key ?? "");
    this.#body.replaceChildren(
      ...shown.map((entry, i) => {
        const fold = entry.fold === "" ? "" : entry.fold === "open" ? "▾" : "▸";
        const first = h(
          "div",
          { class: "mw-live-site", style: `padding-left:${Math.min(entry.level, 24) * 12}px` },
          tree
            ? h("span", { class: "mw-live-fold", "data-act": fold ? "toggle" : undefined, "aria-hidden": "true" }, fold)
            : null,
          entry.color === ""
            ? null
            : h("span", { class: `mw-swatch${entry.pale ? " mw-pale" : ""}`, style: `background:${entry.color}` }),
          name(entry.label),
          entry.note ? name(entry.note, "mw-muted") : null,
        );
        const largest = h(
          "button",
          { type: "button", class: "mw-link", tabindex: "-1", "data-act": "largest" },
          bytes(entry.largestBytes),
        );
        const oldest = entry.oldest < 0 ? "before" : count(entry.oldest);
        const cells: (string | Node)[] = [
          bytes(entry.bytes),
          share(entry.bytes, whole),
          count(entry.blocks),
          largest,
          oldest,
        ];
        return h(
          "tr",
          {
            "data-row": i,
            "data-key": entry.key,
            "data-dim": String(entry.lit === 0),
            tabindex: entry.key === stop ? "0" : "-1",
            "aria-selected": String(entry.key === picked),
            "aria-level": tree ? entry.level + 1 : undefined,
            "aria-expanded": entry.fold === "" ? undefined : String(entry.fold === "open"),
          },
          h("td", {}, first),
          ...cells.map((cell, c) =>
            h("td", { class: "mw-number", title: c === 0 ? bytesExact(entry.bytes) : undefined }, cell),
          ),
        );
      }),
    );
    const rest = entries.length - shown.length;
    this.#rest.hidden = rest === 0;
    this.#rest.textContent = `${count(rest)} more rows; zoom into a frame to see them.`;
    if (focused !== null) this.#row(shown.findIndex((entry) => entry.key === stop))?.focus({ preventScroll: true });
  }

  /** Key of the row with the focus; null where the focus is elsewhere. */
  get #focused(): string | null {
    const scope = this.element.getRootNode() as Document | ShadowRoot;
    const { activeElement } = scope;
    const row = this.#body.contains(activeElement) ? activeElement?.closest("tr") : null;
    return row?.dataset.key ?? null;
  }

  #row(at: number): HTMLElement | undefined {
    return this.#body.children[at] as HTMLElement | undefined;
  }

  #entryOf(event: Event): Entry | null {
    const row = (event.target as HTMLElement).closest("tr");
    return (row && this.#entries[Number(row.dataset.row)]) ?? null;
  }

  #click(event: MouseEvent): void {
    const entry = this.#entryOf(event);
    const act = (event.target as HTMLElement).dataset.act;
    if (entry) {
      if (act === "toggle") this.#actions.toggle(entry);
      else if (act === "largest") this.#actions.largest(entry);
      else this.#actions.pick(entry);
    }
  }

  #key(event: KeyboardEvent): void {
    const entry = this.#entryOf(event);
    if (!entry || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.#entries.indexOf(entry);
    const to = (row: number): void => {
      const next = this.#row(row);
      if (next) {
        this.#row(at)?.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
        next.scrollIntoView({ block: "nearest" });
      }
    };
    if (event.key === "ArrowDown") to(at + 1);
    else if (event.key === "ArrowUp") to(at - 1);
    else if (event.key === "Home") to(0);
    else if (event.key === "End") to(this.#body.children.length - 1);
    else if (event.key === "Enter" || event.key === " ") this.#actions.pick(entry);
    else if (event.key === "l") this.#actions.largest(entry);
    else if (entry.node >= 0 && event.key === "ArrowRight") {
      if (entry.fold === "closed") this.#actions.toggle(entry);
      else to(at + 1);
    } else if (entry.node >= 0 && event.key === "ArrowLeft") {
      if (entry.fold === "open") this.#actions.toggle(entry);
      else {
        let above = at;
        while (above > 0 && (this.#entries[above] as Entry).level >= entry.level) above--;
        to(above);
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
