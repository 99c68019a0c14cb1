"""Exported pages of a file that would like to be markup: opened from disk, in a frame, and without scripts.

`open_page` fails a test on any request, console error (a breach of the page's own policy is one) or exception.
"""

import pytest
from playwright.sync_api import expect

from memwidget.show.export import StaticView, to_html
from memwidget.trace.trace import Trace
from show.hand_made import MARKUP, first, hostile

READY = "[data-testid=memwidget][data-state=ready]"


@pytest.fixture
def page_of(tmp_path):
    """Write a page's text, or a frame around it, and give its address."""

    def page_of(text):
        path = tmp_path / "page.html"
        path.write_text(text, "utf-8")
        return path.as_uri()

    return page_of


def test_names_are_drawn_as_text_and_never_run(open_page, page_of):
    page = open_page(page_of(to_html(Trace(hostile()))))
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.locator(READY).wait_for()
    expect(page.locator(READY)).to_contain_text(MARKUP)
    assert page.locator("img, iframe, a[href]").count() == 0
    assert page.locator("script").count() == 5
    assert page.title() == f"{MARKUP} on cpu"
    assert not asked


def test_the_static_form_draws_in_its_sandbox(open_page, page_of):
    data, _ = StaticView(Trace(first()))._repr_mimebundle_()
    page = open_page(page_of(f"<!doctype html>{data['text/html']}"))
    page.frame_locator("iframe").locator(READY).wait_for()


def test_without_scripts_the_page_shows_picture_and_summary(open_page, page_of):
    page = open_page(page_of(to_html(Trace(first()))), java_script_enabled=False)
    expect(page.locator("noscript pre")).to_contain_text("peak 20.0 MiB of 140 GiB")
    expect(page.get_by_role("img", name="first · cuda:0, peak 20.0 MiB of 140 GiB")).to_be_visible()
