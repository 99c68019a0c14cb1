"""Two ways to say what a size that never ran will take, and which of them to believe.

Owns the choice, and the simpler of the two: `Totals` follows the peaks of the phases, for steps that are not alike;
`Requests` (requests.py) follows each block. Both are tried on the largest trial without having seen it; the smaller
error is believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from memwidget.answer.batch_size.requests import Need, NotAlikeError, Requests, points_of
from memwidget.answer.batch_size.terms import Polynomial, chosen, fitted, largest_row, stairs, t95
from memwidget.answer.batch_size.trials import Size, Trial, words

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A replay that is off by no more than this is as good as any.
_CLOSE = 0.002
#: Trials that differ by more than this share of the largest do not take "the same whatever their size".
_UNEVEN = 0.01
#: Of the growth beyond the trials, what no interval goes below for each doubling.
FLOOR = 0.004


class Law(Protocol):
    """What a size takes."""

    name: str
    #: Whether it was laid on top of trials that rise in steps.
    in_steps: bool
    #: Whether the trials follow the law at all, so that it says something beyond them.
    follows: bool

    def need(self, size: Size) -> Need:
        """Peaks at a size."""

    def split(self, size: Size, by: str) -> dict[str, float]:
        """Bytes at the allocated peak "by" category, line or name."""

    def fixed(self, size: Size, by: str) -> dict[str, float]:
        """The part of `split` that no size changes."""

    def half_width(self, size: Size) -> Need:
        """Half of the 95 % interval that the residuals give."""


@dataclass(eq=False)
class Totals:
    """Peaks of phases as polynomials; what is reserved beyond the allocated as one more."""

    trials: Sequence[Trial]
    #: Fitted with more trials: take its terms, where there are points enough for them.
    like: Totals | None = None
    name: str = "totals"
    phases: dict[str, Polynomial] = field(default_factory=dict)
    excess: Polynomial | None = None
    follows: bool = True
    in_steps: bool = False

    def __post_init__(self) -> None:
        points = points_of(self.trials)
        names = sorted({name for trial in self.trials for name in trial.phases})
        if not all(trial.phases for trial in self.trials):
            names = []
        like = self.like
        for name in names or ["step"]:
            values = [trial.phases.get(name, 0) if names else trial.allocated for trial in self.trials]
            self.phases[name] = _fit(points, values, None if like is None else like.phases.get(name))
        self._steepest: Polynomial | None = None
        if like is None:
            self._climb(points, bool(names))
        beyond = [trial.reserved - trial.allocated for trial in self.trials]
        if any(beyond):
            self.excess = _line(points, beyond)

    def _climb(self, points: NDArray[np.float64], by_phase: bool) -> None:
        """Where the highest phase differs from trial to trial and follows no term: stairs, or nothing to follow."""
        far = self.trials[largest_row(points)]
        name = max(self.phases, key=lambda name: far.phases.get(name, 0) if by_phase else far.allocated)
        values = np.array([t.phases.get(name, 0) if by_phase else t.allocated for t in self.trials], float)
        tolerance = _UNEVEN * float(values.max())
        if len(self.phases[name].terms) > 1 or float(np.ptp(values)) <= tolerance:
            return
        found = stairs(points, values, 0.1 * tolerance)
        self.follows = found is not None
        if found is not None:
            terms = ((0,) * points.shape[1], (1,) * points.shape[1])
            self.in_steps = True
            self.phases[name], self._steepest = (Polynomial(terms, line, points, 0.0, 0) for line in found)

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
        if self._steepest is not None:
            allocated = max(allocated, self._steepest(size) - self.need(size).allocated)
        spread = sum(trial.scatter**2 for trial in self.trials) / (2 * len(self.trials))
        allocated = math.hypot(allocated, t95(len(self.trials)) * math.sqrt(spread) * self.need(size).allocated)
        beyond = self.excess.half_width(size) if self.excess else 0.0
        return Need(allocated, math.hypot(allocated, beyond))


def _fit(points: NDArray[np.float64], values: Sequence[int], like: Polynomial | None) -> Polynomial:
    numbers = np.array(values, float)
    if like is not None and len(like.terms) <= len(points):
        return fitted(points, like.terms, numbers)
    return chosen(points, numbers)


def _line(points: NDArray[np.float64], values: Sequence[int]) -> Polynomial:
    """A line against the product of a size's numbers: holes grow with what lies between them, however they scatter."""
    numbers, dimensions = np.array(values, float), points.shape[1]
    constant, product = (0,) * dimensions, (1,) * dimensions
    line = fitted(points, (constant, product), numbers)
    return line if line.factors[1] > 0 else fitted(points, (constant,), numbers)


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
    near = min(ran, key=lambda trial: math.prod(trial.size))
    if abs(far.allocated - near.allocated) > _UNEVEN * far.allocated:
        # Of trials that are not all alike, those that are may be of one stair: they alone say that nothing grows.
        grown = [law for law in laws if law.need(far.size).allocated > 1.001 * law.need(near.size).allocated]
        laws = grown or laws[-1:]
    rest = [trial for trial in ran if trial is not far]
    rated: list[tuple[float, Need, Requests | Totals]] = []
    if len(rest) >= 2:
        for law in laws:
            without = Totals(rest, law) if isinstance(law, Totals) else _made(Requests, rest)
            if without is not None:
                need = without.need(far.size)
                off = Need(abs(need.allocated - far.allocated), abs(need.reserved - far.reserved))
                if isinstance(law, Requests):
                    # What one run hangs on its data by is no error of the law; it is in the interval by itself.
                    by_data = law.by_data(far.size)
                    off = Need(max(0.0, off.allocated - by_data.allocated), max(0.0, off.reserved - by_data.reserved))
                rated.append((max(off.allocated, off.reserved), off, law))
    if not rated:
        return Chosen(laws[0], *_unsure(ran))

    def blame(rate: tuple[float, Need, Requests | Totals]) -> float:
        # The replay is preferred until it is clearly worse: it knows where the peak will move to. One trial that is off
        # by no more than the draws scatter says nothing against it.
        error, _, law = rate
        if isinstance(law, Totals):
            return error
        return 0.5 * max(0.0, error - _CLOSE * far.reserved - law.scatter(far.size))

    _, off, law = min(rated, key=blame)
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
