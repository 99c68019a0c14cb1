// The Live, Findings and About views, and what the findings light up on the timeline. Owns when the findings are asked for:
// never before the first picture is there.

import type { App, Loaded } from "./app.js";
import { h, setText } from "./dom.js";
import { attention, type Finding } from "./findings.js";
import type { Action } from "./keys.js";
import type { More } from "./link.js";
import type { ViewName } from "./model.js";
import type { FindingsView, Found } from "./view_findings.js";
import type { LiveView } from "./view_live.js";

/** A page that never idles asks after this long all the same, ms. */
const IDLE_WITHIN = 2_000;
/** Around the moments of a finding, as a part of them, so that one sees where it begins. */
const AIR = 0.04;

export class Further {
  readonly app: App;
  readonly element = h("div", { class: "mw-further", hidden: true });
  readonly #about = h("div", { class: "mw-about-scroll", tabindex: "0", hidden: true });
  #code: More | null = null;
  #live: LiveView | null = null;
  #findings: FindingsView | null = null;
  #of: Loaded | null = null;
  #found: Found | null = null;
  /** The finding whose blocks are lit on the timeline. */
  lit: Finding | null = null;
  #mask: Uint8Array | null = null;
  #stale = true;

  constructor(app: App) {
    this.app = app;
  }

  static has(view: ViewName): boolean {
    return view === "live" || view === "findings" || view === "about";
  }

  // ---- the code ----

  /** The data is new, or the view is another. */
  changed(view: ViewName, loaded: Loaded | null): void {
    this.element.hidden = !loaded || !this.#code || !Further.has(view);
    if (loaded && loaded !== this.#of) {
      this.#of = loaded;
      this.#found = null;
      this.lit = this.#mask = null;
      this.app.toolbar.badge("findings", 0);
      delete this.app.root.dataset.findings;
    }
    if (loaded && Further.has(view)) {
      if (view === "findings") {
        this.ask();
      }
      if (this.#live && this.#findings) {
        this.#live.element.hidden = view !== "live";
        this.#findings.element.hidden = view !== "findings";
        this.#about.hidden = view !== "about";
      }
      const { segments } = this.app.views;
      if (this.#code && segments && view === "about") {
        this.#about.replaceChildren(this.#code.aboutView(loaded.data, segments.events(loaded)));
      }
    }
  }

  /** The code has come. */
  make(code: More): void {
    const { app } = this;
    this.#code = code;
    const live = new code.LiveView(
      {
        moment: (moment) => app.push("moment", moment),
        tip: (entry, x, y) =>
          entry
            ? app.tooltip.lines(`live ${entry.key} ${entry.bytes}`, x, y, entry.color, entry.label, live.tip(entry))
            : app.tooltip.hide(),
        panel: () => app.frames.request("panel"),
        say: (text) => setText(app.live, text),
        site: (label) => app.panels.searchSite(label),
        timeline: (block) => this.showBlock(block),
      },
      app.signal,
    );
    const findings = new code.FindingsView({
      show: (finding) => this.show(finding),
      again: () => {
        this.#found = null;
        this.ask();
      },
    });
    this.#live = live;
    this.#findings = findings;
    this.element.replaceChildren(live.element, findings.element, this.#about);
    const observer = new ResizeObserver(() => this.refresh());
    observer.observe(live.flame.element);
    app.signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  }

  // ---- the findings ----

  /** The first picture is there: findings and code come when the page has nothing better to do. */
  ready(): void {
    const loaded = this.#of;
    const ask = (): void => {
      if (loaded === this.app.loaded && !this.app.signal.aborted) {
        this.ask();
        this.app.views.need(); // so that a tab opens at once later, also while the kernel works
      }
    };
    if (typeof requestIdleCallback === "function") {
      requestIdleCallback(ask, { timeout: IDLE_WITHIN });
    } else {
      setTimeout(ask, 0);
    }
  }

  ask(): void {
    const loaded = this.#of;
    if (this.#found || !loaded) {
      return;
    }
    const set = (found: Found): void => {
      if (loaded === this.app.loaded) {
        this.#found = found;
        const n = found.state === "ready" ? attention(found.findings) : 0;
        this.app.root.dataset.findings = found.state === "ready" ? String(n) : found.state;
        this.app.toolbar.badge("findings", n);
        this.refresh();
      }
    };
    set({ state: "asking", waiting: false });
    this.app.source
      .findings(
        loaded.data.header.device,
        () => this.#found?.state === "asking" && set({ state: "asking", waiting: true }),
      )
      .then(
        (findings) => set({ state: "ready", findings }),
        (error) => set({ state: "error", message: said(error) }),
      );
  }

  /** Lights a finding's blocks up on the timeline. */
  show(finding: Finding): void {
    const { app } = this;
    const loaded = this.#of;
    if (!loaded) {
      return;
    }
    const { n_blocks, n_events } = loaded.data;
    this.lit = finding;
    this.#mask = null;
    if (finding.blocks.length > 0) {
      this.#mask = new Uint8Array(n_blocks);
      for (const block of finding.blocks) {
        this.#mask[block] = 1;
      }
    }
    const [lo, hi] = finding.window ?? [0, n_events];
    const air = Math.max(2, (hi - lo) * AIR);
    const window: [number, number] = [Math.max(0, lo - air), Math.min(n_events, hi + air)];
    app.marked = null;
    app.views.segments?.unfocus();
    app.push("query", "");
    app.push("window", window[1] - window[0] >= n_events ? [0, 0] : window);
    app.push("moment", finding.moment);
    app.push("selection", finding.n_blocks === 1 ? (finding.blocks[0] ?? -1) : -1);
    app.push("view", "timeline");
    app.panels.toggle(true);
    app.root.dataset.lit = String(finding.blocks.length);
    app.shade();
    app.frames.request("view", "panel");
    app.root.focus({ preventScroll: true });
    setText(app.live, finding.title);
  }

  /** Puts it out again; false where nothing was lit. */
  unlight(): boolean {
    const had = this.lit !== null;
    if (had) {
      this.lit = this.#mask = null;
      delete this.app.root.dataset.lit;
      this.app.shade();
      this.refresh();
      this.app.frames.request("panel");
    }
    return had;
  }

  /** 1 for each block that is lit; null where the search alone says. */
  get mask(): Uint8Array | null {
    return this.#mask;
  }

  // ---- drawing, panel, keys ----

  refresh(): void {
    this.#stale = true;
    this.app.frames.request("panel");
  }

  frame(loaded: Loaded, view: ViewName): void {
    const { app } = this;
    if (!this.#stale || loaded !== this.#of || !this.#live) {
      return;
    }
    this.#stale = false;
    if (view === "live") {
      const mask = this.mask ?? app.result?.blocks ?? null;
      const query = app.model.get("query");
      this.#live.show({ loaded, moment: app.moment, mask, query, theme: app.theme, axis: app.axis });
    } else if (view === "findings") {
      this.#findings?.show(loaded.data, this.#found ?? { state: "asking", waiting: false }, app.theme, this.lit);
    }
  }

  /** Fills the shared panel; false where the app's own rule holds. */
  showPanel(loaded: Loaded, view: ViewName): boolean {
    const { side, selection, theme } = this.app;
    const said = view === "live" ? this.#live?.panel() : null;
    if (said) {
      side.show(said.title, said.content, said.pinned ? "Unpin" : "");
      return true;
    }
    if (this.lit && this.#code && selection < 0 && (view === "timeline" || view === "findings")) {
      side.show("Finding", this.#code.findingPanel(loaded.data, this.lit, theme), "Clear");
      return true;
    }
    return false;
  }

  /** To a block: the state after it was made, on the timeline. */
  showBlock(block: number): void {
    const { app } = this;
    app.push("selection", block);
    app.push("moment", (app.loaded?.data.alloc_event[block] ?? -1) + 1);
    app.push("view", "timeline");
    app.root.focus({ preventScroll: true });
  }

  /** Where the note beside the pointer is. */
  get stage(): HTMLElement | undefined {
    return this.#live?.element;
  }

  /** One step back; false where there is none. */
  back(view: ViewName): boolean {
    return (view === "live" && (this.#live?.back() ?? false)) || this.unlight();
  }

  /** Keys of these views; undefined: not one of them. */
  act(view: ViewName, action: Action): boolean | undefined {
    if (action === "escape") {
      const { help, selection } = this.app;
      return !help && selection < 0 && !this.app.commands.searchFocused() && this.back(view) ? true : undefined;
    }
    if (!Further.has(view) || ["help", "peak", "oom", "search", "panel"].includes(action)) {
      return undefined;
    }
    if (view === "live" && (action === "left" || action === "right")) {
      return undefined;
    }
    if (view === "live" && action === "mark") {
      this.#live?.setMark();
    } else if (view === "live" && action === "fit") {
      this.#live?.zoom(0);
    } else {
      return false;
    }
    return true;
  }
}

function said(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
