"""Small recordings written by hand: every number in them can be worked out on paper.

Also writes the golden payloads that both sides of the wire are tested with: ``python tests/show/hand_made.py``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from memwidget.read import load_recording
from memwidget.recording import (
    ACTION,
    CATEGORIES,
    SPAN,
    STATES,
    TRAINS,
    Annotations,
    Events,
    Frames,
    Labels,
    Recording,
    Saved,
    SegmentBlocks,
    Segments,
    Spans,
    Uses,
)
from memwidget.show.wire import payload, text
from memwidget.trace.trace import Trace

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
BASE = 0x7F00_0000_0000
MIB = 1 << 20
START_US = 1_700_000_000_000_000

#: A frame is (file, line, function) or (file, line, function, text of the line); a stack lists them, innermost first.
TRAIN = [
    ("/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward"),
    ("/home/me/train.py", 31, "step"),
]
LOSS = [("/home/me/train.py", 40, "step", "loss = criterion(out, y)"), ("/home/me/train.py", 90, "<module>")]
FREE = [("/home/me/train.py", 44, "step"), ("/home/me/train.py", 90, "<module>")]


class _Interner:
    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.rows.setdefault(value, len(self.rows))


def recording(
    events: list[tuple[Any, ...]],
    segments: list[dict[str, Any]] | None = None,
    annotations: list[tuple[str, int, int]] | None = None,
    *,
    device: int = 0,
    streams: tuple[int, ...] = (0, 0x5581_0000),
    pools: tuple[tuple[int, int], ...] = ((0, 0), (1, 0), (0, 2)),
    timed: bool = True,
    **more: Any,
) -> Recording:
    """Events are (action, address, size) and a dict of ``stack``, ``stream``, ``pool``, ``metadata`` (optional).

    Segments are dicts of address, size, blocks (address, size, state), stream, pool, small, expandable; annotations
    (name, first, last event).
    Event i happens at START_US + 1000 * i.
    """
    string, frame, stack = _Interner(), _Interner(), _Interner()

    def stack_id(frames: list[tuple[Any, ...]] | None) -> int:
        if frames is None:
            return -1
        rows = []
        for file, line, name, *source in frames:
            rows.append(frame((string(file), line, string(name), string(source[0]) if source else -1)))
        return stack(tuple(rows))

    rows = []
    for i, (action, address, size, *rest) in enumerate(events):
        more_of = rest[0] if rest else {}
        text = more_of.get("metadata")
        rows.append(
            (
                ACTION[action],
                address,
                size,
                more_of.get("stream", 0),
                stack_id(more_of.get("stack")),
                START_US + 1000 * i if timed else 0,
                more_of.get("pool", 0),
                -1 if text is None else string(text),
                -1,
            )
        )
    columns = list(zip(*rows, strict=True)) or [()] * 9
    table = Events(*[np.array(c, d.dtype) for c, d in zip(columns, Events.columns(), strict=True)])
    seg_rows, block_rows = [], []
    for i, segment in enumerate(segments or []):
        where = (device, segment["address"], segment["size"], segment.get("stream", 0), segment.get("pool", 0))
        seg_rows.append((*where, -1, segment.get("small", 0), segment.get("expandable", 0)))
        for address, size, state in segment.get("blocks", []):
            block_rows.append((i, address, size, size, STATES.index(state), -1))
    marks = [(string(name), device, START_US + 1000 * lo, START_US + 1000 * hi) for name, lo, hi in annotations or []]

    def filled(kind: Any, rows: list[tuple[int, ...]]) -> Any:
        if not rows:
            return kind.empty()
        return kind(*[np.array(c, d.dtype) for c, d in zip(zip(*rows, strict=True), kind.columns(), strict=True)])

    return Recording(
        events={device: table},
        segments=filled(Segments, seg_rows),
        segment_blocks=filled(SegmentBlocks, block_rows),
        annotations=filled(Annotations, marks),
        frames=filled(Frames, list(frame.rows)),
        stacks=np.cumsum([0, *(len(s) for s in stack.rows)]).astype(np.int32),
        stack_frames=np.array([row for s in stack.rows for row in s], np.int32),
        strings=list(string.rows),
        streams=list(streams),
        pools=list(pools),
        **more,
    )


def first() -> Recording:
    """Two segments, a block pending on another stream, an annotation, an OOM with room on the device."""
    big, small = BASE, BASE + 64 * MIB
    return recording(
        [
            ("segment_alloc", big, 20 * MIB),
            ("alloc", big, 8 * MIB, {"stack": TRAIN, "metadata": "weights"}),
            ("alloc", big + 8 * MIB, 6 * MIB, {"stack": LOSS, "stream": 1}),
            ("segment_alloc", small, 2 * MIB),
            ("alloc", small, 1000, {"stack": LOSS}),
            ("free_requested", big + 8 * MIB, 6 * MIB, {"stack": FREE, "stream": 1}),
            ("alloc", small + 1024, 512, {}),
            ("free_completed", big + 8 * MIB, 6 * MIB, {"stream": 1}),
            ("oom", 100 << 30, 64 * MIB, {"stack": TRAIN}),
            ("alloc", big + 8 * MIB, 12 * MIB, {"stack": TRAIN}),
            ("free_requested", big + 8 * MIB, 12 * MIB),
            ("free_completed", big + 8 * MIB, 12 * MIB),
        ],
        [
            {
                "address": big,
                "size": 20 * MIB,
                "blocks": [(big, 8 * MIB, "active_allocated"), (big + 8 * MIB, 12 * MIB, "inactive")],
            },
            {
                "address": small,
                "size": 2 * MIB,
                "blocks": [
                    (small, 1024, "active_allocated"),
                    (small + 1024, 512, "active_allocated"),
                    (small + 1536, 2 * MIB - 1536, "inactive"),
                ],
            },
        ],
        [("forward", 1, 4), ("loss", 2, 3)],
        name="first",
        capacities={0: 140 << 30},
        settings={"expandable_segments": False, "roundup_power2_divisions": 0},
        facts={"torch": "2.13.0", "seconds_snapshot": 0.25},
        notes=["The history starts where it starts."],
    )


def without_time() -> Recording:
    """A history without times and stacks that began late: one block was there before, one free is of such a block."""
    return recording(
        [
            ("free_requested", BASE + 4 * MIB, 2 * MIB),
            ("free_completed", BASE + 4 * MIB, 2 * MIB),
            ("alloc", BASE + 4 * MIB, 3 * MIB),
        ],
        [
            {
                "address": BASE,
                "size": 20 * MIB,
                "blocks": [
                    (BASE, 4 * MIB, "active_allocated"),
                    (BASE + 4 * MIB, 3 * MIB, "active_allocated"),
                    (BASE + 7 * MIB, 13 * MIB, "inactive"),
                ],
            }
        ],
        timed=False,
        name="without_time",
        device=1,
    )


def without_history() -> Recording:
    """Segments only: the snapshot was taken although nothing was recorded."""
    return recording(
        [],
        [{"address": BASE, "size": 20 * MIB, "blocks": [(BASE, 4 * MIB, "active_allocated")]}],
        name="without_history",
        facts={"history": "none"},
    )


def allocator() -> Recording:
    """Every way in which segments come and go, in three pools and on two streams.

    An expandable segment grows in three pieces, the middle one is unmapped (which cuts it) and mapped again by another
    line; a graph's pool keeps a segment; a MemPool's lies on stream 1; a small segment is freed and born again at its
    address; one block was there before and is freed; one spans two pieces; one is pending over the unmapping.
    """
    grown, small, graph, own, old = BASE, BASE + 256 * MIB, BASE + 300 * MIB, BASE + 400 * MIB, BASE + 500 * MIB
    in_graph, in_own = {"pool": 1, "stack": LOSS}, {"pool": 2, "stream": 1, "stack": TRAIN}
    return recording(
        [
            ("segment_map", grown, 20 * MIB, {"stack": TRAIN}),
            ("alloc", grown, 18 * MIB, {"stack": TRAIN}),
            ("segment_map", grown + 20 * MIB, 40 * MIB, {"stack": LOSS}),
            ("alloc", grown + 18 * MIB, 30 * MIB - 100, {"stack": LOSS}),
            ("segment_alloc", small, 2 * MIB, {"stack": FREE}),
            ("alloc", small + 512, 300, {"stack": FREE}),
            ("free_requested", old, 8 * MIB, {"stack": FREE}),
            ("free_completed", old, 8 * MIB),
            ("segment_free", old, 20 * MIB),
            ("free_requested", grown + 18 * MIB, 30 * MIB - 100, {"stack": FREE}),
            ("free_completed", grown + 18 * MIB, 30 * MIB - 100),
            ("segment_unmap", grown + 20 * MIB, 20 * MIB),
            ("segment_alloc", graph, 20 * MIB, in_graph),
            ("alloc", graph, 5 * MIB, in_graph),
            ("segment_alloc", own, 32 * MIB, in_own),
            ("alloc", own + MIB, 4 * MIB, in_own),
            ("free_requested", graph, 5 * MIB, in_graph),
            ("free_completed", graph, 5 * MIB, in_graph),
            ("free_requested", own + MIB, 4 * MIB, in_own),
            ("free_requested", small + 512, 300),
            ("free_completed", small + 512, 300),
            ("segment_free", small, 2 * MIB),
            ("segment_map", grown + 20 * MIB, 20 * MIB, {"stack": FREE}),
            ("oom", 3 << 30, 24 * MIB, {"stack": TRAIN}),
            ("segment_alloc", small, 2 * MIB, {"stack": TRAIN}),
            ("alloc", small, 1 * MIB, {"stack": TRAIN}),
            ("free_completed", own + MIB, 4 * MIB, in_own),
            ("snapshot", 0, 0),
        ],
        [
            {
                "address": grown,
                "size": 60 * MIB,
                "expandable": 1,
                "blocks": [(grown, 18 * MIB, "active_allocated"), (grown + 18 * MIB, 42 * MIB, "inactive")],
            },
            {
                "address": small,
                "size": 2 * MIB,
                "small": 1,
                "blocks": [(small, MIB, "active_allocated"), (small + MIB, MIB, "inactive")],
            },
            {"address": graph, "size": 20 * MIB, "pool": 1, "blocks": [(graph, 20 * MIB, "inactive")]},
            {"address": own, "size": 32 * MIB, "pool": 2, "stream": 1, "blocks": [(own, 32 * MIB, "inactive")]},
        ],
        name="allocator",
    )


MARKUP = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>{{script}}&amp;\"'"


def labelled() -> Recording:
    """One training step: a weight that was there, a batch, a forward, its backward, a step of the optimizer.

    Event i is at i milliseconds; labels and spans lie half a millisecond beside events, so that nothing is on an edge.
    """
    kib, base = 1024, BASE
    events = [
        ("alloc", base + 16 * kib, 8 * kib, {"stack": LOSS}),  # 0: the batch
        ("alloc", base + 24 * kib, 4 * kib, {"stack": LOSS}),  # 1: its targets, which no model is called with
        ("alloc", base + 32 * kib, 32 * kib, {"stack": TRAIN}),  # 2: what the layer gives
        ("alloc", base + 64 * kib, 16 * kib, {"stack": TRAIN}),  # 3: needed within the forward alone
        ("free_requested", base + 64 * kib, 16 * kib),
        ("free_completed", base + 64 * kib, 16 * kib),
        ("alloc", base + 80 * kib, 8 * kib, {}),  # 6: backward, for a while
        ("alloc", base + 96 * kib, 16 * kib, {}),  # 7: the weight's gradient
        ("free_requested", base + 80 * kib, 8 * kib),
        ("free_completed", base + 80 * kib, 8 * kib),
        ("free_requested", base + 32 * kib, 32 * kib),
        ("free_completed", base + 32 * kib, 32 * kib),
        ("alloc", base + 32 * kib, 16 * kib, {"stack": TRAIN}),  # 12: the optimizer's
    ]
    blocks = [(base + at * kib, size * kib, "active_allocated") for at, size in ((0, 16), (16, 8), (24, 4))]
    blocks += [(base + at * kib, size * kib, "active_allocated") for at, size in ((32, 16), (96, 16))]
    made = recording(
        events,
        [{"address": base, "size": 2 * MIB, "blocks": blocks, "small": 1}],
        name="labelled",
        facts={"torch": "2.13.0"},
    )
    n = len(made.strings)
    made.strings += ["encoder.weight", "x", "encoder", "encoder.weight / exp_avg", "Adam"]
    codes = {name: code for code, name in enumerate(CATEGORIES)}

    def rows(kind: Any, values: list[tuple[int, ...]]) -> Any:
        return kind(*[np.array(c, d.dtype) for c, d in zip(zip(*values, strict=True), kind.columns(), strict=True)])

    def at(event: float) -> int:
        return START_US + int(1000 * event)

    made.labels = rows(
        Labels,
        [
            (at(-0.5), 0, base, 16 * kib, codes["parameter"], n, 0),
            (at(1.5), 0, base + 16 * kib, 8 * kib, codes["input"], n + 1, 2),
            (at(12.5), 0, base + 32 * kib, 16 * kib, codes["optimizer_state"], n + 3, 3),
        ],
    )
    made.spans = rows(
        Spans,
        [
            (SPAN["module"], n + 2, 0, at(1.6), at(5.4), TRAINS),
            (SPAN["forward"], n + 2, 0, at(1.6), at(5.4), TRAINS),
            (SPAN["backward"], -1, 0, at(5.6), at(11.4), 0),
            (SPAN["optimizer"], n + 4, 0, at(11.6), at(12.4), 0),
        ],
    )
    made.saved = rows(Saved, [(at(2.4), 0, base + 32 * kib, int(made.events[0].stack[2]))])
    made.uses = rows(Uses, [(at(5.8), 0)])
    return made


def profiled() -> Recording:
    """torch.profiler's: whole blocks, what was there before, counted reserved memory, operators and a def line."""

    def memory(at: float, size: int, address: int, allocated: int, reserved: int) -> dict[str, Any]:
        args = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size}
        args |= {"Total Allocated": allocated * MIB, "Total Reserved": reserved * MIB}
        return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}

    def span(kind: str, name: str, start: float, end: float) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}

    events = [
        span("python_function", "train.py(10): step", 0, 90),
        span("user_annotation", "ProfilerStep#1", 5, 80),
        span("cpu_op", "aten::mm", 10, 25),
        span("cpu_op", "aten::empty", 12, 16),
        memory(15, 3 * MIB, 0xA00000, 13, 20),
        memory(35, -4 * MIB, 0x100000, 9, 20),
        memory(85, 12 * MIB, 0xE00000, 21, 40),
        memory(95, -3 * MIB, 0xA00000, 18, 40),
    ]
    content = json.dumps({"baseTimeNanoseconds": START_US * 1000, "traceEvents": events})
    return load_recording(content.encode(), name="profiled")


def hostile() -> Recording:
    """Names that are markup, turn the line around, end strings or hold half a character; addresses past 2**63."""
    top = 0xFFFF_FFFF_FFFF_0000
    return recording(
        [
            ("alloc", top, 512, {"stack": [(f"/tmp/{MARKUP}.py", 1, MARKUP, MARKUP)], "metadata": MARKUP}),
            ("alloc", top + 512, 512, {"stack": [("/tmp/\u202egnp.exe\0\x1b[2J", 2, "\u2028f\ud800")]}),
            ("alloc", 512, 2**40 + 512, {"stack": [("/tmp/a.py", 3, "n" * 1_000_000)], "stream": 1}),
        ],
        [],
        [(MARKUP, 0, 2)],
        streams=(0, 2**64 - 1),
        name=MARKUP,
        settings={MARKUP: [MARKUP, 2**70, float("nan")]},
        facts={"cell": MARKUP},
        notes=[MARKUP],
        device_type="cpu",
    )


GOLDENS = {f.__name__: f for f in (first, without_time, without_history, allocator, labelled, profiled, hostile)}


def golden_files(make: Any) -> dict[str, bytes]:
    """What a golden's folder holds.

    The header as JSON; the columns one after the other, each padded to 8 bytes; for every moment the allocator's map
    and the live bytes by call site, which the front end works out from the columns and must find the same.
    """
    trace = Trace(make())
    header, buffers = payload(trace)
    columns = b"".join(bytes(b) + bytes(-b.nbytes % 8) for b in buffers)
    written = json.dumps(header, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    maps = [json.dumps(address_map(trace, m)) for m in range(trace.n_events + 1)]
    sites = [
        json.dumps([[text(row.label), row.bytes, row.count] for row in trace.by_site(m).rows])
        for m in range(trace.n_events + 1)
    ]
    return {
        "header.json": written.encode(),
        "columns.bin": columns,
        "addresses.json": ("[\n" + ",\n".join(maps) + "\n]\n").encode(),
        "sites.json": ("[\n" + ",\n".join(sites) + "\n]\n").encode(),
    }


def address_map(trace: Trace, moment: int) -> dict[str, Any]:
    """`allocator_at` and `fragmentation_at` as plain values; a block is [offset, size, requested, state, id]."""
    state, judged = trace.allocator_at(moment), asdict(trace.fragmentation_at(moment))
    segments = [
        {
            "address": f"{s.address:x}",
            "size": s.size,
            "stream": s.stream,
            "pool": -1 if s.pool is None else trace.recording.pools.index(s.pool),
            "kind": s.kind,
            "blocks": [[b.address - s.address, b.size, b.requested, b.state, b.block] for b in s.blocks],
        }
        for s in state.segments
    ]
    return {"moment": moment, "segments": segments, "fragmentation": judged}


if __name__ == "__main__":
    for name, make in GOLDENS.items():
        (GOLDEN / name).mkdir(parents=True, exist_ok=True)
        for file, content in golden_files(make).items():
            (GOLDEN / name / file).write_bytes(content)
