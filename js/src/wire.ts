/**
 * The wire: one header and a list of buffers -> named typed arrays.
 *
 * Owns the wire version and the declaration of every column (its name, its element type, what -1 or 0 means). The
 * Python twin is show/wire.py; the golden payloads in tests/golden hold the two together. It knows nothing of drawing.
 */

export const WIRE_VERSION = 1;

/** Event actions; `action` holds indices into this list. */
export const ACTIONS = [
  "alloc",
  "free_requested",
  "free_completed",
  "segment_alloc",
  "segment_free",
  "segment_map",
  "segment_unmap",
  "oom",
  "snapshot",
  "annotate",
  "other",
] as const;

/** Kinds of segments: for requests up to 1 MiB, for larger ones, and grown piece by piece. */
export const SEGMENT_KINDS = ["small", "large", "expandable"] as const;
export const EXPANDABLE = 2;

/** Bits of `flags`. */
export const FLAG = { allocMissing: 1, freeImplied: 2, segmentsOnly: 4, sizeGuessed: 8, forwardStack: 16 } as const;

export type Dtype = "f8" | "i4" | "u4" | "u1";
export type Buffers = readonly (ArrayBuffer | ArrayBufferView)[];

export interface Palette {
  site: string[];
  category: string[];
  phase: string[];
  ramp: string[];
  stream: string[];
  pool: string[];
  none: string;
  accent: string;
}

export interface Header {
  wire: number;
  name: string;
  device: number;
  device_type: string;
  devices: { device: number; peak_allocated: number | null }[];
  capacity: number | null;
  n_events: number;
  n_blocks: number;
  peak_allocated: number;
  peak_active: number;
  /** 0, as `reserved` is and as the column is empty, where nothing is known of it. */
  peak_reserved: number;
  peak_requested: number;
  allocated: number;
  active: number;
  reserved: number;
  /** The first moment at which allocated is at its peak. */
  peak_event: number;
  /** `said`: sentences that explain it, most important first. */
  oom: { moment: number; requested: number; device_free: number; said: string[] }[];
  /** Epoch microseconds of the first event; 0 where unknown. */
  start_us: number;
  has_time: boolean;
  /** Why there is no timeline, as half a sentence; empty where there is one. */
  no_history: string;
  notes: string[];
  strings: string[];
  streams: string[];
  pools: string[];
  settings: Record<string, unknown>;
  facts: Record<string, unknown>;
  no_stack: Record<string, string>;
  categories: string[];
  /** Strings: the names of the phases that made blocks. */
  phases: number[];
  /** Whether anything is known of what blocks were for, beyond "it was there before". */
  has_labels: boolean;
  palette: { light: Palette; dark: Palette };
  columns: { name: string; dtype: Dtype; length: number }[];
}

/** What the curves and the sweep need: a part of Data, and all that a worker is given. */
export interface History {
  n_events: number;
  n_blocks: number;
  /** Microseconds since start_us, one an event, never falling; null where the source had no times. */
  time_us: Float64Array | null;
  /** Bytes really taken. */
  size: Float64Array;
  /** Index of the event that made the block; -1: it was there at moment 0. Never falls with the block id. */
  alloc_event: Int32Array;
  /** Index of the event that asked for the free; -1: none; -2: asked for before the first event. */
  free_requested_event: Int32Array;
  /** Index of the event that completed the free; -1: none. */
  free_event: Int32Array;
  /** Reserved is a step function: from reserved_moment[i] on it is reserved[i]. */
  reserved_moment: Int32Array;
  reserved: Float64Array;
  /** Index into header.categories; left out where nothing is stacked by it. */
  category?: Uint8Array;
}

/** One payload, decoded. Names are those of the wire. */
export interface Data extends History {
  header: Header;
  /** Index into ACTIONS, one an event. */
  action: Uint8Array;
  /** Bytes asked for. */
  requested: Float64Array;
  /** Stack id or -1. */
  stack: Int32Array;
  free_stack: Int32Array;
  /** Index into header.streams or -1. */
  stream: Int32Array;
  /** Index into header.pools or -1. */
  pool: Int32Array;
  /** Index into header.categories. */
  category: Uint8Array;
  reason: Uint8Array;
  /** Index into header.phases; -1 outside any phase. */
  phase: Int32Array;
  /** String or -1. */
  step: Int32Array;
  /** Bits of FLAG. */
  flags: Uint8Array;
  address_lo: Uint32Array;
  address_hi: Uint32Array;
  /** How often the address had been used before. */
  use: Uint32Array;
  /** String or -1. */
  metadata: Int32Array;
  /** Index into the keys of header.no_stack; 0: has a stack, or the reason is not known. */
  no_stack: Uint8Array;
  /** String or -1: the name of a parameter, or of the module that made the block. */
  label: Int32Array;
  /** Stack id or -1: the forward that a block made in backward belongs to. */
  forward_stack: Int32Array;
  /** The events that no block tells of, ascending: segments, failures, snapshots, frees of nothing. */
  loose_event: Int32Array;
  loose_size: Float64Array;
  /** Of an "oom": the bytes that the device had free. */
  loose_address_lo: Uint32Array;
  loose_address_hi: Uint32Array;
  loose_stream: Int32Array;
  loose_pool: Int32Array;
  loose_stack: Int32Array;
  /** Lifetimes of segments, and of the mapped pieces of expandable ones, by seg_alloc_event, then address. */
  seg_address_lo: Uint32Array;
  seg_address_hi: Uint32Array;
  seg_size: Float64Array;
  seg_stream: Int32Array;
  seg_pool: Int32Array;
  /** Index into SEGMENT_KINDS. */
  seg_kind: Uint8Array;
  /** -1: it was there at moment 0. */
  seg_alloc_event: Int32Array;
  /** -1: it stays. */
  seg_free_event: Int32Array;
  seg_stack: Int32Array;
  /** Stack s is stack_frame[stack_offset[s] .. stack_offset[s + 1]), innermost frame first. */
  stack_offset: Int32Array;
  stack_frame: Int32Array;
  /** The user's innermost frame, a frame row, or -1. */
  stack_site: Int32Array;
  /** Index into palette.site; 255: no frame of Python, drawn in palette.none. */
  stack_color: Uint8Array;
  frame_file: Int32Array;
  frame_line: Int32Array;
  frame_name: Int32Array;
  frame_source: Int32Array;
  /** 1: the source was read from the file when this was shown, and may differ from what ran. */
  frame_source_now: Uint8Array;
  /** The site's label, a string. */
  frame_label: Int32Array;
  /** 0 user, 1 library, 2 C++, 3 plumbing of the interpreter or the notebook. */
  frame_kind: Uint8Array;
  /** 0 annotation, 1 phase, 2 step. */
  band_kind: Uint8Array;
  band_name: Int32Array;
  band_lo: Int32Array;
  band_hi: Int32Array;
  band_depth: Uint8Array;
}

/** Rows are counted in these tables; all columns of one table are equally long. */
type Table =
  | "events"
  | "blocks"
  | "loose"
  | "segments"
  | "stacks+1"
  | "stacks"
  | "stack_frames"
  | "frames"
  | "reserved"
  | "bands";

const COLUMNS: Record<string, readonly [Dtype, Table]> = {
  action: ["u1", "events"],
  time_us: ["f8", "events"],
  size: ["f8", "blocks"],
  requested: ["f8", "blocks"],
  alloc_event: ["i4", "blocks"],
  free_requested_event: ["i4", "blocks"],
  free_event: ["i4", "blocks"],
  stack: ["i4", "blocks"],
  free_stack: ["i4", "blocks"],
  stream: ["i4", "blocks"],
  pool: ["i4", "blocks"],
  category: ["u1", "blocks"],
  reason: ["u1", "blocks"],
  phase: ["i4", "blocks"],
  step: ["i4", "blocks"],
  flags: ["u1", "blocks"],
  address_lo: ["u4", "blocks"],
  address_hi: ["u4", "blocks"],
  use: ["u4", "blocks"],
  metadata: ["i4", "blocks"],
  no_stack: ["u1", "blocks"],
  label: ["i4", "blocks"],
  forward_stack: ["i4", "blocks"],
  loose_event: ["i4", "loose"],
  loose_size: ["f8", "loose"],
  loose_address_lo: ["u4", "loose"],
  loose_address_hi: ["u4", "loose"],
  loose_stream: ["i4", "loose"],
  loose_pool: ["i4", "loose"],
  loose_stack: ["i4", "loose"],
  seg_address_lo: ["u4", "segments"],
  seg_address_hi: ["u4", "segments"],
  seg_size: ["f8", "segments"],
  seg_stream: ["i4", "segments"],
  seg_pool: ["i4", "segments"],
  seg_kind: ["u1", "segments"],
  seg_alloc_event: ["i4", "segments"],
  seg_free_event: ["i4", "segments"],
  seg_stack: ["i4", "segments"],
  stack_offset: ["i4", "stacks+1"],
  stack_frame: ["i4", "stack_frames"],
  stack_site: ["i4", "stacks"],
  stack_color: ["u1", "stacks"],
  frame_file: ["i4", "frames"],
  frame_line: ["i4", "frames"],
  frame_name: ["i4", "frames"],
  frame_source: ["i4", "frames"],
  frame_source_now: ["u1", "frames"],
  frame_label: ["i4", "frames"],
  frame_kind: ["u1", "frames"],
  reserved_moment: ["i4", "reserved"],
  reserved: ["f8", "reserved"],
  band_kind: ["u1", "bands"],
  band_name: ["i4", "bands"],
  band_lo: ["i4", "bands"],
  band_hi: ["i4", "bands"],
  band_depth: ["u1", "bands"],
};

const ARRAYS = { f8: Float64Array, i4: Int32Array, u4: Uint32Array, u1: Uint8Array } as const;
type Column = Float64Array | Int32Array | Uint32Array | Uint8Array;

function column(name: string, dtype: Dtype, length: number, buffer: ArrayBuffer | ArrayBufferView): Column {
  const Kind = ARRAYS[dtype];
  const bytes = length * Kind.BYTES_PER_ELEMENT;
  if (buffer.byteLength !== bytes) {
    throw new Error(
      `The data for the picture is damaged: column ${name} should have ${bytes} bytes and has ${buffer.byteLength}; ` +
        "run the cell again.",
    );
  }
  const [whole, offset] = ArrayBuffer.isView(buffer) ? [buffer.buffer, buffer.byteOffset] : [buffer, 0];
  if (offset % Kind.BYTES_PER_ELEMENT === 0) {
    return new Kind(whole as ArrayBuffer, offset, length);
  }
  // Typed arrays must start at a multiple of their element; some front ends hand out views into one big message.
  return new Kind((whole as ArrayBuffer).slice(offset, offset + bytes), 0, length);
}

/**
 * Decode one payload.
 *
 * Throws an Error of one sentence when the version, a column or a length is not what the header says.
 */
export function decode(header: Header, buffers: Buffers): Data {
  if (header?.wire !== WIRE_VERSION) {
    throw new Error(
      `This page reads wire version ${WIRE_VERSION} and was sent version ${header?.wire}; ` +
        "reload the page so that the front end and the kernel use the same memwidget.",
    );
  }
  if (buffers.length !== header.columns.length) {
    throw new Error(
      `The data for the picture is damaged: ${header.columns.length} columns announced, ` +
        `${buffers.length} received; run the cell again.`,
    );
  }
  const found: Record<string, Column> = {};
  const rows: Partial<Record<Table, number>> = { events: header.n_events, blocks: header.n_blocks };
  header.columns.forEach(({ name, dtype, length }, i) => {
    const known = Object.hasOwn(COLUMNS, name) ? COLUMNS[name] : undefined;
    if (known === undefined) return; // a newer kernel may add columns without a new version
    const [want, table] = known;
    if (dtype !== want) {
      throw new Error(
        `The data for the picture is damaged: column ${name} is ${dtype}, not ${want}; update memwidget.`,
      );
    }
    rows[table] ??= length;
    if (rows[table] !== length) {
      throw new Error(
        `The data for the picture is damaged: column ${name} has ${length} rows, not ${rows[table]}; run the cell again.`,
      );
    }
    found[name] = column(name, dtype, length, buffers[i] as ArrayBuffer);
  });
  for (const name of Object.keys(COLUMNS)) {
    if (!(name in found) && !(name === "time_us" && !header.has_time)) {
      throw new Error(`The data for the picture is damaged: column ${name} is missing; update memwidget.`);
    }
  }
  if (rows["stacks+1"] !== (rows.stacks ?? 0) + 1) {
    throw new Error("The data for the picture is damaged: stack_offset does not fit the stacks; run the cell again.");
  }
  return {
    ...(found as unknown as Data),
    header,
    n_events: header.n_events,
    n_blocks: header.n_blocks,
    time_us: header.has_time ? (found.time_us as Float64Array) : null,
  };
}

/** Text of an interned string; "" for -1. */
export function stringAt(data: Data, index: number): string {
  return data.header.strings[index] ?? "";
}

/** Name of the phase that made a block; "" for none. */
export function phaseOf(data: Data, block: number): string {
  return stringAt(data, data.header.phases[data.phase[block] as number] ?? -1);
}

/** An address as hex text without 0x, exact for all 64 bits. */
export function hex(hi: number, lo: number): string {
  return hi === 0 ? lo.toString(16) : hi.toString(16) + lo.toString(16).padStart(8, "0");
}

/** A block's address as hex text without 0x. */
export function addressHex(data: Data, block: number): string {
  return hex(data.address_hi[block] ?? 0, data.address_lo[block] ?? 0);
}

/** "b7f6d3a000000_0": address and use, as torch's own viewer writes it. */
export function blockName(data: Data, block: number): string {
  return `b${addressHex(data, block)}_${data.use[block] ?? 0}`;
}

/** Why a block has no stack; "" if it has one or nobody knows. */
export function noStackReason(data: Data, block: number): string {
  const code = data.no_stack[block] ?? 0;
  const keys = Object.keys(data.header.no_stack);
  return data.stack[block] === -1 && code < keys.length ? (data.header.no_stack[keys[code] as string] ?? "") : "";
}

/** The frame rows of a stack, innermost first; empty for -1. */
export function framesOf(data: Data, stack: number): Int32Array {
  if (stack < 0) return data.stack_frame.subarray(0, 0);
  return data.stack_frame.subarray(data.stack_offset[stack] ?? 0, data.stack_offset[stack + 1] ?? 0);
}
