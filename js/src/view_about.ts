// The About view: how the allocator was set, what the file is, what it could not tell. Owns the defaults of torch's
// settings; all texts are the file's own and go in as text.

import { clip, h, name } from "./dom.js";
import { ACTION_WORDS, type EventTable } from "./events.js";
import { bytes, bytesExact, count, duration } from "./format.js";
import { facts } from "./panel_detail.js";
import type { Data } from "./wire.js";

/** What torch sets when nobody asks for anything; settings not listed here are shown as the file has them. */
const DEFAULTS: Record<string, unknown> = {
  PYTORCH_CUDA_ALLOC_CONF: "",
  PYTORCH_ALLOC_CONF: "",
  max_split_size: -1,
  garbage_collection_threshold: 0,
  expandable_segments: false,
  pinned_num_register_threads: 1,
  pinned_use_cuda_host_register: false,
  pinned_use_background_threads: false,
  release_lock_on_cudamalloc: false,
  graph_capture_record_stream_reuse: false,
  roundup_power2_divisions: 0,
};

function isDefault(key: string, value: unknown): boolean {
  if (key === "roundup_power2_divisions" && typeof value === "object" && value !== null) {
    return Object.values(value).every((each) => each === 0);
  }
  return Object.hasOwn(DEFAULTS, key) && DEFAULTS[key] === value;
}

function said(value: unknown): string {
  if (value === "") return "(empty)";
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value);
    const same = new Set(entries.map(([, each]) => JSON.stringify(each)));
    if (entries.length > 3 && same.size === 1) return `${said(entries[0]?.[1])} for all ${entries.length}`;
  }
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

function value(key: string, raw: unknown): Node {
  if (typeof raw === "number" && key.startsWith("seconds_")) return h("span", {}, duration(raw * 1e6));
  if (typeof raw === "number" && /bytes|size/.test(key) && raw >= 1024) {
    return h("span", { title: bytesExact(raw) }, bytes(raw));
  }
  return name(clip(said(raw), 1_000), "mw-wrap");
}

function card(title: string, ...children: (Node | null)[]): HTMLElement {
  return h("section", { class: "mw-card" }, h("h4", {}, title), ...children);
}

export function aboutView(data: Data, events: EventTable): HTMLElement {
  const { header } = data;
  const settings = Object.entries(header.settings);
  const changed = settings.filter(([key, each]) => !isDefault(key, each));
  const usual = settings.filter(([key, each]) => isDefault(key, each));
  const rows = (entries: [string, unknown][]): HTMLElement => {
    const list = facts([]);
    for (const [key, each] of entries) {
      list.append(h("dt", {}, name(key, "mw-mono", 200)), h("dd", {}, value(key, each)));
    }
    return list;
  };
  const costs = Object.entries(header.facts).filter(([key]) => key.startsWith("seconds_"));
  const rest = Object.entries(header.facts).filter(([key]) => !key.startsWith("seconds_"));
  const device = header.device_type === "cpu" ? "cpu" : `${header.device_type}:${header.device}`;
  const start =
    header.start_us > 0 ? new Date(header.start_us / 1000).toISOString().replace("T", " ").slice(0, 19) : "";
  const last = data.time_us?.at(-1) ?? 0;
  const actions = events.counts().filter((each) => each.count > 0);
  return h(
    "div",
    { class: "mw-about" },
    card(
      "Recording",
      facts([
        ["Name", header.name ? name(header.name, "mw-wrap", 600) : ""],
        ["Device", device],
        ["Capacity", header.capacity ? bytes(header.capacity) : "not known", bytesExact(header.capacity ?? 0)],
        [
          "Other devices",
          header.devices.length > 1
            ? header.devices
                .map((each) => each.device)
                .filter((each) => each !== header.device)
                .join(", ")
            : "",
        ],
        ["Began", start ? `${start} UTC` : "the history has no time"],
        ["Took", header.has_time ? duration(last) : ""],
        ["Peak allocated", bytes(header.peak_allocated), bytesExact(header.peak_allocated)],
        ["Peak active", bytes(header.peak_active), bytesExact(header.peak_active)],
        ["Peak requested", bytes(header.peak_requested), bytesExact(header.peak_requested)],
        [
          "Peak reserved",
          header.peak_reserved > 0 ? bytes(header.peak_reserved) : "",
          bytesExact(header.peak_reserved),
        ],
        ["Blocks", count(header.n_blocks)],
        ["Stacks", count(data.stack_site.length)],
        ["Streams", header.streams.length > 0 ? name(header.streams.join(", "), "mw-wrap", 600) : ""],
        ["Pools", header.pools.length > 0 ? name(header.pools.join(", "), "mw-wrap", 600) : ""],
      ]),
    ),
    card(
      "Notes",
      ...(header.notes.length > 0
        ? header.notes.map((text) => h("p", { class: "mw-note" }, text))
        : [h("p", { class: "mw-note" }, "The recording is complete: nothing had to be guessed.")]),
    ),
    card(
      "Allocator settings",
      settings.length === 0 ? h("p", { class: "mw-note" }, "The file does not tell them.") : null,
      settings.length > 0 && changed.length === 0
        ? h("p", { class: "mw-note" }, "All as torch sets them by default.")
        : null,
      changed.length > 0 ? h("div", { class: "mw-changed" }, rows(changed)) : null,
      usual.length > 0 && changed.length > 0 ? h("p", { class: "mw-note mw-subhead" }, "As by default") : null,
      usual.length > 0 ? h("div", { class: "mw-usual" }, rows(usual)) : null,
    ),
    card(
      `Events: ${count(header.n_events)}`,
      facts(actions.map(({ action, count: n }) => [`${ACTION_WORDS[action]} (${action})`, count(n)] as const)),
    ),
    costs.length > 0
      ? card(
          "What recording cost",
          facts(
            costs.map(
              ([key, each]) => [key.slice("seconds_".length).replaceAll("_", " "), value(key, each)] as [string, Node],
            ),
          ),
        )
      : null,
    rest.length > 0 ? card("As recorded", rows(rest)) : null,
  );
}
