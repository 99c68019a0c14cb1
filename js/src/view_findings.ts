// The Findings view: what is wrong, or worth knowing, each with its line, what speaks for it and what to do. Owns the
// words around the findings and their order on the page; texts are Python's and go in as text.

import { button, h, name } from "./dom.js";
import { NO_SITE, siteLabel } from "./facts.js";
import { amountWords, attention, type Finding, kindWords } from "./findings.js";
import { bytes, bytesExact, count } from "./format.js";
import type { Theme } from "./theme.js";
import type { Data } from "./wire.js";

/** What is known of the findings: none yet, why there are none, or all of them. */
export type Found =
  | { state: "asking"; waiting: boolean }
  | { state: "error"; message: string }
  | { state: "ready"; findings: Finding[] };

export interface FindingsActions {
  show(finding: Finding): void;
  again(): void;
}

export class FindingsView {
  readonly element = h("div", {
    class: "mw-findings-scroll",
    tabindex: "0",
    role: "document",
    "aria-label": "Findings",
  });
  readonly #actions: FindingsActions;
  #shown = "";

  constructor(actions: FindingsActions) {
    this.#actions = actions;
  }

  /** `at`: the finding that is lit on the timeline. */
  show(data: Data, found: Found, theme: Theme, at: Finding | null): void {
    this.element.dataset.findings = found.state;
    const key = `${found.state} ${theme} ${data.header.device} ${found.state === "asking" && found.waiting} ${found.state === "ready" ? found.findings.indexOf(at as Finding) : ""}`;
    if (key === this.#shown) {
      return;
    }
    this.#shown = key;
    if (found.state === "asking") {
      this.element.replaceChildren(
        h(
          "p",
          { class: "mw-note", role: "status" },
          found.waiting ? "Waiting for the kernel: it is busy, or gone." : "Looking for what is unusual.",
        ),
      );
    } else if (found.state === "error") {
      const again = button("Try again", "Ask once more");
      again.addEventListener("click", () => this.#actions.again());
      this.element.replaceChildren(
        h("p", { class: "mw-note mw-oom", role: "alert" }, `The findings could not be worked out: ${found.message}`),
        again,
      );
    } else {
      this.#list(data, found.findings, theme, at);
    }
  }

  #list(data: Data, findings: readonly Finding[], theme: Theme, at: Finding | null): void {
    const urgent = findings.filter((finding) => !finding.expected);
    const usual = findings.filter((finding) => finding.expected);
    const card = (finding: Finding): HTMLElement => {
      const open = h("button", { type: "button", class: "mw-finding-title" }, name(finding.title, "mw-wrap", 600));
      const made = h("li", {
        class: "mw-finding",
        "data-kind": finding.kind,
        "aria-current": finding === at ? "true" : undefined,
      });
      const [sign, word] = kindWords(finding.kind);
      const amounts = amountWords(finding);
      const shows =
        finding.n_blocks > 0
          ? `Shows its ${count(finding.n_blocks)} blocks on the timeline`
          : "Shows it on the timeline";
      open.title = shows;
      made.append(
        h(
          "div",
          { class: "mw-finding-kind" },
          h("span", { class: "mw-finding-sign", "aria-hidden": "true" }, sign),
          h("div", {}, h("div", {}, word), h("div", { class: "mw-muted" }, sureWord(finding))),
        ),
        h("div", { class: "mw-finding-text" }, open, ...findingBody(data, finding, theme)),
        h(
          "div",
          { class: "mw-finding-size", title: bytesExact(finding.bytes) },
          ...amounts.map((text, i) => h("div", { class: i === 0 ? "mw-total" : "mw-muted" }, text)),
        ),
      );
      // Text in it can be selected; a click elsewhere is a click on the title.
      made.addEventListener("click", () => {
        const selected = made.ownerDocument.getSelection();
        if (!selected || selected.isCollapsed || !made.contains(selected.anchorNode)) this.#actions.show(finding);
      });
      return made;
    };
    const n = attention(findings);
    this.element.replaceChildren(
      h(
        "p",
        { class: "mw-findings-head" },
        h("b", { class: "mw-total" }, n === 0 ? "Nothing unusual." : `${count(n)} finding${n === 1 ? "" : "s"}`),
        h("span", { class: "mw-muted" }, n === 0 ? "" : " A click shows the blocks on the timeline."),
      ),
      h("ul", { class: "mw-findings" }, ...urgent.map(card)),
      ...(usual.length === 0
        ? []
        : [
            h("div", { class: "mw-findings-head mw-muted" }, "Worth knowing; a healthy run has it too"),
            h("ul", { class: "mw-findings mw-usual-findings" }, ...usual.map(card)),
          ]),
    );
  }
}

function sureWord(finding: Finding): string {
  return finding.expected ? "expected" : finding.certain ? "certain" : "likely";
}

/** Line, evidence, next step: for the list, and for the panel beside the timeline. */
export function findingBody(data: Data, finding: Finding, theme: Theme): HTMLElement[] {
  const palette = data.header.palette[theme];
  const block = finding.blocks.find((each) => siteLabel(data, each) === finding.label) ?? finding.blocks[0] ?? -1;
  const color = palette.site[data.stack_color[data.stack[block] ?? -1] ?? -1] ?? palette.none;
  const line =
    finding.label === "" || finding.label === NO_SITE
      ? null
      : h(
          "div",
          { class: "mw-finding-line" },
          h("span", { class: "mw-swatch", style: `background:${color}` }),
          name(finding.label),
          finding.source ? h("code", { class: "mw-source" }, finding.source.trim()) : null,
        );
  const parts: (HTMLElement | null)[] = [
    line,
    h("ul", { class: "mw-evidence" }, ...finding.evidence.map((text) => h("li", {}, name(text, "mw-wrap", 1_000)))),
    h(
      "p",
      { class: "mw-next" },
      finding.expected ? null : h("b", {}, "Next: "),
      name(finding.advice, "mw-wrap", 1_000),
    ),
  ];
  return parts.filter((part) => part !== null);
}

/** The panel beside the timeline while a finding is lit there. */
export function findingPanel(data: Data, finding: Finding, theme: Theme): HTMLElement {
  const [sign, word] = kindWords(finding.kind);
  const rest = finding.n_blocks - finding.blocks.length;
  return h(
    "div",
    { class: "mw-finding-panel" },
    h("div", { class: "mw-muted" }, `${sign} ${word}, ${sureWord(finding)}`),
    h("div", { class: "mw-headline-site" }, name(finding.title, "mw-wrap", 600)),
    h("div", { class: "mw-muted" }, amountWords(finding).join(" · ")),
    ...findingBody(data, finding, theme),
    ...(finding.lines.length > 1
      ? [
          h(
            "div",
            { class: "mw-section-head" },
            h("h4", {}, finding.bytes_per_step > 0 ? "By line, a step" : "By line"),
          ),
          ...finding.lines.map(([label, size]) =>
            h("div", { class: "mw-finding-share" }, name(label), h("span", { class: "mw-number" }, bytes(size))),
          ),
        ]
      : []),
    h(
      "p",
      { class: "mw-note" },
      `${count(finding.n_blocks)} block${finding.n_blocks === 1 ? "" : "s"}${rest > 0 ? `, the largest ${count(finding.blocks.length)} are lit` : ""}`,
    ),
  );
}
