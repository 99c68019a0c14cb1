// What a frame of the Live view is called, and its colour. Pure.

import { CPP, frameAt, NO_SITE, nativeHint, USER } from "./facts.js";
import { NO_STACK, type Paths, ROOT, type Tree } from "./live.js";
import { type Data, type Palette, stringAt } from "./wire.js";

export interface Words {
  label: string;
  /** What stands beside it, less loud. */
  note: string;
}

export interface Paint {
  /** "#rrggbb", or empty for frames that have none of their own. */
  color: string;
  pale: boolean;
}

function frameWords(data: Data, row: number): string {
  const { kind, name, file, line } = frameAt(data, row);
  const known = stringAt(data, data.frame_label[row] ?? -1);
  if (known && kind === USER) return known;
  const where = file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);
  if (kind === USER) return `${where}:${line} in ${name}`;
  return where && where !== "??" ? `${name} · ${where}` : name;
}

/** An element of a path: a frame, a folded run, or one of the two that are no frames. */
export function wordsOf(data: Data, paths: Paths, element: number): Words {
  if (element === ROOT) return { label: "live", note: "" };
  if (element === NO_STACK) return { label: NO_SITE, note: "" };
  if (element >= 0) return { label: frameWords(data, element), note: "" };
  const { name = "", least = 0, most = 0 } = paths.groups[~element] ?? {};
  return { label: name, note: `${least}${most > least ? ` to ${most}` : ""} frames folded` };
}

/** What a run is called, outermost frame first: the innermost frame of Python says what the user's line called. */
export function runName(data: Data, frames: readonly number[]): string {
  const inner = [...frames].reverse();
  const python = inner.find((row) => stringAt(data, data.frame_file[row] ?? -1).endsWith(".py"));
  // C++ alone is told as elsewhere.
  const hint = python === undefined ? nativeHint(inner.map((row) => frameAt(data, row))) : "";
  const told = python ?? inner.find((row) => data.frame_kind[row] === CPP) ?? inner[0] ?? -1;
  return hint || frameWords(data, told);
}

/** A frame that is a call site has its colour; what it calls is paler; what leads to it has none. One entry a node. */
export function paintOf(data: Data, palette: Palette, tree: Tree): Paint[] {
  const own = new Map<number, string>();
  for (const [stack, site] of data.stack_site.entries()) {
    const color = palette.site[data.stack_color[stack] as number];
    if (site >= 0 && color) own.set(site, color);
  }
  const painted: Paint[] = [];
  for (let i = 0; i < tree.length; i++) {
    const element = tree.element[i] as number;
    const above = painted[tree.parent[i] as number]?.color ?? "";
    const mine = own.get(element) ?? "";
    const leads = i === 0 || (element >= 0 && data.frame_kind[element] === USER);
    if (element === NO_STACK) painted.push({ color: palette.none, pale: false });
    else if (mine) painted.push({ color: mine, pale: false });
    else painted.push({ color: leads ? "" : above || palette.none, pale: true });
  }
  return painted;
}
