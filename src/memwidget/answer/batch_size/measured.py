"""What runs beyond the trials teach: a measured size is believed over any law.

Owns the correction. A run outside its interval becomes a knot: a law's bytes there are replaced by the measured ones,
those between two knots follow in proportion, and beyond the last knot growth is what it was up to there::

    measured bytes                       x  run of a proposal (a knot)
         |                          .  '
         |          o  . '                  the law's own bytes along here
         +----------+---------------+----
               largest trial

Up to the largest trial the law stands as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class Knots:
    """Bytes as the law has them, rising, and as they were measured, never falling; the first is the largest trial."""

    law: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()

    @classmethod
    def of(cls, far: tuple[float, float], runs: Sequence[tuple[float, float]]) -> Knots:
        """Knots from (law, measured) of the largest trial and of the runs that were not as predicted."""
        found: dict[float, float] = {}
        for law, measured in runs:
            if law > far[0]:
                found[law] = max(measured, found.get(law, 0.0))
        if not found:
            return cls()
        xs = [far[0], *sorted(found)]
        ys = np.maximum.accumulate([far[1], *(found[x] for x in xs[1:])])
        return cls(tuple(xs), tuple(ys.tolist()))

    def apply(self, bounds: tuple[float, float, float], slack: float) -> tuple[float, float, float]:
        """Expected, low and high of the law made those of the knots; `slack` is the spread of one size's runs."""
        value, low, high = bounds
        if not self.law or value <= self.law[0]:
            return bounds
        at = int(np.searchsorted(self.law, value))
        if at < len(self.law):
            left, right = self.measured[at - 1], self.measured[at]
            if value == self.law[at]:
                return right, right - slack, right + slack
            share = (value - self.law[at - 1]) / (self.law[at] - self.law[at - 1])
            # Where in between it turns is not known.
            return left + share * (right - left), left - slack, right + slack
        first, last, top = self.measured[0], self.measured[-1], self.law[-1]
        slope = (last - first) / (top - self.law[0])
        middle = last + slope * (value - top)
        off = abs(last - top) * (value - top) / (top - self.law[0])
        return middle, max(last - slack, middle - (value - low) - off), middle + (high - value) + off
