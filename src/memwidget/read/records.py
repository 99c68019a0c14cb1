"""Event records in a large pickle, found and read in bulk.

Owns the fast road. torch writes millions of event dicts in a few hundred shapes: the same opcodes at the same places,
only numbers and memo references differ. So one record of a shape is walked in Python, numpy checks that the others have
the very same opcodes, and the numbers are taken out as columns. The pickle machine then executes only the rest and
steps over the records (1,474,000 of 1,482,514 in a 150 MB file). What a shape does not cover is left to the machine;
both roads give equal Recordings, and a test compares them.

Sound because a run is entered only where the machine stands at its first byte, and each record of a run ends where the
next one starts: the bytes of a record that match its shape are exactly what the machine would have executed. Records
are recognised only in pickles that remember with MEMOIZE (protocol 4 and 5), whose memo indices follow from counting.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memwidget.read.shapes import MAX_RECORD, Shape, shape_of
from memwidget.recording import I64, U64

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Rows compared at once, to keep the working set small.
_ROWS = 1 << 16
_SEARCH = 1 << 24
#: Shapes that cover fewer records are left to the machine ...
_FEW = 4
#: ... and the search among records of one length ends after so many such shapes in a row.
_PATIENCE = 12
#: Times that the bytes of the file may be compared: 3 to 6 in real files, and a hostile one shall not take forever.
_COMPARISONS = 40


class Records:
    """Where the event records of one pickle are, and what they hold.

    Attributes
    ----------
    runs : dict of int to (int, int)
        Start of a run of recognised records -> its first record and the one after its last.
    starts, shape, base : ndarray
        By record: its first byte, its shape (-1: not recognised) and its first memo index, once entered.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts = _find_starts(data)
        self.shapes: list[Shape] = []
        self.shape = np.full(len(self.starts), -1, np.int32)
        self._work = _COMPARISONS * (len(data) // 8) + 1_000_000
        for places in self._by_length():
            self._recognise(places)
        lengths = np.array([shape.length for shape in self.shapes] + [0], np.int64)
        memos = np.array([shape.memos for shape in self.shapes] + [0], np.int64)
        self.ends = self.starts + lengths[self.shape]
        self._memos = np.concatenate([[0], np.cumsum(memos[self.shape])])
        self.base = np.zeros(len(self.starts), np.int64)
        self.runs = self._find_runs()
        self.memo_total = 0
        self._entered: list[tuple[int, int, int]] = []  # first memo index, first record, last record

    def _by_length(self) -> Iterator[I64]:
        """Records by the distance to the next one."""
        if len(self.starts) < 2:
            return
        gaps = np.diff(self.starts)
        gaps[gaps > MAX_RECORD] = MAX_RECORD + 1
        short = gaps.astype(np.uint16)
        order = np.argsort(short, kind="stable")
        bounds = np.flatnonzero(np.diff(short[order])) + 1
        for places in np.split(order, bounds):
            if len(places) >= _FEW and short[places[0]] <= MAX_RECORD:
                yield places

    def _recognise(self, places: I64) -> None:
        """Find the shapes among records of one length."""
        length = int(self.starts[places[0] + 1] - self.starts[places[0]])
        n_words = (length + 7) // 8
        # A record too near the end of the file for whole words is left to the machine.
        places = places[self.starts[places] + 8 * n_words <= len(self.data)]
        found: list[int] = []
        weak = 0
        for lo in range(0, len(places), _ROWS):
            part = places[lo : lo + _ROWS]
            at = self.starts[part]
            words = list(self.content(part, n_words).view("<u8").T)
            left = np.arange(len(part))
            for number in found:
                left = self._match(number, words, left, part)
            while len(left) and weak < _PATIENCE and self._work > 0:
                middle = len(left) // 2  # odd records, which define strings and frames, come first
                start = int(at[left[middle]])
                shape = shape_of(self.data[start : start + length])
                if shape is None:
                    left, weak = np.delete(left, middle), weak + 1
                    continue
                self.shapes.append(shape)
                before = len(left)
                left = self._match(len(self.shapes) - 1, words, left, part)
                found.append(len(self.shapes) - 1)
                weak = 0 if before - len(left) >= _FEW else weak + 1

    def content(self, records: I64, n_words: int) -> NDArray[np.uint8]:
        """The first bytes of each record, one a row: a third of the time that a gather for each column takes."""
        anywhere = np.ndarray(max(len(self.data) - 8 * n_words + 1, 0), f"V{8 * n_words}", self.data, strides=(1,))
        rows: NDArray[np.uint8] = anywhere[self.starts[records]].view(np.uint8)
        return rows.reshape(len(records), 8 * n_words)

    def _match(self, number: int, words: list[U64], left: I64, part: I64) -> I64:
        """Give the shape to those of `left` that have it; return the others."""
        shape = self.shapes[number]
        mask, wanted = shape.mask, shape.wanted
        fits = np.ones(len(left), np.bool_)
        everything = len(left) == len(part)
        self._work -= len(words) * len(left)
        for word, m, w in zip(words, mask, wanted, strict=False):
            if m:
                fits &= ((word if everything else word[left]) & m) == w
        self.shape[part[left[fits]]] = number
        return left[~fits]

    def _find_runs(self) -> dict[int, tuple[int, int]]:
        known = self.shape >= 0
        follows = np.zeros(len(known), np.bool_)
        follows[1:] = known[1:] & known[:-1] & (self.ends[:-1] == self.starts[1:])
        first = np.flatnonzero(known & ~follows)
        last = np.flatnonzero(known & ~np.append(follows[1:], [False] * bool(len(known)))) + 1
        return dict(
            zip(self.starts[first].tolist(), zip(first.tolist(), last.tolist(), strict=True), strict=True),
        )

    # What the machine asks.

    def enter(self, run: tuple[int, int], memo_next: int) -> int:
        """Note where the memo stands at the start of a run; return where it stands after it."""
        first, last = run
        self.base[first:last] = self._memos[first:last] + (memo_next - self._memos[first])
        self._entered.append((memo_next, first, last))
        self.memo_total = memo_next + int(self._memos[last] - self._memos[first])
        return self.memo_total

    def end_of(self, run: tuple[int, int]) -> int:
        """First byte after a run."""
        return int(self.ends[run[1] - 1])

    def record_of_memo(self, index: int) -> int | None:
        """The entered record that the memo remembers something of at `index`."""
        at = bisect_right(self._entered, index, key=lambda entry: entry[0]) - 1
        if at < 0:
            return None
        _, first, last = self._entered[at]
        record = first + int(np.searchsorted(self.base[first:last], index, side="right")) - 1
        return record if index < self.base[record] + self.shapes[self.shape[record]].memos else None

    def bytes_of(self, record: int) -> bytes:
        """The pickle opcodes of one record."""
        return self.data[int(self.starts[record]) : int(self.ends[record])]


def _find_starts(data: bytes) -> I64:
    """Where EMPTY_DICT MEMOIZE MARK stand, be it by chance."""
    octets = np.frombuffer(data, np.uint8)
    found = []
    for lo in range(0, max(len(octets) - 2, 0), _SEARCH):
        hi = min(lo + _SEARCH, len(octets) - 2)
        at = np.flatnonzero(octets[lo:hi] == 0x7D) + lo
        found.append(at[(octets[at + 1] == 0x94) & (octets[at + 2] == 0x28)])
    return np.concatenate(found) if found else np.zeros(0, np.int64)
