// The widget: owns the one state object, joins the parts, and redraws once a frame when asked. Knows the model only as
// get, set and save; where the data comes from is the source's business.

import { Bands } from "./bands.js";
import { dimmed, lookupTable, type Mode, modeOf } from "./colors.js";
import type { Picture, View } from "./columns.js";
import { Commands } from "./commands.js";
import { h, setText } from "./dom.js";
import { Engine } from "./engine.js";
import { blockSentence } from "./facts.js";
import { Foot } from "./foot.js";
import { bytes, count } from "./format.js";
import { Frames } from "./frames.js";
import { Further } from "./further.js";
import { Gestures } from "./gestures.js";
import { attach } from "./interact.js";
import { attachKeys, helpSheet } from "./keys.js";
import type { Source } from "./link.js";
import type { Axis, ColorBy, Model, Order, Overview, Traits } from "./model.js";
import { Panels } from "./panels.js";
import { Scene } from "./scene.js";
import type { SearchResult } from "./search.js";
import { Side } from "./side.js";
import { Sizing } from "./sizing.js";
import { CHROME, chooseTheme, type Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";
import { Toolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";
import { Viewport } from "./viewport.js";
import { LOADING_AFTER, Views } from "./views.js";
import type { Data } from "./wire.js";

/** Traits go to the kernel at most this often, ms: a pan changes the window sixty times a second. */
const SAVE_AFTER = 100;
/** Typing settles before the blocks are searched, ms. */
const SEARCH_AFTER = 80;

/** What there is once the data has come. */
export interface Loaded {
  data: Data;
  engine: Engine;
  bands: Bands;
  viewport: Viewport;
  mode: Mode;
  /** Pixels by id: as coloured, and with what a search leaves in the dark. */
  colors: Uint32Array;
  table: Uint32Array;
  picture: Picture | null;
  /** What the chart draws: blocks over time, or segments. */
  chart: { timeline: Timeline; draw(view: View): Promise<Picture | null> };
}

export function mount(el: HTMLElement, model: Model, source: Source, signal: AbortSignal): void {
  // A host may render the same output again into the same place.
  el.replaceChildren();
  new App(el, model, source, signal);
}

/** Its members are open to the parts beside it (frames, sizing, gestures, commands, panels) and to nobody else. */
export class App {
  readonly model: Model;
  readonly source: Source;
  readonly signal: AbortSignal;
  readonly root: HTMLElement;
  readonly scene = new Scene();
  readonly toolbar: Toolbar;
  readonly side: Side;
  readonly foot = new Foot((query) => this.push("query", this.model.get("query") === query ? "" : query));
  readonly tooltip = new Tooltip();
  readonly hintBox: HTMLElement;
  readonly message = h("div", { class: "mw-message", hidden: true });
  readonly frames: Frames;
  readonly sizing: Sizing;
  readonly gestures: Gestures;
  readonly commands: Commands;
  readonly panels: Panels;
  readonly views: Views;
  readonly further: Further;
  readonly live = h("div", { class: "mw-hidden", "aria-live": "polite" });
  help: HTMLElement | null = null;
  loaded: Loaded | null = null;
  theme: Theme = "light";
  result: SearchResult | null = null;
  hovered = -1;
  hoveredBand = -1;
  /** Where the keyboard's crosshair stands, in bytes; it stands at the shown moment. */
  cross = -1;
  marked: [number, number] | null = null;
  /** The window as last written to the model or read from it. */
  window = "0,0";
  saving: ReturnType<typeof setTimeout> | undefined;
  searching: ReturnType<typeof setTimeout> | undefined;
  loads = 0;

  constructor(el: HTMLElement, model: Model, source: Source, signal: AbortSignal) {
    this.model = model;
    this.source = source;
    this.signal = signal;
    this.frames = new Frames(this);
    this.sizing = new Sizing(this);
    this.gestures = new Gestures(this);
    this.commands = new Commands(this);
    this.panels = new Panels(this);
    this.toolbar = new Toolbar({
      peak: () => this.commands.toPeak(),
      oom: () => this.commands.toOom(),
      fit: () => this.gestures.fit(),
      query: (text) => this.push("query", text),
      colorBy: (mode: ColorBy) => this.push("color_by", mode),
      order: (order: Order) => this.push("order", order),
      axis: (axis: Axis) => this.push("axis", axis),
      device: (device) => this.push("device", device),
      view: (view) => this.push("view", view),
      panel: () => this.panels.toggle(),
      help: () => this.toggleHelp(),
    });
    this.side = new Side(
      () => this.panels.toggle(),
      () => this.panels.back(),
      signal,
    );
    this.further = new Further(this);
    this.views = new Views(this);
    const command = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
    this.hintBox = h("div", { class: "mw-hint", "aria-hidden": "true" }, `${command} + wheel zooms`);
    this.scene.stage.append(this.tooltip.element, this.message, this.hintBox);
    const grip = h("div", { class: "mw-grip", title: "Drag to change the height" });
    this.root = h(
      "section",
      {
        class: "memwidget",
        "data-testid": "memwidget",
        "data-state": "loading",
        "data-draws": 0,
        "data-lm-suppress-shortcuts": "true",
        tabindex: "0",
        role: "application",
        "aria-label": "GPU memory timeline",
      },
      this.toolbar.element,
      h(
        "div",
        { class: "mw-body", role: "tabpanel", "aria-label": "Timeline" },
        h("div", { class: "mw-main" }, this.scene.stage, this.further.element, this.foot.element),
        this.side.splitter,
        this.side.panel,
      ),
      this.live,
      grip,
    );
    el.append(this.root);

    attach(this.scene.stage, this.gestures, signal);
    attachKeys(this.root, (action) => this.commands.act(action), signal);
    this.sizing.dragHeight(grip);
    this.sizing.observe();
    this.follow();
    this.applyTheme();
    this.sizing.applyHeight();
    this.showTools();
    this.views.changed();
    signal.addEventListener("abort", () => this.close(), { once: true });
    void this.load();
  }

  close(): void {
    this.loaded?.engine.close();
    clearTimeout(this.searching);
    if (this.saving !== undefined) {
      clearTimeout(this.saving);
      this.model.save_changes();
    }
    this.root.remove();
  }

  // ---- the model ----

  /** Writes a trait: at once for other views of this model, to the kernel a little later. */
  push<K extends keyof Traits & string>(key: K, value: Traits[K]): void {
    this.model.set(key, value);
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      this.saving = undefined;
      this.model.save_changes();
    }, SAVE_AFTER);
  }

  /** Reacts to traits, whoever changed them: the user here, another view, or Python. */
  follow(): void {
    const reactions: Record<string, () => void> = {
      view: () => this.views.changed(),
      moment: () => this.momentChanged(),
      selection: () => this.selected(),
      window: () => this.windowChanged(),
      query: () => this.queryChanged(),
      axis: () => {
        this.loaded?.viewport.axis(this.axis);
        this.showTools();
        this.frames.request("view");
      },
      color_by: () => this.recolor(),
      order: () => {
        this.cross = -1;
        this.showTools();
        this.frames.request("view");
      },
      device: () => void this.load(),
      theme: () => this.applyTheme(),
      height: () => this.sizing.applyHeight(),
      overview: () => this.describeOverview(),
    };
    for (const [key, react] of Object.entries(reactions)) {
      this.model.on(`change:${key}`, react);
      this.signal.addEventListener("abort", () => this.model.off(`change:${key}`, react), { once: true });
    }
  }

  get axis(): Axis {
    const hasTime = this.loaded?.engine.timeline.hasTime ?? true;
    return this.model.get("axis") === "time" && hasTime ? "time" : "events";
  }

  /** Without labels there is nothing to stack by but age. */
  get order(): Order {
    return this.model.get("order") === "category" && this.loaded?.data.header.has_labels ? "category" : "age";
  }

  get selection(): number {
    const block = this.model.get("selection");
    return this.loaded && block >= 0 && block < this.loaded.data.n_blocks ? block : -1;
  }

  /** The moment asked for, or the peak where none is. */
  get moment(): number {
    if (!this.loaded) {
      return 0;
    }
    const moment = this.model.get("moment");
    const { header } = this.loaded.data;
    return moment < 0 ? header.peak_event : Math.min(moment, header.n_events);
  }

  /** A moment that Python asks for may lie outside the window. */
  momentChanged(): void {
    if (this.model.get("moment") >= 0) {
      this.loaded?.viewport.reveal(this.moment);
    }
    this.views.refresh();
    this.frames.request("view", "panel");
  }

  windowChanged(): void {
    const [lo, hi] = this.model.get("window");
    if (`${lo},${hi}` !== this.window) {
      this.window = `${lo},${hi}`;
      this.loaded?.viewport.show(lo, hi);
      this.frames.request("view");
    }
  }

  saveWindow(): void {
    const window = this.loaded?.viewport.window;
    if (window && !this.loaded?.viewport.gliding && `${window}` !== this.window) {
      this.window = `${window}`;
      this.push("window", window);
    }
  }

  // ---- data ----

  async load(): Promise<void> {
    this.loads += 1;
    const load = this.loads;
    this.loaded?.engine.close();
    this.loaded = null;
    this.result = null;
    this.marked = null;
    this.views.changed();
    this.describeOverview();
    this.state("loading");
    const slow = setTimeout(() => this.say("Loading the blocks"), LOADING_AFTER);
    try {
      const waiting = (): void => {
        if (load === this.loads && !this.loaded) {
          this.state("overview");
          this.say("Waiting for the kernel: it is busy, or gone. The outline is what was saved.");
        }
      };
      const data = await this.source.load(this.model.get("device"), waiting);
      if (load === this.loads && !this.signal.aborted) {
        this.take(data);
      }
    } catch (error) {
      if (load === this.loads) {
        this.fail(error);
      }
    } finally {
      clearTimeout(slow);
    }
  }

  fail(error: unknown): void {
    this.state("error");
    this.say(error instanceof Error ? error.message : String(error), "error");
    this.frames.schedule();
  }

  take(data: Data): void {
    const engine = Engine.create(data, { worker: "auto" });
    const viewport = new Viewport(engine.timeline, this.model.get("axis"), data.header.capacity);
    const mode = modeOf(data, this.model.get("color_by"));
    const colors = lookupTable(data, mode, this.theme, CHROME[this.theme].background);
    const bands = new Bands(data);
    const chart = { timeline: engine.timeline, draw: (view: View) => engine.draw(view) };
    this.loaded = { data, engine, bands, viewport, mode, colors, table: colors, picture: null, chart };
    const [lo, hi] = this.model.get("window");
    this.window = `${lo},${hi}`;
    viewport.show(lo, hi, false);
    const { header } = data;
    this.toolbar.describe({
      ...header,
      peak: header.peak_allocated,
      ooms: header.oom.length,
      hasTime: header.has_time,
      labels: header.has_labels,
      phases: header.phases.length > 0,
    });
    this.label(this.summary(data));
    this.showTools();
    this.accent(data);
    this.legend();
    this.status("");
    this.queryChanged();
    this.views.changed();
  }

  summary({ header }: Data): string {
    const of = header.capacity ? ` of ${bytes(header.capacity)}` : "";
    if (header.no_history) {
      return `Memory timeline of ${header.name || "a recording"}: ${header.no_history}`;
    }
    const peak = `peak ${bytes(header.peak_allocated)}${of} at event ${count(header.peak_event)}`;
    const size = `${count(header.n_events)} events, ${count(header.n_blocks)} blocks`;
    const reserved = header.peak_reserved > 0 ? `, reserved ${bytes(header.peak_reserved)}` : "";
    return `Memory timeline of ${header.name || "a recording"}: ${peak}${reserved}, ${size}`;
  }

  get overview(): Overview | null {
    const overview = this.model.get("overview");
    return "columns" in overview ? (overview as Overview) : null;
  }

  describeOverview(): void {
    const overview = this.overview;
    if (this.loaded || !overview) {
      return;
    }
    const { device, peak_allocated } = overview;
    const devices = [{ device, peak_allocated }];
    this.toolbar.describe({
      ...overview,
      devices,
      peak: peak_allocated,
      ooms: 0,
      hasTime: true,
      labels: false,
      phases: false,
    });
    this.label(overview.summary || `Memory timeline of ${overview.name}: peak ${bytes(peak_allocated)}`);
    this.status(`${count(overview.n_events)} events, ${count(overview.n_blocks)} blocks`);
    this.frames.schedule();
  }

  label(summary: string): void {
    this.root.setAttribute("aria-label", summary.slice(0, 600));
  }

  state(state: "overview" | "loading" | "ready" | "error"): void {
    this.root.dataset.state = state;
  }

  say(text: string, kind = ""): void {
    this.message.hidden = text === "";
    this.message.dataset.kind = kind;
    this.message.replaceChildren(h("span", { role: kind === "error" ? "alert" : "status" }, text));
  }

  // ---- theme and colours ----

  applyTheme(): void {
    this.theme = chooseTheme(this.model.get("theme"), this.root);
    if (this.root.dataset.theme !== this.theme) {
      this.root.dataset.theme = this.theme;
      this.recolor();
    }
  }

  recolor(): void {
    const loaded = this.loaded;
    this.showTools();
    if (loaded) {
      loaded.mode = modeOf(loaded.data, this.model.get("color_by"));
      loaded.colors = lookupTable(loaded.data, loaded.mode, this.theme, CHROME[this.theme].background);
      this.accent(loaded.data);
      this.shade();
      this.legend();
    }
    this.frames.request("panel");
  }

  /** One accent for chrome and data: the data's. */
  accent({ header }: Data): void {
    this.root.style.setProperty("--mw-accent", header.palette[this.theme].accent);
  }

  legend(): void {
    if (this.loaded) {
      this.foot.legend(this.views.legend(this.loaded));
    }
  }

  showTools(): void {
    const { axis, order } = this;
    const panelOpen = this.panels.open;
    this.toolbar.show({ query: this.model.get("query"), colorBy: this.model.get("color_by"), order, axis, panelOpen });
  }

  // ---- search ----

  queryChanged(): void {
    this.showTools();
    if (this.model.get("query") !== "") {
      this.further.unlight();
    }
    clearTimeout(this.searching);
    this.searching = setTimeout(async () => {
      const loaded = this.loaded;
      const result = (await loaded?.engine.search(this.model.get("query"))) ?? null;
      if (loaded && loaded === this.loaded) {
        this.result = result;
        this.toolbar.hits(result);
        this.root.dataset.hits = String(result?.blocks ? result.count : "");
        this.shade();
      }
    }, SEARCH_AFTER);
  }

  shade(): void {
    if (this.loaded) {
      const mask = this.further.mask ?? this.result?.blocks;
      const { segments, isSegments } = this.views;
      this.loaded.table =
        isSegments && segments
          ? segments.table(this.loaded, this.theme)
          : mask
            ? dimmed(this.loaded.colors, mask)
            : this.loaded.colors;
      this.views.refresh();
      this.frames.request("paint");
    }
  }

  // ---- the rest ----

  selected(): void {
    const block = this.selection;
    if (block >= 0 && this.loaded) {
      this.panels.toggle(true);
      setText(this.live, `Pinned: ${blockSentence(this.loaded.data, block)}`);
    }
    this.views.segments?.selected();
    this.views.refresh();
    this.frames.request("panel");
  }

  status(text: string): void {
    const loaded = this.loaded;
    const rest = loaded ? `${count(loaded.data.n_events)} events, ${count(loaded.data.n_blocks)} blocks` : "";
    this.foot.status(text || rest);
  }

  toggleHelp(): void {
    if (this.help) {
      this.help.remove();
      this.help = null;
      this.root.focus({ preventScroll: true });
    } else {
      this.help = helpSheet(() => this.toggleHelp());
      this.root.append(this.help);
    }
  }
}
