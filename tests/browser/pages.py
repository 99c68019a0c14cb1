"""Pages that mount the built module as anywidget does, with a kernel that the test plays itself.

What the kernel would see lies on the page: ``model.traits``, ``model.saved`` (what each save held), ``model.sent``
(questions for the columns). ``model.answer()`` sends the columns, ``model.refuse(text)`` an error,
``model.tell(name, value)`` sets a trait as Python would. Questions for findings and for code lie in ``model.asked``;
they are answered at once, unless ``model.holds`` is set: then ``model.release()`` answers them, with an error where it
is given a text.
"""

import base64
import json

from memwidget.show.found import found
from memwidget.show.view import bundle, overview
from memwidget.show.wire import payload

TRAITS = {
    "view": "timeline",
    "moment": -1,
    "window": [0, 0],
    "selection": -1,
    "query": "",
    "axis": "events",
    "color_by": "auto",
    "order": "age",
    "device": 0,
    "theme": "auto",
    "height": 460,
    "lang": "auto",
}

SCRIPT = """
const part = (id) => JSON.parse(document.getElementById(id).textContent);
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

class Model {
  listeners = new Map();
  sent = [];
  asked = [];
  holds = false;
  saved = [];
  constructor(traits, silent, holds = false) { this.traits = traits; this.silent = silent; this.holds = holds; }
  get(name) { return this.traits[name]; }
  set(name, value) {
    if (JSON.stringify(this.traits[name]) === JSON.stringify(value)) return;
    this.traits[name] = value;
    this.emit(`change:${name}`);
  }
  tell(name, value) { this.set(name, value); }
  save_changes() { this.saved.push(structuredClone(this.traits)); }
  on(event, callback) { this.listeners.set(event, [...(this.listeners.get(event) ?? []), callback]); }
  off(event, callback) {
    this.listeners.set(event, (this.listeners.get(event) ?? []).filter((each) => each !== callback));
  }
  emit(event, ...values) { for (const callback of this.listeners.get(event) ?? []) callback(...values); }
  listening() { return [...this.listeners.values()].reduce((sum, each) => sum + each.length, 0); }
  send(message) {
    if (message.kind !== "data") {
      this.asked.push(message);
      if (!this.holds) setTimeout(() => this.release());
      return;
    }
    this.sent.push(message);
    if (!this.silent) setTimeout(() => this.answer());
  }
  answer() {
    const buffers = part("columns").map((text) => new DataView(bytes(text).buffer));
    this.emit("msg:custom", { kind: "data", id: this.sent.at(-1).id, header: part("header") }, buffers);
  }
  release(error = "") {
    for (const { kind, id } of this.asked.filter((each) => !each.done)) {
      const reply = kind === "more" ? { kind, source: part("more") } : { kind, findings: part("findings") };
      this.emit("msg:custom", error ? { kind: "error", id, message: error } : { ...reply, id }, []);
    }
    for (const each of this.asked) each.done = true;
  }
  refuse(message) { this.emit("msg:custom", { kind: "error", id: this.sent.at(-1).id, message }, []); }
}

const url = URL.createObjectURL(new Blob([part("module")], { type: "text/javascript" }));
const { default: widget } = await import(url);
window.Model = Model;
window.model = new Model(part("traits"), part("silent"), part("holds"));
window.mount = (model, el) => {
  const stop = new AbortController();
  widget.render({ model, el, signal: stop.signal });
  return stop;
};
window.stop = window.mount(window.model, document.getElementById("here"));
"""

READY = "[data-testid=memwidget][data-state=ready]"


def kernel_page(trace, *, silent=False, holds=False, width="", **traits):
    """Text of a page with one widget over `trace`; `silent`, `holds`: data, and all else, come only when told to."""
    header, buffers = payload(trace)
    parts = {
        "module": bundle("widget.js"),
        "more": bundle("more.js"),
        "findings": found(trace),
        "header": header,
        "columns": [base64.b64encode(bytes(each)).decode() for each in buffers],
        "traits": {**TRAITS, "device": trace.device, "overview": overview(trace), **traits},
        "silent": silent,
        "holds": holds,
    }
    blocks = "\n".join(
        f'<script type="application/json" id="{name}">{json.dumps(value).replace("<", chr(92) + "u003c")}</script>'
        for name, value in parts.items()
    )
    return (
        f"<!doctype html><meta charset=utf-8><style>body{{margin:8px}}{bundle('widget.css')}</style>"
        f'<div id="here" style="width:{width or "auto"}"></div>{blocks}<script type="module">{SCRIPT}</script>'
    )


class Timeline:
    """The widget on a page: where things are, and what it did, in the words of a test."""

    def __init__(self, page, trace):
        self.page, self.trace = page, trace
        self.root = page.locator("[data-testid=memwidget]").first
        page.locator(READY).first.wait_for()

    def settle(self):
        """Wait until the window asked for has been drawn in full and nothing more follows."""
        self.page.evaluate(
            """() => new Promise((resolve) => {
              const root = document.querySelector("[data-testid=memwidget]");
              let last = root.dataset.draws;
              let quiet = 0;
              const look = () => {
                quiet = root.dataset.draws === last ? quiet + 1 : 0;
                last = root.dataset.draws;
                if (quiet > 20) resolve();
                else requestAnimationFrame(look);
              };
              look();
            })"""
        )

    @property
    def plot(self):
        """Box of the drawing, page pixels."""
        return self.page.locator(".mw-blocks").first.bounding_box()

    def trait(self, name):
        """Read a trait as the kernel has it."""
        return self.page.evaluate("(name) => model.traits[name]", name)

    def tell(self, name, value):
        """Set a trait as Python would, and wait for the drawing."""
        self.page.evaluate("([name, value]) => model.tell(name, value)", [name, value])
        self.settle()

    def x(self, moment, window=None):
        """Page pixel of the middle of a moment."""
        lo, hi = window or (0, self.trace.n_events + 1)
        box = self.plot
        return box["x"] + (moment + 0.5 - lo) / (hi - lo) * box["width"]

    def y(self, amount, top):
        """Page pixel of an amount of bytes, where `top` is at the upper edge."""
        box = self.plot
        return box["y"] + box["height"] * (1 - amount / top)

    def facts(self):
        """Read what the panel says, term by term."""
        terms = self.page.locator(".mw-facts dt").all_inner_texts()
        return dict(zip(terms, self.page.locator(".mw-facts dd").all_inner_texts(), strict=True))
