"""Event dicts -> rows of columns.

Owns what the fields of one event mean. A snapshot may hold millions of events, so each field is taken out of all of
them in one comprehension (about 0.1 s a million) and checked as a whole; only where a check fails is the culprit
looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memwidget.read.intern import Tables, wrong
from memwidget.recording import ACTION, I32, I64, U8, U64

OTHER = ACTION["other"]
#: Actions whose address and size mean nothing or may be missing.
LOOSE = frozenset(ACTION[name] for name in ("oom", "snapshot", "annotate", "other"))
OOM = ACTION["oom"]

#: Keys in one dict: torch writes up to 15. A small file may name one large dict a million times.
MAX_KEYS = 100

USED_KEYS = frozenset(
    {
        "action",
        "addr",
        "device_free",
        "size",
        "stream",
        "frames",
        "time_us",
        "compile_context",
        "user_metadata",
        "pool_id",
        "segment_pool_id",
    }
)
#: Known, and nothing that a Recording keeps.
KNOWN_KEYS = USED_KEYS | {"forward_frames"}
#: What stands for "none" in a text field.
NO_TEXT = {"user_metadata": ("",), "compile_context": ("", "N/A")}


@dataclass
class Rows:
    """Columns of one device's events, before streams are numbered."""

    action: U8
    address: U64
    size: I64
    stream: U64
    no_stream: NDArray[np.bool_]
    stack: I32
    time_us: I64
    pool: I32
    metadata: I32
    compile_context: I32

    @classmethod
    def empty(cls, n: int) -> Rows:
        """Rows with nothing known."""
        return cls(
            action=np.zeros(n, np.uint8),
            address=np.zeros(n, np.uint64),
            size=np.zeros(n, np.int64),
            stream=np.zeros(n, np.uint64),
            no_stream=np.ones(n, np.bool_),
            stack=np.full(n, -1, np.int32),
            time_us=np.zeros(n, np.int64),
            pool=np.full(n, -1, np.int32),
            metadata=np.full(n, -1, np.int32),
            compile_context=np.full(n, -1, np.int32),
        )


def plain_rows(
    rows: Rows, events: Sequence[Any], places: Sequence[int], tables: Tables, where: str
) -> tuple[set[str], set[str]]:
    """Fill `rows` at `places` from event dicts.

    Returns
    -------
    unknown : set of str
        Keys that are not known.
    actions : set of str
        Actions that are not known.
    """
    if any(not issubclass(kind, dict) for kind in set(map(type, events))):
        i = next(i for i, event in enumerate(events) if not isinstance(event, dict))
        raise wrong(f"{where}[{places[i]}]", "a dict", events[i])
    if max(map(len, events)) > MAX_KEYS:
        i = next(i for i, event in enumerate(events) if len(event) > MAX_KEYS)
        raise wrong(f"{where}[{places[i]}]", f"a dict of at most {MAX_KEYS} keys", events[i])
    keys = set(chain.from_iterable(events))
    chunk = _Chunk(events, places, where, keys)
    at: Any = slice(places.start, places.stop) if isinstance(places, range) else np.array(places)

    names = chunk.column("action", str, "text")
    actions = np.array([ACTION.get(name, OTHER) for name in names], np.uint8)
    rows.action[at] = actions
    unknown = {str(name)[:40] for name in set(names)} - ACTION.keys() if OTHER in actions else set()

    loose = np.isin(actions, list(LOOSE))
    rows.address[at] = chunk.addresses(actions, loose)
    rows.size[at] = chunk.numbers("size", loose)
    if "stream" in keys:
        streams = _values(events, "stream")
        absent = np.array([stream is None for stream in streams], np.bool_)
        rows.stream[at] = chunk.unsigned([0 if s is None else s for s in streams], "stream")
        rows.no_stream[at] = absent
    if "time_us" in keys:
        rows.time_us[at] = chunk.numbers("time_us", np.ones(len(events), np.bool_))
    if "frames" in keys:
        frames = _values(events, "frames")
        rows.stack[at] = tables.stacks(frames, lambda i: chunk.name(i, "frames"))
    if keys & {"pool_id", "segment_pool_id"}:
        rows.pool[at] = chunk.pools(tables)
    if "user_metadata" in keys:
        rows.metadata[at] = chunk.texts("user_metadata", tables)
    if "compile_context" in keys:
        rows.compile_context[at] = chunk.texts("compile_context", tables)
    return {str(key)[:40] for key in keys - KNOWN_KEYS}, unknown


class _Chunk:
    """Some event dicts, one field at a time."""

    def __init__(self, events: Sequence[Any], places: Sequence[int], where: str, keys: set[Any]) -> None:
        self.events = events
        self.places = places
        self.where = where
        self.keys = keys

    def name(self, i: int, field: str) -> str:
        return f"{self.where}[{self.places[i]}].{field}"

    def check(self, values: list[Any], kind: type, field: str, expected: str) -> None:
        if not set(map(type, values)) <= {kind}:
            i = next(i for i, value in enumerate(values) if type(value) is not kind)
            raise wrong(self.name(i, field), expected, values[i])

    def column(self, field: str, kind: type, expected: str) -> list[Any]:
        values = _values(self.events, field)
        self.check(values, kind, field, expected)
        return values

    def numbers(self, field: str, may_miss: NDArray[np.bool_]) -> I64:
        """A field of signed numbers; 0 where it is missing and may be."""
        values = _values(self.events, field)
        self._fill_missing(values, may_miss, lambda _i: 0)
        self.check(values, int, field, "a number")
        try:
            return np.array(values, np.int64)
        except OverflowError:
            i = next(i for i, value in enumerate(values) if not -(2**63) <= value < 2**63)
            raise wrong(self.name(i, field), "a number", values[i]) from None

    def unsigned(self, values: list[Any], field: str) -> U64:
        """Addresses; writers that know only signed numbers give the upper half as negative."""
        self.check(values, int, field, "an address")
        if min(values) < -(2**63) or max(values) >= 2**64:
            i = next(i for i, value in enumerate(values) if not -(2**63) <= value < 2**64)
            raise wrong(self.name(i, field), "an address", values[i])
        if min(values) < 0:
            values = [value % 2**64 for value in values]
        return np.array(values, np.uint64)

    def addresses(self, actions: U8, loose: NDArray[np.bool_]) -> U64:
        """The addresses; of an oom what the device had free, which torch writes in its place."""
        values = _values(self.events, "addr")
        free = (
            [
                event.get("device_free", 0) if a == OOM else 0
                for event, a in zip(self.events, actions.tolist(), strict=True)
            ]
            if ("device_free" in self.keys)
            else None
        )
        self._fill_missing(values, loose, lambda i: free[i] if free is not None else 0)
        return self.unsigned(values, "addr")

    @staticmethod
    def _fill_missing(values: list[Any], may_miss: NDArray[np.bool_], default: Any) -> None:
        if None in values:
            for i, value in enumerate(values):
                if value is None and may_miss[i]:
                    values[i] = default(i)

    def pools(self, tables: Tables) -> I32:
        found = np.full(len(self.events), -1, np.int32)
        known: dict[int, int] = {}
        for i, event in enumerate(self.events):
            pool = event.get("pool_id")
            if pool is None:
                pool = event.get("segment_pool_id")
            if pool is not None:
                number = known.get(id(pool))
                if number is None:
                    number = known[id(pool)] = tables.pool(pool, self.name(i, "pool_id"))
                found[i] = number
        return found

    def texts(self, field: str, tables: Tables) -> I32:
        values = _values(self.events, field)
        if not set(map(type, values)) <= {str, type(None)}:
            i = next(i for i, value in enumerate(values) if type(value) not in {str, type(None)})
            raise wrong(self.name(i, field), "text", values[i])
        numbers = {text: tables.string(text, field) for text in set(values) - {None, *NO_TEXT[field]}}
        return np.array([numbers.get(text, -1) for text in values], np.int32)


def _values(events: Sequence[Any], key: str) -> list[Any]:
    """One field of all events, None where it is missing; most often it is nowhere."""
    try:
        return [event[key] for event in events]
    except KeyError:
        return [event.get(key) for event in events]
