// The door for exported pages: reads header, columns and options from the page itself and mounts the widget on them.
// One classic script; there is no kernel and no network.

import { mount } from "./app.js";
import type { Finding } from "./findings.js";
import { type Model, plainModel, type Traits } from "./model.js";
import { buffersOf, bytesOf, text } from "./page_parts.js";
import { decode, type Header } from "./wire.js";

function start(): void {
  const root = document.getElementById("memwidget-root");
  if (!root) {
    return;
  }
  const options: Partial<Traits> = JSON.parse(text("memwidget-options"));
  const model: Model = plainModel(options);
  const stop = new AbortController();
  mount(
    root,
    model,
    {
      load: async () => {
        const header: Header = JSON.parse(text("memwidget-header"));
        return decode(header, buffersOf(header, bytesOf(text("memwidget-columns"))));
      },
      findings: async () => {
        const found: Finding[] | { error: string } = JSON.parse(text("memwidget-findings"));
        if (!Array.isArray(found)) {
          throw new Error(found.error);
        }
        return found;
      },
      more: () => import("./more.js"),
    },
    stop.signal,
  );
}

if (document.readyState === "loading") {
  document.addEventListener("DOMContentLoaded", start, { once: true });
} else {
  start();
}
