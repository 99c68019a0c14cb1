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

#: Time and frames from a pointer's event to the page's answer. An answer within one frame is there before the second
#: animation frame begins: the first may already be under way when the event comes.
POINTER = """async ([kind, selector, points]) => {
  const root = document.querySelector("[data-testid=memwidget]");
  const target = root.querySelector(".mw-over");
  const box = target.getBoundingClientRect();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const answer = () => root.querySelector(selector)?.textContent ?? "";
  const result = [];
  for (const [fx, fy] of points) {
    await frame();
    const before = answer();
    const at = { clientX: box.left + fx * box.width, clientY: box.top + fy * box.height, bubbles: true, pointerId: 1 };
    const start = performance.now();
    const events = kind === "hover" ? ["pointermove"] : ["pointermove", "pointerdown", "pointerup", "click"];
    for (const type of events) {
      target.dispatchEvent(new PointerEvent(type, { ...at, isPrimary: true, button: type === "pointermove" ? -1 : 0 }));
    }
    let frames = 0;
    while (answer() === before && frames < 60) {
      await frame();
      frames++;
    }
    result.push({ ms: performance.now() - start, frames, changed: answer() !== before });
  }
  return result;
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
    """Hover and click over a grid of places of the exported page."""
    page = browser.new_page(viewport={"width": 1432, "height": 900})
    page.goto(exported.as_uri())
    root = page.get_by_test_id("memwidget")
    root.and_(page.locator('[data-state="ready"]')).wait_for()
    points = [[0.15 + 0.6 * i / 24, 0.35 + 0.5 * (i * 7 % 25) / 24] for i in range(25)]
    for kind, selector in (("hover", ".mw-tooltip"), ("click", ".mw-detail")):
        answers = [a for a in page.evaluate(POINTER, [kind, selector, points]) if a["changed"]]
        if not answers:
            table.row(f"{label}: {kind}", 1, "no answer", 0)
            continue
        frames = percentile([a["frames"] for a in answers], 0.95)
        ms = statistics.median(a["ms"] for a in answers)
        table.row(
            f"{label}: {kind} to answer, p95 of {len(answers)}",
            frames,
            f"{frames} frames (median {ms:.1f} ms)",
            1,
            "at most {} frame",
        )
    page.close()
