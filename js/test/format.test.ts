/** How numbers read: the same cases as the Python twin's. */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { bytes, bytesExact, count, duration, share } from "../src/format.js";

type Cases = Record<"bytes" | "bytes_exact" | "count" | "duration", [number, string][]>;
const cases = JSON.parse(readFileSync(new URL("../../tests/golden/format.json", import.meta.url), "utf8")) as Cases;

describe("format", () => {
  it.each(cases.bytes)("%d bytes read %s", (amount, text) => expect(bytes(amount)).toBe(text));
  it.each(cases.bytes_exact)("%d exactly reads %s", (amount, text) => expect(bytesExact(amount)).toBe(text));
  it.each(cases.count)("%d counts %s", (amount, text) => expect(count(amount)).toBe(text));
  it.each(cases.duration)("%d us read %s", (us, text) => expect(duration(us)).toBe(text));

  it("tells shares without false precision", () => {
    expect([share(1, 3), share(31, 1000), share(1, 1e6), share(0, 5), share(1, 0)]).toEqual([
      "33 %",
      "3.1 %",
      "<0.1 %",
      "0 %",
      "",
    ]);
  });
});
