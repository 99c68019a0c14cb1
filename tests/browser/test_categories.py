"""Categories in the page: automatic colours, a legend that searches, sums in the panel, names of a pinned block."""

import pytest
from playwright.sync_api import expect

from browser.pages import Timeline, kernel_page
from memwidget.trace.trace import Trace
from show.hand_made import labelled


@pytest.fixture
def timeline(open_page, tmp_path):
    """Open the step of show/hand_made.py in a page whose kernel the test plays."""
    trace = Trace(labelled())
    path = tmp_path / "page.html"
    path.write_text(kernel_page(trace), "utf-8")
    return Timeline(open_page(path.as_uri(), viewport=(1400, 760)), trace)


def test_the_legend_names_categories_and_lights_up_theirs(timeline):
    page = timeline.page
    legend = page.locator(".mw-legend")
    expect(legend).to_contain_text("optimizer state")
    expect(legend).to_contain_text("hatched: a guess")
    legend.get_by_role("button", name="gradient").click()
    timeline.settle()
    assert timeline.trait("query") == '"category:gradient"'
    expect(page.locator(".mw-hits").first).to_have_text("1 · 16.0 KiB")
    legend.get_by_role("button", name="gradient").click()
    timeline.settle()
    assert timeline.trait("query") == ""


def test_the_panel_sums_up_here_and_at_the_peak(timeline):
    table = timeline.page.get_by_role("table", name="Bytes by category")
    found = {}
    for row in table.locator("tbody tr").all():
        label, here, peak = row.locator("td").all_inner_texts()
        found[label] = (here, peak)
    assert found == {
        "parameter": ("16.0 KiB", "16.0 KiB"),
        "gradient": ("16.0 KiB", "16.0 KiB"),
        "input": ("12.0 KiB", "12.0 KiB"),
        "activation": ("32.0 KiB", "32.0 KiB"),
        "temporary": ("8.00 KiB", "8.00 KiB"),
    }
    timeline.tell("moment", 13)
    (state,) = [row for row in table.locator("tbody tr").all_inner_texts() if "optimizer" in row]
    assert state.split("\t")[1:] == ["16.0 KiB", "0 B"]


def test_a_pinned_block_says_name_reason_and_forward_line(timeline):
    trace, page = timeline.trace, timeline.page
    gradient = int((trace.blocks["category"] == 2).nonzero()[0][0])
    timeline.tell("selection", gradient)
    facts = timeline.facts()
    assert facts["Category"] == "gradient (by guess)"
    assert "train.py:31" in page.locator(".mw-headline").inner_text()
    expect(page.locator(".mw-detail")).to_contain_text("shown is the forward that it belongs to")
    weight = int((trace.blocks["category"] == 0).nonzero()[0][0])
    timeline.tell("selection", weight)
    assert timeline.facts()["Name"] == "encoder.weight"
