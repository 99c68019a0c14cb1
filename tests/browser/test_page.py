"""The widget in a page: what is drawn is what is clicked, and what it tells the kernel is what Python worked out.

`open_page` fails a test on any request, console error or exception.
"""

from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

import memwidget as mw
from browser.pages import READY, Timeline, kernel_page
from memwidget.show.export import to_html
from memwidget.trace.trace import Trace
from show.hand_made import first, recording, without_history

MIB = 1 << 20
#: What `first` reserves at most, with the air above it: the upper edge of its picture.
TOP = 22 * MIB * 1.04


@pytest.fixture(scope="module")
def hand_made():
    """Give the trace of a few events, worked out on paper: see show/hand_made.py."""
    return Trace(first())


@pytest.fixture(scope="module")
def transformer(data):
    """Give a real one: three training steps with annotations, 1,573 blocks."""
    return mw.load(data / "annotated_transformer.pickle.xz")


@pytest.fixture
def show(open_page, tmp_path):
    """Give a function that opens a trace in a page whose kernel the test plays."""

    def show(trace, *, viewport=(1400, 700), **options):
        page_options = {key: options.pop(key) for key in ("color_scheme", "device_scale_factor") if key in options}
        path = tmp_path / "page.html"
        path.write_text(kernel_page(trace, **options), "utf-8")
        page = open_page(path.as_uri(), viewport=viewport, **page_options)
        return Timeline(page, trace)

    return show


def test_a_long_name_gives_way_before_the_header_takes_two_rows(show):
    name = "llama-70b, sequence 8192, micro-batch 2, second attempt with checkpointing"
    it = show(Trace(replace(first(), name=name)), viewport=(1340, 560))
    header, shown = it.page.locator(".mw-header"), it.page.locator(".mw-name")
    assert header.bounding_box()["height"] == 40
    assert shown.get_attribute("title") == name
    assert 60 < shown.bounding_box()["width"] < 300
    assert shown.bounding_box()["height"] < 20
    it.page.set_viewport_size({"width": 1000, "height": 560})  # two rows: the name has its room back
    expect(it.root).to_have_css("width", "984px")
    assert header.bounding_box()["height"] > 40
    assert shown.bounding_box()["width"] > 300


def test_a_click_pins_the_block_under_the_pointer(show, hand_made):
    it = show(hand_made)
    it.page.mouse.click(it.x(4), it.y(11 * MIB, TOP))
    it.settle()
    assert (it.trait("selection"), it.trait("moment")) == (1, 4)
    facts = it.facts()
    assert facts["Size"] == "6.00 MiB"
    assert facts["Allocated"].startswith("event 2")
    assert facts["Freed"].startswith("event 5")
    expect(it.page.locator(".mw-headline")).to_contain_text("loss = criterion(out, y)")
    expect(it.page.locator(".mw-stack").nth(1)).to_contain_text("train.py:44")
    it.page.mouse.click(it.x(4), it.y(11 * MIB, TOP))
    it.settle()
    assert it.trait("selection") == -1


def test_a_pending_free_stands_on_top_and_says_so(show, hand_made):
    it = show(hand_made)
    it.page.mouse.move(it.x(6), it.y(8 * MIB + 3 * MIB, TOP))
    expect(it.root).to_have_attribute("data-hovered", "1")
    expect(it.page.locator(".mw-tooltip")).to_contain_text("waiting for another stream")
    it.tell("moment", 6)
    assert it.facts()["Allocated"] == "8.00 MiB"
    assert it.facts()["Active"] == "14.0 MiB (6.00 MiB pending)"


def test_every_live_block_of_a_column_can_be_hovered(show, hand_made):
    it = show(hand_made)
    seen = []
    for amount in np.arange(0.25, 22, 0.5):
        it.page.mouse.move(it.x(10), it.y(amount * MIB, TOP))
        seen.append(int(it.root.get_attribute("data-hovered")))
    thick = {block for block in hand_made.live_at(10).tolist() if hand_made.blocks["size"][block] >= MIB}
    assert set(seen) - {-1} == thick
    assert [block for block in seen if block >= 0] == sorted(block for block in seen if block >= 0)


def test_the_stack_in_the_panel_is_the_one_python_gives(show, transformer):
    it = show(transformer)
    known = [block for block in range(transformer.n_blocks) if transformer.site(block)]
    block = max(known, key=lambda block: len(transformer.stack(block)))
    it.tell("selection", block)
    for fold in it.page.locator(".mw-stack").first.locator("summary").all():
        fold.click()
    shown = it.page.locator(".mw-stack").first.locator(".mw-frame-name").all_inner_texts()
    assert shown == [frame.name for frame in transformer.stack(block)]
    site = transformer.stack_site[transformer.blocks["stack"][block]]
    expect(it.page.locator(".mw-headline-site")).to_have_text(transformer.site_label(site))


def test_a_block_without_a_stack_says_why(show, transformer):
    it = show(transformer)
    block = next(b for b in range(transformer.n_blocks) if transformer.no_stack_reason(b))
    it.tell("selection", block)
    expect(it.page.locator(".mw-nostack")).to_have_text(transformer.no_stack_reason(block))


def test_search_counts_what_python_counts_and_dims_the_rest(show, transformer):
    it = show(transformer)
    lit = it.page.screenshot(clip=_clip(it.plot))
    it.page.get_by_role("searchbox").fill("optim/adam.py")
    files = [{frame.filename for frame in transformer.stack(block)} for block in range(transformer.n_blocks)]
    expected = sum(any("optim/adam.py" in name for name in each) for each in files)
    assert 0 < expected < transformer.n_blocks
    expect(it.root).to_have_attribute("data-hits", str(expected))
    it.settle()
    assert it.page.screenshot(clip=_clip(it.plot)) != lit
    it.page.keyboard.press("Escape")
    expect(it.root).to_have_attribute("data-hits", "")
    it.settle()
    assert it.page.screenshot(clip=_clip(it.plot)) == lit


def test_shift_drag_gives_the_totals_of_the_range(show, hand_made):
    it = show(hand_made)
    it.page.keyboard.down("Shift")
    # From the edge of moment 2 to the edge of moment 6: the events 2, 3, 4 and 5.
    it.page.mouse.move(it.x(1.5), it.y(20 * MIB, TOP))
    it.page.mouse.down()
    it.page.mouse.move(it.x(4), it.y(20 * MIB, TOP))
    it.page.mouse.move(it.x(5.5), it.y(20 * MIB, TOP))
    it.page.mouse.up()
    it.page.keyboard.up("Shift")
    it.settle()
    facts = it.facts()
    assert facts["Moments"] == "2 to 6"
    assert facts["Allocated"] == "6.00 MiB in 2"
    assert facts["Freed"] == "6.00 MiB in 1"
    assert facts["Highest"] == "14.0 MiB at 5"
    assert it.trait("window") == [0, 0]


def test_ctrl_wheel_zooms_at_the_pointer_and_a_plain_wheel_scrolls_the_page(show, transformer):
    it = show(transformer, viewport=(1200, 400))
    middle = it.plot["y"] + it.plot["height"] / 2
    it.page.mouse.move(it.x(2000), middle)
    it.page.keyboard.down("Control")
    for _ in range(6):
        it.page.mouse.wheel(0, -120)
    it.page.keyboard.up("Control")
    it.settle()
    lo, hi = it.page.wait_for_function("() => model.traits.window[1] > 0 && model.traits.window").json_value()
    assert lo < 2000 < hi
    assert hi - lo < transformer.n_events / 4
    whole = (2000 - 0) / (transformer.n_events + 1)
    assert abs((2000 - lo) / (hi - lo) - whole) < 0.02, "the moment under the pointer moved"
    it.page.mouse.wheel(0, 100)
    it.page.wait_for_function("() => scrollY > 0")
    expect(it.page.locator(".mw-hint")).to_have_attribute("data-shown", "true")
    assert it.trait("window") == [lo, hi]


def test_the_minimap_moves_the_window(show, transformer):
    it = show(transformer)
    box = it.plot
    y = box["y"] + box["height"] + 22 + 18
    _drag(it.page, (box["x"] + box["width"] * 0.25, y), (box["x"] + box["width"] * 0.5, y))
    it.settle()
    lo, hi = it.trait("window")
    n = transformer.n_events + 1
    assert (lo / n, hi / n) == (pytest.approx(0.25, abs=0.005), pytest.approx(0.5, abs=0.005))
    _drag(it.page, (box["x"] + box["width"] * 0.4, y), (box["x"] + box["width"] * 0.6, y))
    it.settle()
    lo, hi = it.trait("window")
    assert (lo / n, hi / n) == (pytest.approx(0.45, abs=0.005), pytest.approx(0.7, abs=0.005))
    _drag(it.page, (box["x"] + box["width"] * 0.7, y), (box["x"] + box["width"] * 0.9, y))
    it.settle()
    lo, hi = it.trait("window")
    assert (lo / n, hi / n) == (pytest.approx(0.45, abs=0.005), pytest.approx(0.9, abs=0.005))
    # A drag to the right in the drawing shows what lies to the left; here half a window.
    _drag(it.page, (box["x"] + 100, box["y"] + 50), (box["x"] + 100 + box["width"] / 2, box["y"] + 50))
    it.settle()
    lo, hi = it.trait("window")
    assert (lo / n, hi / n) == (pytest.approx(0.225, abs=0.005), pytest.approx(0.675, abs=0.005))


def test_two_fingers_zoom(show, transformer):
    it = show(transformer)
    it.page.evaluate(
        """([x, y]) => {
          const stage = document.querySelector(".mw-stage");
          stage.setPointerCapture = () => {};
          const touch = (type, id, at) => stage.dispatchEvent(new PointerEvent(type,
            { pointerId: id, pointerType: "touch", clientX: at, clientY: y, bubbles: true }));
          touch("pointerdown", 1, x - 50);
          touch("pointerdown", 2, x + 50);
          for (const apart of [70, 90, 100]) {
            touch("pointermove", 1, x - apart);
            touch("pointermove", 2, x + apart);
          }
          touch("pointerup", 1, x - 100);
          touch("pointerup", 2, x + 100);
        }""",
        [it.x(2000), it.plot["y"] + 100],
    )
    it.settle()
    lo, hi = it.trait("window")
    assert hi - lo == pytest.approx((transformer.n_events + 1) / 2, rel=0.01)
    assert lo < 2000 < hi
    assert it.trait("selection") == -1


def test_edges_change_the_height_and_the_panel(show, transformer):
    it = show(transformer)
    box = it.root.bounding_box()
    bottom = box["y"] + box["height"] - 2
    _drag(it.page, (box["x"] + 300, bottom), (box["x"] + 300, bottom + 100))
    it.settle()
    assert it.trait("height") == 560
    assert it.root.bounding_box()["height"] == 560
    width = it.plot["width"]
    splitter = it.page.locator(".mw-splitter").bounding_box()
    y = splitter["y"] + 100
    _drag(it.page, (splitter["x"], y), (splitter["x"] - 100, y))
    it.settle()
    assert it.plot["width"] == pytest.approx(width - 100, abs=1)
    it.page.get_by_role("button", name="Close the panel").click()
    it.settle()
    assert it.plot["width"] > width + 300


def test_python_moves_the_window_the_moment_and_the_query(show, transformer):
    it = show(transformer)
    it.tell("window", [1000, 1500])
    it.page.mouse.click(it.x(1250, (1000, 1500)), it.y(50 * MIB, transformer.peak_reserved * 1.04))
    it.settle()
    assert it.trait("moment") == 1250
    live = transformer.live_at(1250)
    below = np.cumsum(transformer.blocks["size"][live])
    assert it.trait("selection") == live[np.searchsorted(below, 50 * MIB)]
    it.page.get_by_role("button", name="Show everything").click()
    it.settle()
    assert it.trait("window") == [0, 0]
    it.tell("selection", -1)
    it.tell("moment", 10)
    expect(it.page.locator(".mw-panel-head")).to_contain_text("At moment 10")
    it.tell("query", "linear.py")
    expect(it.page.get_by_role("searchbox")).to_have_value("linear.py")


def test_keys_work_with_focus_only_and_stay_inside(show, transformer):
    it = show(transformer)
    it.page.evaluate("() => { window.leaked = []; addEventListener('keydown', (e) => leaked.push(e.key)); }")
    it.page.keyboard.press("p")
    assert it.trait("moment") == -1, "a key was taken without focus"
    it.root.focus()
    it.page.keyboard.press("p")
    assert it.trait("moment") == transformer.peak_event
    it.page.keyboard.press("ArrowUp")
    hovered = int(it.root.get_attribute("data-hovered"))
    assert hovered in transformer.live_at("peak")
    it.page.keyboard.press("Enter")
    assert it.trait("selection") == hovered
    it.page.keyboard.press("/")
    it.page.keyboard.type("pa?")
    expect(it.page.get_by_role("searchbox")).to_have_value("pa?")
    assert it.page.get_by_role("dialog").count() == 0
    for _ in range(2):
        it.page.keyboard.press("Escape")
    assert (it.trait("query"), it.trait("selection")) == ("", -1)
    it.page.keyboard.press("?")
    expect(it.page.get_by_role("dialog")).to_contain_text("Shift+drag")
    assert it.page.evaluate("leaked") == ["p"]


def test_the_oom_button_goes_where_memory_ran_out(show, hand_made):
    it = show(hand_made)
    it.page.get_by_role("button", name="Go to the next out of memory").click()
    it.settle()
    assert it.trait("moment") == hand_made.oom_moments[0]
    expect(it.page.locator(".mw-oom").first).to_contain_text("64.0 MiB asked for, 8.00 MiB allocated")


def test_a_band_is_told_and_zoomed_to(show, transformer):
    it = show(transformer)
    band = max((band for band in transformer.bands if band.depth == 0), key=lambda band: band.hi - band.lo)
    x, y = it.x((band.lo + band.hi) / 2), it.plot["y"] - 10
    rows = {(each.kind, each.depth) for each in transformer.bands}
    y = it.plot["y"] - 14 * len(rows) + 4
    it.page.mouse.move(x, y)
    expect(it.page.locator(".mw-tooltip")).to_contain_text(band.name)
    it.page.mouse.click(x, y)
    it.settle()
    lo, hi = it.trait("window")
    assert lo <= band.lo
    assert band.hi <= hi
    assert hi - lo < 1.2 * (band.hi - band.lo)


def test_time_axis_keeps_the_window_and_spreads_by_time(show, hand_made):
    it = show(hand_made)
    it.page.get_by_role("button", name="Horizontal axis: time").click()
    it.settle()
    assert it.trait("axis") == "time"
    # Events come every millisecond from 0 to 11 ms: moment 7 begins at 6 ms.
    box = it.plot
    it.page.mouse.move(box["x"] + box["width"] * 6.5 / 11, it.y(1 * MIB, TOP))
    expect(it.page.locator(".mw-status")).to_contain_text("moment 7 ")


def test_the_theme_follows_the_page(show, hand_made):
    it = show(hand_made, color_scheme="light")
    corner = _clip({**it.plot, "width": 4, "height": 4})
    light = it.page.screenshot(clip=corner)
    it.page.evaluate("document.body.setAttribute('data-jp-theme-light', 'false')")
    expect(it.root).to_have_attribute("data-theme", "dark")
    it.settle()
    assert it.page.screenshot(clip=corner) != light
    it.page.evaluate("document.body.removeAttribute('data-jp-theme-light')")
    it.page.evaluate("document.body.className = 'vscode-dark'")
    expect(it.root).to_have_attribute("data-theme", "dark")
    it.page.evaluate("document.body.className = ''")
    it.page.evaluate("document.body.style.background = 'rgb(20, 20, 20)'")
    expect(it.root).to_have_attribute("data-theme", "dark")
    it.page.evaluate("document.body.style.background = ''")
    expect(it.root).to_have_attribute("data-theme", "light")
    it.page.emulate_media(color_scheme="dark")
    expect(it.root).to_have_attribute("data-theme", "dark")
    it.tell("theme", "light")
    expect(it.root).to_have_attribute("data-theme", "light")


def test_a_silent_kernel_is_asked_again_and_nothing_jumps(open_page, tmp_path, transformer):
    path = tmp_path / "page.html"
    path.write_text(kernel_page(transformer, silent=True), "utf-8")
    page = open_page("about:blank")
    page.clock.install()
    page.goto(path.as_uri())
    root = page.locator("[data-testid=memwidget]")
    root.wait_for()
    before = root.bounding_box()
    stage = page.locator(".mw-over").bounding_box()
    expect(page.locator(".mw-title")).to_contain_text("peak 660 MiB")
    page.clock.fast_forward(5_500)
    expect(page.locator(".mw-message")).to_contain_text("Waiting for the kernel")
    page.clock.fast_forward(10_500)
    page.clock.fast_forward(20_500)
    page.clock.fast_forward(60_000)
    ids = page.evaluate("model.sent.map(({ id }) => id)")
    assert len(ids) == 4
    assert len(set(ids)) == 1
    expect(root).to_have_attribute("data-state", "overview")
    page.evaluate("model.answer()")
    page.locator(READY).wait_for()
    assert root.bounding_box() == before
    assert page.locator(".mw-over").bounding_box() == stage
    expect(page.locator(".mw-message")).to_be_hidden()


def test_an_error_of_the_kernel_is_shown_in_the_widget(open_page, tmp_path, hand_made):
    path = tmp_path / "page.html"
    path.write_text(kernel_page(hand_made, silent=True), "utf-8")
    page = open_page(path.as_uri())
    page.wait_for_function("() => window.model?.sent.length === 1")
    page.evaluate("model.refuse('The recording is <b>gone</b>.')")
    expect(page.get_by_role("alert")).to_have_text("The recording is <b>gone</b>.")
    expect(page.locator("[data-testid=memwidget]")).to_have_attribute("data-state", "error")


def test_rendering_again_asks_nothing_again_and_leaves_nothing_behind(show, transformer):
    it = show(transformer)
    it.page.mouse.click(it.x(2100), it.plot["y"] + it.plot["height"] - 20)
    it.settle()
    pinned = it.trait("selection")
    assert pinned >= 0
    it.page.wait_for_function("() => Number(document.querySelector('[data-testid=memwidget]').dataset.findings) >= 0")
    it.page.wait_for_function("() => model.asked.length === 2")  # the findings, and the code of the further views
    it.page.evaluate("() => { stop.abort(); stop = mount(model, document.getElementById('here')); }")
    it.page.locator(READY).wait_for()
    it.page.wait_for_function("() => Number(document.querySelector('[data-testid=memwidget]').dataset.findings) >= 0")
    assert it.page.evaluate("[model.sent.length, model.asked.length]") == [1, 2]
    assert it.page.locator("[data-testid=memwidget]").count() == 1
    expect(it.page.locator(f".mw-detail[data-block='{pinned}']")).to_be_visible()
    it.page.evaluate("stop.abort()")
    assert it.page.evaluate("model.listening()") == 0
    assert it.page.locator("[data-testid=memwidget]").count() == 0


def test_seventeen_widgets_live_on_one_page(show, hand_made):
    it = show(hand_made)
    it.page.evaluate(
        """() => {
          for (let i = 1; i < 17; i++) {
            const place = document.createElement("div");
            document.body.append(place);
            mount(new Model({ ...model.traits }, false), place);
          }
        }"""
    )
    expect(it.page.locator(READY)).to_have_count(17)
    it.page.mouse.click(it.x(4), it.y(11 * MIB, TOP))
    expect(it.page.locator(".mw-detail")).to_have_count(1)


def test_a_narrow_cell_has_its_panel_below(show, transformer):
    it = show(transformer, width="600px")
    expect(it.root).to_have_attribute("data-narrow", "true")
    panel = it.page.locator(".mw-panel").bounding_box()
    assert panel["y"] > it.plot["y"] + it.plot["height"]
    assert it.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    it.page.evaluate("document.getElementById('here').style.width = '1000px'")
    expect(it.root).to_have_attribute("data-narrow", "false")
    it.settle()
    assert it.page.locator(".mw-panel").bounding_box()["x"] > it.plot["x"] + it.plot["width"]


def test_the_last_tab_of_a_very_narrow_cell_moves_only_the_tabs(show, transformer):
    it = show(transformer, width="320px")
    tab = it.page.get_by_role("tab", name="About")
    tab.click()
    expect(tab).to_have_attribute("aria-selected", "true")
    assert it.root.evaluate("(root) => root.scrollLeft") == 0
    assert tab.bounding_box()["x"] + tab.bounding_box()["width"] <= it.root.bounding_box()["x"] + 320


@pytest.mark.parametrize("width", [480, 640, 719, 720, 948, 1100])
def test_title_and_tabs_do_not_overlap(show, transformer, width):
    it = show(Trace(transformer.recording, capacity=80 << 30), width=f"{width}px")
    assert it.root.evaluate(
        """(root) => {
            const [title, tabs] = [".mw-title > :last-child", ".mw-tabs"].map((s) =>
                root.querySelector(s).getBoundingClientRect());
            return title.right <= tabs.left || title.bottom <= tabs.top;
        }"""
    )


@pytest.mark.parametrize("ratio", [1, 1.5, 2])
def test_the_drawing_has_one_pixel_a_device_pixel(show, hand_made, ratio):
    it = show(hand_made, device_scale_factor=ratio)
    width, height = it.page.locator(".mw-blocks").evaluate("(canvas) => [canvas.width, canvas.height]")
    assert width == pytest.approx(it.plot["width"] * ratio, abs=0.01)
    assert height == pytest.approx(it.plot["height"] * ratio, abs=0.01)


@pytest.mark.parametrize(
    ("made", "why", "title"),
    [
        (
            recording([], facts={"backend": "cpu"}, device_type="cpu", name="idle"),
            "Nothing was allocated or freed while recording.",
            "idle cpu",
        ),
        (
            without_history(),
            "History not recorded, so there is no timeline and no peak.",
            "without_history cuda:0 4.00 MiB allocated",
        ),
    ],
    ids=["idle", "segments only"],
)
def test_without_events_the_timeline_says_why(show, made, why, title):
    it = show(Trace(made))
    expect(it.page.get_by_text(why)).to_be_visible()
    assert " ".join(it.page.locator(".mw-title").inner_text().split()) == title
    drawn = it.page.locator(".mw-blocks").evaluate("(canvas) => getComputedStyle(canvas).visibility")
    assert drawn == ("visible" if it.trace.n_blocks else "hidden")
    assert "0 B" not in it.root.inner_text()


@pytest.mark.parametrize("width", [1400, 900, 640, 420])
def test_what_is_typed_and_its_count_stand_side_by_side(show, transformer, width):
    it = show(transformer, viewport=(width, 800))
    box = it.page.get_by_role("searchbox").first
    box.fill("attention.py forward")
    expect(it.page.locator(".mw-hits").first).to_be_visible()
    typed, count = box.bounding_box(), it.page.locator(".mw-hits").first.bounding_box()
    assert typed["x"] + typed["width"] <= count["x"] + 0.5
    assert typed["width"] >= 48
    assert count["x"] + count["width"] <= it.root.bounding_box()["x"] + it.root.bounding_box()["width"]


def test_an_exported_page_fills_its_window(open_page, hand_made, tmp_path):
    for options, height in ({}, 1000), ({"height": 500}, None):
        path = to_html(hand_made, tmp_path / "page.html", **options)
        page = open_page(path.as_uri(), viewport=(1300, 1000))
        page.locator(READY).wait_for()
        assert page.evaluate("document.documentElement.scrollHeight") == 1000  # never a scroll bar here
        box = page.locator("[data-testid=memwidget]").bounding_box()
        note = page.locator(".memwidget-page-note").bounding_box()
        if height is None:
            assert box["height"] == options["height"]
        else:
            assert note["y"] + note["height"] == pytest.approx(height - 16, abs=1)


def _drag(page, start, end):
    page.mouse.move(*start)
    page.mouse.down()
    for part in (0.25, 0.5, 0.75, 1):
        page.mouse.move(*(a + (b - a) * part for a, b in zip(start, end, strict=True)))
    page.mouse.up()


def _clip(box):
    return {key: box[key] for key in ("x", "y", "width", "height")}
