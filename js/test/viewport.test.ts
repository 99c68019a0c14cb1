/** The window as Python sees it, and the brush on the minimap. */

import { describe, expect, it } from "vitest";
import { Timeline } from "../src/timeline.js";
import { topOf, Viewport } from "../src/viewport.js";
import { parse } from "./histories.js";

/** 99 events: one moment a pixel on a minimap of 100. */
const timeline = new Timeline(parse(`a:1000 ${". ".repeat(98)}`).data);
const WIDTH = 100;

function at(lo: number, hi: number): Viewport {
  const viewport = new Viewport(timeline, "events", null);
  viewport.show(lo, hi, false);
  return viewport;
}

describe("the window", () => {
  it("is [0, 0] for everything, and whole moments else", () => {
    expect(at(0, 0).window).toEqual([0, 0]);
    expect(at(0, 100).window).toEqual([0, 0]);
    expect(at(10.4, 20.2).window).toEqual([10, 21]);
    expect(at(50, 100).window).toEqual([50, 99]);
  });

  it("is everything for what makes no sense", () => {
    expect(at(30, 10).window).toEqual([0, 0]);
  });
});

describe("the brush", () => {
  it("moves as a whole and stops at the ends", () => {
    const viewport = at(10, 30);
    viewport.brush("body", 15, WIDTH);
    expect(viewport.window).toEqual([25, 45]);
    viewport.brush("body", 500, WIDTH);
    expect(viewport.window).toEqual([80, 99]);
  });

  it("moves one edge, and never past the other", () => {
    const viewport = at(10, 30);
    viewport.brush("hi", 20, WIDTH);
    expect(viewport.window).toEqual([10, 50]);
    viewport.brush("lo", 70, WIDTH);
    expect(viewport.camera.hi - viewport.camera.lo).toBeGreaterThanOrEqual(1);
    expect(viewport.camera.lo).toBeGreaterThan(40);
  });

  it("jumps to a pixel and is drawn between two", () => {
    const viewport = at(10, 30);
    viewport.brushCenter(60, WIDTH);
    expect(viewport.window).toEqual([50, 70]);
    viewport.brushNew(80, 40, WIDTH);
    expect(viewport.window).toEqual([40, 80]);
  });
});

describe("reveal", () => {
  it("moves only where the moment is outside", () => {
    const viewport = at(10, 30);
    viewport.reveal(20, false);
    expect(viewport.window).toEqual([10, 30]);
    viewport.reveal(70, false);
    expect(viewport.window).toEqual([60, 81]);
  });
});

describe("the upper edge", () => {
  it("holds reserved and capacity only where they are near", () => {
    expect(topOf(1000, 1500, null)).toBeCloseTo(1560);
    expect(topOf(1000, 1700, null)).toBeCloseTo(1040);
    expect(topOf(1000, 1500, 1800)).toBeCloseTo(1872);
    expect(topOf(1000, 1500, 2000)).toBeCloseTo(1560);
  });
});
