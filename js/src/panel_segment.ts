// The panels of a segment and of an event that is about no block: what it is, who made it.

import { type Addresses, type AddressMap, FREE, PENDING_FREE } from "./addresses.js";
import { h, name } from "./dom.js";
import type { EventTable } from "./events.js";
import { ACTION_WORDS } from "./events.js";
import { NO_SITE, stackFrames, stackSite } from "./facts.js";
import { bytes, bytesExact, count, duration } from "./format.js";
import { facts } from "./panel_detail.js";
import { stackView } from "./stack_view.js";
import { type Data, EXPANDABLE, SEGMENT_KINDS } from "./wire.js";

/** Bytes inside a segment of a map, by state. */
export function insideOf(
  map: AddressMap,
  segment: number,
): { allocated: number; pending: number; free: number; blocks: number } {
  const found = { allocated: 0, pending: 0, free: 0, blocks: 0 };
  for (let i = map.segment_first[segment] as number; i < (map.segment_first[segment + 1] as number); i++) {
    const size = map.size[i] as number;
    if (map.state[i] === FREE) found.free += size;
    else if (map.state[i] === PENDING_FREE) found.pending += size;
    else {
      found.allocated += size;
      found.blocks++;
    }
  }
  return found;
}

/** "train.py:31 in step" of a stack. */
export function stackLabel(data: Data, stack: number): string {
  const site = stackSite(data, stack);
  return site < 0 ? NO_SITE : (data.header.strings[data.frame_label[site] ?? -1] ?? NO_SITE);
}

function at(data: Data, event: number): string {
  const time = data.time_us?.[event];
  return `event ${count(event)}${time === undefined ? "" : `, at ${duration(time)}`}`;
}

function stackSection(data: Data, title: string, stack: number, none: string): HTMLElement {
  const frames = stackFrames(data, stack);
  if (frames.length > 0) return stackView(title, frames, stackSite(data, stack));
  return h(
    "section",
    { class: "mw-stack" },
    h("div", { class: "mw-section-head" }, h("h4", {}, title)),
    h("p", { class: "mw-note mw-nostack" }, none),
  );
}

function headline(color: string, text: string): HTMLElement {
  return h(
    "div",
    { class: "mw-headline" },
    h("span", { class: "mw-swatch", style: `background:${color}` }),
    h("div", { class: "mw-headline-text" }, name(text, "mw-headline-site")),
  );
}

export function segmentPanel(
  data: Data,
  addresses: Addresses,
  row: number,
  moment: number,
  color: string,
): HTMLElement {
  const born = data.seg_alloc_event[row] as number;
  const gone = data.seg_free_event[row] as number;
  const stack = data.seg_stack[row] as number;
  const size = data.seg_size[row] as number;
  const kind = data.seg_kind[row] as number;
  const map = addresses.at(moment);
  const s = addresses.isThere(row, moment) ? addresses.segmentOf(map, row) : -1;
  const inside = s < 0 ? null : insideOf(map, s);
  const whole = s < 0 ? size : (map.segment_size[s] as number);
  const pool = s < 0 ? (data.seg_pool[row] as number) : (map.segment_pool[s] as number);
  const last = gone < 0 ? data.n_events - 1 : gone;
  const time = data.time_us ? (data.time_us[last] ?? 0) - (data.time_us[Math.max(born, 0)] ?? 0) : -1;
  const least = born < 0 || gone < 0 ? "at least " : "";
  const isPrivate = pool >= 0 && data.header.pools[pool] !== "default";
  return h(
    "div",
    { class: "mw-detail", "data-segment": row },
    headline(color, stackLabel(data, stack)),
    facts([
      ["Size", bytes(size), bytesExact(size)],
      ["Part of", whole > size ? `an expandable segment of ${bytes(whole)} now` : "", bytesExact(whole)],
      ["Kind", SEGMENT_KINDS[kind] ?? ""],
      [
        "In use now",
        inside ? `${bytes(inside.allocated)} in ${count(inside.blocks)} block${inside.blocks === 1 ? "" : "s"}` : "",
        inside ? bytesExact(inside.allocated) : "",
      ],
      ["Pending now", inside?.pending ? bytes(inside.pending) : ""],
      ["Free now", inside ? `${bytes(inside.free)}${isPrivate && inside.free > 0 ? ", for this pool alone" : ""}` : ""],
      [kind === EXPANDABLE ? "Mapped" : "Taken", born < 0 ? "before the recording" : at(data, born)],
      [kind === EXPANDABLE ? "Unmapped" : "Returned", gone < 0 ? "still held at the end" : at(data, gone)],
      ["Lived", `${least}${count(last - Math.max(born, 0))} events${time >= 0 ? `, ${duration(time)}` : ""}`],
      ["Stream", data.header.streams[data.seg_stream[row] as number] ?? ""],
      ["Pool", data.header.pools[pool] ?? ""],
      ["Segment", h("span", { class: "mw-mono" }, addresses.segmentName(row))],
    ]),
    stackSection(
      data,
      "Made by",
      stack,
      born < 0 ? "It was there before the recording began." : "No stack was recorded for this segment.",
    ),
  );
}

/** An event that no block and no segment tells of; for an allocation that failed, what torch was asked. */
export function eventPanel(data: Data, events: EventTable, event: number): HTMLElement {
  const { action, name: label, size, stack, stream, pool } = events.facts(event);
  return h(
    "div",
    { class: "mw-detail", "data-event": event },
    facts([
      ["Event", at(data, event)],
      ["Action", ACTION_WORDS[action]],
      [action === "oom" ? "Asked for" : "Size", size > 0 ? bytes(size) : "", bytesExact(size)],
      ["Address", label ? h("span", { class: "mw-mono" }, label) : ""],
      ["Stream", data.header.streams[stream] ?? ""],
      ["Pool", data.header.pools[pool] ?? ""],
    ]),
    stackSection(data, action === "oom" ? "Asked by" : "Stack", stack, "No stack was recorded for this event."),
  );
}
