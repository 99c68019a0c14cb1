"""Sliders for the batch size: move limit and margin, read the size that fits.

Owns the only ipywidgets in the house. What it says comes from the fit; nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwidget.answer.batch_size.limits import margin_of
from memwidget.units import bytes_text

if TYPE_CHECKING:
    from memwidget.answer.batch_size.fit import BatchSizeFit

_GIB = 1 << 30


def sliders(fit: BatchSizeFit) -> Any:
    """Two sliders and the answer beneath them.

    Returns
    -------
    ipywidgets.VBox
        ``children`` are the limit in GiB, the margin in percent, and the answer.
    """
    import ipywidgets as w

    most = max(fit.limit, fit.device_limit or 0)
    width = w.Layout(width="460px")
    limit = w.FloatSlider(
        value=fit.limit / _GIB,
        min=min(0.02 * most, fit.limit) / _GIB,
        max=most / _GIB,
        step=most / _GIB / 200,
        description="limit, GiB",
        readout_format=".3g",
        continuous_update=False,
        layout=width,
    )
    share = 100 * margin_of(fit.margin, fit.limit) / fit.limit
    margin = w.FloatSlider(
        value=share, min=0, max=max(30, share), step=0.5, description="margin, %", continuous_update=False, layout=width
    )
    answer = w.HTML()

    def tell(_change: object = None) -> None:
        answer.value = _sentence(fit, int(limit.value * _GIB), margin.value / 100)

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
