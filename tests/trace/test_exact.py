"""To the byte: curves against torch's own counters, and against a second, slow allocator on random histories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwidget.read import load_recording
from memwidget.recording import ACTION, Events
from memwidget.trace.reduce import SIZE_GUESSED
from memwidget.trace.trace import Trace
from text_snapshot import run
from toy_allocator import Block, ToyAllocator

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = sorted(p.name.removesuffix(".pickle.xz") for p in DATA.glob("*.pickle.xz"))
CURVES = ("allocated", "active", "reserved", "requested")


@pytest.mark.parametrize("name", RECORDINGS)
def test_peaks_and_ends_equal_torchs_counters(name: str) -> None:
    trace = Trace(load_recording(DATA / f"{name}.pickle.xz"))
    truth = json.loads((DATA / f"{name}.truth.json").read_text())["after"]
    for curve in CURVES:
        assert (int(trace.curve(curve).max()), int(trace.curve(curve)[-1])) == (
            truth[f"{curve}_bytes.all.peak"],
            truth[f"{curve}_bytes.all.current"],
        ), curve
    assert trace.curve("allocated")[trace.peak_event] == trace.peak_allocated == truth["allocated_bytes.all.peak"]
    assert not (trace.curve("allocated")[: trace.peak_event] == trace.peak_allocated).any()


def test_there_are_recordings() -> None:
    assert {"gpt2_small", "streams", "cuda_graph", "oom", "overflow", "segments_freed"} <= set(RECORDINGS)


@pytest.mark.parametrize("name", ["gpt2_small", "cuda_graph", "streams", "seed_transformer", "segments_freed"])
def test_a_history_that_starts_late_gives_the_same_curves(name: str) -> None:
    recording = load_recording(DATA / f"{name}.pickle.xz")
    full, events = Trace(recording), recording.events[0]
    exact = 0
    for start in np.linspace(1, len(events) - 1, 25, dtype=int).tolist():
        recording.events = {0: Events(**{c.name: getattr(events, c.name)[start:] for c in Events.columns()})}
        late = Trace(recording)
        exact += not (late.blocks["flags"] & SIZE_GUESSED).any()
        # A block whose size could not be confirmed may be up to 1 MiB short, and the notes say so.
        slack = int(np.count_nonzero(late.blocks["flags"] & SIZE_GUESSED)) << 20
        for curve in CURVES:
            short = full.curve(curve)[start:] - late.curve(curve)
            assert 0 <= short.min() <= short.max() <= slack, (start, curve)
        assert bool(slack) == any("cannot be confirmed" in note for note in late.notes)
    assert exact >= 3


@st.composite
def programs(draw: st.DrawFn) -> ToyAllocator:
    """A toy allocator that ran a random program: mixed sizes, streams, pending frees, released segments."""
    conf: dict[str, Any] = {}
    if draw(st.booleans()):
        division = draw(st.sampled_from([2, 4, 8]))
        conf["roundup_power2_divisions"] = {str(1 << i): division if i < 4 else 0 for i in range(16)}
    if draw(st.integers(0, 3)) == 0:
        conf["max_split_size"] = 24 << 20
    toy = ToyAllocator(conf)
    live: list[Block] = []
    pending: list[Block] = []
    size = st.one_of(st.integers(1, 5000), st.integers(1, 3 << 20), st.integers(1 << 20, 40 << 20))
    for op in draw(st.lists(st.integers(0, 9), max_size=60)):
        if op < 5 or not live:
            live.append(toy.alloc(draw(size), draw(st.integers(0, 1)) * 77))
        elif op < 7:
            toy.free(live.pop(draw(st.integers(0, len(live) - 1))))
        elif op == 7:
            pending.append(live.pop())
            toy.request_free(pending[-1])
        elif op == 8 and pending:
            toy.complete_free(pending.pop(0))
        else:
            toy.empty_cache()
    return toy


def _trace(toy: ToyAllocator, keep_last: int | None = None) -> Trace:
    return Trace(load_recording(toy.snapshot(keep_last)))


@settings(max_examples=150, deadline=None)
@given(programs())
def test_every_moment_of_a_random_program(toy: ToyAllocator) -> None:
    if not toy.events:
        return
    trace = _trace(toy)
    for curve in CURVES:
        assert trace.curve(curve).tolist() == [c[curve] for c in toy.counters], curve
    sizes = trace.blocks["size"]
    for m in range(trace.n_events + 1):
        live, pending = trace.live_at(m), trace.pending_at(m)
        assert int(sizes[live].sum()) == toy.counters[m]["allocated"]
        assert int(sizes[live].sum() + sizes[pending].sum()) == toy.counters[m]["active"]
        assert (np.diff(live) > 0).all()


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(2, 60))
def test_a_random_program_whose_history_wrapped(toy: ToyAllocator, keep: int) -> None:
    if len(toy.events) < 2:  # a lone event is what older builds leave without any recording
        return
    keep = min(keep, len(toy.events))
    trace = _trace(toy, keep)
    expected = toy.counters[-keep - 1 :]
    slack = int(np.count_nonzero(trace.blocks["flags"] & SIZE_GUESSED)) << 20
    for curve in ("active", "requested", "reserved"):
        got = trace.curve(curve)
        short = np.array([c[curve] for c in expected]) - got
        if "max_split_size" not in toy.settings:
            assert 0 <= short.min() <= short.max() <= slack, (curve, short.tolist())
        assert short[-1] == 0 or slack


def test_what_was_freed_behind_the_histories_back_is_said() -> None:
    toy = run("alloc a 3MiB\nalloc b 4MiB\nfree a\nalloc c 2MiB\nfree b\nfree c")
    snapshot = toy.snapshot()
    # The history was off while a was freed: its address is handed out again without a free.
    snapshot["device_traces"][0] = [e for i, e in enumerate(snapshot["device_traces"][0]) if i not in {3, 4}]
    trace = Trace(load_recording(snapshot))
    assert trace.allocated == 0
    assert any("handed out again" in note for note in trace.notes)
    assert trace.curve("allocated").tolist()[-1] == 0
    assert trace.peak_allocated == 7 << 20


def test_a_file_without_history_shows_what_is_live() -> None:
    snapshot = run("alloc a 3MiB\nalloc b 512\nrequest a").snapshot()
    snapshot["device_traces"] = [[]]
    trace = Trace(load_recording(snapshot))
    assert (trace.n_events, trace.n_blocks) == (0, 2)
    assert (trace.allocated, trace.active, trace.reserved) == (512, (3 << 20) + 512, 22 << 20)
    assert (
        trace.live_at("peak").tolist()
        == trace.live_at("end").tolist()
        == [i for i, b in enumerate(trace.blocks) if b["size"] == 512]
    )
    assert any("not recorded" in note or "no history" in note.lower() for note in trace.notes)


def test_frees_alone_or_in_pairs() -> None:
    """A history may leave out one of the two frees (skip_actions); the other then stands for both."""
    full = run("alloc a 3MiB\nalloc b 512\nfree a\nalloc c 2MiB\nfree b").snapshot()
    for skipped in ("free_requested", "free_completed"):
        snapshot = {**full, "device_traces": [[e for e in full["device_traces"][0] if e["action"] != skipped]]}
        trace = Trace(load_recording(snapshot))
        assert trace.curve("allocated").tolist() == trace.curve("active").tolist()
        assert trace.allocated == 2 << 20
        assert trace.peak_allocated == (3 << 20) + 512


def test_private_actions_and_unknown_ones_change_nothing() -> None:
    toy = run("alloc a 3MiB\nalloc b 512\nfree a")
    snapshot = toy.snapshot()
    plain = Trace(load_recording(snapshot)).curve("allocated").tolist()
    snapshot["device_traces"][0].insert(2, {"action": "polish", "addr": 0, "size": 1 << 40, "stream": 0, "time_us": 1})
    snapshot["device_traces"][0].insert(
        2, {"action": "snapshot", "addr": 0, "size": 1 << 40, "stream": 0, "time_us": 1}
    )
    trace = Trace(load_recording(snapshot))
    assert (trace.events.action == ACTION["other"]).sum() == 1
    assert [v for i, v in enumerate(trace.curve("allocated").tolist()) if i not in {3, 4}] == plain
