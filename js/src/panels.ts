// What the panel shows: the range, the pinned block, or the shown moment, unless the view has something of its own; whether
// it is open; and the moment under the pointer, where the panel follows that.

import type { App, Loaded } from "./app.js";
import { blockColor } from "./colors.js";
import { count } from "./format.js";
import type { CategoryTable } from "./panel_categories.js";
import { detailPanel } from "./panel_detail.js";
import { momentPanel, type PanelContext, rangePanel } from "./panel_moment.js";
import { quoted } from "./search.js";

export class Panels {
  readonly app: App;
  open = true;
  /** What follows the pointer in the panel that is shown. */
  #categories: CategoryTable | null = null;
  /** The moment under the pointer, -1 for none. */
  #pointed = -1;

  constructor(app: App) {
    this.app = app;
  }

  context(loaded: Loaded): PanelContext {
    return {
      data: loaded.data,
      timeline: loaded.engine.timeline,
      mode: loaded.mode,
      theme: this.app.theme,
      pickSite: (label) => this.searchSite(label),
    };
  }

  /** Looks for a call site, or no longer. */
  searchSite(label: string): void {
    const query = quoted(label);
    this.app.push("query", this.app.model.get("query") === query ? "" : query);
  }

  /** The pointer is over a moment of the timeline's drawing, or over none (-1). Rebuilds nothing. */
  point(moment: number): void {
    if (moment !== this.#pointed) {
      this.#pointed = moment;
      this.#categories?.point(moment);
    }
  }

  show(loaded: Loaded): void {
    const { app } = this;
    if (!this.open) {
      return;
    }
    this.#categories = null;
    const block = app.selection;
    if (!app.marked && app.views.showPanel(loaded)) {
      return;
    }
    if (app.marked) {
      const totals = loaded.engine.range(...app.marked);
      app.side.show("Range", rangePanel(this.context(loaded), totals), "Clear");
    } else if (block >= 0) {
      const color = blockColor(loaded.data, loaded.mode, app.theme, block);
      app.side.show("Block", detailPanel(loaded.data, block, color), "Unpin");
    } else {
      this.#showMoment(loaded);
    }
  }

  #showMoment(loaded: Loaded): void {
    const { app } = this;
    const { header } = loaded.data;
    const { moment } = app;
    const oom = header.oom.some((each) => each.moment === moment);
    const title = header.no_history
      ? "What there was"
      : moment === header.peak_event
        ? "At the peak"
        : oom
          ? "Out of memory"
          : `At moment ${count(moment)}`;
    const { element, categories } = momentPanel(this.context(loaded), moment, app.views.view !== "live");
    if (app.views.view === "timeline") {
      this.#categories = categories;
      categories?.point(this.#pointed);
    }
    app.side.show(title, element);
  }

  toggle(open = !this.open): void {
    const { app } = this;
    if (open !== this.open) {
      this.open = open;
      app.side.toggle(open);
      app.showTools();
      app.sizing.applyHeight();
      app.frames.request("panel");
    }
  }

  /** Takes back what the panel tells of, one thing at a time: the range, the pin, what a view has lit. */
  back(): void {
    const { app } = this;
    if (app.marked) {
      app.marked = null;
      app.frames.request("panel");
    } else if (app.selection >= 0 || !app.further.back(app.views.view)) {
      app.views.segments?.unfocus();
      app.push("selection", -1);
    }
    app.root.focus({ preventScroll: true });
  }
}
