"""MemView: the interactive picture in a notebook.

Owns the synced state and the messages between kernel and page; the only importer of anywidget. The page itself is the
bundle in static/, built from js/. Only small things are synced, because a notebook saves every synced value and sends
some of them on each change: columns travel once, as binary buffers of the answer to a message.
"""

from __future__ import annotations

import difflib
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets as t

from memwidget.recording import Recording
from memwidget.show.compared import compared
from memwidget.show.export import CHOICES, StaticView, choice_error, static_bundle, to_html
from memwidget.show.facts import block_facts
from memwidget.show.found import found
from memwidget.show.picture import column_moments
from memwidget.show.text import summary
from memwidget.show.wire import WIRE_VERSION, Payload, payload, text
from memwidget.trace.trace import Trace
from memwidget.units import bytes_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from memwidget.answer.compare import Comparison

STATIC = Path(__file__).parent / "static"
_OPTIONS = ("view", "device", "axis", "color_by", "order", "height", "theme", "lang")
_WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
#: Columns of the overview: more than most pages have pixels for; two curves of 14 digits come to 30 kB.
_OVERVIEW_COLUMNS = 1_024
#: A busy kernel finds all repetitions of a question (after 5, 15, 35 s) at once; one answer is enough for those.
_SAME_QUESTION_S = 4.0
_DEVICE_NEEDED = "memwidget: this view is closed, so it holds no data any more; make a new MemView."


class MemView(anywidget.AnyWidget):
    """Interactive timeline of every block of a recording.

    Parameters
    ----------
    source : Trace, Recording, memtrace's result, path, bytes, file object or snapshot dict
        What to show; anything that `memwidget.load` takes.
    view : {"timeline", "allocator", "segments", "live", "findings", "about"}
        The view to open with.
    device : int, optional
        Which device; the one with most bytes if left out.
    axis : {"events", "time"}
    color_by : {"auto", "site", "size", "age", "stream", "pool", "category", "phase"}
        "auto" is the category where the recording has labels, else the call site; "phase" falls back on it where the
        recording has no phases.
    order : {"age", "category"}
        How blocks are stacked: in order of allocation, or by category and in order of allocation within each. A
        recording without labels is always stacked by age.
    height : int, default 460
        Pixels.
    theme : {"auto", "light", "dark"}
        "auto" follows the page.
    lang : {"auto", "en"}

    Notes
    -----
    Every option is a trait that can be read, set and linked; so are `moment`, `window` (two moments), `selection`
    (a block id, -1 for none) and `query`. `selected` describes the selected block.
    """

    _esm = t.Unicode().tag(sync=True, echo_update=False)
    _css = t.Unicode().tag(sync=True, echo_update=False)

    view = t.Unicode("timeline").tag(sync=True)
    moment = t.Int(-1).tag(sync=True)
    window = t.Tuple(t.Float(), t.Float(), default_value=(0, 0)).tag(sync=True)
    selection = t.Int(-1).tag(sync=True)
    query = t.Unicode("").tag(sync=True)
    axis = t.Unicode("events").tag(sync=True)
    color_by = t.Unicode("auto").tag(sync=True)
    order = t.Unicode("age").tag(sync=True)
    device = t.Int(0).tag(sync=True)
    theme = t.Unicode("auto").tag(sync=True)
    height = t.Int(460).tag(sync=True)
    lang = t.Unicode("auto").tag(sync=True)
    # Hosts that write the whole state back on each change would send the overview to and fro without this.
    overview = t.Dict().tag(sync=True, echo_update=False)

    _trace: Trace | None
    _ready = False

    def __init__(
        self,
        source: Any,
        *,
        view: str = "timeline",
        device: int | None = None,
        axis: str = "events",
        color_by: str = "auto",
        order: str = "age",
        height: int = 460,
        theme: str = "auto",
        lang: str = "auto",
        **unknown: Any,
    ) -> None:
        for name in unknown:
            near = difflib.get_close_matches(name, _OPTIONS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(_OPTIONS)}."
            raise TypeError(f"MemView has no option {name!r}{hint}")
        self._trace = trace = as_trace(source, device)
        self._traces = {trace.device: trace}
        self._cached: tuple[int, Payload] | None = None
        self._answered: tuple[str, float] = ("", 0.0)
        super().__init__(
            _esm=bundle("widget.js"),
            _css=bundle("widget.css"),
            overview=overview(trace),
            moment=_first_moment(trace),
            view=view,
            device=trace.device,
            axis=axis,
            color_by=color_by,
            order=order,
            height=height,
            theme=theme,
            lang=lang,
        )
        self._ready = True
        self.on_msg(self._on_message)

    @property
    def trace(self) -> Trace:
        """The trace that is shown: the chosen device's."""
        if self._trace is None:
            raise RuntimeError(_DEVICE_NEEDED)
        return self._trace

    @property
    def selected(self) -> dict[str, Any]:
        """Facts of the selected block as plain values; empty when no block is selected."""
        trace = self.trace
        return block_facts(trace, self.selection) if self.selection >= 0 else {}

    def close(self) -> None:
        """Close the widget and let go of the data."""
        super().close()
        self._trace = self._cached = None
        self._traces = {}

    def static(self) -> StaticView:
        """The same picture without a widget: the whole page in a frame, data included, for saved notebooks.

        It stays interactive in nbconvert pages and documentation, and stores the data in the notebook.
        """
        kept = (*_OPTIONS, "moment", "window", "selection", "query")
        return StaticView(self.trace, **{name: getattr(self, name) for name in kept})

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | Path:
        """Write what the view shows, as it shows it, to one self-contained page; see `Trace.to_html`."""
        kept = ("view", "axis", "color_by", "order", "theme", "lang", "moment", "window", "selection", "query")
        return to_html(self.trace, path, **{name: getattr(self, name) for name in kept})

    # What the browser asks.

    def _on_message(self, _widget: object, content: Any, _buffers: object) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind not in ("data", "findings", "more"):
            return
        name, now = str(content.get("id", "")), time.monotonic()
        if name == self._answered[0] and now - self._answered[1] < _SAME_QUESTION_S:
            return
        try:
            answer, buffers = self._answer(kind, content.get("device"))
        except Exception as error:  # noqa: BLE001  the page must hear of any failure, or it waits for ever
            self.send({"kind": "error", "id": name, "message": f"{error}" or type(error).__name__})
            return
        self.send({"kind": kind, "id": name, **answer}, buffers)
        self._answered = (name, time.monotonic())

    def _answer(self, kind: str, device: Any) -> tuple[dict[str, Any], list[memoryview]]:
        """What a question is answered with: the columns, the findings (not before they are asked for), or code."""
        if kind == "more":
            return {"source": bundle("more.js")}, []
        if kind == "findings":
            return {"findings": found(self._of(self._known(device)))}, []
        answer = self._payload(device)
        return {"header": answer.header}, list(answer.buffers)

    def _known(self, device: Any) -> int:
        trace = self.trace
        device = trace.device if device is None else device
        if device not in trace.devices:
            raise ValueError(f"The recording has no device {text(repr(device), 40)}.")
        return int(device)

    def _payload(self, device: Any) -> Payload:
        device = self._known(device)
        if self._cached is None or self._cached[0] != device:
            self._cached = (device, payload(self._of(device), read_sources=True))
        return self._cached[1]

    def _of(self, device: int) -> Trace:
        if device not in self._traces:
            self._traces[device] = self.trace.for_device(device)
        return self._traces[device]

    # Changes and their limits.

    @t.observe("device")
    def _on_device(self, change: Any) -> None:
        if not self._ready or change["new"] == self.trace.device:
            return
        self._trace = trace = self._of(change["new"])
        with self.hold_sync():
            # Ids and moments of the old device mean nothing on the new one.
            self.selection, self.window = -1, (0, 0)
            self.moment = _first_moment(trace)
            self.overview = overview(trace)

    @t.validate("device")
    def _valid_device(self, proposal: Any) -> Any:
        # An empty recording has no devices, and still a trace of one.
        return self._within(
            proposal, lambda trace: proposal["value"] in (trace.device, *trace.devices), "is not in this recording"
        )

    @t.validate("moment")
    def _valid_moment(self, proposal: Any) -> Any:
        n = self.trace.n_events
        return self._within(proposal, lambda _: -1 <= proposal["value"] <= n, f"is not within 0 to {n}; -1 is none")

    @t.validate("selection")
    def _valid_selection(self, proposal: Any) -> Any:
        n = self.trace.n_blocks
        return self._within(proposal, lambda _: -1 <= proposal["value"] < n, f"is no block: 0 to {n - 1}, -1 for none")

    @t.validate("window")
    def _valid_window(self, proposal: Any) -> tuple[float, float]:
        lo, hi = proposal["value"]
        n = self.trace.n_events
        if (lo, hi) != (0, 0) and not 0 <= lo < hi <= n:
            raise t.TraitError(f"window: {lo:g} to {hi:g} is no range within 0 to {n}; (0, 0) shows everything.")
        return lo, hi

    @t.validate("height")
    def _valid_height(self, proposal: Any) -> Any:
        return self._within(proposal, lambda _: 120 <= proposal["value"] <= 4_000, "is not within 120 to 4000 pixels")

    @t.validate(*CHOICES)
    def _valid_choice(self, proposal: Any) -> str:
        if error := choice_error(proposal["trait"].name, proposal["value"]):
            raise t.TraitError(error)
        return str(proposal["value"])

    def _within(self, proposal: Any, ok: Callable[[Trace], bool], sentence: str) -> Any:
        if isinstance(proposal["value"], bool):  # an int in Python: True would be block 1
            raise t.TraitError(f"{proposal['trait'].name}: {proposal['value']!r} is no number.")
        if not ok(self.trace):
            raise t.TraitError(f"{proposal['trait'].name}: {proposal['value']!r} {sentence}.")
        return proposal["value"]

    # How it shows itself.

    def __repr__(self) -> str:
        if self._trace is None:
            return "MemView(closed)"
        trace = self._trace
        return (
            f"MemView({text(trace.name, 40)!r}, device={trace.device}, {trace.n_blocks:,} blocks, "
            f"peak {bytes_text(trace.peak_allocated)})"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:  # noqa: ARG002
        # JupyterLab, VS Code and nbconvert prefer the widget; where there is none (GitHub, nbviewer, a saved notebook
        # without state) SVG comes next. No text/html here: it ranks above SVG everywhere, and GitHub strips drawings
        # from it.
        return {
            _WIDGET_MIME: {"version_major": 2, "version_minor": 1, "model_id": self.model_id},
            **static_bundle(self.trace, self.color_by),
        }, {}


class CompareView(anywidget.AnyWidget):
    """Two timelines under one camera, with what differs; what a `Comparison` shows itself as.

    Parameters
    ----------
    comparison : Comparison
    height : int, default 600
        Pixels.
    theme : {"auto", "light", "dark"}
    """

    _esm = t.Unicode().tag(sync=True, echo_update=False)
    _css = t.Unicode().tag(sync=True, echo_update=False)
    height = t.Int(600).tag(sync=True)
    theme = t.Unicode("auto").tag(sync=True)

    def __init__(self, comparison: Comparison, *, height: int = 600, theme: str = "auto") -> None:
        if error := choice_error("theme", theme):
            raise ValueError(error)
        self._comparison: Comparison | None = comparison
        self._sent: dict[int, Payload] = {}
        super().__init__(_esm=bundle("compare.js"), _css=bundle("widget.css"), height=height, theme=theme)
        self.on_msg(self._on_message)

    def close(self) -> None:
        """Close the widget and let go of the data."""
        super().close()
        self._comparison, self._sent = None, {}

    def _on_message(self, _widget: object, content: Any, _buffers: object) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind not in ("compared", "data"):
            return
        name = str(content.get("id", ""))
        try:
            answer, buffers = self._answer(kind, content.get("device"))
        except Exception as error:  # noqa: BLE001  the page must hear of any failure, or it waits for ever
            self.send({"kind": "error", "id": name, "message": f"{error}" or type(error).__name__})
            return
        self.send({"kind": kind, "id": name, **answer}, buffers)

    def _answer(self, kind: str, side: Any) -> tuple[dict[str, Any], list[memoryview]]:
        comparison = self._comparison
        if comparison is None:
            raise RuntimeError(_DEVICE_NEEDED)
        if kind == "compared":
            return {"compared": compared(comparison)}, []
        if side not in (0, 1):
            raise ValueError(f"A comparison has two sides, 0 and 1, not {text(repr(side), 40)}.")
        if side not in self._sent:
            self._sent[side] = payload((comparison.before, comparison.after)[side], read_sources=True)
        answer = self._sent[side]
        return {"header": answer.header}, list(answer.buffers)

    def __repr__(self) -> str:
        return "CompareView(closed)" if self._comparison is None else self._comparison.summary()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:  # noqa: ARG002
        return {
            _WIDGET_MIME: {"version_major": 2, "version_minor": 1, "model_id": self.model_id},
            "text/plain": repr(self),
        }, {}


def as_trace(source: Any, device: int | None) -> Trace:
    """A Trace of whatever was given: a trace, a recording, or a source to read."""
    if isinstance(getattr(source, "trace", None), Trace):
        source = source.trace  # what memtrace gives, or another view
    if isinstance(source, Trace):
        return source if device is None or device == source.device else source.for_device(device)
    if not isinstance(source, Recording):
        from memwidget.read import load_recording

        source = load_recording(source)
    return Trace(source, device)


def _first_moment(trace: Trace) -> int:
    """What the picture opens at: the last allocation that failed, else no moment in particular."""
    return trace.oom_moments[-1] if trace.oom_moments else -1


def overview(trace: Trace) -> dict[str, Any]:
    """What draws before the columns arrive, and in a saved notebook: at most 64 KiB."""
    allocated, reserved = trace.curve("allocated"), trace.curve("reserved")
    moments = column_moments(allocated, _OVERVIEW_COLUMNS)
    tops = column_moments(reserved, _OVERVIEW_COLUMNS)
    return {
        "wire": WIRE_VERSION,
        "name": text(trace.name, 200),
        "device": int(trace.device),
        "device_type": text(trace.device_type, 40),
        "capacity": None if trace.capacity is None else int(trace.capacity),
        "n_events": int(trace.n_events),
        "n_blocks": int(trace.n_blocks),
        "peak_allocated": int(trace.peak_allocated),
        "peak_reserved": int(trace.peak_reserved) if trace.has_reserved else 0,
        "peak_event": int(trace.peak_event),
        "columns": len(moments),
        "allocated": allocated[moments].tolist(),
        "reserved": reserved[tops].tolist() if trace.has_reserved else [],
        "bands": len({(band.kind, band.depth) for band in trace.bands}),
        "summary": text(summary(trace), 8_000),
    }


@cache
def bundle(name: str) -> str:
    """Text of a built file of the front end."""
    try:
        return (STATIC / name).read_text("utf-8")
    except FileNotFoundError:
        raise RuntimeError(
            f"memwidget: the front end is not built ({name} is missing): run `npm ci && npm run build` in js/."
        ) from None
