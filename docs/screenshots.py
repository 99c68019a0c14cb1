"""Makes the README's pictures: the sample's exported page in Chromium, light and dark, with a block pinned.

`make screenshots` runs it; look at the pictures before committing them.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import memwidget
from memwidget.cli import SAMPLE

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent / "tests"))

from chromium import launch  # noqa: E402  it lies beside the browser tests

#: Where in the drawing a large block of the forward pass lies, as shares of its width and height.
PIN = (0.56, 0.62)


def main():
    """Write timeline-light.png and timeline-dark.png."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "sample.html"
        memwidget.load(SAMPLE).to_html(page_file)
        browser = launch(playwright)
        for theme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": 1200, "height": 620},
                device_scale_factor=2,
                color_scheme=theme,
                reduced_motion="reduce",
            )
            page.goto(page_file.as_uri())
            root = page.get_by_test_id("memwidget")
            root.and_(page.locator('[data-state="ready"]')).wait_for()
            box = page.locator(".mw-stage").bounding_box()
            page.mouse.click(box["x"] + PIN[0] * box["width"], box["y"] + PIN[1] * box["height"])
            page.locator(".mw-detail").wait_for()
            page.mouse.move(0, 0)
            page.locator(".mw-tooltip").wait_for(state="hidden")
            root.screenshot(path=DOCS / f"timeline-{theme}.png")
        browser.close()


if __name__ == "__main__":
    main()
