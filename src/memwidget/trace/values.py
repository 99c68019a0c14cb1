"""What a Trace answers with: frames, bands, rankings. Plain values, no questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Frame(NamedTuple):
    """One line of a stack; `source` is its text where that was stored at recording."""

    filename: str
    line: int
    name: str
    source: str | None = None


class Band(NamedTuple):
    """A named range of moments: an annotation, a phase or a step."""

    kind: str
    name: str
    lo: int
    hi: int
    depth: int


@dataclass(frozen=True)
class SiteRow:
    """One call site's share of the live memory at a moment; `frame` is its row of the recording's frames, or -1."""

    label: str
    bytes: int
    count: int
    frame: int


class Ranking(Mapping[str, int]):
    """Bytes by name, largest first; `rows` has more than the number."""

    def __init__(self, rows: tuple[Any, ...]) -> None:
        self.rows = rows
        self._bytes = {row.label: row.bytes for row in rows}

    def __getitem__(self, key: str) -> int:
        return int(self._bytes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._bytes)

    def __len__(self) -> int:
        return len(self._bytes)

    def __repr__(self) -> str:
        return repr(self._bytes)
