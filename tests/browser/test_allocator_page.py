"""The Allocator, Segments and About views in a page: list, map and panel agree, and the moment is one for all views."""

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.pages import Timeline, kernel_page
from memwidget.recording import ACTION, Events, Recording
from memwidget.trace.trace import Trace
from show.hand_made import BASE, MARKUP, MIB, allocator, first, hostile

#: Height of a group's head on the map, CSS pixels; the first row of segments stands below the first one.
HEAD = 22
ROW = 20


class Allocator(Timeline):
    """The Allocator view on a page, in the words of a test."""

    @property
    def total(self):
        """What stands before "(allocated / reserved)"."""
        return self.page.get_by_test_id("memwidget-total").inner_text()

    @property
    def current(self):
        """Events marked in the list: one, or none where the filter hides it."""
        return [
            int(n)
            for n in self.page.locator(".mw-event[aria-selected=true]").evaluate_all(
                "rows => rows.filter((row) => !row.hidden).map((row) => row.dataset.event)"
            )
        ]

    @property
    def rows(self):
        """Events whose rows are in sight."""
        return self.page.evaluate(
            """() => {
              const box = document.querySelector(".mw-events").getBoundingClientRect();
              const inside = (row) => {
                const own = row.getBoundingClientRect();
                return own.height > 0 && own.top > box.top - 1 && own.bottom < box.bottom + 1;
              };
              return [...document.querySelectorAll(".mw-event")].filter(inside).map((row) => Number(row.dataset.event));
            }"""
        )

    def choose(self, event):
        """Click an event of the list."""
        self.page.locator(f".mw-event[data-event='{event}']:visible").click()
        self.settle()

    def on_map(self, part, row=0):
        """Click the map's first group, at a part of its width."""
        box = self.page.get_by_test_id("memwidget-map").bounding_box()
        self.page.mouse.click(box["x"] + part * box["width"], box["y"] + HEAD + 6 + row * (HEAD + 12))
        self.settle()

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()


@pytest.fixture
def show(open_page, tmp_path):
    """Give a function that opens a trace in one of the views, in a page whose kernel the test plays."""

    def show(trace, view="allocator", *, viewport=(1400, 700), **options):
        path = tmp_path / "page.html"
        path.write_text(kernel_page(trace, view=view, **options), "utf-8")
        return Allocator(open_page(path.as_uri(), viewport=viewport), trace)

    return show


def test_an_event_its_block_on_the_map_and_the_panel_agree(show):
    it = show(Trace(first()))
    it.choose(2)
    assert (it.trait("moment"), it.trait("selection")) == (3, 1)
    assert it.total == "14.0 MiB / 20.0 MiB"
    assert it.facts()["Size"] == "6.00 MiB"
    expect(it.page.locator(".mw-headline")).to_contain_text("loss = criterion(out, y)")
    it.on_map(11 / 20)  # the block itself, 8 to 14 MiB of the segment: its second click takes the pin off
    assert it.trait("selection") == -1
    it.on_map(4 / 20)
    assert it.trait("selection") == 0
    it.on_map(11 / 20)
    assert (it.trait("moment"), it.trait("selection")) == (3, 1)
    it.on_map(17 / 20)  # a hole: the segment
    assert it.trait("selection") == -1
    facts = it.facts()
    assert (facts["In use now"], facts["Free now"]) == ("14.0 MiB in 2 blocks", "6.00 MiB")
    assert facts["Segment"] == f"s{BASE:x}_0"
    it.choose(5)  # freed on one stream, in use on another
    assert it.total == "8.00 MiB / 22.0 MiB"
    expect(it.page.locator(".mw-figure[data-key=pending]")).to_contain_text("6.00 MiB")
    expect(it.page.locator(".mw-stack").nth(1)).to_contain_text("train.py:44")


def test_pointing_shows_in_the_panel_and_leaves_the_pin(show):
    it = show(Trace(first()))
    it.choose(2)
    box = it.page.get_by_test_id("memwidget-map").bounding_box()
    it.page.mouse.move(box["x"] + box["width"] * 4 / 20, box["y"] + HEAD + 6)
    expect(it.page.locator(".mw-detail")).to_have_attribute("data-block", "0")
    it.page.mouse.move(700, 5)
    expect(it.page.locator(".mw-detail")).to_have_attribute("data-block", "1")
    assert it.trait("selection") == 1


def test_the_moment_is_one_for_all_views(show):
    trace = Trace(first())
    it = show(trace, moment=8)
    assert it.current == [8]  # a failed allocation is looked at as the request met it
    it.tell("moment", 3)
    assert it.current == [2]
    assert it.total == "14.0 MiB / 20.0 MiB"
    it.page.get_by_role("tab", name="Timeline").click()
    it.settle()
    assert it.trait("view") == "timeline"
    it.page.mouse.click(it.x(5), it.y(1 * MIB, 22 * MIB * 1.04))
    it.settle()
    it.page.get_by_role("tab", name="Allocator").click()
    it.settle()
    assert it.current == [4]
    it.choose(6)
    it.tell("view", "segments")
    it.press("Escape")  # the focus was in a list that is no longer there: the widget keeps it
    expect(it.page.locator(".mw-panel h3")).to_have_text("At moment 7")


def test_the_keyboard_alone_walks_the_events(show):
    it = show(Trace(allocator()), moment=1)
    it.root.focus()
    it.press("ArrowDown", "ArrowDown")
    assert (it.current, it.trait("moment")) == ([2], 3)
    expect(it.page.locator(".mw-panel h3")).to_have_text("Segment")
    it.press("ArrowLeft")
    assert it.trait("selection") == 1
    it.press("End")
    assert it.current == [27]
    it.press("PageUp", "Home")
    assert (it.current, it.trait("moment")) == ([0], 1)
    it.press("o")
    assert it.current == [23]
    it.press("Escape", "Escape")
    assert it.trait("moment") == -1
    finder = it.page.get_by_role("searchbox", name="Find an event")
    finder.fill(f"b{BASE + 256 * MIB + 512:x}_0")
    it.settle()
    found = [it.current]
    for key in ("Enter", "Enter", "Shift+Enter"):
        finder.press(key)
        it.settle()
        found.append(it.current)
    # The peak lies behind event 5, which is such an event: the search begins there. Its frees are 19 and 20.
    assert found == [[5], [19], [20], [19]]


def test_the_filter_leaves_what_was_asked_for(show):
    it = show(Trace(allocator()))
    it.page.get_by_label("Which events are listed").select_option("segments")
    it.settle()
    assert it.rows == [0, 2, 4, 8, 11, 12, 14, 21, 22, 24]
    it.choose(11)
    it.root.focus()
    it.press("ArrowDown")
    assert it.current == [12]
    it.page.get_by_label("Which events are listed").select_option("oom")
    it.choose(23)
    assert it.trait("moment") == 23
    expect(it.page.locator(".mw-panel h3")).to_have_text("Out of memory")
    assert it.facts()["Asked for"] == "24.0 MiB"
    expect(it.page.locator(".mw-strip")).to_contain_text("for a request of 24.0 MiB")


@pytest.fixture(scope="module")
def million():
    """Give a trace of 1,800,000 events, 36 million pixels of rows: more than an element can be high."""
    n = 1_800_000
    events = Events.empty(n)
    events.action[:] = np.tile([ACTION[name] for name in ("alloc", "free_requested", "free_completed")], n // 3)
    events.address[:], events.size[:], events.stream[:], events.pool[:] = BASE, 512, 0, 0
    return Trace(Recording(events={0: events}, streams=[0], pools=[(0, 0)], name="million"))


def test_a_list_of_a_million_rows_reaches_its_last(show, million):
    it = show(million, moment=1)
    it.root.focus()
    it.press("End")
    last = million.n_events - 1
    assert it.current == [last]
    assert it.rows[-1] == last
    before = it.rows[0]
    it.page.mouse.move(200, 400)
    it.page.mouse.wheel(0, -3 * ROW)
    it.page.wait_for_function(f"document.querySelector('.mw-event').dataset.event != {before}")
    assert before - it.rows[0] in {3, 4}  # by rows, though a pixel of the scroll bar stands for several
    it.page.evaluate(
        "() => { const list = document.querySelector('.mw-events'); list.scrollTop = list.scrollHeight / 2; }"
    )
    it.page.wait_for_function("Number(document.querySelector('.mw-event').dataset.event) < 1000000")
    assert abs(it.rows[0] - million.n_events / 2) < 2_000
    it.page.locator(f".mw-event[data-event='{it.rows[2]}']").click()
    it.settle()
    assert it.current == [it.trait("moment") - 1]


def test_a_layer_of_the_segments_view_is_its_segment(show):
    trace = Trace(allocator())
    it = show(trace, "segments", moment=1)
    moment = 20
    pools = trace.recording.pools
    there = [
        row
        for row in range(len(trace.segments))
        if trace.segments["alloc_event"][row] < moment and not 0 <= trace.segments["free_event"][row] < moment
    ]
    there.sort(key=lambda row: (pools[trace.segments["pool"][row]] != (0, 0), trace.segments["pool"][row], row))
    top, base = trace.peak_reserved * 1.04, 0
    for row in there:
        size = int(trace.segments["size"][row])
        if size >= 8 * MIB:
            it.page.mouse.click(it.x(moment), it.y(base + size / 2, top))
            it.settle()
            assert it.page.locator(".mw-detail").get_attribute("data-segment") == str(row)
            assert it.trait("moment") == moment
        base += size
    assert base == trace.curve("reserved")[moment]
    facts = it.facts()  # the topmost: the MemPool's, with a block that waits for its stream
    assert (facts["Pool"], facts["Pending now"]) == ("MemPool (0, 2)", "4.00 MiB")
    assert facts["Free now"] == "28.0 MiB, for this pool alone"


def test_about_tells_settings_and_runs_nothing(show):
    trace = Trace(hostile())
    it = show(trace, "about")
    about = it.page.locator(".mw-about")
    expect(about.locator(".mw-changed dt")).to_have_text(MARKUP)
    expect(about).to_contain_text("Events: 3")
    assert it.page.locator(".mw-about :is(script, img, a, iframe)").count() == 0
    ordinary = Trace(first())
    ordinary.recording.settings |= {"expandable_segments": True}
    it = show(ordinary, "about")
    expect(it.page.locator(".mw-changed dt")).to_have_text("expandable_segments")
    expect(it.page.locator(".mw-usual dt")).to_have_text("roundup_power2_divisions")
    expect(it.page.locator(".mw-about")).to_contain_text("The history starts where it starts.")


def test_memory_without_segments_says_so(show):
    it = show(Trace(hostile()))
    expect(it.page.locator(".mw-empty")).to_contain_text("no map")
    it.choose(1)
    assert it.trait("selection") >= 0
    it.tell("view", "segments")
    expect(it.page.locator(".mw-message", has_text="not held in segments")).to_be_visible()
