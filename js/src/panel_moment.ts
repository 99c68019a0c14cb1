// The panel when nothing is pinned: how much was held at a moment, and by which lines. Also the totals of a range.

import { blockColor, type Mode } from "./colors.js";
import { h, name } from "./dom.js";
import { NO_SITE, siteLabel, siteRow } from "./facts.js";
import { bytes, bytesExact, count, duration, share } from "./format.js";
import { CategoryTable } from "./panel_categories.js";
import { facts } from "./panel_detail.js";
import type { RangeTotals } from "./range.js";
import type { Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";
import type { Data } from "./wire.js";

/** Call sites listed at most. */
const SITES = 12;

export interface SiteSum {
  label: string;
  bytes: number;
  count: number;
  /** One of its blocks, for the colour. */
  block: number;
}

/** Bytes by call site at a moment, largest first. Blocks without a frame of Python go together. */
export function sitesAt(data: Data, timeline: Timeline, moment: number): SiteSum[] {
  const sums = new Map<number, SiteSum>();
  for (const block of timeline.liveAt(moment)) {
    const key = siteRow(data, block);
    let sum = sums.get(key);
    if (!sum) {
      sum = { label: siteLabel(data, block), bytes: 0, count: 0, block };
      sums.set(key, sum);
    }
    sum.bytes += data.size[block] as number;
    sum.count += 1;
  }
  return [...sums.values()].sort((a, b) => b.bytes - a.bytes);
}

interface SiteRow {
  label: string;
  bytes: number;
  count: number;
  color: string;
}

/** A table, so that a screen reader can walk it; each site is a button that searches for it. */
export function siteTable(
  rows: readonly SiteRow[],
  whole: number,
  caption: string,
  pick: (label: string) => void,
  thing = "block",
): HTMLElement {
  const body = h("tbody", {});
  const most = Math.max(1, ...rows.map((row) => row.bytes));
  for (const row of rows) {
    // What has no line of the user's cannot be searched for.
    const known = row.label !== NO_SITE;
    const site = h(
      known ? "button" : "div",
      { type: known ? "button" : undefined, class: "mw-site" },
      h("span", { class: "mw-swatch", style: `background:${row.color}` }),
      name(row.label),
      h("span", { class: "mw-bar", style: `background:${row.color};width:${(100 * row.bytes) / most}%` }),
    );
    if (known) {
      site.addEventListener("click", () => pick(row.label));
    }
    const title = `${bytesExact(row.bytes)} in ${count(row.count)} ${thing}${row.count === 1 ? "" : "s"}, ${share(row.bytes, whole)}`;
    body.append(h("tr", {}, h("td", {}, site), h("td", { class: "mw-number", title }, bytes(row.bytes))));
  }
  return h(
    "table",
    { class: "mw-sites", "aria-label": caption },
    h("colgroup", {}, h("col"), h("col", { class: "mw-number-column" })),
    h("thead", { class: "mw-hidden" }, h("tr", {}, h("th", {}, "Call site"), h("th", {}, "Bytes"))),
    body,
  );
}

export function section(title: string, ...children: (Node | string)[]): HTMLElement {
  return h("section", {}, h("div", { class: "mw-section-head" }, h("h4", {}, title)), ...children);
}

export interface PanelContext {
  data: Data;
  timeline: Timeline;
  mode: Mode;
  theme: Theme;
  pickSite(label: string): void;
}

export interface MomentPanel {
  element: HTMLElement;
  /** Where blocks have categories. */
  categories: CategoryTable | null;
}

/** `listed`: with the largest call sites, where the view does not list them itself. */
export function momentPanel(context: PanelContext, moment: number, listed = true): MomentPanel {
  const { data, timeline } = context;
  const { header } = data;
  const allocated = timeline.allocated[moment] ?? 0;
  const active = timeline.active[moment] ?? 0;
  const reserved = timeline.reservedAt(moment);
  const sites = sitesAt(data, timeline, moment);
  const blocks = sites.reduce((sum, site) => sum + site.count, 0);
  // Sites have one colour in every view; other ways of colouring say nothing of a site.
  const rows = sites
    .slice(0, SITES)
    .map((site) => ({ ...site, color: blockColor(data, "site", context.theme, site.block) }));
  const oom = header.oom.find((each) => each.moment === moment);
  const element = h(
    "div",
    { class: "mw-moment" },
    facts([
      ["Moment", header.no_history ? "" : `${count(moment)} of ${count(header.n_events)}`],
      ["Time", header.has_time && moment > 0 ? duration(timeline.momentToTime(moment)) : ""],
      ["Allocated", header.no_history && blocks === 0 ? "" : bytes(allocated), bytesExact(allocated)],
      [
        "Active",
        active !== allocated ? `${bytes(active)} (${bytes(active - allocated)} pending)` : "",
        bytesExact(active),
      ],
      ["Reserved", reserved > 0 ? bytes(reserved) : "", bytesExact(reserved)],
      ["Unused", reserved > active ? `${bytes(reserved - active)} of the reserved` : "", bytesExact(reserved - active)],
      ["Blocks", header.no_history && blocks === 0 ? "" : count(blocks)],
    ]),
  );
  if (oom) {
    for (const sentence of oom.said) element.append(h("p", { class: "mw-note mw-oom" }, sentence));
  }
  const categories = header.has_labels
    ? new CategoryTable(data, timeline, context.theme, moment, context.pickSite)
    : null;
  if (categories) {
    element.append(section("By category", categories.element));
  }
  if (listed && rows.length > 0) {
    element.append(section("Largest call sites", siteTable(rows, allocated, "Largest call sites", context.pickSite)));
    const rest = sites.slice(SITES).reduce((sum, site) => sum + site.bytes, 0);
    if (rest > 0) {
      element.append(h("p", { class: "mw-note" }, `${count(sites.length - SITES)} more sites, ${bytes(rest)}`));
    }
  }
  if (header.notes.length > 0) {
    element.append(section("Notes", ...header.notes.map((text) => h("p", { class: "mw-note" }, text))));
  }
  return { element, categories };
}

export function rangePanel(context: PanelContext, totals: RangeTotals): HTMLElement {
  const { data, timeline } = context;
  const color = (frame: number): string => {
    const stack = data.stack_site.indexOf(frame);
    const palette = data.header.palette[context.theme];
    return frame < 0 || stack < 0 ? palette.none : (palette.site[data.stack_color[stack] ?? 0] ?? palette.none);
  };
  const sign = totals.change > 0 ? "+" : totals.change < 0 ? "−" : "";
  const took = timeline.momentToTime(totals.hi) - timeline.momentToTime(totals.lo);
  const element = h(
    "div",
    { class: "mw-range" },
    facts([
      ["Moments", `${count(totals.lo)} to ${count(totals.hi)}`],
      ["Time", timeline.hasTime ? duration(took) : ""],
      [
        "Allocated",
        `${bytes(totals.allocated_bytes)} in ${count(totals.allocated_count)}`,
        bytesExact(totals.allocated_bytes),
      ],
      ["Freed", `${bytes(totals.freed_bytes)} in ${count(totals.freed_count)}`, bytesExact(totals.freed_bytes)],
      ["Change", `${sign}${bytes(Math.abs(totals.change))}`, bytesExact(totals.change)],
      ["Highest", `${bytes(totals.peak)} at ${count(totals.peak_moment)}`, bytesExact(totals.peak)],
    ]),
  );
  const rows = totals.by_site.map((site) => ({
    ...site,
    label: site.label || NO_SITE,
    color: color(site.frame),
  }));
  if (rows.length > 0) {
    element.append(
      section(
        "Allocated in the range by",
        siteTable(rows, totals.allocated_bytes, "Allocated in the range", context.pickSite),
      ),
    );
  }
  return element;
}
