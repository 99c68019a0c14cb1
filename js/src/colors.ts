// Which colour a block has, for every way of colouring, and the legend that says so. Pure: columns in, numbers out.
// The colours themselves come with the data (header.palette), so that every view and export has the same.

import { bytes } from "./format.js";
import type { ColorBy } from "./model.js";
import { kindQuery } from "./search.js";
import type { Theme } from "./theme.js";
import { type Data, stringAt } from "./wire.js";

/** Steps of size and of age. */
const STEPS = 8;

/** Entries that a legend names; the rest is "more". Of categories there are eleven, and the user's own; so of phases. */
const LEGEND_LIMIT = 6;
const KIND_LIMIT = 14;

const UNKNOWN = 10;

/** Value of reason: nothing but a rule of thumb says so. */
const GUESS = 3;

/** Bit of a pixel (the lowest of its alpha) that is off where the block is hatched as a guess. */
export const SURE = 1 << 24;

export interface LegendEntry {
  color: string;
  label: string;
  /** What to search for to see these blocks alone. */
  query?: string;
}

export interface Legend {
  /** True where the entries are steps of one scale: only the ends carry a label. */
  ramp: boolean;
  entries: LegendEntry[];
}

export type Mode = Exclude<ColorBy, "auto">;

/** "auto" is category where any block has one that says what it was for, else the call site; so is a phase of none. */
export function modeOf(data: Data, choice: ColorBy): Mode {
  if (choice !== "auto" && (choice !== "phase" || data.header.phases.length > 0)) {
    return choice;
  }
  return data.header.has_labels ? "category" : "site";
}

/** "#rrggbb" to the number that a little-endian Uint32 view of ImageData wants: 0xAABBGGRR. */
export function pixel(color: string): number {
  const value = Number.parseInt(color.slice(1, 7), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | ((value >> 16) & 0xff)) >>> 0;
}

/** One step in 8 for how long a block lived, on a logarithmic scale of events. */
function ageStep(data: Data, block: number): number {
  const last = data.header.n_events;
  const from = Math.max(data.alloc_event[block] ?? 0, 0);
  const freed = data.free_requested_event[block] ?? -1;
  const lived = (freed < 0 ? last : freed) - from;
  return Math.min(STEPS - 1, Math.floor((STEPS * Math.log1p(Math.max(lived, 0))) / Math.log1p(Math.max(last, 1))));
}

/** Smallest and largest block of a payload: the ends of the scale of sizes. */
const extremes = new WeakMap<Data, readonly [number, number]>();

function sizeRange(data: Data): readonly [number, number] {
  let known = extremes.get(data);
  if (!known) {
    let least = Number.POSITIVE_INFINITY;
    let most = 1;
    for (const size of data.size) {
      least = Math.min(least, Math.max(size, 1));
      most = Math.max(most, size);
    }
    known = [Math.min(least, most), most];
    extremes.set(data, known);
  }
  return known;
}

/** One step in 8 on a logarithmic scale between the smallest and the largest block. */
function sizeStep(data: Data, block: number): number {
  const [least, most] = sizeRange(data);
  const part = Math.log(Math.max(data.size[block] as number, 1) / least) / Math.log(Math.max(most / least, 2));
  return Math.max(0, Math.min(STEPS - 1, Math.floor(part * STEPS)));
}

/** The colour of one block as CSS text. */
export function blockColor(data: Data, mode: Mode, theme: Theme, block: number): string {
  const palette = data.header.palette[theme];
  switch (mode) {
    case "site": {
      const stack = data.stack[block] ?? -1;
      return (stack < 0 ? undefined : palette.site[data.stack_color[stack] ?? 0]) ?? palette.none;
    }
    case "category":
      return palette.category[data.category[block] ?? UNKNOWN] ?? palette.none;
    case "phase":
      return palette.phase[data.phase[block] ?? -1] ?? palette.none;
    case "size":
      return palette.ramp[sizeStep(data, block)] ?? palette.none;
    case "age":
      return palette.ramp[ageStep(data, block)] ?? palette.none;
    case "stream":
      return cycle(palette.stream, data.stream[block] ?? -1) ?? palette.none;
    case "pool":
      return cycle(palette.pool, data.pool[block] ?? -1) ?? palette.none;
  }
}

function cycle(colors: readonly string[], index: number): string | undefined {
  return index < 0 ? undefined : colors[index % colors.length];
}

/**
 * Pixels by id-buffer value: entry 0 is the background, entry b + 1 is block b.
 *
 * One site (category, stream, pool) is one hue, in a few close shades, one a stack: blocks of one line made by different
 * layers stay apart even where they are too thin for a hairline.
 */
export function lookupTable(data: Data, mode: Mode, theme: Theme, background: string): Uint32Array {
  const palette = data.header.palette[theme];
  const n = data.size.length;
  const table = new Uint32Array(n + 1);
  const ramp = mode === "size" || mode === "age";
  const ways: Record<Mode, [readonly string[], (block: number) => number]> = {
    site: [palette.site, (block: number) => siteColor(data, block)],
    category: [palette.category, (block: number) => data.category[block] as number],
    phase: [palette.phase, (block: number) => data.phase[block] as number],
    size: [palette.ramp, (block: number) => sizeStep(data, block)],
    age: [palette.ramp, (block: number) => ageStep(data, block)],
    stream: [palette.stream, (block: number) => wrapped(data.stream[block] as number, palette.stream)],
    pool: [palette.pool, (block: number) => wrapped(data.pool[block] as number, palette.pool)],
  };
  const [colors, index] = ways[mode];
  const none = colors.length;
  const guesses = mode === "category";
  const steps = SHADES.length;
  const shades = Uint32Array.from(
    [...colors, palette.none].flatMap((color) => SHADES.map((shade) => shaded(pixel(color), ramp ? 0 : shade))),
  );
  for (let block = 0; block < n; block++) {
    const at = index(block);
    const stack = data.stack[block] as number;
    const shade = (stack < 0 ? block : stack) % steps;
    const color = shades[(at >= 0 && at < none ? at : none) * steps + shade] as number;
    table[block + 1] = guesses && data.reason[block] === GUESS ? (color & ~SURE) >>> 0 : color;
  }
  table[0] = pixel(background);
  return table;
}

/** Shades of one colour: towards white (above 0) or black, as parts of the way. */
const SHADES = [0, 0.1, -0.07, 0.05, -0.12, 0.15, -0.03];

function shaded(color: number, shade: number): number {
  const goal = shade > 0 ? 255 : 0;
  const part = Math.abs(shade);
  let result = 0xff000000;
  for (const shift of [0, 8, 16]) {
    const channel = (color >>> shift) & 255;
    result |= Math.round(channel + (goal - channel) * part) << shift;
  }
  return result >>> 0;
}

function siteColor(data: Data, block: number): number {
  const stack = data.stack[block] as number;
  return stack < 0 ? -1 : (data.stack_color[stack] as number);
}

function wrapped(index: number, colors: readonly string[]): number {
  return index < 0 ? -1 : index % colors.length;
}

/** A quarter of the colour, three quarters of the background: what a search leaves in the dark. */
export function dimmed(table: Uint32Array, mask: Uint8Array): Uint32Array {
  const result = table.slice();
  const background = table[0] as number;
  for (let block = 0; block < mask.length; block++) {
    if (!mask[block]) {
      result[block + 1] = mix(mix(table[block + 1] as number, background), background);
    }
  }
  return result;
}

/** The middle of two pixels, channel by channel, without unpacking them. */
function mix(a: number, b: number): number {
  return (0xff000000 | (((a & 0xfefefe) >>> 1) + ((b & 0xfefefe) >>> 1))) >>> 0;
}

export function legendOf(data: Data, mode: Mode, theme: Theme): Legend {
  const { header } = data;
  const palette = header.palette[theme];
  if (mode === "size" || mode === "age") {
    const ends = mode === "size" ? sizeRange(data).map(bytes) : ["lived briefly", "lived long"];
    return {
      ramp: true,
      entries: palette.ramp.map((color, step) => ({ color, label: ends[step < STEPS / 2 ? 0 : 1] ?? "" })),
    };
  }
  if (mode === "site") {
    return { ramp: false, entries: [] };
  }
  const named: Record<typeof mode, [readonly string[], ArrayLike<number>]> = {
    stream: [header.streams, data.stream],
    pool: [header.pools, data.pool],
    category: [header.categories.map((label) => label.replaceAll("_", " ")), data.category],
    phase: [header.phases.map((name) => stringAt(data, name)), data.phase],
  };
  const [labels, column] = named[mode];
  const colors = palette[mode];
  const used = new Set<number>();
  for (let block = 0; block < column.length; block++) {
    used.add(column[block] as number);
  }
  const kinds = mode === "category" || mode === "phase";
  const entries = labels.flatMap((label, index): LegendEntry[] => {
    const color = cycle(colors, index) ?? palette.none;
    return used.has(index) ? [kinds ? { color, label, query: kindQuery(mode, label) } : { color, label }] : [];
  });
  if (mode === "phase" && used.has(-1)) {
    entries.push({ color: palette.none, label: "no phase", query: kindQuery(mode, "") });
  }
  if (mode === "category" && data.reason.includes(GUESS)) {
    entries.push({ color: "", label: "hatched: a guess" });
  }
  const limit = kinds ? KIND_LIMIT : LEGEND_LIMIT;
  const rest = entries.length - limit;
  return {
    ramp: false,
    entries: rest > 0 ? [...entries.slice(0, limit), { color: "", label: `${rest} more` }] : entries,
  };
}
