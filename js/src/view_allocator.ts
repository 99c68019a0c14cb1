// The Allocator view: the events at the left, the map of segments at the right, the figures above it. Owns how the three
// go together; what is pinned and shown beside them is the business of views.ts.

import { type Addresses, type AddressMap, FREE } from "./addresses.js";
import { h } from "./dom.js";
import { EventList } from "./event_list.js";
import { ACTION_WORDS, type EventTable } from "./events.js";
import { Figures } from "./figures.js";
import { count, duration } from "./format.js";
import { fragmentation, requestAt } from "./fragmentation.js";
import { type MapHit, MapView } from "./map_view.js";
import { type Scale, scaleFor } from "./rows.js";
import type { Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";
import type { Data } from "./wire.js";

export interface AllocatorData {
  data: Data;
  timeline: Timeline;
  addresses: Addresses;
  events: EventTable;
}

export interface AllocatorActions {
  chooseEvent(event: number): void;
  hoverEvent(event: number): void;
  hoverMap(hit: MapHit | null, map: AddressMap, x: number, y: number): void;
  clickMap(hit: MapHit | null, map: AddressMap): void;
  find(text: string): Promise<((event: number) => boolean) | null>;
}

/** What each pattern of the map means. */
const LEGEND: readonly (readonly [string, string, string])[] = [
  ["allocated", "allocated", "In use; the colour says by what"],
  ["pending", "pending free", "Freed by the program, still used on another stream"],
  ["free", "free", "Free, for a request of this pool, stream and size class that fits"],
  [
    "kept",
    "kept by a private pool",
    "Free inside the pool only; a captured graph may still use it when it is replayed",
  ],
  ["rounding", "rounding", "Taken beyond what was asked for"],
];

export class AllocatorView {
  readonly events: EventList;
  readonly map: MapView;
  readonly figures = new Figures();
  readonly element: HTMLElement;
  readonly empty = h("p", { class: "mw-note mw-empty", hidden: true });
  readonly stage: HTMLElement;
  #loaded: AllocatorData | null = null;
  #scale: (Scale & { width: number; height: number }) | null = null;
  #shown: AddressMap | null = null;

  constructor(actions: AllocatorActions, signal: AbortSignal) {
    this.events = new EventList({ choose: actions.chooseEvent, hover: actions.hoverEvent, find: actions.find }, signal);
    this.map = new MapView(
      {
        hover: (hit, x, y) => this.#shown && actions.hoverMap(hit, this.#shown, x, y),
        click: (hit) => this.#shown && actions.clickMap(hit, this.#shown),
      },
      signal,
    );
    this.stage = h("div", { class: "mw-map-side" }, this.figures.element, this.map.element, this.empty, legend());
    this.element = h("div", { class: "mw-allocator" }, this.events.element, this.stage);
  }

  take(loaded: AllocatorData): void {
    this.#loaded = loaded;
    this.#scale = null;
    this.events.take(loaded.events);
    const none = loaded.data.seg_size.length === 0;
    this.empty.hidden = !none;
    this.map.element.hidden = none;
    this.empty.textContent = `${noSegments(loaded.data)}, so there is no map; the events are at the left.`;
  }

  /** Draws a moment. `segment` is a row of the segments' table, -1 for none. */
  show(
    moment: number,
    event: number,
    look: { table: Uint32Array; theme: Theme; block: number; segment: number },
  ): void {
    const loaded = this.#loaded;
    if (!loaded) {
      return;
    }
    const { data, timeline, addresses } = loaded;
    const map = addresses.at(moment);
    this.#shown = map;
    const there = look.segment >= 0 && addresses.isThere(look.segment, moment);
    const segment = there ? addresses.segmentOf(map, look.segment) : -1;
    this.map.show({
      data,
      map,
      scale: this.#fitted(loaded),
      table: look.table,
      theme: look.theme,
      block: look.block,
      segment,
    });
    const request = requestAt(data, timeline, loaded.events, moment);
    const time = data.time_us && moment > 0 ? ` · ${duration(timeline.momentToTime(moment))}` : "";
    const after =
      event >= 0 ? `after event ${count(event)} (${ACTION_WORDS[loaded.events.action(event)]})` : "at the start";
    const words = loaded.events.action(event) === "oom" ? `at event ${count(event)} (out of memory)` : after;
    this.figures.show(timeline.allocated[moment] ?? 0, fragmentation(data, map, request), `${words}${time}`);
    this.events.show(event);
  }

  /** Scrolls the map to a block or segment. */
  reveal(block: number, segment: number): void {
    const map = this.#shown;
    if (!map || !this.#loaded) {
      return;
    }
    const at = block >= 0 ? map.block.indexOf(block) : -1;
    if (at >= 0) {
      let s = 0;
      while ((map.segment_first[s + 1] as number) <= at) {
        s++;
      }
      this.map.reveal(s, map.offset[at] as number);
    } else if (segment >= 0) {
      const s = this.#loaded.addresses.segmentOf(map, segment);
      if (s >= 0) {
        this.map.reveal(s, 0);
      }
    }
  }

  resize(): void {
    this.#scale = null;
  }

  /** One scale for all moments: that of the moment with most reserved, where everything just fits. */
  #fitted(loaded: AllocatorData): Scale {
    const { width, height } = this.map.size;
    if (this.#scale?.width !== width || this.#scale.height !== height) {
      const { reserved, reserved_moment } = loaded.data;
      let most = 0;
      for (let i = 1; i < reserved.length; i++) {
        if ((reserved[i] as number) > (reserved[most] as number)) {
          most = i;
        }
      }
      const keep = this.#shown?.moment ?? 0;
      const map = loaded.addresses.at(reserved_moment[most] ?? 0);
      this.#scale = { ...scaleFor(loaded.data, map, Math.max(width, 1), Math.max(height, 1)), width, height };
      this.#shown = loaded.addresses.at(keep);
    }
    return this.#scale;
  }
}

/** Why a recording has no segments. */
export function noSegments(data: Data): string {
  return data.header.device_type === "cpu"
    ? "Memory of the CPU is not held in segments"
    : "The recording names no segments";
}

function legend(): HTMLElement {
  return h(
    "div",
    { class: "mw-map-legend", "aria-label": "Patterns" },
    ...LEGEND.map(([key, word, says]) =>
      h("span", { class: "mw-legend-entry", title: says }, h("i", { class: `mw-key mw-key-${key}` }), word),
    ),
  );
}

/** The block of a hit, -1 for a hole or the frame of a segment. */
export function blockOfHit(hit: MapHit | null, map: AddressMap): number {
  return hit && hit.stretch >= 0 && map.state[hit.stretch] !== FREE ? (map.block[hit.stretch] as number) : -1;
}
