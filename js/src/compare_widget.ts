// The door for notebooks to the comparison: anywidget's module.

import type { AnyModel, RenderProps } from "@anywidget/types";
import { Compare } from "./compare.js";
import type { Told } from "./compare_table.js";
import { ask } from "./link.js";
import type { Traits } from "./model.js";
import { decode } from "./wire.js";

function render({ model, el, signal }: RenderProps<Traits>): () => void {
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort(), { once: true });
  const from = model as AnyModel<Traits>;
  const source = {
    told: async (waiting: () => void): Promise<Told> => (await ask(from, "compared", 0, waiting))[0].compared,
    load: async (side: number, waiting: () => void) => {
      const [{ header }, buffers] = await ask(from, "data", side, waiting);
      return decode(header as Parameters<typeof decode>[0], buffers);
    },
  };
  new Compare(el, source, { theme: model.get("theme"), height: model.get("height") }, stop.signal);
  return () => stop.abort();
}

export default { render };
