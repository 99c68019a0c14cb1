"""Charts of a trace, as bokeh figures.

Owns `Trace.plot`: categories as stacked areas, the reserved line, capacity and steps; and the page of it. Only importer
of bokeh. What is shown in a notebook carries bokeh's core script inline, in a frame of its own: nothing is fetched from
anywhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from bokeh.embed import file_html
from bokeh.models import ColumnDataSource, HoverTool
from bokeh.models.annotations import BoxAnnotation, Span
from bokeh.plotting import figure
from bokeh.resources import Resources

from memwidget.show.palette import palette_with
from memwidget.show.picture import column_moments
from memwidget.show.text import device_text, summary
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    import os

    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: Columns drawn: one a pixel of a wide cell. Each shows its highest moment, so that no spike is lost.
COLUMNS = 1_200
#: Steps marked; more would be one grey.
MAX_STEPS = 200
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
#: Categories from the bottom: what stays through the run lies lowest.
_ORDER = (
    "preexisting",
    "parameter",
    "buffer",
    "optimizer_state",
    "input",
    "activation",
    "gradient",
    "autograd_detail",
    "temporary",
    "output",
)


def plot(
    trace: Trace,
    *,
    axis: Literal["events", "time"] = "events",
    theme: Literal["light", "dark"] = "light",
    height: int = 380,
) -> Any:
    """Draw a trace by category.

    Parameters
    ----------
    trace : Trace
    axis : {"events", "time"}
        What runs along x: events, or seconds since the first one.
    theme : {"light", "dark"}
    height : int
        In pixels; the width is that of the cell.

    Returns
    -------
    bokeh.plotting.figure
        It shows itself in a notebook; ``bokeh.io.save`` and the like take it as well.
    """
    if axis not in {"events", "time"}:
        raise ValueError(f'axis={axis!r} is unknown; use "events" or "time".')
    if theme not in {"light", "dark"}:
        raise ValueError(f'theme={theme!r} is unknown; use "light" or "dark".')
    if axis == "time" and not trace.has_time:
        raise ValueError('This recording has no times; use axis="events".')
    moments = column_moments(trace.curve("allocated"), COLUMNS)
    unit, scale = next((u for u in _UNITS if trace.peak_reserved >= u[1]), _UNITS[-1])
    x = _seconds(trace, moments) if axis == "time" else moments
    areas = category_areas(trace, moments)
    ink, paper = ("#1f2328", "#ffffff") if theme == "light" else ("#d8dce2", "#14161a")
    chart = figure(
        height=height,
        sizing_mode="stretch_width",
        title=_title(trace),
        x_axis_label="seconds" if axis == "time" else "events",
        y_axis_label=f"allocated ({unit})",
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        background_fill_color=paper,
        border_fill_color=paper,
    )
    source = ColumnDataSource({"x": x, **{f"c{i}": sizes / scale for i, (_, sizes) in enumerate(areas)}})
    source.data["allocated"] = trace.curve("allocated")[moments] / scale
    source.data["reserved"] = trace.curve("reserved")[moments] / scale
    for i, (_, sizes) in enumerate(areas):
        source.data[f"t{i}"] = [bytes_text(int(size)) for size in sizes]
    source.data["total"] = [bytes_text(int(size)) for size in trace.curve("allocated")[moments]]
    source.data["held"] = [bytes_text(int(size)) for size in trace.curve("reserved")[moments]]
    _steps(chart, trace, axis)
    colors = dict(zip(trace.categories, palette_with(trace.categories)[theme]["category"], strict=True))
    if areas:
        chart.varea_stack(
            [f"c{i}" for i in range(len(areas))],
            x="x",
            source=source,
            color=[colors[name] for name, _ in areas],
            legend_label=[_words(name) for name, _ in areas],
        )
    top = chart.line("x", "allocated", source=source, line_color=ink, line_width=1)
    if trace.has_reserved:
        chart.step("x", "reserved", source=source, line_color=ink, line_dash="dashed", legend_label="reserved")
    if trace.capacity:
        # No part of the range: a device of 140 GiB must not flatten a run of 4; it shows when one zooms out.
        chart.add_layout(Span(location=trace.capacity / scale, dimension="width", line_color="#d1242f"))
    chart.add_tools(
        HoverTool(
            renderers=[top],
            mode="vline",
            line_policy="nearest",
            tooltips=[
                ("allocated", "@total"),
                *([("reserved", "@held")] if trace.has_reserved else []),
                *((_words(name), f"@t{i}") for i, (name, _) in reversed(list(enumerate(areas)))),
            ],
        )
    )
    _dress(chart, ink, paper)
    chart._repr_mimebundle_ = lambda **_: _bundle(chart, trace)  # type: ignore[attr-defined]
    return chart


def to_timeline_html(trace: Trace, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write the chart as a page of its own, with the categories as a table: torch's ``.html`` timeline, by our labels.

    Parameters
    ----------
    trace : Trace
    path : path
    **options
        Those of `plot`; time is along x where the recording has times.
    """
    chart = plot(trace, **{"axis": "time" if trace.has_time and trace.n_events else "events", **options})
    at_peak, at_end = trace.by_category("peak"), trace.by_category("end")
    names = [*at_peak, *(name for name in at_end if name not in at_peak)]
    rows = [(_words(name), at_peak.get(name, 0), at_end.get(name, 0)) for name in names]
    rows.append(("all", sum(at_peak.values()), sum(at_end.values())))
    body = "".join(
        f"<tr><th>{escape(plain(name, 80))}<td>{bytes_text(peak)}<td>{bytes_text(end)}\n" for name, peak, end in rows
    )
    ink, paper = chart.title.text_color, chart.border_fill_color
    table = (
        f"<style>body{{margin:16px;background:{paper};color:{ink};font:13px system-ui,sans-serif}}"
        "th,td{padding:2px 16px 2px 0;text-align:right;font-variant-numeric:tabular-nums}"
        "th{text-align:left;font-weight:normal}</style>\n"
        f"<p>Max memory allocated: {bytes_text(trace.peak_allocated)}. "
        f"Max memory reserved: {bytes_text(trace.peak_reserved)}.</p>\n"
        f"<table><tr><th>category<td>at the peak<td>at the end\n{body}</table>\n"
    )
    before, end, after = file_html(chart, Resources(mode="inline"), _title(trace)).rpartition("</body>")
    target = Path(path).expanduser()
    target.write_text(before + table + end + after, encoding="utf-8")
    return target


def category_areas(trace: Trace, moments: I64) -> list[tuple[str, I64]]:
    """Allocated bytes of each category at moments, from the bottom of the stack; together they are ``allocated``."""
    blocks, n = trace.blocks, trace.n_events
    names = [*_ORDER, *trace.categories[11:], "unknown"]
    found = []
    for name in names:
        mine = blocks[blocks["category"] == trace.categories.index(name)]
        born, asked = mine["alloc_event"], mine["free_requested_event"]
        change = np.zeros(n + 1, np.int64)
        np.add.at(change, np.maximum(born, -1) + 1, np.where(asked == -2, 0, mine["size"]))
        gone = asked >= 0
        np.subtract.at(change, asked[gone] + 1, mine["size"][gone])
        sizes = np.cumsum(change)[moments]
        if sizes.any():
            found.append((name, sizes))
    return found


def _seconds(trace: Trace, moments: I64) -> Any:
    times = trace.event_times_us
    return np.where(moments > 0, times[np.maximum(moments, 1) - 1] - times[0], 0) / 1e6


def _steps(chart: Any, trace: Trace, axis: str) -> None:
    bands = [band for band in trace.bands if band.kind == "step"][:MAX_STEPS]
    for i, band in enumerate(bands):
        edges = np.array([band.lo, band.hi], np.int64)
        left, right = _seconds(trace, edges) if axis == "time" else edges
        if i % 2 == 0:
            chart.add_layout(
                BoxAnnotation(left=left, right=right, fill_color="#808890", fill_alpha=0.08, level="underlay")
            )


def _title(trace: Trace) -> str:
    of = f" of {bytes_text(trace.capacity)}" if trace.capacity else ""
    name = _words(plain(trace.name, 80)) or "recording"
    return f"{name} on {device_text(trace)}: peak {bytes_text(trace.peak_allocated)}{of}"


def _words(name: str) -> str:
    """A name as bokeh may show it: what it would take for TeX, and fetch a typesetter for, is parted."""
    return name.replace("_", " ").replace("$$", "$ $").replace("\\[", "\\ [").replace("\\(", "\\ (")


def _dress(chart: Any, ink: str, paper: str) -> None:
    chart.toolbar.logo = None
    chart.y_range.start = 0
    chart.grid.grid_line_color = ink
    chart.grid.grid_line_alpha = 0.1
    chart.outline_line_color = None
    chart.title.text_color = ink
    chart.title.text_font_size = "13px"
    for each in chart.axis:
        each.axis_label_text_color = each.major_label_text_color = ink
        each.axis_label_text_font_style = "normal"
        each.axis_line_color = each.major_tick_line_color = None
        each.minor_tick_line_color = None
    if chart.legend:
        legend = chart.legend[0]
        legend.items = list(reversed(legend.items))  # as the areas lie
        legend.click_policy = "mute"
        legend.label_text_color, legend.background_fill_color = ink, paper
        legend.border_line_color = None
        chart.add_layout(legend, "right")


def _bundle(chart: Any, trace: Trace) -> tuple[dict[str, str], dict[str, Any]]:
    """What a notebook shows: a frame that holds the chart and bokeh's core script, and can reach nothing outside."""
    page = file_html(chart, Resources(mode="inline"), _title(trace))
    style = f"width:100%;height:{int(chart.height) + 24}px;border:0"
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" '
        f'title="{escape(_title(trace))}" srcdoc="{escape(page)}"></iframe>'
    )
    return {"text/html": frame, "text/plain": summary(trace)}, {}
