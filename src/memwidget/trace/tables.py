"""Rows as a pandas DataFrame, for those who have pandas: the only place that imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.trace.categories import REASONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.trace.trace import Trace


def data_frame(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> Any:
    """Build a DataFrame of plain rows.

    Raises
    ------
    ImportError
        pandas is not installed; the message says how to get it.
    """
    return _pandas().DataFrame.from_records([tuple(row) for row in rows], columns=list(columns))


def blocks_frame(trace: Trace) -> Any:
    """Build a DataFrame with one row a block of a trace; its index is the block's id.

    Raises
    ------
    ImportError
        pandas is not installed; the message says how to get it.
    """
    pandas = _pandas()
    blocks, strings = trace.blocks, trace.recording.strings
    streams, pools = trace.recording.streams, trace.recording.pools

    def words(numbers: NDArray[Any], named: Any) -> Any:
        """A categorical: numbers as text, below 0 as nothing."""
        known, inverse = np.unique(numbers, return_inverse=True)
        texts = [named(int(number)) if number >= 0 else None for number in known]
        kinds: dict[Any, int] = {}
        place = [-1 if text is None else kinds.setdefault(text, len(kinds)) for text in texts]
        return pandas.Categorical.from_codes(np.array(place, np.int64)[inverse], categories=list(kinds))

    columns = {name: blocks[name] for name in ("address", "size", "requested")}
    columns |= {name: blocks[name] for name in ("alloc_event", "free_requested_event", "free_event")}
    columns |= {name: blocks[name] for name in ("alloc_time_us", "free_time_us")}
    columns["site"] = words(trace.block_site, trace.site_label)
    columns["category"] = words(blocks["category"].astype(np.int64), trace.categories.__getitem__)
    columns["reason"] = words(blocks["reason"].astype(np.int64), REASONS.__getitem__)
    columns["name"] = words(trace.block_label, strings.__getitem__)
    for kind in ("phase", "step"):
        columns[kind] = words(blocks[kind], lambda row: trace.bands[row].name)
    columns["stream"] = words(blocks["stream"], lambda row: int(streams[row]))
    columns["pool"] = words(blocks["pool"], lambda row: tuple(pools[row]))
    return pandas.DataFrame(columns)


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("to_dataframe() needs pandas, which is not installed here: pip install pandas.") from None
    return pd
