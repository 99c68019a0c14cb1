// The widget's synced state, declared once, and the little of a model that the app uses. Owns the names that Python
// shares (show/view.py); knows nothing of anywidget, so that an exported page can stand in with a plain object.

export const VIEWS = ["timeline", "allocator", "segments", "live", "findings", "about"] as const;
export type ViewName = (typeof VIEWS)[number];
export type Axis = "events" | "time";
export type ColorBy = "auto" | "site" | "size" | "age" | "stream" | "pool" | "category" | "phase";
/** How blocks are stacked: in order of allocation, or by category and so within each. */
export type Order = "age" | "category";
export type ThemeChoice = "auto" | "light" | "dark";

/** What draws at once, before the kernel has sent anything; at most 64 KiB of JSON. */
export interface Overview {
  wire: number;
  name: string;
  device: number;
  device_type: string;
  capacity: number | null;
  n_events: number;
  n_blocks: number;
  peak_allocated: number;
  peak_reserved: number;
  peak_event: number;
  columns: number;
  allocated: number[];
  reserved: number[];
  summary: string;
  /** Rows of annotation bands, so that the drawing keeps its place when the data arrives. */
  bands?: number;
}

/** Synced traits. `moment` and `selection`: -1 for none. `window`: moments; [0, 0] is everything. */
export interface Traits extends Record<string, unknown> {
  view: string;
  moment: number;
  window: [number, number];
  selection: number;
  query: string;
  axis: Axis;
  color_by: ColorBy;
  order: Order;
  device: number;
  theme: ThemeChoice;
  height: number;
  lang: string;
  overview: Overview | Record<string, never>;
}

/** The part of anywidget's model that the app needs. */
export interface Model {
  get<K extends keyof Traits & string>(key: K): Traits[K];
  set<K extends keyof Traits & string>(key: K, value: Traits[K]): void;
  save_changes(): void;
  on(event: `change:${string}`, callback: () => void): void;
  off(event: `change:${string}`, callback: () => void): void;
}

export const COLOR_MODES: readonly (readonly [ColorBy, string])[] = [
  ["auto", "auto"],
  ["site", "call site"],
  ["size", "size"],
  ["age", "age"],
  ["stream", "stream"],
  ["pool", "pool"],
  ["category", "category"],
  ["phase", "phase"],
];

/** A model without a kernel behind it: an exported page. */
export function plainModel(values: Partial<Traits>): Model {
  const traits: Traits = {
    view: "timeline",
    moment: -1,
    window: [0, 0],
    selection: -1,
    query: "",
    axis: "events",
    color_by: "auto",
    order: "age",
    device: 0,
    theme: "auto",
    height: 460,
    lang: "auto",
    overview: {},
    ...values,
  };
  const listeners = new Map<string, Set<() => void>>();
  return {
    get: (key) => traits[key],
    set(key, value) {
      if (traits[key] !== value) {
        traits[key] = value;
        for (const callback of listeners.get(`change:${key}`) ?? []) {
          callback();
        }
      }
    },
    save_changes() {},
    on(event, callback) {
      const set = listeners.get(event) ?? new Set();
      listeners.set(event, set.add(callback));
    },
    off(event, callback) {
      listeners.get(event)?.delete(callback);
    },
  };
}
