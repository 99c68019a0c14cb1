/**
 * The same measures on a real payload, with the product's own engine (its worker too) and painter.
 *
 * Runs in a page that holds the payload as text; bench/browser.py writes it and calls memwidgetPayloadBench().
 */

import { type Camera, fit as whole } from "../src/camera.js";
import { Engine } from "../src/engine.js";
import { Painter } from "../src/paint.js";
import { decode, type Header } from "../src/wire.js";
import { script } from "./measure.js";

const WIDTH = 1400;
const HEIGHT = 700;
const BYTES = { f8: 8, i4: 4, u4: 4, u1: 1 } as const;

const text = (id: string): string => document.getElementById(id)?.textContent ?? "";
const rest = (): Promise<void> => new Promise((resolve) => requestAnimationFrame(() => resolve()));

async function received(): Promise<[Header, Uint8Array[]]> {
  const header: Header = JSON.parse(text("header"));
  const response = await fetch(`data:application/octet-stream;base64,${text("columns")}`);
  const all = new Uint8Array(await response.arrayBuffer());
  let offset = 0;
  const buffers = header.columns.map(({ dtype, length }) => {
    const part = all.slice(offset, offset + length * BYTES[dtype]);
    offset += part.byteLength;
    return part;
  });
  return [header, buffers];
}

/** Milliseconds: from data received to the first full frame, and every redraw along the script. */
async function memwidgetPayloadBench(): Promise<{ first: number; redraws: number[]; worker: boolean; blocks: number }> {
  const [header, buffers] = await received();
  const canvas = document.createElement("canvas");
  document.body.append(canvas);
  const painter = new Painter();

  const start = performance.now();
  const data = decode(header, buffers);
  const engine = Engine.create(data);
  const table = new Uint32Array(data.n_blocks + 1).map((_, id) => Math.imul(id, 0x9e3779b1) | 0xff000000);
  const frame = async (camera: Camera): Promise<void> => {
    const picture = await engine.draw({ ...camera, width: WIDTH, height: HEIGHT });
    if (picture === null) throw new Error("A frame was skipped.");
    painter.paint(canvas, picture, table, 1);
  };
  await frame(whole(engine.timeline, "events"));
  const first = performance.now() - start;
  await engine.ready;

  const redraws: number[] = [];
  for (const camera of script(engine.timeline)) {
    const begin = performance.now();
    await frame(camera);
    redraws.push(performance.now() - begin);
    await rest();
  }
  return { first, redraws, worker: engine.inWorker, blocks: data.n_blocks };
}

Object.assign(globalThis, { memwidgetPayloadBench });
