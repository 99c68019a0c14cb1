// The door for exported pages to the comparison: both recordings and what differs come from the page itself.

import { Compare } from "./compare.js";
import { buffersOf, bytesOf, text } from "./page_parts.js";
import { decode, type Header } from "./wire.js";

function start(): void {
  const root = document.getElementById("memwidget-root");
  if (!root) {
    return;
  }
  const source = {
    told: async () => JSON.parse(text("memwidget-compared")),
    load: async (side: number) => {
      const header: Header = JSON.parse(text(`memwidget-header-${side}`));
      return decode(header, buffersOf(header, bytesOf(text(`memwidget-columns-${side}`))));
    },
  };
  new Compare(root, source, JSON.parse(text("memwidget-options")), new AbortController().signal);
}

if (document.readyState === "loading") {
  document.addEventListener("DOMContentLoaded", start, { once: true });
} else {
  start();
}
