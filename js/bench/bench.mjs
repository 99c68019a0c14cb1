// Measures the sweep in Node:            node bench/bench.mjs
// Writes a page for a browser instead:   node bench/bench.mjs --page OUT.html     (it offers memwidgetBench())
// Writes the script for a real payload:  node bench/bench.mjs --payload OUT.js    (memwidgetPayloadBench(); bench/browser.py)

import { writeFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";
import { inlineWorker } from "../inline_worker.mjs";

const here = dirname(fileURLToPath(import.meta.url));

async function bundled(entry, format) {
  const result = await esbuild.build({
    entryPoints: [resolve(here, entry)],
    bundle: true,
    write: false,
    target: "es2022",
    format,
    plugins: [inlineWorker({ bundle: true, target: "es2022" })],
  });
  return result.outputFiles[0].text;
}

const page = process.argv.indexOf("--page");
const payload = process.argv.indexOf("--payload");
if (payload > 0) {
  await writeFile(process.argv[payload + 1], await bundled("payload.ts", "iife"));
} else if (page > 0) {
  const script = (await bundled("page.ts", "iife")).replaceAll("</script", "<\\/script");
  await writeFile(process.argv[page + 1], `<!doctype html><meta charset="utf-8"><script>${script}</script>`);
} else {
  const text = await bundled("measure.ts", "esm");
  const { memwidgetBench } = await import(`data:text/javascript;base64,${Buffer.from(text).toString("base64")}`);
  console.table(await memwidgetBench());
}
