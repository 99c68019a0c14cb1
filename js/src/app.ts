// The widget: owns the one state object, joins the parts, and redraws once a frame when asked. Knows the model only as
// get, set and save; where the data comes from is the source's business.

import { Bands } from "./bands.js";
import { bytesToY, momentToX, xToMoment, yToBytes } from "./camera.js";
import { blockColor, dimmed, legendOf, lookupTable, type Mode, modeOf } from "./colors.js";
import type { Picture } from "./columns.js";
import { h, setText } from "./dom.js";
import { Engine } from "./engine.js";
import { blockSentence, siteLabel } from "./facts.js";
import { Foot } from "./foot.js";
import { bytes, count, duration } from "./format.js";
import { attach, type Intents, type Zone } from "./interact.js";
import { type Action, attachKeys, helpSheet } from "./keys.js";
import { inside } from "./layout.js";
import type { Source } from "./link.js";
import { brushPart } from "./minimap.js";
import type { Axis, ColorBy, Model, Overview, Traits } from "./model.js";
import { detailPanel } from "./panel_detail.js";
import { momentPanel, type PanelContext, rangePanel } from "./panel_moment.js";
import { blockAt } from "./pick.js";
import { Scene } from "./scene.js";
import type { SearchResult } from "./search.js";
import { Side } from "./side.js";
import { CHROME, chooseTheme, type Theme, watchTheme } from "./theme.js";
import { Toolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";
import { topOf, Viewport } from "./viewport.js";
import type { Data } from "./wire.js";

/** Below this width the panel goes under the drawing, CSS pixels. */
const NARROW = 720;
const LEAST_HEIGHT = 280;
/** Height of the panel under a narrow drawing, as in widget.css. */
const PANEL_BELOW = 264;
/** Traits go to the kernel at most this often, ms: a pan changes the window sixty times a second. */
const SAVE_AFTER = 100;
/** Typing settles before the blocks are searched, ms. */
const SEARCH_AFTER = 80;
const HINT_MS = 1_200;
/** A message about loading would only flicker when the data comes sooner, ms. */
const LOADING_AFTER = 500;

/** What can be out of date: the id buffer, its pixels, the panel. */
type Part = "view" | "paint" | "panel";

/** What there is once the data has come. */
interface Loaded {
  data: Data;
  engine: Engine;
  bands: Bands;
  viewport: Viewport;
  mode: Mode;
  /** Pixels by id: as coloured, and with what a search leaves in the dark. */
  colors: Uint32Array;
  table: Uint32Array;
  picture: Picture | null;
}

export function mount(el: HTMLElement, model: Model, source: Source, signal: AbortSignal): void {
  // A host may render the same output again into the same place.
  el.replaceChildren();
  new App(el, model, source, signal);
}

class App implements Intents {
  readonly #model: Model;
  readonly #source: Source;
  readonly #signal: AbortSignal;
  readonly #root: HTMLElement;
  readonly #scene = new Scene();
  readonly #toolbar: Toolbar;
  readonly #side: Side;
  readonly #foot = new Foot();
  readonly #tooltip = new Tooltip();
  readonly #hint: HTMLElement;
  readonly #message = h("div", { class: "mw-message", hidden: true });
  readonly #live = h("div", { class: "mw-hidden", "aria-live": "polite" });
  #help: HTMLElement | null = null;
  #loaded: Loaded | null = null;
  #theme: Theme = "light";
  #result: SearchResult | null = null;
  #hovered = -1;
  #hoveredBand = -1;
  /** Where the keyboard's crosshair stands, in bytes; it stands at the shown moment. */
  #cross = -1;
  #range: [number, number] | null = null;
  #panelOpen = true;
  #draws = 0;
  #scheduled = false;
  #sweeping = false;
  readonly #dirty: Record<Part, boolean> = { view: false, paint: false, panel: false };
  /** The window as last written to the model or read from it. */
  #window = "0,0";
  #saving: ReturnType<typeof setTimeout> | undefined;
  #searching: ReturnType<typeof setTimeout> | undefined;
  #hinting: ReturnType<typeof setTimeout> | undefined;
  #loads = 0;

  constructor(el: HTMLElement, model: Model, source: Source, signal: AbortSignal) {
    this.#model = model;
    this.#source = source;
    this.#signal = signal;
    this.#toolbar = new Toolbar({
      peak: () => this.#toPeak(),
      oom: () => this.#toOom(),
      fit: () => this.fit(),
      query: (text) => this.#push("query", text),
      colorBy: (mode: ColorBy) => this.#push("color_by", mode),
      axis: (axis: Axis) => this.#push("axis", axis),
      device: (device) => this.#push("device", device),
      panel: () => this.#togglePanel(),
      help: () => this.#toggleHelp(),
    });
    this.#side = new Side(
      () => this.#togglePanel(),
      () => this.#back(),
      signal,
    );
    const command = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
    this.#hint = h("div", { class: "mw-hint", "aria-hidden": "true" }, `${command} + wheel zooms`);
    this.#scene.stage.append(this.#tooltip.element, this.#message, this.#hint);
    const grip = h("div", { class: "mw-grip", title: "Drag to change the height" });
    this.#root = h(
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
      this.#toolbar.element,
      h(
        "div",
        { class: "mw-body", role: "tabpanel", "aria-label": "Timeline" },
        h("div", { class: "mw-main" }, this.#scene.stage, this.#foot.element),
        this.#side.splitter,
        this.#side.panel,
      ),
      this.#live,
      grip,
    );
    el.append(this.#root);

    attach(this.#scene.stage, this, signal);
    attachKeys(this.#root, (action) => this.#act(action), signal);
    this.#dragHeight(grip);
    this.#observe();
    this.#follow();
    this.#applyTheme();
    this.#applyHeight();
    this.#showTools();
    signal.addEventListener("abort", () => this.#close(), { once: true });
    void this.#load();
  }

  #close(): void {
    this.#loaded?.engine.close();
    clearTimeout(this.#searching);
    clearTimeout(this.#hinting);
    if (this.#saving !== undefined) {
      clearTimeout(this.#saving);
      this.#model.save_changes();
    }
    this.#root.remove();
  }

  // ---- the model ----

  /** Writes a trait: at once for other views of this model, to the kernel a little later. */
  #push<K extends keyof Traits & string>(key: K, value: Traits[K]): void {
    this.#model.set(key, value);
    clearTimeout(this.#saving);
    this.#saving = setTimeout(() => {
      this.#saving = undefined;
      this.#model.save_changes();
    }, SAVE_AFTER);
  }

  /** Reacts to traits, whoever changed them: the user here, another view, or Python. */
  #follow(): void {
    const reactions: Record<string, () => void> = {
      moment: () => this.#request("panel"),
      selection: () => this.#selected(),
      window: () => this.#windowChanged(),
      query: () => this.#queryChanged(),
      axis: () => {
        this.#loaded?.viewport.axis(this.#axis);
        this.#showTools();
        this.#request("view");
      },
      color_by: () => this.#recolor(),
      device: () => void this.#load(),
      theme: () => this.#applyTheme(),
      height: () => this.#applyHeight(),
      overview: () => this.#describeOverview(),
    };
    for (const [key, react] of Object.entries(reactions)) {
      this.#model.on(`change:${key}`, react);
      this.#signal.addEventListener("abort", () => this.#model.off(`change:${key}`, react), { once: true });
    }
  }

  get #axis(): Axis {
    const hasTime = this.#loaded?.engine.timeline.hasTime ?? true;
    return this.#model.get("axis") === "time" && hasTime ? "time" : "events";
  }

  get #selection(): number {
    const block = this.#model.get("selection");
    return this.#loaded && block >= 0 && block < this.#loaded.data.n_blocks ? block : -1;
  }

  /** The moment asked for, or the peak where none is. */
  get #moment(): number {
    if (!this.#loaded) {
      return 0;
    }
    const moment = this.#model.get("moment");
    const { header } = this.#loaded.data;
    return moment < 0 ? header.peak_event : Math.min(moment, header.n_events);
  }

  #windowChanged(): void {
    const [lo, hi] = this.#model.get("window");
    if (`${lo},${hi}` !== this.#window) {
      this.#window = `${lo},${hi}`;
      this.#loaded?.viewport.show(lo, hi);
      this.#request("view");
    }
  }

  #saveWindow(): void {
    const window = this.#loaded?.viewport.window;
    if (window && !this.#loaded?.viewport.gliding && `${window}` !== this.#window) {
      this.#window = `${window}`;
      this.#push("window", window);
    }
  }

  // ---- data ----

  async #load(): Promise<void> {
    this.#loads += 1;
    const load = this.#loads;
    this.#loaded?.engine.close();
    this.#loaded = null;
    this.#result = null;
    this.#range = null;
    this.#describeOverview();
    this.#state("loading");
    const slow = setTimeout(() => this.#say("Loading the blocks"), LOADING_AFTER);
    try {
      const waiting = (): void => {
        if (load === this.#loads && !this.#loaded) {
          this.#state("overview");
          this.#say("Waiting for the kernel: it is busy, or gone. The outline is what was saved.");
        }
      };
      const data = await this.#source.load(this.#model.get("device"), waiting);
      if (load === this.#loads && !this.#signal.aborted) {
        this.#take(data);
      }
    } catch (error) {
      if (load === this.#loads) {
        this.#fail(error);
      }
    } finally {
      clearTimeout(slow);
    }
  }

  #fail(error: unknown): void {
    this.#state("error");
    this.#say(error instanceof Error ? error.message : String(error), "error");
    this.#schedule();
  }

  #take(data: Data): void {
    const engine = Engine.create(data, { worker: "auto" });
    const viewport = new Viewport(engine.timeline, this.#model.get("axis"), data.header.capacity);
    const mode = modeOf(data, this.#model.get("color_by"));
    const colors = lookupTable(data, mode, this.#theme, CHROME[this.#theme].background);
    const bands = new Bands(data);
    this.#loaded = { data, engine, bands, viewport, mode, colors, table: colors, picture: null };
    const [lo, hi] = this.#model.get("window");
    this.#window = `${lo},${hi}`;
    viewport.show(lo, hi, false);
    const { header } = data;
    this.#toolbar.describe({
      ...header,
      peak: header.peak_allocated,
      ooms: header.oom.length,
      hasTime: header.has_time,
    });
    this.#label(this.#summary(data));
    this.#showTools();
    this.#accent(data);
    this.#legend();
    this.#status("");
    this.#queryChanged();
    this.#resize();
    this.#request("view", "panel");
  }

  #summary({ header }: Data): string {
    const of = header.capacity ? ` of ${bytes(header.capacity)}` : "";
    const peak = `peak ${bytes(header.peak_allocated)}${of} at event ${count(header.peak_event)}`;
    const size = `${count(header.n_events)} events, ${count(header.n_blocks)} blocks`;
    return `Memory timeline of ${header.name || "a recording"}: ${peak}, reserved ${bytes(header.peak_reserved)}, ${size}`;
  }

  get #overview(): Overview | null {
    const overview = this.#model.get("overview");
    return "columns" in overview ? (overview as Overview) : null;
  }

  #describeOverview(): void {
    const overview = this.#overview;
    if (this.#loaded || !overview) {
      return;
    }
    const { device, peak_allocated } = overview;
    const devices = [{ device, peak_allocated }];
    this.#toolbar.describe({ ...overview, devices, peak: peak_allocated, ooms: 0, hasTime: true });
    this.#label(overview.summary || `Memory timeline of ${overview.name}: peak ${bytes(peak_allocated)}`);
    this.#status(`${count(overview.n_events)} events, ${count(overview.n_blocks)} blocks`);
    this.#schedule();
  }

  #label(summary: string): void {
    this.#root.setAttribute("aria-label", summary.slice(0, 600));
  }

  #state(state: "overview" | "loading" | "ready" | "error"): void {
    this.#root.dataset.state = state;
  }

  #say(text: string, kind = ""): void {
    this.#message.hidden = text === "";
    this.#message.dataset.kind = kind;
    this.#message.replaceChildren(h("span", { role: kind === "error" ? "alert" : "status" }, text));
  }

  // ---- size and theme ----

  #observe(): void {
    const observer = new ResizeObserver(() => this.#resize());
    observer.observe(this.#root);
    observer.observe(this.#scene.stage);
    this.#signal.addEventListener("abort", () => observer.disconnect(), { once: true });
    watchTheme(this.#root, () => this.#applyTheme(), this.#signal);
    const watchRatio = (): void => {
      const query = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
      const changed = (): void => {
        this.#resize();
        watchRatio();
      };
      query.addEventListener("change", changed, { once: true, signal: this.#signal });
    };
    watchRatio();
  }

  #resize(): void {
    const { offsetWidth } = this.#root;
    const { clientWidth: width, clientHeight: height } = this.#scene.stage;
    if (offsetWidth === 0 || width === 0 || height === 0) {
      return; // hidden: another tab of the notebook, or a collapsed cell
    }
    this.#root.dataset.narrow = String(offsetWidth < NARROW);
    this.#applyHeight();
    const rows = this.#loaded ? this.#loaded.bands.rows : (this.#overview?.bands ?? 0);
    if (this.#scene.resize(width, height, window.devicePixelRatio || 1, rows)) {
      this.#request("view");
    }
  }

  #applyHeight(): void {
    const height = Math.max(LEAST_HEIGHT, this.#model.get("height") || 0);
    const below = this.#root.dataset.narrow === "true" && this.#panelOpen ? PANEL_BELOW : 0;
    this.#root.style.height = `${height + below}px`;
  }

  #dragHeight(grip: HTMLElement): void {
    let held: { y: number; height: number } | null = null;
    grip.addEventListener("pointerdown", (event) => {
      held = { y: event.clientY, height: Math.max(LEAST_HEIGHT, this.#model.get("height")) };
      grip.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    grip.addEventListener("pointermove", (event) => {
      if (held) {
        this.#push("height", Math.round(Math.max(LEAST_HEIGHT, held.height + event.clientY - held.y)));
      }
    });
    const letGo = (): void => {
      held = null;
    };
    grip.addEventListener("pointerup", letGo);
    grip.addEventListener("pointercancel", letGo);
  }

  #applyTheme(): void {
    this.#theme = chooseTheme(this.#model.get("theme"), this.#root);
    if (this.#root.dataset.theme !== this.#theme) {
      this.#root.dataset.theme = this.#theme;
      this.#recolor();
    }
  }

  #recolor(): void {
    const loaded = this.#loaded;
    this.#showTools();
    if (loaded) {
      loaded.mode = modeOf(loaded.data, this.#model.get("color_by"));
      loaded.colors = lookupTable(loaded.data, loaded.mode, this.#theme, CHROME[this.#theme].background);
      this.#accent(loaded.data);
      this.#shade();
      this.#legend();
    }
    this.#request("panel");
  }

  /** One accent for chrome and data: the data's. */
  #accent({ header }: Data): void {
    this.#root.style.setProperty("--mw-accent", header.palette[this.#theme].accent);
  }

  #legend(): void {
    if (this.#loaded) {
      this.#foot.legend(legendOf(this.#loaded.data, this.#loaded.mode, this.#theme));
    }
  }

  #showTools(): void {
    const colorBy = this.#model.get("color_by");
    this.#toolbar.show({ query: this.#model.get("query"), colorBy, axis: this.#axis, panelOpen: this.#panelOpen });
  }

  // ---- search ----

  #queryChanged(): void {
    this.#showTools();
    clearTimeout(this.#searching);
    this.#searching = setTimeout(async () => {
      const loaded = this.#loaded;
      const result = (await loaded?.engine.search(this.#model.get("query"))) ?? null;
      if (loaded && loaded === this.#loaded) {
        this.#result = result;
        this.#toolbar.hits(result);
        this.#root.dataset.hits = String(result?.blocks ? result.count : "");
        this.#shade();
      }
    }, SEARCH_AFTER);
  }

  #shade(): void {
    if (this.#loaded) {
      const mask = this.#result?.blocks;
      this.#loaded.table = mask ? dimmed(this.#loaded.colors, mask) : this.#loaded.colors;
      this.#request("paint");
    }
  }

  // ---- frames ----

  #request(...parts: Part[]): void {
    for (const part of parts) {
      this.#dirty[part] = true;
    }
    this.#schedule();
  }

  /** One redraw a frame, however often it is asked for. */
  #schedule(): void {
    if (!this.#scheduled && !this.#signal.aborted) {
      this.#scheduled = true;
      requestAnimationFrame((now) => {
        this.#scheduled = false;
        this.#frame(now);
      });
    }
  }

  #frame(now: number): void {
    if (this.#signal.aborted || this.#scene.layout.width === 0) {
      return;
    }
    const loaded = this.#loaded;
    if (!loaded) {
      this.#drawOutline();
      return;
    }
    if (loaded.viewport.gliding) {
      const more = loaded.viewport.step(now);
      this.#dirty.view = true;
      if (more) {
        this.#schedule();
      }
    }
    if (this.#dirty.view && !this.#sweeping) {
      this.#sweep(loaded);
    }
    if (this.#dirty.paint && loaded.picture) {
      this.#dirty.paint = false;
      this.#scene.paint(loaded.picture, loaded.table);
    }
    if (loaded.picture) {
      this.#drawOver(loaded, loaded.picture);
      this.#counted(loaded);
    } else {
      this.#drawOutline();
    }
    if (this.#dirty.panel) {
      this.#dirty.panel = false;
      this.#showPanel(loaded);
    }
  }

  #sweep(loaded: Loaded): void {
    const { width, height } = this.#scene.pixels;
    this.#sweeping = true;
    this.#dirty.view = false;
    this.#saveWindow();
    loaded.engine
      .draw({ ...loaded.viewport.camera, width, height })
      .then((picture) => {
        this.#sweeping = false;
        if (picture && loaded === this.#loaded) {
          loaded.picture = picture;
          this.#request("paint");
        } else {
          this.#schedule();
        }
      })
      .catch((error) => {
        this.#sweeping = false;
        if (loaded === this.#loaded) {
          this.#fail(error);
        }
      });
  }

  /** A frame counts when it shows the window asked for, in full; tests wait for that. */
  #counted(loaded: Loaded): void {
    if (!this.#dirty.view && !this.#sweeping && !loaded.viewport.gliding) {
      this.#draws += 1;
      this.#root.dataset.draws = String(this.#draws);
      if (this.#root.dataset.state !== "ready") {
        this.#state("ready");
        this.#say("");
      }
    }
  }

  #drawOver(loaded: Loaded, picture: Picture): void {
    this.#scene.draw({
      data: loaded.data,
      timeline: loaded.engine.timeline,
      bands: loaded.bands,
      camera: loaded.viewport.camera,
      picture,
      theme: this.#theme,
      moment: this.#model.get("moment") < 0 ? -1 : this.#moment,
      selection: this.#selection,
      hovered: this.#hovered === this.#selection ? -1 : this.#hovered,
      hoveredBand: this.#hoveredBand,
      range: this.#range,
    });
  }

  #drawOutline(): void {
    const overview = this.#overview;
    if (overview) {
      const { accent } = CHROME[this.#theme];
      const top = topOf(overview.peak_allocated, overview.peak_reserved, overview.capacity);
      this.#scene.drawOverview(overview, top, this.#theme, accent);
    } else {
      this.#scene.drawNothing(this.#theme);
    }
  }

  // ---- panel ----

  #context(loaded: Loaded): PanelContext {
    return {
      data: loaded.data,
      timeline: loaded.engine.timeline,
      mode: loaded.mode,
      theme: this.#theme,
      pickSite: (label) => {
        // Quotes part words in a query; what lies between them is looked for as it stands.
        const parts = label.split('"').filter((part) => part.trim() !== "");
        const query = parts.map((part) => `"${part}"`).join(" ");
        this.#push("query", this.#model.get("query") === query ? "" : query);
      },
    };
  }

  #showPanel(loaded: Loaded): void {
    if (!this.#panelOpen) {
      return;
    }
    const block = this.#selection;
    if (this.#range) {
      const totals = loaded.engine.range(...this.#range);
      this.#side.show("Range", rangePanel(this.#context(loaded), totals), "Clear");
    } else if (block >= 0) {
      const color = blockColor(loaded.data, loaded.mode, this.#theme, block);
      this.#side.show("Block", detailPanel(loaded.data, block, color), "Unpin");
    } else {
      const { header } = loaded.data;
      const moment = this.#moment;
      const oom = header.oom.some((each) => each.moment === moment);
      const title = moment === header.peak_event ? "At the peak" : oom ? "Out of memory" : `At moment ${count(moment)}`;
      this.#side.show(title, momentPanel(this.#context(loaded), moment));
    }
  }

  #togglePanel(): void {
    this.#panelOpen = !this.#panelOpen;
    this.#side.toggle(this.#panelOpen);
    this.#showTools();
    this.#applyHeight();
    this.#request("panel");
  }

  #openPanel(): void {
    if (!this.#panelOpen) {
      this.#togglePanel();
    }
  }

  #back(): void {
    if (this.#range) {
      this.#range = null;
      this.#request("panel");
    } else {
      this.#push("selection", -1);
    }
    this.#root.focus({ preventScroll: true });
  }

  #selected(): void {
    const block = this.#selection;
    if (block >= 0 && this.#loaded) {
      this.#openPanel();
      setText(this.#live, `Pinned: ${blockSentence(this.#loaded.data, block)}`);
    }
    this.#request("panel");
  }

  #status(text: string): void {
    const loaded = this.#loaded;
    const rest = loaded ? `${count(loaded.data.n_events)} events, ${count(loaded.data.n_blocks)} blocks` : "";
    this.#foot.status(text || rest);
  }

  #toggleHelp(): void {
    if (this.#help) {
      this.#help.remove();
      this.#help = null;
      this.#root.focus({ preventScroll: true });
    } else {
      this.#help = helpSheet(() => this.#toggleHelp());
      this.#root.append(this.#help);
    }
  }

  // ---- moves ----

  #toPeak(): void {
    if (this.#loaded) {
      this.#goTo(this.#loaded.data.header.peak_event);
    }
  }

  /** The next out of memory after the shown moment; after the last one the first again. */
  #toOom(): void {
    const ooms = this.#loaded?.data.header.oom ?? [];
    const next = ooms.find(({ moment }) => moment > this.#moment) ?? ooms[0];
    if (next) {
      this.#goTo(next.moment);
    }
  }

  #goTo(moment: number): void {
    this.#range = null;
    this.#push("selection", -1);
    this.#push("moment", moment);
    this.#loaded?.viewport.reveal(moment);
    this.#request("view", "panel");
  }

  fit(): void {
    this.#loaded?.viewport.fit();
    this.#request("view");
  }

  pan(dx: number, dy: number): void {
    const { width, height } = this.#scene.layout.plot;
    this.#loaded?.viewport.pan(dx, width, dy, height);
    this.#request("view");
  }

  zoom(x: number, factor: number): void {
    const { plot } = this.#scene.layout;
    const at = Math.max(0, Math.min(x - plot.x, plot.width));
    this.#loaded?.viewport.zoom(at, plot.width, factor);
    this.#request("view");
  }

  zoomBytes(y: number, factor: number): void {
    const { plot } = this.#scene.layout;
    this.#loaded?.viewport.zoomBytes(Math.max(0, Math.min(y - plot.y, plot.height)), plot.height, factor);
    this.#request("view");
  }

  brush(part: "lo" | "hi" | "body", dx: number): void {
    this.#loaded?.viewport.brush(part, dx, this.#scene.layout.minimap.width);
    this.#request("view");
  }

  brushCenter(x: number): void {
    const { minimap } = this.#scene.layout;
    this.#loaded?.viewport.brushCenter(x - minimap.x, minimap.width);
    this.#request("view");
  }

  brushNew(fromX: number, toX: number): void {
    const { minimap } = this.#scene.layout;
    this.#loaded?.viewport.brushNew(fromX - minimap.x, toX - minimap.x, minimap.width);
    this.#request("view");
  }

  range(fromX: number, toX: number): void {
    const loaded = this.#loaded;
    if (loaded) {
      const { plot } = this.#scene.layout;
      const { camera } = loaded.viewport;
      const { nEvents } = loaded.engine.timeline;
      const moment = (x: number): number => {
        const inPlot = Math.max(0, Math.min(x - plot.x, plot.width));
        return Math.min(nEvents, Math.round(xToMoment(loaded.engine.timeline, camera, inPlot, plot.width)));
      };
      this.#range = [moment(Math.min(fromX, toX)), moment(Math.max(fromX, toX))];
      this.#openPanel();
      this.#request("panel");
    }
  }

  // ---- pointer ----

  zoneAt(x: number, y: number): Zone {
    const { layout } = this.#scene;
    if (!this.#loaded) {
      return "none";
    }
    const part = brushPart(layout, this.#loaded.engine.timeline, this.#loaded.viewport.camera, x, y);
    if (part) {
      return this.#loaded.viewport.isWhole && part === "body" ? "minimap-new" : `minimap-${part}`;
    }
    for (const zone of ["plot", "bands", "yAxis", "xAxis"] as const) {
      if (inside(layout[zone], x, y)) {
        return zone;
      }
    }
    return "none";
  }

  #cursor(zone: Zone): void {
    const cursors: Partial<Record<Zone, string>> = {
      plot: "crosshair",
      bands: this.#hoveredBand >= 0 ? "pointer" : "default",
      xAxis: "ew-resize",
      yAxis: "ns-resize",
      "minimap-lo": "ew-resize",
      "minimap-hi": "ew-resize",
      "minimap-body": "grab",
      "minimap-outside": "pointer",
      "minimap-new": "crosshair",
    };
    this.#scene.stage.style.cursor = cursors[zone] ?? "default";
  }

  grabbed(held: boolean): void {
    if (held) {
      this.#scene.stage.style.cursor = "grabbing";
    }
  }

  hover(x: number, y: number): void {
    const loaded = this.#loaded;
    const picture = loaded?.picture;
    if (!loaded || !picture) {
      return;
    }
    const { plot, ratio } = this.#scene.layout;
    const zone = this.zoneAt(x, y);
    const hit = zone === "plot" ? blockAt(picture, (x - plot.x) * ratio, (y - plot.y) * ratio) : null;
    const band =
      zone === "bands" ? loaded.bands.at(x, y, this.#scene.layout, loaded.engine.timeline, picture.view) : -1;
    if (hit?.block !== this.#hovered || band !== this.#hoveredBand) {
      this.#hovered = hit?.block ?? -1;
      this.#hoveredBand = band;
      this.#root.dataset.hovered = String(this.#hovered);
      this.#schedule();
    }
    this.#cursor(zone);
    if (hit) {
      const color = blockColor(loaded.data, loaded.mode, this.#theme, hit.block);
      this.#tooltip.block(loaded.data, hit.block, hit.pending, color, x, y);
    } else if (band >= 0) {
      this.#tooltip.band(loaded.data, loaded.engine.timeline, band, x, y);
    } else {
      this.#tooltip.hide();
    }
    this.#status(zone === "plot" ? this.#columnText(picture, Math.floor((x - plot.x) * ratio)) : "");
  }

  /** What a column shows, for the status line. */
  #columnText(picture: Picture, column: number): string {
    const moment = picture.moments[column];
    const timeline = this.#loaded?.engine.timeline;
    if (moment === undefined || !timeline) {
      return "";
    }
    const time = timeline.hasTime && moment > 0 ? ` · ${duration(timeline.momentToTime(moment))}` : "";
    const reserved = picture.reserved[column] ?? 0;
    const rest = reserved > 0 ? ` · ${bytes(reserved)} reserved` : "";
    return `moment ${count(moment)}${time} · ${bytes(picture.allocated[column] ?? 0)} allocated${rest}`;
  }

  leave(): void {
    this.#hovered = -1;
    this.#hoveredBand = -1;
    this.#root.dataset.hovered = "-1";
    this.#tooltip.hide();
    this.#status("");
    this.#schedule();
  }

  click(x: number, y: number): void {
    const loaded = this.#loaded;
    const picture = loaded?.picture;
    if (!loaded || !picture) {
      return;
    }
    const { plot, ratio } = this.#scene.layout;
    const zone = this.zoneAt(x, y);
    if (zone === "bands") {
      const band = loaded.bands.at(x, y, this.#scene.layout, loaded.engine.timeline, picture.view);
      if (band >= 0) {
        // With a little air, so that one sees where the band begins and ends.
        const lo = loaded.data.band_lo[band] ?? 0;
        const hi = loaded.data.band_hi[band] ?? 0;
        const air = (hi - lo) * 0.04;
        loaded.viewport.show(lo - air, hi + air);
        this.#request("view");
      }
    } else if (zone === "plot") {
      const hit = blockAt(picture, (x - plot.x) * ratio, (y - plot.y) * ratio);
      const moment = picture.moments[Math.floor((x - plot.x) * ratio)] ?? -1;
      this.#range = null;
      this.#cross = yToBytes(picture.view, y - plot.y, plot.height);
      if (moment >= 0) {
        this.#push("moment", moment);
      }
      this.#push("selection", hit && hit.block !== this.#selection ? hit.block : -1);
      this.#request("panel");
    }
  }

  hint(): void {
    this.#hint.dataset.shown = "true";
    clearTimeout(this.#hinting);
    this.#hinting = setTimeout(() => {
      this.#hint.dataset.shown = "false";
    }, HINT_MS);
  }

  // ---- keys ----

  #act(action: Action): boolean {
    if (action === "help") {
      this.#toggleHelp();
      return true;
    }
    if (action === "escape") {
      return this.#escape();
    }
    const loaded = this.#loaded;
    if (!loaded) {
      return false;
    }
    const { plot } = this.#scene.layout;
    const x = plot.x + momentToX(loaded.engine.timeline, loaded.viewport.camera, this.#moment + 0.5, plot.width);
    const middle = x >= plot.x && x <= plot.x + plot.width ? x : plot.x + plot.width / 2;
    const moves: Record<Exclude<Action, "help" | "escape">, () => void> = {
      left: () => this.#step(-1),
      right: () => this.#step(1),
      panLeft: () => this.pan(-plot.width / 4, 0),
      panRight: () => this.pan(plot.width / 4, 0),
      up: () => this.#climb(-1),
      down: () => this.#climb(1),
      zoomIn: () => this.zoom(middle, 0.66),
      zoomOut: () => this.zoom(middle, 1.5),
      taller: () => this.zoomBytes(plot.y + plot.height, 0.66),
      shorter: () => this.zoomBytes(plot.y + plot.height, 1.5),
      fit: () => this.fit(),
      peak: () => this.#toPeak(),
      oom: () => this.#toOom(),
      pin: () => this.#pin(),
      search: () => this.#toolbar.search.select(),
      panel: () => this.#togglePanel(),
    };
    if (action === "search") {
      this.#toolbar.search.focus();
    }
    moves[action]();
    return true;
  }

  /** One thing at a time: the help, the text being typed, the range, the pin, the moment; then the focus. */
  #escape(): boolean {
    if (this.#help) {
      this.#toggleHelp();
    } else if (this.#searchFocused()) {
      this.#push("query", "");
      this.#root.focus({ preventScroll: true });
    } else if (this.#range || this.#selection >= 0) {
      this.#back();
    } else if (this.#hovered >= 0 || this.#model.get("moment") >= 0) {
      this.leave();
      this.#push("moment", -1);
    } else {
      this.#root.blur();
      return false;
    }
    return true;
  }

  #searchFocused(): boolean {
    const scope = this.#root.getRootNode() as Document | ShadowRoot;
    return scope.activeElement === this.#toolbar.search;
  }

  /** By one event; where many share a pixel, by one pixel, so that a key press is always seen. */
  #step(direction: number): void {
    const loaded = this.#loaded;
    if (loaded) {
      const { lo, hi } = loaded.viewport.camera;
      const by = Math.max(1, Math.round((hi - lo) / this.#scene.layout.plot.width));
      const moment = Math.max(0, Math.min(loaded.data.n_events, this.#moment + direction * by));
      this.#push("moment", moment);
      loaded.viewport.reveal(moment, false);
      this.#request("view", "panel");
    }
  }

  /** To the next block above or below in the shown moment's column. */
  #climb(direction: number): void {
    const loaded = this.#loaded;
    const picture = loaded?.picture;
    if (!loaded || !picture) {
      return;
    }
    if (this.#model.get("moment") < 0) {
      this.#push("moment", this.#moment);
    }
    const x = Math.floor(momentToX(loaded.engine.timeline, picture.view, this.#moment + 0.5, picture.width));
    const start =
      this.#cross < 0 ? picture.height - 1 : Math.floor(bytesToY(picture.view, this.#cross, picture.height));
    const from = Math.max(0, Math.min(start, picture.height - 1));
    const here = this.#cross < 0 ? null : blockAt(picture, x, from);
    for (let y = from; y >= 0 && y < picture.height; y += direction) {
      const hit = blockAt(picture, x, y);
      if (hit && hit.block !== here?.block) {
        // To the middle of the block, so that the next step in either direction leaves it.
        let end = y;
        while (blockAt(picture, x, end + direction)?.block === hit.block) {
          end += direction;
        }
        this.#cross = yToBytes(picture.view, (y + end) / 2 + 0.5, picture.height);
        this.#hovered = hit.block;
        this.#root.dataset.hovered = String(hit.block);
        setText(this.#live, blockSentence(loaded.data, hit.block));
        this.#status(`${siteLabel(loaded.data, hit.block)} · ${bytes(loaded.data.size[hit.block] ?? 0)}`);
        break;
      }
    }
    this.#schedule();
  }

  #pin(): void {
    if (this.#hovered < 0) {
      this.#climb(-1);
    }
    if (this.#hovered >= 0) {
      this.#push("selection", this.#hovered === this.#selection ? -1 : this.#hovered);
    }
  }
}
