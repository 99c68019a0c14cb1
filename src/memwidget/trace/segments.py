"""Segments over time, and the address map at any moment.

Owns the lifetimes of segments (ordinary ones and the mapped ranges of expandable ones) and the answer to "which block
or hole lies at which address at moment m". It must not know how block sizes were found, nor stacks' meaning.

An expandable segment grows and shrinks by mapped ranges, which are kept as pieces; an unmap may cut a piece::

    event 4   map    0x1000 .. 0x9000     piece A [0x1000, 0x9000) from 4 on
    event 9   unmap  0x5000 .. 0x7000     A [0x1000, 0x5000) from 4 on,  B [0x5000, 0x7000) 4..9,  C [0x7000, 0x9000)
    at 10     two segments: A and C;      at 9 one segment: A, B and C joined
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memwidget.recording import ACTION, I64, Events, Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL, LARGE, EXPANDABLE = 0, 1, 2
KINDS = ("small", "large", "expandable")

Stretch = Literal["allocated", "pending free", "free"]
STRETCH_STATES: tuple[Stretch, ...] = ("allocated", "pending free", "free")

#: Pieces in one bucket of `_Pieces`.
_BUCKET = 1000
#: Segments for requests up to 1 MiB have exactly this size (kSmallBuffer); those for larger ones have at least 10 MiB.
SMALL_SEGMENT = 2 << 20
#: Expandable segments for larger requests map pages of this size (kLargeBuffer), the others of SMALL_SEGMENT.
LARGE_PAGE = 20 << 20

#: One row a segment's (or mapped piece's) lifetime; -1 for no event, no stack, unknown pool.
SEGMENT_DTYPE = np.dtype(
    [
        ("address", np.uint64),
        ("size", np.int64),
        ("stream", np.int32),
        ("pool", np.int32),
        ("kind", np.uint8),
        ("alloc_event", np.int32),
        ("free_event", np.int32),
        ("stack", np.int32),
    ]
)


@dataclass(frozen=True)
class BlockState:
    """A stretch of a segment at one moment; `block` is its id, -1 for a hole."""

    address: int
    size: int
    requested: int
    state: Stretch
    block: int


@dataclass(frozen=True)
class SegmentState:
    """A segment at one moment, its blocks and holes in address order without gaps."""

    address: int
    size: int
    stream: int
    pool: tuple[int, int] | None
    kind: str
    blocks: tuple[BlockState, ...]


@dataclass(frozen=True)
class AllocatorState:
    """Every segment at one moment, by address."""

    moment: int
    segments: tuple[SegmentState, ...]


def segment_lifetimes(events: Events, final: Segments) -> NDArray[Any]:
    """Every segment and mapped piece of one device, from its history and its final segments.

    Returns
    -------
    structured ndarray of SEGMENT_DTYPE, by alloc_event, then address
    """
    rows = _ordinary(events, final) + _expandable(events, final)
    table = np.array(rows, SEGMENT_DTYPE) if rows else np.zeros(0, SEGMENT_DTYPE)
    return table[np.lexsort((table["address"], table["alloc_event"]))]


def within_addresses(address: NDArray[np.uint64], size: I64) -> I64:
    """Sizes, cut where a stretch would go past the last address: no allocator made it, and its end would wrap."""
    room = np.uint64(2**64 - 1) - address
    cut: I64 = np.minimum(size.astype(np.uint64), room).astype(np.int64)
    return cut


_Row = tuple[int, int, int, int, int, int, int, int]


def _rows_of(events: Events, *actions: str) -> list[tuple[int, bool, int, int, int, int, int]]:
    """(event, whether it is the first of the actions, address, size, stream, pool, stack) of some actions, in order."""
    codes = [ACTION[action] for action in actions]
    at = np.flatnonzero(np.isin(events.action, codes))
    size = within_addresses(events.address[at], events.size[at])
    columns = (events.stream, events.pool, events.stack)
    return list(
        zip(
            at.tolist(),
            (events.action[at] == codes[0]).tolist(),
            events.address[at].tolist(),
            size.tolist(),
            *(c[at].tolist() for c in columns),
            strict=True,
        )
    )


def _final_rows(final: Segments, *, expandable: bool) -> list[tuple[int, int, int, int, int, int]]:
    """(address, size, stream, pool, kind, stack) of the final segments of one sort."""
    at = np.flatnonzero((final.expandable != 0) == expandable)
    kind = np.where(final.expandable[at] != 0, EXPANDABLE, np.where(final.small[at] != 0, SMALL, LARGE))
    columns = (final.address[at], final.size[at], final.stream[at], final.pool[at], kind, final.stack[at])
    return list(zip(*(c.tolist() for c in columns), strict=True))


def _ordinary(events: Events, final: Segments) -> list[_Row]:
    rows: list[_Row] = []
    open_: dict[int, _Row] = {}
    for event, grew, address, size, stream, pool, stack in _rows_of(events, "segment_alloc", "segment_free"):
        before = open_.pop(address, None)
        kind = SMALL if size == SMALL_SEGMENT else LARGE
        if before is not None:
            rows.append((*before[:6], event, before[7]))
        elif not grew:
            rows.append((address, size, stream, pool, kind, -1, event, -1))
        if grew:
            open_[address] = (address, size, stream, pool, kind, event, -1, stack)
    for address, size, stream, pool, kind, stack in _final_rows(final, expandable=False):
        seen = open_.pop(address, None)
        if seen is None:
            rows.append((address, size, stream, pool, kind, -1, -1, stack))
        else:
            own = seen[7] if seen[7] >= 0 else stack
            rows.append((address, size, stream, pool, kind, seen[5], -1, own))
    return rows + list(open_.values())


class _Pieces:
    """Mapped pieces now, by address, none overlapping.

    Start addresses stand in buckets: in one long list each change would move all that follows.
    """

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._buckets: list[list[int]] = [[]]
        self._firsts: list[int] = [-1]  # of each bucket, a number not above its smallest

    def rows(self) -> list[_Row]:
        """All pieces, by address."""
        return [self._rows[start] for bucket in self._buckets for start in bucket]

    def add(self, row: _Row) -> None:
        """Put a piece in; one that starts there already (in a file that contradicts itself) goes."""
        known = row[0] in self._rows
        self._rows[row[0]] = row
        if known:
            return
        at = bisect_right(self._firsts, row[0]) - 1
        bucket = self._buckets[at]
        insort(bucket, row[0])
        if len(bucket) > _BUCKET:
            half = len(bucket) // 2
            self._buckets[at : at + 1] = [bucket[:half], bucket[half:]]
            self._firsts.insert(at + 1, bucket[half])

    def around(self, lo: int, hi: int) -> list[_Row]:
        """Pieces that start in [lo, hi), and the one before."""
        found = []
        at = bisect_right(self._firsts, lo) - 1
        first = bisect_right(self._buckets[at], lo) - 1
        back = at
        while first < 0 and back:  # buckets before may be empty
            back -= 1
            first = len(self._buckets[back]) - 1
        if first >= 0 and self._buckets[back][first] < lo:
            found.append(self._buckets[back][first])
        while at < len(self._buckets) and self._firsts[at] < hi:
            bucket = self._buckets[at]
            found += bucket[bisect_left(bucket, lo) : bisect_left(bucket, hi)]
            at += 1
        return [self._rows[start] for start in found]

    def cut(self, lo: int, hi: int) -> list[_Row]:
        """Take [lo, hi) out; returns what was there, cut to it."""
        taken = []
        for row in self.around(lo, hi):
            start, end = row[0], row[0] + row[1]
            inside = (max(start, lo), min(end, hi))
            if inside[0] >= inside[1]:
                continue
            self._remove(start)
            taken.append((inside[0], inside[1] - inside[0], *row[2:]))
            if start < lo:
                self.add((start, lo - start, *row[2:]))
            if end > hi:
                self.add((hi, end - hi, *row[2:]))
        return taken

    def _remove(self, start: int) -> None:
        del self._rows[start]
        at = bisect_right(self._firsts, start) - 1
        bucket = self._buckets[at]
        del bucket[bisect_left(bucket, start)]
        if not bucket and at:
            del self._buckets[at], self._firsts[at]


def _expandable(events: Events, final: Segments) -> list[_Row]:
    changes = _rows_of(events, "segment_map", "segment_unmap")
    ends = _final_rows(final, expandable=True)
    if not changes and not ends:
        return []
    # Backward from the end to what was mapped at the start.
    start = _Pieces()
    for address, size, stream, pool, _, stack in ends:
        start.add((address, size, stream, pool, EXPANDABLE, -1, -1, stack))
    for _, grew, address, size, stream, pool, _ in reversed(changes):
        start.cut(address, address + size)
        if not grew:
            start.add((address, size, stream, pool, EXPANDABLE, -1, -1, -1))
    # Forward again, as lifetimes.
    now, rows = start, []
    for event, grew, address, size, stream, pool, stack in changes:
        gone = now.cut(address, address + size)
        rows += [(*piece[:6], event, piece[7]) for piece in gone]
        if grew:
            now.add((address, size, stream, pool, EXPANDABLE, event, -1, stack))
    rows += now.rows()
    pools = _Pieces()
    for address, size, stream, pool, _, stack in ends:
        pools.add((address, size, stream, pool, EXPANDABLE, -1, -1, stack))
    return [(*row[:3], row[3] if row[3] >= 0 else _pool_at(pools, row[0]), *row[4:]) for row in rows]


def _pool_at(pools: _Pieces, address: int) -> int:
    """Pool of the final mapped range around an address, for histories whose events do not name it."""
    row = next((r for r in pools.around(address, address + 1) if r[0] <= address < r[0] + r[1]), None)
    return row[3] if row is not None else -1


def live_segments(table: NDArray[Any], moment: int) -> NDArray[Any]:
    """Segments at a moment, by address; adjoining pieces of one expandable segment joined."""
    alive = (table["alloc_event"] < moment) & ((table["free_event"] < 0) | (table["free_event"] >= moment))
    found = table[alive]
    found = found[np.argsort(found["address"], kind="stable")]
    if not (found["kind"] == EXPANDABLE).any():
        return found
    ends = found["address"] + found["size"].astype(np.uint64)
    joined = np.zeros(len(found), bool)
    joined[1:] = (
        (found["address"][1:] == ends[:-1])
        & (found["kind"][1:] == EXPANDABLE)
        & (found["kind"][:-1] == EXPANDABLE)
        & (found["stream"][1:] == found["stream"][:-1])
        & ((found["pool"][1:] == found["pool"][:-1]) | (found["pool"][1:] < 0) | (found["pool"][:-1] < 0))
    )
    heads = np.flatnonzero(~joined)
    merged = found[heads]
    merged["size"] = np.add.reduceat(found["size"], heads)
    merged["pool"] = np.maximum.reduceat(found["pool"], heads)  # a piece that is gone at the end may not know its pool
    return merged


def address_map(
    table: NDArray[Any], blocks: NDArray[Any], live: NDArray[Any], pending: NDArray[Any], moment: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Segments, and the stretches that fill them, as columns.

    Parameters
    ----------
    live, pending : ids of the blocks allocated, and of those pending, at the moment

    Returns
    -------
    segments : structured ndarray of SEGMENT_DTYPE
    stretches : structured ndarray with segment (row), address, size, state (0 allocated, 1 pending free, 2 free), block
        By address, gap-free; a block whose segment is unknown has segment -1.
    """
    segments = live_segments(table, moment)
    ids = np.concatenate([live, pending])
    state = np.repeat(np.array([0, 1], np.uint8), [len(live), len(pending)])
    order = np.argsort(blocks["address"][ids], kind="stable")
    ids, state = ids[order], state[order]
    address, size = blocks["address"][ids], blocks["size"][ids]
    ends = segments["address"] + segments["size"].astype(np.uint64)
    holder = np.searchsorted(segments["address"], address, side="right") - 1
    if len(segments):
        holder[(holder >= 0) & (address >= ends[np.maximum(holder, 0)])] = -1

    # A hole lies where the next thing begins behind the end of the last: before a block, or at a segment's end.
    inside = holder >= 0
    block_start, block_end = address[inside], address[inside] + size[inside].astype(np.uint64)
    points = np.concatenate([block_start, ends])  # where a hole may end
    segment_of = np.concatenate([holder[inside], np.arange(len(segments))])
    by = np.lexsort((points, segment_of))
    points, segment_of = points[by], segment_of[by]
    own_end = np.concatenate([block_end, ends])[by]
    hole_start = np.empty(len(points), np.uint64)
    hole_start[1:] = own_end[:-1]
    first = np.ones(len(points), bool)
    first[1:] = segment_of[1:] != segment_of[:-1]
    hole_start[first] = segments["address"][segment_of[first]]
    hole = points > hole_start

    dtype = [
        ("segment", np.int32),
        ("address", np.uint64),
        ("size", np.int64),
        ("state", np.uint8),
        ("block", np.int64),
    ]
    stretches = np.zeros(len(ids) + int(hole.sum()), dtype)
    n = len(ids)
    stretches["segment"][:n], stretches["address"][:n], stretches["size"][:n] = holder, address, size
    stretches["state"][:n], stretches["block"][:n] = state, ids
    stretches["segment"][n:], stretches["address"][n:] = segment_of[hole], hole_start[hole]
    stretches["size"][n:] = (points[hole] - hole_start[hole]).astype(np.int64)
    stretches["state"][n:], stretches["block"][n:] = 2, -1
    return segments, stretches[np.lexsort((stretches["address"], stretches["segment"]))]


def allocator_state(
    moment: int, segments: NDArray[Any], stretches: NDArray[Any], requested: NDArray[Any], pools: list[tuple[int, int]]
) -> AllocatorState:
    """`address_map` as objects."""
    inside: list[list[BlockState]] = [[] for _ in range(len(segments))]
    for segment, address, size, state, block in stretches.tolist():
        if segment >= 0:
            wanted = int(requested[block]) if block >= 0 else 0
            inside[segment].append(BlockState(address, size, wanted, STRETCH_STATES[state], block))
    return AllocatorState(
        moment,
        tuple(
            SegmentState(address, size, stream, pools[pool] if pool >= 0 else None, KINDS[kind], tuple(blocks))
            for (address, size, stream, pool, kind, _, _, _), blocks in zip(segments.tolist(), inside, strict=True)
        ),
    )
