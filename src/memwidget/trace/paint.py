"""Ranges painted over each other: which one lies on top at each place.

Owns one question, answered in time that does not depend on how much the ranges overlap: a file may hold a million of
them, each over everything.
"""

from __future__ import annotations

import numpy as np

from memwidget.recording import I32, I64

#: Up to this many places a range on average, painting one after the other is faster.
_FEW = 32


def last_over(n: int, lo: I64, hi: I64) -> I32:
    """The last of the ranges lo <= place < hi over each of `n` places, -1 where there is none.

    Parameters
    ----------
    lo, hi : ndarray of int64
        Within 0..n; a range with hi <= lo covers nothing.
    """
    top = np.full(n, -1, np.int32)
    rows = np.flatnonzero(hi > lo)
    lo, hi = lo[rows], hi[rows]
    if int((hi - lo).sum()) <= _FEW * n:
        for row, start, end in zip(rows.tolist(), lo.tolist(), hi.tolist(), strict=True):
            top[start:end] = row
        return top
    # A range is two runs of the largest power of two within it; a run of 2**k is two of 2**(k - 1).
    level = np.frexp((hi - lo).astype(np.float64))[1] - 1
    for k in range(int(level.max()), -1, -1):
        mine = level == k
        np.maximum.at(top, lo[mine], rows[mine].astype(np.int32))
        np.maximum.at(top, hi[mine] - (1 << k), rows[mine].astype(np.int32))
        if k:
            half = 1 << (k - 1)
            below = top.copy()
            np.maximum(below[half:], top[:-half], out=below[half:])
            top = below
    return top
