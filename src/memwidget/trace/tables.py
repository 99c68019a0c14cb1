"""Rows as a pandas DataFrame, for those who have pandas: the only place that imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def data_frame(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> Any:
    """Build a DataFrame of plain rows.

    Raises
    ------
    ImportError
        pandas is not installed; the message says how to get it.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("to_dataframe() needs pandas, which is not installed here: pip install pandas.") from None
    return pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(columns))
