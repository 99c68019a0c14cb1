// The Allocator and Segments views: what is pinned or pointed at in them, and what the shared panel says of it. Owns what
// they have in common (address map, events, the event that the list stands at); each view owns its own drawing.

import { Addresses, type AddressMap, FREE } from "./addresses.js";
import type { App, Loaded } from "./app.js";
import { SegmentChart, segmentMode } from "./chart_segments.js";
import { blockColor, dimmed, type Legend, type Mode } from "./colors.js";
import type { Picture } from "./columns.js";
import { h, setText } from "./dom.js";
import { ACTION_WORDS, EventTable } from "./events.js";
import { siteLabel } from "./facts.js";
import { bytes, count } from "./format.js";
import type { Action } from "./keys.js";
import type { Layout } from "./layout.js";
import type { ViewName } from "./model.js";
import { detailPanel } from "./panel_detail.js";
import { momentPanel } from "./panel_moment.js";
import { reservedPanel, segmentMask } from "./panel_reserved.js";
import { eventPanel, segmentPanel, stackLabel } from "./panel_segment.js";
import { segmentColor, segmentLegend, segmentTable } from "./segment_colors.js";
import { CHROME, type Theme } from "./theme.js";
import { AllocatorView, blockOfHit, noSegments } from "./view_allocator.js";
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

export class SegmentViews {
  readonly app: App;
  readonly allocator: AllocatorView;
  focus: Focus | null = null;
  #preview: Target | null = null;
  #shared: Shared | null = null;
  #of: Loaded | null = null;
  /** The event that the list stands at, where the user chose it; its moment alone does not always tell. */
  #chosen = -1;
  #stale = true;
  /** The data that the list and the map were given. */
  #taken: Loaded | null = null;

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
      app.views.refresh();
    });
    observer.observe(this.allocator.map.element);
    app.signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  }

  // ---- the data ----

  /** The data is new, or the view is another. */
  changed(view: ViewName, loaded: Loaded | null): void {
    this.allocator.element.hidden = !loaded || view !== "allocator";
    if (!loaded) {
      return;
    }
    if (this.#of !== loaded) {
      this.#of = loaded;
      this.#shared = null;
      this.focus = null;
      this.#chosen = -1;
    }
    if (view === "allocator" && this.#taken !== loaded) {
      this.#taken = loaded;
      this.allocator.take({ ...this.#need(loaded), data: loaded.data, timeline: loaded.engine.timeline });
    }
    this.#preview = null;
  }

  /** Why there is nothing to draw; empty where there is something. */
  nothing({ data }: Loaded): string {
    return data.seg_size.length === 0 ? noSegments(data) : "";
  }

  /** What draws segments over time, and the course that it draws. */
  chart(loaded: Loaded): Loaded["chart"] {
    const { strata } = this.#need(loaded, true).chart;
    return { timeline: strata.timeline, draw: async (view) => strata.draw(view) };
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
      app.panels.toggle(true);
    }
    app.views.refresh();
    if (scroll) {
      this.allocator.reveal(app.selection, this.focusRow);
    }
    app.frames.request("panel");
  }

  #pinned(): Target | null {
    const block = this.app.selection;
    return block >= 0 ? { kind: "block", block } : this.focus;
  }

  get focusRow(): number {
    return this.focus?.kind === "segment" ? this.focus.row : -1;
  }

  /** Takes the pin off; false where there was none of this sort. */
  unfocus(): boolean {
    const had = this.focus !== null;
    this.focus = null;
    this.app.views.refresh();
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
      if (!this.app.views.isChart) {
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
  }

  /** One frame of the map. */
  frame(loaded: Loaded): void {
    const { app } = this;
    if (this.#stale && this.#of === loaded) {
      this.#stale = false;
      const look = { table: loaded.table, theme: app.theme, block: app.selection, segment: this.focusRow };
      this.allocator.show(app.moment, this.event, look);
      app.root.dataset.event = String(this.event);
    }
  }

  // ---- the chart of segments ----

  table(loaded: Loaded, theme: Theme): Uint32Array {
    const { data } = loaded;
    const table = segmentTable(data, this.#mode, theme, CHROME[theme].background);
    const mask = segmentMask(data, this.#need(loaded).addresses, this.app.model.get("query"));
    return mask ? dimmed(table, mask) : table;
  }

  get #mode(): Mode {
    return segmentMode(this.app.model.get("color_by"));
  }

  legend({ data }: Loaded): Legend {
    return segmentLegend(data, this.#mode, this.app.theme);
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

  sentence(row: number): string {
    return this.#need(this.app.loaded as Loaded, true).chart.sentence(row);
  }

  drawPools(context: CanvasRenderingContext2D, layout: Layout, picture: Picture): void {
    this.#shared?.chart?.draw(context, layout, picture, this.app.theme);
  }

  // ---- the panel and the keys ----

  /** What the panel is to tell of before all else, pointed at or pinned. */
  get target(): Target | null {
    return this.#preview ?? this.focus;
  }

  /** Fills the shared panel; false where the app's own rule holds. */
  showPanel(loaded: Loaded): boolean {
    const { app } = this;
    const target = this.#preview ?? (app.selection >= 0 ? null : this.focus);
    if (!target && this.app.views.isSegments && app.selection < 0) {
      const { data } = loaded;
      const context = {
        data,
        addresses: this.#need(loaded).addresses,
        // Lines have one colour in every view; other ways of colouring say nothing of a line.
        colorOf: (row: number): string => segmentColor(data, "site", app.theme, row),
        pickSite: app.panels.context(loaded).pickSite,
      };
      app.side.show(`At moment ${count(app.moment)}`, reservedPanel(context, app.moment));
      return true;
    }
    if (!target || (app.views.view === "timeline" && !this.focus)) {
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
        ? h("div", { class: "mw-failed" }, panel, momentPanel(app.panels.context(loaded), target.event).element)
        : panel;
      app.side.show(failed ? "Out of memory" : `Event ${count(target.event)}`, content, back);
    }
    return true;
  }

  /** Keys of the Allocator view; false: not one of them. */
  act(action: Action): boolean {
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
    steps[action]?.();
    return steps[action] !== undefined;
  }
}
