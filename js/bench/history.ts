/** Synthetic histories of the size that people record, the same on every run. */

import type { Data, Dtype, Header, Palette } from "../src/wire.js";

export interface Shape {
  /** Blocks that stay, and blocks of one step that wait for the backward pass. */
  resident: number;
  kept: number;
  /** Blocks made and freed at once between two kept ones. */
  churn: number;
  events: number;
}

/** A million and a half events of a GPT-2-like training run: 493,709 blocks in the recording this stands for. */
export const GPT2_1M: Shape = { resident: 600, kept: 900, churn: 2, events: 1_480_000 };
/** Many small tensors: 50,000 live at once. */
export const CROWDED: Shape = { resident: 30_000, kept: 20_000, churn: 2, events: 5_000_000 };

/** Numbers from a seed (mulberry32), so that every run draws the same. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Places in header.categories. */
const [PARAMETER, OPTIMIZER_STATE, ACTIVATION, TEMPORARY] = [0, 3, 5, 6];

/**
 * A training run: blocks that stay, then steps in which `kept` blocks pile up, with short-lived ones between, and go in
 * reverse order, with short-lived ones between.
 */
export function training(shape: Shape): Data {
  const next = random(7);
  const action = new Uint8Array(shape.events);
  const most = Math.ceil(shape.events / 3) + shape.resident + shape.kept + 8;
  const size = new Float64Array(most);
  const made = new Int32Array(most);
  const asked = new Int32Array(most).fill(-1);
  const freed = new Int32Array(most).fill(-1);
  const category = new Uint8Array(most);
  let event = 0;
  let blocks = 0;
  const alloc = (kind: number): number => {
    // From 512 bytes to 64 MiB, mostly small: the mix of a transformer's step.
    size[blocks] = 512 * Math.ceil(2 ** (17 * next() ** 2));
    made[blocks] = event;
    category[blocks] = kind;
    action[event++] = 0;
    return blocks++;
  };
  const free = (block: number): void => {
    asked[block] = event;
    action[event++] = 1;
    freed[block] = event;
    action[event++] = 2;
  };
  for (let i = 0; i < shape.resident; i++) alloc(i % 3 === 0 ? PARAMETER : OPTIMIZER_STATE);
  const step = shape.kept * 3 + 2 * shape.kept * shape.churn * 3;
  while (event + Math.min(step, 2 * shape.kept) < shape.events) {
    const kept: number[] = [];
    const churn = (): void => {
      for (let i = 0; i < shape.churn && event + 4 + 2 * kept.length < shape.events; i++) free(alloc(TEMPORARY));
    };
    for (let i = 0; i < shape.kept && event + 3 + 2 * kept.length < shape.events; i++) {
      kept.push(alloc(ACTIVATION));
      churn();
    }
    while (kept.length > 0) {
      // Mostly last in, first out; now and then an older one, as in a real backward pass.
      const at = next() < 0.8 ? kept.length - 1 : Math.floor(next() * kept.length);
      free(kept.splice(at, 1)[0] as number);
      churn();
    }
  }
  return dataOf({
    n_events: event,
    action: action.slice(0, event),
    size: size.slice(0, blocks),
    alloc_event: made.slice(0, blocks),
    free_requested_event: asked.slice(0, blocks),
    free_event: freed.slice(0, blocks),
    category: category.slice(0, blocks),
  });
}

type Column = Float64Array | Int32Array | Uint32Array | Uint8Array;

/** A whole payload around some block columns; the rest is plain: one stack, one frame, 20 us between events. */
export function dataOf(
  given: Pick<Data, "n_events" | "size" | "alloc_event" | "free_requested_event" | "free_event"> & Partial<Data>,
): Data {
  const events = given.n_events;
  const blocks = given.size.length;
  const time = new Float64Array(events);
  for (let i = 0; i < events; i++) time[i] = 20 * i;
  const use = new Uint32Array(blocks);
  const lo = new Uint32Array(blocks);
  for (let i = 0; i < blocks; i++) lo[i] = (i * 512) >>> 0;
  const columns = {
    action: new Uint8Array(events),
    time_us: time,
    requested: given.size.slice(),
    stack: new Int32Array(blocks),
    free_stack: new Int32Array(blocks).fill(-1),
    stream: new Int32Array(blocks),
    pool: new Int32Array(blocks),
    category: new Uint8Array(blocks).fill(10),
    reason: new Uint8Array(blocks),
    phase: new Int32Array(blocks).fill(-1),
    step: new Int32Array(blocks).fill(-1),
    flags: new Uint8Array(blocks),
    address_lo: lo,
    address_hi: new Uint32Array(blocks).fill(0x7f6d),
    use,
    metadata: new Int32Array(blocks).fill(-1),
    no_stack: new Uint8Array(blocks),
    label: new Int32Array(blocks).fill(-1),
    forward_stack: new Int32Array(blocks).fill(-1),
    loose_event: new Int32Array(0),
    loose_size: new Float64Array(0),
    loose_address_lo: new Uint32Array(0),
    loose_address_hi: new Uint32Array(0),
    loose_stream: new Int32Array(0),
    loose_pool: new Int32Array(0),
    loose_stack: new Int32Array(0),
    seg_address_lo: new Uint32Array(0),
    seg_address_hi: new Uint32Array(0),
    seg_size: new Float64Array(0),
    seg_stream: new Int32Array(0),
    seg_pool: new Int32Array(0),
    seg_kind: new Uint8Array(0),
    seg_alloc_event: new Int32Array(0),
    seg_free_event: new Int32Array(0),
    seg_stack: new Int32Array(0),
    stack_offset: Int32Array.of(0, 1),
    stack_frame: Int32Array.of(0),
    stack_site: Int32Array.of(0),
    stack_color: Uint8Array.of(3),
    frame_file: Int32Array.of(0),
    frame_line: Int32Array.of(31),
    frame_name: Int32Array.of(1),
    frame_source: Int32Array.of(-1),
    frame_source_now: new Uint8Array(1),
    frame_label: Int32Array.of(2),
    frame_kind: Uint8Array.of(0),
    reserved_moment: Int32Array.of(0),
    reserved: Float64Array.of(0),
    band_kind: new Uint8Array(0),
    band_name: new Int32Array(0),
    band_lo: new Int32Array(0),
    band_hi: new Int32Array(0),
    band_depth: new Uint8Array(0),
    ...given,
  };
  const strings = given.header?.strings ?? ["/home/me/train.py", "step", "train.py:31 in step"];
  return { ...columns, n_blocks: blocks, header: given.header ?? headerOf(events, blocks, strings, columns) };
}

function headerOf(events: number, blocks: number, strings: string[], columns: object): Header {
  const gray = Array.from({ length: 24 }, () => "#888888");
  const palette: Palette = {
    site: gray,
    category: gray.slice(0, 11),
    phase: [],
    ramp: gray.slice(0, 8),
    stream: gray.slice(0, 8),
    pool: gray.slice(0, 8),
    none: "#888888",
    accent: "#0072B2",
  };
  return {
    wire: 1,
    has_labels: false,
    name: "bench",
    device: 0,
    device_type: "cuda",
    devices: [{ device: 0, peak_allocated: 0 }],
    capacity: null,
    n_events: events,
    n_blocks: blocks,
    peak_allocated: 0,
    peak_active: 0,
    peak_reserved: 0,
    peak_requested: 0,
    allocated: 0,
    active: 0,
    reserved: 0,
    peak_event: 0,
    oom: [],
    start_us: 0,
    has_time: true,
    no_history: "",
    notes: [],
    strings,
    streams: ["default"],
    pools: ["default"],
    settings: {},
    facts: {},
    no_stack: {},
    categories: [],
    phases: [],
    palette: { light: palette, dark: palette },
    columns: Object.entries(columns)
      .filter((entry): entry is [string, Column] => ArrayBuffer.isView(entry[1]))
      .map(([name, column]) => ({ name, dtype: dtypeOf(column), length: column.length })),
  };
}

function dtypeOf(column: Column): Dtype {
  if (column instanceof Float64Array) return "f8";
  if (column instanceof Int32Array) return "i4";
  return column instanceof Uint32Array ? "u4" : "u1";
}
