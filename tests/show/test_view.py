"""MemView without a browser: traits set as the page would set them, messages as the page would send them."""

from __future__ import annotations

import gc
import json
import weakref
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import traitlets

from memwidget.read import load_recording
from memwidget.show import view as view_module
from memwidget.show.view import MemView
from memwidget.trace.trace import Trace
from show.hand_made import BASE, GOLDENS, MARKUP, MIB, START_US, first, hostile, recording, without_history

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def _front_end(monkeypatch):
    # The bundle is none of these tests' business; the browser tests load the real one.
    monkeypatch.setattr(view_module, "bundle", lambda name: f"/* {name} */")


class Page:
    """What a browser sees of a view."""

    def __init__(self, view):
        self.view, self.answers = view, []
        view.send = lambda content, buffers=None: self.answers.append((content, buffers or []))

    def ask(self, name="1", **content):
        self.view._handle_custom_msg({"kind": "data", "id": name, **content}, [])
        return self.answers[-1]


def two_devices():
    both = recording([("alloc", BASE, 8 * MIB), ("alloc", BASE + 8 * MIB, 512)], device_type="xpu", name="both")
    both.events[1] = recording([("alloc", BASE, MIB)]).events[0]
    return both


def test_unknown_options_are_refused_with_the_right_name():
    with pytest.raises(TypeError, match="no option 'colour_by'; did you mean 'color_by'"):
        MemView(first(), colour_by="site")
    with pytest.raises(TypeError, match="it takes view, device"):
        MemView(first(), xyz=1)


@pytest.mark.parametrize(
    ("trait", "value", "sentence"),
    [
        ("moment", 13, "not within 0 to 12"),
        ("moment", -2, "not within"),
        ("selection", 5, "no block: 0 to 4"),
        ("window", (5, 3), "5 to 3 is no range within 0 to 12"),
        ("window", (0, 13), "no range"),
        ("axis", "seconds", "none of events, time"),
        ("selection", True, "True is no number"),
        ("color_by", "rainbow", "none of auto, site"),
        ("order", "size", "none of age, category"),
        ("lang", "tlh", "none of auto, en"),
        ("theme", "blue", "none of auto, light, dark"),
        ("view", "allocators", "none of timeline, allocator, segments, live, findings, about"),
        ("device", 7, "not in this recording"),
        ("height", 3, "not within 120"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(trait, value, sentence):
    view = MemView(first())
    before = getattr(view, trait)
    with pytest.raises(traitlets.TraitError, match=f"{trait}: .*{sentence}"):
        setattr(view, trait, value)
    assert getattr(view, trait) == before


def test_what_the_page_sets_is_read_in_python():
    view = MemView(first(), axis="time", color_by="size")
    view.set_state({"window": [2, 9.5], "selection": 1, "moment": 6, "query": "loss"})
    assert (view.window, view.moment, view.query, view.axis, view.color_by) == ((2, 9.5), 6, "loss", "time", "size")
    facts = view.selected
    assert json.loads(json.dumps(facts)) == facts
    assert facts == {
        "block": 1,
        "label": None,
        "category_by": None,
        "forward_stack": [],
        "name": "b7f0000800000_0",
        "address": "0x7f0000800000",
        "size": 6 * MIB,
        "requested": 6 * MIB,
        "alloc_event": 2,
        "free_requested_event": 5,
        "free_event": 7,
        "alloc_time_us": START_US + 2000,
        "free_time_us": START_US + 5000,
        "site": "train.py:40 in step",
        "stack": ["/home/me/train.py:40 in step", "/home/me/train.py:90 in <module>"],
        "free_stack": ["/home/me/train.py:44 in step", "/home/me/train.py:90 in <module>"],
        "no_stack_reason": None,
        "stream": "stream 1 (0x55810000)",
        "pool": "default",
        "category": "unknown",
        "metadata": None,
    }
    view.selection = -1
    assert view.selected == {}


def test_it_opens_at_the_failing_moment():
    assert MemView(first()).moment == 8
    assert MemView(without_history()).moment == -1


def test_a_question_is_answered_under_its_id_with_the_columns():
    page = Page(MemView(first()))
    content, buffers = page.ask("abc", device=0)
    assert (content["kind"], content["id"], content["header"]["name"]) == ("data", "abc", "first")
    sizes = {"f8": 8, "i4": 4, "u4": 4, "u1": 1}
    assert [b.nbytes for b in buffers] == [sizes[c["dtype"]] * c["length"] for c in content["header"]["columns"]]
    content, buffers = page.ask("def", device=5)
    assert content == {"kind": "error", "id": "def", "message": "The recording has no device 5."}
    assert buffers == []
    for nonsense in ("text", None, {"kind": "other"}):
        page.view._handle_custom_msg(nonsense, [])
    assert len(page.answers) == 2


def test_findings_are_worked_out_when_they_are_asked_for(monkeypatch):
    worked = []
    monkeypatch.setattr(view_module, "found", lambda trace: worked.append(trace.name) or [{"kind": "growth"}])
    page = Page(MemView(first()))
    page.ask("1")
    assert worked == []
    assert page.ask("2", kind="findings", device=0)[0] == {
        "kind": "findings",
        "id": "2",
        "findings": [{"kind": "growth"}],
    }
    assert page.ask("3", kind="more")[0] == {"kind": "more", "id": "3", "source": "/* more.js */"}

    def broken(_):
        raise ZeroDivisionError("a rule divided by nothing")

    monkeypatch.setattr(view_module, "found", broken)
    assert page.ask("4", kind="findings")[0] == {"kind": "error", "id": "4", "message": "a rule divided by nothing"}


def test_a_question_repeated_to_a_busy_kernel_is_answered_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(view_module.time, "monotonic", lambda: now[0])
    page = Page(MemView(first()))
    for _ in range(3):
        page.ask("abc", device=0)
    assert len(page.answers) == 1
    now[0] += 5  # silence: the answer was lost
    page.ask("abc", device=0)
    assert len(page.answers) == 2
    assert page.answers[0][1][0] is page.answers[1][1][0]  # made once


def test_switching_the_device_brings_its_overview_and_data():
    page = Page(MemView(two_devices()))
    view = page.view
    view.selection, view.window, view.moment = 1, (0, 1), 1
    assert view.overview["peak_allocated"] >= 8 * MIB
    view.set_state({"device": 1})
    assert (view.selection, view.window, view.moment) == (-1, (0, 0), -1)
    assert (view.overview["device"], view.overview["n_events"], view.trace.device) == (1, 1, 1)
    assert page.ask(device=1)[0]["header"]["n_events"] == 1


@pytest.mark.parametrize("name", ["gpt2_100k", *GOLDENS])
def test_synced_state_stays_small_and_the_overview_keeps_every_spike(name, data):
    source = GOLDENS[name]() if name in GOLDENS else load_recording(data / f"{name}.pickle.xz")
    view = MemView(source)
    state = {k: v for k, v in view.get_state().items() if k not in {"_esm", "_css"}}
    assert len(json.dumps(state["overview"])) <= 64 << 10
    assert len(json.dumps(state, default=str)) <= 66 << 10
    trace, shown = view.trace, view.overview
    curves = ["allocated", "reserved"]
    if name == "hostile":  # no segment and no counter tells of it
        assert (shown["reserved"], shown["peak_reserved"]) == ([], 0)
        curves.remove("reserved")
    for curve in curves:
        drawn = shown[curve]
        assert max(drawn) == trace.curve(curve).max()
        n = trace.n_events + 1
        cuts = [i * n // shown["columns"] for i in range(shown["columns"] + 1)]
        assert len(drawn) == shown["columns"] == min(trace.n_events + 1, 1024)
        assert drawn == [trace.curve(curve)[lo:hi].max() for lo, hi in pairwise(cuts)]


def test_the_bundle_holds_the_widget_a_picture_and_a_summary():
    view = MemView(hostile())
    data, metadata = view._repr_mimebundle_()
    assert data.keys() == {WIDGET, "image/svg+xml", "text/plain"}
    assert metadata == {}
    assert data[WIDGET]["model_id"] == view.model_id
    assert "peak 1024 GiB" in data["text/plain"]
    assert len(repr(view)) < 120
    root = ET.fromstring(data["image/svg+xml"])
    assert {element.tag.split("}")[1] for element in root.iter()} <= {"svg", "g", "path", "rect", "text", "title"}
    assert MARKUP[:20] in "".join(root.itertext())


def test_the_static_form_is_a_sandboxed_frame_without_a_widget(monkeypatch):
    monkeypatch.setattr("memwidget.show.export._read", lambda name: "<p>{{note}}</p>" if name == "page.html" else "")
    data, _ = MemView(hostile(), height=300).static()._repr_mimebundle_()
    assert data.keys() == {"text/html", "image/svg+xml", "text/plain"}
    assert data["text/html"].startswith('<iframe sandbox="allow-scripts" ')
    assert MARKUP not in data["text/html"]


def test_a_closed_view_lets_go_of_the_trace():
    trace = Trace(first())
    seen = weakref.ref(trace)
    view = MemView(trace)
    Page(view).ask(device=0)
    view.close()
    del trace
    gc.collect()
    assert seen() is None
    assert repr(view) == "MemView(closed)"
    with pytest.raises(RuntimeError, match="closed"):
        view.selected  # noqa: B018
