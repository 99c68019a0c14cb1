"""Frames, stacks, strings, streams and pools -> small numbers, each distinct one kept once.

Owns the tables that a Recording's columns point into while a source is read, and their final order. A snapshot with
a million events has about a million frame lists and a few dozen different stacks: lists are told apart by identity
first (torch shares one list between an allocation, its frees and its block) and by content second.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memwidget.recording import I32, U64, Frames, Recording, SnapshotError, Table

_LINE_MAX = 2**31 - 1


def wrong(field: str, expected: str, value: object) -> SnapshotError:
    """A required field has a type or value that no snapshot has."""
    found = "nothing" if value is None else type(value).__name__
    if type(value) is int and expected.startswith(("a number", "an address", "a line number")):
        found = "a number out of range"
    return SnapshotError(f"{field} should be {expected}, found {found}; record the snapshot again.")


def printable(text: str) -> str:
    """`text` with whatever cannot be written as UTF-8 replaced, so that no later page or file trips over it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Tables:
    """What is distinct in one source; `finish` puts it into the Recording, in the order of first use."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._frame_of: dict[int, int] = {}  # id of a frame dict -> frame; the source keeps the dicts alive meanwhile
        self._stacks: dict[bytes, int] = {}  # array of frames as bytes: their hash cannot be chosen by a file
        self._stack_of: dict[int, int] = {}
        # Lists of the very same frame dicts have the same content: told in a third of the time.
        self._stack_of_ids: dict[tuple[int, ...], int] = {}
        self._pools: dict[tuple[int, int], int] = {}

    def string(self, text: object, field: str) -> int:
        """Number of a string."""
        if type(text) is not str:
            raise wrong(field, "text", text)
        found = self._strings.get(text)
        if found is None:
            clean = printable(text)
            found = self._strings[text] = self._strings.setdefault(clean, len(self._strings))
        return found

    def frame(self, frame: object, field: str) -> int:
        """Number of a frame dict."""
        found = self._frame_of.get(id(frame))
        if found is not None:
            return found
        if not isinstance(frame, dict):
            raise wrong(field, "a dict with filename, line and name", frame)
        line = frame.get("line", 0)
        if line is None:
            line = 0
        if type(line) is not int or not -_LINE_MAX <= line <= _LINE_MAX:
            raise wrong(f"{field}.line", "a line number", line)
        key = (
            self.string(frame.get("filename", "??"), f"{field}.filename"),
            max(line, 0),
            self.string(frame.get("name", "??"), f"{field}.name"),
        )
        found = self._frame_of[id(frame)] = self._frames.setdefault(key, len(self._frames))
        return found

    def stack(self, frames: object, field: str) -> int:
        """Number of a list of frame dicts; -1 for none."""
        if frames is None:
            return -1
        found = self._stack_of.get(id(frames))
        if found is not None:
            return found
        if not isinstance(frames, (list, tuple)):
            raise wrong(field, "a list of frames", frames)
        rows = [self.frame(frame, f"{field}[{i}]") for i, frame in enumerate(frames)]
        found = self._stack_of[id(frames)] = self.stack_of_rows(rows)
        self._stack_of_ids[tuple(map(id, frames))] = found
        return found

    def stack_of_rows(self, rows: Iterable[int]) -> int:
        """Number of a stack given as frame numbers; -1 for none."""
        key = array("i", rows).tobytes()
        return self._stacks.setdefault(key, len(self._stacks)) if key else -1

    def stacks(self, lists: list[Any], field: Callable[[int], str]) -> I32:
        """`stack` of many lists; `field` names the one at an index."""
        of, of_ids = self._stack_of, self._stack_of_ids
        get = of.get
        found = [get(id(frames)) if frames is not None else -1 for frames in lists]
        for i, known in enumerate(found):
            if known is None:
                frames = lists[i]
                number = get(id(frames))  # a list that came earlier in this loop is known by now
                if number is None and type(frames) is list and frames:
                    number = of_ids.get(tuple(map(id, frames)))
                if number is None:
                    number = self.stack(frames, field(i))
                of[id(frames)] = found[i] = number
        return np.array(found, np.int32)

    def pool(self, value: object, field: str) -> int:
        """Number of a pool id, a pair of ints as tuple or list."""
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise wrong(field, "a pair of numbers", value)
        for part in value:
            if type(part) is not int or not -(2**63) <= part < 2**64:
                raise wrong(field, "a pair of numbers", part)
        return self._pools.setdefault((value[0] % 2**64, value[1] % 2**64), len(self._pools))

    def finish(self, recording: Recording, streams: dict[str, U64], missing: dict[str, NDArray[np.bool_]]) -> None:
        """Number everything in the order of first use, so that every road to a Recording ends in the same one.

        Parameters
        ----------
        recording : Recording
            With columns that hold this object's numbers.
        streams : dict
            Raw stream pointers by table: "segments" and "events 0", "events 1", ...
        missing : dict
            True where an event has no stream at all.
        """
        events = [recording.events[device] for device in sorted(recording.events)]
        segments, blocks = recording.segments, recording.segment_blocks

        pools = list(self._pools)
        kept = _renumber([segments, *events], "pool", len(pools))
        recording.pools = [pools[i] for i in kept]

        keys = list(self._stacks)
        kept_stacks = [
            np.frombuffer(keys[i], np.int32) for i in _renumber([segments, blocks, *events], "stack", len(keys))
        ]
        recording.stacks = np.cumsum([0, *map(len, kept_stacks)]).astype(np.int32)
        rows = np.concatenate(kept_stacks) if kept_stacks else np.zeros(0, np.int32)

        order = _order([rows], len(self._frames))
        recording.stack_frames = _apply(rows, order)
        table: I32 = np.array(list(self._frames), np.int32).reshape(-1, 3)[order]
        recording.frames = Frames(
            filename=table[:, 0], line=table[:, 1], name=table[:, 2], source=np.full(len(table), -1, np.int32)
        )
        self._finish_strings(recording)
        _finish_streams(recording, streams, missing)

    def _finish_strings(self, recording: Recording) -> None:
        frames = recording.frames
        columns: list[tuple[Table, str]] = [(frames, "filename"), (frames, "name")]
        for device in sorted(recording.events):
            columns += [(recording.events[device], "metadata"), (recording.events[device], "compile_context")]
        columns.append((recording.annotations, "name"))
        # Two texts may be one after `printable`, which leaves numbers without a text; they are never used.
        texts: dict[int, str] = {}
        for text, number in self._strings.items():
            texts.setdefault(number, printable(text))
        order = _order([getattr(table, name) for table, name in columns], max(texts, default=-1) + 1)
        for table, name in columns:
            setattr(table, name, _apply(getattr(table, name), order))
        recording.strings = [texts[i] for i in order.tolist()]


def _finish_streams(recording: Recording, streams: dict[str, U64], missing: dict[str, NDArray[np.bool_]]) -> None:
    tables: dict[str, Any] = {"segments": recording.segments}
    tables |= {f"events {device}": recording.events[device] for device in sorted(recording.events)}
    names = [name for name in tables if name in streams]
    raw = [streams[name] for name in names]
    values = np.unique(np.concatenate([_few(column) for column in raw])) if raw else np.zeros(0, np.uint64)
    for name, column in zip(names, raw, strict=True):
        index = np.searchsorted(values, column).astype(np.int32)
        if name in missing:
            index[missing[name]] = -1
        tables[name].stream = index
    kept = _renumber([tables[name] for name in names], "stream", len(values))
    recording.streams = [int(values[i]) for i in kept]


def _few(values: U64) -> U64:
    """Distinct values of a column that has few: one comparison where all are the same."""
    return values[:1] if len(values) and bool((values == values[0]).all()) else np.unique(values)


def _order(columns: list[I32], n: int) -> NDArray[np.int64]:
    """Old numbers in order of first use; unused ones are left out."""
    first = np.full(n, np.iinfo(np.int64).max)
    at = 0
    for column in columns:
        size = len(column)
        used = column >= 0
        seen = np.full(n, np.iinfo(np.int64).max)
        # Of several assignments to one place the last stands, hence backwards.
        seen[column[used][::-1]] = np.arange(at, at + size)[used][::-1]
        np.minimum(first, seen, out=first)
        at += size
    order = np.argsort(first, kind="stable")
    return order[: int((first < np.iinfo(np.int64).max).sum())]


def _apply(column: I32, order: NDArray[np.int64]) -> I32:
    new = np.full((int(order.max()) if len(order) else -1) + 2, -1, np.int32)  # the last one is for -1
    new[order] = np.arange(len(order), dtype=np.int32)
    return new[column]


def _renumber(tables: list[Any], name: str, n: int) -> list[int]:
    order = _order([getattr(table, name) for table in tables], n)
    for table in tables:
        setattr(table, name, _apply(getattr(table, name), order))
    kept: list[int] = order.tolist()
    return kept
