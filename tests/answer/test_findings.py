"""Findings on real recordings: the right line, the right slope, and no false alarm; numbers follow from the code."""

from pathlib import Path

import numpy as np
import pytest

from memwidget.answer.finding import EXPECTED, KINDS
from memwidget.answer.findings import findings_payload, nothing_unusual
from memwidget.read import load_recording
from memwidget.trace.trace import Trace

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = sorted(p.name.removesuffix(".pickle.xz") for p in DATA.glob("*.pickle.xz"))
MiB = 1 << 20
_traces = {}


def trace_of(name):
    if name not in _traces:
        _traces[name] = Trace(load_recording(DATA / f"{name}.pickle.xz"))
    return _traces[name]


def found(name, kind):
    return [f for f in trace_of(name).findings() if f.kind == kind]


#: 256 x 1024 floats of input, six ReLU outputs of that size, 256 x 10 of output: what the graph of one step saves.
LOSS = 4 * 256 * 1024 * 7 + 4 * 256 * 10
#: 512 x 1024 floats of features.
FEATURES = 4 * 512 * 1024


@pytest.mark.parametrize(
    ("name", "lines", "slope"),
    [("leak_loss", {176, 177, 178}, LOSS), ("leak_features", {189}, FEATURES)],
)
def test_growth_is_named_by_line_and_slope(name, lines, slope):
    (growth,) = found(name, "growth")
    assert growth.certain
    assert growth.site.line in lines
    assert growth.site.filename.endswith("capture.py")
    assert growth.bytes_per_step == pytest.approx(slope, rel=0.05)
    assert sum(size for _, size in growth.lines) == pytest.approx(slope, rel=0.05)
    blocks = trace_of(name).blocks[list(growth.blocks)]
    assert (blocks["free_requested_event"] == -1).all()
    assert blocks["size"].sum() == pytest.approx(growth.bytes, rel=0.05)


def test_a_running_total_is_told_from_kept_results():
    (loss,), (features,) = found("leak_loss", "growth"), found("leak_features", "growth")
    assert "capture.py:178 in leak_loss" in loss.advice
    assert ".item()" in loss.advice
    assert "one block" in " ".join(features.evidence)


@pytest.mark.parametrize(
    "name",
    [
        "no_leak_accumulate",
        "seed_transformer",
        "gpt2_small",
        "gpt2_100k",
        "annotated_transformer",
        "truth_transformer",
        "overflow",
        "streams",
        "cuda_graph",
        "segments_freed",
        "fragment",
    ],
)
def test_no_growth_where_nothing_grows(name):
    assert found(name, "growth") == []


def test_fragmentation_is_told():
    (f,) = found("fragment", "fragmentation")
    # 8 blocks of 5 MiB found no room among 20 holes of 3 MiB.
    assert f.site.line == 151
    # 14 of the 20 holes lie between live blocks, the others had been joined with a segment's rest and taken.
    assert "42.0 MiB that had been in use lay free" in " ".join(f.evidence)
    assert "expandable_segments:True" in f.advice


@pytest.mark.parametrize("name", [n for n in RECORDINGS if n != "fragment"])
def test_no_fragmentation_where_segments_merely_have_room(name):
    assert found(name, "fragmentation") == []


def test_out_of_memory_says_what_filled_the_limit():
    first = trace_of("oom").findings()[0]
    assert first.kind == "oom"
    assert first.site.line == 212
    assert trace_of("oom").oom_moments == (first.moment,)
    assert "limit" in " ".join(first.evidence)
    assert "limit" in first.advice
    (growth,) = found("oom", "growth")
    # 9 blocks of 32 MiB stay of each turn: the input and eight ReLU outputs; the output has 4096 x 10 floats.
    assert growth.bytes_per_step == pytest.approx(9 * 32 * MiB, rel=0.05)


def test_a_graphs_private_pool():
    (pool,) = found("cuda_graph", "pool")
    trace = trace_of("cuda_graph")
    last = trace.segments[(trace.segments["free_event"] < 0)]
    private = [i for i, p in enumerate(trace.recording.pools) if p != (0, 0)]
    assert pool.bytes == last["size"][np.isin(last["pool"], private)].sum()
    assert "graph" in pool.title


def test_pending_frees_and_a_stranded_cache():
    (pending,) = found("streams", "pending_free")
    trace = trace_of("streams")
    # 18 of the 20 blocks of 4 MiB still wait at the end: torch's own counters differ by that.
    assert pending.bytes == trace.active - trace.allocated == 18 * 4 * MiB
    assert pending.site.line == 241
    stranded = [f for f in found("streams", "cache") if "another stream" in f.title]
    assert [f.site.line for f in stranded] == [247]


@pytest.mark.parametrize("name", ["seed_transformer", "leak_loss", "annotated_transformer", "gpt2_small"])
def test_optimizer_state_is_a_step_and_twice_the_parameters(name):
    (state,) = [f for f in found(name, "step") if "optimizer" in f.title]
    trace = trace_of(name)
    first = next(b for b in trace.bands if b.name.startswith("Optimizer.step"))
    born = trace.blocks["alloc_event"][list(state.blocks)]
    assert ((born >= first.lo) & (born < first.hi)).all()
    assert state.certain
    if name == "leak_loss":  # 6 x (1024 x 1024 + 1024) + 1024 x 10 + 10 parameters, two floats each
        assert state.bytes == pytest.approx(2 * 4 * (6 * 1024 * 1025 + 10250), rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "no_leak_accumulate",
        "seed_transformer",
        "gpt2_small",
        "gpt2_100k",
        "annotated_transformer",
        "truth_transformer",
        "overflow",
        "cuda_graph",
    ],
)
def test_a_healthy_run_is_nothing_unusual(name):
    assert nothing_unusual(trace_of(name).findings())


def test_what_an_operator_takes_for_itself_in_backward_is_a_fact_with_its_name():
    (fact,) = [f for f in found("seed_transformer", "step") if "in backward" in f.title]
    # 256 MiB and 128 KiB, for three events, in the backward of the attention; activations have 8 MiB.
    assert fact.bytes >= 256 * MiB
    assert fact.certain
    assert "ScaledDotProductEfficientAttentionBackward0" in " ".join(fact.evidence)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_finding_can_be_checked_and_followed(name):
    trace = trace_of(name)
    rows = findings_payload(trace)
    for f, row in zip(trace.findings(), rows, strict=True):
        assert f.kind in KINDS
        assert f.title
        assert f.evidence
        assert f.advice.endswith(".")
        assert f.bytes > 0
        assert 0 <= f.moment <= trace.n_events
        assert all(0 <= b < trace.n_blocks for b in f.blocks)
        assert f.window is None or 0 <= f.window[0] < f.window[1] <= trace.n_events
        assert row["n_blocks"] == len(f.blocks)
        assert (f.site is None) == (row["frame"] < 0)
    unusual = [f.kind in EXPECTED for f in trace.findings()]
    assert unusual == sorted(unusual)  # what needs attention comes first


def test_facts_of_a_strange_file_are_passed_over():
    recording = load_recording(DATA / "leak_features.pickle.xz")
    odd = [None, 5, {}, {"address": []}, {"address": -1, "holder": "x"}, {"address": 2**70, "holder": "x", "fix": 5}]
    for name in ("holders", "gc", "earlier_runs", "cells", "device_free", "error", "steps"):
        recording.facts[name] = [] if name == "steps" else odd
    recording.facts["earlier_runs"] = [{"bytes": 2**26, "holders": 5, "fixes": [None, "del x"]}, "text"]
    found = Trace(recording).findings()
    assert found
    assert all(isinstance(f.advice, str) for f in found)


@pytest.mark.parametrize("name", ["leak_loss", "leak_features"])
@pytest.mark.parametrize("start", [0.3, 0.6])
def test_growth_is_told_from_the_end_of_a_history_and_without_marks(name, start):
    recording = load_recording(DATA / f"{name}.pickle.xz")
    recording.annotations = type(recording.annotations).empty()
    events = recording.events[0]
    cut = int(len(events) * start)
    columns = {c.name: getattr(events, c.name)[cut:] for c in type(events).columns()}
    recording.events = {0: type(events)(**columns)}
    (growth,) = [f for f in Trace(recording).findings() if f.kind == "growth"]
    assert growth.bytes_per_step == pytest.approx(LOSS if name == "leak_loss" else FEATURES, rel=0.05)


@pytest.mark.parametrize("name", ["truth_transformer", "cuda_graph", "no_leak_accumulate", "gpt2_small"])
def test_no_growth_in_any_window_of_what_does_not_grow(name):
    recording = load_recording(DATA / f"{name}.pickle.xz")
    events = recording.events[0]
    for start in (0.2, 0.5, 0.7, 0.8):
        cut = int(len(events) * start)
        columns = {c.name: getattr(events, c.name)[cut:] for c in type(events).columns()}
        recording.events = {0: type(events)(**columns)}
        assert not [f for f in Trace(recording).findings() if f.kind in {"growth", "fragmentation"}], start
