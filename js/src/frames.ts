// The frame loop: what is out of date, when it is swept, when it is painted. One redraw a frame, however often it is asked
// for, and one sweep at a time.

import type { App, Loaded } from "./app.js";
import type { Picture } from "./columns.js";
import { CHROME } from "./theme.js";
import { topOf } from "./viewport.js";

/** What can be out of date: the id buffer, its pixels, the panel. */
export type Part = "view" | "paint" | "panel";

export class Frames {
  readonly app: App;
  readonly dirty: Record<Part, boolean> = { view: false, paint: false, panel: false };
  private scheduled = false;
  private sweeping = false;
  private draws = 0;

  constructor(app: App) {
    this.app = app;
  }

  request(...parts: Part[]): void {
    for (const part of parts) {
      this.dirty[part] = true;
    }
    // The sweep need not wait for the frame: begun now, its picture is often there in time for it. Not within this
    // call, because one gesture may zoom and pan.
    queueMicrotask(() => this.sweepIfNeeded());
    this.schedule();
  }

  /** One redraw a frame, however often it is asked for. */
  schedule(): void {
    if (!this.scheduled && !this.app.signal.aborted) {
      this.scheduled = true;
      requestAnimationFrame((now) => {
        this.scheduled = false;
        this.frame(now);
      });
    }
  }

  frame(now: number): void {
    const loaded = this.app.loaded;
    if (loaded && !this.app.signal.aborted && this.app.views.frame(loaded)) {
      this.dirty.view = false;
      this.finish(loaded);
      return;
    }
    if (this.app.signal.aborted || this.app.scene.layout.width === 0) {
      return;
    }
    if (!loaded) {
      this.drawOutline();
      return;
    }
    if (loaded.viewport.gliding) {
      const more = loaded.viewport.step(now);
      this.dirty.view = true;
      if (more) {
        this.schedule();
      }
    }
    this.sweepIfNeeded();
    if (this.dirty.paint && loaded.picture) {
      this.dirty.paint = false;
      this.app.scene.paint(loaded.picture, loaded.table, this.app.views.isSegments);
    }
    if (loaded.picture) {
      this.drawOver(loaded, loaded.picture);
      this.counted(loaded);
    } else {
      this.drawOutline();
    }
    this.showPanel(loaded);
  }

  /** The end of a frame of a view that is no chart. */
  finish(loaded: Loaded): void {
    // Nobody sees the glide; the chart will stand where it ends.
    loaded.viewport.step(Number.POSITIVE_INFINITY);
    this.showPanel(loaded);
    this.counted(loaded);
  }

  showPanel(loaded: Loaded): void {
    if (this.dirty.panel) {
      this.dirty.panel = false;
      this.app.panels.show(loaded);
    }
  }

  sweepIfNeeded(): void {
    const loaded = this.app.loaded;
    const { width, height } = this.app.scene.pixels;
    if (
      !loaded ||
      !this.app.views.isChart ||
      !this.dirty.view ||
      this.sweeping ||
      this.app.scene.layout.width === 0 ||
      this.app.signal.aborted
    ) {
      return;
    }
    this.sweeping = true;
    this.dirty.view = false;
    this.app.saveWindow();
    const { chart } = loaded;
    loaded.chart
      .draw({ ...loaded.viewport.camera, order: this.app.order, width, height })
      .then((picture) => {
        this.sweeping = false;
        if (picture && loaded === this.app.loaded && chart === loaded.chart && this.app.views.isChart) {
          loaded.picture = picture;
          this.request("paint");
        } else {
          this.schedule();
        }
      })
      .catch((error) => {
        this.sweeping = false;
        if (loaded === this.app.loaded) {
          this.app.fail(error);
        }
      });
  }

  /** A frame counts when it shows the window asked for, in full; tests wait for that. */
  counted(loaded: Loaded): void {
    if (!this.dirty.view && !this.sweeping && !loaded.viewport.gliding) {
      this.draws += 1;
      this.app.root.dataset.draws = String(this.draws);
      if (this.app.root.dataset.state !== "ready") {
        this.app.state("ready");
        this.app.say("");
        this.app.further.ready();
      }
    }
  }

  drawOver(loaded: Loaded, picture: Picture): void {
    this.app.scene.draw({
      data: loaded.data,
      timeline: loaded.chart.timeline,
      bands: loaded.bands,
      camera: loaded.viewport.camera,
      picture,
      theme: this.app.theme,
      moment: this.app.model.get("moment") < 0 ? -1 : this.app.moment,
      selection: this.app.views.outlined,
      hovered: this.app.hovered === this.app.views.outlined ? -1 : this.app.hovered,
      hoveredBand: this.app.hoveredBand,
      bandColors: this.app.views.bandColors(loaded),
      range: this.app.marked,
      extra: (context, layout) =>
        this.app.views.isSegments && this.app.views.segments?.drawPools(context, layout, picture),
    });
  }

  drawOutline(): void {
    const overview = this.app.overview;
    if (overview) {
      const { accent } = CHROME[this.app.theme];
      const top = topOf(overview.peak_allocated, overview.peak_reserved, overview.capacity);
      this.app.scene.drawOverview(overview, top, this.app.theme, accent);
    } else {
      this.app.scene.drawNothing(this.app.theme);
    }
  }
}
