"""A Recording -> torch's own snapshot file, for other tools.

Owns the way back: events, segments and annotations in torch's layout, pickle protocol 4, which the official viewer
reads; protocol 5 it does not. What torch has no place for (capacities, facts, notes, source lines) stays behind.
"""

from __future__ import annotations

import pickle
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from memwidget.recording import ACTIONS, STATES, Events, Recording


def pickled(recording: Recording) -> bytes:
    """The bytes of a .pickle file."""
    return pickle.dumps(to_snapshot(recording), protocol=4)


def to_snapshot(recording: Recording) -> dict[str, Any]:
    """Torch's snapshot dict; stacks and frames are shared objects, as torch shares them."""
    strings, frames = recording.strings, recording.frames
    dicts = [
        {"name": strings[name], "filename": strings[filename], "line": line}
        for filename, line, name in zip(
            frames.filename.tolist(), frames.line.tolist(), frames.name.tolist(), strict=True
        )
    ]
    offsets, rows = recording.stacks.tolist(), recording.stack_frames.tolist()
    stacks = [[dicts[row] for row in rows[lo:hi]] for lo, hi in pairwise(offsets)]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(recording.devices, default=-1) + 1)]
    for device, events in recording.events.items():
        if len(events):
            traces[device] = _trace(recording, events, stacks)
    return {
        "segments": _segments(recording, stacks),
        "device_traces": traces,
        "allocator_settings": recording.settings,
        "external_annotations": _annotations(recording),
    }


def _trace(recording: Recording, events: Events, stacks: list[Any]) -> list[dict[str, Any]]:
    strings, oom = recording.strings, ACTIONS.index("oom")
    timed = bool(events.time_us.any())
    labelled = bool((events.metadata >= 0).any())
    compiled = bool((events.compile_context >= 0).any())
    trace = []
    for action, address, size, stream, stack, time, pool, metadata, context in zip(
        events.action.tolist(),
        events.address.tolist(),
        events.size.tolist(),
        events.stream.tolist(),
        events.stack.tolist(),
        events.time_us.tolist(),
        events.pool.tolist(),
        events.metadata.tolist(),
        events.compile_context.tolist(),
        strict=True,
    ):
        event: dict[str, Any] = {
            "action": ACTIONS[action],
            "device_free" if action == oom else "addr": address,
            "size": size,
        }
        if stream >= 0:
            event["stream"] = recording.streams[stream]
        if timed:
            event["time_us"] = time
        if compiled:
            event["compile_context"] = strings[context] if context >= 0 else "N/A"
        if labelled:
            event["user_metadata"] = strings[metadata] if metadata >= 0 else ""
        if pool >= 0:
            event["pool_id"] = recording.pools[pool]
        if stack >= 0:
            event["frames"] = stacks[stack]
        trace.append(event)
    return trace


def _segments(recording: Recording, stacks: list[Any]) -> list[dict[str, Any]]:
    table, blocks = recording.segments, recording.segment_blocks
    segments: list[dict[str, Any]] = []
    for i in range(len(table)):
        segment: dict[str, Any] = {
            "device": int(table.device[i]),
            "address": int(table.address[i]),
            "total_size": int(table.size[i]),
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": recording.streams[table.stream[i]] if table.stream[i] >= 0 else 0,
            "segment_type": "small" if table.small[i] else "large",
            "is_expandable": bool(table.expandable[i]),
            "frames": stacks[table.stack[i]] if table.stack[i] >= 0 else [],
            "blocks": [],
        }
        if table.pool[i] >= 0:
            segment["segment_pool_id"] = recording.pools[table.pool[i]]
        segments.append(segment)
    for i in range(len(blocks)):
        segment = segments[blocks.segment[i]]
        state, size, requested = int(blocks.state[i]), int(blocks.size[i]), int(blocks.requested[i])
        if STATES[state] != "inactive":
            segment["allocated_size"] += size if STATES[state] == "active_allocated" else 0
            segment["active_size"] += size
            segment["requested_size"] += requested
        segment["blocks"].append(
            {
                "address": int(blocks.address[i]),
                "size": size,
                "requested_size": requested,
                "state": STATES[state],
                "frames": stacks[blocks.stack[i]] if blocks.stack[i] >= 0 else [],
            }
        )
    return segments


def _annotations(recording: Recording) -> list[dict[str, Any]]:
    """START and END marks in the order of time; rows come in the order of their first mark."""
    table = recording.annotations
    marks: list[dict[str, Any]] = []
    open_: list[tuple[int, int, dict[str, Any]]] = []  # a heap; of equal ends the one opened last comes first

    def close(until: int) -> None:
        while open_ and open_[0][0] <= until:
            marks.append(heappop(open_)[2])

    for i in range(len(table)):
        start, end = int(table.start_us[i]), int(table.end_us[i])
        mark = {"name": recording.strings[table.name[i]], "device": int(table.device[i])}
        if start >= 0:
            close(start)
            marks.append({"stage": "START", **mark, "time_us": start})
            if end >= 0:
                heappush(open_, (end, -i, {"stage": "END", **mark, "time_us": end}))
        else:
            close(end)
            marks.append({"stage": "END", **mark, "time_us": end})
    close(2**63)
    return marks
