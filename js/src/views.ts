// The views beside the timeline: which one is shown, what is pinned or pointed at in them, and what the shared panel says
// of it. Owns what they have in common (address map, events); each view owns its own drawing.

import { Addresses, type AddressMap, FREE } from "./addresses.js";
import type { App, Loaded } from "./app.js";
import { SegmentChart, segmentMode } from "./chart_segments.js";
import { blockColor, dimmed, type Legend, legendOf, type Mode } from "./colors.js";
import type { Picture } from "./columns.js";
import { h, setText } from "./dom.js";
import { ACTION_WORDS, EventTable } from "./events.js";
import { blockSentence, siteLabel } from "./facts.js";
import { bytes, count } from "./format.js";
import { Further } from "./further.js";
import type { Action } from "./keys.js";
import type { Layout } from "./layout.js";
import { VIEWS, type ViewName } from "./model.js";
import { detailPanel } from "./panel_detail.js";
import { momentPanel } from "./panel_moment.js";
import { reservedPanel, segmentMask } from "./panel_reserved.js";
import { eventPanel, segmentPanel, stackLabel } from "./panel_segment.js";
import { segmentColor, segmentLegend, segmentTable } from "./segment_colors.js";
import { CHROME, type Theme } from "./theme.js";
import { AllocatorView, blockOfHit, noSegments } from "./view_allocator.js";
import { Viewport } from "./viewport.js";
import { blockName, noStackReason } from "./wire.js";

/** What is pinned or pointed at, where it is no block: those are the trait `selection`. */
type Focus = { kind: "segment"; row: number } | { kind: "event"; event: number };
type Target = Focus | { kind: "block"; block: number };

/** Made when a view first needs them: 100 to 200 ms for a million events. */
interface Shared {
  addresses: Addresses;
  events: EventTable;
  chart: SegmentChart | null;
}

export class Views {
  readonly app: App;
  readonly allocator: AllocatorView;
  /** Over the chart, where there is nothing to draw. */
  readonly #nothing = h("div", { class: "mw-message mw-nothing" }, h("span", { role: "status" }));
  focus: Focus | null = null;
  #preview: Target | null = null;
  #shared: Shared | null = null;
  #of: Loaded | null = null;
  /** The event that the list stands at, where the user chose it; its moment alone does not always tell. */
  #chosen = -1;
  #stale = true;
  #shownView: ViewName | "" = "";
  #timelineViewport: Viewport | null = null;

  constructor(app: App) {
    this.app = app;
    this.allocator = new AllocatorView(
      {
        chooseEvent: (event) => this.choose(event),
        hoverEvent: (event) => this.#point(event < 0 ? null : this.#targetOf(event)),
        hoverMap: (hit, map, x, y) => this.#overMap(hit, map, x, y),
        clickMap: (hit, map) => {
          const block = blockOfHit(hit, map);
          this.#pin(
            block >= 0
              ? { kind: "block", block }
              : hit
                ? { kind: "segment", row: map.segment_row[hit.segment] as number }
                : null,
          );
        },
        find: (text) => this.#find(text),
      },
      app.signal,
    );
    this.allocator.element.hidden = true;
    const observer = new ResizeObserver(() => {
      this.allocator.resize();
      this.refresh();
    });
    observer.observe(this.allocator.map.element);
    app.signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  }

  get view(): ViewName {
    const view = this.app.model.get("view");
    return (VIEWS as readonly string[]).includes(view) ? (view as ViewName) : "timeline";
  }

  /** Whether the drawing of blocks or segments over time is on screen. */
  get isChart(): boolean {
    return this.view === "timeline" || this.view === "segments";
  }

  get isSegments(): boolean {
    return this.view === "segments";
  }

  // ---- which view ----

  /** The data is new, or the view is another. */
  changed(): void {
    const { app, view } = this;
    app.root.dataset.view = view;
    app.toolbar.tab(view);
    const { loaded } = app;
    const focused = (app.root.getRootNode() as Document | ShadowRoot).activeElement;
    // Until the data is there, the outline and the messages stand where the chart will be.
    app.scene.stage.hidden = loaded !== null && !this.isChart;
    this.allocator.element.hidden = !loaded || view !== "allocator";
    app.further.changed(view, loaded);
    if (focused !== app.root && app.root.contains(focused) && focused?.closest("[hidden]")) {
      app.root.focus({ preventScroll: true });
    }
    app.root.querySelector(".mw-body")?.setAttribute("aria-label", view);
    app.tooltip.hide();
    const stage = view === "allocator" ? this.allocator.stage : view === "live" ? app.further.stage : undefined;
    (stage ?? app.scene.stage).append(app.tooltip.element);
    if (!loaded) {
      return;
    }
    if (this.#of !== loaded) {
      this.#of = loaded;
      this.#shared = null;
      this.focus = null;
      this.#chosen = -1;
      this.#shownView = "";
      this.#timelineViewport = loaded.viewport;
    }
    this.#sayNothing(loaded);
    const was = this.#shownView;
    this.#shownView = view;
    if (this.isChart && was !== view) {
      this.#swapChart(loaded, was === "");
    }
    if (view === "allocator" && was !== view) {
      this.allocator.take({ ...this.#need(loaded), data: loaded.data, timeline: loaded.engine.timeline });
    }
    app.hovered = -1;
    this.#preview = null;
    app.legend();
    this.refresh();
    app.sizing.resize();
    app.frames.request("view", "panel");
  }

  /** Where a chart has nothing to draw: why. */
  #sayNothing({ data }: Loaded): void {
    const drawn = this.isSegments ? data.seg_size.length : data.n_blocks;
    const { no_history } = data.header;
    const why = this.isSegments && drawn === 0 ? noSegments(data) : no_history;
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
    if (this.isSegments) {
      const { strata } = this.#need(loaded, true).chart;
      loaded.viewport = new Viewport(strata.timeline, app.axis, loaded.data.header.capacity);
      loaded.chart = { timeline: strata.timeline, draw: async (view) => strata.draw(view) };
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

  events(loaded: Loaded): EventTable {
    return this.#need(loaded).events;
  }

  #need(loaded: Loaded, chart: true): Shared & { chart: SegmentChart };
  #need(loaded: Loaded): Shared;
  #need(loaded: Loaded, chart = false): Shared {
    if (!this.#shared) {
      const addresses = new Addresses(loaded.data, loaded.engine.timeline);
      this.#shared = { addresses, events: new EventTable(loaded.data, addresses), chart: null };
    }
    if (chart) {
      this.#shared.chart ??= new SegmentChart(loaded.data, loaded.engine.timeline, this.#shared.addresses);
    }
    return this.#shared;
  }

  // ---- the moment, the event, what is pinned ----

  /** The event that the list stands at. */
  get event(): number {
    const { moment } = this.app;
    const { loaded } = this.app;
    if (this.#chosen >= 0 && (this.#chosen === moment - 1 || this.#chosen === moment)) {
      return this.#chosen;
    }
    // A failed allocation is looked at as the request met it, before its event.
    return loaded?.data.header.oom.some((each) => each.moment === moment) ? moment : moment - 1;
  }

  #targetOf(event: number): Target {
    const { events } = this.#need(this.app.loaded as Loaded);
    const { block, segment } = events.facts(event);
    return block >= 0
      ? { kind: "block", block }
      : segment >= 0
        ? { kind: "segment", row: segment }
        : { kind: "event", event };
  }

  /** To an event of the list: the state after it, for a failed allocation the state that it met. */
  choose(event: number): void {
    const { app } = this;
    if (!app.loaded || event < 0) {
      return;
    }
    const { events } = this.#need(app.loaded);
    this.#chosen = event;
    const failed = events.action(event) === "oom";
    app.push("moment", failed ? event : event + 1);
    this.#pin(this.#targetOf(event), true);
    setText(app.live, `Event ${count(event)}, ${ACTION_WORDS[events.action(event)]}, ${events.facts(event).name}`);
  }

  #pin(target: Target | null, scroll = false): void {
    const { app } = this;
    app.marked = null;
    this.#preview = null;
    const same = target && JSON.stringify(target) === JSON.stringify(this.#pinned());
    const wanted = same && !scroll ? null : target;
    this.focus = wanted && wanted.kind !== "block" ? wanted : null;
    app.push("selection", wanted?.kind === "block" ? wanted.block : -1);
    if (wanted) {
      app.openPanel();
    }
    this.refresh();
    if (scroll) {
      this.allocator.reveal(app.selection, this.#focusRow);
    }
    app.frames.request("panel");
  }

  #pinned(): Target | null {
    const block = this.app.selection;
    return block >= 0 ? { kind: "block", block } : this.focus;
  }

  get #focusRow(): number {
    return this.focus?.kind === "segment" ? this.focus.row : -1;
  }

  /** Takes the pin off; false where there was none of this sort. */
  unfocus(): boolean {
    const had = this.focus !== null;
    this.focus = null;
    this.refresh();
    this.app.frames.request("panel");
    return had;
  }

  /** The selection was set, here or from Python: a block takes the place of a segment. */
  selected(): void {
    if (this.app.selection >= 0) {
      this.focus = null;
    }
    this.refresh();
  }

  #point(target: Target | null): void {
    if (JSON.stringify(target) !== JSON.stringify(this.#preview)) {
      this.#preview = target;
      if (!this.isChart) {
        this.app.root.dataset.hovered = String(target?.kind === "block" ? target.block : -1);
      }
      this.app.frames.request("panel");
    }
  }

  #overMap(hit: { segment: number; stretch: number } | null, map: AddressMap, x: number, y: number): void {
    const { app } = this;
    const { loaded } = app;
    if (!hit || !loaded) {
      app.tooltip.hide();
      this.#point(null);
      return;
    }
    const block = blockOfHit(hit, map);
    const row = map.segment_row[hit.segment] as number;
    const { addresses } = this.#need(loaded);
    const top = this.allocator.map.element.offsetTop;
    if (block >= 0) {
      const { data } = loaded;
      const pending = map.state[hit.stretch] !== 0;
      const rounding = (data.size[block] as number) - (data.requested[block] as number);
      app.tooltip.lines(
        `map block ${block} ${pending}`,
        x,
        y + top,
        blockColor(data, loaded.mode, app.theme, block),
        siteLabel(data, block),
        [
          `${bytes(data.size[block] as number)}${rounding > 0 ? `, ${bytes(rounding)} of it rounding` : ""} · ${blockName(data, block)}`,
          pending ? "freed by the program, waiting for another stream" : "",
          noStackReason(data, block),
        ],
      );
    } else {
      const free =
        hit.stretch >= 0 && map.state[hit.stretch] === FREE ? `${bytes(map.size[hit.stretch] as number)} free` : "";
      const pool = map.segment_pool[hit.segment] as number;
      const kept = pool >= 0 && loaded.data.header.pools[pool] !== "default";
      app.tooltip.lines(`map hole ${hit.segment} ${hit.stretch} ${map.moment}`, x, y + top, "", free || "Segment", [
        `in ${addresses.segmentName(row)}, ${bytes(map.segment_size[hit.segment] as number)}`,
        kept ? "for its private pool alone" : "",
        `made by ${stackLabel(loaded.data, loaded.data.seg_stack[row] as number)}`,
      ]);
    }
    this.#point(block >= 0 ? { kind: "block", block } : { kind: "segment", row });
  }

  async #find(text: string): Promise<((event: number) => boolean) | null> {
    const { loaded } = this.app;
    const found = await loaded?.engine.search(text);
    if (!loaded || !found?.blocks) {
      return null;
    }
    const { blocks } = found;
    const { events } = this.#need(loaded);
    const wanted = text.toLowerCase().replace(/^0x/, "");
    return (event) => {
      const block = events.block(event);
      if (block >= 0) {
        return blocks[block] === 1;
      }
      const { name, stack } = events.facts(event);
      return event >= 0 && (name.includes(wanted) || stackLabel(loaded.data, stack).toLowerCase().includes(wanted));
    };
  }

  // ---- drawing ----

  /** The map is out of date. */
  refresh(): void {
    this.#stale = true;
    this.app.further.refresh();
    this.app.frames.schedule();
  }

  /** One frame of a view that is no chart; false where the chart is shown. */
  frame(loaded: Loaded): boolean {
    if (this.isChart) {
      return false;
    }
    if (this.view === "allocator" && this.#stale && this.#of === loaded) {
      this.#stale = false;
      const { app } = this;
      const look = { table: loaded.table, theme: app.theme, block: app.selection, segment: this.#focusRow };
      this.allocator.show(app.moment, this.event, look);
      app.root.dataset.event = String(this.event);
    }
    this.app.further.frame(loaded, this.view);
    return true;
  }

  // ---- the chart, of blocks or of segments ----

  table(loaded: Loaded, theme: Theme): Uint32Array {
    const { data } = loaded;
    const table = segmentTable(data, this.#mode, theme, CHROME[theme].background);
    const mask = segmentMask(data, this.#need(loaded).addresses, this.app.model.get("query"));
    return mask ? dimmed(table, mask) : table;
  }

  get #mode(): Mode {
    return segmentMode(this.app.model.get("color_by"));
  }

  /** What the colours mean; the further views have those of call sites, each beside its name. */
  legend(loaded: Loaded): Legend {
    if (Further.has(this.view)) {
      return { ramp: false, entries: [] };
    }
    return this.isSegments
      ? segmentLegend(loaded.data, this.#mode, this.app.theme)
      : legendOf(loaded.data, loaded.mode, this.app.theme);
  }

  /** In the colours of phases the strips are a legend too. */
  bandColors({ data, mode }: Loaded): readonly string[] | null {
    return mode === "phase" && !this.isSegments ? data.header.palette[this.app.theme].phase : null;
  }

  /** What the outline of the chart is around. */
  get outlined(): number {
    return this.isSegments ? this.#focusRow : this.app.selection;
  }

  /** Says what a layer of the chart is. */
  overChart(row: number, x: number, y: number): void {
    const { app } = this;
    const loaded = app.loaded as Loaded;
    const { head, rest } = this.#need(loaded, true).chart.lines(row);
    const color = segmentColor(loaded.data, this.#mode, app.theme, row);
    app.tooltip.lines(`segment ${row}`, x, y, color, head, rest);
    this.#point({ kind: "segment", row });
  }

  /** Nothing is pointed at any more. */
  leave(): void {
    this.#point(null);
  }

  pinChart(row: number): void {
    this.#pin(row >= 0 ? { kind: "segment", row } : null);
  }

  sentence(id: number): string {
    const loaded = this.app.loaded as Loaded;
    return this.isSegments ? this.#need(loaded, true).chart.sentence(id) : blockSentence(loaded.data, id);
  }

  status(id: number): string {
    const { data } = this.app.loaded as Loaded;
    return this.isSegments ? this.sentence(id) : `${siteLabel(data, id)} · ${bytes(data.size[id] ?? 0)}`;
  }

  drawPools(context: CanvasRenderingContext2D, layout: Layout, picture: Picture): void {
    if (this.isSegments) {
      this.#shared?.chart?.draw(context, layout, picture, this.app.theme);
    }
  }

  // ---- the panel and the keys ----

  /** Fills the shared panel; false where the app's own rule holds. */
  showPanel(loaded: Loaded): boolean {
    const { app } = this;
    if (!this.#preview && !this.focus && app.further.showPanel(loaded, this.view)) {
      return true;
    }
    const target = this.#preview ?? (app.selection >= 0 ? null : this.focus);
    if (!target && this.isSegments && app.selection < 0) {
      const { data } = loaded;
      const context = {
        data,
        addresses: this.#need(loaded).addresses,
        // Lines have one colour in every view; other ways of colouring say nothing of a line.
        colorOf: (row: number): string => segmentColor(data, "site", app.theme, row),
        pickSite: app.context(loaded).pickSite,
      };
      app.side.show(`At moment ${count(app.moment)}`, reservedPanel(context, app.moment));
      return true;
    }
    if (!target || (this.view === "timeline" && !this.focus)) {
      return false;
    }
    const { addresses, events } = this.#need(loaded);
    const back = this.#preview ? "" : "Unpin";
    if (target.kind === "block") {
      const color = blockColor(loaded.data, loaded.mode, app.theme, target.block);
      app.side.show("Block", detailPanel(loaded.data, target.block, color), back);
    } else if (target.kind === "segment") {
      const color = segmentColor(loaded.data, this.#mode, app.theme, target.row);
      app.side.show("Segment", segmentPanel(loaded.data, addresses, target.row, app.moment, color), back);
    } else {
      const failed = events.action(target.event) === "oom";
      const panel = eventPanel(loaded.data, events, target.event);
      const content = failed
        ? h("div", { class: "mw-failed" }, panel, momentPanel(app.context(loaded), target.event))
        : panel;
      app.side.show(failed ? "Out of memory" : `Event ${count(target.event)}`, content, back);
    }
    return true;
  }

  /** Keys that only some views have; undefined: not one of them. */
  act(action: Action): boolean | undefined {
    const taken = this.app.further.act(this.view, action);
    if (taken !== undefined || action === "escape") {
      return taken;
    }
    if (this.isChart) {
      return ["pageUp", "pageDown", "last", "mark"].includes(action) ? false : undefined;
    }
    if (this.view === "live" && (action === "left" || action === "right")) {
      return undefined;
    }
    const { events, map } = this.allocator;
    const steps: Partial<Record<Action, () => void>> = {
      left: () => events.step(-1),
      right: () => events.step(1),
      up: () => events.step(-1),
      down: () => events.step(1),
      panLeft: () => events.step("pageUp"),
      panRight: () => events.step("pageDown"),
      pageUp: () => events.step("pageUp"),
      pageDown: () => events.step("pageDown"),
      fit: () => events.step("first"),
      last: () => events.step("last"),
      zoomIn: () => map.zoom(1.5),
      zoomOut: () => map.zoom(1 / 1.5),
    };
    if (["help", "escape", "peak", "oom", "search", "panel"].includes(action)) {
      return undefined;
    }
    if (this.view !== "allocator" || !steps[action]) {
      return false;
    }
    steps[action]();
    return true;
  }
}
