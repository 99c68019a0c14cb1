/** The bench for a page: window.memwidgetBench(), a promise of figures. Never part of the product's bundle. */

import { memwidgetBench } from "./measure.js";

/** One turn of the event loop between frames, as between the events of a hand. */
const rest = (): Promise<void> => new Promise((resolve) => requestAnimationFrame(() => resolve()));

Object.assign(globalThis, { memwidgetBench: () => memwidgetBench(rest) });
