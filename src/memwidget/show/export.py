"""One self-contained page with the whole picture in it.

Owns the page's parts and what may stand in them (page.html is its template, js/src/standalone.ts reads it). The page
works from disk, asks nobody for anything, and is told so: its policy allows the one script that it holds, by hash.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwidget.show.found import found_or_error
from memwidget.show.picture import picture_svg
from memwidget.show.text import device_text, summary
from memwidget.show.wire import payload, to_json
from memwidget.units import plain

if TYPE_CHECKING:
    import os

    from memwidget.trace.trace import Trace

__all__ = ["StaticView", "frame_html", "picture_svg", "static_bundle", "to_html"]

HERE = Path(__file__).parent
#: Traits that a page may open with, and their defaults: those of MemView; a page that was given no height fills its
#: window, and has this at least.
OPTIONS: dict[str, Any] = {
    "view": "timeline",
    "moment": -1,
    "window": (0, 0),
    "selection": -1,
    "query": "",
    "axis": "events",
    "color_by": "auto",
    "order": "age",
    "device": None,
    "theme": "auto",
    "height": 400,
    "lang": "auto",
}
#: What those may be that are one of a few.
CHOICES = {
    "view": ("timeline", "allocator", "segments", "live", "findings", "about"),
    "axis": ("events", "time"),
    "color_by": ("auto", "site", "size", "age", "stream", "pool", "category", "phase"),
    "order": ("age", "category"),
    "theme": ("auto", "light", "dark"),
    "lang": ("auto", "en"),
}
NOTE = (
    "This page holds the recording itself: paths, function names and source lines of the code that ran. "
    "Look before you share it. It needs no network."
)


def to_html(trace: Trace, path: str | os.PathLike[str] | None = None, **options: Any) -> str | Path:
    """Write one offline page that holds the picture and all its data.

    Parameters
    ----------
    trace : Trace
    path : path, optional
        Where to write; the text of the page is returned if left out.
    **options
        Traits of the view to open with: `view`, `moment`, `window`, `selection`, `query`, `axis`, `color_by`,
        `order`, `device`, `theme`, `height` (it fills the window if left out), `lang`.

    Returns
    -------
    Path or str
        `path`, or the page.
    """
    page = "".join(_page(trace, options))
    if path is None:
        return page
    path = Path(path)
    path.write_text(page, "utf-8", newline="\n")
    return path


def choice_error(name: str, value: object) -> str:
    """Say in a sentence what an option may be; empty where `value` is that."""
    return "" if value in CHOICES[name] else f"{name}: {value!r} is none of {', '.join(CHOICES[name])}."


def frame_html(trace: Trace, **options: Any) -> str:
    """The page in a sandboxed frame, for the output of a cell: it cannot reach the notebook around it."""
    # A cell has less room than a page; 72 px for the page's margins and its note.
    options.setdefault("height", 460)
    page = "".join(_page(trace, options))
    height = int(options["height"]) + 72
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(plain(trace.name, 120))}" loading="lazy" '
        f'style="width:100%;height:{height}px;border:0" srcdoc="{escape(page)}"></iframe>'
    )


class StaticView:
    """A view without a kernel and without a widget: one page in a sandboxed frame, stored in the notebook.

    Parameters
    ----------
    trace : Trace
    **options
        As for `to_html`.
    """

    def __init__(self, trace: Trace, **options: Any) -> None:
        self._trace, self._options = trace, options

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:  # noqa: ARG002
        return {
            "text/html": frame_html(self._trace, **self._options),
            **static_bundle(self._trace, self._options.get("color_by", "auto")),
        }, {}


def static_bundle(trace: Trace, color_by: str = "auto") -> dict[str, str]:
    """What stands beside a widget or a frame: a picture and a summary, by mime type."""
    return {"image/svg+xml": picture_svg(trace, color_by), "text/plain": summary(trace)}


def _page(trace: Trace, options: dict[str, Any]) -> list[str]:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"to_html has no option {unknown[0]!r}; it takes {', '.join(OPTIONS)}.")
    wrong = [error for name in CHOICES if name in options and (error := choice_error(name, options[name]))]
    if wrong:
        raise ValueError(wrong[0])
    device = options.get("device")
    if device is not None and device != trace.device:
        trace = trace.for_device(device)
    opened = {**OPTIONS, **({"moment": trace.oom_moments[-1]} if trace.oom_moments else {}), **options}
    opened["device"] = trace.device
    sent = payload(trace)
    script = page_script("standalone.js")
    theme = str(opened["theme"])
    parts = {
        "policy": page_policy(script),
        "title": escape(f"{plain(trace.name, 120) or 'recording'} on {device_text(trace)}"),
        "body": page_body(options),
        "scheme": theme if theme in ("light", "dark") else "light dark",
        "style": page_style(),
        "picture": picture_svg(trace, opened["color_by"]),
        "summary": escape(summary(trace)),
        "note": escape(NOTE),
        "header": to_json(sent.header),
        "options": to_json(opened),
        "findings": to_json(found_or_error(trace)),
        "columns": page_columns(sent.buffers),
        "script": script,
    }
    return fill("page.html", parts)


def fill(template: str, parts: dict[str, str]) -> list[str]:
    """Pieces of a template with its parts in place."""
    # One pass over the template: text from a file that happens to read "{{script}}" stays text.
    pieces = re.split(r"\{\{(\w+)\}\}", _read(template))
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return pieces


def page_body(options: dict[str, Any]) -> str:
    """Class of a page's body: whether the picture fills the window."""
    return "" if "height" in options else "memwidget-fill"


def page_policy(script: str) -> str:
    """What a page may do: run this one script, and fetch nothing."""
    hashed = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{hashed}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def page_style() -> str:
    """The style sheet of a page."""
    return _read("static/widget.css").replace("</", "<\\/")


def page_columns(buffers: list[memoryview]) -> str:
    """All columns one after the other, each padded to 8 bytes, in base64."""
    padded: list[memoryview | bytes] = []
    for buffer in buffers:
        padded += [buffer, bytes(-buffer.nbytes % 8)]
    return b64encode(b"".join(padded)).decode()


def page_script(name: str) -> str:
    """A built script as it may stand in a page."""
    code = _read(f"static/{name}")
    # Inside a script element only these end or confuse it; in JavaScript both can stand in strings and patterns alone.
    code = re.sub(r"</(?=script)", r"<\\/", code, flags=re.IGNORECASE)
    # The page's parser turns CRLF into LF before it hashes.
    return code.replace("<!--", "<\\!--").replace("\r\n", "\n")


def _read(name: str) -> str:
    try:
        return (HERE / name).read_text("utf-8")
    except FileNotFoundError:
        raise RuntimeError(
            f"memwidget: the front end is not built ({name} is missing): run `npm ci && npm run build` in js/."
        ) from None
