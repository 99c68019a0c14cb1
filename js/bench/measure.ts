/**
 * What a reader feels: preparation, the first full frame, and redraws along a scripted zoom and pan.
 *
 * A frame is a swept picture and its ids turned to colours, at 1400x700. Runs in Node and in a page alike; the page's
 * entry puts memwidgetBench() on the window.
 */

import { type Camera, pan, fit as wholeView, zoomAt, zoomBytesAt } from "../src/camera.js";
import { type Picture, sweep } from "../src/columns.js";
import { Engine } from "../src/engine.js";
import type { Order } from "../src/model.js";
import { compileQuery } from "../src/search.js";
import { Timeline } from "../src/timeline.js";
import type { Data } from "../src/wire.js";
import { CROWDED, GPT2_1M, training } from "./history.js";

export interface Figures {
  name: string;
  events: number;
  blocks: number;
  /** Milliseconds, all of them. */
  prepare: number;
  /** From columns to colours on this thread, preparation included; and the same through the engine and its worker. */
  first_frame: number;
  first_by_engine: number;
  full_view: number;
  median: number;
  p95: number;
  worst: number;
  search: number;
}

const WIDTH = 1400;
const HEIGHT = 700;

/** Cameras of a zoom from everything into two places and back, with pans between, and the same upright. */
export function script(timeline: Timeline): Camera[] {
  const cameras: Camera[] = [];
  const limit = timeline.peakActive * 1.04;
  for (const axis of ["events", "time"] as const) {
    let camera = wholeView(timeline, axis);
    const go = (times: number, move: (from: Camera) => Camera): void => {
      for (let i = 0; i < times; i++) {
        camera = move(camera);
        cameras.push(camera);
      }
    };
    go(1, (c) => c);
    for (const x of [420, 1100]) {
      go(24, (c) => zoomAt(timeline, c, x, WIDTH, 0.75));
      go(8, (c) => pan(timeline, c, 60, WIDTH));
      go(4, (c) => zoomBytesAt(c, 350, HEIGHT, 0.7, limit));
      go(8, (c) => pan(timeline, c, -90, WIDTH, 20, HEIGHT, limit));
      go(24, (c) => zoomAt(timeline, c, 700, WIDTH, 1 / 0.75));
      go(1, () => wholeView(timeline, axis));
    }
  }
  return cameras;
}

export async function measure(name: string, data: Data, order: Order, rest: () => Promise<void>): Promise<Figures> {
  const pixels = new Uint32Array(WIDTH * HEIGHT);
  const colors = new Uint32Array(data.n_blocks + 1).map((_, i) => Math.imul(i, 0x9e3779b1) | 0xff000000);
  let picture: Picture | null = null;
  const color = (ids: Uint32Array): void => {
    for (let i = 0; i < ids.length; i++) pixels[i] = colors[(ids[i] as number) & 0x7fffffff] as number;
  };
  const frame = (timeline: Timeline, camera: Camera): number => {
    const start = performance.now();
    picture = sweep(timeline, { ...camera, order, width: WIDTH, height: HEIGHT }, picture);
    color(picture.ids);
    return performance.now() - start;
  };

  const asked = performance.now();
  const engine = Engine.create(data);
  const drawn = await engine.draw({ ...wholeView(engine.timeline, "events"), order, width: WIDTH, height: HEIGHT });
  color((drawn as Picture).ids);
  const byEngine = performance.now() - asked;
  engine.close();

  const start = performance.now();
  const timeline = new Timeline(data);
  const prepare = performance.now() - start;
  frame(timeline, wholeView(timeline, "events"));
  const first = performance.now() - start;

  const times: number[] = [];
  const full: number[] = [];
  for (const camera of script(timeline)) {
    const took = frame(timeline, camera);
    times.push(took);
    if (camera.lo <= 0 && camera.hi >= timeline.nEvents) full.push(took);
    await rest();
  }
  const searching = performance.now();
  compileQuery(data, "train.py step", timeline).max();
  const search = performance.now() - searching;
  return {
    name,
    events: data.n_events,
    blocks: data.n_blocks,
    prepare: round(prepare),
    first_frame: round(first),
    first_by_engine: round(byEngine),
    full_view: round(at(full, 0.5)),
    median: round(at(times, 0.5)),
    p95: round(at(times, 0.95)),
    worst: round(at(times, 1)),
    search: round(search),
  };
}

/** Both histories in both orders, one after the other. */
export async function memwidgetBench(rest: () => Promise<void> = async () => {}): Promise<Figures[]> {
  return [
    await measure("gpt2_1m-like, 1,500 live", training(GPT2_1M), "age", rest),
    await measure("gpt2_1m-like, by category", training(GPT2_1M), "category", rest),
    await measure("crowded, 50,000 live", training(CROWDED), "age", rest),
    await measure("crowded, by category", training(CROWDED), "category", rest),
  ];
}

function at(values: number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN;
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}
