// Which view is shown: the timeline, or one of those whose code comes in a file of its own. Owns when that code is asked
// for, what stands in the view's place until it is there, and what the chart is a chart of.

import type { App, Loaded } from "./app.js";
import { type Legend, legendOf } from "./colors.js";
import { h, setText } from "./dom.js";
import { blockSentence, siteLabel } from "./facts.js";
import { bytes } from "./format.js";
import { Further } from "./further.js";
import type { Action } from "./keys.js";
import type { More } from "./link.js";
import { VIEWS, type ViewName } from "./model.js";
import type { SegmentViews } from "./segment_views.js";
import { Viewport } from "./viewport.js";

/** A message about loading would only flicker when data or code come sooner, ms. */
export const LOADING_AFTER = 500;
/** Keys that mean the same in every view. */
const EVERYWHERE: readonly Action[] = ["help", "escape", "peak", "oom", "search", "panel"];

export class Views {
  readonly app: App;
  /** The Allocator and Segments views, once their code is there. */
  segments: SegmentViews | null = null;
  /** Over the chart, where there is nothing to draw. */
  readonly #nothing = h("div", { class: "mw-message mw-nothing" }, h("span", { role: "status" }));
  #asked = false;
  #hidden = false;
  #slow: ReturnType<typeof setTimeout> | undefined;
  #of: Loaded | null = null;
  #shownView: ViewName | "" = "";
  #timelineViewport: Viewport | null = null;

  constructor(app: App) {
    this.app = app;
    app.signal.addEventListener("abort", () => clearTimeout(this.#slow), { once: true });
  }

  get view(): ViewName {
    const view = this.app.model.get("view");
    return (VIEWS as readonly string[]).includes(view) ? (view as ViewName) : "timeline";
  }

  /** Whether the code of the view is still to come; the outline holds its place. */
  get isWaiting(): boolean {
    return this.view !== "timeline" && !this.segments;
  }

  /** Whether the drawing of blocks or segments over time is on screen. */
  get isChart(): boolean {
    return this.view === "timeline" || this.isSegments;
  }

  get isSegments(): boolean {
    return this.view === "segments" && this.segments !== null;
  }

  // ---- the code ----

  /** Asks for the code of the other views, once. */
  need(): void {
    const { app } = this;
    if (this.#asked || app.signal.aborted) {
      return;
    }
    this.#asked = true;
    app.source.more().then(
      (code) => app.signal.aborted || this.#make(code),
      (error) => {
        this.#asked = false;
        if (this.isWaiting && app.loaded) {
          clearTimeout(this.#slow);
          const why = error instanceof Error ? error.message : String(error);
          app.fail(new Error(`This view could not be loaded: ${why}`));
        }
      },
    );
  }

  #make(code: More): void {
    const { app } = this;
    this.segments = new code.SegmentViews(app);
    app.further.element.before(this.segments.allocator.element);
    app.further.make(code);
    this.changed();
  }

  /** What stands in a view's place until its code is there: the outline, and after a while a word. */
  #wait(loaded: Loaded | null): void {
    clearTimeout(this.#slow);
    if (this.isWaiting) {
      this.need();
      this.#slow = setTimeout(() => this.app.loaded && this.app.say("Loading this view."), LOADING_AFTER);
    } else if (loaded) {
      this.app.say("");
    }
  }

  // ---- which view ----

  /** The data is new, or the view is another, or its code has come. */
  changed(): void {
    const { app, view } = this;
    app.root.dataset.view = view;
    app.toolbar.tab(view);
    const { loaded } = app;
    const focused = (app.root.getRootNode() as Document | ShadowRoot).activeElement;
    // Until data and code are there, the outline and the messages stand where the view will be.
    app.scene.stage.hidden = loaded !== null && !this.isWaiting && !this.isChart;
    this.#wait(loaded);
    this.segments?.changed(view, loaded);
    app.further.changed(view, loaded);
    if (focused !== app.root && app.root.contains(focused) && focused?.closest("[hidden]")) {
      app.root.focus({ preventScroll: true });
    }
    app.root.querySelector(".mw-body")?.setAttribute("aria-label", view);
    app.tooltip.hide();
    const stage =
      view === "allocator" ? this.segments?.allocator.stage : view === "live" ? app.further.stage : undefined;
    (stage ?? app.scene.stage).append(app.tooltip.element);
    if (!loaded) {
      return;
    }
    if (this.#of !== loaded) {
      this.#of = loaded;
      this.#shownView = "";
      this.#timelineViewport = loaded.viewport;
    }
    this.#sayNothing(loaded);
    const was = this.#shownView;
    if (this.isWaiting) {
      // Nothing of another view's picture is to be hovered or clicked.
      loaded.picture = null;
      this.#shownView = "";
    } else {
      this.#shownView = view;
      if (this.isChart && was !== view) {
        this.#swapChart(loaded, was === "");
      }
    }
    app.hovered = -1;
    app.legend();
    this.refresh();
    app.sizing.resize();
    app.frames.request("view", "panel");
  }

  /** Where a chart has nothing to draw: why. */
  #sayNothing(loaded: Loaded): void {
    const { n_blocks, seg_size, header } = loaded.data;
    const drawn = this.isSegments ? seg_size.length : n_blocks;
    const why = (this.isSegments && this.segments?.nothing(loaded)) || header.no_history;
    const { stage } = this.app.scene;
    stage.dataset.empty = String(drawn === 0 && why !== "");
    setText(this.#nothing.firstElementChild as HTMLElement, `${why.charAt(0).toUpperCase()}${why.slice(1)}.`);
    if (why === "") {
      this.#nothing.remove();
    } else {
      stage.append(this.#nothing);
    }
  }

  /** The chart draws blocks or segments: another camera upright, other colours, the same moments. */
  #swapChart(loaded: Loaded, fresh: boolean): void {
    const { app } = this;
    const [lo, hi] = app.model.get("window");
    if (this.isSegments && this.segments) {
      loaded.chart = this.segments.chart(loaded);
      loaded.viewport = new Viewport(loaded.chart.timeline, app.axis, loaded.data.header.capacity);
    } else {
      if (fresh && this.#timelineViewport === loaded.viewport) {
        return;
      }
      loaded.viewport = this.#timelineViewport as Viewport;
      loaded.viewport.axis(app.axis);
      loaded.chart = { timeline: loaded.engine.timeline, draw: (view) => loaded.engine.draw(view) };
    }
    loaded.picture = null;
    loaded.viewport.show(lo, hi, false);
    app.marked = null;
    app.cross = -1;
    app.recolor();
  }

  // ---- drawing ----

  /** What is beside the chart is out of date. */
  refresh(): void {
    this.segments?.refresh();
    this.app.further.refresh();
    this.app.frames.schedule();
  }

  /** One frame of a view that is no chart; false where a chart or the outline is shown. */
  frame(loaded: Loaded): boolean {
    if (this.isChart || this.isWaiting) {
      return false;
    }
    if (this.app.root.offsetWidth === 0) {
      // Nothing can be measured. JupyterLab hides outputs for less than a frame when it changes its theme: too short for
      // an observer of sizes, which sees all longer ones.
      if (!this.#hidden) {
        this.#hidden = true;
        this.app.frames.schedule();
      }
      return true;
    }
    this.#hidden = false;
    if (this.view === "allocator") {
      this.segments?.frame(loaded);
    }
    this.app.further.frame(loaded, this.view);
    return true;
  }

  /** What the colours mean; the further views have those of call sites, each beside its name. */
  legend(loaded: Loaded): Legend {
    if (this.isWaiting || Further.has(this.view)) {
      return { ramp: false, entries: [] };
    }
    return this.isSegments && this.segments
      ? this.segments.legend(loaded)
      : legendOf(loaded.data, loaded.mode, this.app.theme);
  }

  /** In the colours of phases the strips are a legend too. */
  bandColors({ data, mode }: Loaded): readonly string[] | null {
    return mode === "phase" && !this.isSegments ? data.header.palette[this.app.theme].phase : null;
  }

  /** What the outline of the chart is around. */
  get outlined(): number {
    return this.isSegments && this.segments ? this.segments.focusRow : this.app.selection;
  }

  sentence(id: number): string {
    const loaded = this.app.loaded as Loaded;
    return this.isSegments && this.segments ? this.segments.sentence(id) : blockSentence(loaded.data, id);
  }

  status(id: number): string {
    const { data } = this.app.loaded as Loaded;
    return this.isSegments ? this.sentence(id) : `${siteLabel(data, id)} · ${bytes(data.size[id] ?? 0)}`;
  }

  // ---- the panel and the keys ----

  /** Fills the shared panel, or leaves it as it is until the view is there; false where the app's own rule holds. */
  showPanel(loaded: Loaded): boolean {
    const { segments, view } = this;
    if (this.isWaiting) {
      return true;
    }
    return (!segments?.target && this.app.further.showPanel(loaded, view)) || (segments?.showPanel(loaded) ?? false);
  }

  /** Keys that only some views have; undefined: not one of them. */
  act(action: Action): boolean | undefined {
    const { view } = this;
    if (this.isWaiting) {
      return EVERYWHERE.includes(action) ? undefined : false;
    }
    const taken = this.app.further.act(view, action);
    if (taken !== undefined || action === "escape") {
      return taken;
    }
    if (this.isChart) {
      return ["pageUp", "pageDown", "last", "mark"].includes(action) ? false : undefined;
    }
    if (EVERYWHERE.includes(action) || (view === "live" && (action === "left" || action === "right"))) {
      return undefined;
    }
    return view === "allocator" && this.segments ? this.segments.act(action) : false;
  }
}
