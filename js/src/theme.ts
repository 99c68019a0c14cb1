// Light or dark, as the page around is. Owns the ways in which front ends say so and the colours of our chrome on a
// canvas (the same values as in widget.css); colours of data come with the data.

import type { ThemeChoice } from "./model.js";

export type Theme = "light" | "dark";

/** Attributes by which the known front ends switch: JupyterLab, VS Code, Colab, marimo and plain pages. */
const WATCHED = ["data-jp-theme-light", "data-vscode-theme-kind", "theme", "data-theme", "class", "style"];

/** Colours for what we draw on canvas. */
export interface Chrome {
  background: string;
  text: string;
  muted: string;
  line: string;
  grid: string;
  silhouette: string;
  reserved: string;
  capacity: string;
  /** The same as the data's accent; for the time before it comes. */
  accent: string;
  range: string;
  bands: readonly [string, string, string];
}

export const CHROME: Record<Theme, Chrome> = {
  light: {
    background: "#ffffff",
    text: "#1f2328",
    muted: "#5d656e",
    line: "rgba(31,35,40,0.16)",
    grid: "rgba(31,35,40,0.07)",
    silhouette: "#c9d0d8",
    reserved: "#3d444d",
    capacity: "#b3261e",
    accent: "#5b50d6",
    range: "rgba(91,80,214,0.10)",
    bands: ["#e4e8ed", "#dfe7f3", "#ebe6f1"],
  },
  dark: {
    background: "#15181c",
    text: "#e4e8ec",
    muted: "#9aa3ad",
    line: "rgba(228,232,236,0.18)",
    grid: "rgba(228,232,236,0.08)",
    silhouette: "#424a54",
    reserved: "#c3cad2",
    capacity: "#ff8a80",
    accent: "#a49dff",
    range: "rgba(164,157,255,0.16)",
    bands: ["#2a3038", "#26313f", "#312c3c"],
  },
};

/** The first sign that the page gives, from the most explicit to the least. */
export function detectTheme(element: HTMLElement): Theme {
  const { documentElement: html, body } = element.ownerDocument;
  const lab = body.getAttribute("data-jp-theme-light");
  if (lab !== null) {
    return lab === "false" ? "dark" : "light";
  }
  const code =
    body.getAttribute("data-vscode-theme-kind") ?? html.getAttribute("data-vscode-theme-kind") ?? body.className;
  if (/vscode-(high-contrast-)?light/.test(code)) {
    return "light";
  }
  if (/vscode-(dark|high-contrast)/.test(code)) {
    return "dark";
  }
  for (const node of [html, body]) {
    const said = node.getAttribute("theme") ?? node.getAttribute("data-theme");
    if (said && /dark|light/.test(said)) {
      return said.includes("dark") ? "dark" : "light";
    }
    if (node.classList.contains("dark") || node.classList.contains("light")) {
      return node.classList.contains("dark") ? "dark" : "light";
    }
  }
  return backgroundTheme(element) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** By the first opaque background behind the element; also across shadow roots. */
function backgroundTheme(element: HTMLElement): Theme | null {
  let node: Node | null = element.parentNode ?? null;
  while (node) {
    if (node instanceof Element) {
      const parts =
        getComputedStyle(node)
          .backgroundColor.match(/[\d.]+/g)
          ?.map(Number) ?? [];
      const [red = 0, green = 0, blue = 0, alpha = 1] = parts;
      if (parts.length >= 3 && alpha > 0.5) {
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128 ? "dark" : "light";
      }
    }
    node = node instanceof ShadowRoot ? node.host : node.parentNode;
  }
  return null;
}

/** Calls `changed` whenever the page may have switched; the caller asks `detectTheme` then. */
export function watchTheme(element: HTMLElement, changed: () => void, signal: AbortSignal): void {
  const observer = new MutationObserver(changed);
  for (const node of [element.ownerDocument.documentElement, element.ownerDocument.body]) {
    observer.observe(node, { attributes: true, attributeFilter: WATCHED });
  }
  signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed, { signal });
}

export function chooseTheme(choice: ThemeChoice, element: HTMLElement): Theme {
  return choice === "light" || choice === "dark" ? choice : detectTheme(element);
}
