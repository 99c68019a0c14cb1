"""The Live and Findings views in a page: the numbers are Python's, and what one does there shows on the timeline."""

import pytest
from playwright.sync_api import expect

import memwidget as mw
from browser.pages import READY, Timeline, kernel_page
from memwidget.answer.findings import findings_payload
from memwidget.show.export import to_html
from memwidget.trace.trace import Trace
from memwidget.units import bytes_text
from show.hand_made import MARKUP, first, hostile


class Live(Timeline):
    """The Live view on a page, in the words of a test."""

    def __init__(self, page, trace):
        super().__init__(page, trace)
        self.view = page.locator(".mw-live")

    @property
    def rows(self):
        """First three cells of each row: label, bytes, share left out, blocks."""
        cells = self.page.locator(".mw-live-table tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
        )
        return [(row[0], row[1], row[3]) for row in cells]

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()


@pytest.fixture(scope="module")
def transformer(data):
    return mw.load(data / "annotated_transformer.pickle.xz")


@pytest.fixture(scope="module")
def leak(data):
    return mw.load(data / "leak_features.pickle.xz")


@pytest.fixture
def show(open_page, tmp_path):
    """Give a function that opens a trace in one of the views, in a page whose kernel the test plays."""

    def show(trace, view="live", *, viewport=(1400, 760), **options):
        path = tmp_path / "page.html"
        path.write_text(kernel_page(trace, view=view, **options), "utf-8")
        page = open_page(path.as_uri(), viewport=viewport)
        page.locator(".mw-live").wait_for(state="attached")
        return Live(page, trace)

    return show


def by_site(trace, at):
    return [(row.label, bytes_text(row.bytes), f"{row.count:,}") for row in trace.by_site(at).rows]


def test_the_table_is_pythons_by_site_at_any_moment(show, transformer):
    it = show(transformer)
    expect(it.view).to_have_attribute("data-total", str(transformer.peak_allocated))
    assert it.rows == by_site(transformer, "peak")
    it.tell("moment", 700)
    expect(it.view).to_have_attribute("data-moment", "700")
    assert it.rows == by_site(transformer, 700)
    it.page.get_by_role("button", name="Blocks", exact=True).click()
    counts = [int(blocks.replace(",", "")) for _, _, blocks in it.rows]
    assert counts == sorted(counts, reverse=True)
    expect(it.page.locator("th[aria-sort=descending]")).to_have_text("Blocks")


def test_since_a_mark_is_what_lives_now_and_did_not_then(show, leak):
    it = show(leak, moment=500)
    expect(it.view).to_have_attribute("data-moment", "500")
    it.root.focus()
    it.press("m")
    expect(it.view).to_have_attribute("data-mark", "500")
    it.tell("moment", 1400)
    new = set(leak.live_at(1400).tolist()) - set(leak.live_at(500).tolist())
    total = sum(int(leak.blocks["size"][block]) for block in new)
    expect(it.view).to_have_attribute("data-total", str(total))
    (row,) = [row for row in it.rows if row[0].endswith("in leak_features")]
    assert row[1] == bytes_text(total)
    it.page.get_by_role("button", name="Everything that is live").click()
    expect(it.view).to_have_attribute("data-total", str(leak.curve("allocated")[1400]))


def test_the_flame_graph_is_walked_and_zoomed_by_keys_alone(show, leak):
    it = show(leak)
    it.page.locator(".mw-flame-scroll").focus()
    it.press("ArrowDown", "ArrowDown")
    label = it.page.locator(".mw-detail .mw-headline-site")
    site = next(iter(leak.by_site("peak")))
    expect(label).to_have_text(site)
    expect(it.page.locator("[aria-live=polite].mw-hidden")).to_contain_text(
        f"{site}, {bytes_text(leak.by_site('peak')[site])}"
    )
    it.press("Enter")
    expect(it.view).to_have_attribute("data-zoomed", "2")
    assert it.rows[0][:2] == (site, bytes_text(leak.by_site("peak")[site]))
    assert len(it.rows) == 1
    expect(it.page.locator(".mw-crumbs [aria-current]")).to_have_text(site)
    it.press("Escape")
    expect(it.view).to_have_attribute("data-zoomed", "1")
    it.press("Home")
    it.page.locator(".mw-crumbs button").first.click()
    expect(it.view).to_have_attribute("data-zoomed", "0")


def test_a_row_lights_its_line_and_its_largest_block_goes_to_the_timeline(show, transformer):
    it = show(transformer)
    it.page.locator(".mw-live-table tbody tr").nth(1).click()
    label = it.rows[1][0]
    assert it.trait("query") == f'"{label}"'
    expect(it.page.locator(".mw-live-table tbody tr").nth(1)).to_have_attribute("aria-selected", "true")
    expect(it.page.locator(".mw-live-table tr[data-dim=true]")).to_have_count(len(it.rows) - 1)
    it.page.locator(".mw-live-table tbody tr").nth(1).get_by_role("button").click()
    expect(it.root).to_have_attribute("data-view", "timeline")
    live = transformer.live_at("peak")
    mine = [b for b in live.tolist() if transformer.site_label(int(transformer.block_site[b])) == label]
    largest = max(mine, key=lambda b: (int(transformer.blocks["size"][b]), -b))
    assert it.trait("selection") == largest
    assert it.trait("moment") == transformer.blocks["alloc_event"][largest] + 1


def test_the_tree_opens_by_keys_and_folds_library_frames(show, transformer):
    it = show(transformer)
    it.page.get_by_role("button", name="From your code down").click()
    rows = it.page.locator(".mw-live-table tbody tr")
    expect(rows.first).to_have_attribute("aria-level", "1")
    assert it.rows[0][1:] == (bytes_text(transformer.peak_allocated), f"{len(transformer.live_at('peak')):,}")
    folded = int(it.view.get_attribute("data-nodes"))
    rows.first.focus()
    before = rows.count()
    it.press("ArrowLeft")
    expect(rows).to_have_count(1)
    it.press("ArrowRight")
    expect(rows).to_have_count(before)
    it.page.get_by_role("button", name="Show the frames of libraries one by one").click()
    it.settle()
    assert int(it.view.get_attribute("data-nodes")) > folded


def test_findings_come_after_the_picture_and_count_on_their_tab(open_page, tmp_path, leak):
    path = tmp_path / "page.html"
    path.write_text(kernel_page(leak, silent=True), "utf-8")
    page = open_page(path.as_uri())
    page.wait_for_function("() => window.model?.sent.length === 1")
    page.evaluate("model.holds = true")
    assert page.evaluate("model.asked.length") == 0
    page.evaluate("model.answer()")
    page.locator(READY).wait_for()
    page.wait_for_function("() => model.asked.length === 2")
    root = page.locator("[data-testid=memwidget]")
    expect(root).to_have_attribute("data-findings", "asking")
    page.get_by_role("tab", name="Findings").click()
    assert page.evaluate("model.asked.map(({ kind }) => kind)") == ["findings", "more"]
    expect(page.get_by_text("Loading this view.")).to_be_visible()
    page.evaluate("model.release()")
    worth = [row for row in findings_payload(leak) if not row["expected"]]
    expect(root).to_have_attribute("data-findings", str(len(worth)))
    expect(page.get_by_role("tab", name="Findings").locator(".mw-badge")).to_have_text(str(len(worth)))
    expect(page.locator(".mw-finding-title").first).to_have_text(worth[0]["title"])


def test_an_error_while_looking_is_a_sentence_and_can_be_tried_again(show, leak):
    it = show(leak)
    expect(it.root).to_have_attribute("data-findings", "1")
    it.page.evaluate(
        "() => { model.holds = true; stop.abort(); model = new Model({...model.traits, view: 'findings'}); }"
    )
    it.page.evaluate("() => { model.holds = true; stop = mount(model, document.getElementById('here')); }")
    it.page.wait_for_function("() => model.asked.length === 1")
    expect(it.page.locator(".mw-findings-scroll")).to_have_text("Looking for what is unusual.")
    it.page.evaluate("model.release('The rule <b>broke</b>.')")
    expect(it.page.get_by_role("alert")).to_have_text("The findings could not be worked out: The rule <b>broke</b>.")
    it.page.evaluate("model.holds = false")
    it.page.get_by_role("button", name="Ask once more").click()
    expect(it.page.locator(".mw-finding-title").first).to_be_visible()


def test_a_click_shows_the_blocks_of_a_finding_on_the_timeline(show, leak):
    it = show(leak, "findings")
    row = findings_payload(leak)[0]
    card = it.page.locator(".mw-finding").first
    expect(card).to_contain_text(row["evidence"][0])
    expect(card).to_contain_text(row["advice"])
    expect(card.locator(".mw-finding-kind")).to_have_text("↗Growthcertain", use_inner_text=False)
    expect(card.locator(".mw-total")).to_have_text(f"+{bytes_text(row['bytes_per_step'])} a step")
    card.get_by_role("button").focus()
    it.press("Enter")
    expect(it.root).to_have_attribute("data-view", "timeline")
    expect(it.root).to_have_attribute("data-lit", str(len(row["blocks"])))
    assert it.trait("moment") == row["moment"]
    expect(it.page.locator(".mw-panel h3")).to_have_text("Finding")
    lit = it.page.screenshot()
    it.press("Escape")
    assert it.root.get_attribute("data-lit") is None
    assert it.page.screenshot() != lit


def test_nothing_unusual_is_said(show, data):
    it = show(mw.load(data / "no_leak_accumulate.pickle.xz"), "findings")
    expect(it.page.locator(".mw-findings-head").first).to_contain_text("Nothing unusual.")
    expect(it.page.locator(".mw-badge")).to_have_count(0)


def test_an_exported_page_has_both_views_and_names_stay_text(open_page, tmp_path):
    path = tmp_path / "page.html"
    to_html(Trace(hostile()), path, view="live")
    page = open_page(path.as_uri())
    page.locator(READY).wait_for()
    expect(page.locator(".mw-live-table")).to_contain_text(MARKUP[:40])
    page.get_by_role("button", name="From your code down").click()
    page.get_by_role("tab", name="Findings").click()
    expect(page.locator(".mw-findings-scroll")).to_have_attribute("data-findings", "ready")
    assert page.locator(".memwidget :is(img, script, iframe, a)").count() == 0


def test_a_narrow_cell_keeps_the_list_in_sight(open_page, tmp_path):
    path = tmp_path / "page.html"
    to_html(Trace(first()), path, view="live")
    page = open_page(path.as_uri(), viewport=(480, 900))
    page.locator(READY).wait_for()
    box = page.locator(".mw-live-list").bounding_box()
    assert box["height"] > 80
    assert box["x"] + box["width"] <= 480
