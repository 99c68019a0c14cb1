"""The address map at any moment: against the toy allocator event by event, and against the files' own segments."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from test_exact import RECORDINGS, programs

from memwidget.read import load_recording
from memwidget.recording import STATES
from memwidget.trace.trace import Trace
from text_snapshot import run
from toy_allocator import ToyAllocator

DATA = Path(__file__).parents[1] / "data"
TORCHS_WORD = {"allocated": "active_allocated", "pending free": "active_pending_free", "free": "inactive"}


def _map(trace: Trace, moment: int) -> list[Any]:
    streams = trace.recording.streams
    return [
        (
            s.address,
            s.size,
            streams[s.stream],
            [(b.address, b.size, b.requested, TORCHS_WORD[b.state]) for b in s.blocks],
        )
        for s in trace.allocator_at(moment).segments
    ]


@settings(max_examples=100, deadline=None)
@given(programs())
def test_every_event_of_a_random_program(toy: ToyAllocator) -> None:
    if len(toy.events) < 2:
        return
    trace = Trace(load_recording(toy.snapshot()))
    for m in range(trace.n_events + 1):
        assert _map(trace, m) == toy.maps[m], m


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_last_moment_is_the_files_own_segments(name: str) -> None:
    recording = load_recording(DATA / f"{name}.pickle.xz")
    trace = Trace(recording)
    state = trace.allocator_at("end")
    assert [(s.address, s.size) for s in state.segments] == list(
        zip(recording.segments.address.tolist(), recording.segments.size.tolist(), strict=True)
    )
    ours = [(b.address, b.size, TORCHS_WORD[b.state]) for s in state.segments for b in s.blocks]
    blocks = recording.segment_blocks
    theirs = zip(blocks.address.tolist(), blocks.size.tolist(), blocks.state.tolist(), strict=True)
    assert ours == [(address, size, STATES[state]) for address, size, state in theirs]
    assert [s.kind for s in state.segments] == ["small" if small else "large" for small in recording.segments.small]
    # At any moment, blocks and holes fill what is reserved, without gaps.
    for m in np.linspace(0, trace.n_events, 30, dtype=int).tolist():
        for segment in trace.allocator_at(m).segments:
            edges = [(b.address, b.address + b.size) for b in segment.blocks]
            assert edges[0][0] == segment.address
            assert edges[-1][1] == segment.address + segment.size
            assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        assert sum(s.size for s in trace.allocator_at(m).segments) == trace.curve("reserved")[m]


def test_expandable_segments_grow_shrink_and_split() -> None:
    mib, base = 1 << 20, 0x7F0000000000

    def event(action: str, lo: int, hi: int) -> dict[str, Any]:
        return {"action": action, "addr": base + lo * mib, "size": (hi - lo) * mib, "stream": 0, "time_us": 1}

    events = [
        event("segment_map", 0, 20),  # moment 1: [0, 20)
        event("alloc", 0, 3),
        event("segment_map", 20, 40),  # moment 3: [0, 40) is one segment
        event("alloc", 36, 40),
        event("free_requested", 0, 3),
        event("free_completed", 0, 3),
        event("segment_unmap", 0, 10),  # moment 7: [10, 40)
        event("segment_unmap", 16, 30),  # moment 8: [10, 16) and [30, 40)
        event("segment_map", 16, 30),  # moment 9: [10, 40) again
    ]
    segment = {
        "device": 0,
        "address": base + 10 * mib,
        "total_size": 30 * mib,
        "allocated_size": 4 * mib,
        "active_size": 4 * mib,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": [
            {"address": base + 10 * mib, "size": 26 * mib, "requested_size": 0, "state": "inactive", "frames": []},
            {
                "address": base + 36 * mib,
                "size": 4 * mib,
                "requested_size": 4 * mib,
                "state": "active_allocated",
                "frames": [],
            },
        ],
    }
    snapshot = {
        "segments": [segment],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": True},
    }
    for skip in range(len(events) - 1):  # a history that starts late must say the same from there on
        trace = Trace(load_recording({**snapshot, "device_traces": [events[skip:]]}))
        spans = [
            [((s.address - base) // mib, s.size // mib, s.kind) for s in trace.allocator_at(m).segments]
            for m in range(trace.n_events + 1)
        ]
        expected: list[list[Any]] = [
            [],
            [(0, 20, "expandable")],
            [(0, 20, "expandable")],
            *[[(0, 40, "expandable")]] * 4,
            [(10, 30, "expandable")],
            [(10, 6, "expandable"), (30, 10, "expandable")],
            [(10, 30, "expandable")],
        ]
        assert spans == expected[skip:]
        assert trace.curve("reserved").tolist() == [sum(s[1] for s in m) * mib for m in expected[skip:]]


def test_a_segment_freed_and_reborn_at_the_same_address() -> None:
    toy = run("alloc a 30MiB\nfree a\nempty_cache\nalloc b 3MiB")
    snapshot = toy.snapshot()
    old, new = toy.maps[2][0], toy.maps[-1][0]
    shift = new[0] - old[0]
    for event in snapshot["device_traces"][0][5:]:
        event["addr"] -= shift
    for piece in (snapshot["segments"][0], *snapshot["segments"][0]["blocks"]):
        piece["address"] -= shift
    trace = Trace(load_recording(snapshot))
    sizes = [[s.size >> 20 for s in trace.allocator_at(m).segments] for m in range(trace.n_events + 1)]
    assert sizes == [[], [30], [30], [30], [30], [], [20], [20]]
