/** Two recordings side by side: step by step where both have as many, else by parts of the whole. */

import { expect, it } from "vitest";
import { alignment } from "../src/link_steps.js";
import { parse } from "./histories.js";

function withSteps(events: number, ...begins: number[]) {
  const { data } = parse(".".repeat(events).split("").join(" "), {
    band_kind: Uint8Array.from([...begins.map(() => 2), 0]),
    band_lo: Int32Array.from([...begins, 1]),
  });
  return data;
}

it("puts the beginnings of steps over each other, and what lies between in proportion", () => {
  const to = alignment(withSteps(99, 20, 60), withSteps(199, 100, 150));
  expect([0, 0.2, 0.6, 1].map(to)).toEqual([0, 0.5, 0.75, 1]);
  expect(to(0.4)).toBeCloseTo(0.625, 12);
  expect(to(0.1)).toBeCloseTo(0.25, 12);
});

it("goes by parts of the whole where the steps are not as many", () => {
  expect([0, 0.3, 1].map(alignment(withSteps(99, 20, 60), withSteps(199, 100)))).toEqual([0, 0.3, 1]);
});
