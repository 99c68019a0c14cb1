// Two recordings on one page: two timelines under one camera and one scale of bytes, and the table of what differs. Owns
// the shared camera, which blocks are lit (those of the lines that differ, or of one line), and the words around them.
//
//     before |▁▂▅▇▅▂|   where the user is in the first recording is where they are in the second: by the parts of their
//     after  |▁▂▃▄▃▂|   steps where both have equally many, else by the part of all events

import { Bands } from "./bands.js";
import type { Camera } from "./camera.js";
import { blockColor, dimmed, lookupTable } from "./colors.js";
import type { Picture } from "./columns.js";
import { CompareTable, changeWords, type Difference, type Told } from "./compare_table.js";
import { button, h, name, setText } from "./dom.js";
import { Engine } from "./engine.js";
import { NO_SITE, siteLabel, stackSite } from "./facts.js";
import { bytes, bytesExact, count } from "./format.js";
import { attach, type Intents, type Zone } from "./interact.js";
import { type Action, attachKeys } from "./keys.js";
import { inside } from "./layout.js";
import { alignment } from "./link_steps.js";
import type { ThemeChoice } from "./model.js";
import { blockAt } from "./pick.js";
import { Scene } from "./scene.js";
import { CHROME, chooseTheme, type Theme, watchTheme } from "./theme.js";
import { Tooltip } from "./tooltip.js";
import { topOf } from "./viewport.js";
import { type Data, stringAt } from "./wire.js";

export interface CompareSource {
  told(waiting: () => void): Promise<Told>;
  /** 0: before, 1: after. */
  load(side: number, waiting: () => void): Promise<Data>;
}

/** Closer than this part of the recording nobody looks. */
const LEAST = 1e-7;
class Side {
  readonly scene = new Scene();
  readonly caption = h("div", { class: "mw-compare-caption" });
  readonly element = h("div", { class: "mw-compare-side" }, this.caption, this.scene.stage);
  data: Data | null = null;
  engine: Engine | null = null;
  bands: Bands | null = null;
  picture: Picture | null = null;
  table: Uint32Array = new Uint32Array(0);
  hovered = -1;
  busy = false;
  dirty = true;
}

export class Compare {
  readonly root: HTMLElement;
  readonly #sides = [new Side(), new Side()] as const;
  readonly #tooltip = new Tooltip();
  readonly #totals = h("div", { class: "mw-compare-totals" });
  readonly #table: CompareTable;
  readonly #message = h("p", { class: "mw-note mw-place", role: "status" }, "Loading both recordings.");
  readonly #all = button("light all", "Light all blocks, or those of the lines that differ", "mw-segment");
  readonly #signal: AbortSignal;
  readonly #choice: ThemeChoice;
  #theme: Theme = "light";
  #told: Told | null = null;
  /** The row whose blocks are lit. */
  #picked: Difference | null = null;
  #everything = false;
  /** Parts of the first recording, and bytes. */
  #lo = 0;
  #hi = 1;
  #top = 1;
  #bottom = 0;
  #highest = 1;
  #align: (part: number) => number = (part) => part;
  #draws = 0;

  constructor(
    el: HTMLElement,
    source: CompareSource,
    options: { theme: ThemeChoice; height: number },
    signal: AbortSignal,
  ) {
    this.#signal = signal;
    this.#choice = options.theme;
    this.#table = new CompareTable(
      (row) => this.#pick(row === this.#picked ? null : row),
      (row) => this.#color(row),
    );
    const fit = button("Fit", "Show everything (double click)");
    fit.addEventListener("click", () => this.#fit());
    this.#all.addEventListener("click", () => {
      this.#everything = !this.#everything;
      this.#picked = null;
      this.#shade();
      this.#list();
    });
    const drawings = h(
      "div",
      { class: "mw-compare-drawings" },
      ...this.#sides.map((side) => side.element),
      this.#message,
    );
    this.root = h(
      "section",
      {
        class: "memwidget mw-compare",
        "data-testid": "memwidget-compare",
        "data-state": "loading",
        "data-draws": 0,
        "data-lm-suppress-shortcuts": "true",
        tabindex: "0",
        role: "application",
        "aria-label": "Comparison of two recordings of memory",
        style: `height:${Math.max(360, options.height)}px`,
      },
      h("header", { class: "mw-header" }, this.#totals, h("div", { class: "mw-tools" }, this.#all, fit)),
      h("div", { class: "mw-body" }, drawings, this.#table.element),
    );
    el.replaceChildren(this.root);
    for (const [i, side] of this.#sides.entries()) attach(side.scene.stage, this.#intents(side, i), signal);
    const observer = new ResizeObserver(() => this.#resize());
    observer.observe(this.root);
    signal.addEventListener("abort", () => this.#close(observer), { once: true });
    watchTheme(this.root, () => this.#applyTheme(), signal);
    attachKeys(this.root, (action) => this.#act(action), signal);
    this.#applyTheme();
    void this.#load(source);
  }

  #close(observer: ResizeObserver): void {
    observer.disconnect();
    for (const side of this.#sides) side.engine?.close();
    this.root.remove();
  }

  async #load(source: CompareSource): Promise<void> {
    const waiting = (): void => setText(this.#message, "Waiting for the kernel: it is busy, or gone.");
    try {
      this.#told = await source.told(waiting);
      this.#say(this.#told);
      this.#list();
      await Promise.all(
        this.#sides.map(async (side, i) => {
          const data = await source.load(i, waiting);
          side.data = data;
          side.engine = Engine.create(data, { worker: "auto" });
          side.bands = new Bands(data);
        }),
      );
      if (this.#signal.aborted) {
        for (const side of this.#sides) side.engine?.close();
        return;
      }
      const [before, after] = this.#sides;
      this.#align = alignment(before.data as Data, after.data as Data);
      this.#highest = Math.max(
        ...this.#sides.map(({ data, engine }) =>
          topOf(engine?.timeline.peakActive ?? 1, engine?.timeline.peakReserved ?? 1, data?.header.capacity ?? null),
        ),
      );
      this.#top = this.#highest;
      for (const [i, side] of this.#sides.entries()) this.#caption(side, i);
      this.#message.hidden = true;
      this.#applyTheme();
      this.#shade();
      this.#resize();
    } catch (error) {
      this.root.dataset.state = "error";
      this.#message.setAttribute("role", "alert");
      this.#message.classList.add("mw-oom");
      setText(this.#message, error instanceof Error ? error.message : String(error));
    }
  }

  // ---- words ----

  #caption(side: Side, i: number): void {
    const { header } = side.data as Data;
    side.caption.replaceChildren(
      h("span", { class: "mw-muted" }, i === 0 ? "before" : "after"),
      name(header.name || "untitled", "mw-name", 300),
      h("span", { title: bytesExact(header.peak_allocated) }, `peak ${bytes(header.peak_allocated)}`),
      h("span", { class: "mw-muted" }, `${count(header.n_events)} events, ${count(header.n_blocks)} blocks`),
    );
  }

  #say(told: Told): void {
    this.#totals.replaceChildren(
      ...told.totals.map((row) =>
        h(
          "span",
          { class: "mw-compare-total", title: `${bytesExact(row.before)} → ${bytesExact(row.after)}` },
          h("span", { class: "mw-muted" }, row.name),
          ` ${bytes(row.before)} → ${bytes(row.after)} `,
          h("b", {}, changeWords(row)),
        ),
      ),
    );
    this.#table.take(told);
  }

  #list(): void {
    this.#all.setAttribute("aria-pressed", String(this.#everything));
    this.#table.show(this.#picked);
  }

  /** The colour of a line, as it is in either recording; empty for what is no line. */
  #color(row: Difference): string {
    for (const [i, { data }] of this.#sides.entries()) {
      const label = row.labels?.[i];
      const is = (site: number): boolean => stringAt(data as Data, data?.frame_label[site] ?? -1) === label;
      const stack = data && label ? data.stack_site.findIndex(is) : -1;
      const color = data?.header.palette[this.#theme].site[data.stack_color[stack] ?? -1];
      if (color) return color;
    }
    return "";
  }

  #pick(row: Difference | null): void {
    this.#picked = row;
    this.root.dataset.picked = row?.name ?? "";
    this.#shade();
    this.#table.pick(row);
  }

  // ---- colours ----

  #applyTheme(): void {
    this.#theme = chooseTheme(this.#choice, this.root);
    this.root.dataset.theme = this.#theme;
    const data = this.#sides[0].data;
    if (data) this.root.style.setProperty("--mw-accent", data.header.palette[this.#theme].accent);
    this.#shade();
    this.#list();
  }

  /** Lit are the blocks of the picked line, else of the lines that differ at the peak. */
  #shade(): void {
    this.#sides.forEach((side, i) => {
      const { data } = side;
      if (!data || !this.#told) return;
      const rows = this.#picked ? [this.#picked] : this.#told.by_site.filter((row) => row.before !== row.after);
      const lit = new Set(rows.map((row) => row.labels?.[i] ?? ""));
      const all = !this.#picked && (this.#everything || rows.length === 0);
      const stacks = Uint8Array.from(data.stack_site, (_, stack) => {
        const site = stackSite(data, stack);
        return lit.has(site < 0 ? NO_SITE : stringAt(data, data.frame_label[site] as number)) ? 1 : 0;
      });
      const none = lit.has(NO_SITE) ? 1 : 0;
      const colors = lookupTable(data, "site", this.#theme, CHROME[this.#theme].background);
      side.table = all
        ? colors
        : dimmed(
            colors,
            Uint8Array.from(data.stack, (stack) => (stack < 0 ? none : (stacks[stack] as number))),
          );
      this.#paint(side);
    });
  }

  // ---- drawing ----

  #resize(): void {
    this.root.dataset.narrow = String(this.root.offsetWidth > 0 && this.root.offsetWidth < 720);
    // As many rows of bands in both: one scale of bytes is one height of the plot.
    const rows = Math.max(...this.#sides.map((side) => side.bands?.rows ?? 0));
    for (const side of this.#sides) {
      const { clientWidth: width, clientHeight: height } = side.scene.stage;
      if (width > 0 && height > 0) side.scene.resize(width, height, window.devicePixelRatio || 1, rows);
    }
    this.#draw();
  }

  #camera(side: Side): Camera {
    const n = (side.engine?.timeline.nEvents ?? 0) + 1;
    const map = side === this.#sides[0] ? (part: number): number => part : this.#align;
    return { lo: map(this.#lo) * n, hi: map(this.#hi) * n, axis: "events", bottom: this.#bottom, top: this.#top };
  }

  #draw(): void {
    for (const side of this.#sides) {
      side.dirty = true;
      this.#sweep(side);
    }
    const [before, after] = this.#sides.map((side) => this.#camera(side));
    this.root.dataset.windows = [before, after]
      .map((each) => `${each?.lo.toFixed(1)}-${each?.hi.toFixed(1)}`)
      .join(" ");
  }

  #sweep(side: Side): void {
    const { width, height } = side.scene.pixels;
    if (!side.engine || side.busy || !side.dirty || side.scene.layout.width === 0) return;
    side.busy = true;
    side.dirty = false;
    side.engine.draw({ ...this.#camera(side), width, height }).then((picture) => {
      side.busy = false;
      if (picture && !this.#signal.aborted) {
        side.picture = picture;
        this.#paint(side);
      }
      this.#sweep(side);
    });
  }

  #paint(side: Side): void {
    const { data, engine, bands, picture, scene } = side;
    if (!data || !engine || !bands || !picture) return;
    scene.paint(picture, side.table);
    this.#over(side);
    this.#draws += 1;
    this.root.dataset.draws = String(this.#draws);
    if (this.#sides.every((each) => each.picture)) this.root.dataset.state = "ready";
  }

  #over(side: Side): void {
    const { data, engine, bands, picture, scene } = side;
    if (data && engine && bands && picture) {
      const view = {
        data,
        timeline: engine.timeline,
        bands,
        picture,
        theme: this.#theme,
        range: null,
        hoveredBand: -1,
      };
      scene.draw({ ...view, camera: this.#camera(side), moment: -1, selection: -1, hovered: side.hovered });
    }
  }

  // ---- what the user does ----

  #fit(): void {
    [this.#lo, this.#hi, this.#bottom, this.#top] = [0, 1, 0, this.#highest];
    this.#draw();
  }

  #move(lo: number, hi: number): void {
    const span = Math.min(1, Math.max(LEAST, hi - lo));
    this.#lo = Math.max(0, Math.min(1 - span, lo));
    this.#hi = this.#lo + span;
    this.#draw();
  }

  #act(action: Action): boolean {
    const { plot } = this.#sides[0].scene.layout;
    const { pan, zoom } = this.#intents(this.#sides[0], 0);
    const quarter = plot.width / 4;
    const moves: Partial<Record<Action, () => void>> = {
      left: () => pan(quarter, 0),
      right: () => pan(-quarter, 0),
      panLeft: () => pan(quarter, 0),
      panRight: () => pan(-quarter, 0),
      zoomIn: () => zoom(plot.x + plot.width / 2, 0.66),
      zoomOut: () => zoom(plot.x + plot.width / 2, 1.5),
      fit: () => this.#fit(),
    };
    if (action === "escape" && this.#picked) {
      this.#pick(null);
      return true;
    }
    moves[action]?.();
    return action in moves;
  }

  #intents(side: Side, i: number): Intents {
    const nothing = (): void => {};
    const part = (x: number): number => {
      const { plot } = side.scene.layout;
      return Math.max(0, Math.min(1, (x - plot.x) / plot.width));
    };
    const hit = (x: number, y: number) => {
      const { plot, ratio } = side.scene.layout;
      return side.picture && inside(plot, x, y)
        ? blockAt(side.picture, (x - plot.x) * ratio, (y - plot.y) * ratio)
        : null;
    };
    return {
      zoneAt: (x, y): Zone => (inside(side.scene.layout.plot, x, y) ? "plot" : "none"),
      hover: (x, y) => {
        const found = hit(x, y);
        if (found && side.data) {
          side.scene.stage.append(this.#tooltip.element);
          const color = blockColor(side.data, "site", this.#theme, found.block);
          this.#tooltip.block(side.data, found.block, found.pending, color, x, y);
        } else {
          this.#tooltip.hide();
        }
        side.hovered = found?.block ?? -1;
        this.#over(side);
      },
      leave: () => {
        this.#tooltip.hide();
        side.hovered = -1;
        this.#over(side);
      },
      click: (x, y) => {
        const found = hit(x, y);
        const label = found && side.data ? siteLabel(side.data, found.block) : "";
        const row = this.#told?.by_site.find((each) => each.labels?.[i] === label) ?? null;
        this.#table.sites();
        this.#pick(row === this.#picked ? null : row);
      },
      pan: (dx, dy) => {
        const { width, height } = side.scene.layout.plot;
        const span = this.#hi - this.#lo;
        const tall = this.#top - this.#bottom;
        this.#bottom = Math.max(0, Math.min(this.#highest - tall, this.#bottom + (dy / height) * tall));
        this.#top = this.#bottom + tall;
        this.#move(this.#lo - (dx / width) * span, this.#hi - (dx / width) * span);
      },
      zoom: (x, factor) => {
        const at = this.#lo + part(x) * (this.#hi - this.#lo);
        this.#move(at - (at - this.#lo) * factor, at + (this.#hi - at) * factor);
      },
      zoomBytes: (y, factor) => {
        const { plot } = side.scene.layout;
        const at = this.#top - ((y - plot.y) / plot.height) * (this.#top - this.#bottom);
        this.#bottom = Math.max(0, at - (at - this.#bottom) * factor);
        this.#top = Math.min(this.#highest, Math.max(this.#bottom + 512, at + (this.#top - at) * factor));
        this.#draw();
      },
      fit: () => this.#fit(),
      range: nothing,
      brush: nothing,
      brushCenter: nothing,
      brushNew: nothing,
      hint: nothing,
      grabbed: nothing,
    };
  }
}
