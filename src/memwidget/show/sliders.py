"""Sliders for the batch size: move limit and margin, read the size that fits.

Owns the only ipywidgets in the house. What it says comes from the fit; nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwidget.answer.batch_size.limits import margin_of
from memwidget.units import bytes_text

if TYPE_CHECKING:
    from memwidget.answer.batch_size.fit import BatchSizeFit

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
#: The slider goes up to the device's limit, and to this many times the fit's own at most.
_REACH = 20


def sliders(fit: BatchSizeFit) -> Any:
    """Two sliders and the answer beneath them.

    Returns
    -------
    ipywidgets.VBox
        ``children`` are the limit, in the unit that its label says, the margin in percent, and the answer.
    """
    import ipywidgets as w

    unit, scale = next(each for each in _UNITS if fit.limit >= each[1])
    # From what no size is below to the device's own limit, where that is within reach: a slider of a card's memory
    # cannot be set to MiB. 0.5 % of the limit a click.
    least = min(sum(fit.fixed().values()), fit.limit // 2)
    most = max(fit.limit, min(fit.device_limit or 0, _REACH * fit.limit))
    width = w.Layout(width="460px")
    limit = w.FloatSlider(
        value=fit.limit / scale,
        min=least / scale,
        max=most / scale,
        step=fit.limit / scale / 200,
        description=f"limit, {unit}",
        readout_format=".4g",
        continuous_update=False,
        layout=width,
    )
    share = round(100 * margin_of(fit.margin, fit.limit) / fit.limit, 2)
    margin = w.FloatSlider(
        value=share,
        min=0,
        max=max(30, share),
        step=0.5,
        description="margin, %",
        readout_format=".3g",
        continuous_update=False,
        layout=width,
    )
    answer = w.HTML()

    def tell(_change: object = None) -> None:
        answer.value = _sentence(fit, max(1, int(limit.value * scale)), margin.value / 100)

    limit.observe(tell, "value")
    margin.observe(tell, "value")
    tell()
    return w.VBox([limit, margin, answer])


def _sentence(fit: BatchSizeFit, limit: int, margin: float) -> str:
    """Numbers only, so nothing in it needs escaping."""
    size = fit.largest(limit, margin)
    if size is None:
        return f"<b>No size fits</b> under {bytes_text(limit)} with a margin of {margin:.1%}."
    expected, low, high = fit.predict(size)
    named = " &times; ".join(map(str, fit.size_of(size)))
    return f"<b>{named}</b> fits: {bytes_text(expected)} ({bytes_text(low)} to {bytes_text(high)})."
