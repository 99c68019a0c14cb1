"""Views whose code comes after the picture: what stands in their place until then, and when it does not come."""

import pytest
from playwright.sync_api import expect

from browser.pages import READY, kernel_page
from memwidget.show.export import to_html
from memwidget.trace.trace import Trace
from show.hand_made import labelled

#: What tells that a view is there.
VIEWS = {
    "allocator": ".mw-map",
    "segments": ".mw-reserved",
    "live": ".mw-live-table tbody tr",
    "findings": ".mw-findings-scroll",
    "about": ".mw-about",
}


@pytest.fixture
def held(open_page, tmp_path):
    """Give a function that opens a page whose kernel keeps the code of the views back."""

    def held(view):
        path = tmp_path / "page.html"
        path.write_text(kernel_page(Trace(labelled()), holds=True, view=view), "utf-8")
        return open_page(path.as_uri(), viewport=(1400, 760))

    return held


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opened_first_waits_behind_the_outline(held, view):
    page = held(view)
    expect(page.get_by_text("Loading this view.")).to_be_visible()
    # The outline, and nothing of another view: no blocks, no panel's text, no colours' names.
    expect(page.locator(".mw-over")).to_be_visible()
    expect(page.locator(".mw-blocks")).to_be_hidden()
    expect(page.locator(".mw-panel-body")).to_be_empty()
    expect(page.locator(".mw-legend")).to_be_empty()
    expect(page.get_by_role("tab", selected=True)).to_have_text(view.capitalize())
    page.mouse.move(500, 300)
    expect(page.locator(".mw-tooltip")).to_be_hidden()
    page.evaluate("() => { model.holds = false; model.release(); }")
    page.locator(READY).wait_for()
    expect(page.locator(VIEWS[view]).first).to_be_visible()
    expect(page.get_by_text("Loading this view.")).to_be_hidden()


def test_code_that_does_not_come_is_said_and_asked_for_again(held):
    page = held("segments")
    page.wait_for_function("() => model.asked.length === 1")
    expect(page.locator("[data-testid=memwidget]")).to_have_attribute("data-state", "loading")
    expect(page.get_by_text("Loading this view.")).to_be_visible()
    page.evaluate("model.release('The kernel <b>died</b>.')")
    expect(page.get_by_role("alert")).to_have_text("This view could not be loaded: The kernel <b>died</b>.")
    it = page.get_by_role("tab", name="Timeline")
    it.click()  # the timeline needs nothing of it
    page.locator(READY).wait_for()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".mw-blocks")).to_be_visible()
    page.evaluate("model.holds = false")
    page.get_by_role("tab", name="Allocator").click()
    page.evaluate("model.release()")
    expect(page.locator(".mw-map")).to_be_visible()


@pytest.mark.parametrize("view", ["allocator", "segments"])
def test_an_exported_page_opens_with_the_view_and_goes_back(open_page, tmp_path, view):
    trace = Trace(labelled())
    page = open_page(to_html(trace, tmp_path / "page.html", view=view).as_uri())
    page.locator(READY).wait_for()
    expect(page.locator(VIEWS[view]).first).to_be_visible()
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator(".mw-moment")).to_be_visible()
    expect(page.locator(".mw-blocks")).to_be_visible()
