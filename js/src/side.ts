// The frame around the panels: title, close button, and the edge that changes its width. Knows nothing of contents.

import { button, h, setText } from "./dom.js";

const LEAST = 220;
/** The drawing keeps at least this much, CSS pixels. */
const LEFT_FOR_DRAWING = 320;
const STEP = 16;

export class Side {
  readonly panel: HTMLElement;
  readonly splitter: HTMLElement;
  readonly #title = h("h3", {});
  readonly #body = h("div", { class: "mw-panel-body", tabindex: "-1" });
  readonly #back = button("", "Unpin (Escape)", "mw-link");
  #width = 320;

  constructor(close: () => void, back: () => void, signal: AbortSignal) {
    const shut = button("×", "Close the panel (I)", "mw-button mw-icon mw-quiet");
    shut.addEventListener("click", close);
    this.#back.addEventListener("click", back);
    this.splitter = h("div", {
      class: "mw-splitter",
      role: "separator",
      tabindex: "0",
      "aria-orientation": "vertical",
      "aria-label": "Width of the panel",
    });
    this.panel = h(
      "aside",
      { class: "mw-panel", role: "document", "aria-label": "Details", style: `width:${this.#width}px` },
      h("div", { class: "mw-panel-head" }, this.#title, h("div", { class: "mw-label" }, this.#back, shut)),
      this.#body,
    );
    let held: { x: number; width: number } | null = null;
    this.splitter.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, width: this.#width };
      this.splitter.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    const letGo = (): void => {
      held = null;
    };
    this.splitter.addEventListener("pointermove", (event) => held && this.resize(held.width + held.x - event.clientX));
    this.splitter.addEventListener("pointerup", letGo);
    this.splitter.addEventListener("pointercancel", letGo);
    this.splitter.addEventListener(
      "keydown",
      (event) => {
        const change = event.key === "ArrowLeft" ? STEP : event.key === "ArrowRight" ? -STEP : 0;
        if (change !== 0) {
          this.resize(this.#width + change);
          event.preventDefault();
        }
      },
      { signal },
    );
  }

  resize(width: number): void {
    const room = (this.panel.parentElement?.clientWidth ?? Number.POSITIVE_INFINITY) - LEFT_FOR_DRAWING;
    this.#width = Math.max(LEAST, Math.min(width, Math.max(room, LEAST)));
    this.panel.style.width = `${this.#width}px`;
  }

  toggle(open: boolean): void {
    this.panel.hidden = !open;
    this.splitter.hidden = !open;
  }

  /** `back`: what the link beside the title undoes; empty for no link. */
  show(title: string, content: Node | null, back = ""): void {
    setText(this.#title, title);
    setText(this.#back, back);
    this.#back.hidden = back === "";
    const { scrollTop } = this.#body;
    const same = this.#body.firstElementChild?.className === (content as HTMLElement | null)?.className;
    this.#body.replaceChildren(...(content ? [content] : []));
    this.#body.scrollTop = same ? scrollTop : 0;
  }
}
