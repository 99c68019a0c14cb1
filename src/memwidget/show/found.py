"""The findings of a trace as the browser gets them.

Owns what travels of a finding, and that a failure to work them out travels as a sentence: neither the picture nor an
exported page may fail for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwidget.answer.findings import findings_payload
from memwidget.show.wire import text

if TYPE_CHECKING:
    from memwidget.trace.trace import Trace


def found(trace: Trace) -> list[dict[str, Any]]:
    """Findings as values that json can write, texts cut as all texts of a payload are."""
    return [_plain(row) for row in findings_payload(trace)]


def found_or_error(trace: Trace) -> list[dict[str, Any]] | dict[str, str]:
    """The findings, or what went wrong: ``{"error": sentence}``."""
    try:
        return found(trace)
    except Exception as error:  # noqa: BLE001  a page without findings is worth more than no page
        return {"error": text(f"{error}" or type(error).__name__)}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
