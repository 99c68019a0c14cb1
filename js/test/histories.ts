/** Histories for tests: from a line of text that one can check by eye, and random ones with every kind of free. */

import { dataOf, random } from "../bench/history.js";
import type { Data } from "../src/wire.js";

/**
 * Blocks from text: one word an event. "a:600" makes block a of 600 bytes, "-a" asks for its free, "--a" completes it,
 * "!a>b:500" makes b where a was (a ends with it), "." is an event without effect. "^a:600" first in the line: there at
 * the start. Ids follow the order of making.
 */
export function parse(text: string, given: Partial<Data> = {}): { data: Data; id: Record<string, number> } {
  const id: Record<string, number> = {};
  const size: number[] = [];
  const made: number[] = [];
  const asked: number[] = [];
  const freed: number[] = [];
  const make = (word: string, event: number): void => {
    const [name, bytes] = word.split(":") as [string, string];
    id[name] = size.length;
    size.push(Number(bytes));
    made.push(event);
    asked.push(-1);
    freed.push(-1);
  };
  let event = 0;
  for (const word of text.trim().split(/\s+/)) {
    if (word.startsWith("^")) {
      make(word.slice(1), -1);
      continue;
    }
    if (word.startsWith("--")) freed[id[word.slice(2)] as number] = event;
    else if (word.startsWith("-")) asked[id[word.slice(1)] as number] = event;
    else if (word.startsWith("!")) {
      const [old, fresh] = word.slice(1).split(">") as [string, string];
      if (asked[id[old] as number] === -1) asked[id[old] as number] = event;
      freed[id[old] as number] = event;
      make(fresh, event);
    } else if (word !== ".") make(word, event);
    event++;
  }
  return { data: history(event, size, made, asked, freed, given), id };
}

export function history(
  events: number,
  size: number[],
  made: number[],
  asked: number[],
  freed: number[],
  given: Partial<Data> = {},
): Data {
  return dataOf({
    n_events: events,
    size: Float64Array.from(size),
    alloc_event: Int32Array.from(made),
    free_requested_event: Int32Array.from(asked),
    free_event: Int32Array.from(freed),
    ...given,
  });
}

/** A random history: pre-existing blocks (some pending already), frees that complete late or never, implicit frees, events of no effect, any categories. */
export function randomHistory(seed: number, events: number, preexisting: number): Data {
  const next = random(seed);
  const size: number[] = [];
  const made: number[] = [];
  const asked: number[] = [];
  const freed: number[] = [];
  const live: number[] = [];
  const pending: number[] = [];
  const make = (event: number): void => {
    live.push(size.length);
    size.push(512 * (1 + Math.floor(40 * next() ** 3)));
    made.push(event);
    asked.push(-1);
    freed.push(-1);
  };
  const take = (from: number[]): number => from.splice(Math.floor(next() * from.length), 1)[0] as number;
  for (let i = 0; i < preexisting; i++) make(-1);
  for (let i = 0; i < preexisting; i += 4) {
    const block = live.shift() as number;
    asked[block] = -2;
    pending.push(block);
  }
  for (let event = 0; event < events; event++) {
    const dice = next();
    if (dice < 0.42 || (live.length === 0 && pending.length === 0)) make(event);
    else if (dice < 0.68 && live.length > 0) {
      const block = take(live);
      asked[block] = event;
      pending.push(block);
    } else if (dice < 0.9 && pending.length > 0) freed[take(pending)] = event;
    else if (dice < 0.95 && live.length > 0) {
      const block = take(live);
      asked[block] = event;
      freed[block] = event;
      make(event);
    }
  }
  // Bursts: many events share a microsecond, and there are long silences.
  const time = new Float64Array(events);
  let now = 0;
  for (let i = 0; i < events; i++) {
    const dice = next();
    now += i === 0 || dice < 0.5 ? 0 : dice < 0.95 ? Math.floor(next() * 30) : Math.floor(next() * 3000);
    time[i] = now;
  }
  const category = Uint8Array.from(size, () => Math.floor(11 * next()));
  return history(events, size, made, asked, freed, { time_us: time, category });
}
