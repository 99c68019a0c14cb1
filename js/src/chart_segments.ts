// The Segments view: what the chart of the timeline needs to draw segments instead of blocks. Owns colours, words and the
// marks of private pools; the sweep is strata.ts.

import type { Addresses } from "./addresses.js";
import { clipTo, FONT } from "./axes.js";
import { bytesToY } from "./camera.js";
import type { Mode } from "./colors.js";
import type { Picture } from "./columns.js";
import { isolated } from "./dom.js";
import { bytes } from "./format.js";
import type { Layout } from "./layout.js";
import type { ColorBy } from "./model.js";
import { stackLabel } from "./panel_segment.js";
import { type PoolBand, Strata } from "./strata.js";
import { CHROME, type Chrome, type Theme } from "./theme.js";
import type { Timeline } from "./timeline.js";
import type { Data } from "./wire.js";

export class SegmentChart {
  readonly strata: Strata;
  readonly #data: Data;
  readonly #addresses: Addresses;

  constructor(data: Data, blocks: Timeline, addresses: Addresses) {
    this.#data = data;
    this.#addresses = addresses;
    this.strata = new Strata(data, blocks, addresses);
  }

  /** The words of a layer: the line that made it, its size, name and pool. */
  lines(row: number): { head: string; rest: string[] } {
    const { seg_size, seg_stack, seg_pool, header } = this.#data;
    return {
      head: stackLabel(this.#data, seg_stack[row] as number),
      rest: [
        `${bytes(seg_size[row] as number)} · ${this.#addresses.segmentName(row)}`,
        header.pools[seg_pool[row] as number] ?? "",
      ],
    };
  }

  sentence(row: number): string {
    return `${stackLabel(this.#data, this.#data.seg_stack[row] as number)}, ${bytes(this.#data.seg_size[row] as number)}`;
  }

  /** Private pools: a line at their foot, a name, and how much of them is in use at the right edge. */
  draw(context: CanvasRenderingContext2D, layout: Layout, picture: Picture, theme: Theme): void {
    for (const band of this.strata.bands) {
      const last = lastPositive(band.top);
      if (last >= 0 && band.base.length === picture.width) {
        this.#drawPool(context, layout, picture, CHROME[theme], band, last);
      }
    }
  }

  #drawPool(
    context: CanvasRenderingContext2D,
    { plot, ratio }: Layout,
    picture: Picture,
    chrome: Chrome,
    band: PoolBand,
    last: number,
  ): void {
    const y = (value: number): number => plot.y + bytesToY(picture.view, value, plot.height);
    context.save();
    clipTo(context, plot);
    context.strokeStyle = chrome.text;
    context.lineWidth = 1.5;
    context.setLineDash([2, 2]);
    context.beginPath();
    let drawing = false;
    for (let x = 0; x < picture.width; x++) {
      const there = (band.top[x] as number) > 0;
      if (there) {
        const at = y(band.base[x] as number);
        if (drawing) {
          context.lineTo(plot.x + x / ratio, at);
        } else {
          context.moveTo(plot.x + x / ratio, at);
        }
        context.lineTo(plot.x + (x + 1) / ratio, at);
      }
      drawing = there;
    }
    context.stroke();
    context.setLineDash([]);
    const pool = this.#data.header.pools[band.pool] ?? "";
    const size = (band.top[last] as number) - (band.base[last] as number);
    const text = `private pool ${isolated(pool, 60)}: ${bytes(size)}, ${bytes(band.used[last] as number)} in use`;
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "bottom";
    const foot = Math.max(plot.y + 14, Math.min(y(band.base[last] as number) - 3, plot.y + plot.height - 2));
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = chrome.background;
    const right = plot.x + Math.min(plot.width, (last + 1) / ratio) - 6;
    context.strokeText(text, right, foot);
    context.fillStyle = chrome.text;
    context.fillText(text, right, foot);
    context.restore();
  }
}

/** A segment has no category and no phase of its own; "auto" is the line that made it. */
export function segmentMode(choice: ColorBy): Mode {
  return choice === "auto" || choice === "phase" ? "site" : choice;
}

function lastPositive(values: Float64Array): number {
  let i = values.length - 1;
  while (i >= 0 && (values[i] as number) <= 0) {
    i--;
  }
  return i;
}
