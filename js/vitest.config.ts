// How the tests run: plain Node, no DOM. The inlined worker is empty here, because the engine runs on the main thread.

import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { include: ["test/**/*.test.ts"], environment: "node" },
  plugins: [
    {
      name: "inline-worker",
      enforce: "pre",
      resolveId: (id) => (id.startsWith("inline-worker:") ? `\0${id}` : null),
      load: (id) => (id.startsWith("\0inline-worker:") ? 'export default "";' : null),
    },
  ],
});
