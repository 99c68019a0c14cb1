"""A comparison in a page: two timelines that move together, the table of what differs, a line lit in both."""

import numpy as np
import pytest
from playwright.sync_api import expect

import memwidget as mw
from memwidget.trace.trace import Trace
from memwidget.units import bytes_text
from show.hand_made import MARKUP, first, hostile

READY = "[data-testid=memwidget-compare][data-state=ready]"


@pytest.fixture
def show(open_page, tmp_path):
    """Give a function that writes a comparison to a page and opens it."""

    def show(before, after, **options):
        comparison = mw.compare(before, after)
        page = open_page(comparison.to_html(tmp_path / "compare.html").as_uri(), **options)
        page.locator(READY).wait_for()
        return comparison, page

    return show


def amount(size):
    return bytes_text(size) if size else "–"


def test_the_table_is_what_python_found_and_both_move_as_one(show, data):
    comparison, page = show(data / "leak_features.pickle.xz", data / "leak_loss.pickle.xz")
    rows = page.locator(".mw-compare-table tbody tr")
    cells = rows.evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))")
    assert [row[:3] for row in cells] == [
        [row.name, amount(row.before), amount(row.after)] for row in comparison.by_site
    ]
    assert cells[0][3] == f"+{bytes_text(comparison.by_site[0].change)}"
    root = page.locator(READY)
    plots = [page.locator(".mw-blocks").nth(side).bounding_box() for side in (0, 1)]
    assert plots[0]["height"] == plots[1]["height"]  # one scale of bytes
    n = [comparison.before.n_events + 1, comparison.after.n_events + 1]
    expect(root).to_have_attribute("data-windows", f"0.0-{n[0]}.0 0.0-{n[1]}.0")
    root.focus()
    page.keyboard.press("+")
    expect(root).not_to_have_attribute("data-windows", f"0.0-{n[0]}.0 0.0-{n[1]}.0")
    windows = [np.array(each.split("-"), float) for each in root.get_attribute("data-windows").split()]
    assert windows[0] / n[0] == pytest.approx(windows[1] / n[1], abs=1e-3)
    page.keyboard.press("Home")
    expect(root).to_have_attribute("data-windows", f"0.0-{n[0]}.0 0.0-{n[1]}.0")


def test_a_row_lights_its_line_and_escape_puts_it_out(show, data):
    comparison, page = show(data / "leak_features.pickle.xz", data / "leak_loss.pickle.xz", color_scheme="dark")
    root = page.locator(READY)
    draws = int(root.get_attribute("data-draws"))
    before = page.locator(".mw-compare-drawings").screenshot()
    page.locator(".mw-compare-table tbody tr").first.get_by_role("button").click()
    expect(root).to_have_attribute("data-picked", comparison.by_site[0].name)
    assert int(root.get_attribute("data-draws")) > draws
    assert page.locator(".mw-compare-drawings").screenshot() != before
    page.keyboard.press("Escape")
    expect(root).to_have_attribute("data-picked", "")


def test_the_same_twice_has_no_difference(show):
    _, page = show(Trace(first()), Trace(first()))
    expect(page.locator(".mw-compare-table")).to_contain_text("No difference.")
    expect(page.locator(".mw-compare-total b").first).to_have_text("same")


def test_names_stay_text(show):
    _, page = show(Trace(hostile()), Trace(first()), viewport=(560, 800))
    expect(page.locator(READY)).to_contain_text(MARKUP[:40])
    assert page.locator(".memwidget :is(img, script, iframe, a)").count() == 0
