// What keys and buttons do: going to a moment, stepping, walking the blocks of a column, pinning, and Escape.

import type { App } from "./app.js";
import { bytesToY, momentToX, yToBytes } from "./camera.js";
import { setText } from "./dom.js";
import type { Action } from "./keys.js";
import { blockAt } from "./pick.js";

export class Commands {
  readonly app: App;

  constructor(app: App) {
    this.app = app;
  }

  toPeak(): void {
    if (this.app.loaded) {
      this.goTo(this.app.loaded.data.header.peak_event);
    }
  }

  /** The next out of memory after the shown moment; after the last one the first again. */
  toOom(): void {
    const ooms = this.app.loaded?.data.header.oom ?? [];
    const next = ooms.find(({ moment }) => moment > this.app.moment) ?? ooms[0];
    if (next) {
      this.goTo(next.moment);
    }
  }

  goTo(moment: number): void {
    this.app.marked = null;
    this.app.push("selection", -1);
    this.app.push("moment", moment);
    this.app.loaded?.viewport.reveal(moment);
    this.app.frames.request("view", "panel");
  }

  act(action: Action): boolean {
    if (action === "help") {
      this.app.toggleHelp();
      return true;
    }
    if (action === "escape") {
      return this.app.views.act(action) ?? this.escape();
    }
    const loaded = this.app.loaded;
    if (!loaded) {
      return false;
    }
    const taken = this.app.views.act(action);
    if (taken !== undefined) {
      return taken;
    }
    const { plot } = this.app.scene.layout;
    const x = plot.x + momentToX(loaded.engine.timeline, loaded.viewport.camera, this.app.moment + 0.5, plot.width);
    const middle = x >= plot.x && x <= plot.x + plot.width ? x : plot.x + plot.width / 2;
    const moves: Record<Exclude<Action, "help" | "escape" | "mark" | "pageUp" | "pageDown" | "last">, () => void> = {
      left: () => this.step(-1),
      right: () => this.step(1),
      panLeft: () => this.app.gestures.pan(-plot.width / 4, 0),
      panRight: () => this.app.gestures.pan(plot.width / 4, 0),
      up: () => this.climb(-1),
      down: () => this.climb(1),
      zoomIn: () => this.app.gestures.zoom(middle, 0.66),
      zoomOut: () => this.app.gestures.zoom(middle, 1.5),
      taller: () => this.app.gestures.zoomBytes(plot.y + plot.height, 0.66),
      shorter: () => this.app.gestures.zoomBytes(plot.y + plot.height, 1.5),
      fit: () => this.app.gestures.fit(),
      peak: () => this.toPeak(),
      oom: () => this.toOom(),
      pin: () => this.pin(),
      search: () => this.app.toolbar.search.select(),
      panel: () => this.app.panels.toggle(),
    };
    if (action === "search") {
      this.app.toolbar.search.focus();
    }
    moves[action as keyof typeof moves]();
    return true;
  }

  /** One thing at a time: the help, the text being typed, the range, the pin, the moment; then the focus. */
  escape(): boolean {
    if (this.app.help) {
      this.app.toggleHelp();
    } else if (this.searchFocused()) {
      this.app.push("query", "");
      this.app.root.focus({ preventScroll: true });
    } else if (this.app.marked || this.app.selection >= 0 || this.app.views.segments?.focus) {
      this.app.panels.back();
    } else if (this.app.hovered >= 0 || this.app.model.get("moment") >= 0) {
      this.app.gestures.leave();
      this.app.push("moment", -1);
    } else {
      this.app.root.blur();
      return false;
    }
    return true;
  }

  searchFocused(): boolean {
    const scope = this.app.root.getRootNode() as Document | ShadowRoot;
    return scope.activeElement === this.app.toolbar.search;
  }

  /** By one event; where many share a pixel, by one pixel, so that a key press is always seen. */
  step(direction: number): void {
    const loaded = this.app.loaded;
    if (loaded) {
      const { lo, hi } = loaded.viewport.camera;
      const by = Math.max(1, Math.round((hi - lo) / this.app.scene.layout.plot.width));
      const moment = Math.max(0, Math.min(loaded.data.n_events, this.app.moment + direction * by));
      this.app.push("moment", moment);
      loaded.viewport.reveal(moment, false);
      this.app.frames.request("view", "panel");
    }
  }

  /** To the next block above or below in the shown moment's column. */
  climb(direction: number): void {
    const loaded = this.app.loaded;
    const picture = loaded?.picture;
    if (!loaded || !picture) {
      return;
    }
    if (this.app.model.get("moment") < 0) {
      this.app.push("moment", this.app.moment);
    }
    const x = Math.floor(momentToX(loaded.engine.timeline, picture.view, this.app.moment + 0.5, picture.width));
    const start =
      this.app.cross < 0 ? picture.height - 1 : Math.floor(bytesToY(picture.view, this.app.cross, picture.height));
    const from = Math.max(0, Math.min(start, picture.height - 1));
    const here = this.app.cross < 0 ? null : blockAt(picture, x, from);
    for (let y = from; y >= 0 && y < picture.height; y += direction) {
      const hit = blockAt(picture, x, y);
      if (hit && hit.block !== here?.block) {
        // To the middle of the block, so that the next step in either direction leaves it.
        let end = y;
        while (blockAt(picture, x, end + direction)?.block === hit.block) {
          end += direction;
        }
        this.app.cross = yToBytes(picture.view, (y + end) / 2 + 0.5, picture.height);
        this.app.hovered = hit.block;
        this.app.root.dataset.hovered = String(hit.block);
        setText(this.app.live, this.app.views.sentence(hit.block));
        this.app.status(this.app.views.status(hit.block));
        break;
      }
    }
    this.app.frames.schedule();
  }

  pin(): void {
    if (this.app.hovered < 0) {
      this.climb(-1);
    }
    if (this.app.hovered >= 0 && this.app.views.isSegments) {
      this.app.views.segments?.pinChart(this.app.hovered);
    } else if (this.app.hovered >= 0) {
      this.app.push("selection", this.app.hovered === this.app.selection ? -1 : this.app.hovered);
    }
  }
}
