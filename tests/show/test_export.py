"""The exported page, parsed as a browser parses it: everything is in it, and nothing from a file becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from memwidget.read import load_recording
from memwidget.show import export, found
from memwidget.show.picture import picture_svg
from memwidget.show.wire import payload
from memwidget.trace.trace import Trace
from show.hand_made import GOLDENS, MARKUP, first, hostile, labelled, recording

SCRIPT = 'console.log("<\\/script> <\\!-- {{header}}")'


class Elements(HTMLParser):
    """Tags with their attributes and text, in order; script and style hold raw text."""

    def __init__(self, page):
        super().__init__()
        self.found, self._open = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])
        self._open.append(self.found[-1])

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self._open[-1][2] += data

    def all(self, tag):
        return [e for e in self.found if e[0] == tag]

    def by_id(self, name):
        (element,) = (e for e in self.found if e[1].get("id") == name)
        return element[2]


@pytest.fixture(autouse=True)
def _front_end(monkeypatch):
    real = export._read
    files = {
        "static/standalone.js": 'console.log("</script> <!-- {{header}}")',
        "static/widget.css": ".a { color: red }",
    }
    monkeypatch.setattr(export, "_read", lambda name: files.get(name) or real(name))


@pytest.mark.parametrize("name", GOLDENS)
def test_the_page_holds_the_payload(name, tmp_path):
    trace = Trace(GOLDENS[name]())
    path = tmp_path / "page.html"
    assert export.to_html(trace, path, axis="time", theme="dark") == path
    page = Elements(path.read_text("utf-8"))
    header, buffers = payload(trace)
    assert json.loads(page.by_id("memwidget-header")) == json.loads(json.dumps(header))
    columns = base64.b64decode(page.by_id("memwidget-columns"), validate=True)
    at = 0
    for column, buffer in zip(header["columns"], buffers, strict=True):
        dtype = np.dtype(column["dtype"]).newbyteorder("<")
        assert at % 8 == 0
        assert columns[at : at + column["length"] * dtype.itemsize] == bytes(buffer)
        at += -(-column["length"] * dtype.itemsize // 8) * 8
    assert at == len(columns)
    options = json.loads(page.by_id("memwidget-options"))
    assert (options["axis"], options["theme"], options["device"]) == ("time", "dark", trace.device)
    assert options["moment"] == {"first": 8, "allocator": 23}.get(name, -1)


def test_a_wrong_option_is_refused():
    with pytest.raises(ValueError, match="order: 'size' is none of age, category"):
        export.to_html(Trace(first()), order="size")
    with pytest.raises(TypeError, match="no option 'sort'"):
        export.to_html(Trace(first()), sort="age")


def test_the_page_holds_the_findings_or_why_there_are_none(data, monkeypatch):
    trace = load_recording(data / "leak_features.pickle.xz")
    told = json.loads(Elements(export.to_html(Trace(trace))).by_id("memwidget-findings"))
    assert (told[0]["kind"], told[0]["bytes_per_step"]) == ("growth", 2 * 1024 * 1024)

    def broken(_):
        raise ZeroDivisionError("a rule <b>divided</b> by nothing")

    monkeypatch.setattr(found, "findings_payload", broken)
    told = json.loads(Elements(export.to_html(Trace(trace))).by_id("memwidget-findings"))
    assert told == {"error": "a rule <b>divided</b> by nothing"}


def test_names_from_a_file_stay_text():
    page = Elements(export.to_html(Trace(hostile())))
    plain = Elements(export.to_html(Trace(first())))
    known = {e[0] for e in plain.found}
    assert {e[0] for e in page.found} <= known
    assert len(page.all("script")) == len(plain.all("script")) == 5
    assert page.all("script")[-1][2] == SCRIPT
    assert not [a for e in page.found for a in e[1] if a.startswith("on")]
    assert MARKUP in page.all("title")[0][2]


def test_the_page_may_run_its_own_script_and_fetch_nothing():
    text = export.to_html(Trace(first()))
    page = Elements(text)
    (policy,) = (e[1]["content"] for e in page.all("meta") if e[1].get("http-equiv") == "Content-Security-Policy")
    hashed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{hashed}';" in policy
    assert policy.startswith("default-src 'none';")
    assert not [e for e in page.found if e[1].keys() & {"src", "href"}]
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "source lines" in next(e[2] for e in page.all("p"))
    assert "peak 20.0 MiB of 140 GiB" in page.all("pre")[0][2]


def test_a_missing_bundle_names_the_command(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(export, "HERE", export.HERE / "nowhere")
    with pytest.raises(RuntimeError, match="npm ci && npm run build"):
        export.to_html(Trace(first()))


def test_the_picture_is_small_and_keeps_a_spike_of_one_event():
    # 40,000 events, one of which reaches 64 MiB: a picture of 228 columns must show it.
    events = [(("alloc", "free_requested", "free_completed")[i % 3], 4096, 512) for i in range(39_999)]
    events[20_001:20_001] = [(action, 1 << 30, 64 << 20) for action in ("alloc", "free_requested", "free_completed")]
    picture = picture_svg(Trace(recording(events, device_type="cpu", name="spike")))
    assert len(picture) < 60_000
    assert "peak 64.0 MiB" in picture
    heights = [
        float(y)
        for path in re.findall(r'<path fill="#[^"]+" d="M([^"Z]+)Z', picture)
        for y in re.findall(r"V([\d.]+)", path)
    ]
    assert min(heights) == pytest.approx(204 - 174 / 1.04, abs=0.2)  # 4 % of room above the peak


def test_reserved_is_drawn_where_the_recording_knows_it(data):
    known = picture_svg(Trace(first()))
    assert known.count("stroke-dasharray") == 2  # the line and its sign in the legend
    assert ">reserved</text>" in known
    profiled = load_recording(data / "profiler_timeline.raw.json.gz")
    for trace in (Trace(recording([("alloc", 4096, 512)], device_type="cpu")), Trace(profiled)):
        assert not trace.has_reserved
        picture = picture_svg(trace)
        assert "stroke-dasharray" not in picture
        assert "reserved" not in picture


@pytest.mark.parametrize(
    ("color_by", "layers"),
    [
        # Sizes in KiB as show/hand_made.py has them: the most that each held at once.
        ("phase", {"optimizer": (16, "#329961"), "backward": (24, "#cd6500"), "forward": (48, "#086f99")}),
        (
            "auto",
            {
                "temporary": (16, "#d3769a"),
                "activation": (32, "#daa452"),
                "input": (12, "#56b4e9"),
                "optimizer state": (16, "#329961"),
                "gradient": (16, "#cd6500"),
                "parameter": (16, "#086f99"),
            },
        ),
    ],
)
def test_the_picture_has_the_layers_and_colours_of_the_widget(color_by, layers):
    picture = picture_svg(Trace(labelled()), color_by)
    legend = re.findall(r"<g><title>([^:]+): at most ([\d.]+) KiB</title><rect[^>]+fill=\"(#\w+)\"", picture)
    assert [(label, float(size), color) for label, size, color in legend if label != "everything else"] == [
        (label, size, color) for label, (size, color) in layers.items()
    ]
