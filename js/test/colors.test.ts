/** Which way of colouring "auto" is, and what the legend and the panel say of categories, on a payload with labels. */

import { describe, expect, it } from "vitest";
import { blockColor, legendOf, lookupTable, modeOf, pixel, SURE } from "../src/colors.js";
import { compileQuery } from "../src/search.js";
import { Timeline } from "../src/timeline.js";
import { readGolden } from "./golden.js";

const labelled = readGolden("labelled");
const plain = readGolden("first");

describe("auto", () => {
  it("is the category where something is known of it, the call site where all that is known is what was there", () => {
    expect(modeOf(labelled, "auto")).toBe("category");
    expect(modeOf(plain, "auto")).toBe("site");
    expect(modeOf(labelled, "size")).toBe("size");
  });
});

describe("the legend of categories", () => {
  const { entries } = legendOf(labelled, "category", "light");

  it("names each that occurs, asks for its blocks, and explains the hatching", () => {
    expect(entries.map((entry) => entry.label)).toEqual([
      "parameter",
      "gradient",
      "optimizer state",
      "input",
      "activation",
      "temporary",
      "hatched: a guess",
    ]);
    expect(entries[2]?.query).toBe('"category:optimizer state"');
    expect(entries.at(-1)?.query).toBeUndefined();
  });
});

describe("the colours of phases", () => {
  it("are forward's, backward's and the optimizer's, and grey outside; a click asks for their blocks", () => {
    const { entries } = legendOf(labelled, "phase", "light");
    const { phase, none } = labelled.header.palette.light;
    expect(entries.map(({ label, color }) => [label, color])).toEqual([
      ["forward", phase[0]],
      ["backward", phase[1]],
      ["optimizer", phase[2]],
      ["no phase", none],
    ]);
    // Events 2 and 3 are in forward, 6 and 7 in backward, 12 in the optimizer; the weight and the batch are in none.
    const timeline = new Timeline(labelled);
    const found = entries.map(({ query }) => {
      const { blocks } = compileQuery(labelled, query ?? "", timeline);
      return [...labelled.alloc_event].filter((_, block) => blocks?.[block] === 1);
    });
    expect(found).toEqual([[2, 3], [6, 7], [12], [-1, 0, 1]]);
    for (const [i, { color }] of entries.entries()) {
      for (const event of found[i] as number[]) {
        expect(blockColor(labelled, "phase", "light", labelled.alloc_event.indexOf(event))).toBe(color);
      }
    }
  });

  it("are not offered where no phase made a block", () => {
    expect(modeOf(labelled, "phase")).toBe("phase");
    expect(modeOf(plain, "phase")).toBe("site");
  });
});

describe("pixels", () => {
  it("carry the mark of a guess in the colours of categories alone", () => {
    const guesses = [...labelled.reason.keys()].filter((block) => labelled.reason[block] === 3);
    expect(guesses.length).toBeGreaterThan(0);
    for (const mode of ["category", "site"] as const) {
      const table = lookupTable(labelled, mode, "light", "#ffffff");
      const marked = [...labelled.reason.keys()].filter((block) => ((table[block + 1] as number) & SURE) === 0);
      expect(marked).toEqual(mode === "category" ? guesses : []);
    }
    expect(pixel("#ffffff") & SURE).not.toBe(0);
  });
});
