// Id buffer to pixels. Owns hairlines, the hatching of pending frees and the outlines; knows nothing of what a block
// is, only its number and its colour.

import { SURE } from "./colors.js";
import { ID_MASK, type Picture } from "./columns.js";
import { blockBox, strokes } from "./pick.js";

/** A block gets a hairline where it is at least this tall, CSS pixels: below, lines would be all one sees. */
const HAIRLINE_FROM = 3;

/** Pixels of one drawing, reused from frame to frame. */
export class Painter {
  #image: ImageData | null = null;

  /** Fills the canvas (of the picture's size) from the picture; `table` holds one pixel value an id. */
  paint(canvas: HTMLCanvasElement, picture: Picture, table: Uint32Array, ratio: number, pale = false): void {
    const { width, height, ids } = picture;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const context = canvas.getContext("2d", { alpha: false });
    if (!context || width === 0 || height === 0) {
      return;
    }
    if (this.#image?.width !== width || this.#image.height !== height) {
      this.#image = context.createImageData(width, height);
    }
    const pixels = new Uint32Array(this.#image.data.buffer);
    fillPixels(pixels, ids, width, height, table, Math.max(1, Math.round(ratio)), pale);
    context.putImageData(this.#image, 0, 0);
  }
}

/**
 * Writes every pixel of a picture; exported for its test. `pale`: what is flagged is not hatched, it is pale alone.
 *
 * Works on signed views: colours and pending ids have their highest bit set, and as unsigned numbers they would not fit
 * the engine's small integers (twice as slow, measured).
 */
export function fillPixels(
  target: Uint32Array,
  source: Uint32Array,
  width: number,
  height: number,
  colors: Uint32Array,
  ratio: number,
  pale = false,
): void {
  const pixels = new Int32Array(target.buffer, target.byteOffset, target.length);
  const ids = new Int32Array(source.buffer, source.byteOffset, source.length);
  const table = new Int32Array(colors.buffer, colors.byteOffset, colors.length);
  const background = table[0] as number;
  const reach = HAIRLINE_FROM * ratio - 1;
  const down = reach * width;
  const period = 6 * ratio;
  const stripe = 2 * ratio;
  const guessed = height * period;
  const end = width * height;
  for (let y = 0, p = 0; y < height; y++) {
    for (let x = 0; x < width; x++, p++) {
      const id = ids[p] as number;
      if (id === 0) {
        pixels[p] = background;
        continue;
      }
      let color = table[id & ID_MASK] as number;
      if (id < 0) {
        // PENDING is the sign bit.
        const striped = !pale && (x + y) % period < stripe;
        color = striped ? color : mix(mix(color, background), background);
      } else if ((color & SURE) === 0) {
        // A guess: thin lines, leaning the other way.
        color |= SURE;
        if ((x - y + guessed) % period < ratio) {
          color = mix(color, background);
        }
      }
      // Same id `reach` pixels on means at least that tall (or wide): a column holds a block in one piece.
      if (y > 0 && ids[p - width] !== id) {
        if (p + down < end && ids[p + down] === id) {
          color = mix(color, background);
        }
      } else if (x > 0 && ids[p - 1] !== id && x + reach < width && ids[p + reach] === id) {
        if (tall(ids, p, width, end, reach)) {
          color = mix(color, background);
        }
      }
      pixels[p] = color;
    }
  }
}

/** The middle of two pixels, channel by channel, without unpacking them; signed, as the loop above wants it. */
function mix(a: number, b: number): number {
  return 0xff000000 | (((a & 0xfefefe) >>> 1) + ((b & 0xfefefe) >>> 1));
}

/** Whether the block at `p` is more than `reach` pixels tall in its column. */
function tall(ids: Int32Array, p: number, width: number, end: number, reach: number): boolean {
  const id = ids[p];
  let more = 0;
  for (let q = p - width; q >= 0 && ids[q] === id && more < reach; q -= width) {
    more++;
  }
  for (let q = p + width; q < end && ids[q] === id && more < reach; q += width) {
    more++;
  }
  return more >= reach;
}

/** The strokes of a block's outline as a path in device pixels of the picture; null where the block has no pixel. */
export function outlinePath(picture: Picture, block: number): Path2D | null {
  const box = blockBox(picture, block);
  if (!box) {
    return null;
  }
  const path = new Path2D();
  const lines = strokes(box);
  for (let i = 0; i < lines.length; i += 4) {
    path.moveTo(lines[i] as number, lines[i + 1] as number);
    path.lineTo(lines[i + 2] as number, lines[i + 3] as number);
  }
  return path;
}
