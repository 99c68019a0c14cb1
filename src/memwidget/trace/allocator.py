"""Block sizes to the byte.

Owns the rules by which torch's caching allocator turns a request into a block. Events carry requested bytes, torch's
counters count what was handed out; this file closes the gap by replaying the rules. It must not know about stacks,
curves or pictures.

Sources of the rules: c10/cuda/CUDACachingAllocator.cpp (`round_size`, `should_split`, `alloc_found_block`) and
c10/core/AllocatorConfig.h (`roundup_power2_divisions`), pytorch 2.1 to 2.14.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memwidget.recording import I64, MAX_TOTAL, SegmentBlocks, Segments
from memwidget.trace.segments import EXPANDABLE, within_addresses

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Every block is a multiple of this (kMinBlockSize).
MIN_BLOCK = 512
#: Requests up to this come from the small pool, and a remainder up to this stays with a large block (kSmallSize).
SMALL = 1 << 20
#: roundup_power2_divisions has one entry for each power of two from 1 MiB to 32 GiB.
_ROUNDUP_INTERVALS = 16


class BlockColumns(Protocol):
    """Block lifetimes by column name: a structured array, or columns side by side."""

    def __getitem__(self, name: str, /) -> NDArray[Any]: ...

    def __len__(self) -> int: ...


def rounded_sizes(requested: I64, settings: Mapping[str, Any]) -> I64:
    """Round requests as the allocator does (`round_size`).

    Parameters
    ----------
    requested : ndarray of int64, bytes
    settings : the recording's allocator settings; only ``roundup_power2_divisions`` matters.

    Returns
    -------
    ndarray of int64, bytes, same shape
    """
    rounded = (np.maximum(requested, 1) + (MIN_BLOCK - 1)) // MIN_BLOCK * MIN_BLOCK
    divisions = _divisions(settings)
    if divisions is None or not len(requested):
        return rounded
    log2 = np.zeros(len(requested), np.int64)
    positive = requested > 0
    log2[positive] = np.frexp(requested[positive].astype(np.float64))[1] - 1
    # float64 may round a request just below a power of two up to it; only past 2**53 bytes, which no device has.
    division = divisions[np.clip(log2 - 20, 0, _ROUNDUP_INTERVALS - 1)]
    apply = (division > 1) & (requested > MIN_BLOCK * division)
    size = requested[apply]
    step = (np.int64(1) << log2[apply]) >> (np.frexp(division[apply].astype(np.float64))[1] - 1)
    rounded[apply] = (size + step - 1) // step * step
    return rounded


def _divisions(settings: Mapping[str, Any]) -> I64 | None:
    """Divisions for each interval, or None when the setting is off."""
    table = settings.get("roundup_power2_divisions")
    if not isinstance(table, Mapping):
        return None
    values = [table.get(str(1 << i), 0) for i in range(_ROUNDUP_INTERVALS)]
    if not all(isinstance(v, int) and 0 <= v < 1 << 31 for v in values) or not any(values):
        return None
    return np.array(values, np.int64)


class SegmentMap:
    """Ordinary (not expandable) segments of one device as they come and go; starts at moment 0.

    Expandable ranges are left out on purpose: blocks in them are always exactly the rounded size.
    """

    def __init__(self, table: NDArray[Any]) -> None:
        ordinary = table[table["kind"] != EXPANDABLE]
        first = ordinary[ordinary["alloc_event"] < 0]
        self._sizes = dict(zip(first["address"].tolist(), first["size"].tolist(), strict=True))
        self._starts = sorted(self._sizes)
        columns = [ordinary[name].tolist() for name in ("alloc_event", "free_event", "address", "size")]
        rows = list(zip(*columns, strict=True))
        # A segment that is freed and reborn at one event (its free was lost) goes before it comes.
        self.changes = sorted(
            [(died, False, address, size) for _, died, address, size in rows if died >= 0]
            + [(born, True, address, size) for born, _, address, size in rows if born >= 0]
        )

    def change(self, row: tuple[int, bool, int, int]) -> None:
        """Apply one row of `changes`: (event, grew, address, size)."""
        _, grew, address, size = row
        if grew and address not in self._sizes:
            insort(self._starts, address)
        if grew:
            self._sizes[address] = size
        elif self._sizes.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]

    def end(self, address: int) -> int:
        """End of the segment that holds the address; -1 where none is known."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return -1
        start = self._starts[at]
        end = start + self._sizes[start]
        return end if address < end else -1


def block_sizes(
    blocks: BlockColumns, known: I64, segments: NDArray[Any], settings: Mapping[str, Any]
) -> tuple[I64, NDArray[np.bool_]]:
    """Bytes each block really took.

    Above 1 MiB, in an ordinary segment, a block takes the free room it was cut from whole when at most 1 MiB would be
    left over (or when the request is past ``max_split_size``). Free neighbours are always merged, so that room ends at
    the next live block or at the segment's end.

    Parameters
    ----------
    blocks : columns by name, address, requested, alloc_event, free_event
        One row a block lifetime; -1 for no event.
    known : ndarray of int64
        The size where the final segments tell it, else -1.
    segments : structured ndarray
        Lifetimes of the device's segments (`memwidget.trace.segments.SEGMENT_DTYPE`).

    Returns
    -------
    sizes : ndarray of int64, bytes
    guessed : ndarray of bool
        True where the rule needed a segment, or a neighbour, that the recording does not know.
    """
    sizes = rounded_sizes(blocks["requested"], settings)
    guessed = np.zeros(len(sizes), bool)
    large = np.flatnonzero(sizes > SMALL)
    # With expandable segments on, `should_split` splits off remainders of 512 bytes in every segment.
    if len(large) and not settings.get("expandable_segments", False):
        replay = _LargeReplay(blocks, large, sizes, known, settings)
        replay.run(SegmentMap(segments))
        # In no real history does every block take the same room; there the sum could pass what a number holds.
        if sum(replay.sizes) <= 2 * MAX_TOTAL:
            sizes[large], guessed[large] = replay.sizes, replay.guessed
    seen = known >= 0
    sizes[seen] = known[seen]
    guessed[seen] = False
    return within_addresses(blocks["address"], sizes), guessed


class _LargeReplay:
    """Allocations and frees above 1 MiB in event order, each sized by the room behind it.

    Blocks up to 1 MiB live in segments of their own (the small pool), so they never border on these. Plain lists and
    ints: one bisect a step, about 2 microseconds; numpy has nothing to offer where each step depends on the last.
    """

    def __init__(
        self, blocks: BlockColumns, large: NDArray[np.intp], rounded: I64, known: I64, settings: Mapping[str, Any]
    ) -> None:
        self._start: list[int] = blocks["address"][large].tolist()
        self._born: list[int] = blocks["alloc_event"][large].tolist()
        self._died: list[int] = blocks["free_event"][large].tolist()
        self._known: list[int] = known[large].tolist()
        self._rounded: list[int] = rounded[large].tolist()
        self.sizes: list[int] = rounded[large].tolist()
        self.guessed = [False] * len(self.sizes)
        limit = settings.get("max_split_size", -1)
        self._limit = limit if isinstance(limit, int) and 0 < limit < 1 << 62 else 1 << 62
        self._live: list[int] = []  # start addresses, ascending
        self._holder: dict[int, int] = {}  # start address -> block
        self._unsure: set[int] = set()  # from before the first event; may own a tail that looks like free room

    def run(self, segments: SegmentMap) -> None:
        """Walk the history."""
        first = [i for i, event in enumerate(self._born) if event < 0]
        for i in first:
            self._enter(i)
        self._unsure.update(i for i in first if self._known[i] < 0)
        for i in first:
            self._take_room(i, segments)
        # (event, order within the event: free, segment change, allocation; which)
        steps = [(event, 0, i) for i, event in enumerate(self._died) if event >= 0]
        steps += [(event, 2, i) for i, event in enumerate(self._born) if event >= 0]
        steps += [(row[0], 1, i) for i, row in enumerate(segments.changes)]
        steps.sort()
        for _, kind, i in steps:
            if kind == 0:
                self._leave(i)
            elif kind == 1:
                segments.change(segments.changes[i])
            else:
                if self._unsure:
                    self._settle_tail(self._start[i])
                self._enter(i)
                self._take_room(i, segments)

    def _enter(self, i: int) -> None:
        if self._start[i] not in self._holder:
            insort(self._live, self._start[i])
        self._holder[self._start[i]] = i

    def _leave(self, i: int) -> None:
        start = self._start[i]
        if self._holder.get(start) == i:
            del self._holder[start], self._live[bisect_left(self._live, start)]
        if i in self._unsure:
            self.guessed[i] = True
            self._unsure.discard(i)

    def _take_room(self, i: int, segments: SegmentMap) -> None:
        if self._known[i] >= 0:
            return
        start, wanted = self._start[i], self._rounded[i]
        end = segments.end(start)
        if end < 0:
            self.guessed[i] = True
            return
        at = bisect_right(self._live, start)
        room = (min(end, self._live[at]) if at < len(self._live) else end) - start
        if wanted <= room and (room - wanted <= SMALL or wanted >= self._limit):
            self.sizes[i] = room
            self._unsure.discard(i)

    def _settle_tail(self, start: int) -> None:
        """A block begins within 1 MiB behind an older one: what lies between was the older one's all along.

        Free room in a large segment is never that small, since remainders up to 1 MiB are not split off.
        """
        at = bisect_left(self._live, start) - 1
        if at < 0:
            return
        older = self._holder[self._live[at]]
        if older in self._unsure and 0 <= start - self._start[older] - self._rounded[older] <= SMALL:
            self.sizes[older] = start - self._start[older]
            self._unsure.discard(older)


def final_state(segments: Segments, blocks: SegmentBlocks, device: int) -> tuple[Segments, SegmentBlocks]:
    """Only one device's rows, segment rows renumbered and both sorted by address."""
    rows = np.flatnonzero(segments.device == device)
    rows = rows[np.argsort(segments.address[rows], kind="stable")]
    renumber = np.full(len(segments) + 1, -1, np.int32)
    renumber[rows] = np.arange(len(rows))
    mine = np.flatnonzero(renumber[blocks.segment] >= 0)
    mine = mine[np.argsort(blocks.address[mine], kind="stable")]
    picked = Segments(**{c.name: getattr(segments, c.name)[rows] for c in Segments.columns()})
    inside = SegmentBlocks(**{c.name: getattr(blocks, c.name)[mine] for c in SegmentBlocks.columns()})
    inside.segment = renumber[inside.segment]
    picked.size = within_addresses(picked.address, picked.size)
    inside.size = within_addresses(inside.address, inside.size)
    return picked, inside
