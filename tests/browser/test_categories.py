"""Categories in the page: automatic colours, a legend that searches, sums in the panel, names of a pinned block."""

import pytest
from playwright.sync_api import expect

from browser.pages import READY, Timeline, kernel_page
from memwidget import Rule, load
from memwidget.show.export import to_html
from memwidget.trace.trace import Trace
from show.hand_made import first, labelled, recording


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
        "optimizer state": ("0 B", "0 B"),  # at other moments it has some
        "input": ("12.0 KiB", "12.0 KiB"),
        "activation": ("32.0 KiB", "32.0 KiB"),
        "temporary": ("8.00 KiB", "8.00 KiB"),
    }
    timeline.tell("moment", 13)
    (state,) = [row for row in table.locator("tbody tr").all_inner_texts() if "optimizer" in row]
    assert state.split("\t")[1:] == ["16.0 KiB", "0 B"]


def sums(page):
    """Bytes by category as the first column has them, exact; and what its head says."""
    table = page.get_by_role("table", name="Bytes by category")
    cells = table.locator("tbody td:nth-child(2)")
    exact = [int(cell.get_attribute("title").removesuffix(" B").replace(",", "")) for cell in cells.all()]
    labels = table.locator("tbody td:first-child").all_inner_texts()
    return table.locator("th").nth(1).inner_text(), dict(zip(labels, exact, strict=True))


def worked_out(trace, moment):
    """Give the same from Python; what has nothing then is left out there."""
    return {name.replace("_", " "): int(size) for name, size in trace.by_category(at=moment).items()}


def test_the_column_follows_the_pointer_and_goes_back(open_page, tmp_path, data):
    rules = [Rule("attention", function="attention"), Rule("layers", function="^forward$")]
    trace = load(data / "annotated_transformer.pickle.xz").with_rules(rules)
    path = tmp_path / "page.html"
    path.write_text(kernel_page(trace), "utf-8")
    it = Timeline(open_page(path.as_uri(), viewport=(1400, 760)), trace)
    page, box = it.page, it.plot
    head, chosen = sums(page)
    assert head == "here"
    assert {name: size for name, size in chosen.items() if size} == worked_out(trace, "peak")
    assert {"attention", "layers"} <= set(chosen)
    rows = page.get_by_role("table", name="Bytes by category").bounding_box()
    panel = page.locator(".mw-moment").element_handle()
    seen = set()
    for share in (0.003, 0.1, 0.24, 0.37, 0.5, 0.68, 0.81, 0.997):
        # Near the upper edge, where nothing is drawn, and through the stack.
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * (0.02 if share < 0.5 else 0.9))
        moment = int(page.locator(".mw-status").inner_text().split(" · ")[0].removeprefix("moment ").replace(",", ""))
        head, here = sums(page)
        assert head == "under the pointer"
        assert {name: size for name, size in here.items() if size} == worked_out(trace, moment)
        assert list(here) == list(chosen)
        assert page.get_by_role("table", name="Bytes by category").bounding_box() == rows
        seen.add(moment)
    assert len(seen) == 8
    assert panel.evaluate("(panel) => panel.isConnected")  # nothing was rebuilt, and nothing tells a screen reader
    assert page.locator("[aria-live]:has(table), [role=status]:has(table)").count() == 0
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 30)
    assert sums(page) == ("here", chosen)


def test_a_pinned_block_stays_where_it_is_while_the_pointer_moves(timeline):
    timeline.tell("selection", 0)
    box = timeline.plot
    timeline.page.mouse.move(box["x"] + 200, box["y"] + 20)
    expect(timeline.page.locator(".mw-detail")).to_be_visible()
    expect(timeline.page.get_by_role("table", name="Bytes by category")).to_have_count(0)
    # Taken off by key, the pointer is still there.
    timeline.root.focus()
    timeline.page.keyboard.press("Escape")
    expect(timeline.page.locator(".mw-categories th").nth(1)).to_have_text("under the pointer")


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


def climbed(page, n):
    """Walk up the stack by key; the alloc events of the blocks on the way."""
    found = []
    for _ in range(n):
        page.keyboard.press("ArrowUp")
        found.append(page.locator("[data-testid=memwidget]").get_attribute("data-hovered"))
    return [int(block) for block in found]


def test_the_stack_stands_by_age_or_by_category(timeline):
    page, blocks = timeline.page, timeline.trace.blocks
    live = [int(block) for block in timeline.trace.live_at(8)]
    category = {block: int(blocks["category"][block]) for block in live}
    timeline.tell("moment", 8)
    timeline.root.focus()
    assert climbed(page, len(live)) == live
    page.get_by_label("Stack blocks").select_option("category")
    timeline.settle()
    assert timeline.trait("order") == "category"
    timeline.root.focus()
    on_the_way = climbed(page, len(live))
    assert on_the_way == sorted(live, key=category.get) != live
    # What is walked to is what is pinned, and a click there lets go of it again.
    page.keyboard.press("Enter")
    timeline.settle()
    assert timeline.trait("selection") == on_the_way[-1]
    timeline.tell("order", "age")
    assert page.get_by_label("Stack blocks").input_value() == "age"
    assert timeline.trait("selection") == on_the_way[-1]


def test_a_phase_colours_its_blocks_and_its_name_lights_them_up(timeline):
    page = timeline.page
    page.get_by_label("Colour by").select_option("phase")
    timeline.settle()
    legend = page.locator(".mw-legend")
    assert legend.locator(".mw-legend-entry").all_inner_texts() == ["forward", "backward", "optimizer", "no phase"]
    legend.get_by_role("button", name="backward").click()
    timeline.settle()
    assert timeline.trait("query") == '"phase:backward"'
    expect(page.locator(".mw-hits").first).to_have_text("2 · 24.0 KiB")
    timeline.tell("view", "segments")  # a segment has no phase
    expect(page.get_by_label("Colour by")).to_have_value("auto")


def test_a_page_keeps_order_and_colour(open_page, tmp_path):
    path = to_html(Trace(labelled()), tmp_path / "page.html", order="category", color_by="phase")
    page = open_page(path.as_uri())
    page.locator(READY).wait_for()
    expect(page.get_by_label("Stack blocks")).to_have_value("category")
    expect(page.get_by_label("Colour by")).to_have_value("phase")


def test_reserved_is_not_said_where_nothing_is_known_of_it(open_page, tmp_path):
    events = [("alloc", 4096, 2 << 20), ("alloc", 4 << 20, 1 << 20), ("free_completed", 4096, 2 << 20)]
    page = open_page(to_html(Trace(recording(events, device_type="cpu")), tmp_path / "page.html").as_uri())
    root = page.locator(READY)
    root.wait_for()
    box = page.locator(".mw-blocks").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".mw-status")).to_contain_text("allocated")
    assert "peak 3.00 MiB" in root.get_attribute("aria-label")
    assert "eserved" not in root.inner_text() + root.get_attribute("aria-label")
    page.get_by_role("tab", name="About").click()
    expect(page.locator(".mw-about")).to_contain_text("Peak allocated")
    expect(page.locator(".mw-about")).not_to_contain_text("eserved")


def test_without_labels_and_phases_neither_is_offered(open_page, tmp_path):
    path = to_html(Trace(first()), tmp_path / "page.html", order="category", color_by="phase")
    page = open_page(path.as_uri())
    page.locator(READY).wait_for()
    order = page.get_by_label("Stack blocks")
    expect(order).to_be_disabled()
    expect(order).to_have_value("age")
    assert "nothing tells what blocks were for" in page.locator("label", has=order).get_attribute("title")
    expect(page.get_by_label("Colour by")).to_have_value("auto")
    assert page.get_by_label("Colour by").locator("option:not([hidden])").all_inner_texts() == [
        *("auto", "call site", "size", "age", "stream", "pool", "category")
    ]
