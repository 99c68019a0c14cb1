// Sizes: of the widget in its cell, of the drawing in the widget, and the edge that changes the height. Sizes come from
// observers, never from a first measurement: an output may be rendered before it is in the page.

import type { App } from "./app.js";
import { watchTheme } from "./theme.js";

/** Below this width the panel goes under the drawing, CSS pixels. */
const NARROW = 720;
const LEAST_HEIGHT = 280;
/** Height of the panel under a narrow drawing, as in widget.css. */
const PANEL_BELOW = 264;

export class Sizing {
  readonly app: App;

  constructor(app: App) {
    this.app = app;
  }

  observe(): void {
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(this.app.root);
    observer.observe(this.app.scene.stage);
    this.app.signal.addEventListener("abort", () => observer.disconnect(), { once: true });
    watchTheme(this.app.root, () => this.app.applyTheme(), this.app.signal);
    const watchRatio = (): void => {
      const query = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
      const changed = (): void => {
        this.resize();
        watchRatio();
      };
      query.addEventListener("change", changed, { once: true, signal: this.app.signal });
    };
    watchRatio();
  }

  resize(): void {
    const { offsetWidth } = this.app.root;
    const { clientWidth: width, clientHeight: height } = this.app.scene.stage;
    if (offsetWidth === 0) {
      return; // hidden: another tab of the notebook, or a collapsed cell
    }
    this.app.root.dataset.narrow = String(offsetWidth < NARROW);
    this.applyHeight();
    if (width === 0 || height === 0) {
      this.app.frames.schedule(); // a view without this drawing is shown; it may have been hidden until now
      return;
    }
    const rows = this.app.loaded ? this.app.loaded.bands.rows : (this.app.overview?.bands ?? 0);
    if (this.app.scene.resize(width, height, window.devicePixelRatio || 1, rows)) {
      this.app.frames.request("view");
    }
  }

  applyHeight(): void {
    const height = Math.max(LEAST_HEIGHT, this.app.model.get("height") || 0);
    const below = this.app.root.dataset.narrow === "true" && this.app.panels.open ? PANEL_BELOW : 0;
    this.app.root.style.height = `${height + below}px`;
  }

  dragHeight(grip: HTMLElement): void {
    let held: { y: number; height: number } | null = null;
    grip.addEventListener("pointerdown", (event) => {
      held = { y: event.clientY, height: Math.max(LEAST_HEIGHT, this.app.model.get("height")) };
      grip.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    grip.addEventListener("pointermove", (event) => {
      if (held) {
        this.app.push("height", Math.round(Math.max(LEAST_HEIGHT, held.height + event.clientY - held.y)));
      }
    });
    const letGo = (): void => {
      held = null;
    };
    grip.addEventListener("pointerup", letGo);
    grip.addEventListener("pointercancel", letGo);
  }
}
