// esbuild plugin: `import text from "inline-worker:./worker.ts"` gives the worker, bundled, as a string. Classic script,
// not module: a module worker from a Blob URL fails in pages opened from disk and in sandboxed frames.

import { resolve } from "node:path";
import * as esbuild from "esbuild";

/** @param {import("esbuild").BuildOptions} options of the worker's own bundle */
export function inlineWorker(options) {
  return {
    name: "inline-worker",
    setup(build) {
      build.onResolve({ filter: /^inline-worker:/ }, (args) => ({
        path: resolve(args.resolveDir, args.path.slice("inline-worker:".length)),
        namespace: "inline-worker",
      }));
      build.onLoad({ filter: /.*/, namespace: "inline-worker" }, async (args) => {
        const result = await esbuild.build({
          ...options,
          entryPoints: [args.path],
          format: "iife",
          write: false,
          metafile: true,
        });
        const inputs = Object.keys(result.metafile.inputs).map((path) => resolve(path));
        return { contents: result.outputFiles[0].text, loader: "text", watchFiles: inputs };
      });
    },
  };
}
