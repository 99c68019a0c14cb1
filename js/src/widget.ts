// The door for notebooks: anywidget's module. Knows anywidget; everything else is behind `mount`.

import type { RenderProps } from "@anywidget/types";
import { mount } from "./app.js";
import { kernelSource } from "./link.js";
import type { Model, Traits } from "./model.js";
import "./widget.css";

function render({ model, el, signal }: RenderProps<Traits>): () => void {
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort(), { once: true });
  mount(el, model as Model, kernelSource(model), stop.signal);
  return () => stop.abort();
}

export default { render };
