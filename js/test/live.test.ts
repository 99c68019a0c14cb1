/** What was live by stack and site: against Python's sums, and against a slow walk over single blocks. */

import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { random } from "../bench/history.js";
import { buildTree, childrenOf, follow, NO_STACK, Paths, pathTo, ROOT, siteRows, sumStacks } from "../src/live.js";
import { Timeline } from "../src/timeline.js";
import type { Data } from "../src/wire.js";
import { golden, readGolden } from "./golden.js";
import { randomHistory } from "./histories.js";

const names = readdirSync(golden, { withFileTypes: true }).filter((entry) => entry.isDirectory());

describe.each(names.map((entry) => entry.name))("golden %s", (name) => {
  const data = readGolden(name);
  const timeline = new Timeline(data);
  const expected: [string, number, number][][] = JSON.parse(
    readFileSync(new URL(`${name}/sites.json`, golden), "utf8"),
  );

  it("has the sites that Python has, in its order, at every moment", () => {
    expect(expected.length).toBe(data.n_events + 1);
    for (const [moment, rows] of expected.entries()) {
      const found = siteRows(data, sumStacks(data, timeline, moment));
      expect(
        found.map(({ label, bytes, blocks }) => [label, bytes, blocks]),
        `moment ${moment}`,
      ).toEqual(rows);
    }
  });
});

/** Frames 0 to 5 are the user's, 6 to 11 a library's, 12 to 14 C++, 15 plumbing. */
const KINDS = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3];

/** Random stacks, innermost first, on a random history; a tenth of the blocks has none. */
function withStacks(seed: number, stacks: number): Data {
  const data = randomHistory(seed, 400, 12);
  const next = random(seed + 1);
  const frames: number[] = [];
  const offset = [0];
  for (let s = 0; s < stacks; s++) {
    const length = 1 + Math.floor(next() * 9);
    for (let i = 0; i < length; i++) frames.push(Math.floor(next() * KINDS.length));
    offset.push(frames.length);
  }
  return {
    ...data,
    stack: Int32Array.from(data.size, () => (next() < 0.1 ? -1 : Math.floor(next() * stacks))),
    stack_offset: Int32Array.from(offset),
    stack_frame: Int32Array.from(frames),
    stack_site: new Int32Array(stacks).fill(-1),
    frame_kind: Uint8Array.from(KINDS),
  };
}

interface Slow {
  bytes: number;
  own: number;
  blocks: number;
  largest: number;
  oldest: number;
}

/** Path -> sums, block by block; folded runs are written as one word. */
function slow(data: Data, moment: number, since: number, opened: boolean, mask: (b: number) => boolean) {
  const nodes = new Map<string, Slow & { lit: number }>();
  const lives = (b: number, m: number): boolean => {
    const freed = [data.free_requested_event[b] as number, data.free_event[b] as number].filter((e) => e !== -1);
    return (data.alloc_event[b] as number) < m && freed.every((e) => e >= m) && !freed.includes(-2);
  };
  for (let b = 0; b < data.n_blocks; b++) {
    if (!lives(b, moment) || (since >= 0 && lives(b, since))) continue;
    const s = data.stack[b] as number;
    const frames =
      s < 0 ? [] : Array.from(data.stack_frame.subarray(data.stack_offset[s], data.stack_offset[s + 1])).reverse();
    frames.splice(0, frames.length, ...frames.filter((f) => KINDS[f] !== 3));
    const first = frames.findIndex((f) => KINDS[f] === 0);
    const words: string[] = [];
    let run: number[] = [];
    for (const f of [...frames.slice(Math.max(first, 0)), -1]) {
      if (f >= 0 && KINDS[f] !== 0) {
        run.push(f);
      } else {
        if (run.length > 0) words.push(...(opened || run.length === 1 ? run.map(String) : [`r${run.at(-1)}`]));
        run = [];
        if (f >= 0) words.push(String(f));
      }
    }
    if (words.length === 0) words.push("none");
    for (let depth = 0; depth <= words.length; depth++) {
      const key = words.slice(0, depth).join("/");
      const node = nodes.get(key) ?? { bytes: 0, own: 0, blocks: 0, largest: b, oldest: 1e9, lit: 0 };
      const size = data.size[b] as number;
      node.bytes += size;
      node.lit += mask(b) ? size : 0;
      node.own += depth === words.length ? size : 0;
      node.blocks += 1;
      node.oldest = Math.min(node.oldest, data.alloc_event[b] as number);
      if (size > (data.size[node.largest] as number)) node.largest = b;
      nodes.set(key, node);
    }
  }
  return nodes;
}

describe("the tree", () => {
  it.each([
    [1, false, -1],
    [2, true, -1],
    [3, false, 120],
    [4, true, 390],
  ])(
    "of random stacks is what a walk over single blocks gives (seed %i, opened %s, since %i)",
    (seed, opened, since) => {
      const data = withStacks(seed, 60);
      const timeline = new Timeline(data);
      const mask = Uint8Array.from(data.size, (_, b) => (b % 3 === 0 ? 1 : 0));
      for (const moment of [0, 97, 250, 400]) {
        // Runs of one innermost frame fold together.
        const paths = new Paths(data, (frames) => `r${frames.at(-1)}`);
        const sums = sumStacks(data, timeline, moment, since, mask);
        const tree = buildTree(data, sums, paths, () => opened);
        const word = (what: number): string =>
          what === NO_STACK ? "none" : what < 0 ? (paths.groups[~what]?.name ?? "") : String(what);
        const found = new Map<string, Slow & { lit: number }>();
        for (let i = 0; i < tree.length; i++) {
          if (tree.blocks[i] === 0) continue;
          found.set(pathTo(tree, i).map(word).join("/"), {
            bytes: tree.bytes[i] as number,
            own: tree.own[i] as number,
            blocks: tree.blocks[i] as number,
            largest: tree.largest[i] as number,
            oldest: tree.oldest[i] as number,
            lit: tree.lit[i] as number,
          });
        }
        expect(found).toEqual(slow(data, moment, since, opened, (b) => mask[b] === 1));
        expect([sums.total, sums.count]).toEqual([tree.bytes[0], tree.blocks[0]]);
      }
    },
  );

  it("lies as an icicle: children side by side under their parent, largest first", () => {
    const data = withStacks(5, 60);
    const tree = buildTree(data, sumStacks(data, new Timeline(data), 300), new Paths(data, String), () => true);
    expect([tree.element[0], tree.from[0], tree.end[0]]).toEqual([ROOT, 0, tree.length]);
    for (let i = 0; i < tree.length; i++) {
      let edge = tree.from[i] as number;
      let before = Number.POSITIVE_INFINITY;
      for (const child of childrenOf(tree, i)) {
        expect([tree.parent[child], tree.depth[child]]).toEqual([i, (tree.depth[i] as number) + 1]);
        expect(tree.from[child]).toBe(edge);
        expect(tree.bytes[child]).toBeLessThanOrEqual(before);
        before = tree.bytes[child] as number;
        edge += before;
      }
      expect(edge + (tree.own[i] as number)).toBe((tree.from[i] as number) + (tree.bytes[i] as number));
      expect(follow(tree, pathTo(tree, i))).toBe(i);
    }
  });
});
