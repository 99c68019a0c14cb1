"""A snapshot that was taken while another thread allocated.

torch writes down the history first and the segments after it, each under the allocator's lock, but with a gap between:
what happens in the gap is in the segments alone. The allocator's own counts tell that something happened. A second
snapshot's history then holds the gap, and is cut where it agrees with the first one's segments: nothing is lost.

Owns that repair; it must not know how a snapshot is read.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

_COUNTS = ("allocation.all.allocated", "allocation.all.freed", "active.all.freed", "segment.all.allocated")
#: State of an address after an event, and before it.
_AFTER = {"alloc": "live", "free_requested": "pending", "free_completed": "free"}
_BEFORE = {"alloc": "free", "free_requested": "live", "free_completed": "pending"}
_RESERVES = {"segment_alloc": True, "segment_map": True, "segment_free": False, "segment_unmap": False}
_STATES = {"active_allocated": "live", "active_pending_free": "pending", "active_awaiting_free": "pending"}


def counts(device: Any) -> tuple[int, ...] | None:
    """How often the allocator has done anything, all devices; None where torch does not tell."""
    if not hasattr(device, "memory_stats"):
        return None
    stats = [device.memory_stats(ordinal) for ordinal in range(device.device_count())]
    return tuple(int(each.get(count, 0)) for each in stats for count in _COUNTS)


def joined(first: dict[str, Any], second: dict[str, Any], since_us: int) -> dict[str, Any]:
    """The second snapshot's history up to where the first one's segments were written down.

    Parameters
    ----------
    since_us : int
        A time before the first snapshot, on the clock of the events.
    """
    segments = first.get("segments", ())
    traces = [
        trace[: _agrees(trace, [s for s in segments if s.get("device", 0) == device], since_us)]
        for device, trace in enumerate(second.get("device_traces", ()))
    ]
    return {**second, "segments": segments, "device_traces": traces}


def _agrees(trace: list[dict[str, Any]], segments: list[dict[str, Any]], since_us: int) -> int:
    """How many events had happened when the segments were written down: where most addresses agree, the last such."""
    start = len(trace)
    while start and trace[start - 1].get("time_us", 0) >= since_us:
        start -= 1
    found = {
        (False, block["address"]): _STATES.get(block.get("state", ""), "free")
        for segment in segments
        for block in segment.get("blocks", ())
        if "address" in block
    }
    ranges = sorted((segment["address"], segment["address"] + segment["total_size"]) for segment in segments)

    def wanted(key: tuple[bool, int]) -> Any:
        if not key[0]:
            return found.get(key, "free")
        at = bisect_right(ranges, (key[1], 1 << 65)) - 1
        return at >= 0 and key[1] < ranges[at][1]

    changes = [_change(event) for event in trace[start:]]
    state: dict[tuple[bool, int], Any] = {}
    for change in changes:
        if change is not None:
            state.setdefault(change[0], change[1])
    wrong = sum(value != wanted(key) for key, value in state.items())
    best, least = start, wrong
    for index, change in enumerate(changes, start + 1):
        if change is None:
            continue
        key, _, after = change
        wrong += (after != wanted(key)) - (state[key] != wanted(key))
        state[key] = after
        if wrong <= least:
            best, least = index, wrong
    return best


def _change(event: dict[str, Any]) -> tuple[tuple[bool, int], Any, Any] | None:
    """What an event changes: (of a segment, address), before, after."""
    action, address = event.get("action", ""), event.get("addr", 0)
    if action in _AFTER:
        return (False, address), _BEFORE[action], _AFTER[action]
    if action in _RESERVES:
        return (True, address), not _RESERVES[action], _RESERVES[action]
    return None
