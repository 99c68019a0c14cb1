/**
 * What was live at a moment, summed up: by stack, by call site, and as a tree from the user's code down.
 *
 * Owns the sums and the order of the tree; no DOM, no pixels. Blocks are touched once, to add them to their stack: a
 * recording of a million blocks has some tens or hundreds of stacks, and everything after works on those.
 *
 *     stack (innermost first)     path (outermost user frame first)
 *     linear.py forward           train.py:12 main
 *     module.py _call_impl        train.py:31 step
 *     _PyEval_EvalFrameDefault
 *     train.py:31 step            [2 library frames]     one folded run, or its frames where it was opened
 *     train.py:12 main
 *     runpy.py _run_code          (what called the user's code is left out, and the interpreter calling itself)
 */

import { NO_SITE, PLUMBING, USER } from "./facts.js";
import type { Timeline } from "./timeline.js";
import { type Data, framesOf, stringAt } from "./wire.js";

/** Sums of the live blocks, one entry a stack; the parallel arrays hold only stacks that have any. */
export interface StackSums {
  /** Stack ids; -1 stands for blocks without a stack. */
  stack: Int32Array;
  bytes: Float64Array;
  blocks: Int32Array;
  /** The largest block, the earliest of equals. */
  largest: Int32Array;
  /** The first of the blocks to be made: its event, -1 for one from before the recording. */
  oldest: Int32Array;
  /** Bytes that the search matches; all of them where nothing is searched for. */
  lit: Float64Array;
  total: number;
  count: number;
}

/**
 * Sum up the solid stack at a moment.
 *
 * `since`: leave out what was live at that moment too, -1 for none. `mask`: 1 for each block that a search matches.
 */
export function sumStacks(
  data: Data,
  timeline: Timeline,
  moment: number,
  since = -1,
  mask: Uint8Array | null = null,
): StackSums {
  const n = data.stack_site.length + 1;
  const bytes = new Float64Array(n);
  const lit = new Float64Array(n);
  const blocks = new Int32Array(n);
  const largest = new Int32Array(n).fill(-1);
  const oldest = new Int32Array(n);
  const { size, stack, alloc_event } = data;
  let total = 0;
  let count = 0;
  for (const block of timeline.liveAt(moment)) {
    if (since >= 0 && timeline.isLive(block, since)) continue;
    const at = (stack[block] as number) + 1;
    const amount = size[block] as number;
    // Ids ascend with the event that made them: the first one of a stack is its oldest.
    if (blocks[at] === 0) oldest[at] = alloc_event[block] as number;
    if (largest[at] === -1 || amount > (size[largest[at] as number] as number)) largest[at] = block;
    blocks[at] = (blocks[at] as number) + 1;
    bytes[at] = (bytes[at] as number) + amount;
    if (mask === null || mask[block] === 1) lit[at] = (lit[at] as number) + amount;
    total += amount;
    count += 1;
  }
  const used = Int32Array.from({ length: n }, (_, i) => i).filter((i) => (blocks[i] as number) > 0);
  const pick = <T extends Int32Array | Float64Array>(from: T): T => {
    const out = new (from.constructor as new (length: number) => T)(used.length);
    for (let i = 0; i < used.length; i++) out[i] = from[used[i] as number] as number;
    return out;
  };
  return {
    stack: used.map((i) => i - 1),
    bytes: pick(bytes),
    blocks: pick(blocks),
    largest: pick(largest),
    oldest: pick(oldest),
    lit: pick(lit),
    total,
    count,
  };
}

export interface SiteRow {
  label: string;
  bytes: number;
  blocks: number;
  largest: number;
  oldest: number;
  lit: number;
}

/** By call site, largest first, as Python's `Trace.by_site`: sites of one label go together. */
export function siteRows(data: Data, sums: StackSums): SiteRow[] {
  const rows = new Map<string, SiteRow>();
  for (let i = 0; i < sums.stack.length; i++) {
    const site = data.stack_site[sums.stack[i] as number] ?? -1;
    const label = site < 0 ? NO_SITE : stringAt(data, data.frame_label[site] as number);
    const largest = sums.largest[i] as number;
    const oldest = sums.oldest[i] as number;
    let row = rows.get(label);
    if (!row) {
      row = { label, bytes: 0, blocks: 0, largest, oldest, lit: 0 };
      rows.set(label, row);
    }
    row.bytes += sums.bytes[i] as number;
    row.lit += sums.lit[i] as number;
    row.blocks += sums.blocks[i] as number;
    row.largest = larger(data, row.largest, largest);
    row.oldest = Math.min(row.oldest, oldest);
  }
  return [...rows.values()].sort((a, b) => b.bytes - a.bytes || (a.label < b.label ? -1 : 1));
}

function larger(data: Data, a: number, b: number): number {
  const more = (data.size[b] as number) - (data.size[a] as number);
  return more > 0 || (more === 0 && b < a) ? b : a;
}

/** Frames that are not the user's, between two that are or at the inner end: outermost first. */
export interface Run {
  /** Runs of one name fold into one node. */
  group: number;
  frames: readonly number[];
}

/** Paths of stacks: frame rows and runs, from the outermost user frame inward. */
export class Paths {
  /** Of each group: its name, and the least and most frames of its runs. */
  readonly groups: { name: string; least: number; most: number }[] = [];
  readonly #data: Data;
  readonly #name: (frames: readonly number[]) => string;
  readonly #known = new Map<string, number>();
  readonly #paths = new Map<number, (number | Run)[]>();

  /** `name`: what a run is called, from its frames. */
  constructor(data: Data, name: (frames: readonly number[]) => string) {
    this.#data = data;
    this.#name = name;
  }

  /** Outermost first; empty for blocks without a stack, or with one of plumbing alone. */
  of(stack: number): readonly (number | Run)[] {
    let path = this.#paths.get(stack);
    if (!path) {
      path = this.#work(stack);
      this.#paths.set(stack, path);
    }
    return path;
  }

  /** The elements of a path: frame rows, and ~group for a run that is folded. */
  elements(stack: number, opened: (group: number) => boolean): number[] {
    const path = this.of(stack);
    if (path.length === 0) return [NO_STACK];
    return path.flatMap((part) => (typeof part === "number" ? part : opened(part.group) ? part.frames : ~part.group));
  }

  #work(stack: number): (number | Run)[] {
    const { frame_kind } = this.#data;
    const frames = framesOf(this.#data, stack);
    const path: (number | Run)[] = [];
    let run: number[] = [];
    const close = (): void => {
      // One frame is as short as its fold.
      if (run.length > 0) path.push(run.length === 1 ? (run[0] as number) : this.#run(run));
      run = [];
    };
    let from = frames.length - 1;
    while (from >= 0 && frame_kind[frames[from] as number] !== USER) from--;
    // Without a frame of the user's, all of it is told.
    for (let i = from < 0 ? frames.length - 1 : from; i >= 0; i--) {
      const frame = frames[i] as number;
      if (frame_kind[frame] === USER) {
        close();
        path.push(frame);
      } else if (frame_kind[frame] !== PLUMBING) {
        run.push(frame);
      }
    }
    close();
    return path;
  }

  #run(frames: number[]): Run {
    const name = this.#name(frames);
    let group = this.#known.get(name);
    if (group === undefined) {
      group = this.groups.push({ name, least: frames.length, most: frames.length }) - 1;
      this.#known.set(name, group);
    }
    const known = this.groups[group] as { least: number; most: number };
    known.least = Math.min(known.least, frames.length);
    known.most = Math.max(known.most, frames.length);
    return { group, frames };
  }
}

/** Element of the root, and of the node that holds blocks without a stack. */
export const ROOT = 0x7fffffff;
export const NO_STACK = 0x7ffffffe;

/** Nodes in preorder: the subtree of i is i .. end[i]; siblings stand by bytes, largest first. */
export interface Tree {
  length: number;
  element: Int32Array;
  parent: Int32Array;
  depth: Int32Array;
  end: Int32Array;
  bytes: Float64Array;
  /** Bytes of blocks whose innermost frame this is. */
  own: Float64Array;
  lit: Float64Array;
  blocks: Int32Array;
  largest: Int32Array;
  oldest: Int32Array;
  /** Bytes to the left of it, from the root's left edge. */
  from: Float64Array;
}

/** `opened`: whether the frames of a group of runs stand one by one. */
export function buildTree(data: Data, sums: StackSums, paths: Paths, opened: (group: number) => boolean): Tree {
  const parent = [-1];
  const element = [ROOT];
  const children: number[][] = [[]];
  const leaf = new Int32Array(sums.stack.length);
  const known = new Map<number, number>();
  for (let i = 0; i < leaf.length; i++) {
    const stack = sums.stack[i] as number;
    let node = 0;
    const down = (what: number): void => {
      // Runs are negative: two halves of one number that stays exact.
      const key = node * 0x100000000 + (what >>> 0);
      let child = known.get(key);
      if (child === undefined) {
        child = parent.push(node) - 1;
        element.push(what);
        children.push([]);
        (children[node] as number[]).push(child);
        known.set(key, child);
      }
      node = child;
    };
    for (const what of paths.elements(stack, opened)) down(what);
    leaf[i] = node;
  }
  const n = parent.length;
  const bytes = new Float64Array(n);
  const lit = new Float64Array(n);
  const blocks = new Int32Array(n);
  const largest = new Int32Array(n).fill(-1);
  const oldest = new Int32Array(n).fill(ROOT);
  const add = (to: number, from: { bytes: number; lit: number; blocks: number; largest: number; oldest: number }) => {
    bytes[to] = (bytes[to] as number) + from.bytes;
    lit[to] = (lit[to] as number) + from.lit;
    blocks[to] = (blocks[to] as number) + from.blocks;
    largest[to] = largest[to] === -1 ? from.largest : larger(data, largest[to] as number, from.largest);
    oldest[to] = Math.min(oldest[to] as number, from.oldest);
  };
  const entry = (
    from: { bytes: Float64Array; lit: Float64Array; blocks: Int32Array; largest: Int32Array; oldest: Int32Array },
    i: number,
  ) => ({
    bytes: from.bytes[i] as number,
    lit: from.lit[i] as number,
    blocks: from.blocks[i] as number,
    largest: from.largest[i] as number,
    oldest: from.oldest[i] as number,
  });
  for (let i = 0; i < leaf.length; i++) add(leaf[i] as number, entry(sums, i));
  const own = bytes.slice();
  // A parent was made before its children.
  for (let i = n - 1; i > 0; i--) add(parent[i] as number, entry({ bytes, lit, blocks, largest, oldest }, i));

  const order = new Int32Array(n);
  const depths = new Int32Array(n);
  const stack = [0];
  for (let at = 0; stack.length > 0; at++) {
    const node = stack.pop() as number;
    order[at] = node;
    const below = children[node] as number[];
    below.sort(
      (a, b) => (bytes[a] as number) - (bytes[b] as number) || (element[b] as number) - (element[a] as number),
    );
    for (const child of below) depths[child] = (depths[node] as number) + 1;
    stack.push(...below);
  }
  const place = new Int32Array(n);
  for (let at = 0; at < n; at++) place[order[at] as number] = at;
  const sorted = <T extends Int32Array | Float64Array>(values: T): T =>
    (values.slice() as T).map((_, at) => values[order[at] as number] as number) as T;
  const tree: Tree = {
    length: n,
    element: sorted(Int32Array.from(element)),
    parent: sorted(Int32Array.from(parent, (each) => (each < 0 ? -1 : (place[each] as number)))),
    depth: sorted(depths),
    end: new Int32Array(n).fill(n),
    bytes: sorted(bytes),
    own: sorted(own),
    lit: sorted(lit),
    blocks: sorted(blocks),
    largest: sorted(largest),
    oldest: sorted(oldest),
    from: new Float64Array(n),
  };
  // A subtree ends where the next node stands that is no deeper; edges follow from the sibling before.
  const open: number[] = [];
  const filled = new Float64Array(n);
  for (let at = 0; at < n; at++) {
    while (open.length > 0 && (tree.depth[open.at(-1) as number] as number) >= (tree.depth[at] as number)) {
      tree.end[open.pop() as number] = at;
    }
    open.push(at);
    const above = tree.parent[at] as number;
    if (above >= 0) {
      tree.from[at] = (tree.from[above] as number) + (filled[above] as number);
      filled[above] = (filled[above] as number) + (tree.bytes[at] as number);
    }
  }
  return tree;
}

/** Children of a node, largest first. */
export function childrenOf(tree: Tree, node: number): number[] {
  const found: number[] = [];
  for (let at = node + 1; at < (tree.end[node] as number); at = tree.end[at] as number) found.push(at);
  return found;
}

/** Elements from the root down to a node, without the root. */
export function pathTo(tree: Tree, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at > 0; at = tree.parent[at] as number) path.unshift(tree.element[at] as number);
  return path;
}

/** The node of a path, or the deepest one on the way to it. */
export function follow(tree: Tree, path: readonly number[]): number {
  let node = 0;
  for (const what of path) {
    const next = childrenOf(tree, node).find((child) => tree.element[child] === what);
    if (next === undefined) break;
    node = next;
  }
  return node;
}
