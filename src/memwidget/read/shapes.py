"""The shape of one event record: which bytes are opcodes, where the values stand.

Owns the walk over one record's opcodes. A shape is None where the record holds anything beside the flat fields that
torch writes: then the pickle machine reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from memwidget.read.events import MAX_KEYS

#: Longer records are left to the machine; one with a C++ stack of 300 frames has 1500 bytes.
MAX_RECORD = 8192

_INT_WIDTHS = {0x4B: 1, 0x4D: 2, 0x4A: 4}  # BININT1, BININT2, BININT
_REF_WIDTHS = {0x68: 1, 0x6A: 4}  # BINGET, LONG_BINGET
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}


@dataclass
class Field:
    """One key of a record and where its value stands.

    Attributes
    ----------
    key : str or int
        The key, or the memo index where it is remembered.
    kind : str
        "int" (at, width), "ref" (at, width; a memo reference), "constant" (the value itself, in `constant`), "pair"
        (two ints: at, width, at2, width2) or "list" (of references: `items`, as (at, width) each).
    memo : int
        How many objects of this record the memo holds before this value.
    """

    key: str | int
    kind: str
    memo: int
    at: int = 0
    width: int = 0
    signed: bool = True
    at2: int = 0
    width2: int = 0
    signed2: bool = True
    constant: object = None
    items: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Shape:
    """The opcodes of a record, as words of 8 bytes: a record has this shape where (word & mask) == wanted."""

    length: int
    memos: int
    fields: list[Field]
    mask: list[np.uint64]
    wanted: list[np.uint64]


def shape_of(data: bytes) -> Shape | None:
    """Walk the record at the start of `data`; what follows it does not matter."""
    try:
        return _Walk(data).shape()
    except (IndexError, _OddError, UnicodeDecodeError):
        return None


class _OddError(Exception):
    pass


class _Walk:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 3  # after EMPTY_DICT MEMOIZE MARK
        self.memos = 1
        self.values: list[tuple[int, int]] = []

    def shape(self) -> Shape | None:
        fields = []
        while self.data[self.pos] != 0x75:  # SETITEMS
            fields.append(self._value(self._key()))
        length = self.pos + 1
        if not fields or len(fields) > MAX_KEYS:
            return None
        n_words = (length + 7) // 8
        mask = bytearray(b"\xff" * length + bytes(8 * n_words - length))
        for at, width in self.values:
            mask[at : at + width] = bytes(width)
        masks = np.frombuffer(bytes(mask), "<u8")
        wanted = np.frombuffer(self.data[:length].ljust(8 * n_words, b"\0"), "<u8") & masks
        return Shape(length, self.memos, fields, list(masks), list(wanted))

    def _take(self, n: int) -> int:
        """Step over `n` bytes that are values; return where they stand."""
        at = self.pos
        self.pos += n
        if self.pos >= len(self.data):  # SETITEMS has to follow somewhere
            raise IndexError
        self.values.append((at, n))
        return at

    def _memoize(self) -> None:
        if self.data[self.pos] == 0x94:
            self.pos += 1
            self.memos += 1

    def _text(self) -> str:
        """After SHORT_BINUNICODE; its text is part of the shape."""
        n = self.data[self.pos]
        self.pos += 1 + n
        text = self.data[self.pos - n : self.pos].decode("utf-8", "surrogatepass")
        self._memoize()
        return text

    def _key(self) -> str | int:
        op = self.data[self.pos]
        self.pos += 1
        if op == 0x8C:
            return self._text()
        if op not in _REF_WIDTHS:
            raise _OddError
        width = _REF_WIDTHS[op]
        self.pos += width
        return int.from_bytes(self.data[self.pos - width : self.pos], "little")

    def _value(self, key: str | int) -> Field:
        memo, op = self.memos, self.data[self.pos]
        if op in _REF_WIDTHS:
            self.pos += 1
            width = _REF_WIDTHS[op]
            return Field(key, "ref", memo, self._take(width), width)
        if op == 0x8C:
            self.pos += 1
            return Field(key, "constant", memo, constant=self._text())
        if op in _CONSTANTS:
            self.pos += 1
            return Field(key, "constant", memo, constant=_CONSTANTS[op])
        if op == 0x5D:
            self.pos += 1
            self._memoize()
            if self.memos == memo:  # a list that is not remembered: no C pickler writes that
                raise _OddError
            return Field(key, "list", memo, items=self._items())
        at, width, signed = self._int()
        if self.data[self.pos] not in {0x4B, 0x4D, 0x4A, 0x8A}:
            return Field(key, "int", memo, at, width, signed)
        at2, width2, signed2 = self._int()
        if self.data[self.pos] != 0x86:  # TUPLE2
            raise _OddError
        self.pos += 1
        self._memoize()
        return Field(key, "pair", memo, at, width, signed, at2, width2, signed2)

    def _int(self) -> tuple[int, int, bool]:
        """Where an int stands, its width and whether its highest bit is a sign."""
        op = self.data[self.pos]
        self.pos += 1
        if op in _INT_WIDTHS:
            width = _INT_WIDTHS[op]
            return self._take(width), width, op == 0x4A
        if op != 0x8A:
            raise _OddError
        width = self.data[self.pos]
        self.pos += 1
        if width == 9 and self.data[self.pos + 8] == 0:  # 2**63 and above: the ninth byte holds the sign
            at = self._take(8)
            self.pos += 1
            return at, 8, False
        if not 1 <= width <= 8:
            raise _OddError
        return self._take(width), width, True

    def _items(self) -> list[tuple[int, int]]:
        """References in a list after EMPTY_LIST: none, one and APPEND, or MARK, several and APPENDS."""
        items: list[tuple[int, int]] = []
        data = self.data
        marked = data[self.pos] == 0x28
        if marked:
            self.pos += 1
        elif data[self.pos] not in _REF_WIDTHS or data[self.pos + 1 + _REF_WIDTHS[data[self.pos]]] != 0x61:
            return items
        while data[self.pos] in _REF_WIDTHS:
            width = _REF_WIDTHS[data[self.pos]]
            self.pos += 1
            items.append((self._take(width), width))
            if not marked:
                break
        if data[self.pos] != (0x65 if marked else 0x61):
            raise _OddError
        self.pos += 1
        return items
