"""Events -> block lifetimes and curves.

Owns the pairing of allocations with frees, what existed before the first event, and the four curves. Block sizes come
from allocator.py. It must not know what a block was for, nor how it is shown.

One address over time, read as block lifetimes (event indices below)::

    event      3        9              10             40      52
    address A  alloc ── free_requested free_completed alloc ─ free_requested ...
    block      └──────── block 17 ────┘               └────── block 31 ─────
    allocated  ████████████████                       █████████████
    active     ███████████████████████                █████████████░░░░ (pending)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.recording import (
    ACTION,
    CATEGORIES,
    I32,
    I64,
    RAW_TIMELINE,
    STATES,
    Counters,
    Events,
    Recording,
    SegmentBlocks,
    Segments,
)
from memwidget.trace.allocator import block_sizes, final_state
from memwidget.trace.segments import segment_lifetimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The allocation is not in the history: the block existed before it, or its event was overwritten.
ALLOC_UNSEEN = 1
#: Freed by implication: a later allocation took its address.
FREE_IMPLIED = 2
#: Never in the history at all, known from the final segments only.
GHOST = 4
#: The size follows the rounding rule, but the segment or neighbour that could confirm it is unknown.
SIZE_GUESSED = 8
#: Made in backward without a stack of its own: `stack` is that of the forward it belongs to (deep mode).
FORWARD_STACK = 16

#: The curves of a trace.
CURVES = ("allocated", "active", "reserved", "requested")

#: "The free was requested before the first event": pending at moment 0, hence active, not allocated.
BEFORE = -2

#: One row a block lifetime. Event columns are event indices, -1 for none; free_requested_event may also be BEFORE.
#: phase and step are rows of `Trace.bands`.
BLOCK_DTYPE = np.dtype(
    [
        ("address", np.uint64),
        ("size", np.int64),
        ("requested", np.int64),
        ("alloc_event", np.int32),
        ("free_requested_event", np.int32),
        ("free_event", np.int32),
        ("alloc_time_us", np.int64),
        ("free_time_us", np.int64),
        ("stack", np.int32),
        ("free_stack", np.int32),
        ("stream", np.int32),
        ("pool", np.int32),
        ("category", np.uint8),
        ("reason", np.uint8),
        ("phase", np.int32),
        ("step", np.int32),
        ("flags", np.uint8),
    ]
)


class Columns:
    """Blocks in the making, a column an array: a strided field of a structured array costs four times as much."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    @classmethod
    def zeros(cls, n: int) -> Columns:
        """All columns, n rows of zeros."""
        return cls({name: np.zeros(n, BLOCK_DTYPE[name]) for name in BLOCK_DTYPE.names or ()})

    def __len__(self) -> int:
        return len(self._arrays["address"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, values: NDArray[Any] | int) -> None:
        self._arrays[name][:] = values

    def joined(self, other: Columns) -> Columns:
        """These rows, then the other's."""
        return Columns({name: np.concatenate([array, other[name]]) for name, array in self._arrays.items()})

    def ordered(self, order: NDArray[np.intp]) -> Columns:
        """The rows in another order."""
        return Columns({name: array[order] for name, array in self._arrays.items()})

    def rows(self) -> NDArray[Any]:
        """As one structured array, read-only: the curves and pictures follow from it."""
        table = np.empty(len(self), BLOCK_DTYPE)
        for name, array in self._arrays.items():
            table[name] = array
        table.flags.writeable = False
        return table


_ALLOC, _REQUEST, _COMPLETE = ACTION["alloc"], ACTION["free_requested"], ACTION["free_completed"]
_ACTIVE, _PENDING = STATES.index("active_allocated"), STATES.index("active_pending_free")
_PREEXISTING, _UNKNOWN = CATEGORIES.index("preexisting"), CATEGORIES.index("unknown")


@dataclass(eq=False)
class Reduced:
    """What one device's history comes to.

    Attributes
    ----------
    columns : Columns of BLOCK_DTYPE
        One row a block: what existed at the start, then in order of allocation, the stacking order of the picture.
    table : structured ndarray of SEGMENT_DTYPE
        Lifetimes of segments.
    segments, segment_blocks
        The device's final state, by address.
    notes : list of str
        What the history could not tell, one plain sentence each.
    """

    events: Events
    columns: Columns
    table: NDArray[Any]
    segments: Segments
    segment_blocks: SegmentBlocks
    notes: list[str] = field(default_factory=list)


def reduce_device(recording: Recording, device: int, events: Events) -> Reduced:
    """Pair, complete and size the blocks of one device.

    Linear in events but for one sort by address. See the module's picture for the rule.
    """
    segments, inside = final_state(recording.segments, recording.segment_blocks, device)
    notes: list[str] = []
    table = segment_lifetimes(events, segments)
    blocks = _pair(events, notes, renames=recording.facts.get("source") == RAW_TIMELINE)
    completions = bool((events.action == _COMPLETE).any())
    known = _match_final(blocks, inside, notes, complete=len(segments) > 0, completions=completions)
    ghosts = _ghosts(blocks, inside, known)
    blocks = ghosts.joined(blocks)
    known = np.concatenate([ghosts["size"], known])
    order = _stacking_order(blocks)
    blocks, known = blocks.ordered(order), known[order]
    if recording.device_type == "cpu" or recording.facts.get("sizes") == "taken":
        blocks["size"] = blocks["requested"]
    else:
        blocks["size"], guessed = block_sizes(blocks, known, table, recording.settings)
        blocks["flags"][guessed] |= SIZE_GUESSED
    _fill(blocks, events, segments)
    _note_start(blocks, recording, events, notes)
    return Reduced(events, blocks, table, segments, inside, notes)


def _pair(events: Events, notes: list[str], *, renames: bool) -> Columns:
    """Block lifetimes from events alone, in order of allocation.

    With `renames` an allocation at a live address is the same memory under another name, which needs no note.
    """
    rows = np.flatnonzero(events.action <= _COMPLETE)
    order = rows[_by_address(events.address[rows])]
    action, address = events.action[order], events.address[order]
    first = np.ones(len(order), bool)
    first[1:] = address[1:] != address[:-1]
    is_alloc = action == _ALLOC
    starts = first | is_alloc
    block_of = np.cumsum(starts) - 1
    n = int(block_of[-1]) + 1 if len(order) else 0

    blocks = Columns.zeros(n)
    head = order[starts]
    blocks["address"] = events.address[head]
    blocks["requested"] = events.size[head]
    seen = is_alloc[starts]
    blocks["alloc_event"] = np.where(seen, head, -1)
    blocks["flags"][~seen] = ALLOC_UNSEEN

    requested, completed = (
        _first(order, block_of, action == _REQUEST, n),
        _first(order, block_of, action == _COMPLETE, n),
    )
    used = np.count_nonzero(requested >= 0) + np.count_nonzero(completed >= 0)
    surplus = int(np.count_nonzero(~is_alloc) - used)
    has_completions = bool((action == _COMPLETE).any())
    # A history may leave one of the pair out (skip_actions): then the other stands for both.
    lone = (completed >= 0) & ((requested < 0) | (requested > completed))
    requested[lone] = completed[lone]
    # In a history with both, a lone completion at an address's first sight was asked for before the first event.
    if not (lone & seen).any():
        requested[lone & ~seen] = BEFORE
    # The next use of an address ends the one before it, whatever the history says.
    successor = np.full(n, -1, np.int64)
    if n > 1:
        same = blocks["address"][1:] == blocks["address"][:-1]
        successor[:-1][same] = blocks["alloc_event"][1:][same]
    if not has_completions:
        completed[successor >= 0] = requested[successor >= 0]
    implied = (successor >= 0) & (completed < 0)
    late = implied & (requested == -1)
    requested[late] = successor[late]
    completed[implied] = successor[implied]
    blocks["flags"][late] |= FREE_IMPLIED
    blocks["free_requested_event"], blocks["free_event"] = requested, completed

    if late.any() and not renames:
        notes.append(
            f"{int(late.sum()):,} blocks were never seen to be freed, but their address was handed out again; "
            "they end there."
        )
    if surplus > 0:
        notes.append(f"{surplus:,} frees had no block to free (the history was off for a while); they are ignored.")
    return blocks


def _by_address(address: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Stable order by address.

    Where offset and position fit one 63-bit number together, sorting those numbers is five times as fast as argsort.
    """
    n = len(address)
    if not n:
        return np.zeros(0, np.intp)
    low = address.min()
    bits = n.bit_length()
    if int(address.max() - low).bit_length() + bits > 63:
        return np.argsort(address, kind="stable")
    key = ((address - low).astype(np.int64) << bits) | np.arange(n)
    key.sort()
    positions: NDArray[np.intp] = key & ((1 << bits) - 1)
    return positions


def _first(order: NDArray[np.intp], block_of: NDArray[np.intp], mask: NDArray[np.bool_], n: int) -> I64:
    """Index of each block's first event under the mask, -1 for none."""
    found = np.full(n, -1, np.int64)
    at = np.flatnonzero(mask)[::-1]
    found[block_of[at]] = order[at]  # the last assignment wins: the earliest event
    return found


def _match_final(blocks: Columns, inside: SegmentBlocks, notes: list[str], *, complete: bool, completions: bool) -> I64:
    """Sizes of the blocks that the final segments still hold (-1 otherwise); settles frees that never completed."""
    known = np.full(len(blocks), -1, np.int64)
    taken = np.flatnonzero(inside.state <= _PENDING)
    open_ = np.flatnonzero(blocks["free_event"] < 0)
    if not complete:
        if not completions:  # the request stands for both
            asked, died = blocks["free_requested_event"], blocks["free_event"]
            blocks["free_event"] = np.where((asked >= 0) & (died < 0), asked, died)
        return known
    at = np.searchsorted(inside.address[taken], blocks["address"][open_])
    at = np.minimum(at, max(len(taken) - 1, 0))
    hit = np.zeros(len(open_), bool) if not len(taken) else inside.address[taken][at] == blocks["address"][open_]
    rows = taken[at[hit]] if len(taken) else taken
    known[open_[hit]] = inside.size[rows]
    _fill_from_final(blocks, open_[hit], inside, rows)

    gone = open_[~hit]
    pending = gone[blocks["free_requested_event"][gone] != -1]
    blocks["free_event"][pending] = np.maximum(blocks["free_requested_event"][pending], 0)
    lost = len(gone) - len(pending)
    if lost:
        notes.append(
            f"{lost:,} blocks are live by the history but not in the final segments: "
            "another thread worked while the snapshot was taken."
        )
    return known


def _fill_from_final(blocks: Columns, ids: NDArray[np.intp], inside: SegmentBlocks, rows: NDArray[np.intp]) -> None:
    """Take the stack of a live block from the segments where its event kept none."""
    blocks["stack"][ids] = inside.stack[rows] + 1  # +1: `_fill` tells "none" from 0 until it runs


def _ghosts(blocks: Columns, inside: SegmentBlocks, known: I64) -> Columns:
    """Blocks of the final segments that the history never mentions as live: they were there all along."""
    taken = np.flatnonzero(inside.state <= _PENDING)
    absent = taken[~np.isin(inside.address[taken], blocks["address"][known >= 0])]
    ghosts = Columns.zeros(len(absent))
    ghosts["address"] = inside.address[absent]
    ghosts["size"] = inside.size[absent]
    ghosts["requested"] = inside.requested[absent]
    ghosts["alloc_event"] = -1
    ghosts["free_event"] = -1
    ghosts["free_requested_event"] = np.where(inside.state[absent] == _PENDING, BEFORE, -1)
    ghosts["stack"] = inside.stack[absent] + 1
    ghosts["flags"] = ALLOC_UNSEEN | GHOST
    return ghosts


def _stacking_order(blocks: Columns) -> NDArray[np.intp]:
    """What existed first lies at the bottom, the longest-lived of it lowest; then order of allocation."""
    born = blocks["alloc_event"]
    unseen = np.flatnonzero(born < 0)
    end = blocks["free_event"][unseen].astype(np.int64)
    end[end < 0] = np.iinfo(np.int32).max
    first = unseen[np.lexsort((blocks["address"][unseen], -end))]
    # No two blocks are allocated by one event, so events alone put the others in order.
    block_at = np.full(int(born.max(initial=-1)) + 1, -1, np.intp)
    seen = np.flatnonzero(born >= 0)
    block_at[born[seen]] = seen
    return np.concatenate([first, block_at[block_at >= 0]])


def _fill(blocks: Columns, events: Events, segments: Segments) -> None:
    """Stacks, streams, pools, times and the category that follows from the history alone."""
    born, asked, died = blocks["alloc_event"], blocks["free_requested_event"], blocks["free_event"]
    freed_at = np.where(asked >= 0, asked, died)
    n = len(events)
    none = np.full(len(blocks), -1, np.int32)

    def of(column: NDArray[Any], at: NDArray[Any]) -> NDArray[Any]:
        if not n:
            return none
        found: NDArray[Any] = column[at]  # -1 takes the last entry, for now
        found[at < 0] = -1
        return found

    from_final = blocks["stack"] - 1
    alloc_stack, free_stack = of(events.stack, born), of(events.stack, freed_at)
    both = (born >= 0) & (freed_at >= 0) & (blocks["flags"] & FREE_IMPLIED == 0)
    pairs = both & (alloc_stack >= 0) & (free_stack >= 0)
    # context="alloc" repeats the allocation's stack on the free; "all" gives the place that freed it.
    repeats = bool(pairs.any()) and np.count_nonzero(alloc_stack[pairs] == free_stack[pairs]) * 2 > np.count_nonzero(
        pairs
    )
    stack = np.where(alloc_stack >= 0, alloc_stack, from_final)
    if repeats or not pairs.any():
        stack = np.where((stack < 0) & (born < 0), free_stack, stack)
        free_stack = none
    free_stack = np.where(blocks["flags"] & FREE_IMPLIED, -1, free_stack)
    blocks["stack"], blocks["free_stack"] = stack, free_stack

    holder = np.searchsorted(segments.address, blocks["address"], side="right") - 1
    clipped = np.maximum(holder, 0)
    ends = segments.address + segments.size.astype(np.uint64)
    inside_one = (holder >= 0) & (blocks["address"] < ends[clipped]) if len(segments) else np.zeros(len(blocks), bool)
    for name, final in (("stream", segments.stream), ("pool", segments.pool)):
        by_event = of(getattr(events, name), np.where(born >= 0, born, freed_at))
        by_segment = np.where(inside_one, final[clipped], -1) if len(segments) else none
        blocks[name] = np.where(by_event >= 0, by_event, by_segment)

    timed = n > 0 and bool((events.time_us > 0).any())
    blocks["alloc_time_us"] = of(events.time_us, born) if timed else -1
    blocks["free_time_us"] = of(events.time_us, freed_at) if timed else -1
    blocks["category"] = np.where(born < 0, _PREEXISTING, _UNKNOWN)
    blocks["phase"] = -1
    blocks["step"] = -1


def _note_start(blocks: Columns, recording: Recording, events: Events, notes: list[str]) -> None:
    """Say what was there before the first event, and when the history wrapped."""
    limit = recording.facts.get("max_entries")
    if isinstance(limit, int) and limit > 1 and len(events) >= limit:
        notes.append(
            f"The history is full ({len(events):,} events, max_entries={limit:,}): older events were overwritten."
        )
    unseen = blocks["size"][blocks["alloc_event"] < 0]
    if len(events) and len(unseen):
        notes.append(
            f"{len(unseen):,} blocks ({int(unseen.sum()):,} bytes) existed before the first event; "
            "they are drawn from the start, their allocation is not in the history."
        )
    guessed = int(np.count_nonzero(blocks["flags"] & SIZE_GUESSED))
    if guessed:
        notes.append(
            f"The sizes of {guessed:,} blocks above 1 MiB cannot be confirmed (what lay behind them is unknown); "
            "each may be up to 1 MiB larger than drawn."
        )


def make_curve(name: str, reduced: Reduced, device_type: str, counters: Counters) -> I64:
    """One of CURVES at every moment: int64, bytes, shape (n_events + 1,).

    ``allocated`` ends at free_requested; ``active`` and ``requested`` end at free_completed, as torch counts them.
    """
    blocks, n = reduced.columns, len(reduced.events)
    if name == "reserved" and len(counters):
        return _counted(counters, n)
    if name == "reserved" and device_type != "cpu":
        return _reserved(reduced, make_curve("active", reduced, device_type, counters))
    size = blocks["requested" if name == "requested" else "size"]
    died = blocks["free_requested_event" if name == "allocated" else "free_event"]
    return _curve(n, size, blocks["alloc_event"], died)


def _counted(counters: Counters, n: int) -> I64:
    """What the source says is reserved, from each count on; before the first, the first."""
    order = np.argsort(counters.event, kind="stable")
    at = np.searchsorted(counters.event[order], np.arange(-1, n), side="right") - 1
    return counters.reserved[order][np.maximum(at, 0)]


def _curve(n: int, size: I64, born: I32, died: I32) -> I64:
    curve = np.zeros(n + 1, np.int64)
    curve[0] = size[(born < 0) & (died != BEFORE)].sum()
    start, end = born >= 0, died >= 0
    np.add.at(curve, born[start] + 1, size[start])
    np.subtract.at(curve, died[end] + 1, size[end])
    summed: I64 = np.cumsum(curve)
    return summed


def _reserved(reduced: Reduced, active: I64) -> I64:
    """Anchored at the final segments and walked backward, which gives the right start even when the history wrapped."""
    events = reduced.events
    change = np.zeros(len(events) + 1, np.int64)
    for name, sign in (("segment_alloc", 1), ("segment_map", 1), ("segment_free", -1), ("segment_unmap", -1)):
        rows = np.flatnonzero(events.action == ACTION[name])
        change[rows + 1] += sign * events.size[rows]
    curve: I64 = np.cumsum(change)
    if len(reduced.segments):
        curve += int(reduced.segments.size.sum()) - int(curve[-1])
        # Below nothing only where the history contradicts itself.
        clipped: I64 = np.maximum(curve, 0)
        return clipped
    # No segments to anchor at: the least start under which nothing is used that is not reserved.
    if not change.any():
        return np.array(active)
    curve += max(0, int((active - curve).max()))
    return curve
