"""Measures the picture in headless Chromium at 1400x700 on a real payload.

Drawing is measured with the product's own engine and painter (js/bench/payload.ts); answers to the pointer on the
exported page as people use it.
"""

import base64
import json
import statistics
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from chromium import launch  # noqa: E402  it lies beside the browser tests

#: Notes for each pointer event when the page answered it and how many animation frames began in between. An answer
#: within one frame is there before a second frame begins: the first may already be under way when the event comes.
WATCH = """() => {
  const root = document.querySelector("[data-testid=memwidget]");
  const open = { hover: null, click: null };
  window.answers = { hover: [], click: [] };
  const asked = (kind) => (event) => { open[kind] = { start: event.timeStamp, frames: 0 }; };
  root.addEventListener("pointermove", asked("hover"), true);
  root.addEventListener("pointerup", asked("click"), true);
  const answered = (kind) => {
    const { start, frames } = open[kind] ?? {};
    if (start !== undefined) window.answers[kind].push({ ms: performance.now() - start, frames });
    open[kind] = null;
  };
  new MutationObserver((records) => {
    const touched = (selector) => records.some(({ target, addedNodes }) =>
      [...addedNodes].some((node) => node.matches?.(selector)) || target.closest?.(selector));
    if (touched(".mw-tooltip")) answered("hover");
    if (touched(".mw-detail")) answered("click");
  }).observe(root, { childList: true, subtree: true });
  const count = () => {
    for (const question of Object.values(open)) if (question) question.frames++;
    requestAnimationFrame(count);
  };
  count();
}"""


def payload_page(trace, folder):
    """Write a page that holds the payload and the measuring script."""
    from memwidget.show.wire import payload

    script = folder / "payload.js"
    hook = [sys.executable, str(ROOT / "hatch_build.py"), "npm", "exec", "--", "node", "bench/bench.mjs"]
    subprocess.run([*hook, "--payload", str(script)], check=True, stdout=subprocess.DEVNULL)
    header, buffers = payload(trace)
    columns = base64.b64encode(b"".join(bytes(buffer) for buffer in buffers)).decode("ascii")
    page = folder / "payload.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8>"
        f"<script type=application/json id=header>{json.dumps(header).replace('<', chr(92) + 'u003c')}</script>"
        f"<script type=text/plain id=columns>{columns}</script>"
        f"<script src={script.name}></script>",
        "utf-8",
    )
    return page


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def bench(table, name, pickle, folder):
    """Draw, redraw, hover and click."""
    import memwidget

    trace = memwidget.load(pickle)
    page_file = payload_page(trace, folder)
    exported = folder / f"{name}.html"
    trace.to_html(exported)
    del trace
    with sync_playwright() as playwright:
        browser = launch(playwright)
        runs = []
        for _ in range(3):
            page = browser.new_page(viewport={"width": 1400, "height": 760})
            page.goto(page_file.as_uri())
            runs.append(page.evaluate("memwidgetPayloadBench()"))
            page.close()
        where = "in a worker" if all(run["worker"] for run in runs) else "on the main thread"
        first = statistics.median(run["first"] for run in runs)
        redraws = [ms for run in runs for ms in run["redraws"]]
        label = f"{name} ({runs[0]['blocks']:,} blocks)"
        table.row(f"{label}: data received to first full frame", first, f"{first:.0f} ms", 500, "at most {} ms")
        median, p95 = statistics.median(redraws), percentile(redraws, 0.95)
        table.row(f"{label}: redraw {where}, median of {len(redraws)}", median, f"{median:.1f} ms", 16, "at most {} ms")
        table.row(f"{label}: redraw, p95", p95, f"{p95:.1f} ms", 33, "at most {} ms")
        pointer(table, label, browser, exported)
        browser.close()


def pointer(table, label, browser, exported):
    """Hover and click over many places of the exported page, with real input."""
    page = browser.new_page(viewport={"width": 1432, "height": 900})
    page.goto(exported.as_uri())
    page.locator('[data-testid="memwidget"][data-state="ready"]').wait_for()
    page.evaluate(WATCH)
    box = page.locator(".mw-blocks").bounding_box()
    for i in range(40):
        x, y = (
            box["x"] + box["width"] * (0.02 + 0.96 * i / 40),
            box["y"] + box["height"] * (0.6 + 0.38 * (i * 7 % 40) / 40),
        )
        page.mouse.move(x, y)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if i % 2:
            page.mouse.down()
            page.mouse.up()
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    for kind, answers in page.evaluate("window.answers").items():
        if not answers:
            table.row(f"{label}: {kind}", 2, "no answer", 1, "at most {} frame")
            continue
        frames = percentile([answer["frames"] for answer in answers], 0.95)
        ms = statistics.median(answer["ms"] for answer in answers)
        shown = f"{frames} frames (median {ms:.1f} ms)"
        table.row(f"{label}: {kind} to answer, p95 of {len(answers)}", frames, shown, 1, "at most {} frame")
    page.close()
