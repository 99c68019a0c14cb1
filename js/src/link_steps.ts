// Which part of one recording goes with which part of another. Pure.

import type { Data } from "./wire.js";

/** Value of band_kind. */
const STEP = 2;

/** Where the steps begin, as parts of all moments, with the two ends. */
function knots(data: Data): number[] {
  const n = data.n_events + 1;
  const found = [0];
  for (let i = 0; i < data.band_kind.length; i++) {
    const part = (data.band_lo[i] as number) / n;
    if (data.band_kind[i] === STEP && part > (found.at(-1) as number)) found.push(part);
  }
  return [...found, 1];
}

/** From a part (0 to 1) of the first recording to that of the second: step by step where both have as many. */
export function alignment(before: Data, after: Data): (part: number) => number {
  const [from, to] = [knots(before), knots(after)];
  if (from.length !== to.length) return (part) => part;
  return (part) => {
    let i = 1;
    while (i < from.length - 1 && part > (from[i] as number)) i++;
    const [a, b] = [from[i - 1] as number, from[i] as number];
    const [c, d] = [to[i - 1] as number, to[i] as number];
    return c + ((part - a) / (b - a)) * (d - c);
  };
}
