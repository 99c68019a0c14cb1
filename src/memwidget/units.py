"""How bytes, durations and counts are written, and text from files made fit for one line.

A leaf beside recording.py: every room may import it. js/src/format.ts is the twin; tests/golden/format.json holds the
vectors that both sides are tested with.
"""

from __future__ import annotations

import math
import re

_UNITS = ("B", "KiB", "MiB", "GiB")


def _three_digits(value: float) -> str:
    # Halves go up, computed with the operations of the TypeScript twin: format() alone rounds them to even.
    hundredths = math.floor(value * 100 + 0.5)
    if hundredths < 1000:
        return f"{hundredths / 100:.2f}"
    tenths = math.floor(value * 10 + 0.5)
    return f"{tenths / 10:.1f}" if tenths < 1000 else str(math.floor(value + 0.5))


def bytes_text(n: float) -> str:
    """Bytes with three significant digits: ``4.45 GiB``, ``812 KiB``, ``0 B``."""
    value, unit = float(abs(n)), 0
    # 1023.5 KiB would read "1024 KiB": that is 1.00 MiB.
    while value >= 1023.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    sign = "-" if n < 0 else ""
    return f"{sign}{_three_digits(value) if unit else math.floor(value + 0.5)} {_UNITS[unit]}"


def bytes_exact(n: int) -> str:
    """Bytes to the byte: ``4,778,151,936 B``."""
    return f"{n:,} B"


def count_text(n: int) -> str:
    """A count with thousands separators."""
    return f"{n:,}"


def duration_text(us: float) -> str:
    """Microseconds with three significant digits: ``512 µs``, ``3.10 ms``, ``1.25 s``."""
    sign, size = "-" if us < 0 else "", abs(us)
    if size >= 999_500:
        return f"{sign}{_three_digits(size / 1e6)} s"
    if size >= 999.5:
        return f"{sign}{_three_digits(size / 1e3)} ms"
    return f"{sign}{math.floor(size + 0.5)} µs"


def plain(text: str, limit: int = 2000) -> str:
    """One line of text from a file, without control and direction-changing characters, at most `limit` long."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(written: int | str, what: str = "bytes") -> int:
    """Bytes from ``80GiB``, ``512 MiB``, ``1073741824`` or a whole number above 0.

    Raises
    ------
    ValueError
        If it is none of these; the message names `what`.
    """
    found = None
    if isinstance(written, str):
        match = re.fullmatch(
            r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*(?:([kmgt])(?:i?b)?|b)?\s*", written, re.IGNORECASE | re.ASCII
        )
        found = None if match is None else int(float(match[1]) * 2.0 ** _POWERS[(match[2] or "").lower()])
    elif not isinstance(written, bool) and hasattr(written, "__index__"):
        found = int(written)
    if found is None or not 0 < found < 1 << 62:
        raise ValueError(f"{what}={written!r} is no amount of memory; write 80GiB or 85899345920.")
    return found
