// A stack as a list: the user's frames in full, runs of library, plumbing and C++ frames folded into one row each.

import { button, clip, copyText, h, name, visible } from "./dom.js";
import { CPP, type FrameFacts, LIBRARY, nativeHint, PLUMBING, shortFile, stackText, USER } from "./facts.js";

/** Frames put on the page at most: recursion makes stacks of thousands. The copied text holds all. */
const FRAME_LIMIT = 400;

/** Neighbouring frames that fold together: user frames stand alone. */
function runs(frames: readonly FrameFacts[]): FrameFacts[][] {
  const result: FrameFacts[][] = [];
  const fold = (kind: number): number => (kind === USER ? USER : kind === CPP ? CPP : 1);
  for (const frame of frames) {
    const last = result.at(-1);
    if (last?.[0] && frame.kind !== USER && fold(last[0].kind) === fold(frame.kind)) {
      last.push(frame);
    } else {
      result.push([frame]);
    }
  }
  return result;
}

function frameRow(frame: FrameFacts, headline: boolean): HTMLElement {
  const where = frame.line > 0 ? `${shortFile(frame.file)}:${frame.line}` : shortFile(frame.file);
  return h(
    "li",
    { class: headline ? "mw-frame mw-frame-site" : "mw-frame", title: clip(`${frame.file}:${frame.line}`) },
    name(frame.name, "mw-frame-name"),
    h("bdi", { class: "mw-foreign mw-frame-file" }, visible(clip(where, 300))),
    frame.source ? h("code", { class: "mw-source" }, clip(frame.source.trim(), 500)) : null,
    frame.source && frame.mayDiffer ? h("span", { class: "mw-muted" }, "the file's line today; may differ") : null,
  );
}

function foldedRow(run: readonly FrameFacts[]): HTMLElement {
  const plumbing = run.every(({ kind }) => kind === PLUMBING);
  const what = run[0]?.kind === CPP ? "C++" : plumbing ? "interpreter" : "library";
  const hint = what === "C++" ? nativeHint(run) : "";
  const reversed = [...run].reverse();
  // The frame nearest to the user that has a name of its own says most.
  const told =
    reversed.find((frame) => frame.file.endsWith(".py")) ?? reversed.find((frame) => frame.name !== "??") ?? run[0];
  const summary = h(
    "summary",
    {},
    h("span", { class: "mw-fold-count" }, `${run.length} ${what} frame${run.length === 1 ? "" : "s"}`),
    name(hint || (told?.name ?? ""), "mw-fold-files"),
  );
  const details = h("details", { class: "mw-fold" }, summary);
  // The rows are made when asked for: a C++ stack is long, and most are never opened.
  details.addEventListener(
    "toggle",
    () => details.append(h("ol", { class: "mw-frames" }, ...run.map((frame) => frameRow(frame, false)))),
    { once: true },
  );
  return h("li", { class: "mw-folded" }, details);
}

/** The list with its head: title, copy button. `site` is the row of the frame to stress. */
export function stackView(title: string, frames: readonly FrameFacts[], site: number): HTMLElement {
  const copy = button("Copy", "Copy the whole stack", "mw-link");
  const section = h("section", { class: "mw-stack" }, h("div", { class: "mw-section-head" }, h("h4", {}, title), copy));
  copy.addEventListener("click", async () => {
    const done = await copyText(stackText(frames), section);
    copy.textContent = done ? "Copied" : "Select the text to copy it";
  });
  const shown = frames.slice(0, FRAME_LIMIT);
  const list = h("ol", { class: "mw-frames" });
  let stressed = false;
  for (const run of runs(shown)) {
    const [first] = run;
    if (!first) {
      continue;
    }
    // A lone library frame is as short as its fold: shown as it is.
    if (first.kind !== USER && (run.length > 1 || first.kind !== LIBRARY)) {
      list.append(foldedRow(run));
    } else {
      const headline: boolean = !stressed && first.row === site;
      stressed ||= headline;
      const row = frameRow(first, headline);
      row.classList.toggle("mw-frame-library", first.kind !== USER);
      list.append(row);
    }
  }
  section.append(list);
  if (frames.length > FRAME_LIMIT) {
    section.append(h("p", { class: "mw-note" }, `${frames.length - FRAME_LIMIT} more frames; Copy takes all of them.`));
  }
  return section;
}
