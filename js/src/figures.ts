// The strip over the map: allocated and reserved, and what the free part is worth. Owns its words.

import { h, setText } from "./dom.js";
import { bytes, bytesExact, share } from "./format.js";
import type { Fragmentation } from "./fragmentation.js";

interface Figure {
  key: keyof Fragmentation;
  word: string;
  /** What it means, for the pointer. */
  says: string;
}

/** Parts of the free bytes, in the order of the bar. */
const PARTS: readonly Figure[] = [
  { key: "usable", word: "usable", says: "holes of the right pool, stream and size class that are large enough" },
  {
    key: "too_small",
    word: "too small",
    says: "holes of the right pool, stream and size class, each smaller than the request",
  },
  {
    key: "other_class",
    word: "other size class",
    says: "in small segments for a large request, or the other way round",
  },
  {
    key: "other_stream",
    word: "other stream",
    says: "in segments of another stream: this one is never served from there",
  },
  {
    key: "other_pool",
    word: "other pool",
    says: "in another pool: a captured graph's memory, a MemPool's, or the default one",
  },
];

const MORE: readonly Figure[] = [
  { key: "largest_hole", word: "largest hole", says: "the largest stretch of free bytes in one segment" },
  {
    key: "releasable",
    word: "releasable",
    says: "segments that are wholly free: what empty_cache() gives back, but for those of a private pool in use",
  },
  { key: "pending", word: "pending", says: "freed by the program, still used on another stream" },
  { key: "rounding", word: "rounding", says: "taken beyond what was asked for" },
];

export class Figures {
  readonly #total = h("b", { class: "mw-total", "data-testid": "memwidget-total" });
  readonly #moment = h("span", { class: "mw-muted" });
  readonly #bar = h("div", { class: "mw-free-bar", "aria-hidden": "true" });
  readonly #list = h("div", { class: "mw-figures" });
  readonly element = h(
    "div",
    { class: "mw-strip" },
    h(
      "div",
      { class: "mw-strip-head" },
      this.#total,
      h("span", { class: "mw-muted" }, "(allocated / reserved)"),
      this.#moment,
    ),
    this.#bar,
    this.#list,
  );

  show(allocated: number, found: Fragmentation, moment: string): void {
    setText(this.#total, `${bytes(allocated)} / ${bytes(found.reserved)}`);
    this.#total.title = `${bytesExact(allocated)} / ${bytesExact(found.reserved)}`;
    setText(this.#moment, moment);
    const { request, free } = found;
    const asked = request.failed ? "the request that failed" : "the largest block of the peak";
    const parts = PARTS.filter(({ key }) => (found[key] as number) > 0);
    this.#bar.replaceChildren(
      ...parts.map(({ key }) =>
        h("i", { class: `mw-free-${key}`, style: `flex-grow:${(found[key] as number) / Math.max(1, free)}` }),
      ),
    );
    this.#bar.hidden = free === 0;
    const figure = ({ key, word, says }: Figure, swatch: boolean): HTMLElement => {
      const amount = found[key] as number;
      const part = swatch ? `, ${share(amount, free)} of the free bytes` : "";
      return h(
        "span",
        { class: "mw-figure", title: `${bytesExact(amount)}${part}: ${says}`, "data-key": key },
        swatch ? h("i", { class: `mw-swatch mw-free-${key}` }) : null,
        h("span", { class: "mw-muted" }, word),
        bytes(amount),
      );
    };
    this.#list.replaceChildren(
      h(
        "span",
        { class: "mw-figure", title: `${bytesExact(free)}, judged by ${asked}, ${bytesExact(request.size)}` },
        h("b", {}, `${bytes(free)} free`),
        h(
          "span",
          { class: "mw-muted" },
          free > 0 && request.size > 0 ? `for a request of ${bytes(request.size)}:` : "",
        ),
      ),
      ...parts.map((part) => figure(part, true)),
      ...MORE.filter(({ key }) => (found[key] as number) > 0).map((each) => figure(each, false)),
    );
  }
}
