"""What must hold for whatever a reader lets through: every question has an answer, and the answers agree."""

import json

import numpy as np

from memwidget import compare
from memwidget.answer.findings import findings
from memwidget.read import archive
from memwidget.read.torchfile import pickled
from memwidget.show.export import to_html
from memwidget.show.text import summary
from memwidget.show.timeline_json import to_timeline_json
from memwidget.show.view import overview
from memwidget.show.wire import payload, to_json
from memwidget.trace.trace import Trace
from recordings import difference

#: Devices of a recording that are looked at.
DEVICES = 3
#: Stands in some names; as markup on no page.
EVIL = "<mw-evil"


def check(recording, rng, folder):
    """Ask everything; AssertionError or the error itself where an answer is wrong or missing."""
    again = archive.load(archive.to_bytes(recording))
    assert difference(recording, again, skip=("facts", "settings")) == []
    pickled(recording)
    devices = recording.devices
    assert Trace(recording).device in (*devices, 0)
    for device in rng.sample(devices, min(len(devices), DEVICES)):
        trace = Trace(recording, device)
        check_trace(trace, rng)
        check_pages(trace)
        if trace.has_time and rng.random() < 0.1:
            to_timeline_json(trace, folder / "timeline.json")


def check_trace(trace, rng):
    """Curves, blocks, segments and their sums at some moments."""
    n, blocks = trace.n_events, trace.blocks
    for name in ("allocated", "active", "reserved", "requested"):
        curve = trace.curve(name)
        assert len(curve) == n + 1
        assert int(curve.min()) >= 0, name
    assert (blocks["size"] >= 0).all()
    for at in {0, n, trace.peak_event, rng.randint(0, n), *trace.oom_moments[:3]}:
        live = trace.live_at(at)
        assert int(blocks["size"][live].sum()) == int(trace.curve("allocated")[at])
        held = live.tolist() + trace.pending_at(at).tolist()
        assert sum(blocks["size"][held].tolist()) == int(trace.curve("active")[at])
        for segment in trace.allocator_at(at).segments:
            assert segment.size >= 0
            assert all(block.size >= 0 for block in segment.blocks)
        there = trace.fragmentation_at(at)
        parts = (there.usable, there.too_small, there.other_stream, there.other_pool, there.other_class)
        assert min(parts) >= 0
        assert sum(parts) == there.free == sum(hole.bytes for hole in there.holes)
        assert 0 <= there.free <= there.reserved
        assert 0.0 <= there.unusable_share <= 1.0
        trace.by_site(at), trace.by_category(at)
        if at in trace.oom_moments:
            trace.out_of_memory(at)
    for block in {0, len(blocks) - 1, rng.randrange(len(blocks))} if len(blocks) else ():
        trace.stack(block), trace.stack(block, "free"), trace.site(block), trace.block_name(block), trace.label(block)
        trace.no_stack_reason(block)
    for band in trace.bands:
        assert 0 <= band.lo < band.hi <= n
    trace.growth_despite_room, trace.by_phase(), trace.by_step(), trace.by_operator()


def check_pages(trace):
    """What is shown, and the binary columns behind it."""
    summary(trace).encode("utf-8", "backslashreplace")
    header, buffers = payload(trace)
    json.loads(to_json(header))
    widths = {"f8": 8, "i4": 4, "u4": 4, "u1": 1}
    for column, buffer in zip(header["columns"], buffers, strict=True):
        assert len(buffer) == column["length"] * widths[column["dtype"]], column
        if column["dtype"] == "f8":
            values = np.frombuffer(buffer, "<f8")
            assert np.isfinite(values).all(), column
            assert (values >= 0).all(), column
    assert len(json.dumps(overview(trace))) <= 64 << 10
    page = to_html(trace)
    assert EVIL not in page
    for finding in findings(trace):
        assert str(finding)
    compare(trace, trace)
