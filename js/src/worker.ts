/** The worker: draws what it is asked for, with the same code as the main thread. Built into the bundle as text. */

import { type Picture, sweep } from "./columns.js";
import type { Reply, Request } from "./engine.js";
import { Timeline } from "./timeline.js";
import type { History } from "./wire.js";

/** The part of a worker's global scope that is used here; the DOM's types describe the page's instead. */
interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(message: Reply, transfer: Transferable[]): void;
}

const scope = globalThis as unknown as Scope;
let timeline: Timeline | null = null;

scope.onmessage = ({ data: request }) => {
  try {
    if (request.kind === "open") {
      timeline = new Timeline(request.history as History);
      scope.postMessage({ kind: "ready" }, []);
    } else if (timeline !== null) {
      const picture: Picture = sweep(timeline, request.view, request.reuse);
      scope.postMessage({ kind: "picture", id: request.id, picture }, buffersOf(picture));
    }
  } catch (error) {
    scope.postMessage({ kind: "error", message: error instanceof Error ? error.message : String(error) }, []);
  }
};

function buffersOf(picture: Picture): Transferable[] {
  const { ids, moments, allocated, active, reserved } = picture;
  return [ids.buffer, moments.buffer, allocated.buffer, active.buffer, reserved.buffer] as ArrayBuffer[];
}
