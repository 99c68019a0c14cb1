"""JSON of any size, element by element, in bounded memory.

Owns the walk over a large JSON text: arrays are given out one element at a time, each parsed by the standard library
from a window of a few MiB. What is parsed at once can therefore never be larger than a window, whatever the file
claims, and a hostile one (deep nesting, endless numbers, cut short) ends in a SnapshotError.

The text is read as Latin-1, so that places in it are places in the bytes and nothing grows by a stray wide character;
`text` turns the few strings that are kept into what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from memwidget.recording import SnapshotError

#: Bytes parsed at once. A profiler's event is 300 bytes, a row of its timeline 60; brackets alone grow 25 times.
WINDOW = 4 << 20

_STARTS = frozenset('{["-0123456789tfn')
_SPACE = re.compile(r"[ \t\n\r]*")
_OPEN_ENDED = (json.JSONDecodeError, IndexError)


def _no_constant(name: str) -> None:
    """NaN and Infinity are no numbers to count with; where one is needed, None is refused."""
    del name


_decode = json.JSONDecoder(strict=False, parse_constant=_no_constant).raw_decode


class Stream:
    """A place in a JSON text.

    Parameters
    ----------
    data : bytes
    progress : callable, optional
        Called with the fraction read, once a window.
    """

    def __init__(self, data: bytes, progress: Callable[[float], None] | None = None) -> None:
        self._data = data
        self._progress = progress
        self._window, self._start = "", 0
        self._at = 0  # in the window
        self._fill(3 if data[:3] == b"\xef\xbb\xbf" else 0)

    def _fill(self, place: int) -> None:
        self._window = self._data[place : place + WINDOW].decode("latin-1")
        self._start, self._at = place, 0
        if self._progress is not None and self._data:
            self._progress(min(1.0, place / len(self._data)))

    @property
    def _is_last(self) -> bool:
        return self._start + len(self._window) >= len(self._data)

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            match = _SPACE.match(self._window, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._window):
                return self._window[self._at]
            if self._is_last:
                return ""
            self._fill(self._start + self._at)

    def take(self, character: str) -> bool:
        """Step over the next character if it is this one."""
        if self.peek() != character:
            return False
        self._at += 1
        return True

    def value(self) -> Any:
        """Parse the value that comes next, at most a window long."""
        if self._window[self._at : self._at + 1] not in _STARTS:
            self.peek()
        place = self._start + self._at
        while True:
            try:
                found, end = _decode(self._window, self._at)
                # A number at the window's edge may go on behind it.
                if end < len(self._window) or self._is_last:
                    self._at = end
                    return found
            except RecursionError:
                raise SnapshotError("This JSON is nested too deeply for a profiler's file; export it again.") from None
            except _OPEN_ENDED:
                if self._is_last:
                    damaged()
            except ValueError:  # more digits than Python turns into a number
                damaged()
            if self._start == place:
                raise SnapshotError(
                    f"A single value in this JSON is longer than {WINDOW >> 20} MiB, as in no profiler's file; "
                    "export it again."
                )
            self._fill(place)

    def elements(self) -> Iterator[Any]:
        """Parse the array that comes next, element by element."""
        if not self.take("["):
            damaged()
        if self.take("]"):
            return
        while True:
            yield self.value()
            if self._window.startswith(",", self._at):  # nearly always
                self._at += 1
                continue
            if self.take(","):
                continue
            if self.take("]"):
                return
            damaged()

    def scalars(self) -> Iterator[Any]:
        """Parse the array of numbers that comes next, a window at a time: six times as fast as one by one."""
        if not self.take("["):
            damaged()
        while True:
            end = self._window.find("]", self._at)
            stop = end if end >= 0 else self._window.rfind(",", self._at)
            if stop < 0:
                damaged()
            try:
                values, _ = _decode(f"[{self._window[self._at : stop]}]")
            except (ValueError, RecursionError):
                damaged()
            yield from values
            self._at = stop + 1
            if end >= 0:
                return
            self._fill(self._start + self._at)

    def members(self) -> Iterator[str]:
        """Walk over the object that comes next: each key, whose value the caller then reads or skips."""
        if not self.take("{"):
            damaged()
        if self.take("}"):
            return
        while True:
            key = self.value() if self.peek() == '"' else None
            if not isinstance(key, str) or not self.take(":"):
                damaged()
            yield key
            if self.take(","):
                continue
            if self.take("}"):
                return
            damaged()

    def skip(self) -> None:
        """Step over the value that comes next; a long array is walked."""
        if self.peek() == "[":
            for _ in self.elements():
                pass
        else:
            self.value()

    def end(self) -> None:
        """Refuse what follows after the end."""
        if self.peek():
            damaged()


def damaged() -> NoReturn:
    """The text is no JSON, or was cut short."""
    raise SnapshotError("The JSON file is damaged or was cut short; export it again.")


def text(found: str) -> str:
    """What a string from a `Stream` says."""
    if found.isascii():
        return found
    try:
        return found.encode("latin-1").decode("utf-8")
    except UnicodeError:  # it was written with escapes
        return found.encode("utf-8", "replace").decode("utf-8")
