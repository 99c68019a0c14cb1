/** The Segments view's picture: layers as high as their segments, used as far as the address map says. */

import { describe, expect, it } from "vitest";
import { Addresses, FREE } from "../src/addresses.js";
import { ID_MASK, PENDING } from "../src/columns.js";
import { Strata } from "../src/strata.js";
import { Timeline } from "../src/timeline.js";
import { readGolden } from "./golden.js";

const MIB = 1 << 20;
const ROW = MIB / 4;

describe.each(["first", "allocator", "without_time", "without_history"])("%s", (name) => {
  const data = readGolden(name);
  const timeline = new Timeline(data);
  const addresses = new Addresses(data, timeline);
  const strata = new Strata(data, timeline, addresses);
  const height = 700;

  it.each([0, 3])("shows each moment as it is, from moment %d on", (lo) => {
    const width = data.n_events + 1 - Math.min(lo, data.n_events);
    const from = data.n_events + 1 - width;
    const view = {
      lo: from,
      hi: data.n_events + 1,
      axis: "events" as const,
      width,
      height,
      bottom: 0,
      top: height * ROW,
    };
    const picture = strata.draw(view);
    for (let x = 0; x < width; x++) {
      const moment = picture.moments[x] as number;
      expect(moment).toBe(from + x);
      const map = addresses.at(moment);
      const tall = new Map<number, [number, number]>();
      for (let y = 0; y < height; y++) {
        const id = picture.ids[y * width + x] as number;
        if (id === 0) continue;
        const row = (id & ID_MASK) - 1;
        const [used, free] = tall.get(row) ?? [0, 0];
        tall.set(row, id >= PENDING ? [used, free + 1] : [used + 1, free]);
      }
      let total = 0;
      let used = 0;
      for (const [row, [taken, free]] of tall) {
        expect(addresses.isThere(row, moment)).toBe(true);
        expect(Math.abs((taken + free) * ROW - (data.seg_size[row] as number))).toBeLessThanOrEqual(ROW);
        total += taken + free;
        used += taken;
      }
      let inUse = 0;
      map.size.forEach((size, i) => {
        if (map.state[i] !== FREE) inUse += size;
      });
      expect(Math.abs(total * ROW - map.reserved)).toBeLessThanOrEqual(ROW);
      // Half a row may be lost or won in each layer.
      expect(Math.abs(used * ROW - inUse)).toBeLessThanOrEqual((ROW * (tall.size + 1)) / 2);
      for (const band of strata.bands) {
        let reserved = 0;
        let busy = 0;
        for (let s = 0; s < map.nSegments; s++) {
          if (map.segment_pool[s] !== band.pool) continue;
          reserved += map.segment_size[s] as number;
          for (let i = map.segment_first[s] as number; i < (map.segment_first[s + 1] as number); i++) {
            if (map.state[i] !== FREE) busy += map.size[i] as number;
          }
        }
        expect((band.top[x] as number) - (band.base[x] as number)).toBe(reserved);
        expect(band.used[x]).toBe(busy);
      }
    }
  });

  it("puts private pools above all others", () => {
    const seen = strata.bands.map((band) => data.header.pools[band.pool]);
    expect(seen).toEqual(name === "allocator" ? ["graph (1, 0)", "MemPool (0, 2)"] : []);
  });
});
