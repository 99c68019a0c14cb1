// Builds the bundle that the wheel carries: widget.js (ES module for anywidget), more.js (its views that are fetched when
// they are opened), widget.css, standalone.js (one classic script for exported pages, with everything). Owns where they go and how large they may be; knows nothing of what is in them.

import { basename, dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";
import { inlineWorker } from "./inline_worker.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const outdir = resolve(here, "../src/memwidget/show/static");
const watch = process.argv.includes("--watch");

/** Largest minified entry, bytes: a notebook stores widget.js with every widget, a page carries the other two once. */
const BUDGET = { "widget.js": 150_000, "more.js": 100_000, "standalone.js": 190_000 };

const common = { bundle: true, target: "es2022", minify: true, charset: "utf8", logLevel: "warning" };

const builds = [
  { ...common, entryPoints: [resolve(here, "src/widget.ts")], format: "esm" },
  { ...common, entryPoints: [resolve(here, "src/more.ts")], format: "esm" },
  { ...common, entryPoints: [resolve(here, "src/standalone.ts")], format: "iife" },
  { ...common, entryPoints: [{ in: resolve(here, "src/compare_widget.ts"), out: "compare" }], format: "esm" },
  { ...common, entryPoints: [resolve(here, "src/compare_page.ts")], format: "iife" },
].map((options) => ({ ...options, outdir, metafile: true, plugins: [inlineWorker(common)] }));

if (watch) {
  for (const options of builds) {
    const context = await esbuild.context({ ...options, minify: false, logLevel: "info" });
    await context.watch();
  }
  // The demo page fetches a golden payload, which a page opened from disk may not.
  const server = await esbuild.context({});
  const { port } = await server.serve({ servedir: resolve(here, ".."), host: "127.0.0.1", port: 8000 });
  console.log(`demo page: http://127.0.0.1:${port}/js/demo.html`);
} else {
  for (const options of builds) {
    const { metafile } = await esbuild.build(options);
    for (const [path, { bytes }] of Object.entries(metafile.outputs)) {
      console.log(`${path}  ${(bytes / 1000).toFixed(1)} kB`);
      const budget = BUDGET[basename(path)] ?? Number.POSITIVE_INFINITY;
      if (bytes > budget) {
        throw new Error(`${path} has ${bytes} bytes; the budget is ${budget}`);
      }
    }
  }
}
