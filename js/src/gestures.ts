// What the gestures of interact.ts do: the pointer over the drawing, the strips and the minimap.

import type { App } from "./app.js";
import { xToMoment, yToBytes } from "./camera.js";
import { blockColor } from "./colors.js";
import type { Picture } from "./columns.js";
import { bytes, count, duration } from "./format.js";
import type { Intents, Zone } from "./interact.js";
import { inside } from "./layout.js";
import { brushPart } from "./minimap.js";
import { blockAt } from "./pick.js";

const HINT_MS = 1_200;

export class Gestures implements Intents {
  readonly app: App;
  private hinting: ReturnType<typeof setTimeout> | undefined;

  constructor(app: App) {
    this.app = app;
    app.signal.addEventListener("abort", () => clearTimeout(this.hinting), { once: true });
  }

  fit(): void {
    this.app.loaded?.viewport.fit();
    this.app.frames.request("view");
  }

  pan(dx: number, dy: number): void {
    const { width, height } = this.app.scene.layout.plot;
    this.app.loaded?.viewport.pan(dx, width, dy, height);
    this.app.frames.request("view");
  }

  zoom(x: number, factor: number): void {
    const { plot } = this.app.scene.layout;
    const at = Math.max(0, Math.min(x - plot.x, plot.width));
    this.app.loaded?.viewport.zoom(at, plot.width, factor);
    this.app.frames.request("view");
  }

  zoomBytes(y: number, factor: number): void {
    const { plot } = this.app.scene.layout;
    this.app.loaded?.viewport.zoomBytes(Math.max(0, Math.min(y - plot.y, plot.height)), plot.height, factor);
    this.app.frames.request("view");
  }

  brush(part: "lo" | "hi" | "body", dx: number): void {
    this.app.loaded?.viewport.brush(part, dx, this.app.scene.layout.minimap.width);
    this.app.frames.request("view");
  }

  brushCenter(x: number): void {
    const { minimap } = this.app.scene.layout;
    this.app.loaded?.viewport.brushCenter(x - minimap.x, minimap.width);
    this.app.frames.request("view");
  }

  brushNew(fromX: number, toX: number): void {
    const { minimap } = this.app.scene.layout;
    this.app.loaded?.viewport.brushNew(fromX - minimap.x, toX - minimap.x, minimap.width);
    this.app.frames.request("view");
  }

  range(fromX: number, toX: number): void {
    const loaded = this.app.loaded;
    if (loaded) {
      const { plot } = this.app.scene.layout;
      const { camera } = loaded.viewport;
      const { nEvents } = loaded.engine.timeline;
      const moment = (x: number): number => {
        const inPlot = Math.max(0, Math.min(x - plot.x, plot.width));
        return Math.min(nEvents, Math.round(xToMoment(loaded.engine.timeline, camera, inPlot, plot.width)));
      };
      this.app.marked = [moment(Math.min(fromX, toX)), moment(Math.max(fromX, toX))];
      this.app.panels.toggle(true);
      this.app.frames.request("panel");
    }
  }

  zoneAt(x: number, y: number): Zone {
    const { layout } = this.app.scene;
    if (!this.app.loaded) {
      return "none";
    }
    const part = brushPart(layout, this.app.loaded.engine.timeline, this.app.loaded.viewport.camera, x, y);
    if (part) {
      return this.app.loaded.viewport.isWhole && part === "body" ? "minimap-new" : `minimap-${part}`;
    }
    for (const zone of ["plot", "bands", "yAxis", "xAxis"] as const) {
      if (inside(layout[zone], x, y)) {
        return zone;
      }
    }
    return "none";
  }

  cursor(zone: Zone): void {
    const cursors: Partial<Record<Zone, string>> = {
      plot: "crosshair",
      bands: this.app.hoveredBand >= 0 ? "pointer" : "default",
      xAxis: "ew-resize",
      yAxis: "ns-resize",
      "minimap-lo": "ew-resize",
      "minimap-hi": "ew-resize",
      "minimap-body": "grab",
      "minimap-outside": "pointer",
      "minimap-new": "crosshair",
    };
    this.app.scene.stage.style.cursor = cursors[zone] ?? "default";
  }

  grabbed(held: boolean): void {
    if (held) {
      this.app.scene.stage.style.cursor = "grabbing";
    }
  }

  hover(x: number, y: number): void {
    const loaded = this.app.loaded;
    const picture = loaded?.picture;
    if (!loaded || !picture) {
      return;
    }
    const { plot, ratio } = this.app.scene.layout;
    const zone = this.zoneAt(x, y);
    const hit = zone === "plot" ? blockAt(picture, (x - plot.x) * ratio, (y - plot.y) * ratio) : null;
    const band =
      zone === "bands" ? loaded.bands.at(x, y, this.app.scene.layout, loaded.engine.timeline, picture.view) : -1;
    if (hit?.block !== this.app.hovered || band !== this.app.hoveredBand) {
      this.app.hovered = hit?.block ?? -1;
      this.app.hoveredBand = band;
      this.app.root.dataset.hovered = String(this.app.hovered);
      this.app.frames.schedule();
    }
    this.cursor(zone);
    if (hit && this.app.views.isSegments) {
      this.app.views.segments?.overChart(hit.block, x, y);
    } else if (hit) {
      const color = blockColor(loaded.data, loaded.mode, this.app.theme, hit.block);
      this.app.tooltip.block(loaded.data, hit.block, hit.pending, color, x, y);
    } else if (band >= 0) {
      this.app.tooltip.band(loaded.data, loaded.engine.timeline, band, x, y);
    } else {
      this.app.tooltip.hide();
      this.app.views.segments?.leave();
    }
    const column = zone === "plot" ? Math.floor((x - plot.x) * ratio) : -1;
    this.app.status(this.columnText(picture, column));
    this.app.panels.point(picture.moments[column] ?? -1);
  }

  /** What a column shows, for the status line. */
  columnText(picture: Picture, column: number): string {
    const moment = picture.moments[column];
    const timeline = this.app.loaded?.engine.timeline;
    if (moment === undefined || !timeline) {
      return "";
    }
    const time = timeline.hasTime && moment > 0 ? ` · ${duration(timeline.momentToTime(moment))}` : "";
    const reserved = picture.reserved[column] ?? 0;
    const rest = reserved > 0 ? ` · ${bytes(reserved)} reserved` : "";
    return `moment ${count(moment)}${time} · ${bytes(picture.allocated[column] ?? 0)} allocated${rest}`;
  }

  leave(): void {
    this.app.views.segments?.leave();
    this.app.panels.point(-1);
    this.app.hovered = -1;
    this.app.hoveredBand = -1;
    this.app.root.dataset.hovered = "-1";
    this.app.tooltip.hide();
    this.app.status("");
    this.app.frames.schedule();
  }

  click(x: number, y: number): void {
    const loaded = this.app.loaded;
    const picture = loaded?.picture;
    if (!loaded || !picture) {
      return;
    }
    const { plot, ratio } = this.app.scene.layout;
    const zone = this.zoneAt(x, y);
    if (zone === "bands") {
      const band = loaded.bands.at(x, y, this.app.scene.layout, loaded.engine.timeline, picture.view);
      if (band >= 0) {
        // With a little air, so that one sees where the band begins and ends.
        const lo = loaded.data.band_lo[band] ?? 0;
        const hi = loaded.data.band_hi[band] ?? 0;
        const air = (hi - lo) * 0.04;
        loaded.viewport.show(lo - air, hi + air);
        this.app.frames.request("view");
      }
    } else if (zone === "plot") {
      const hit = blockAt(picture, (x - plot.x) * ratio, (y - plot.y) * ratio);
      const moment = picture.moments[Math.floor((x - plot.x) * ratio)] ?? -1;
      this.app.marked = null;
      this.app.cross = yToBytes(picture.view, y - plot.y, plot.height);
      if (moment >= 0) {
        this.app.push("moment", moment);
      }
      if (this.app.views.isSegments) {
        this.app.views.segments?.pinChart(hit?.block ?? -1);
      } else {
        this.app.views.segments?.unfocus();
        this.app.push("selection", hit && hit.block !== this.app.selection ? hit.block : -1);
      }
      this.app.frames.request("panel");
    }
  }

  hint(): void {
    this.app.hintBox.dataset.shown = "true";
    clearTimeout(this.hinting);
    this.hinting = setTimeout(() => {
      this.app.hintBox.dataset.shown = "false";
    }, HINT_MS);
  }
}
