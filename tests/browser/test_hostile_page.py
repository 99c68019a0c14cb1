"""Exported pages of a file that would like to be markup: opened from disk, in a frame, and without scripts.

`open_page` fails a test on any request, console error (a breach of the page's own policy is one) or exception.
"""

import pytest
from playwright.sync_api import expect

from browser.pages import kernel_page
from memwidget.read import load_recording
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


def marked():
    """A snapshot whose every text is markup: files, functions, annotations, metadata, settings, and an OOM."""
    frames = [{"filename": f"/tmp/{MARKUP}.py", "line": 3, "name": MARKUP}]
    events = [{"action": "segment_alloc", "addr": 0, "size": 2 << 20, "stream": 7, "frames": frames}]
    for i in range(40):
        event = {"addr": 512 * i, "size": 512, "stream": 7, "frames": frames, "user_metadata": MARKUP}
        events.append({"action": "alloc", **event})
        if i % 4 == 0:
            events += [{"action": "free_requested", **event}, {"action": "free_completed", **event}]
    events.append({"action": "oom", "device_free": 1 << 30, "size": 2 << 20, "stream": 7, "frames": frames})
    for i, event in enumerate(events):
        event["time_us"] = 1000 + i
    blocks = [
        {
            "address": 512 * i,
            "size": 512,
            "requested_size": 500,
            "state": "active_allocated" if i % 4 else "inactive",
            "frames": frames,
        }
        for i in range(40)
    ]
    segment = {"device": 0, "address": 0, "total_size": 2 << 20, "stream": 7, "segment_type": "small", "blocks": blocks}
    marks = [("START", 1005), ("END", 1030)]
    return {
        "segments": [{**segment, "frames": frames}],
        "device_traces": [events],
        "external_annotations": [{"name": MARKUP, "stage": s, "device": 0, "time_us": t} for s, t in marks],
        "allocator_settings": {MARKUP: MARKUP, "PYTORCH_CUDA_ALLOC_CONF": MARKUP},
    }


@pytest.mark.parametrize("where", ["page", "notebook"])
@pytest.mark.parametrize("view", ["timeline", "allocator", "segments", "live", "findings", "about"])
def test_no_view_makes_markup_of_a_name(open_page, page_of, view, where):
    trace = Trace(load_recording(marked(), name=MARKUP))
    text = to_html(trace, view=view) if where == "page" else kernel_page(trace, view=view)
    page = open_page(page_of(text))
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    root = page.locator(READY).first
    root.wait_for()
    expect(root).to_have_attribute("data-view", view)
    scripts = page.locator("script").count()
    box = root.bounding_box()
    for x, y in ((0.2, 0.5), (0.5, 0.7), (0.7, 0.3)):  # what is hovered and pinned shows names too
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    expect(root).to_contain_text(MARKUP)
    assert page.locator("img, iframe, a[href], object, embed, svg script").count() == 0
    assert page.locator("script").count() == scripts
    assert not asked
