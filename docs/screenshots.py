"""Makes the README's pictures: exported pages of recordings in tests/data in Chromium, light and dark.

Owns what each picture shows and how one gets there with mouse and keys. `make screenshots` runs it, with the names of
some (``timeline compare``) only those; look at the pictures before committing them. They are taken at one and a half
times the size and with at most 256 colours, which keeps them small.
"""

import io
import json
import re
import runpy
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import memwidget
from memwidget.cli import SAMPLE

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.append(str(ROOT / "tests"))

from chromium import launch  # noqa: E402  it lies beside the browser tests

DATA = ROOT / "tests" / "data"
NOTEBOOK = ROOT / "notebooks" / "05_checkpointing_and_amp.ipynb"
WIDGET = re.compile("memwidget(-compare)?$")
PICTURES = {}


def picture(function):
    """Register `function(folder)`: it returns the page to open and what to do there before the picture is taken."""
    PICTURES[function.__name__] = function
    return function


@picture
def timeline(folder):
    """A transformer's first steps, with a block of the forward pass pinned."""

    def pin(page):
        box = page.locator(".mw-stage").bounding_box()
        page.mouse.click(box["x"] + 0.56 * box["width"], box["y"] + 0.62 * box["height"])
        page.locator(".mw-detail").wait_for()

    return memwidget.load(SAMPLE).to_html(folder / "timeline.html"), pin


@picture
def allocator(folder):
    """Every segment, where every second block was freed and larger ones found no place."""
    trace = memwidget.load(DATA / "fragment.pickle.xz")
    return trace.to_html(folder / "allocator.html", view="allocator", moment=trace.n_events), None


@picture
def findings(folder):
    """A running total that keeps every step's graph."""
    trace = memwidget.load(DATA / "leak_loss.pickle.xz")
    return trace.to_html(folder / "findings.html", view="findings"), None


@picture
def live(folder):
    """A step of GPT-2 small at its peak, as a flame graph and a table."""
    trace = memwidget.load(DATA / "gpt2_small.pickle.xz")
    return trace.to_html(folder / "live.html", view="live", moment=trace.peak_event), None


@picture
def compare(folder):
    """The same steps plain and checkpointed, recorded here as the notebook does."""
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = folder / "train.py"
    program.write_text("\n\n".join(code[:2]), "utf-8")
    recorded = runpy.run_path(str(program))
    compared = memwidget.compare(recorded["plain"], recorded["checkpointed"])

    def light(page):
        page.locator(".mw-compare-table tbody tr").first.get_by_role("button").click()

    return compared.to_html(folder / "compare.html"), light


def take(page, path):
    """Take the widget's picture: ready, no pointer on it, few colours."""
    page.mouse.move(0, 0)
    for tooltip in page.locator(".mw-tooltip").all():
        tooltip.wait_for(state="hidden")
    shot = page.get_by_test_id(WIDGET).first.screenshot(animations="disabled")
    # A palette of 255: flat fills and text lose nothing that one sees, and a third of the bytes are left.
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)


def main(names):
    """Write NAME-light.png and NAME-dark.png for each name, for all without any."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = launch(playwright)
        for name in names or PICTURES:
            file, prepare = PICTURES[name](Path(folder))
            for theme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": 1200, "height": 620},
                    device_scale_factor=1.5,
                    color_scheme=theme,
                    reduced_motion="reduce",
                )
                page.goto(file.as_uri())
                page.get_by_test_id(WIDGET).and_(page.locator('[data-state="ready"]')).first.wait_for()
                if prepare is not None:
                    prepare(page)
                take(page, DOCS / f"{name}-{theme}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
