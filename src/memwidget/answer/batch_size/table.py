"""The answer as a table and in words.

Owns the text of a fit. It must not know how the numbers were found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from memwidget.answer.batch_size.limits import margin_of
from memwidget.answer.batch_size.trials import Trial, words
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    from memwidget.answer.batch_size.fit import BatchSizeFit


@dataclass(frozen=True)
class Table:
    """Rows of plain values, with a text of them."""

    rows: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        cells = [names, *[[_cell(row[name]) for name in names] for row in self.rows]]
        widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
        return "\n".join(
            "  ".join(
                text.ljust(width) if column == len(names) - 1 else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return ""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return bytes_text(value)
    return str(value)


def table_of(fit: BatchSizeFit) -> Table:
    """Each size that ran, measured and as the fit has it, and the size proposed."""
    ordered = sorted(fit.trials, key=lambda t: math.prod(t.size))
    rows = [_row(fit, trial, "trial" if trial.fits else "out of memory") for trial in ordered]
    for check in fit.checks:
        fits = fit.keeps(check)
        rows.append(_row(fit, check, "proposed: ran and fits" if fits else "proposed: does not fit"))
    if fit.size is not None and not any(fit.size_of(fit.size) == t.size for t in (*fit.trials, *fit.checks)):
        expected, low, high = fit.predict(fit.size)
        rows.append(
            {
                "size": words(fit.size_of(fit.size)), "allocated": "", "reserved": "", "predicted": expected,
                "low": low, "high": high, "": "proposed, not run",
            }
        )  # fmt: skip
    return Table(tuple(rows))


def _row(fit: BatchSizeFit, trial: Trial, remark: str) -> dict[str, Any]:
    expected, low, high = fit.foretold.get(trial.size) or fit.predict(trial.size)
    return {
        "size": words(trial.size),
        "allocated": trial.allocated if trial.fits else "",
        "reserved": trial.reserved if trial.fits else "",
        "predicted": expected,
        "low": low,
        "high": high,
        "": remark,
    }


def summary_of(fit: BatchSizeFit) -> str:
    """Everything in words."""
    margin = margin_of(fit.margin, fit.limit)
    lines = [f"limit {bytes_text(fit.limit)} on {plain(fit.device_name or fit.kind, 60)}, margin {bytes_text(margin)}"]
    if fit.size is None:
        least = fit.along(1, fit.largest_trial.size)
        if not fit.knows(least):
            least = min((t for t in fit.trials if t.fits), key=lambda t: math.prod(t.size)).size
        expected, _, high = fit.predict(least)
        lines.append(f"No size fits: size {words(least)} needs {bytes_text(expected)} (up to {bytes_text(high)}).")
    else:
        expected, low, high = fit.predict(fit.size)
        lines.append(
            f"Largest size that fits: {words(fit.size_of(fit.size))}, needing {bytes_text(expected)} "
            f"({bytes_text(low)} to {bytes_text(high)})."
        )
    lines += _verdict(fit)
    lines += ["", str(fit.table())]
    fixed = fit.fixed()
    if fixed:
        parts = ", ".join(f"{name.replace('_', ' ')} {bytes_text(size)}" for name, size in list(fixed.items())[:4])
        lines += ["", f"What stays, whatever the size: {bytes_text(sum(fixed.values()))} ({parts})"]
    growing = fit.grows()[:5]
    if growing:
        lines += ["What grows, with the next sample:"]
        lines += [f"  {bytes_text(g.bytes_per_sample):>9}  {g.share:4.0%}  {plain(g.line, 100)}" for g in growing]
    lines += [f"  -> {advice.text}" for advice in fit.advice()[:2]]
    lines += [f"Note: {plain(note, 400)}" for note in fit.notes]
    lines.append(f"Method: {fit.method}; {fit.why}.")
    return "\n".join(lines)


def _verdict(fit: BatchSizeFit) -> list[str]:
    found = []
    for check in fit.checks:
        expected, low, high = fit.foretold.get(check.size) or fit.predict(check.size)
        if not check.fits:
            found.append(f"Size {words(check.size)} was run and ran out of memory.")
            continue
        got = max(check.allocated, check.reserved)
        fits = "fits" if fit.keeps(check) else "fits, but not with the margin" if got <= fit.limit else "does not fit"
        inside = "inside" if low <= got <= high else "outside"
        found.append(
            f"Size {words(check.size)} was run: {bytes_text(got)}, {fits}; {abs(expected - got) / max(1, got):.1%} off "
            f"the prediction, {inside} its interval."
        )
    if not fit.checks and fit.size is not None and not any(t.size == fit.size_of(fit.size) for t in fit.trials):
        found.append("That size was not run.")
    return found
