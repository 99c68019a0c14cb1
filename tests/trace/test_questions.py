"""The questions one can ask of a trace: moments, stacks, sites, bands."""

from __future__ import annotations

import numpy as np
import pytest

from memwidget.read import load_recording
from memwidget.record.ranges import add_ranges
from memwidget.trace.trace import Frame, Trace
from text_snapshot import run, snapshot

PROGRAM = """
alloc w 3MiB @ /env/site-packages/torch/nn/linear.py:9 init <- train.py:4 build <- train.py:90 <module>
alloc x 2MiB @ train.py:31 step <- train.py:90 <module>
alloc y 1MiB @ /env/site-packages/torch/nn/functional.py:2 relu <- train.py:31 step <- train.py:90 <module>
alloc g 512
free y
oom 64GiB device_free=1GiB
free x
"""


def test_sites_are_the_users_lines_and_add_up() -> None:
    trace = Trace(load_recording(snapshot(PROGRAM)))
    by_site = trace.by_site("peak")
    assert dict(by_site) == {"train.py:31 in step": 3 << 20, "train.py:4 in build": 3 << 20, "(no Python stack)": 512}
    assert [row.count for row in by_site.rows] == [2, 1, 1]
    assert sum(by_site.values()) == trace.peak_allocated
    assert trace.site(0) == Frame("train.py", 4, "build")
    assert trace.stack(0)[0].name == "init"
    assert trace.stack(0)[-1] == Frame("train.py", 90, "<module>")
    assert trace.site(3) is None
    assert trace.stack(3) == ()
    assert "backward" in trace.no_stack_reason(3)
    assert trace.no_stack_reason(0) == ""


@pytest.mark.parametrize("block", [-1, 4])
def test_no_block_has_no_stack_site_or_name(block: int) -> None:
    trace = Trace(load_recording(snapshot(PROGRAM)))
    for ask in (trace.stack, trace.site, trace.block_name, trace.label, trace.forward_frames, trace.no_stack_reason):
        with pytest.raises(IndexError, match=f"run from 0 to 3; {block} is none"):
            ask(block)
        for wrong in ("a", 1.5, True, None):
            with pytest.raises(TypeError, match="A block id is an int"):
                ask(wrong)


def test_moments() -> None:
    trace = Trace(load_recording(snapshot(PROGRAM)))
    assert trace.moment("peak") == trace.peak_event
    assert trace.moment("end") == trace.n_events
    assert trace.oom_moments == (trace.moment("oom"),)
    # The state the failing request met: y is gone, x is not.
    assert trace.blocks["size"][trace.live_at("oom")].tolist() == [3 << 20, 2 << 20, 512]
    assert trace.moment(np.int32(2)) == 2
    for wrong in (-1, trace.n_events + 1, "noon", None, True, 1.5):
        with pytest.raises(ValueError, match=r"moment|Moment"):
            trace.moment(wrong)
    with pytest.raises(ValueError, match="no out-of-memory"):
        Trace(load_recording(snapshot("alloc a 512"))).moment("oom")
    with pytest.raises(ValueError, match="device 3"):
        Trace(load_recording(snapshot("alloc a 512")), device=3)


def test_names_count_the_uses_of_an_address() -> None:
    trace = Trace(load_recording(snapshot("alloc a 512\nfree a\nalloc b 512\nalloc c 512")))
    a, b, c = (trace.block_name(i) for i in range(3))
    assert (a[-2:], b[-2:], c[-2:]) == ("_0", "_1", "_0")
    assert a[:-2] == b[:-2] == f"b{int(trace.blocks['address'][0]):x}"


def test_a_free_repeats_the_allocations_stack_or_tells_the_place() -> None:
    toy = run("alloc a 3MiB @ a.py:1 make\nalloc b 512 @ a.py:2 make\nfree a\nfree b")
    same = Trace(load_recording(toy.snapshot()))
    assert same.stack(0, "free") == ()
    other = toy.snapshot()
    for event in other["device_traces"][0]:
        if event["action"].startswith("free"):
            event["frames"] = [{"filename": "a.py", "line": 7, "name": "drop"}]
    told = Trace(load_recording(other))
    assert told.stack(0, "free") == (Frame("a.py", 7, "drop"),)
    # An allocation that the history lost: with repeated stacks the free still tells who made it.
    late = Trace(load_recording(toy.snapshot(keep_last=3)))
    assert Frame("a.py", 2, "make") in {late.site(i) for i in range(late.n_blocks)}


def test_two_files_of_one_name_are_told_apart_and_cells_are_called_cells() -> None:
    trace = Trace(
        load_recording(
            snapshot(
                "alloc a 512 @ /home/u/one/util.py:3 f\nalloc b 512 @ /home/u/two/util.py:3 f\n"
                "alloc c 512 @ /tmp/ipykernel_12/3456.py:5 <module>"
                " <- /env/site-packages/IPython/core/interactiveshell.py:1 run_code\n"
                r"alloc d 512 @ C:\work\model.py:8 forward <- C:\Python311\Lib\threading.py:1 run"
            )
        )
    )
    assert set(trace.by_site("end")) == {
        "one/util.py:3 in f",
        "two/util.py:3 in f",
        "notebook cell 3456, line 5",
        "model.py:8 in forward",
    }


def test_annotations_become_nested_bands_of_moments() -> None:
    toy = run("alloc a 512\nalloc b 512\nalloc c 512\nfree a")
    times = [e["time_us"] for e in toy.events]  # 0 segment_alloc, 1 a, 2 b, 3 c, 4 and 5 the free
    mark = lambda name, stage, at: {"name": name, "stage": stage, "device": 0, "time_us": at}  # noqa: E731
    data = toy.snapshot()
    data["external_annotations"] = [
        mark("outer", "START", times[1]),
        mark("inner", "START", times[2] - 1),
        mark("inner", "END", times[3] + 1),
        mark("outer", "END", times[5] + 1),
        mark("nothing inside", "START", times[5] + 2),
        mark("nothing inside", "END", times[5] + 3),
    ]
    bands = Trace(load_recording(data)).bands
    assert [(b.name, b.lo, b.hi, b.depth) for b in bands] == [("outer", 1, 6, 0), ("inner", 2, 4, 1)]


def test_steps_and_phases_are_bands_of_their_own_kind() -> None:
    toy = run("alloc a 512\nalloc b 512\nalloc c 512\nfree a")
    times = [e["time_us"] for e in toy.events]
    recording = load_recording(toy.snapshot())
    recording.facts["steps"] = [times[1] + 1, times[3] + 1]
    recording.facts["phases"] = add_ranges(recording, [("forward", times[1], times[2]), ("ProfilerStep#7", 0, 1 << 60)])
    trace = Trace(recording)
    bands = trace.bands
    assert [bands[i].name for i in trace.blocks["step"][:3]] == ["0", "1", "1"]
    assert [bands[i].name if i >= 0 else None for i in trace.blocks["phase"]] == ["forward", "forward", None]
    assert {(b.kind, b.name, b.lo, b.hi, b.depth) for b in bands} == {
        ("step", "0", 0, 2, 1),
        ("step", "1", 2, 4, 1),
        ("step", "ProfilerStep#7", 0, 6, 0),
        ("phase", "forward", 1, 3, 0),
    }


def test_out_of_memory_says_what_was_there() -> None:
    text = "alloc a 12MiB stream=7 @ a.py:1 f\nalloc b 30MiB @ a.py:2 g\nfree a\noom 11MiB device_free=1MiB"
    trace = Trace(load_recording(snapshot(text)), capacity=100 << 20)
    oom = trace.out_of_memory()
    assert (oom.requested, oom.device_free, oom.allocated, oom.reserved) == (11 << 20, 1 << 20, 30 << 20, 42 << 20)
    assert oom.outside == (100 - 1 - 42) << 20
    assert oom.free.other_stream == 12 << 20
    assert not oom.limited
    assert dict(oom.by_site) == {"a.py:2 in g": 30 << 20}
    with pytest.raises(ValueError, match="No allocation failed at moment 0"):
        trace.out_of_memory(0)
