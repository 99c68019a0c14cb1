/** The recordings that Python wrote for both sides of the wire. */

import { readFileSync } from "node:fs";
import { type Data, decode, type Header } from "../src/wire.js";

export const golden = new URL("../../tests/golden/", import.meta.url);

export function readGolden(name: string): Data {
  const header = JSON.parse(readFileSync(new URL(`${name}/header.json`, golden), "utf8")) as Header;
  const bin = readFileSync(new URL(`${name}/columns.bin`, golden));
  let offset = 0;
  const buffers = header.columns.map(({ dtype, length }) => {
    const bytes = new Uint8Array(bin.buffer, bin.byteOffset + offset, length * { f8: 8, i4: 4, u4: 4, u1: 1 }[dtype]);
    offset += Math.ceil(bytes.length / 8) * 8;
    return bytes;
  });
  return decode(header, buffers);
}
