/**
 * Search: a query -> the blocks that match.
 *
 * Owns what a query means. Words are parted by blanks ("quoted text" is one word), case does not matter, and a block
 * must match every word, each one by any of: a function, file or line of its stack, its user metadata, its name (of a
 * parameter or module), its category or phase ("category:optimizer state", the whole word), or its address:
 * 0x7f6d (begins with, or lies inside the block), b7f6d3a000000_0 (a block's name; without _0 any use of the address).
 * Texts are interned, so a word is compared with each frame once and blocks only look up the answer of their stack.
 */

import type { Timeline } from "./timeline.js";
import { type Data, stringAt } from "./wire.js";

export interface SearchResult {
  query: string;
  /** 1 for each block that matches; null for an empty query, which asks for nothing. */
  blocks: Uint8Array | null;
  count: number;
  /** Allocated bytes of the matching blocks at a moment. */
  bytesAt(moment: number): number;
  /** The most they ever had allocated at once, and the first moment of it. Worked out when first asked for. */
  max(): { bytes: number; moment: number };
}

/** Hex digits after a b that make it an address rather than a word ("bad", "bead"). */
const NAME_DIGITS = 6;

interface AddressQuery {
  /** Digits as typed, as two halves, and how many there are. */
  hi: number;
  lo: number;
  digits: number;
  use: number | null;
  /** Only the whole address will do. */
  whole: boolean;
}

/** Find the blocks that match a query. */
export function compileQuery(data: Data, query: string, timeline: Timeline): SearchResult {
  const words = splitQuery(query);
  if (words.length === 0) return result(data, timeline, query, null, 0);
  const blocks = new Uint8Array(data.n_blocks).fill(1);
  for (const word of words) keep(data, word, blocks);
  let count = 0;
  for (let b = 0; b < blocks.length; b++) count += blocks[b] as number;
  return result(data, timeline, query, blocks, count);
}

/** The words of a query, in lower case. */
export function splitQuery(query: string): string[] {
  const words: string[] = [];
  for (const [, quoted, plain] of query.toLowerCase().matchAll(/"([^"]*)"?|([^\s"]+)/g)) {
    const word = quoted ?? plain ?? "";
    if (word.trim() !== "") words.push(word);
  }
  return words;
}

/** A label as a query that finds just that: quotes part words, what lies between them is looked for as it stands. */
export function quoted(label: string): string {
  const parts = label.split('"').filter((part) => part.trim() !== "");
  return parts.map((part) => `"${part}"`).join(" ");
}

/** Take the blocks that do not match a word out of the mask. */
function keep(data: Data, word: string, blocks: Uint8Array): void {
  const stacks = stacksWith(data, word);
  const strings = metadataWith(data, word);
  const labels = labelsWith(data, word);
  const kind = kindWith(data, word);
  const address = parseAddress(word);
  const { stack, metadata } = data;
  for (let b = 0; b < blocks.length; b++) {
    if (blocks[b] === 0) continue;
    const s = stack[b] as number;
    if (s >= 0 && stacks[s] === 1) continue;
    const m = metadata[b] as number;
    if (m >= 0 && strings.has(m)) continue;
    const l = data.label[b] as number;
    if (l >= 0 && labels.has(l)) continue;
    if (kind?.values.has(kind.of[b] as number)) continue;
    if (address !== null && matchesAddress(data, b, address)) continue;
    blocks[b] = 0;
  }
}

function stacksWith(data: Data, word: string): Uint8Array {
  const frames = new Uint8Array(data.frame_name.length);
  const texts = frameTexts(data);
  for (let f = 0; f < frames.length; f++) frames[f] = texts[f]?.includes(word) ? 1 : 0;
  const stacks = new Uint8Array(data.stack_site.length);
  for (let s = 0; s < stacks.length; s++) {
    const stop = data.stack_offset[s + 1] as number;
    for (let i = data.stack_offset[s] as number; i < stop; i++) {
      if (frames[data.stack_frame[i] as number] === 1) {
        stacks[s] = 1;
        break;
      }
    }
  }
  return stacks;
}

function metadataWith(data: Data, word: string): Set<number> {
  const used = metadataStrings.get(data) ?? new Set(data.metadata);
  metadataStrings.set(data, used);
  return new Set([...used].filter((i) => i >= 0 && stringAt(data, i).toLowerCase().includes(word)));
}

const metadataStrings = new WeakMap<Data, Set<number>>();

function labelsWith(data: Data, word: string): Set<number> {
  const used = labelStrings.get(data) ?? new Set(data.label);
  labelStrings.set(data, used);
  return new Set([...used].filter((i) => i >= 0 && stringAt(data, i).toLowerCase().includes(word)));
}

const labelStrings = new WeakMap<Data, Set<number>>();

/** A query for the blocks of a category or a phase; "phase:" alone for those of no phase. */
export function kindQuery(key: "category" | "phase", label: string): string {
  return `"${key}:${label.replaceAll('"', "")}"`;
}

/** Of "category:optimizer_state" or "phase:forward" the column and the values to look for; null for any other word. */
function kindWith(data: Data, word: string): { of: ArrayLike<number>; values: Set<number> } | null {
  const [, key, wanted] = /^(category|phase):(.*)$/s.exec(word) ?? [];
  if (key === undefined) return null;
  const plain = (text = ""): string => text.toLowerCase().replace(/_/g, " ").replace(/"/g, "");
  const { categories, phases } = data.header;
  const names = key === "phase" ? phases.map((name) => stringAt(data, name)) : categories;
  const values = new Set([...names.keys()].filter((i) => plain(names[i]) === plain(wanted)));
  if (wanted === "") values.add(-1);
  return { of: key === "phase" ? data.phase : data.category, values };
}

const textsOfFrames = new WeakMap<Data, string[]>();

/** What a word is compared with, one text a frame: "path:line function", and the label as shown on screen. */
function frameTexts(data: Data): string[] {
  const known = textsOfFrames.get(data);
  if (known !== undefined) return known;
  const texts: string[] = [];
  for (let f = 0; f < data.frame_name.length; f++) {
    const file = stringAt(data, data.frame_file[f] as number);
    const name = stringAt(data, data.frame_name[f] as number);
    const label = stringAt(data, data.frame_label[f] as number);
    texts.push(`${file}:${data.frame_line[f]}\n${name}\n${label}`.toLowerCase());
  }
  textsOfFrames.set(data, texts);
  return texts;
}

function parseAddress(word: string): AddressQuery | null {
  const hex = /^0x([0-9a-f]{1,16})$/.exec(word);
  if (hex !== null) return { ...halves(hex[1] as string), use: null, whole: false };
  const name = /^b([0-9a-f]{1,16})(?:_(\d*))?$/.exec(word);
  if (name === null) return null;
  const digits = name[1] as string;
  const use = name[2];
  if (use === undefined && digits.length < NAME_DIGITS) return null;
  return { ...halves(digits), use: use === undefined || use === "" ? null : Number(use), whole: use !== undefined };
}

function halves(text: string): { hi: number; lo: number; digits: number } {
  const digits = text.replace(/^0+(?=.)/, "");
  return {
    hi: digits.length > 8 ? Number.parseInt(digits.slice(0, -8), 16) : 0,
    lo: Number.parseInt(digits.slice(-8), 16),
    digits: digits.length,
  };
}

function matchesAddress(data: Data, block: number, query: AddressQuery): boolean {
  const hi = data.address_hi[block] as number;
  const lo = data.address_lo[block] as number;
  if (query.use !== null && query.use !== data.use[block]) return false;
  if (hi === query.hi && lo === query.lo) return true;
  if (query.whole) return false;
  // An address inside the block, as error messages name them. Distances are exact where they are below 2^53.
  const distance = (query.hi - hi) * 0x1_0000_0000 + (query.lo - lo);
  if (distance > 0 && distance < (data.size[block] as number)) return true;
  // The first digits: shift the address right until as many are left as were typed.
  const length = hi === 0 ? Math.max(1, 8 - (Math.clz32(lo) >> 2)) : 16 - (Math.clz32(hi) >> 2);
  const shift = 4 * (length - query.digits);
  if (shift <= 0) return false;
  if (shift >= 32) return query.hi === 0 && hi >>> (shift - 32) === query.lo;
  return hi >>> shift === query.hi && ((lo >>> shift) | (hi << (32 - shift))) >>> 0 === query.lo;
}

function result(data: Data, timeline: Timeline, query: string, blocks: Uint8Array | null, count: number): SearchResult {
  let peak: { bytes: number; moment: number } | null = null;
  return {
    query,
    blocks,
    count,
    bytesAt(moment) {
      let bytes = 0;
      if (blocks !== null && count > 0) {
        for (const b of timeline.liveAt(moment)) if (blocks[b] === 1) bytes += data.size[b] as number;
      }
      return bytes;
    },
    max() {
      peak ??= blocks === null || count === 0 ? { bytes: 0, moment: 0 } : highest(timeline, blocks);
      return peak;
    },
  };
}

function highest(timeline: Timeline, blocks: Uint8Array): { bytes: number; moment: number } {
  const change = new Float64Array(timeline.nEvents + 2);
  const { alloc_event, size } = timeline.history;
  for (let b = 0; b < blocks.length; b++) {
    if (blocks[b] === 0) continue;
    const made = (alloc_event[b] as number) + 1;
    const gone = Math.min(timeline.nEvents, timeline.solidEnd[b] as number) + 1;
    change[made] = (change[made] as number) + (size[b] as number);
    change[gone] = (change[gone] as number) - (size[b] as number);
  }
  let bytes = 0;
  let now = 0;
  let moment = 0;
  for (let m = 0; m <= timeline.nEvents; m++) {
    now += change[m] as number;
    if (now > bytes) {
      bytes = now;
      moment = m;
    }
  }
  return { bytes, moment };
}
