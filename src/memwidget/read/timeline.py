"""torch.profiler's memory timelines -> Recording.

Owns the two formats of ``export_memory_timeline``, neither of which has addresses, stacks or the device's name:

``.json``      ``[times, sizes]``: bytes by category whenever they change. There are no blocks in it, so each category's
               curve is cut into level slabs, and each slab drawn as a block: the bytes between two heights, from the
               rise above the lower one to the fall below it. Slabs of a category add up to its curve exactly.
``.raw.json``  rows (time in ns, action, bytes, category); negative bytes are removals. Each is paired with the youngest
               block of the same size and category: a guess. Where torch changes what it calls a piece of memory, one
               block ends and another begins at its address.

torch counts eight categories, in this order: parameter, optimizer state, input, temporary, activation, gradient,
autograd detail, unknown.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.read.jsonstream import Stream, damaged
from memwidget.recording import (
    ACTION,
    CATEGORIES,
    RAW_TIMELINE,
    SAMPLED,
    TORCH_CATEGORIES,
    Events,
    Labels,
    Recording,
    SnapshotError,
)

if TYPE_CHECKING:
    from memwidget.recording import I64

#: torch's categories in the order of its files, as codes of ours.
TORCH_ORDER = tuple(CATEGORIES.index(name) for name in TORCH_CATEGORIES)
_UNKNOWN = CATEGORIES.index("unknown")
#: Bytes and times of a real file are far below; sums of as many rows as a file can hold stay below 2**63.
MAX_BYTES = 1 << 44
MAX_TOTAL = 1 << 61
MAX_TIME_NS = 1 << 62
#: Where the addresses of blocks that have none are counted from, so that no two of them are alike.
_STEP = 512
_PREEXISTING, _RENAME, _DESTROY = 1, 3, 4
_ALLOC, _FREE = ACTION["alloc"], ACTION["free_requested"]


class _Rows:
    """Events and the category of each block, as they are found."""

    def __init__(self) -> None:
        self.action, self.category, self.time = array("B"), array("B"), array("q")
        self.address, self.size, self.order = array("Q"), array("q"), array("q")
        self._last = 0
        self._total = 0

    def new_address(self) -> int:
        """An address for a block whose file has none."""
        self._last += _STEP
        return self._last

    def add(self, action: int, time: int, address: int, size: int, category: int = _UNKNOWN) -> int:
        """Append an event; returns its index."""
        self._total += size
        if self._total > MAX_TOTAL:
            raise SnapshotError("The sizes in this memory timeline add up to more than any machine has.")
        self.order.append(len(self.action))
        for column, value in (
            (self.action, action),
            (self.category, category),
            (self.time, time),
            (self.address, address),
            (self.size, size),
        ):
            column.append(value)
        return len(self.action) - 1

    def split(self, event: int, size: int) -> int:
        """Take `size` bytes off an allocation and give them to a second one beside it; returns that one's address."""
        self.size[event] -= size
        address = self.new_address()
        twin = self.add(_ALLOC, self.time[event], address, size, self.category[event])
        self.order[twin] = self.order[event]
        return address

    def recording(self, name: str, device_type: str, source: str, notes: list[str]) -> Recording:
        """Put it all into columns."""
        order = np.argsort(np.array(self.order, np.int64), kind="stable")
        category = np.array(self.category, np.uint8)[order]
        events: Events = Events.empty(len(order))
        for column in ("action", "address", "size"):
            setattr(events, column, np.array(getattr(self, column), getattr(events, column).dtype)[order])
        events.time_us = np.array(self.time, np.int64)[order]
        known = np.flatnonzero(category != _UNKNOWN)
        labels: Labels = Labels.empty(len(known))
        labels.address, labels.time_us, labels.category = events.address[known], events.time_us[known], category[known]
        labels.how[:] = SAMPLED.index("profiler")
        return Recording(
            name=name,
            device_type=device_type or "cuda",
            events={0: events},
            labels=labels,
            facts={"source": source, "sizes": "taken", "context": "none"},
            notes=notes + ([] if device_type else [_NO_DEVICE]),
        )


_EARLIER = "What existed before the profiler started is drawn as allocated at its first event."
_NO_DEVICE = "The file does not say which device it is about; it is shown as a GPU."


def read_timeline(stream: Stream, name: str, device_type: str) -> Recording:
    """Read ``[times, sizes]``."""
    stream.take("[")
    times = array("q")
    for time in stream.scalars():
        if type(time) is not int or not 0 <= time <= MAX_TIME_NS // 1000:
            raise _bad(f"times[{len(times)}]", "a time in microseconds")
        times.append(time)
    if not stream.take(","):
        damaged()
    rows = _Rows()
    levels = [0] * len(TORCH_ORDER)
    slabs: list[list[int]] = [[] for _ in TORCH_ORDER]  # by category, lowest first: the event that allocated it
    n = 0
    for row in stream.elements():
        if n == len(times):
            raise _bad("sizes", f"{n:,} rows, one for each time")
        new = _levels(row, n)
        # What falls makes room before anything rises, or the sum would pass through a peak that never was.
        for place, level in enumerate(new):
            if level < levels[place]:
                _fall(rows, times[n], slabs[place], levels[place] - level)
        for place, level in enumerate(new):
            if level > levels[place]:
                rise, address = level - levels[place], rows.new_address()
                slabs[place].append(rows.add(_ALLOC, times[n], address, rise, TORCH_ORDER[place]))
        levels, n = new, n + 1
    if n != len(times):
        raise _bad("sizes", f"{len(times):,} rows, one for each time")
    if not stream.take("]"):
        damaged()
    stream.end()
    return rows.recording(
        name,
        device_type,
        "torch.profiler timeline",
        [
            (
                "This file holds bytes by category, no blocks, lines or addresses: each block drawn is a slab of one "
                "category's curve, from the rise above its lower edge to the fall below it."
            ),
            _EARLIER,
        ],
    )


def _levels(row: Any, at: int) -> list[int]:
    """Bytes by category of one row, whose first number torch always leaves 0."""
    if not isinstance(row, list) or len(row) != len(TORCH_ORDER) + 1:
        raise _bad(f"sizes[{at}]", f"{len(TORCH_ORDER) + 1} numbers")
    for level in row:
        if type(level) is not int or abs(level) > MAX_BYTES:
            raise _bad(f"sizes[{at}]", "bytes by category")
    return [max(level, 0) for level in row[1:]]


def _fall(rows: _Rows, time: int, slabs: list[int], by: int) -> None:
    """End the uppermost slabs of a category. One that ends only in part was two from the start."""
    while by > 0:
        size = rows.size[slabs[-1]]
        if size > by:
            rows.add(_FREE, time, rows.split(slabs[-1], by), by)
            return
        rows.add(_FREE, time, rows.address[slabs.pop()], size)
        by -= size


def read_raw(stream: Stream, name: str, device_type: str) -> Recording:
    """Read rows of (time in ns, action, bytes, category)."""
    table = array("q")
    for at, row in enumerate(stream.elements()):
        if not isinstance(row, list) or len(row) != 4 or any(type(number) is not int for number in row):
            raise _bad(f"row {at}", "four numbers: time, action, bytes, category")
        time, action, size, category = row
        if not (-1 <= time <= MAX_TIME_NS and abs(size) <= MAX_BYTES and 0 <= category < len(TORCH_ORDER)):
            raise _bad(f"row {at}", "a time in ns, an action, bytes and a category from 0 to 7")
        if not _PREEXISTING <= action <= _DESTROY:
            raise _bad(f"row {at}", "an action from 1 to 4")
        table.extend(row)
    stream.end()
    found = np.array(table, np.int64).reshape(-1, 4)
    rows = _Rows()
    earlier, orphans = _pair(rows, found)
    notes = [
        (
            "This file has no addresses: each removal is paired with the youngest block of its size and category, "
            "a guess; there are no lines either."
        ),
        (
            "Where the profiler calls the same memory by another category from some moment on, one block ends there "
            "and another begins at its address."
        ),
    ]
    if earlier:
        notes.append(_EARLIER)
    if orphans:
        notes.append(f"{orphans:,} removals fit no block in the file; what they removed is drawn from the start.")
    return rows.recording(name, device_type, RAW_TIMELINE, notes)


def _pair(rows: _Rows, found: I64) -> tuple[int, int]:
    """Rows of a raw timeline as blocks; how many existed before, and how many removals fit none."""
    known = found[found[:, 0] >= 0, 0]
    start = int(known.min()) // 1000 if len(known) else 0
    live: dict[tuple[int, int], list[int]] = {}  # size and category -> events that allocated, youngest last
    earlier = orphans = 0
    table = found.tolist()
    renamed = -1  # the event of the memory that this row gives another category
    for at, (time_ns, action, size, category) in enumerate(table):
        time = start if time_ns < 0 else time_ns // 1000
        mine = live.setdefault((abs(size), category), [])
        if size > 0:
            if renamed >= 0 and rows.time[renamed] == time:  # too early to have been anything else
                rows.category[renamed] = TORCH_ORDER[category]
            else:
                address = rows.new_address() if renamed < 0 else rows.address[renamed]
                renamed = rows.add(_ALLOC, time, address, size, TORCH_ORDER[category])
            mine.append(renamed)
            renamed = -1
            earlier += action == _PREEXISTING
        elif size < 0:
            follows = table[at + 1] if at + 1 < len(table) else [0, 0, 0, 0]
            if action == _RENAME and mine and follows[1:3] == [_RENAME, -size]:
                if follows[3] == category:
                    follows[2] = 0  # the same memory under the same name: nothing happened
                else:
                    renamed = mine.pop()
                continue
            orphans += not mine
            rows.add(_FREE, time, rows.address[mine.pop()] if mine else rows.new_address(), -size)
    return earlier, orphans


def _bad(where: str, expected: str) -> SnapshotError:
    return SnapshotError(f"{where} of the memory timeline should be {expected}; export it again.")
