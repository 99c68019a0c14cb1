// Plain-word facts about one block, out of the columns: its name, life, site and stack. Pure; the panels put them on
// the page and tests read them.

import { bytes, count, duration } from "./format.js";
import { type Data, FLAG, framesOf, stringAt } from "./wire.js";

/** Values of frame_kind. */
export const USER = 0;
export const LIBRARY = 1;
export const CPP = 2;
export const PLUMBING = 3;

/** Value of band_kind. */
const ANNOTATION = 0;

/** Why a block got its category. */
const REASONS = ["", "identity", "phase", "guess", "rule"];

export interface FrameFacts {
  row: number;
  name: string;
  file: string;
  line: number;
  source: string;
  /** The source is the file's line of today, which may differ from what ran. */
  mayDiffer: boolean;
  kind: number;
}

export function frameAt(data: Data, row: number): FrameFacts {
  const text = (column: Int32Array): string => stringAt(data, column[row] ?? -1);
  return {
    row,
    name: text(data.frame_name),
    file: text(data.frame_file),
    line: data.frame_line[row] ?? 0,
    source: text(data.frame_source),
    mayDiffer: data.frame_source_now[row] === 1,
    kind: data.frame_kind[row] ?? USER,
  };
}

/** Innermost first. */
export function stackFrames(data: Data, stack: number): FrameFacts[] {
  return Array.from(framesOf(data, stack), (row) => frameAt(data, row));
}

/** Frame row of the user's innermost frame of a stack, -1 where there is none. */
export function stackSite(data: Data, stack: number): number {
  return stack < 0 ? -1 : (data.stack_site[stack] ?? -1);
}

/** The same of the stack that made a block. */
export function siteRow(data: Data, block: number): number {
  return stackSite(data, data.stack[block] ?? -1);
}

/** A frame as a call site: "train.py:31 in step". */
export function frameLabel(data: Data, row: number): string {
  return stringAt(data, data.frame_label[row] ?? -1);
}

/** What by_site calls everything without a line of the user's. */
export const NO_SITE = "(no Python stack)";

/** "train.py:31 in step". */
export function siteLabel(data: Data, block: number): string {
  const site = siteRow(data, block);
  return site < 0 ? NO_SITE : stringAt(data, data.frame_label[site] ?? -1);
}

/** C++ that stands around every allocation and tells nothing of it. */
const NOISE =
  /^(torch::(unwind|CapturedTraceback|cuda)|c10::|at::(detail|TensorBase|_ops|\(anonymous|(native::)?empty)|gather_|\?\?)/;

/** Without a Python frame, the C++ function that tells most: the backward node, else the outermost call of an operator. */
export function nativeHint(frames: readonly FrameFacts[]): string {
  for (const { name } of frames) {
    const node = /(\w+Backward\d*)::apply/.exec(name)?.[1];
    if (node) {
      return node;
    }
  }
  const backward = frames.some(({ name }) => name.includes("torch::autograd::Engine")) ? "backward, " : "";
  const found = frames.find(({ name, kind }) => kind === CPP && !NOISE.test(name));
  const short = found?.name.replace(/[(<].*$/s, "") ?? "";
  return short ? `${backward}${short}` : backward.replace(", ", "");
}

/** The last two parts of a path: enough to tell files apart, short enough for one line. */
export function shortFile(file: string): string {
  const parts = file.split(/[\\/]/);
  return parts.length > 2 ? parts.slice(-2).join("/") : file;
}

function when(data: Data, event: number): string {
  const time = data.header.has_time ? data.time_us?.[event] : undefined;
  return time === undefined ? "" : `, at ${duration(time)}`;
}

/** Two sentences' worth: when it came and when it went. */
export function lifetime(data: Data, block: number): { born: string; died: string; lived: string } {
  const born = data.alloc_event[block] ?? -1;
  const asked = data.free_requested_event[block] ?? -1;
  const freed = data.free_event[block] ?? -1;
  const flags = data.flags[block] ?? 0;
  const gone = asked >= 0 ? asked : freed;
  const bornText = born < 0 ? "before the recording" : `event ${count(born)}${when(data, born)}`;
  let died = gone < 0 ? "still held at the end" : `event ${count(gone)}${when(data, gone)}`;
  if (flags & FLAG.segmentsOnly && gone < 0) {
    died = "still held at the end (known from the segments only)";
  }
  if (flags & FLAG.freeImplied) {
    died += " (its free was not recorded: the address was used again)";
  }
  const to = gone < 0 ? data.header.n_events : gone;
  const events = to - Math.max(born, 0);
  const start = data.time_us?.[Math.max(born, 0)];
  const end = data.time_us?.[Math.min(to, data.header.n_events - 1)];
  const time = data.header.has_time && start !== undefined && end !== undefined ? `, ${duration(end - start)}` : "";
  const least = born < 0 || gone < 0 ? "at least " : "";
  return { born: bornText, died, lived: `${least}${count(events)} event${events === 1 ? "" : "s"}${time}` };
}

/** What is uncertain about a block, one sentence each. */
export function doubts(data: Data, block: number): string[] {
  const flags = data.flags[block] ?? 0;
  const result: string[] = [];
  if (flags & FLAG.allocMissing && !(flags & FLAG.segmentsOnly)) {
    result.push("Its allocation was not recorded: it existed before, or the history's ring overwrote it.");
  }
  if (flags & FLAG.segmentsOnly) {
    result.push("It is in no event: the segments at the end show it.");
  }
  if (flags & FLAG.forwardStack) {
    result.push("Made in backward, which has no Python stack: shown is the forward that it belongs to.");
  }
  if (flags & FLAG.sizeGuessed) {
    result.push("Its real size follows from the allocator's rule and could not be checked.");
  }
  return result;
}

/** "activation (by phase)"; empty where nothing is known. */
export function categoryText(data: Data, block: number): string {
  const category = data.header.categories[data.category[block] ?? 0] ?? "unknown";
  if (category === "unknown") {
    return "";
  }
  const reason = REASONS[data.reason[block] ?? 0];
  return category.replaceAll("_", " ") + (reason ? ` (by ${reason})` : "");
}

/** Innermost annotations around a moment, outermost first. */
export function annotationsAt(data: Data, moment: number): string[] {
  const found: [number, string][] = [];
  for (let i = 0; i < data.band_kind.length; i++) {
    const within = (data.band_lo[i] as number) < moment && moment <= (data.band_hi[i] as number);
    if (within && data.band_kind[i] === ANNOTATION) {
      found.push([data.band_depth[i] as number, stringAt(data, data.band_name[i] as number)]);
    }
  }
  return found.sort((a, b) => a[0] - b[0]).map(([, text]) => text);
}

/** One line for screen readers and the live region. */
export function blockSentence(data: Data, block: number): string {
  const { lived } = lifetime(data, block);
  return `${siteLabel(data, block)}, ${bytes(data.size[block] ?? 0)}, lived ${lived}`;
}

/** A stack as text, for the clipboard: innermost first, as torch lists it. */
export function stackText(frames: readonly FrameFacts[]): string {
  return frames
    .map(
      ({ file, line, name, source }) =>
        `  File "${file}", line ${line}, in ${name}${source ? `\n    ${source.trim()}` : ""}`,
    )
    .join("\n");
}
