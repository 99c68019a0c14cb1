"""What a step asked of the allocator, and what the allocator would do if it were asked for other sizes.

Owns the rules of torch's caching allocator read forwards: best fit, split, merge, segments, and giving cached segments
back when a limit is reached. (memwidget.trace.allocator reads the same rules backwards, from a history.) So the
reserved peak of a batch size that never ran follows from the requests, holes and rounding included.

    request      block                          new segment          what is left over is split off
    <= 1 MiB     rounded up to 512 B            2 MiB                from 512 B on
    < 10 MiB     likewise                       20 MiB               above 1 MiB
    others       likewise                       multiple of 2 MiB    above 1 MiB
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I32, I64

KIB, MIB = 1 << 10, 1 << 20
ROUND, SMALL, LARGE, LARGE_SEGMENT, STEP = 512, MIB, 10 * MIB, 20 * MIB, 2 * MIB

#: A stretch of a segment at the start: size, block (-1 for a hole).
Piece = tuple[int, int]


@dataclass(frozen=True)
class Start:
    """A segment that was there before the first request: address, queue, whether for small requests, its pieces."""

    address: int
    queue: int
    small: bool
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """The requests of one trial, as plain numbers.

    Attributes
    ----------
    ops : ndarray of int32
        ``k + 1`` allocates block k, ``-(k + 1)`` frees it, in the order of events.
    sizes : ndarray of int64
        Requested bytes of each block; what was there before (the first `known` blocks) as really taken.
    queue : ndarray of int32
        Where a block was asked for: one number a stream and pool.
    first : int
        The peak counts from this op on.
    base : int
        Bytes that no block stands for.
    start : tuple of Start
    allocator : {"caching", "plain"}
        "plain" hands out what is asked for and reserves nothing (CPU).
    threads : int
        That the device runs at once; 0 where it is not known.
    """

    ops: I32
    sizes: I64
    queue: I32
    known: int
    first: int = 0
    base: int = 0
    start: tuple[Start, ...] = ()
    allocator: str = "caching"
    threads: int = 0


def align(program: Program, other: Program) -> I64 | None:
    """Which block of `other` is which of `program`, where two trials ran the same step with other sizes.

    Equal orders of requests and frees match at once. Else blocks that live for a few operations only (workspaces,
    which libraries choose by size) are left aside until the rest matches, and matched between the same neighbours.

    Returns
    -------
    ndarray of int64, one entry a block: the other's block, -1 where it has none; None where the steps differ
    """
    for few in _FEW:
        mine, kept = _skeleton(program, few)
        theirs, other_kept = _skeleton(other, few)
        if len(mine) != len(theirs) or not np.array_equal(mine, theirs):
            continue
        found: I64 = np.full(len(program.sizes), -1, np.int64)
        found[np.flatnonzero(kept)] = np.flatnonzero(other_kept)
        if few:
            gaps, other_gaps = _between(program, kept), _between(other, other_kept)
            for gap, blocks in gaps.items():
                partners = other_gaps.get(gap, [])
                if len(partners) == len(blocks):
                    found[blocks] = partners
        return found
    return None


#: Operations that a workspace lives for, tried in this order; 0 leaves no block aside. A convolution's lives for 1,
#: what the backward of an embedding sorts its indices with (from 3,073 of them on) for 10 to 20.
_FEW = (0, 4, 12, 40)


def lifetimes(program: Program) -> tuple[I64, I64]:
    """Index of the op that asks for each block, and of the one that frees it; -1 for none."""
    ops = program.ops.astype(np.int64)
    at = np.arange(len(ops))
    born: I64 = np.full(len(program.sizes), -1, np.int64)
    died = born.copy()
    born[ops[ops > 0] - 1] = at[ops > 0]
    died[-ops[ops < 0] - 1] = at[ops < 0]
    return born, died


def later(program: Program, moved: dict[int, int]) -> Program:
    """The same program with some blocks asked for later: each just before the op that is given."""
    born, _ = lifetimes(program)
    place = np.arange(len(program.ops), dtype=float)
    for block, op in moved.items():
        place[born[block]] = op - 0.5
    return replace(program, ops=program.ops[np.argsort(place, kind="stable")])


def _life(program: Program) -> I64:
    """Operations between the request and the free of each block; a large number where either is missing."""
    born, died = lifetimes(program)
    life: I64 = np.where((born >= 0) & (died >= 0), died - born, 1 << 40)
    return life


def _skeleton(program: Program, few: int) -> tuple[I64, NDArray[np.bool_]]:
    """Ops of the blocks that live longer, numbered among themselves, and which blocks these are.

    Frees of what was there before are all one: its blocks are numbered by address, which no two trials share.
    """
    kept = _life(program) > few
    kept[: program.known] = False
    number = np.cumsum(kept)
    ops = program.ops.astype(np.int64)
    block = np.abs(ops) - 1
    old = block < program.known
    code = np.where(old, -(1 << 40), np.sign(ops) * number[block])
    return code[kept[block] | old], kept


def _between(program: Program, kept: NDArray[np.bool_]) -> dict[int, list[int]]:
    """Blocks left aside, by the number of skeleton ops before their request."""
    ops = program.ops.astype(np.int64)
    block = np.abs(ops) - 1
    aside = ~kept[block] & (block >= program.known)
    before = np.cumsum(~aside)
    gaps: dict[int, list[int]] = {}
    for at in np.flatnonzero(aside & (ops > 0)).tolist():
        gaps.setdefault(int(before[at]), []).append(int(block[at]))
    return gaps


@dataclass
class Outcome:
    """Peaks of a replay; `peak_op` is the op after which most was allocated, `fits` whether the limit was kept."""

    allocated: int
    reserved: int
    peak_op: int
    fits: bool = True


def large_only(program: Program, sizes: I64) -> Program:
    """The requests that large segments serve: those never meet the small ones, so each part can be replayed alone."""
    large = sizes > SMALL
    large[: program.known] = False
    segments = tuple(segment for segment in program.start if not segment.small)
    large[[block for segment in segments for _, block in segment.pieces if block >= 0]] = True
    return replace(program, ops=program.ops[large[np.abs(program.ops) - 1]], start=segments)


def live_at(program: Program, op: int) -> list[int]:
    """Blocks alive after the first `op` ops."""
    born, died = lifetimes(program)
    there = (np.arange(len(born)) < program.known) | ((born >= 0) & (born < op))
    found: list[int] = np.flatnonzero(there & ((died < 0) | (died >= op))).tolist()
    return found


def replay(program: Program, sizes: I64, limit: int | None = None) -> Outcome:
    """Run a program with these sizes.

    Parameters
    ----------
    limit : int, optional
        Bytes that may be reserved; when they are used up, segments without a block are given back first.
    """
    if program.allocator == "plain":
        return _plain(program, sizes, limit)
    return _Caching(program, limit).run(sizes)


def _plain(program: Program, sizes: I64, limit: int | None) -> Outcome:
    ops = program.ops.astype(np.int64)
    change = np.sign(ops) * sizes[np.abs(ops) - 1]
    curve = np.concatenate([[0], np.cumsum(change)]) + program.base + int(sizes[: program.known].sum())
    at = program.first + int(curve[program.first :].argmax())
    peak = int(curve[at])
    return Outcome(peak, peak, at, limit is None or peak <= limit)


@dataclass
class _Caching:
    """The state of the allocator: blocks by address, with their neighbours, and the free ones of each pool by size."""

    program: Program
    limit: int | None
    size: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)  # address -> neighbour's address; absent at a segment's ends
    after: dict[int, int] = field(default_factory=dict)
    free: dict[tuple[int, bool], list[tuple[int, int]]] = field(default_factory=dict)
    pool_of: dict[int, tuple[int, bool]] = field(default_factory=dict)  # of free blocks only
    reserved: int = 0
    next: int = 1 << 48

    def run(self, sizes: I64) -> Outcome:
        program = self.program
        where = self._begin()
        allocated = sum(self.size[address] for address in where.values())
        wanted = (np.maximum(sizes, 1) + ROUND - 1) // ROUND * ROUND
        rounded, queue = wanted.tolist(), program.queue.tolist()
        top, top_reserved, at = allocated, self.reserved, 0
        for number, op in enumerate(program.ops.tolist(), 1):
            if op > 0:
                address = self._alloc(rounded[op - 1], queue[op - 1])
                if address < 0:
                    return Outcome(allocated + rounded[op - 1], top_reserved, number, fits=False)
                where[op - 1] = address
                allocated += self.size[address]
                if allocated > top and number > program.first:
                    top, at = allocated, number
                top_reserved = max(top_reserved, self.reserved)
            else:
                freed = where.pop(-op - 1, None)
                if freed is not None:
                    allocated -= self.size[freed]
                    self._free(freed, (queue[-op - 1], self._small[freed]))
        return Outcome(top, top_reserved, at)

    def _begin(self) -> dict[int, int]:
        self._small: dict[int, bool] = {}
        where: dict[int, int] = {}
        for segment in self.program.start:
            address, last = segment.address, -1
            for size, block in segment.pieces:
                self.size[address] = size
                self._small[address] = segment.small
                if last >= 0:
                    self.after[last], self.before[address] = address, last
                if block >= 0:
                    where[block] = address
                else:
                    self._put(address, (segment.queue, segment.small))
                last = address
                address += size
                self.reserved += size
        return where

    def _put(self, address: int, pool: tuple[int, bool]) -> None:
        self.pool_of[address] = pool
        insort(self.free.setdefault(pool, []), (self.size[address], address))

    def _take(self, address: int) -> None:
        free = self.free[self.pool_of.pop(address)]
        del free[bisect_left(free, (self.size[address], address))]

    def _alloc(self, wanted: int, queue: int) -> int:
        small = wanted <= SMALL
        pool = (queue, small)
        free = self.free.get(pool, ())
        at = bisect_left(free, (wanted, 0))
        if at < len(free):
            address = free[at][1]
            self._take(address)
        else:
            address = self._segment(wanted, small)
            if address < 0:
                return -1
        rest = self.size[address] - wanted
        if rest >= ROUND if small else rest > SMALL:
            other = address + wanted
            self.size[address], self.size[other] = wanted, rest
            self._small[other] = small
            follower = self.after.get(address)
            self.after[address], self.before[other] = other, address
            if follower is not None:
                self.after[other], self.before[follower] = follower, other
            self._put(other, pool)
        return address

    def _segment(self, wanted: int, small: bool) -> int:
        total = STEP if small else LARGE_SEGMENT if wanted < LARGE else -(-wanted // STEP) * STEP
        if self.limit is not None and self.reserved + total > self.limit:
            self._give_back()
            if self.reserved + total > self.limit:
                return -1
        address = self.next
        self.next += total + STEP
        self.size[address], self._small[address] = total, small
        self.reserved += total
        return address

    def _give_back(self) -> None:
        for address in list(self.pool_of):
            if address not in self.before and address not in self.after:
                self._take(address)
                self.reserved -= self.size.pop(address)

    def _free(self, address: int, pool: tuple[int, bool]) -> None:
        follower, leader = self.after.get(address), self.before.get(address)
        if follower is not None and follower in self.pool_of:
            self._take(follower)
            self._join(address, follower)
        if leader is not None and leader in self.pool_of:
            self._take(leader)
            self._join(leader, address)
            address = leader
        self._put(address, pool)

    def _join(self, left: int, right: int) -> None:
        self.size[left] += self.size.pop(right)
        self.before.pop(right, None)
        follower = self.after.pop(right, None)
        if follower is None:
            self.after.pop(left, None)
        else:
            self.after[left], self.before[follower] = follower, left
