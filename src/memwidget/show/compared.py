"""A comparison as the browser gets it, and as one self-contained page.

Owns what travels of a comparison beside its two traces (js/src/compare.ts reads it), and the page's parts; compare.html
is its template, js/src/compare_page.ts its script. How a page may run is the same as in export.py.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwidget.show.export import NOTE, fill, page_body, page_columns, page_policy, page_script, page_style
from memwidget.show.wire import payload, text, to_json
from memwidget.units import plain

if TYPE_CHECKING:
    import os

    from memwidget.answer.compare import Comparison, Difference

#: Rows of a table that travel, the largest changes first.
MOST_ROWS = 1_000
OPTIONS: dict[str, Any] = {"theme": "auto", "height": 480}


def compared(comparison: Comparison) -> dict[str, Any]:
    """The tables of a comparison as values that json can write."""
    return {
        "totals": [_row(row) for row in comparison.totals[:2]],
        "by_site": [{**_row(row), "labels": [text(each) for each in row.labels]} for row in _most(comparison.by_site)],
        "by_category": [_row(row) for row in _most(comparison.by_category)],
        "by_phase": [_row(row) for row in _most(comparison.by_phase)],
        "by_step": [_row(row) for row in _most(comparison.by_step)],
    }


def compare_html(comparison: Comparison, path: str | os.PathLike[str] | None = None, **options: Any) -> str | Path:
    """Write a comparison as one offline page; without a path, its text comes back.

    Parameters
    ----------
    comparison : Comparison
    path : path, optional
    **options
        `theme` ("auto", "light", "dark") and `height` in pixels (it fills the window if left out).
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"to_html has no option {unknown[0]!r}; it takes {', '.join(OPTIONS)}.")
    opened = {**OPTIONS, **options}
    script = page_script("compare_page.js")
    theme = str(opened["theme"])
    names = [plain(trace.name, 120) or "recording" for trace in (comparison.before, comparison.after)]
    parts = {
        "policy": page_policy(script),
        "title": escape(f"{names[0]} and {names[1]}"),
        "body": page_body(options),
        "scheme": theme if theme in ("light", "dark") else "light dark",
        "style": page_style(),
        "summary": escape(comparison.summary()),
        "note": escape(NOTE),
        "compared": to_json(compared(comparison)),
        "options": to_json(opened),
        "script": script,
    }
    for side, trace in enumerate((comparison.before, comparison.after)):
        header, buffers = payload(trace)
        parts[f"header_{side}"], parts[f"columns_{side}"] = to_json(header), page_columns(buffers)
    page = "".join(fill("compare.html", parts))
    if path is None:
        return page
    path = Path(path)
    path.write_text(page, "utf-8", newline="\n")
    return path


def _most(rows: tuple[Difference, ...]) -> tuple[Difference, ...]:
    return rows[:MOST_ROWS]


def _row(row: Difference) -> dict[str, Any]:
    return {"name": text(row.name), "before": row.before, "after": row.after}
