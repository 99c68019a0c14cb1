// The list of events: a million rows that scroll. Owns which rows are on the page (as many as are seen), the filter, the
// box that finds, and the keys; knows nothing of the map.
//
// A browser's elements end at some 17 to 33 million pixels, which is 0.9 to 1.6 million rows. So the scrolled element is
// at most MOST pixels high; beyond that a pixel of the scroll bar stands for several rows, and the wheel, which must move
// by rows, is ours.

import { button, h, name, setText } from "./dom.js";
import { ACTION_WORDS, type EventFacts, type EventTable, FILTERS, type Filter } from "./events.js";
import { bytes, count } from "./format.js";
import { lowerBound } from "./timeline.js";

export const ROW = 20;
const MOST = 8_000_000;

/** A sign for each sort of action, so that the list can be read at a glance and without colour. */
const SIGNS: Record<EventFacts["action"], string> = {
  alloc: "+",
  free_requested: "−",
  free_completed: "×",
  segment_alloc: "⊞",
  segment_free: "⊟",
  segment_map: "⊞",
  segment_unmap: "⊟",
  oom: "!",
  snapshot: "·",
  annotate: "·",
  other: "·",
};

export interface EventListActions {
  /** The user went to an event. */
  choose(event: number): void;
  hover(event: number): void;
  /** Whether an event is what the text in the box says. */
  find(text: string): Promise<((event: number) => boolean) | null>;
}

export class EventList {
  readonly element: HTMLElement;
  readonly list = h("div", { class: "mw-events", role: "listbox", tabindex: "0", "aria-label": "Events" });
  readonly finder: HTMLInputElement;
  readonly #filter: HTMLSelectElement;
  readonly #found = h("span", { class: "mw-hits", "aria-live": "polite", hidden: true });
  readonly #spacer = h("div", { class: "mw-events-spacer" });
  readonly #rowsBox = h("div", { class: "mw-events-rows" });
  readonly #pool: HTMLElement[] = [];
  readonly #actions: EventListActions;
  #table: EventTable | null = null;
  /** Rows of the list as events; null: all of them. */
  #rows: Int32Array | null = null;
  #current = -1;
  /** First row on the page, with a fraction. */
  #first = 0;
  #expected = 0;
  #matches: ((event: number) => boolean) | null = null;
  #searches = 0;

  constructor(actions: EventListActions, signal: AbortSignal) {
    this.#actions = actions;
    this.#filter = h(
      "select",
      { class: "mw-select", "aria-label": "Which events are listed" },
      ...FILTERS.map(([value, label]) => h("option", { value }, label)),
    );
    this.finder = h("input", {
      type: "search",
      placeholder: "Find address, name",
      title:
        "Go to the next event of an address, a block's or segment's name, a function or file (Enter: next, Shift+Enter: the one before)",
      "aria-label": "Find an event by address, name, function or file",
      spellcheck: "false",
      autocomplete: "off",
    });
    const back = button("↑", "The one before (Shift+Enter)", "mw-button mw-icon");
    const on = button("↓", "The next one (Enter)", "mw-button mw-icon");
    back.addEventListener("click", () => this.#toMatch(-1));
    on.addEventListener("click", () => this.#toMatch(1));
    this.list.append(this.#spacer, this.#rowsBox);
    this.element = h(
      "div",
      { class: "mw-events-side" },
      h(
        "div",
        { class: "mw-events-head" },
        this.#filter,
        h("div", { class: "mw-search" }, this.finder, this.#found),
        h("div", { class: "mw-group" }, back, on),
      ),
      this.list,
    );
    this.#filter.addEventListener("change", () => this.filter(this.#filter.value as Filter));
    this.finder.addEventListener("input", () => void this.#search());
    this.finder.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.#toMatch(event.shiftKey ? -1 : 1);
      }
    });
    this.list.addEventListener("scroll", () => this.#scrolled(), { signal, passive: true });
    this.list.addEventListener("wheel", (event) => this.#wheel(event), { signal, passive: false });
    this.list.addEventListener("click", (event) => {
      const at = this.#rowAt(event);
      if (at >= 0) {
        this.#actions.choose(this.#event(at));
      }
    });
    this.list.addEventListener("pointermove", (event) => {
      const at = this.#rowAt(event);
      actions.hover(at >= 0 ? this.#event(at) : -1);
    });
    this.list.addEventListener("pointerleave", () => actions.hover(-1));
    const observer = new ResizeObserver(() => {
      this.#resized();
      this.show(this.#current);
    });
    observer.observe(this.list);
    signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  }

  /** How many rows the list has under its filter. */
  get length(): number {
    return this.#rows?.length ?? this.#table?.data.n_events ?? 0;
  }

  get current(): number {
    return this.#current;
  }

  take(table: EventTable): void {
    this.#table = table;
    this.list.style.setProperty("--mw-digits", `${count(table.data.n_events).length}ch`);
    this.filter("all");
  }

  filter(filter: Filter): void {
    if (this.#table) {
      this.#filter.value = filter;
      this.#rows = this.#table.rows(filter);
      this.#resized();
      this.show(this.#current);
    }
  }

  /** Marks an event and brings it into sight; one that the filter hides leaves the nearest row in sight. */
  show(event: number): void {
    this.#current = event;
    const row = this.#rowOf(event);
    const seen = this.#seen;
    const edge = Math.min(3, seen / 4);
    if (row < this.#first - edge || row > this.#first + seen + edge) {
      this.#goto(row - seen / 2);
    } else if (row < this.#first + edge) {
      this.#goto(Math.min(this.#first, row - edge));
    } else if (row + 1 > this.#first + seen - edge) {
      this.#goto(Math.max(this.#first, row + 1 - seen + edge));
    } else {
      this.#draw();
    }
  }

  /** Go on by rows; "page" is what is on the page. */
  step(by: number | "first" | "last" | "pageUp" | "pageDown"): void {
    if (this.length === 0) {
      return;
    }
    const page = Math.max(1, Math.floor(this.#seen) - 1);
    const row = this.#rowOf(this.#current);
    // From between two rows of a filtered list the next one on is the row itself.
    const between = this.#event(row) > this.#current ? 1 : 0;
    const to =
      by === "first"
        ? 0
        : by === "last"
          ? this.length - 1
          : row + (by === "pageUp" ? -page : by === "pageDown" ? page : by > 0 ? by - between : by);
    // Known here before the next frame shows it: a key held down may come twice in one frame.
    this.#current = this.#event(Math.max(0, Math.min(to, this.length - 1)));
    this.#actions.choose(this.#current);
  }

  #event(row: number): number {
    return this.#rows ? (this.#rows[row] ?? -1) : row;
  }

  /** The row of an event, or of the next one that the filter shows. */
  #rowOf(event: number): number {
    return Math.max(0, Math.min(this.#rows ? lowerBound(this.#rows, event) : event, this.length - 1));
  }

  get #seen(): number {
    return this.list.clientHeight / ROW;
  }

  get #height(): number {
    return Math.min(MOST, this.length * ROW);
  }

  get #isScaled(): boolean {
    return this.length * ROW > MOST;
  }

  #resized(): void {
    this.#spacer.style.height = `${this.#height}px`;
    this.#goto(this.#first);
  }

  #goto(first: number): void {
    this.#first = Math.max(0, Math.min(first, this.length - this.#seen));
    const range = this.#height - this.list.clientHeight;
    const rows = this.length - this.#seen;
    this.#expected = rows > 0 ? (this.#first / rows) * Math.max(0, range) : 0;
    this.list.scrollTop = this.#expected;
    this.#draw();
  }

  #scrolled(): void {
    const { scrollTop } = this.list;
    // Browsers round what they are told; that is no scrolling of the user's.
    if (Math.abs(scrollTop - this.#expected) >= 1.5) {
      const range = this.#height - this.list.clientHeight;
      this.#first = range > 0 ? (scrollTop / range) * Math.max(0, this.length - this.#seen) : 0;
      this.#expected = scrollTop;
    }
    this.#draw();
  }

  #wheel(event: WheelEvent): void {
    if (!this.#isScaled || event.ctrlKey || event.metaKey) {
      return;
    }
    const unit = event.deltaMode === 1 ? ROW : event.deltaMode === 2 ? this.list.clientHeight : 1;
    const to = Math.max(0, Math.min(this.#first + (event.deltaY * unit) / ROW, this.length - this.#seen));
    if (to !== this.#first) {
      event.preventDefault();
      this.#goto(to);
    }
  }

  #rowAt(event: MouseEvent): number {
    const y = event.clientY - this.list.getBoundingClientRect().top;
    const row = Math.floor(this.#first + y / ROW);
    return event.target !== this.list && row >= 0 && row < this.length ? row : -1;
  }

  #draw(): void {
    const table = this.#table;
    if (!table) {
      return;
    }
    const from = Math.floor(this.#first);
    const shown = Math.max(0, Math.min(Math.ceil(this.#seen) + 1, this.length - from));
    while (this.#pool.length < shown) {
      const row = h("div", { class: "mw-event", role: "option" }, ...["n", "sign", "what", "size", "name"].map(cell));
      this.#pool.push(row);
      this.#rowsBox.append(row);
    }
    let active = "";
    this.#pool.forEach((row, i) => {
      row.hidden = i >= shown;
      if (row.hidden) {
        return;
      }
      const at = from + i;
      const event = this.#event(at);
      const { action, name: text, size } = table.facts(event);
      const selected = event === this.#current;
      row.id ||= `mw-event-${++ids}`;
      row.dataset.event = String(event);
      row.dataset.action = action;
      row.dataset.match = String(this.#matches?.(event) ?? false);
      row.setAttribute("aria-selected", String(selected));
      row.setAttribute("aria-posinset", String(at + 1));
      row.setAttribute("aria-setsize", String(this.length));
      active = selected ? row.id : active;
      const [n, sign, what, amount, label] = row.children as unknown as HTMLElement[];
      setText(n as HTMLElement, count(event));
      setText(sign as HTMLElement, SIGNS[action]);
      setText(what as HTMLElement, ACTION_WORDS[action]);
      setText(amount as HTMLElement, size > 0 ? bytes(size) : "");
      setText(label as HTMLElement, text);
    });
    this.list.setAttribute("aria-activedescendant", active);
    // The rows stand still on the page and are moved by what the first one is cut.
    this.#rowsBox.style.transform = `translateY(${this.list.scrollTop - (this.#first - from) * ROW}px)`;
  }

  async #search(): Promise<void> {
    const text = this.finder.value.trim();
    this.#searches += 1;
    const search = this.#searches;
    const matches = text === "" ? null : await this.#actions.find(text);
    if (search !== this.#searches) {
      return;
    }
    this.#matches = matches;
    this.#found.hidden = true;
    if (matches && !(this.#current >= 0 && matches(this.#current))) {
      this.#toMatch(1);
    }
    this.#draw();
  }

  /** To the next event that matches, around the end of the list if need be. */
  #toMatch(direction: number): void {
    const n = this.length;
    if (!this.#matches || n === 0) {
      return;
    }
    const from = this.#rowOf(this.#current);
    for (let i = 1; i <= n; i++) {
      const event = this.#event((((from + direction * i) % n) + n) % n);
      if (this.#matches(event)) {
        this.#found.hidden = true;
        this.#actions.choose(event);
        return;
      }
    }
    this.#found.hidden = false;
    this.#found.dataset.none = "true";
    setText(this.#found, "no match");
  }
}

let ids = 0;

function cell(kind: string): HTMLElement {
  return kind === "name" ? name("", "mw-event-name") : h("span", { class: `mw-event-${kind}` });
}
