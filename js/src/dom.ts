// Small helpers to build elements. All text becomes text nodes, never markup: names come from files of strangers.

/** Longest text put into a title or an aria-label, characters: names of a megabyte exist. */
const TITLE_LIMIT = 600;

type Child = Node | string | null;
type Attributes = Record<string, string | number | boolean | undefined>;

/** One element with attributes and children; `undefined` and `false` leave an attribute out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Text of at most `limit` characters, with an ellipsis where it was cut; a surrogate pair is never halved. */
export function clip(text: string, limit = TITLE_LIMIT): string {
  if (text.length <= limit) {
    return text;
  }
  const code = text.charCodeAt(limit - 1);
  return `${text.slice(0, code >= 0xd800 && code < 0xdc00 ? limit - 1 : limit)}…`;
}

/** A foreign name: isolated, so that right-to-left or control characters in it cannot reorder what stands around. */
export function name(text: string, className = "", limit = 2_000): HTMLElement {
  const shown = visible(clip(text, limit));
  return h("bdi", { class: `mw-foreign ${className}`.trim(), title: visible(clip(text)) }, shown);
}

/** Characters that turn the direction of what follows, or that no font shows: as a sign that something stands there. */
export function visible(text: string): string {
  return text.replace(/[\p{Cc}\p{Bidi_Control}]/gu, "\ufffd");
}

/** For text on a canvas: the same isolation by characters (first strong isolate, pop), and no line breaks. */
export function isolated(text: string, limit = 200): string {
  const plain = clip(text, limit).replace(/[\p{Cc}\p{Bidi_Control}]/gu, " ");
  return `\u2068${plain}\u2069`;
}

/** A button with a visible label; `title` tells its key too. */
export function button(label: string, title: string, className = "mw-button"): HTMLButtonElement {
  return h("button", { type: "button", class: className, title, "aria-label": title }, label);
}

/** Sets text only where it changed: screen readers announce a live region again on every write. */
export function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Writes to the clipboard; pages opened from disk and insecure hosts have only the old way. */
export async function copyText(text: string, near: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "mw-hidden", "aria-hidden": "true" });
    area.value = text;
    near.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
