// Which colour a block has, for every way of colouring, and the legend that says so. Pure: columns in, numbers out.
// The colours themselves come with the data (header.palette), so that every view and export has the same.

import { bytes } from "./format.js";
import type { ColorBy } from "./model.js";
import type { Theme } from "./theme.js";
import type { Data } from "./wire.js";

/** Upper bounds of the size steps, bytes; the last step is open. 1 MiB is where torch's small pool ends. */
const SIZE_STEPS = [4 * 2 ** 10, 64 * 2 ** 10, 2 ** 20, 4 * 2 ** 20, 16 * 2 ** 20, 64 * 2 ** 20, 256 * 2 ** 20];

/** Entries that a legend names; the rest is "more". */
const LEGEND_LIMIT = 6;

const UNKNOWN = 10;

/** stack_color of a stack without a frame of Python: drawn in the palette's "none". */
const NO_COLOR = 255;

export interface LegendEntry {
  color: string;
  label: string;
}

export interface Legend {
  /** True where the entries are steps of one scale: only the ends carry a label. */
  ramp: boolean;
  entries: LegendEntry[];
}

export type Mode = Exclude<ColorBy, "auto">;

/** "auto" is category where any block has one, else the call site. */
export function modeOf(data: Data, choice: ColorBy): Mode {
  if (choice !== "auto") {
    return choice;
  }
  return data.category.some((category) => category !== UNKNOWN) ? "category" : "site";
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
  return Math.min(7, Math.floor((8 * Math.log1p(Math.max(lived, 0))) / Math.log1p(Math.max(last, 1))));
}

function sizeStep(size: number): number {
  const step = SIZE_STEPS.findIndex((bound) => size <= bound);
  return step < 0 ? SIZE_STEPS.length : step;
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
    case "size":
      return palette.ramp[sizeStep(data.size[block] ?? 0)] ?? palette.none;
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

/** Pixels by id-buffer value: entry 0 is the background, entry b + 1 is block b. */
export function lookupTable(data: Data, mode: Mode, theme: Theme, background: string): Uint32Array {
  const palette = data.header.palette[theme];
  const n = data.size.length;
  const table = new Uint32Array(n + 1);
  const none = pixel(palette.none);
  const fill = (colors: readonly string[], index: (block: number) => number): void => {
    const pixels = Uint32Array.from(colors, pixel);
    for (let block = 0; block < n; block++) {
      const at = index(block);
      table[block + 1] = at < 0 ? none : (pixels[at % pixels.length] ?? none);
    }
  };
  switch (mode) {
    case "site":
      fill(palette.site, (block) => {
        const stack = data.stack[block] as number;
        const color = stack < 0 ? NO_COLOR : (data.stack_color[stack] as number);
        return color === NO_COLOR ? -1 : color;
      });
      break;
    case "category":
      fill(palette.category, (block) => data.category[block] as number);
      break;
    case "size":
      fill(palette.ramp, (block) => sizeStep(data.size[block] as number));
      break;
    case "age":
      fill(palette.ramp, (block) => ageStep(data, block));
      break;
    case "stream":
      fill(palette.stream, (block) => data.stream[block] as number);
      break;
    case "pool":
      fill(palette.pool, (block) => data.pool[block] as number);
      break;
  }
  table[0] = pixel(background);
  return table;
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
export function mix(a: number, b: number): number {
  return (0xff000000 | (((a & 0xfefefe) >>> 1) + ((b & 0xfefefe) >>> 1))) >>> 0;
}

export function legendOf(data: Data, mode: Mode, theme: Theme): Legend {
  const { header } = data;
  const palette = header.palette[theme];
  if (mode === "size") {
    const label = (step: number): string =>
      step < SIZE_STEPS.length ? `≤ ${bytes(SIZE_STEPS[step] as number)}` : `> ${bytes(SIZE_STEPS.at(-1) as number)}`;
    return { ramp: true, entries: palette.ramp.map((color, step) => ({ color, label: label(step) })) };
  }
  if (mode === "age") {
    const ends = ["lived briefly", "lived long"];
    return {
      ramp: true,
      entries: palette.ramp.map((color, step) => ({ color, label: ends[step < 4 ? 0 : 1] as string })),
    };
  }
  const named: Record<"stream" | "pool" | "category", [readonly string[], readonly string[], ArrayLike<number>]> = {
    stream: [palette.stream, header.streams.map((label) => `stream ${label}`), data.stream],
    pool: [palette.pool, header.pools, data.pool],
    category: [palette.category, header.categories.map((label) => label.replaceAll("_", " ")), data.category],
  };
  if (mode === "site") {
    return { ramp: false, entries: [] };
  }
  const [colors, labels, column] = named[mode];
  const used = new Uint8Array(labels.length);
  for (let block = 0; block < column.length; block++) {
    used[column[block] as number] = 1;
  }
  const entries = labels
    .map((label, index) => ({ color: cycle(colors, index) ?? palette.none, label, used: used[index] }))
    .filter((entry) => entry.used)
    .map(({ color, label }) => ({ color, label }));
  const rest = entries.length - LEGEND_LIMIT;
  return {
    ramp: false,
    entries: rest > 0 ? [...entries.slice(0, LEGEND_LIMIT), { color: "", label: `${rest} more` }] : entries,
  };
}
