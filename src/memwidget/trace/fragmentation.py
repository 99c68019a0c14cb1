"""How much reserved memory is free, and whom it can serve.

Owns the numbers: at one moment from the address map, and over a run from what was reserved although room lay around. It
must not know how they are told to a person.

A request can only be served by a hole of its own pool, of its own stream and of its own size class (up to 1 MiB, or
above) that is large enough. Every free byte therefore falls into exactly one of: usable, too small, other stream,
other pool, other size class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memwidget.recording import ACTION, Events
from memwidget.trace.allocator import SMALL as SMALL_REQUEST
from memwidget.trace.segments import EXPANDABLE, LARGE_PAGE, SMALL, SMALL_SEGMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I64


class Request(NamedTuple):
    """What free memory is judged against: bytes, stream and pool (rows of the recording's tables, -1 unknown)."""

    size: int
    stream: int
    pool: int


class HoleClass(NamedTuple):
    """Holes of up to `size` bytes (a power of two) and above half of it."""

    size: int
    n_holes: int
    bytes: int


@dataclass(frozen=True)
class Fragmentation:
    """Free memory at one moment, in bytes.

    Attributes
    ----------
    free : int
        Reserved and in no block: ``usable + too_small + other_stream + other_pool + other_class``.
    pending : int
        In blocks whose free is requested but not completed.
    rounding : int
        Taken beyond what was requested, by blocks allocated or pending.
    releasable : int
        What ``empty_cache()`` would give back: segments that are wholly free, and the whole pages of an expandable
        segment's holes; nothing of private pools, which keep theirs while their owner lives.
    largest_hole : int
    holes : tuple of HoleClass
        By size, smallest first.
    request : Request
        The request judged against: the one that failed, or the largest block live at the peak.
    usable, too_small, other_stream, other_pool, other_class : int
    """

    moment: int
    reserved: int
    free: int
    pending: int
    rounding: int
    releasable: int
    largest_hole: int
    holes: tuple[HoleClass, ...]
    request: Request
    usable: int
    too_small: int
    other_stream: int
    other_pool: int
    other_class: int

    @property
    def unusable_share(self) -> float:
        """Share of the free bytes that cannot serve the request; 0.0 where nothing is free."""
        return 1 - self.usable / self.free if self.free else 0.0


class Growth(NamedTuple):
    """Memory taken from the device although at least the request's bytes lay free in its own pool and stream."""

    event: int
    reserved: int
    request: int
    free: int


def fragmentation(
    moment: int,
    segments: NDArray[Any],
    stretches: NDArray[Any],
    requested: I64,
    request: Request,
    *,
    default_pool: int,
) -> Fragmentation:
    """Judge the address map (see `memwidget.trace.segments.address_map`) of one moment.

    `default_pool` is a row of the recording's pools, -1 where none of its segments names it.
    """
    known = stretches[stretches["segment"] >= 0]
    holes = known[known["state"] == 2]
    taken = known[known["state"] < 2]
    home = segments[holes["segment"]]
    size = holes["size"]
    small_home = _is_small(home)
    other_pool = (home["pool"] != request.pool) & (home["pool"] >= 0) & (request.pool >= 0)
    other_stream = ~other_pool & (home["stream"] != request.stream) & (request.stream >= 0)
    other_class = ~other_pool & ~other_stream & (small_home != (request.size <= SMALL_REQUEST))
    too_small = ~other_pool & ~other_stream & ~other_class & (size < request.size)
    usable = ~(other_pool | other_stream | other_class | too_small)
    back = np.where(home["kind"] == EXPANDABLE, _whole_pages(holes, home), np.where(size == home["size"], size, 0))
    private = (home["pool"] >= 0) & (home["pool"] != default_pool)
    return Fragmentation(
        moment=moment,
        reserved=int(segments["size"].sum()),
        free=int(size.sum()),
        pending=int(known["size"][known["state"] == 1].sum()),
        rounding=int((taken["size"] - requested[taken["block"]]).sum()),
        releasable=int(back[~private].sum()),
        largest_hole=int(size.max(initial=0)),
        holes=_classes(size),
        request=request,
        usable=int(size[usable].sum()),
        too_small=int(size[too_small].sum()),
        other_stream=int(size[other_stream].sum()),
        other_pool=int(size[other_pool].sum()),
        other_class=int(size[other_class].sum()),
    )


def _is_small(segments: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether segments serve requests up to 1 MiB; expandable ones map 2 MiB pages for those, 20 MiB for larger."""
    pages = (segments["size"] % LARGE_PAGE != 0) & (segments["size"] % SMALL_SEGMENT == 0)
    small: NDArray[np.bool_] = np.where(segments["kind"] == EXPANDABLE, pages, segments["kind"] == SMALL)
    return small


def _whole_pages(holes: NDArray[Any], home: NDArray[Any]) -> I64:
    """Bytes of the pages that lie wholly in a hole of an expandable segment: each can be unmapped by itself.

    Pages have 2 MiB in segments for requests up to 1 MiB, else 20 MiB, counted from the segment's start.
    """
    page = np.where(_is_small(home), SMALL_SEGMENT, LARGE_PAGE)
    start = (holes["address"] - home["address"]).astype(np.int64)
    first, last = -(-start // page), (start + holes["size"]) // page
    pages: I64 = np.maximum(last - first, 0) * page
    return pages


def _classes(size: I64) -> tuple[HoleClass, ...]:
    power = np.int64(1) << np.ceil(np.log2(np.maximum(size, 1).astype(np.float64))).astype(np.int64)
    found, inverse = np.unique(power, return_inverse=True)
    counts = np.bincount(inverse, minlength=len(found))
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, inverse, size)
    return tuple(HoleClass(int(p), int(c), int(b)) for p, c, b in zip(found, counts, sums, strict=True))


def growth_despite_room(
    events: Events, segments: NDArray[Any], blocks: NDArray[Any], default_pool: int
) -> tuple[Growth, ...]:
    """Every time that memory was reserved while the request would have fitted into the sum of its own pool's holes.

    Linear in events for each group of pool, stream and size class; there are few of those. A segment that is gone at
    the end may not tell its pool: it counts as `default_pool`'s (row of the recording's pools, -1 for none).
    """
    grow = np.flatnonzero(np.isin(events.action, [ACTION["segment_alloc"], ACTION["segment_map"]]))
    allocs = np.flatnonzero(events.action == ACTION["alloc"])
    at = np.searchsorted(allocs, grow)
    served = at < len(allocs)  # a segment without a following request belongs to one that failed
    grow, cause = grow[served], allocs[at[served]]
    block_of = np.full(len(events), -1, np.int64)
    born = blocks["alloc_event"] >= 0
    block_of[blocks["alloc_event"][born]] = np.flatnonzero(born)
    cause_block = block_of[cause]

    block_pool, segment_pool = (np.where(t["pool"] < 0, default_pool, t["pool"]) for t in (blocks, segments))
    block_group = _groups(block_pool, blocks["stream"], blocks["size"] <= SMALL_REQUEST)
    segment_group = _groups(segment_pool, segments["stream"], _is_small(segments))
    found: list[Growth] = []
    groups = block_group[cause_block]
    for group in np.unique(groups):
        mine = groups == group
        moments = grow[mine]
        reserved = _running(segments, segment_group == group, "free_event", moments)
        active = _running(blocks, block_group == group, "free_event", moments)
        free, size = reserved - active, blocks["size"][cause_block[mine]]
        rows = np.flatnonzero(free >= size)
        found += [
            Growth(int(moments[i]), int(events.size[moments[i]]), int(size[i]), int(free[i])) for i in rows.tolist()
        ]
    return tuple(sorted(found))


def _groups(pool: NDArray[Any], stream: NDArray[Any], small: NDArray[Any]) -> I64:
    """One number for each (pool, stream, size class)."""
    return ((pool.astype(np.int64) + 1) << 32) + ((stream.astype(np.int64) + 1) << 1) + small.astype(np.int64)


def _running(table: NDArray[Any], mask: NDArray[np.bool_], end: str, moments: NDArray[Any]) -> I64:
    """Bytes of the masked lifetimes alive at each moment."""
    rows = table[mask]
    total = np.full(len(moments), int(rows["size"][rows["alloc_event"] < 0].sum()), np.int64)
    for column, sign in (("alloc_event", 1), (end, -1)):
        event, size = rows[column], rows["size"]
        order = np.argsort(event, kind="stable")
        order = order[event[order] >= 0]
        sums = np.concatenate([[0], np.cumsum(size[order])])
        total += sign * sums[np.searchsorted(event[order], moments, side="left")]
    return total
