// The header row: what is shown (name, device, peak, capacity) and the tools. Owns its elements; says what was asked.

import { button, h, name, setText } from "./dom.js";
import { bytes, bytesExact, count } from "./format.js";
import { type Axis, COLOR_MODES, type ColorBy, type Order, VIEWS, type ViewName } from "./model.js";
import type { SearchResult } from "./search.js";

export interface ToolbarActions {
  peak(): void;
  oom(): void;
  fit(): void;
  query(text: string): void;
  colorBy(mode: ColorBy): void;
  order(order: Order): void;
  axis(axis: Axis): void;
  device(device: number): void;
  view(view: ViewName): void;
  panel(): void;
  help(): void;
}

/** Characters of a name that are always seen; the rest is in its title. */
const NAME_AT_LEAST = 8;

/** What the header says; the overview and the data both have it. */
export interface Heading {
  name: string;
  device: number;
  device_type: string;
  devices: readonly { device: number; peak_allocated: number | null }[];
  capacity: number | null;
  peak: number;
  n_events: number;
  ooms: number;
  hasTime: boolean;
  /** Whether blocks have categories, and whether phases made any. */
  labels: boolean;
  phases: boolean;
}

const ORDERS: readonly (readonly [Order, string])[] = [
  ["age", "by age"],
  ["category", "by category"],
];

function select<T extends string>(
  label: string,
  choices: readonly (readonly [T, string])[],
  choose: (value: T) => void,
): HTMLSelectElement {
  const options = choices.map(([value, text]) => h("option", { value }, text));
  const element = h("select", { class: "mw-select", "aria-label": label }, ...options);
  element.addEventListener("change", () => choose(element.value as T));
  return element;
}

/** A tool with its word, which goes where there is no room for it. */
function labelled(word: string, tool: HTMLElement): HTMLElement {
  return h("label", { class: "mw-label mw-worded" }, tool, h("span", {}, word));
}

export class Toolbar {
  readonly element: HTMLElement;
  readonly search: HTMLInputElement;
  readonly #title = h("div", { class: "mw-title" });
  readonly #hits = h("span", { class: "mw-hits", "aria-live": "polite" });
  readonly #oom: HTMLButtonElement;
  readonly #color: HTMLSelectElement;
  readonly #order: HTMLSelectElement;
  readonly #events: HTMLButtonElement;
  readonly #time: HTMLButtonElement;
  readonly #axis: HTMLElement;
  readonly #fit: HTMLButtonElement;
  readonly #colorLabel: HTMLElement;
  readonly #orderLabel: HTMLElement;
  readonly #tabs: HTMLButtonElement[];
  #hasTime = true;
  #phases = false;
  #view: ViewName = "timeline";
  readonly #panel: HTMLButtonElement;
  readonly #actions: ToolbarActions;

  constructor(actions: ToolbarActions) {
    this.#actions = actions;
    this.search = h("input", {
      type: "search",
      placeholder: "Search",
      title: 'Function, file, address or metadata; all words must match, "quoted text" is one word (/)',
      "aria-label": "Search blocks by function, file, address or metadata",
      spellcheck: "false",
      autocomplete: "off",
    });
    this.search.addEventListener("input", () => actions.query(this.search.value));
    const peak = button("Peak", "Go to the peak (P)");
    this.#oom = button("OOM", "Go to the next out of memory (O)");
    this.#fit = button("Fit", "Show everything (Home)");
    peak.addEventListener("click", actions.peak);
    this.#oom.addEventListener("click", actions.oom);
    this.#fit.addEventListener("click", actions.fit);
    this.#color = select("Colour by", COLOR_MODES, actions.colorBy);
    this.#order = select("Stack blocks", ORDERS, actions.order);
    this.#events = button("events", "Horizontal axis: events, all equally wide", "mw-segment");
    this.#time = button("time", "Horizontal axis: time", "mw-segment");
    this.#events.addEventListener("click", () => actions.axis("events"));
    this.#time.addEventListener("click", () => actions.axis("time"));
    this.#axis = h(
      "div",
      { class: "mw-group", role: "group", "aria-label": "Horizontal axis" },
      this.#events,
      this.#time,
    );
    this.#panel = button("", "Panel on or off (I)", "mw-button mw-icon mw-panel-icon");
    this.#panel.addEventListener("click", actions.panel);
    const help = button("?", "Keys and gestures (?)", "mw-button mw-icon");
    help.addEventListener("click", actions.help);
    this.#oom.hidden = true;
    this.#colorLabel = labelled("Colour", this.#color);
    this.#colorLabel.title = "Colour by";
    this.#orderLabel = labelled("Stack", this.#order);
    this.#tabs = VIEWS.map((view) => {
      const label = view.charAt(0).toUpperCase() + view.slice(1);
      const tab = h("button", { type: "button", class: "mw-tab", role: "tab", "data-view": view }, label);
      tab.addEventListener("click", () => actions.view(view));
      return tab;
    });
    this.element = h(
      "header",
      { class: "mw-header" },
      this.#title,
      h("div", { class: "mw-tabs", role: "tablist", "aria-label": "Views" }, ...this.#tabs),
      h(
        "div",
        { class: "mw-tools" },
        h("div", { class: "mw-search" }, this.search, this.#hits),
        h("div", { class: "mw-group" }, peak, this.#oom, this.#fit),
        this.#colorLabel,
        this.#orderLabel,
        this.#axis,
        h("div", { class: "mw-group" }, this.#panel, help),
      ),
    );
  }

  /** The left part. Several devices: a choice; one: its name. */
  describe(heading: Heading): void {
    const { devices } = heading;
    const label = (device: number): string =>
      heading.device_type === "cpu" ? "cpu" : `${heading.device_type}:${device}`;
    let device: HTMLElement = h("span", { class: "mw-device" }, label(heading.device));
    if (devices.length > 1) {
      const select = h(
        "select",
        { class: "mw-select", "aria-label": "Device" },
        ...devices.map((each) =>
          h(
            "option",
            { value: each.device, selected: each.device === heading.device },
            each.peak_allocated === null ? label(each.device) : `${label(each.device)}  ${bytes(each.peak_allocated)}`,
          ),
        ),
      );
      select.addEventListener("change", () => this.#actions.device(Number(select.value)));
      device = select;
    }
    // Without events there is no peak: what is known is one moment, or nothing.
    const amount = bytes(heading.peak);
    const peak = heading.n_events > 0 ? `peak ${amount}` : heading.peak > 0 ? `${amount} allocated` : "";
    const called = name(heading.name || "untitled", "mw-name", 300);
    called.style.minWidth = `${Math.min(NAME_AT_LEAST, heading.name.length)}ch`;
    this.#title.replaceChildren(called, device, h("span", { class: "mw-peak", title: bytesExact(heading.peak) }, peak));
    if (heading.capacity) {
      const title = bytesExact(heading.capacity);
      this.#title.append(h("span", { class: "mw-capacity", title }, `of ${bytes(heading.capacity)}`));
    }
    this.#oom.hidden = heading.ooms === 0;
    this.#hasTime = heading.hasTime;
    this.#phases = heading.phases;
    this.#offer();
    this.#order.disabled = !heading.labels;
    this.#orderLabel.title = heading.labels
      ? "What is stacked on what: in order of allocation, or by category"
      : "Stacked in order of allocation: nothing tells what blocks were for";
    this.#axis.hidden ||= !heading.hasTime;
  }

  /** A segment is no block: it has a kind, and no phase. */
  #offer(): void {
    const segments = this.#view === "segments";
    for (const option of this.#color.options) {
      if (option.value === "category") {
        option.textContent = segments ? "kind" : "category";
      } else if (option.value === "phase") {
        option.hidden = option.disabled = segments || !this.#phases;
      }
    }
  }

  /** Marks a view's tab and leaves out the tools that it has no use for. */
  tab(view: ViewName): void {
    for (const tab of this.#tabs) {
      tab.setAttribute("aria-selected", String(tab.dataset.view === view));
    }
    const chart = view === "timeline" || view === "segments";
    this.#axis.hidden = !chart || !this.#hasTime;
    this.#fit.hidden = !chart;
    this.#panel.hidden = view === "findings";
    this.#colorLabel.hidden = view === "about" || view === "live" || view === "findings";
    this.#orderLabel.hidden = view !== "timeline";
    this.#view = view;
    this.#offer();
  }

  /** A small number on a view's tab; none for 0. */
  badge(view: ViewName, n: number): void {
    const tab = this.#tabs.find((each) => each.dataset.view === view);
    tab?.querySelector(".mw-badge")?.remove();
    if (n > 0) {
      tab?.append(h("span", { class: "mw-badge" }, count(n)));
    }
  }

  /** Makes the tools show what the state is. */
  show(state: { query: string; colorBy: ColorBy; order: Order; axis: Axis; panelOpen: boolean }): void {
    if (this.search.value !== state.query) {
      this.search.value = state.query;
    }
    const offered = [...this.#color.options].some(({ value, disabled }) => value === state.colorBy && !disabled);
    this.#color.value = offered ? state.colorBy : "auto";
    this.#order.value = state.order;
    this.#events.setAttribute("aria-pressed", String(state.axis === "events"));
    this.#time.setAttribute("aria-pressed", String(state.axis === "time"));
    this.#panel.setAttribute("aria-pressed", String(state.panelOpen));
  }

  /** How many blocks match, and how many bytes at most they hold at once. */
  hits(result: SearchResult | null): void {
    if (!result?.blocks) {
      setText(this.#hits, "");
      this.#hits.hidden = true;
      return;
    }
    this.#hits.hidden = false;
    this.#hits.dataset.none = String(result.count === 0);
    const most = result.count > 0 ? result.max() : null;
    const [number, amount] = most ? [count(result.count), ` · ${bytes(most.bytes)}`] : ["no match", ""];
    this.#hits.replaceChildren(number, h("span", {}, amount));
    this.#hits.title = most ? `${count(result.count)} blocks, at most ${bytesExact(most.bytes)} at once` : "";
  }
}
