// The panel of the Segments view where nothing is pinned: what was reserved at a moment, how much of it was in use, and
// which lines made it grow.

import { type Addresses, FREE } from "./addresses.js";
import { h } from "./dom.js";
import { bytes, bytesExact, count, duration } from "./format.js";
import { facts } from "./panel_detail.js";
import { section, siteTable } from "./panel_moment.js";
import { stackLabel } from "./panel_segment.js";
import { splitQuery } from "./search.js";
import { type Data, framesOf, stringAt } from "./wire.js";

/** Lines listed at most. */
const SITES = 12;

export interface ReservedContext {
  data: Data;
  addresses: Addresses;
  colorOf(row: number): string;
  pickSite(label: string): void;
}

export function reservedPanel(context: ReservedContext, moment: number): HTMLElement {
  const { data, addresses } = context;
  const map = addresses.at(moment);
  let free = 0;
  map.size.forEach((size, i) => {
    if (map.state[i] === FREE) free += size;
  });
  const sums = new Map<string, { label: string; bytes: number; count: number; color: string }>();
  for (let row = 0; row < data.seg_size.length; row++) {
    if (!addresses.isThere(row, moment)) continue;
    const label = stackLabel(data, data.seg_stack[row] as number);
    const sum = sums.get(label) ?? { label, bytes: 0, count: 0, color: context.colorOf(row) };
    sum.bytes += data.seg_size[row] as number;
    sum.count += 1;
    sums.set(label, sum);
  }
  const rows = [...sums.values()].sort((a, b) => b.bytes - a.bytes);
  const { header } = data;
  const element = h(
    "div",
    { class: "mw-reserved" },
    facts([
      ["Moment", `${count(moment)} of ${count(header.n_events)}`],
      ["Time", data.time_us && moment > 0 ? duration(data.time_us[moment - 1] ?? 0) : ""],
      ["Reserved", bytes(map.reserved), bytesExact(map.reserved)],
      ["In use", bytes(map.reserved - free), bytesExact(map.reserved - free)],
      ["Free inside", bytes(free), bytesExact(free)],
      ["Segments", count(map.nSegments)],
    ]),
  );
  if (rows.length > 0) {
    const table = siteTable(
      rows.slice(0, SITES),
      map.reserved,
      "Reserved by the line that made it grow",
      context.pickSite,
      "segment",
    );
    element.append(section("Reserved by the line", table));
    const rest = rows.slice(SITES).reduce((sum, row) => sum + row.bytes, 0);
    if (rest > 0) {
      element.append(h("p", { class: "mw-note" }, `${count(rows.length - SITES)} more lines, ${bytes(rest)}`));
    }
  } else if (data.seg_size.length === 0) {
    element.append(h("p", { class: "mw-note" }, "The recording names no segments."));
  }
  return element;
}

/** 1 for each segment that a search finds by its name, its line or a function or file of its stack; null: no search. */
export function segmentMask(data: Data, addresses: Addresses, query: string): Uint8Array | null {
  const words = splitQuery(query);
  if (words.length === 0) return null;
  return Uint8Array.from(data.seg_size, (_, row) => {
    const stack = data.seg_stack[row] as number;
    const texts = [addresses.segmentName(row), stackLabel(data, stack)];
    for (const frame of framesOf(data, stack)) {
      texts.push(stringAt(data, data.frame_file[frame] ?? -1), stringAt(data, data.frame_name[frame] ?? -1));
    }
    const all = texts.join("\n").toLowerCase();
    return words.every((word) => all.includes(word.replace(/^0x/, ""))) ? 1 : 0;
  });
}
