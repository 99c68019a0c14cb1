"""Files that contradict themselves: each of these once gave a wrong number, a warning or a hang."""

import numpy as np
import pytest

from memwidget import SnapshotError
from memwidget.read import archive, load_recording
from memwidget.recording import MAX_DEVICE, Events, Recording, Spans
from memwidget.trace.paint import last_over
from memwidget.trace.trace import Trace


def snapshot(*events, segments=()):
    known = ("action", "addr", "size")
    return {
        "segments": list(segments),
        "device_traces": [[{**dict(zip(known, e, strict=True)), "stream": 0} for e in events]],
    }


def segment(address, size, **more):
    return {"device": 0, "address": address, "total_size": size, "stream": 0, "blocks": [], **more}


def test_frees_count_towards_the_bound_of_all_sizes():
    frees = [("free_completed", 512 * i, 2**53) for i in range(2000)]
    with pytest.raises(SnapshotError, match="add up to more than any device moves"):
        load_recording(snapshot(*frees))


@pytest.mark.parametrize("segments", [[segment(0, 2**53)] * 300, [segment(MAX_DEVICE, 512, device=MAX_DEVICE + 1)]])
def test_segments_past_any_machine_are_refused(segments):
    with pytest.raises(SnapshotError):
        load_recording(snapshot(segments=segments))


def test_a_segment_at_the_end_of_all_addresses_does_not_wrap():
    last = 2**64 - 4096
    trace = Trace(load_recording(snapshot(("alloc", last, 512), segments=[segment(last, 2 << 20)])))
    (found,) = trace.allocator_at("end").segments
    assert (found.address, found.size) == (last, 4095)
    assert trace.fragmentation_at("end").free == 4095 - 512


def test_reserved_is_never_below_nothing():
    freed = [("segment_free", 0, 2 << 20), ("segment_alloc", 0, 64 << 20), ("alloc", 0, 512)]
    curve = Trace(load_recording(snapshot(*freed, segments=[segment(0, 2 << 20)]))).curve("reserved")
    assert curve.tolist() == [0, 0, 2 << 20, 2 << 20]


def test_blocks_that_all_claim_one_room_keep_what_they_asked_for():
    # Each is born before the next, larger address, and past max_split_size takes all that lies behind it.
    grows = [("alloc", 4096 * i, 2 << 20) for i in range(1100)]
    made = snapshot(*grows, segments=[segment(0, 2**53)])
    made["allocator_settings"] = {"max_split_size": 1}
    trace = Trace(load_recording(made))
    assert trace.peak_allocated == trace.allocated == trace.curve("allocated").max() > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("phases", 3), ("phases", [0]), ("steps", ["a"]), ("cells", []), ("gc", [{"start_us": "x", "end_us": 1}])],
)
def test_facts_that_are_none_are_refused(name, value):
    recording = Recording(events={0: Events.empty(1)}, facts={name: value})
    with pytest.raises(SnapshotError, match="its facts are no facts"):
        archive.load(archive.to_bytes(recording))


def test_phases_of_a_hundred_thousand_threads_tear_each_other():
    n = 100_000
    spans = Spans.empty(n)
    spans.kind[:], spans.thread[:] = 1, np.arange(n)
    spans.start_us[:], spans.end_us[:] = 10 + np.arange(n), 10_000_000
    events = Events.empty(5)
    events.size[:], events.address[:], events.time_us[:] = 512, 512 * np.arange(1, 6), 10 + np.arange(5) * 7
    trace = Trace(Recording(events={0: events}, spans=spans))
    assert trace.n_blocks == 5
    assert any("Two threads were in different phases" in note for note in trace.notes)


def test_painting_gives_the_last_range_however_much_they_overlap():
    rng = np.random.default_rng(0)
    for n, ranges in ((1, 3), (50, 4), (50, 2000)):
        lo, hi = rng.integers(0, n + 1, (2, ranges))
        expected = np.full(n, -1)
        for row in range(ranges):
            expected[lo[row] : hi[row]] = row
        assert last_over(n, lo, hi).tolist() == expected.tolist()
