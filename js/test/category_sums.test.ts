/** Bytes by category against their meaning: every moment, every block. */

import { describe, expect, it } from "vitest";
import { CategorySums } from "../src/category_sums.js";
import { Timeline } from "../src/timeline.js";
import type { Data } from "../src/wire.js";
import { readGolden } from "./golden.js";
import { randomHistory } from "./histories.js";

/** Straight from the columns: made before the moment, its free not asked for before it. */
function slow(data: Data, moment: number): number[] {
  const sums = data.header.categories.map(() => 0);
  for (let b = 0; b < data.n_blocks; b++) {
    const asked = data.free_requested_event[b] as number;
    if ((data.alloc_event[b] as number) < moment && (asked === -1 || asked >= moment)) {
      sums[data.category[b] as number] = (sums[data.category[b] as number] as number) + (data.size[b] as number);
    }
  }
  return sums;
}

describe("bytes by category", () => {
  it.each([1, 7, 64, 4096])("are exact at every moment, with every %i moments kept", (spacing) => {
    for (const seed of [1, 2, 3]) {
      const random = randomHistory(seed, 600, 40);
      const data = { ...random, header: { ...random.header, categories: Array.from({ length: 11 }, String) } };
      const sums = new CategorySums(data, new Timeline(data), spacing);
      for (let moment = 0; moment <= data.n_events; moment++) {
        expect([...sums.at(moment)]).toEqual(slow(data, moment));
      }
    }
  });

  it("name the categories that have bytes at any moment, and what they have", () => {
    const labelled = readGolden("labelled");
    const sums = CategorySums.of(labelled, new Timeline(labelled));
    const kib = (moment: number) => {
      const at = sums.at(moment);
      return sums.codes.map((code) => [labelled.header.categories[code], (at[code] as number) / 1024]);
    };
    // tests/show/hand_made.py: at the start the parameters alone; the peak is in backward, after the gradient came.
    const names = ["parameter", "gradient", "optimizer_state", "input", "activation", "temporary"];
    expect(kib(0)).toEqual(names.map((name) => [name, name === "parameter" ? 16 : 0]));
    expect(kib(8).map(([, size]) => size)).toEqual([16, 16, 0, 12, 32, 8]);
  });
});
