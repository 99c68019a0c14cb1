"""A user's day in JupyterLab: record a cell, click a block, read its stack here and there, go dark, record again."""

import json

import pytest
from playwright.sync_api import expect

LOAD = """\
%load_ext memwidget
import json, memwidget, torch
def forward():
    small = torch.ones(250_000)
    large = torch.zeros(3_000_000)
    return small, large
"""
RECORD = """\
%%memtrace trace
kept = forward()
"""
VIEW = """\
import ipywidgets
view, heard = memwidget.MemView(trace), ipywidgets.Label()
view.observe(lambda change: setattr(heard, "value", f"Python heard of block {change.new}"), "selection")
display(view, heard)
"""
#: What Python knows of the block that was clicked in the page.
ASK = """\
site = trace.site(view.selection)
size = int(trace.blocks["size"][view.selection])
print(json.dumps([view.selection, size, site.name, site.line, view.selected["size"]]))
"""
SELECT = """\
view.selection = 0
"""


@pytest.fixture
def notebook(lab, open_page):
    """Open the notebook, tall enough for two widgets; nothing has run yet."""
    return lab.open(open_page, "day.ipynb", LOAD, RECORD, VIEW, ASK, SELECT, viewport=(1400, 1700))


def ready(page, number):
    """Wait for the widget of that number, counted from the top of the notebook, and return it."""
    page.locator('[data-testid="memwidget"][data-state="ready"]').nth(number).wait_for()
    return page.get_by_test_id("memwidget").nth(number)


def click_last_column(page, widget, height):
    """Click where both tensors are live: at the right edge, `height` of the way up to the peak."""
    widget.scroll_into_view_if_needed()
    box = widget.locator(".mw-blocks").bounding_box()
    # The peak stands at 1 / 1.08 of the drawing's height at the lowest, so 80 % and less are within the blocks.
    page.mouse.click(box["x"] + box["width"] - 6, box["y"] + box["height"] * (1 - height))


def test_record_click_read_and_record_again(lab, notebook):
    page = notebook
    lab.run(page, 0, 1)
    first = ready(page, 0)
    # The small tensor lies below: 1 of 13 MB. Half way up is the large one.
    click_last_column(page, first, 0.5)
    detail = first.locator(".mw-detail")
    detail.wait_for()
    assert "11.4 MiB" in detail.inner_text()
    assert "forward" in detail.locator(".mw-stack").first.inner_text()
    assert "large = torch.zeros(3_000_000)" in detail.inner_text()

    lab.run(page, 2)
    second = ready(page, 1)
    click_last_column(page, second, 0.5)
    second.locator(".mw-detail").wait_for()
    clicked = int(second.locator(".mw-detail").get_attribute("data-block"))
    page.get_by_text(f"Python heard of block {clicked}").wait_for()
    lab.run(page, 3)
    said = page.locator('[data-mime-type="application/vnd.jupyter.stdout"]', has_text="forward").inner_text()
    assert json.loads(said) == [clicked, 12_000_000, "forward", 5, 12_000_000]

    # The other way round: Python selects, the page shows.
    lab.run(page, 4)
    second.locator('.mw-detail[data-block="0"]').wait_for()
    assert "977 KiB" in second.locator(".mw-detail").inner_text()

    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })")
    for number in (0, 1):
        page.locator('[data-testid="memwidget"][data-theme="dark"]').nth(number).wait_for()
    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' })")
    page.locator('[data-testid="memwidget"][data-theme="light"]').nth(1).wait_for()

    lab.run(page)
    ready(page, 1)
    assert page.get_by_test_id("memwidget").count() == 2
    click_last_column(page, ready(page, 0), 0.5)
    page.get_by_test_id("memwidget").nth(0).locator(".mw-detail").wait_for()


FURTHER = """\
view = memwidget.MemView(memwidget.load(r"{path}"), view="findings")
view
"""
AS_LIVE = """\
view.view = "live"
"""
AS_ALLOCATOR = """\
view.view = "allocator"
"""
COMPARE = """\
memwidget.compare(view.trace, view.trace)
"""


def test_the_further_views_and_a_comparison_come_from_the_kernel(lab, open_page, data):
    further = FURTHER.format(path=data / "leak_features.pickle.xz")
    cells = ("import memwidget", further, AS_LIVE, AS_ALLOCATOR, COMPARE)
    page = lab.open(open_page, "further.ipynb", *cells, viewport=(1400, 1900))
    lab.run(page, 0, 1)
    page.locator(".mw-finding-title").first.wait_for()
    lab.run(page, 2)
    page.locator(".mw-live-table tbody tr").first.wait_for()
    lab.run(page, 3)
    # A change of theme hides outputs for a moment: what is drawn then must not stay as it was measured.
    rows = page.locator(".mw-event:not([hidden])")
    expect(rows.nth(5)).to_be_visible()
    for name, theme in (("Dark", "dark"), ("Light", "light")):
        page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {name}' }})")
        page.locator(f'[data-testid="memwidget"][data-theme="{theme}"]').wait_for()
        expect(rows.nth(5)).to_be_visible()
    lab.run(page, 4)
    page.locator('[data-testid="memwidget-compare"][data-state="ready"]').wait_for()
    assert "No difference." in page.get_by_test_id("memwidget-compare").inner_text()
