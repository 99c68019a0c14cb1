"""Integer columns <-> few bytes.

Owns the coding of one column in an archive. Allocator columns repeat: a few thousand addresses, dozens of sizes and
stacks, timestamps that only grow. So a column is a constant, or a dictionary with narrow codes, or narrow differences;
the bytes of wider numbers are laid out by place, so that deflate meets long runs. A 150 MB pickle becomes 1.3 MB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]

#: A dictionary may have as many entries as two bytes can tell apart.
_MOST_VALUES = 1 << 16


def encode(column: Column) -> tuple[dict[str, Any], list[Column]]:
    """Code a column.

    Returns
    -------
    how : dict
        What `decode` needs, plain values.
    parts : list of ndarray
        The arrays to store.
    """
    n = len(column)
    how: dict[str, Any] = {"rows": n, "dtype": column.dtype.str}
    if n and bool((column == column[0]).all()):
        return {**how, "coding": "constant", "value": int(column[0])}, []
    # A sample tells whether a dictionary can pay before everything is sorted.
    if n > 64 and len(np.unique(column[:: max(n // 4096, 1)])) <= min(n // 8, 2048):
        values, codes = np.unique(column, return_inverse=True)
        if len(values) <= min(_MOST_VALUES, n // 4):
            narrow = codes.astype(np.uint8 if len(values) <= 256 else np.uint16)
            return {**how, "coding": "dictionary"}, [_differences(values), _by_place(narrow)]
    return {**how, "coding": "difference"}, [_differences(column)]


def decode(how: dict[str, Any], parts: list[Column]) -> Column:
    """Undo `encode`; ValueError where the parts do not belong together."""
    n, dtype = how["rows"], np.dtype(how["dtype"])
    if how["coding"] == "constant" and not parts:
        limits, value = np.iinfo(dtype), how["value"]
        if type(value) is not int or not limits.min <= value <= limits.max:
            raise ValueError("a value does not fit its column")
        return np.full(n, value, dtype)
    if how["coding"] == "dictionary" and len(parts) == 2:
        values = _sums(parts[0], dtype)
        codes = _from_places(parts[1])
        if codes.dtype.itemsize > 2 or (len(codes) and int(codes.max()) >= len(values)):
            raise ValueError("codes beyond the dictionary")
        column = values[codes]
    elif how["coding"] == "difference" and len(parts) == 1:
        column = _sums(parts[0], dtype)
    else:
        raise ValueError("unknown coding")
    if len(column) != n:
        raise ValueError("rows are missing")
    return column


def _differences(column: Column) -> Column:
    """Differences to the row before, as narrow as they go, by place. Wrap-around is meant: sums wrap back."""
    wide = column.view(np.int64) if column.dtype == np.uint64 else column.astype(np.int64)
    steps = np.diff(wide, prepend=np.zeros(1, np.int64))
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    # The first row is no difference: it would make an address column twice as wide. It comes last, on its own.
    if len(steps) > 1:
        low, high = int(steps[1:].min()), int(steps[1:].max())
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            break
    first = steps[:1].view(np.uint8)
    return np.concatenate([first, _by_place(steps[1:].astype(dtype)).reshape(-1), [np.dtype(dtype).itemsize]]).astype(
        np.uint8
    )


def _sums(part: Column, dtype: np.dtype[Any]) -> Column:
    """Undo `_differences`."""
    if part.dtype != np.uint8 or part.ndim != 1 or not len(part):
        raise ValueError("differences are bytes")
    width, body = int(part[-1]), part[8:-1]
    if len(part) < 9:
        return np.zeros(0, dtype)
    if width not in {1, 2, 4, 8} or len(body) % width:
        raise ValueError("differences have a width")
    steps = np.empty(len(body) // width + 1, np.int64)
    steps[0] = part[:8].copy().view(np.int64)[0]
    steps[1:] = _from_places(body.reshape(width, -1), signed=True)
    total = np.cumsum(steps)
    if dtype == np.uint64:
        return total.view(np.uint64)
    limits = np.iinfo(dtype)
    if int(total.min()) < limits.min or int(total.max()) > limits.max:
        raise ValueError("a value does not fit its column")
    return total.astype(dtype)


def _by_place(column: Column) -> Column:
    """Bytes of each number apart: all lowest bytes, then all second ones, ..."""
    return np.ascontiguousarray(column.view(np.uint8).reshape(len(column), column.dtype.itemsize).T)


def _from_places(places: Column, *, signed: bool = False) -> Column:
    """Undo `_by_place`."""
    if places.dtype != np.uint8 or places.ndim != 2 or len(places) not in {1, 2, 4, 8}:
        raise ValueError("numbers by place are rows of bytes")
    kind = f"<{'i' if signed else 'u'}{len(places)}"
    return np.ascontiguousarray(places.T).reshape(-1).view(kind)
