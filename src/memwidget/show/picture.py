"""The static picture: the timeline as a small SVG, for pages that show no widgets.

Owns its geometry and what it leaves out. It stands on GitHub, in nbconvert pages and diffs, where no style sheet of
ours applies and the background may be light or dark, so ink is a grey with 4:1 contrast to both. Nothing in it is a
link, a script or a style sheet; all text is escaped.
"""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memwidget.show.palette import PALETTE, palette_with, site_color
from memwidget.show.text import device_text, without_history
from memwidget.show.wire import phases_of, pool_label, stream_labels
from memwidget.units import bytes_text, duration_text, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwidget.trace.trace import Trace

WIDTH, HEIGHT = 720, 232
#: The drawing's box; the legend stands to its right.
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 30, 520, 204
#: Two pixels a column: 228 columns times 7 outlines stay below 60 kB.
_COLUMNS = (_RIGHT - _LEFT) // 2
_SITES = 6
_INK = "#7b818a"
#: Characters of 11 px text beside the drawing.
_LABEL = 28
_FONT = "font-family=\"system-ui,-apple-system,'Segoe UI',sans-serif\""

I64 = NDArray[np.int64]


def column_moments(curve: I64, columns: int) -> I64:
    """The moment each column shows: that column's highest, so that no spike is lost."""
    edges = _edges(len(curve), columns)
    tops = np.maximum.reduceat(curve, edges[:-1])
    # The first moment of each column that reaches the column's top.
    hits = np.flatnonzero(curve == np.repeat(tops, np.diff(edges)))
    return hits[np.searchsorted(hits, edges[:-1])]


def _edges(n: int, columns: int) -> I64:
    columns = min(n, columns)
    return np.arange(columns + 1, dtype=np.int64) * n // columns


def picture_svg(trace: Trace, color_by: str = "auto") -> str:
    """Small SVG of the timeline, stacked by what held most.

    Parameters
    ----------
    trace : Trace
    color_by : {"auto", "site", "category", "phase", "stream", "pool"}
        What the layers are. As in the widget, "auto" is the category where there are labels, else the call site; so is
        what has no layers: a size, an age, the phase of a recording without phases.

    Returns
    -------
    str
        At most 60 kB, readable on light and dark pages.
    """
    title = f"{plain(trace.name, 28) or 'recording'} · {device_text(trace)}"
    if trace.n_events == 0:
        return _frame(title, "", _one_moment(trace))
    moments = column_moments(trace.curve("allocated"), _COLUMNS)
    edges = _edges(trace.n_events + 1, _COLUMNS)
    sites, layers = _layers(trace, moments, color_by)
    top = float(max(trace.peak_allocated, trace.peak_reserved, 1)) * 1.04

    xs = _LEFT + (_RIGHT - _LEFT) * edges / edges[-1]
    parts = [_y_axis(top, trace.peak_allocated)]
    stacked = np.cumsum(layers[::-1], axis=0)[::-1]  # row i: layers i and below it in the picture
    for color, outline in zip([color for _, _, color in sites], stacked, strict=True):
        parts.append(f'<path fill="{color}" d="{_area(xs, _y(outline, top))}"/>')
    if trace.has_reserved:
        line = _line(xs, _y(np.maximum.reduceat(trace.curve("reserved"), edges[:-1]), top))
        parts.append(f'<path fill="none" stroke="{_INK}" stroke-dasharray="4 3" d="{line}"/>')
    parts.append(_peak(trace, top))
    parts.append(_x_axis(trace))
    parts.append(_legend(sites, reserved=trace.has_reserved))
    of = f" of {bytes_text(trace.capacity)}" if trace.capacity else ""
    return _frame(title, f"peak {bytes_text(trace.peak_allocated)}{of}", "".join(parts))


class _Kind(NamedTuple):
    """What the layers are: a key for each block (-1: none), and the label and colour of a key."""

    keys: I64
    named: Callable[[int], tuple[str, str]]
    #: Whether the keys are in an order of their own, from the bottom up; else the largest layer is on top.
    ordered: bool = True


def _kind(trace: Trace, color_by: str) -> _Kind:
    blocks = trace.blocks
    phases, phase = phases_of(trace)
    light = palette_with(trace.categories, phases)["light"]
    ways = {
        "category": (blocks["category"], [name.replace("_", " ") for name in trace.categories]),
        "phase": (phase, phases),
        "stream": (blocks["stream"], stream_labels(trace.recording.streams)),
        "pool": (blocks["pool"], [pool_label(pool) for pool in trace.recording.pools]),
    }
    way = color_by if color_by in ways and (color_by != "phase" or phases) else "auto"
    if color_by == "site" or (way == "auto" and not trace.has_labels):
        return _Kind(trace.block_site.astype(np.int64), partial(_site, trace), ordered=False)
    keys, labels = ways["category" if way == "auto" else way]
    colors = light["category" if way == "auto" else way]
    return _Kind(keys.astype(np.int64), lambda key: (labels[key], colors[key % len(colors)]))


def _site(trace: Trace, row: int) -> tuple[str, str]:
    frames, recording = trace.recording.frames, trace.recording
    source = recording.strings[frames.source[row]] if frames.source[row] >= 0 else None
    color = site_color(
        recording.strings[frames.filename[row]], int(frames.line[row]), recording.strings[frames.name[row]], source
    )
    return trace.site_label(row), PALETTE["light"]["site"][color]


def _layers(trace: Trace, moments: I64, color_by: str) -> tuple[list[tuple[str, int, str]], NDArray[Any]]:
    """Bytes a layer held in each column, from the top down, everything else last; (label, top bytes, color) a row."""
    blocks = trace.blocks
    keys, named, ordered = _kind(trace, color_by)
    first = np.searchsorted(moments, blocks["alloc_event"] + 1)
    freed = blocks["free_requested_event"].astype(np.int64) + 1  # 0: never freed; below it: before the start
    last = np.where(freed == 0, len(moments), np.searchsorted(moments, freed))
    rows, row_of = np.unique(keys, return_inverse=True)
    width = len(moments) + 1
    change = np.bincount(row_of * width + first, blocks["size"], len(rows) * width)
    change -= np.bincount(row_of * width + np.maximum(last, first), blocks["size"], len(rows) * width)
    held = np.cumsum(change.reshape(len(rows), width), axis=1)[:, :-1]

    tops = held.max(axis=1) if len(rows) else np.zeros(0)
    # What never comes to half a pixel would only take room in the legend.
    least = tops.max(initial=0) / 400
    order = [i for i in np.argsort(-tops, kind="stable").tolist() if rows[i] >= 0 and tops[i] > least][:_SITES]
    if ordered:
        order.sort(reverse=True)
    layers = [(label, int(tops[i]), color) for i in order for label, color in [named(int(rows[i]))]]
    rest = np.delete(held, order, axis=0).sum(axis=0)
    if rest.any() or not order:
        layers.append(("everything else", int(rest.max(initial=0)), str(PALETTE["light"]["none"])))
        return layers, np.vstack([held[order], rest[None]])
    return layers, held[order]


def _y(values: NDArray[Any], top: float) -> NDArray[np.float64]:
    return np.round(_BOTTOM - (_BOTTOM - _TOP) * np.clip(values / top, 0, 1), 1)


def _steps(xs: NDArray[np.float64], ys: NDArray[np.float64]) -> str:
    """A step line from column to column, a corner only where the height changes."""
    corners = np.flatnonzero(np.diff(ys)) + 1
    steps = "".join(f"H{xs[i]:.4g}V{ys[i]:g}" for i in corners.tolist())
    return f"{xs[0]:g},{ys[0]:g}{steps}H{xs[-1]:.4g}"


def _area(xs: NDArray[np.float64], ys: NDArray[np.float64]) -> str:
    return f"M{_steps(xs, ys)}V{_BOTTOM}H{_LEFT}Z"


def _line(xs: NDArray[np.float64], ys: NDArray[np.float64]) -> str:
    return f"M{_steps(xs, ys)}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, color: str = _INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def _y_axis(top: float, peak: int) -> str:
    step = 512.0
    while top / step > 4:
        step *= 2  # powers of two: every label is a round number of KiB, MiB or GiB
    unit = bytes_text(peak).split(" ")[1]  # the title's: one unit a picture
    scale = 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)
    parts = []
    for i in range(int(top / step) + 1):
        y = float(_y(np.array(i * step), top))
        parts.append(f'<path stroke="{_INK}" stroke-opacity=".3" d="M{_LEFT},{y:g}H{_RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y + 4, "0" if i == 0 else f"{i * step / scale:g} {unit}", anchor="end"))
    return "".join(parts)


def _x_axis(trace: Trace) -> str:
    y = _BOTTOM + 16
    end = f"{trace.n_events:,} events"
    if trace.has_time:
        times = trace.event_times_us
        end += f", {duration_text(int(times[-1]) - int(times[0]))}"
    return _text(_LEFT, y, "0") + _text(_RIGHT, y, end, anchor="end")


def _peak(trace: Trace, top: float) -> str:
    x = round(_LEFT + (_RIGHT - _LEFT) * (trace.peak_event + 0.5) / (trace.n_events + 1), 1)
    y = float(_y(np.array(trace.peak_allocated), top))
    return f'<path fill="{_INK}" d="M{x:g},{y - 2:g}l-4,-7h8z"><title>peak</title></path>'


def _legend(sites: list[tuple[str, int, str]], *, reserved: bool) -> str:
    parts = []
    for i, (label, size, color) in enumerate(sites):
        y = _TOP + 9 + i * 24
        full = plain(label, 200)
        short = full if len(full) <= _LABEL else full[: _LABEL - 1] + "…"
        parts.append(f"<g><title>{escape(full)}: at most {bytes_text(size)}</title>")
        parts.append(f'<rect x="{_RIGHT + 14}" y="{y - 9}" width="10" height="10" rx="2" fill="{color}"/>')
        parts.append(_text(_RIGHT + 30, y, short))
        parts.append(_text(_RIGHT + 30, y + 11, bytes_text(size), size=10) + "</g>")
    if reserved:
        parts.append(f'<path stroke="{_INK}" stroke-dasharray="4 3" d="M{_RIGHT + 12},{_BOTTOM + 12}h14"/>')
        parts.append(_text(_RIGHT + 30, _BOTTOM + 16, "reserved"))
    return "".join(parts)


def _one_moment(trace: Trace) -> str:
    """Why there is no timeline, and two bars: what the segments tell of the one moment that is known."""
    words = without_history(trace)
    why = _text(_LEFT, _TOP + 12, words[:1].upper() + words[1:] + ".")
    if trace.reserved == 0:
        return why
    reserved, allocated = trace.reserved, trace.allocated
    span = _RIGHT - _LEFT
    color = PALETTE["light"]["none"]
    return why + "".join(
        [
            f'<rect x="{_LEFT}" y="{_TOP + 20}" width="{span}" height="26" fill="none" stroke="{_INK}"/>',
            f'<rect x="{_LEFT}" y="{_TOP + 20}" width="{span * allocated / reserved:g}" height="26" fill="{color}"/>',
            _text(
                _LEFT,
                _TOP + 66,
                f"{bytes_text(trace.allocated)} allocated of {bytes_text(trace.reserved)} reserved "
                "when the snapshot was taken",
            ),
        ]
    )


def _frame(title: str, facts: str, body: str) -> str:
    label = escape(f"{title}, {facts}".rstrip(", "), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{label}" {_FONT}>'
        + _text(_LEFT, 17, title, size=13)
        + _text(_RIGHT, 17, facts, anchor="end", size=13)
        + body
        + "</svg>"
    )
