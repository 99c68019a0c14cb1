// The parts of an exported page: texts by id, and the columns out of their base64.

import type { Header } from "./wire.js";

const BYTES = { f8: 8, i4: 4, u4: 4, u1: 1 } as const;

export function text(id: string): string {
  const element = document.getElementById(id);
  if (!element) {
    throw new Error(`This page lacks its part "${id}"; export it again.`);
  }
  return element.textContent ?? "";
}

/** Base64 to bytes in slices: one string of all decoded characters would double the page's memory. */
export function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const clean = base64.trim();
  const padding = clean.endsWith("==") ? 2 : clean.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array((clean.length / 4) * 3 - padding);
  const step = 4 * 65_536;
  let at = 0;
  for (let from = 0; from < clean.length; from += step) {
    const part = atob(clean.slice(from, from + step));
    for (let i = 0; i < part.length; i++) {
      bytes[at++] = part.charCodeAt(i);
    }
  }
  return bytes;
}

/** The columns lie one after the other, each padded to 8 bytes. */
export function buffersOf(header: Header, all: Uint8Array<ArrayBuffer>): Uint8Array[] {
  let offset = 0;
  return header.columns.map(({ dtype, length }) => {
    const size = length * BYTES[dtype];
    const part = all.subarray(offset, offset + size);
    offset += Math.ceil(size / 8) * 8;
    return part;
  });
}
