"""Two ways to say what a size that never ran will take, and which of them to believe.

Owns the models. `Requests` follows each block: where all trials ask for the same blocks in the same order, each block's
size is a function of the batch size, mostly an exact one, and the allocator's rules are replayed with the sizes so
found. `Totals` follows the peaks of the phases, for steps that are not alike. Both are tried on the largest trial
without having seen it; the smaller error is believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from memwidget.answer.batch_size.replay import Outcome, Program, align, live_at, replay
from memwidget.answer.batch_size.terms import Polynomial, Term, chosen, exact, fitted, largest_row, solve, terms_for
from memwidget.answer.batch_size.terms import design as _design
from memwidget.answer.batch_size.trials import Size, Trial, words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I64

#: A replay that is off by no more than this is as good as any.
_CLOSE = 0.002
#: Of the growth beyond the trials, what no interval goes below for each doubling.
FLOOR = 0.004


@dataclass(frozen=True)
class Need:
    """Peaks of one size, bytes."""

    allocated: float
    reserved: float


class NotAlikeError(Exception):
    """The trials ran steps that cannot be matched block by block."""


class Law(Protocol):
    """What a size takes."""

    name: str

    def need(self, size: Size) -> Need:
        """Peaks at a size."""

    def split(self, size: Size, by: str) -> dict[str, float]:
        """Bytes at the allocated peak "by" category, line or name."""

    def fixed(self, size: Size, by: str) -> dict[str, float]:
        """The part of `split` that no size changes."""

    def half_width(self, size: Size) -> Need:
        """Half of the 95 % interval that the residuals give."""


def points_of(trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Sizes as rows."""
    return np.array([trial.size for trial in trials], float)


@dataclass(eq=False)
class Totals:
    """Peaks of phases as polynomials; what is reserved beyond the allocated as one more."""

    trials: Sequence[Trial]
    #: Fitted with more trials: take its terms, where there are points enough for them.
    like: Totals | None = None
    name: str = "totals"
    phases: dict[str, Polynomial] = field(default_factory=dict)
    excess: Polynomial | None = None

    def __post_init__(self) -> None:
        points = points_of(self.trials)
        names = sorted({name for trial in self.trials for name in trial.phases})
        if not all(trial.phases for trial in self.trials):
            names = []
        like = self.like
        for name in names or ["step"]:
            values = [trial.phases.get(name, 0) if names else trial.allocated for trial in self.trials]
            self.phases[name] = _fit(points, values, None if like is None else like.phases.get(name))
        beyond = [trial.reserved - trial.allocated for trial in self.trials]
        if any(beyond):
            self.excess = _fit(points, beyond, None if like is None else like.excess)

    def _top(self, size: Size) -> Polynomial:
        return max(self.phases.values(), key=lambda law: law(size))

    def need(self, size: Size) -> Need:
        """Peaks at a size."""
        allocated = max(0.0, self._top(size)(size))
        return Need(allocated, allocated + (max(0.0, self.excess(size)) if self.excess else 0.0))

    def split(self, size: Size, by: str) -> dict[str, float]:
        """Bytes at the allocated peak "by" category, line or name."""
        sums = self._by(size, by)
        total, allocated = sum(sums.values()), self.need(size).allocated
        return {key: value * allocated / total for key, value in sums.items()} if total else {}

    def fixed(self, size: Size, by: str) -> dict[str, float]:
        """The part of `split` that no size changes."""
        return self._by((0,) * len(size), by)

    def _by(self, size: Size, by: str) -> dict[str, float]:
        tables = [
            trial.categories if by == "category" else trial.lines if by == "line" else {} for trial in self.trials
        ]
        points = points_of(self.trials)
        return {
            key: max(0.0, chosen(points, np.array([table.get(key, 0) for table in tables], float))(size))
            for key in {key for table in tables for key in table}
        }

    def half_width(self, size: Size) -> Need:
        """Half of the 95 % interval that the residuals give."""
        allocated = self._top(size).half_width(size)
        beyond = self.excess.half_width(size) if self.excess else 0.0
        return Need(allocated, math.hypot(allocated, beyond))


def _fit(points: NDArray[np.float64], values: Sequence[int], like: Polynomial | None) -> Polynomial:
    numbers = np.array(values, float)
    if like is not None and len(like.terms) <= len(points):
        return fitted(points, like.terms, numbers)
    return chosen(points, numbers)


@dataclass(eq=False)
class Requests:
    """Each block's bytes as a function of the size, and the allocator replayed."""

    trials: Sequence[Trial]
    name: str = "requests"
    #: Of the bytes at the largest trial's peak, the share in blocks whose size is an exact function of the batch size.
    exact_share: float = 0.0
    _kept: dict[Size, tuple[Outcome, I64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = points_of(self.trials)
        far = largest_row(points)
        self.template = self.trials[far]
        if self.template.program is None:
            raise NotAlikeError
        self.program: Program = self.template.program
        rows, values = [], []
        for row, trial in enumerate(self.trials):
            map_ = None if trial.program is None else align(self.program, trial.program)
            if map_ is not None and trial.program is not None:
                rows.append(row)
                values.append(np.where(map_ >= 0, trial.program.sizes[map_], -1)[self.program.known :])
        if len(rows) < 2:
            raise NotAlikeError
        self.used = [self.trials[row] for row in rows]
        self._fit(points[rows], np.array(values, float))
        live = np.array(live_at(self.program, self.run(self.template.size)[0].peak_op), np.int64)
        sizes = self.program.sizes[live]
        loose = np.isin(live - self.program.known, self._rest)
        self.exact_share = 1.0 - float(sizes[loose].sum()) / max(1.0, float(sizes.sum()))
        fits = [self.run(trial.size)[0] for trial in self.used]
        self._off = (
            max(abs(o.allocated - t.allocated) for o, t in zip(fits, self.used, strict=True)),
            max(abs(o.reserved - t.reserved) for o, t in zip(fits, self.used, strict=True)),
        )

    def _fit(self, points: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Terms of each block; those that not every trial has, or that follow no term, as well as it goes."""
        self._groups: list[tuple[tuple[Term, ...], NDArray[np.int64], NDArray[np.float64]]] = []
        whole = np.flatnonzero((values >= 0).all(axis=0))
        full = values[:, whole]
        # An index or a mask may be padded by some elements; more than that is no function of the size.
        index, sets = exact(points, full, np.maximum(64.0, 1e-6 * full.max(axis=0, initial=0.0)))
        for row, terms in enumerate(sets):
            mine = np.flatnonzero(index == row)
            self._groups.append((terms, whole[mine], solve(points, terms, full[:, mine])))
        loose = np.flatnonzero(index < 0)
        one = (0,) * points.shape[1]
        others = [term for term in terms_for(points.shape[1]) if sum(term) == 1]
        if len(loose):
            terms = (one, *others[: min(points.shape[1], len(points) - 1)])
            self._groups.append((terms, whole[loose], solve(points, terms, full[:, loose])))
        partial = np.setdiff1d(np.arange(values.shape[1]), whole)
        product = (1,) * points.shape[1]
        if len(partial):
            # Chosen anew by size, as workspaces are: in proportion to the largest trial.
            factors = values[largest_row(points), partial] / points[largest_row(points)].prod()
            self._groups.append(((product,), partial, factors[None, :]))
        self._rest = np.concatenate([whole[loose], partial])

    def sizes_at(self, size: Size) -> I64:
        """Requested bytes of every block at a size."""
        sizes = self.program.sizes.astype(float)
        point = np.array([size], float)
        for terms, mine, factors in self._groups:
            sizes[self.program.known + mine] = _design(point, terms)[0] @ factors
        found: I64 = np.maximum(np.rint(sizes), 1).astype(np.int64)
        return found

    def run(self, size: Size) -> tuple[Outcome, I64]:
        """Peaks and block sizes at a size, replayed once."""
        kept = self._kept.get(size)
        if kept is None:
            sizes = self.sizes_at(size)
            kept = self._kept[size] = (replay(self.program, sizes), sizes)
        return kept

    def need(self, size: Size) -> Need:
        """Peaks at a size."""
        outcome, _ = self.run(size)
        return Need(outcome.allocated, outcome.reserved)

    def runs_within(self, size: Size, limit: int) -> bool:
        """Whether the step would run at all under a limit, giving cached memory back where it must."""
        return replay(self.program, self.sizes_at(size), limit).fits

    def split(self, size: Size, by: str) -> dict[str, float]:
        """Bytes at the allocated peak "by" category, line or name."""
        outcome, sizes = self.run(size)
        return self._by(outcome.peak_op, sizes, by)

    def fixed(self, size: Size, by: str) -> dict[str, float]:
        """The part of `split` that no size changes."""
        return self._by(self.run(size)[0].peak_op, self.sizes_at((0,) * len(size)), by)

    def _by(self, peak_op: int, sizes: I64, by: str) -> dict[str, float]:
        keys = {"category": self.template.kinds, "line": self.template.sites, "name": self.template.names}[by]
        sums: dict[str, float] = {}
        for block in live_at(self.program, peak_op):
            key = keys[block]
            sums[key] = sums.get(key, 0.0) + float(sizes[block])
        if self.program.base:  # held all the while, unseen by the recorder
            held = {k: v for k, v in self.template.categories.items() if by == "category"}
            seen: dict[str, float] = {}
            for block in live_at(self.program, self.run(self.template.size)[0].peak_op):
                seen[keys[block]] = seen.get(keys[block], 0.0) + float(self.program.sizes[block])
            for key, value in held.items():
                sums[key] = sums.get(key, 0.0) + max(0.0, value - seen.get(key, 0.0))
        return sums

    def need_of(self, program: Program, size: Size) -> Need:
        """Peaks at a size, if the same blocks were asked for in another order."""
        outcome = replay(program, self.sizes_at(size))
        return Need(outcome.allocated, outcome.reserved)

    def half_width(self, size: Size) -> Need:
        """Half of the 95 % interval that the residuals give."""
        # The residuals are of a replay, not of a regression: they grow with the size at most as fast as the need does.
        grown = max(1.0, self.need(size).allocated / max(1, self.template.allocated))
        loose = (1.0 - self.exact_share) * 0.25
        need = self.need(size)
        return Need(
            math.hypot(self._off[0] * grown, loose * need.allocated),
            math.hypot(self._off[1] * grown, loose * need.reserved),
        )


@dataclass(frozen=True)
class Chosen:
    """The law that is believed, and by how much it was off at the largest trial without having seen it."""

    law: Law
    held_out: Need
    why: str


def choose(trials: Sequence[Trial]) -> Chosen:
    """Fit on the trials that ran, and choose by the error on the largest of them, held out.

    Raises
    ------
    ValueError
        If fewer than two sizes ran.
    """
    ran = [trial for trial in trials if trial.fits]
    if len({trial.size for trial in ran}) < 2:
        raise ValueError("At least two sizes must run to their end before a size can be predicted: give smaller sizes.")
    laws = [law for law in (_made(make, ran) for make in (Requests, Totals)) if law is not None]
    far = ran[largest_row(points_of(ran))]
    rest = [trial for trial in ran if trial is not far]
    rated: list[tuple[float, Need, Requests | Totals]] = []
    if len(rest) >= 2:
        for law in laws:
            without = Totals(rest, law) if isinstance(law, Totals) else _made(Requests, rest)
            if without is not None:
                need = without.need(far.size)
                off = Need(abs(need.allocated - far.allocated), abs(need.reserved - far.reserved))
                rated.append((max(off.allocated, off.reserved), off, law))
    if not rated:
        return Chosen(laws[0], *_unsure(ran))
    # The replay is preferred until it is clearly worse: it knows where the peak will move to.
    close = _CLOSE * far.reserved
    _, off, law = min(rated, key=lambda r: 0.5 * max(0.0, r[0] - close) if isinstance(r[2], Requests) else r[0])
    others = ", ".join(f"{each.name} {error / max(1, far.reserved):.2%}" for error, _, each in rated)
    return Chosen(law, off, f"error on size {words(far.size)}, predicted from the smaller ones: {others}")


def _made(make: type[Requests | Totals], trials: Sequence[Trial]) -> Requests | Totals | None:
    try:
        return make(trials)
    except NotAlikeError:
        return None


def _unsure(ran: Sequence[Trial]) -> tuple[Need, str]:
    low, high = sorted(ran, key=lambda t: t.reserved)[:: len(ran) - 1]
    return (
        # Nothing can be held out of two: a tenth of what lies between them stands in for the error.
        Need(0.1 * abs(high.allocated - low.allocated), 0.1 * abs(high.reserved - low.reserved)),
        "two sizes only, so nothing was left to check the fit with",
    )
