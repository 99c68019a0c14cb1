// The Live view: what was live at a moment, as a flame graph and as a list. Owns the moment it compares with (the mark),
// the frame it is zoomed to, which runs of library frames are open, and the words of it all; the parts draw.

import type { Loaded } from "./app.js";
import { button, h, name, setText } from "./dom.js";
import { NO_SITE } from "./facts.js";
import { Flame } from "./flame.js";
import { bytes, bytesExact, count, share } from "./format.js";
import {
  buildTree,
  childrenOf,
  follow,
  NO_STACK,
  Paths,
  pathTo,
  ROOT,
  type StackSums,
  siteRows,
  sumStacks,
  type Tree,
} from "./live.js";
import { type Entry, LiveList } from "./live_list.js";
import { type Paint, paintOf, runName, type Words, wordsOf } from "./live_words.js";
import type { Axis } from "./model.js";
import { livePanel } from "./panel_live.js";
import { Scrub } from "./scrub.js";
import { quoted } from "./search.js";
import type { Theme } from "./theme.js";

/** A tree of more frames takes seconds to build; folded it is a few per cent of that. */
const MOST_FRAMES = 300_000;

export interface LiveActions {
  moment(moment: number): void;
  /** Says what is pointed at, null for nothing. */
  tip(entry: Entry | null, x: number, y: number): void;
  panel(): void;
  /** For screen readers: where the keys stand now. */
  say(text: string): void;
  /** Lights a call site up, or puts it out. */
  site(label: string): void;
  /** To a block on the timeline. */
  timeline(block: number): void;
}

/** What the app knows. */
export interface LiveLook {
  loaded: Loaded;
  moment: number;
  mask: Uint8Array | null;
  query: string;
  theme: Theme;
  axis: Axis;
}

export class LiveView {
  readonly element: HTMLElement;
  readonly flame: Flame;
  readonly #actions: LiveActions;
  readonly #list: LiveList;
  readonly #scrub: Scrub;
  readonly #total = h("b", { class: "mw-total" });
  readonly #told = h("span", { class: "mw-muted" });
  readonly #mark = button("Mark this moment", "Then go on to another moment and see what is new there (M)");
  readonly #all = button("all", "Everything that is live", "mw-segment");
  readonly #since = button("new since the mark", "Live now and not at the mark", "mw-segment");
  readonly #modes = h(
    "div",
    { class: "mw-group", role: "group", "aria-label": "Which blocks" },
    this.#all,
    this.#since,
  );
  readonly #library = button("library frames", "Show the frames of libraries one by one", "mw-segment");
  readonly #crumbs = h("nav", { class: "mw-crumbs", "aria-label": "Zoomed to" });
  readonly #sites = button("Call sites", "The lines that hold most", "mw-segment");
  readonly #frames = button("Tree", "From your code down", "mw-segment");
  #look: LiveLook | null = null;
  #paths: Paths | null = null;
  #of: Loaded | null = null;
  #sums: StackSums | null = null;
  #tree: Tree | null = null;
  #colors: Paint[] = [];
  #zoomed = 0;
  #cursor = -1;
  #hovered: Entry | null = null;
  mark = -1;
  #sinceMark = false;
  #unfolded = false;
  #asTree = false;
  readonly #opened = new Set<number>();
  /** Paths of nodes that the user opened or closed, against the rule that opens what holds most. */
  readonly #turned = new Map<string, boolean>();

  constructor(actions: LiveActions, signal: AbortSignal) {
    this.#actions = actions;
    this.flame = new Flame(
      {
        hover: (node, x, y) => {
          const entry = node < 0 ? null : this.#entry(node);
          this.#hover(entry);
          actions.tip(entry, x, y + this.flame.element.offsetTop);
        },
        click: (node) => this.zoom(node === this.#zoomed ? (this.#tree?.parent[node] ?? 0) : node),
        move: (node) => this.#point(node),
      },
      signal,
    );
    this.#list = new LiveList(
      {
        pick: (entry) => this.#pick(entry),
        toggle: (entry) => this.#toggle(entry),
        largest: (entry) => actions.timeline(entry.largest),
        hover: (entry) => this.#hover(entry),
        sorted: () => this.#showList(),
      },
      signal,
    );
    this.#scrub = new Scrub((moment) => actions.moment(moment), signal);
    this.#mark.addEventListener("click", () => this.setMark());
    this.#all.addEventListener("click", () => this.#set(() => (this.#sinceMark = false)));
    this.#since.addEventListener("click", () => this.#set(() => (this.#sinceMark = true)));
    this.#library.addEventListener("click", () => this.#set(() => (this.#unfolded = !this.#unfolded)));
    this.#sites.addEventListener("click", () => this.#set(() => (this.#asTree = false)));
    this.#frames.addEventListener("click", () => this.#set(() => (this.#asTree = true)));
    this.element = h(
      "div",
      { class: "mw-live" },
      h(
        "div",
        { class: "mw-live-head" },
        this.#total,
        this.#told,
        h("span", { class: "mw-live-tools" }, this.#modes, this.#mark),
      ),
      this.#scrub.element,
      h("div", { class: "mw-live-bar" }, this.#crumbs, this.#library),
      this.flame.element,
      h(
        "div",
        { class: "mw-live-bar" },
        h("div", { class: "mw-group", role: "group", "aria-label": "List" }, this.#sites, this.#frames),
      ),
      this.#list.element,
    );
  }

  #set(change: () => void): void {
    change();
    if (this.#look) this.show(this.#look);
  }

  readonly #isUnfolded = (group: number): boolean => this.#unfolded || this.#opened.has(group);

  /** Marks the moment, or takes the mark away where it stands here. */
  setMark(): void {
    const moment = this.#look?.moment ?? -1;
    this.#set(() => {
      this.mark = this.mark === moment ? -1 : moment;
      this.#sinceMark = this.mark >= 0;
    });
  }

  show(look: LiveLook): void {
    const { loaded, moment } = look;
    const { data, engine } = loaded;
    if (this.#of !== loaded) {
      this.#of = loaded;
      this.#paths = new Paths(data, (frames) => runName(data, frames));
      this.mark = this.#cursor = -1;
      this.#zoomed = 0;
      this.#sinceMark = false;
      this.#opened.clear();
      this.#turned.clear();
    }
    this.#look = look;
    const since = this.#sinceMark ? this.mark : -1;
    const before = this.#tree;
    const kept = before ? [this.#zoomed, this.#cursor].map((node) => (node < 0 ? null : pathTo(before, node))) : [];
    this.#sums = sumStacks(data, engine.timeline, moment, since, look.mask);
    const paths = this.#paths as Paths;
    this.#tree = buildTree(data, this.#sums, paths, this.#isUnfolded);
    const [zoomed, cursor] = kept.map((path) => (path ? follow(this.#tree as Tree, path) : -1));
    this.#zoomed = Math.max(zoomed ?? 0, 0);
    this.#cursor = cursor ?? -1;
    this.#colors = paintOf(data, data.header.palette[look.theme], this.#tree);
    this.#say();
    this.#scrub.show({
      timeline: engine.timeline,
      axis: look.axis,
      theme: look.theme,
      moment,
      mark: this.mark,
      accent: data.header.palette[look.theme].accent,
    });
    this.#showFlame();
    this.#showList();
  }

  #say(): void {
    const { loaded, moment } = this.#look as LiveLook;
    const { total, count: blocks, lit } = this.#sums as StackSums;
    const { allocated } = loaded.engine.timeline;
    const now = allocated[moment] ?? 0;
    const at = moment === loaded.data.header.peak_event ? "at the peak" : `at moment ${count(moment)}`;
    const held = `${count(blocks)} block${blocks === 1 ? "" : "s"}`;
    const found = this.#look?.mask ? `, ${bytes(lit.reduce((sum, each) => sum + each, 0))} of it found` : "";
    setText(this.#total, this.#sinceMark ? `${bytes(total)} new` : `${bytes(total)} live`);
    this.#total.title = bytesExact(total);
    const gone = (allocated[this.mark] ?? 0) - (now - total);
    setText(
      this.#told,
      this.#sinceMark
        ? `${at} and not at ${count(this.mark)}, in ${held}${found}; ${bytes(gone)} that were live then are gone`
        : `${at}, in ${held}${found}`,
    );
    const frames = this.#frameCount();
    this.#library.disabled = frames > MOST_FRAMES && !this.#unfolded;
    this.#library.title = this.#library.disabled
      ? `${count(frames)} frames are too many to show one by one; open single folds`
      : "Show the frames of libraries one by one";
    setText(this.#mark, this.mark >= 0 && this.mark === moment ? "Take the mark away" : "Mark this moment");
    this.#modes.hidden = this.mark < 0;
    setText(this.#since, `new since ${count(Math.max(this.mark, 0))}`);
    for (const [each, on] of [
      [this.#all, !this.#sinceMark],
      [this.#since, this.#sinceMark],
      [this.#library, this.#unfolded],
      [this.#sites, !this.#asTree],
      [this.#frames, this.#asTree],
    ] as const) {
      each.setAttribute("aria-pressed", String(on));
    }
    Object.assign(this.element.dataset, {
      moment,
      mark: this.mark,
      total,
      nodes: this.#tree?.length,
    });
  }

  #words(node: number): Words {
    const words = wordsOf(
      (this.#look as LiveLook).loaded.data,
      this.#paths as Paths,
      this.#tree?.element[node] ?? ROOT,
    );
    return node === 0 && this.#sinceMark ? { ...words, label: "new since the mark" } : words;
  }

  #entry(node: number): Entry {
    const tree = this.#tree as Tree;
    const { data } = (this.#look as LiveLook).loaded;
    const element = tree.element[node] as number;
    const folded = element < 0;
    const below = (tree.end[node] as number) > node + 1;
    const largest = tree.largest[node] as number;
    return {
      key: pathTo(tree, node).join(),
      node,
      ...this.#words(node),
      ...(this.#colors[node] as Paint),
      bytes: tree.bytes[node] as number,
      own: tree.own[node] as number,
      blocks: tree.blocks[node] as number,
      largest,
      largestBytes: data.size[largest] ?? 0,
      oldest: tree.oldest[node] as number,
      lit: tree.lit[node] as number,
      level: (tree.depth[node] as number) - (tree.depth[this.#zoomed] as number),
      fold: below || folded ? (this.#isOpen(node) && below ? "open" : "closed") : "",
    };
  }

  // ---- the parts ----

  #showFlame(): void {
    const tree = this.#tree as Tree;
    const { theme } = this.#look as LiveLook;
    this.flame.show({
      tree,
      zoomed: this.#zoomed,
      cursor: this.#cursor,
      theme,
      label: (node) => this.#words(node).label,
      color: (node) => this.#colors[node] as Paint,
    });
    const crumbs: number[] = [];
    for (let at = this.#zoomed; at >= 0; at = tree.parent[at] as number) crumbs.unshift(at);
    this.#crumbs.replaceChildren(
      ...crumbs.map((node, i) => {
        const { label } = this.#words(node);
        if (i === crumbs.length - 1) return h("span", { "aria-current": "true" }, name(label, "", 120));
        const crumb = h("button", { type: "button", class: "mw-link" }, name(label, "", 60));
        crumb.addEventListener("click", () => this.zoom(node));
        return crumb;
      }),
    );
    this.element.dataset.zoomed = String(crumbs.length - 1);
  }

  /** What holds most is open from the start: as far as one child has half of its parent. */
  #isOpen(node: number): boolean {
    const tree = this.#tree as Tree;
    const turned = this.#turned.get(pathTo(tree, node).join());
    if (turned !== undefined) return turned;
    const above = tree.parent[node] as number;
    return node === this.#zoomed || 2 * (tree.bytes[node] as number) >= (tree.bytes[Math.max(above, 0)] as number);
  }

  #showList(): void {
    const { loaded, query } = this.#look as LiveLook;
    const tree = this.#tree as Tree;
    const entries: Entry[] = [];
    if (this.#asTree) {
      const walk = [this.#zoomed];
      while (walk.length > 0) {
        const node = walk.pop() as number;
        const entry = this.#entry(node);
        entries.push(entry);
        if (entry.fold === "open") {
          const below = childrenOf(tree, node).map((child) => this.#entry(child));
          walk.push(...below.sort((a, b) => this.#list.compare(b, a)).map((each) => each.node));
        }
      }
    } else {
      entries.push(...this.#siteEntries(loaded).sort((a, b) => this.#list.compare(a, b)));
    }
    const picked = this.#asTree
      ? this.#cursor < 0
        ? ""
        : pathTo(tree, this.#cursor).join()
      : (entries.find((entry) => quoted(entry.label) === query)?.key ?? "");
    const whole = tree.bytes[this.#zoomed] as number;
    this.#list.show(entries, this.#asTree, whole, picked);
  }

  /** Call sites of the frame that is zoomed to. */
  #siteEntries({ data }: Loaded): Entry[] {
    const sums = this.#sums as StackSums;
    const into = pathTo(this.#tree as Tree, this.#zoomed);
    const inside = (stack: number): boolean => {
      const all = (this.#paths as Paths).elements(stack, this.#isUnfolded);
      return into.every((what, i) => all[i] === what);
    };
    const keep = sums.stack.map((stack) => (inside(stack) ? 1 : 0));
    const only = <T extends Int32Array | Float64Array>(values: T): T => values.filter((_, i) => keep[i] === 1) as T;
    const { stack, bytes: sizes, blocks, largest, oldest, lit } = sums;
    const rows = siteRows(data, {
      ...sums,
      stack: only(stack),
      bytes: only(sizes),
      blocks: only(blocks),
      largest: only(largest),
      oldest: only(oldest),
      lit: only(lit),
    });
    const palette = data.header.palette[(this.#look as LiveLook).theme];
    return rows.map((row) => {
      const made = data.stack[row.largest] ?? -1;
      return {
        ...row,
        key: row.label,
        node: -1,
        note: "",
        color: (made < 0 ? undefined : palette.site[data.stack_color[made] as number]) ?? palette.none,
        pale: false,
        own: row.bytes,
        largestBytes: data.size[row.largest] ?? 0,
        level: 0,
        fold: "",
      };
    });
  }

  /** Frames of all stacks that are live. */
  #frameCount(): number {
    const { stack_offset } = (this.#look as LiveLook).loaded.data;
    let frames = 0;
    for (const stack of (this.#sums as StackSums).stack) {
      if (stack >= 0) frames += (stack_offset[stack + 1] as number) - (stack_offset[stack] as number);
    }
    return frames;
  }

  // ---- what the user does ----

  zoom(node: number): void {
    this.#zoomed = Math.max(node, 0);
    this.#cursor = this.#zoomed || -1;
    this.#showFlame();
    this.#showList();
    this.#actions.panel();
  }

  /** One frame out; false where all is shown. */
  back(): boolean {
    if (this.#zoomed > 0) {
      this.zoom(this.#tree?.parent[this.#zoomed] ?? 0);
    } else if (this.#cursor >= 0) {
      this.#point(-1);
    } else {
      return false;
    }
    return true;
  }

  #point(node: number): void {
    this.#cursor = node;
    if (node >= 0) {
      const { label, bytes: held, blocks } = this.#entry(node);
      this.#actions.say(`${label}, ${bytes(held)}, ${count(blocks)} blocks`);
    }
    this.#showFlame();
    if (this.#asTree) this.#showList();
    this.#actions.panel();
  }

  #hover(entry: Entry | null): void {
    if (entry?.key !== this.#hovered?.key) {
      this.#hovered = entry;
      this.#actions.panel();
    }
  }

  #pick(entry: Entry): void {
    if (entry.node >= 0) this.#point(entry.node === this.#cursor ? -1 : entry.node);
    else if (entry.label !== NO_SITE) this.#actions.site(entry.label);
  }

  #toggle(entry: Entry): void {
    const tree = this.#tree as Tree;
    const element = tree.element[entry.node] as number;
    const leaf = (tree.end[entry.node] as number) === entry.node + 1;
    this.#set(() => {
      // A folded run without anything below it can only be opened into its frames.
      if (element < 0 && leaf) this.#opened.add(~element);
      else this.#turned.set(entry.key, entry.fold === "closed");
    });
  }

  // ---- the panel ----

  /** Lines for the note beside the pointer. */
  tip(entry: Entry): string[] {
    const held = `${count(entry.blocks)} block${entry.blocks === 1 ? "" : "s"}`;
    return [
      `${bytes(entry.bytes)} in ${held}, ${share(entry.bytes, this.#sums?.total ?? 0)}`,
      entry.own > 0 && entry.own < entry.bytes ? `${bytes(entry.own)} made right here` : "",
      entry.note,
    ];
  }

  /** What the panel says of the frame pointed at; null where that is nothing. */
  panel(): { title: string; content: HTMLElement; pinned: boolean } | null {
    const fixed = this.#cursor > 0 ? this.#entry(this.#cursor) : null;
    const entry = this.#hovered ?? fixed;
    const pinned = entry?.key === fixed?.key;
    if (!entry || !this.#look) return null;
    const { data } = this.#look.loaded;
    const element = entry.node < 0 ? ROOT : (this.#tree?.element[entry.node] as number);
    const site = data.stack_site[data.stack[entry.largest] ?? -1] ?? -1;
    const frame = entry.node < 0 ? site : element < NO_STACK ? element : -1;
    const content = livePanel(
      data,
      entry,
      frame,
      this.#sums?.total ?? 0,
      pinned
        ? { ...this.#actions, unfold: element < 0 ? () => this.#set(() => this.#opened.add(~element)) : null }
        : null,
    );
    return { title: entry.node < 0 ? "Call site" : "Frame", content, pinned };
  }
}
