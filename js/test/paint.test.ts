/** From ids to pixels: hairlines, hatching, and what stays untouched. */

import { describe, expect, it } from "vitest";
import { SURE } from "../src/colors.js";
import { PENDING } from "../src/columns.js";
import { fillPixels } from "../src/paint.js";

const BACK = 0xffffffff;
const RED = 0xff0000ff;
const BLUE = 0xffff0000;
const TABLE = Uint32Array.of(BACK, RED, BLUE);

/** Rows of a drawing as text: "." background, "r" and "b" plain, "-" a block's colour halfway to the background. */
function painted(rows: number[][], ratio = 1): string[] {
  const width = rows[0]?.length ?? 0;
  const pixels = new Uint32Array(rows.length * width);
  fillPixels(pixels, Uint32Array.from(rows.flat()), width, rows.length, TABLE, ratio);
  const letters = new Map([
    [BACK, "."],
    [RED, "r"],
    [BLUE, "b"],
  ]);
  return rows.map((_, y) =>
    [...pixels.subarray(y * width, (y + 1) * width)].map((p) => letters.get(p) ?? "-").join(""),
  );
}

const column = (...ids: number[]): number[][] => ids.map((id) => [id]);

describe("fillPixels", () => {
  it("parts blocks of at least three pixels, and thinner ones not", () => {
    expect(painted(column(0, 1, 1, 1, 2, 2, 1))).toEqual([".", "-", "r", "r", "b", "b", "r"]);
  });

  it("asks for three CSS pixels where the screen has two a pixel", () => {
    expect(painted(column(0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2), 2).join("")).toBe(".rrrrr-bbbbb");
  });

  it("parts neighbours side by side", () => {
    const row = [1, 1, 1, 2, 2, 2];
    const rows = painted([row, row, row]);
    expect(rows).toEqual(["rrr-bb", "rrr-bb", "rrr-bb"]);
    expect(painted([row, row])).toEqual(["rrrbbb", "rrrbbb"]);
  });

  it("hatches pending frees", () => {
    const pending = (1 | PENDING) >>> 0;
    const [row] = painted([Array(12).fill(pending)]);
    expect(row).toBe("rr----rr----");
  });

  it("hatches guesses thinly, the other way, and leaves no mark of that in the pixel", () => {
    const pixels = new Uint32Array(24);
    const guess = (BLUE & ~SURE) >>> 0;
    fillPixels(pixels, new Uint32Array(24).fill(1), 12, 2, Uint32Array.of(BACK, guess), 1);
    const [first, second] = [0, 12].map((p) => [...pixels.subarray(p, p + 12)].map((c) => (c === BLUE ? "b" : "-")));
    expect(first?.join("")).toBe("-bbbbb-bbbbb");
    expect(second?.join("")).toBe("b-bbbbb-bbbb");
    expect([...pixels].every((color) => color >>> 24 === 255)).toBe(true);
  });

  it("draws the line halfway between block and background", () => {
    const pixels = new Uint32Array(4);
    fillPixels(pixels, Uint32Array.of(2, 1, 1, 1), 1, 4, TABLE, 1);
    const line = pixels[1] as number;
    const channels = [0, 8, 16, 24].map((shift) => (line >>> shift) & 255);
    // Red 255, green and blue 0 halfway to white; mixing without unpacking may lose one.
    [255, 127.5, 127.5, 255].forEach((wanted, i) => {
      expect(Math.abs((channels[i] as number) - wanted)).toBeLessThanOrEqual(1);
    });
  });
});
