// Which colour a segment has, for every way of colouring, and the legend. The colours are those of blocks: one line, one
// stream, one pool looks the same in every view.

import { type Legend, type LegendEntry, type Mode, pixel } from "./colors.js";
import type { Theme } from "./theme.js";
import { type Data, SEGMENT_KINDS } from "./wire.js";

/** What "category" is for a segment: small, large or expandable; places in the palette of categories. */
const KIND_COLORS = [4, 5, 2];

export function segmentColor(data: Data, mode: Mode, theme: Theme, row: number): string {
  const palette = data.header.palette[theme];
  const of = (colors: readonly string[], index: number): string =>
    (index < 0 ? undefined : colors[index % colors.length]) ?? palette.none;
  switch (mode) {
    case "site": {
      const stack = data.seg_stack[row] as number;
      const color = stack < 0 ? -1 : (data.stack_color[stack] as number);
      return palette.site[color] ?? palette.none;
    }
    case "stream":
      return of(palette.stream, data.seg_stream[row] as number);
    case "pool":
      return of(palette.pool, data.seg_pool[row] as number);
    case "category":
      return of(palette.category, KIND_COLORS[data.seg_kind[row] as number] ?? -1);
    case "size":
      return of(palette.ramp, step(Math.log2(data.seg_size[row] as number) - 20, 12));
    case "age":
      return of(palette.ramp, step(lived(data, row), data.n_events));
    default:
      return palette.none;
  }
}

function lived(data: Data, row: number): number {
  const gone = data.seg_free_event[row] as number;
  return (gone < 0 ? data.n_events : gone) - Math.max(0, data.seg_alloc_event[row] as number);
}

function step(value: number, most: number): number {
  return Math.max(0, Math.min(7, Math.floor((8 * value) / Math.max(1, most))));
}

/** Pixels by row + 1, as `lookupTable` for blocks; neighbours of one colour are two shades apart. */
export function segmentTable(data: Data, mode: Mode, theme: Theme, background: string): Uint32Array {
  const table = new Uint32Array(data.seg_size.length + 1);
  table[0] = pixel(background);
  for (let row = 0; row < data.seg_size.length; row++) {
    table[row + 1] = pixel(segmentColor(data, mode, theme, row));
  }
  return table;
}

export function segmentLegend(data: Data, mode: Mode, theme: Theme): Legend {
  const palette = data.header.palette[theme];
  const labels: Partial<Record<Mode, [readonly string[], ArrayLike<number>]>> = {
    stream: [data.header.streams, data.seg_stream],
    pool: [data.header.pools, data.seg_pool],
    category: [SEGMENT_KINDS, data.seg_kind],
  };
  const pale: LegendEntry = { color: "", label: "pale: free inside" };
  if (mode === "size" || mode === "age") {
    const ends = mode === "size" ? ["1 MiB", "4 GiB"] : ["lived briefly", "lived long"];
    return {
      ramp: true,
      entries: palette.ramp.map((color, i) => ({ color, label: ends[i < 4 ? 0 : 1] ?? "" })),
    };
  }
  const found = labels[mode];
  if (!found) {
    return { ramp: false, entries: [pale] };
  }
  const [names, column] = found;
  const rows = new Map<number, number>();
  for (let row = 0; row < column.length; row++) {
    rows.set(column[row] as number, row);
  }
  const entries = [...rows]
    .filter(([index]) => index >= 0)
    .sort(([a], [b]) => a - b)
    .slice(0, 6)
    .map(([index, row]) => ({ color: segmentColor(data, mode, theme, row), label: names[index] ?? "" }));
  return { ramp: false, entries: [...entries, pale] };
}
