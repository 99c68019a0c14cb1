"""The chart of a batch size fit, as a bokeh figure.

Owns `BatchSizeFit.plot`: what was measured, the curve with its band, limits, and categories stacked against the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from bokeh.embed import file_html
from bokeh.models import ColumnDataSource, HoverTool
from bokeh.models.annotations import Label, Span
from bokeh.plotting import figure
from bokeh.resources import Resources

from memwidget.answer.batch_size.limits import bytes_of, margin_of
from memwidget.recording import CATEGORIES
from memwidget.show.figures import _ORDER, _UNITS, _dress, _words
from memwidget.show.palette import PALETTE
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    from memwidget.answer.batch_size.fit import BatchSizeFit

#: Sizes that the curve is computed at; each may cost a replay of the step's requests.
POINTS = 24
_RED, _INK, _PAPER = "#d1242f", "#1f2328", "#ffffff"


def plot(fit: BatchSizeFit, limits: Sequence[float | str] = (), height: int = 380) -> Any:
    """Draw need against size.

    Parameters
    ----------
    limits : sequence of bytes, "24 GiB" or card names
        More limits to draw, beside the fit's own.

    Returns
    -------
    bokeh.plotting.figure
        It shows itself in a notebook.
    """
    lines = [("limit", fit.limit), *((str(each), bytes_of(each)) for each in limits)]
    margin = margin_of(fit.margin, fit.limit)
    at = fit.size_of(fit.size) if fit.size is not None else fit.largest_trial.size
    sizes = _sizes(fit, max(value for _, value in lines), at)
    unit, scale = next((u for u in _UNITS if fit.predict(sizes[-1])[0] >= u[1]), _UNITS[-1])
    across = "batch size"
    if fit.dimensions > 1:
        across = f"number {fit.free + 1} of a size " + " x ".join(
            "n" if i == fit.free else str(n) for i, n in enumerate(at)
        )
    chart = figure(
        height=height,
        sizing_mode="stretch_width",
        title=_title(fit),
        x_axis_label=across,
        y_axis_label=f"peak ({unit})",
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        background_fill_color=_PAPER,
        border_fill_color=_PAPER,
    )
    needs = [fit.predict(size) for size in sizes]
    splits = [fit.split(size) for size in sizes]
    names = [name for name in (*_ORDER, "unknown") if any(name in split for split in splits)]
    source = ColumnDataSource(
        {
            "x": [size[fit.free] for size in sizes],
            "need": [need[0] / scale for need in needs],
            "low": [need[1] / scale for need in needs],
            "high": [need[2] / scale for need in needs],
            "said": [f"{bytes_text(n)} ({bytes_text(low)} to {bytes_text(high)})" for n, low, high in needs],
            **{name: [split.get(name, 0) / scale for split in splits] for name in names},
            **{f"{name} said": [bytes_text(split.get(name, 0)) for split in splits] for name in names},
        }
    )
    if names:
        chart.varea_stack(
            names,
            x="x",
            source=source,
            color=[PALETTE["light"]["category"][CATEGORIES.index(name)] for name in names],
            legend_label=[_words(name) for name in names],
            fill_alpha=0.75,
        )
    chart.varea("x", "low", "high", source=source, fill_color=_INK, fill_alpha=0.2, legend_label="95 % interval")
    curve = chart.line("x", "need", source=source, line_color=_INK, line_width=1.5, legend_label="predicted need")
    chart.add_tools(
        HoverTool(
            renderers=[curve],
            mode="vline",
            line_policy="nearest",
            tooltips=[
                ("size", "@x"),
                ("need", "@said"),
                *((_words(name), f"@{{{name} said}}") for name in reversed(names)),
            ],
        )
    )
    _measured(chart, fit, at, scale)
    for name, value in lines:
        chart.add_layout(Span(location=value / scale, dimension="width", line_color=_RED))
        chart.add_layout(
            Label(
                x=sizes[0][fit.free],
                y=value / scale,
                text=_words(plain(name, 40)),
                text_color=_RED,
                text_font_size="11px",
            )
        )
    if margin:
        chart.add_layout(
            Span(location=(fit.limit - margin) / scale, dimension="width", line_color=_RED, line_dash="dashed")
        )
    if fit.size is not None:
        chart.add_layout(Span(location=at[fit.free], dimension="height", line_color=_INK, line_dash="dotted"))
    _dress(chart, _INK, _PAPER)
    chart._repr_mimebundle_ = lambda **_: _bundle(chart, fit)  # type: ignore[attr-defined]
    return chart


def _sizes(fit: BatchSizeFit, most: int, at: tuple[int, ...]) -> list[tuple[int, ...]]:
    """From the smallest trial to somewhat beyond the highest limit, and to every run on the line that is drawn."""
    along = [
        trial.size[fit.free] for trial in (*fit.trials, *fit.checks) if fit.along(0, trial.size) == fit.along(0, at)
    ]
    first = min(trial.size[fit.free] for trial in fit.trials)
    last = at[fit.free]
    if fit.knows(fit.along(last + 1, at)):
        found = fit.largest(most, 0, [None if i == fit.free else n for i, n in enumerate(at)])
        last = max(last, fit.size_of(found)[fit.free] if found is not None else 0)
    last = max(round(last * 1.1) + 1, *along)
    steps = {first + round((last - first) * i / (POINTS - 1)) for i in range(POINTS)} | set(along)
    return [size for size in (fit.along(n, at) for n in sorted(steps)) if fit.knows(size)]


def _measured(chart: Any, fit: BatchSizeFit, at: tuple[int, ...], scale: int) -> None:
    """Trials as filled rounds, runs of proposals as empty ones, those that did not fit as crosses."""
    keeps = [check for check in fit.checks if fit.keeps(check)]
    wrong = [check for check in fit.checks if check.fits and not fit.keeps(check)]
    for trials, word, marker, fill in (
        (fit.trials, "measured", "circle", 1.0),
        (keeps, "proposal, run and fits", "circle", 0.0),
        (wrong, "run, does not fit", "x", 0.0),
    ):
        mine = [trial for trial in trials if trial.fits and fit.along(0, trial.size) == fit.along(0, at)]
        if not mine:
            continue
        color = _RED if marker == "x" else _INK
        peaks = [max(trial.allocated, trial.reserved) for trial in mine]
        source = ColumnDataSource(
            {
                "x": [trial.size[fit.free] for trial in mine],
                "y": [peak / scale for peak in peaks],
                "said": [bytes_text(peak) for peak in peaks],
                "seconds": [f"{trial.seconds:.2f} s a step" for trial in mine],
            }
        )
        dots = chart.scatter(
            "x",
            "y",
            source=source,
            marker=marker,
            size=8,
            line_color=color,
            fill_color=color,
            fill_alpha=fill,
            legend_label=word,
        )
        chart.add_tools(HoverTool(renderers=[dots], tooltips=[("size", "@x"), (word, "@said"), ("", "@seconds")]))


def _title(fit: BatchSizeFit) -> str:
    size = "none" if fit.size is None else " x ".join(map(str, fit.size_of(fit.size)))
    name = _words(plain(fit.device_name or fit.kind, 60))
    return f"{name}: largest size that fits under {bytes_text(fit.limit)}: {size}"


def _bundle(chart: Any, fit: BatchSizeFit) -> tuple[dict[str, str], dict[str, Any]]:
    """What a notebook shows: a frame that holds the chart and bokeh's core script, and can reach nothing outside."""
    page = file_html(chart, Resources(mode="inline"), _title(fit))
    style = f"width:100%;height:{int(chart.height) + 24}px;border:0"
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" '
        f'title="{escape(_title(fit))}" srcdoc="{escape(page)}"></iframe>'
    )
    return {"text/html": frame, "text/plain": fit.summary}, {}
