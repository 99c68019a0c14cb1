"""Which terms bytes follow: constant, linear, quadratic and cross terms, and how sure one can be.

Owns the arithmetic of fitting: candidates, their choice by the error on what was held out, t-quantiles. It must not
know what the numbers stand for.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    F64 = NDArray[np.float64]

#: Exponents of one term, one a dimension: (1, 2) is b * s**2.
Term = tuple[int, ...]

#: A longer candidate must beat a shorter one's held-out error by this factor, or by this share of what was measured.
PAYS, WORTH = 0.35, 0.002

#: However small a slope is: where it takes all but this share of the error away, it is there.
_EXACT = 0.01

#: 95 % quantiles of Student's t, both sides, for 1, 2, ... degrees of freedom; 1.96 + 2.4 / n from there on.
_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def t95(freedom: int) -> float:
    """Quantile of Student's t that 95 % lie within, both sides."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom


def terms_for(dimensions: int) -> tuple[Term, ...]:
    """Terms worth trying, constant and linear first.

    Products come before single dimensions: where the trials cannot tell b * s from s, the one that grows faster is
    the safer answer.
    """
    unit = [tuple(int(i == j) for j in range(dimensions)) for i in range(dimensions)]

    def plus(*parts: Term) -> Term:
        return tuple(map(sum, zip(*parts, strict=True)))

    squares = [plus(u, u) for u in unit]
    products = [plus(a, b) for a, b in itertools.combinations(unit, 2)]
    attention = [plus(unit[0], square) for square in squares[1:]]
    return ((0,) * dimensions, *products, *attention, *unit, *squares)


def design(points: F64, terms: Sequence[Term]) -> F64:
    """One row a point, one column a term."""
    columns = [np.prod(points ** np.array(term, float), axis=1) for term in terms]
    return np.stack(columns, axis=1)


def solve(points: F64, terms: Sequence[Term], values: F64) -> F64:
    """Least squares; columns are scaled first, since 1 and b * s**2 differ by many powers of ten."""
    matrix = design(points, terms)
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1
    found: F64 = np.linalg.lstsq(matrix / scale, values, rcond=1e-9)[0]
    factors: F64 = found / (scale[:, None] if found.ndim > 1 else scale)
    return factors


@dataclass(frozen=True, eq=False)
class Polynomial:
    """Bytes as a sum of terms.

    Attributes
    ----------
    spread : float
        Standard deviation of the residuals; 0 where none are left to judge by.
    freedom : int
        Points more than terms.
    """

    terms: tuple[Term, ...]
    factors: tuple[float, ...]
    points: Any
    spread: float
    freedom: int

    def __call__(self, size: Sequence[float]) -> float:
        """Bytes at a size."""
        row = design(np.array([size], float), self.terms)[0]
        return float(row @ np.array(self.factors))

    def half_width(self, size: Sequence[float]) -> float:
        """Half of the 95 % interval of a new measurement at a size, from the residuals alone."""
        if self.freedom < 1 or self.spread == 0:
            return 0.0
        scale, inverse = self._inverse()
        row = design(np.array([size], float), self.terms)[0] / scale
        return t95(self.freedom) * self.spread * float(np.sqrt(1 + row @ inverse @ row))

    def certain(self, term: Term) -> bool:
        """Whether a term's factor differs from 0 by more than the spread explains."""
        if self.freedom < 1 or self.spread == 0:
            return True
        scale, inverse = self._inverse()
        row = self.terms.index(term)
        deviation = self.spread * float(np.sqrt(max(0.0, inverse[row, row]))) / float(scale[row])
        return abs(self.factors[row]) > t95(self.freedom) * deviation

    def _inverse(self) -> tuple[F64, F64]:
        matrix = design(self.points, self.terms)
        scale = np.abs(matrix).max(axis=0)
        scale[scale == 0] = 1
        return scale, np.linalg.pinv((matrix / scale).T @ (matrix / scale))


def fitted(points: F64, terms: Sequence[Term], values: F64) -> Polynomial:
    """A polynomial with these terms."""
    factors = solve(points, terms, values)
    freedom = len(values) - len(terms)
    residual = values - design(points, terms) @ factors
    spread = float(np.sqrt((residual**2).sum() / freedom)) if freedom > 0 else 0.0
    return Polynomial(tuple(terms), tuple(factors.tolist()), points, spread, freedom)


def largest_row(points: F64) -> int:
    """The point that lies furthest out: the one whose product is largest."""
    return int(np.argmax(np.prod(np.maximum(points, 1), axis=1)))


def chosen(points: F64, values: F64) -> Polynomial:
    """The polynomial with the smallest error on held-out points; more terms only where they pay.

    The furthest point is predicted from all others (that is what the fit will be used for), and each point once from
    the rest. What shrinks as sizes grow is refused: memory does not, and beyond the points such a fit goes astray.
    """
    k, dimensions = points.shape
    pool = terms_for(dimensions)
    constant = pool[0]
    best = (held_out(points, (constant,), values), fitted(points, (constant,), values))
    for count in range(1, min(len(pool), k - 1, 4)):
        rivals = []
        for extra in itertools.combinations(pool[1:], count):
            terms = (constant, *extra)
            if any(sum(t) > 1 for t in extra) and dimensions == 1 and (1,) not in extra:
                continue  # a square without its linear term
            found = fitted(points, terms, values)
            steepest = max(terms, key=sum)
            if found.factors[terms.index(steepest)] < 0 or not all(found.certain(t) for t in extra if sum(t) > 1):
                continue
            rivals.append((held_out(points, terms, values), found))
        if not rivals:
            continue
        rival = min(rivals, key=lambda r: r[0])
        gain = best[0] - rival[0]
        if rival[0] < PAYS * best[0] and (
            gain > WORTH * float(np.abs(values).max()) or rival[0] < max(_EXACT * best[0], 1.0)
        ):
            best = rival
    return best[1]


def held_out(points: F64, terms: Sequence[Term], values: F64) -> float:
    """Error in bytes on points that the fit did not see."""
    k = len(values)
    if k < 2:
        return 0.0
    far = largest_row(points)
    errors = []
    for row in range(k):
        rest = np.arange(k) != row
        inside = points[rest]
        if np.linalg.matrix_rank(_scaled(design(inside, terms))) < len(terms):
            if row == far:
                return float("inf")
            continue
        found = design(points[row : row + 1], terms)[0] @ solve(inside, terms, values[rest])
        errors.append((abs(float(found) - float(values[row])), row == far))
    others = [error for error, is_far in errors if not is_far]
    furthest = sum(error for error, is_far in errors if is_far)
    return furthest + (float(np.sqrt(np.mean(np.square(others)))) if others else 0.0)


def _scaled(matrix: F64) -> F64:
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1
    found: F64 = matrix / scale
    return found


def exact(points: F64, values: F64, tolerance: F64, most: int = 3) -> tuple[NDArray[np.int64], list[tuple[Term, ...]]]:
    """The fewest terms that give each column of `values` to within its tolerance.

    Only as many terms as leave a point over count as found, and `most` at most: more would fit anything.

    Returns
    -------
    index : ndarray of int64
        For each column the row in the list of term sets, -1 where none fits.
    sets : list of tuples of terms
    """
    k, dimensions = points.shape
    pool = terms_for(dimensions)
    index = np.full(values.shape[1], -1, np.int64)
    sets: list[tuple[Term, ...]] = []
    for count in range(1, max(2, min(k, most + 1))):
        for terms in itertools.combinations(pool, count):
            open_ = np.flatnonzero(index < 0)
            if not len(open_):
                return index, sets
            matrix = design(points, terms)
            if np.linalg.matrix_rank(_scaled(matrix)) < count:
                continue
            error = np.abs(values[:, open_] - matrix @ solve(points, terms, values[:, open_])).max(axis=0)
            fits = open_[error <= tolerance[open_]]
            if len(fits):
                index[fits] = len(sets)
                sets.append(terms)
    return index, sets


def through_most(points: F64, values: F64, tolerance: float) -> tuple[Term, float, float]:
    """A constant and one term that most of the values lie on, those of the largest sizes where that is a tie.

    For values that come from several laws, one at a time: a straight line between the laws would be none of them.

    Returns
    -------
    term, factor of the constant, factor of the term
    """
    far = largest_row(points)
    product = (1,) * points.shape[1]
    found = (product, 0.0, float(values[far] / points[far].prod()))
    most = 1
    for term in sorted(terms_for(points.shape[1])[1:], key=lambda term: (term != product, sum(term))):
        along = design(points, (term,))[:, 0]
        best = (most + 1, 0.0)  # another term must hold more of the values than those before it
        for one, other in itertools.combinations(range(len(values)), 2):
            if along[one] == along[other]:
                continue
            slope = (values[other] - values[one]) / (along[other] - along[one])
            constant = values[one] - slope * along[one]
            if slope < 0 or constant < -tolerance:
                continue
            agree = np.abs(constant + slope * along - values) <= tolerance
            if slope == 0 and not agree[far]:
                continue  # the same up to some size, and more from there on: it grows in steps
            score = (int(agree.sum()), float(points[agree].prod(axis=1).sum()))
            if score > best:
                best, most, found = score, score[0], (term, max(0.0, float(constant)), float(slope))
    return found


def stairs(points: F64, values: F64, tolerance: float) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The flattest and the steepest of the lines on top of values that rise in steps; None where they do not rise.

    Between two steps memory stays the same, so a line through all of them would be below half of them. Lines through
    two of the values that no value lies above are as many as the steps could be of: the trials do not tell which.

    Returns
    -------
    ((constant, factor), (constant, factor))
        Against the product of a size's numbers.
    """
    along = points.prod(axis=1)
    order = np.argsort(along, kind="stable")
    along, values = along[order], values[order]
    if (np.diff(values) < -tolerance).any():
        return None
    lines = []
    for one, other in itertools.combinations(range(len(values)), 2):
        if along[one] == along[other] or values[other] - values[one] <= tolerance:
            continue
        factor = float((values[other] - values[one]) / (along[other] - along[one]))
        constant = float(values[one] - factor * along[one])
        if constant >= -tolerance and (constant + factor * along >= values - tolerance).all():
            lines.append((constant, factor))
    return (min(lines, key=lambda line: line[1]), max(lines, key=lambda line: line[1])) if lines else None
