"""Recognised event records -> rows of columns.

Owns the columns of the fast road: by shape, the numbers of all its records at once. What a field means is said in
`events.py`; whatever is not plain sailing here (a missing address, an unknown word, a value of another type) goes
there as a dict, so that both roads decide alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memwidget.read.events import KNOWN_KEYS, NO_TEXT, Rows, plain_rows
from memwidget.read.unpickle import Machine, NeedsSlowRoadError, Run
from memwidget.recording import ACTION, I32, I64, U64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memwidget.read.intern import Tables
    from memwidget.read.records import Records
    from memwidget.read.shapes import Field, Shape

#: Values looked at to guess which few a column has.
_SAMPLE = 4096
_NOT_YET = -2
_ROWS = 1 << 15

#: What a field may be for a column to be taken at once.
_KINDS = {
    "action": {"ref", "constant"},
    "addr": {"int"},
    "size": {"int"},
    "stream": {"int"},
    "time_us": {"int"},
    "frames": {"ref", "list"},
    "pool_id": {"ref", "pair"},
    "segment_pool_id": {"ref", "pair"},
    "user_metadata": {"ref", "constant"},
    "compile_context": {"ref", "constant"},
}


class Bulk:
    """What the records stepped over by one `Machine` hold."""

    def __init__(self, machine: Machine, records: Records) -> None:
        self._machine = machine
        self._records = records
        self._stack_of_memo: I32 = np.full(records.memo_total, _NOT_YET, np.int32)

    def fill(self, rows: Rows, trace: Sequence[Any], tables: Tables, where: str) -> tuple[set[str], set[str]]:
        """Fill in the rows of the runs in one trace.

        Returns
        -------
        unknown : set of str
            Keys that are not known.
        actions : set of str
            Actions that are not known.
        """
        records, places = _placed(trace)
        shape_numbers = self._records.shape[records]
        order = np.argsort(
            shape_numbers.astype(np.uint16) if len(self._records.shapes) < 2**16 else shape_numbers, kind="stable"
        )
        bounds = np.flatnonzero(np.diff(shape_numbers[order])) + 1
        unknown: set[str] = set()
        actions: set[str] = set()
        waiting = []
        for part in _pieces(order, bounds):
            group = _Group(self._machine, self._records, records[part], tables)
            fields = group.flat_fields()
            if fields is None or not group.fill(rows, places[part], fields):
                dicts = [self._machine.record(record) for record in records[part].tolist()]
                found = plain_rows(rows, dicts, places[part].tolist(), tables, where)
                unknown, actions = unknown | found[0], actions | found[1]
                continue
            unknown |= {key[:40] for key in fields.keys() - KNOWN_KEYS}
            frames = fields.get("frames")
            if frames is None:
                continue
            if frames.kind == "list":
                stacks = group.stacks(frames)
                rows.stack[places[part]] = stacks
                self._stack_of_memo[group.base + frames.memo] = stacks
            else:
                waiting.append((places[part], group.numbers(frames.at, frames.width)))
        if waiting:
            self._follow(rows, waiting, tables, where)
        return unknown, actions

    def _follow(self, rows: Rows, waiting: list[tuple[I64, I64]], tables: Tables, where: str) -> None:
        """Stacks of records that refer to the frame list of another object."""
        places = np.concatenate([item[0] for item in waiting])
        refs = np.concatenate([item[1] for item in waiting])
        known = refs < len(self._stack_of_memo)
        stacks = np.full(len(refs), _NOT_YET, np.int32)
        stacks[known] = self._stack_of_memo[refs[known]]
        left = np.flatnonzero(stacks == _NOT_YET)
        if len(left):
            values, inverse = np.unique(refs[left], return_inverse=True)
            numbers = [tables.stack(self._machine.remembered(int(ref)), f"{where}[].frames") for ref in values]
            stacks[left] = np.array(numbers, np.int32)[inverse]
        rows.stack[places] = stacks


class _Group:
    """Records of one shape."""

    def __init__(self, machine: Machine, records: Records, members: I64, tables: Tables) -> None:
        self.machine = machine
        self.shape: Shape = records.shapes[records.shape[members[0]]]
        self.content = records.content(members, len(self.shape.mask))
        self.base = records.base[members]
        self.tables = tables

    def flat_fields(self) -> dict[str, Field] | None:
        """The fields by key; None where the machine has to read these records."""
        fields: dict[str, Field] = {}
        for entry in self.shape.fields:
            key = entry.key
            if isinstance(key, int):
                if key >= self.base[0]:  # not remembered yet when the first of them is read
                    raise NeedsSlowRoadError
                key = self.machine.remembered(key)
            if not isinstance(key, str) or key in fields:
                return None
            if entry.kind == "ref" and bool((self.numbers(entry.at, entry.width) >= self.base + entry.memo).any()):
                raise NeedsSlowRoadError
            fields[key] = entry
        # None is the same as no value at all.
        nothing = {key for key, entry in fields.items() if entry.kind == "constant" and entry.constant is None}
        used = {key: entry for key, entry in fields.items() if key not in nothing or key not in _KINDS}
        if not {"action", "addr", "size"} <= used.keys() or {"pool_id", "segment_pool_id"} <= used.keys():
            return None
        if any(used[key].kind not in kinds for key, kinds in _KINDS.items() if key in used):
            return None
        return used

    def fill(self, rows: Rows, at: I64, fields: dict[str, Field]) -> bool:
        """Fill every column but the stack; False where a value needs a closer look."""
        actions = self.words_of(fields["action"], lambda word: ACTION.get(word, -1) if isinstance(word, str) else -1)
        if bool((actions < 0).any()):
            return False
        signed = {key: self.integers(fields[key]) for key in ("size", "time_us") if key in fields}
        if any(wide for _, wide in signed.values()):
            return False
        pool_key = "pool_id" if "pool_id" in fields else "segment_pool_id"
        texts = {}
        for key, none in NO_TEXT.items():
            if key in fields:
                if fields[key].kind == "constant" and not isinstance(fields[key].constant, str):
                    return False
                texts[key] = self.words_of(fields[key], partial(self._text, key=key, none=none))
        rows.action[at] = actions
        rows.address[at] = self.integers(fields["addr"])[0].view(np.uint64)
        for key, (values, _) in signed.items():
            getattr(rows, key)[at] = values
        if "stream" in fields:
            rows.stream[at] = self.integers(fields["stream"])[0].view(np.uint64)
            rows.no_stream[at] = False
        if pool_key in fields:
            rows.pool[at] = self.pools(fields[pool_key])
        if "user_metadata" in texts:
            rows.metadata[at] = texts["user_metadata"]
        if "compile_context" in texts:
            rows.compile_context[at] = texts["compile_context"]
        return True

    def _text(self, text: object, *, key: str, none: tuple[str, ...]) -> int:
        return -1 if text is None or text in none else self.tables.string(text, key)

    def word(self, at: int) -> I64:
        """Eight bytes from `at` on, of each record."""
        n, width = self.content.shape
        word: I64 = np.ndarray((n,), "<i8", self.content, at, (width,))
        return word

    def numbers(self, at: int, width: int, *, signed: bool = False) -> I64:
        """The integers of `width` bytes at `at`."""
        back = min(8 - width, at)  # read back from the value's end, which stays within the record
        word = self.word(at - back)
        up = 64 - 8 * (back + width)
        if up:
            word = word << up
        down = 64 - 8 * width
        result: I64 = word >> down
        if not signed and down:
            result &= (1 << (8 * width)) - 1
        return result

    def integers(self, entry: Field) -> tuple[I64, bool]:
        """The values of an "int" field, and whether they are past 2**63 (then as their two's complement)."""
        values = self.numbers(entry.at, entry.width, signed=entry.signed)
        return values, entry.width == 8 and not entry.signed and bool((values < 0).any())

    def words_of(self, entry: Field, number: Callable[[Any], int]) -> I32:
        """`number` of each record's value, a constant of the shape or a reference."""
        if entry.kind == "constant":
            return np.full(len(self.content), number(entry.constant), np.int32)
        values, inverse = _distinct(self.numbers(entry.at, entry.width).view(np.uint64))
        return np.array([number(self.machine.remembered(int(ref))) for ref in values], np.int32)[inverse]

    def pools(self, entry: Field) -> I32:
        """Pool ids: references to pairs, or pairs."""
        if entry.kind == "ref":
            return self.words_of(entry, lambda pool: -1 if pool is None else self.tables.pool(pool, "pool_id"))
        first = self.numbers(entry.at, entry.width, signed=entry.signed)
        second = self.numbers(entry.at2, entry.width2, signed=entry.signed2)
        if bool((first == first[0]).all() and (second == second[0]).all()):
            return np.full(len(first), self.tables.pool((int(first[0]), int(second[0])), "pool_id"), np.int32)
        pairs, inverse = np.unique(np.stack([first, second], 1), axis=0, return_inverse=True)
        numbers = [self.tables.pool(tuple(pair), "pool_id") for pair in pairs.tolist()]
        return np.array(numbers, np.int32)[inverse.reshape(-1)]

    def stacks(self, entry: Field) -> I32:
        """Stacks of frame lists, told apart by their bytes: equal references are written alike."""
        if not entry.items:
            return np.full(len(self.content), -1, np.int32)
        values = self._item_words(entry)
        # Any mixing will do: what it confuses is found by the comparison below.
        mixed = np.zeros(len(self.content), np.uint64)
        for k, word in enumerate(values):
            mixed = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15 + 2 * k)
            mixed ^= mixed >> np.uint64(29)
        keys, inverse = _distinct(mixed)
        first = np.zeros(len(keys), np.int64)
        first[inverse[::-1]] = np.arange(len(inverse))[::-1]  # of several assignments the last stands
        if any(bool((word != word[first][inverse]).any()) for word in values):
            raise NeedsSlowRoadError
        refs = np.stack([self.numbers(at, width)[first] for at, width in entry.items], 1)
        if bool((refs >= (self.base[first] + entry.memo)[:, None]).any()):
            raise NeedsSlowRoadError
        frame = self.tables.frame
        remembered = self.machine.remembered
        numbers = [
            self.tables.stack_of_rows([frame(remembered(ref), "frames[]") for ref in row]) for row in refs.tolist()
        ]
        return np.array(numbers, np.int32)[inverse]

    def _item_words(self, entry: Field) -> list[U64]:
        """The bytes from the first item to the last, as words."""
        low, high = entry.items[0][0], entry.items[-1][0] + entry.items[-1][1]
        words = []
        for at in range(low, high, 8):
            over = max(at + 8 - high, 0)
            # The last word ends with the list, whatever follows: what stands before its own bytes is shifted out.
            words.append(self.word(at - over).view(np.uint64) >> np.uint64(8 * over))
        return words


def _pieces(order: I64, bounds: I64) -> Iterator[I64]:
    """Records of one shape, so many at a time that their bytes stay in the cache."""
    for part in np.split(order, bounds):
        for lo in range(0, len(part), _ROWS):
            yield part[lo : lo + _ROWS]


def _placed(trace: Sequence[Any]) -> tuple[I64, I64]:
    """Records in a trace, and the rows where they belong."""
    at = 0
    firsts, lasts, places = [0], [0], [0]
    for item in trace:
        if type(item) is Run:
            firsts.append(item.first)
            lasts.append(item.last)
            places.append(at)
            at += item.last - item.first
        else:
            at += 1
    lengths = np.array(lasts) - np.array(firsts)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(np.array(firsts), lengths) + within, np.repeat(np.array(places), lengths) + within


def _distinct(values: U64) -> tuple[U64, NDArray[np.int64]]:
    """`np.unique` with inverse for columns of few different values: sorts a sample and looks the others up."""
    keys = np.unique(values[:: max(len(values) // _SAMPLE, 1)])
    if len(keys) == 1 and bool((values == keys[0]).all()):
        return keys, np.zeros(len(values), np.int64)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    missed = keys[at] != values
    if missed.any():
        keys = np.unique(np.concatenate([keys, values[missed]]))
        at = np.searchsorted(keys, values)
    return keys, at
