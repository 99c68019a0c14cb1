"""Free memory by whom it can serve, and what was reserved although room lay around."""

from __future__ import annotations

from hypothesis import given, settings
from test_exact import programs

from memwidget.read import load_recording
from memwidget.trace.trace import Trace
from text_snapshot import snapshot
from toy_allocator import ToyAllocator

MIB = 1 << 20


def test_the_well_known_example() -> None:
    """2.25 MiB takes a segment of 20 MiB; 24 MiB then needs one of its own, and the 17.75 MiB cannot serve it."""
    trace = Trace(load_recording(snapshot("alloc a 2.25MiB\nalloc b 24MiB")))
    at = trace.fragmentation_at("end")
    assert (at.reserved, at.free, at.largest_hole) == (44 * MIB, int(17.75 * MIB), int(17.75 * MIB))
    assert at.request.size == 24 * MIB
    assert (at.usable, at.too_small, at.unusable_share) == (0, int(17.75 * MIB), 1.0)
    assert [(h.size, h.n_holes, h.bytes) for h in at.holes] == [(32 * MIB, 1, int(17.75 * MIB))]
    assert trace.growth_despite_room == ()  # 17.75 MiB free is less than 24


def test_holes_that_would_do_together_but_not_alone() -> None:
    steps = [f"alloc x{i} 5MiB" for i in range(4)] + ["free x0", "free x2", "alloc y 8MiB", "alloc z 6MiB"]
    trace = Trace(load_recording(snapshot("\n".join(steps))))
    (grown,) = trace.growth_despite_room
    assert (grown.reserved, grown.request, grown.free) == (20 * MIB, 8 * MIB, 10 * MIB)
    before = trace.fragmentation_at(grown.event)
    assert (before.free, before.too_small, before.usable) == (10 * MIB, 10 * MIB, 0)


def test_other_streams_size_classes_pending_and_releasable() -> None:
    trace = Trace(
        load_recording(
            snapshot(
                "alloc a 12MiB stream=7\nalloc b 30MiB\nalloc s 1000\nalloc p 12MiB\n"
                "free a\nrequest p\noom 11MiB device_free=1MiB"
            )
        )
    )
    at = trace.fragmentation_at("oom")
    assert at.request == (11 * MIB, trace.recording.streams.index(0), 0)
    assert (at.free, at.pending) == (12 * MIB + 2 * MIB - 1024, 12 * MIB)
    assert (at.other_stream, at.other_class, at.too_small, at.usable) == (12 * MIB, 2 * MIB - 1024, 0, 0)
    assert at.rounding == 24
    assert at.releasable == 12 * MIB


@settings(max_examples=80, deadline=None)
@given(programs())
def test_against_the_toy(toy: ToyAllocator) -> None:
    if len(toy.events) < 2:
        return
    trace = Trace(load_recording(toy.snapshot()))
    for m in {0, trace.n_events // 2, trace.peak_event, trace.n_events}:
        at = trace.fragmentation_at(m)
        counted = toy.counters[m]
        assert at.free == counted["reserved"] - counted["active"]
        assert at.pending == counted["active"] - counted["allocated"]
        assert at.rounding == counted["active"] - counted["requested"]
        assert at.free == at.usable + at.too_small + at.other_stream + at.other_pool + at.other_class
        assert sum(h.bytes for h in at.holes) == at.free
    expected = []
    for i, event in enumerate(toy.events):
        if event["action"] != "segment_alloc":
            continue
        segments = toy.maps[i + 2]  # after the allocation that needed it
        taken = next(b for s in segments for b in s[3] if b[0] == toy.events[i + 1]["addr"])
        small = taken[1] <= MIB
        free = sum(
            b[1]
            for address, size, stream, blocks in toy.maps[i]
            if stream == event["stream"] and (size == 2 * MIB) == small
            for b in blocks
            if b[3] == "inactive"
        )
        if free >= taken[1]:
            expected.append((i, event["size"], taken[1], free))
    assert [tuple(g) for g in trace.growth_despite_room] == expected
