"""The bokeh chart: its areas are the allocated curve, and nothing of it comes from elsewhere."""

import re
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest

import memwidget as mw
from memwidget.show.figures import COLUMNS, category_areas
from memwidget.trace.trace import Trace
from memwidget.units import bytes_text
from show.hand_made import START_US, first, hostile, labelled, without_time

DATA = Path(__file__).resolve().parents[1] / "data"
KIB = 1024


@pytest.mark.parametrize("make", [first, labelled, hostile, without_time])
def test_areas_add_up_to_allocated_at_every_moment(make):
    trace = Trace(make())
    moments = np.arange(trace.n_events + 1)
    areas = category_areas(trace, moments)
    assert sum(sizes for _, sizes in areas).tolist() == trace.curve("allocated").tolist()
    for name, sizes in areas:
        assert sizes[trace.peak_event] == trace.by_category("peak").get(name, 0)


def test_the_chart_draws_them_from_what_stays_to_what_goes():
    trace = Trace(labelled())
    chart = trace.plot()
    data = chart.renderers[0].data_source.data
    stacked = [r.glyph for r in chart.renderers if type(r.glyph).__name__ == "VArea"]
    labels = [item.label.value for item in chart.legend[0].items]
    assert labels == [
        "reserved",
        "temporary",
        "gradient",
        "activation",
        "input",
        "optimizer state",
        "parameter",
    ]
    assert len(stacked) == 6
    assert data["allocated"].max() * KIB * KIB == trace.peak_allocated == 84 * KIB  # reserved is 2 MiB: so is the unit
    assert data["t0"][0] == "16.0 KiB"  # the weight was there
    assert "peak 84.0 KiB" in chart.title.text


def test_a_long_history_keeps_its_peak_in_few_columns():
    trace = mw.load(DATA / "gpt2_small.pickle.xz", capacity=140 << 30)
    chart = trace.plot(axis="time")
    data = chart.renderers[0].data_source.data
    assert len(data["x"]) <= COLUMNS + 2
    assert round(data["allocated"].max() * 2**30) == trace.peak_allocated
    assert (np.diff(data["x"]) >= 0).all()
    (line,) = [a for a in chart.center if type(a).__name__ == "Span"]
    assert line.location == 140


def test_steps_are_shaded_every_second_one():
    recording = labelled()
    recording.facts["steps"] = [START_US + 2500, START_US + 5500, START_US + 12_800]
    chart = Trace(recording).plot()
    boxes = [a for a in chart.center if type(a).__name__ == "BoxAnnotation"]
    assert [(box.left, box.right) for box in boxes] == [(0, 3), (6, 13)]


@pytest.mark.parametrize("make", [labelled, hostile])
def test_what_a_notebook_shows_fetches_nothing(make):
    trace = Trace(make())
    trace.recording.name = "$$x$$ \\[y\\] <script>alert(1)</script>"
    chart = trace.plot()
    assert "$$" not in chart.title.text
    assert "\\[" not in chart.title.text
    bundle, _ = chart._repr_mimebundle_()
    frame = bundle["text/html"]
    assert frame.startswith('<iframe sandbox="allow-scripts allow-downloads"')
    assert "allow-same-origin" not in frame
    page = unescape(frame.split('srcdoc="')[1].rsplit('"', 1)[0])
    assert "Bokeh" in page
    assert len(page) < 1.6e6  # the core alone: neither widgets nor the typesetter for TeX
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)\s*=", page)
    assert "<script>alert(1)" not in page
    assert bundle["text/plain"].startswith("$$x$$")


@pytest.mark.parametrize("make", [labelled, hostile, without_time])
def test_the_page_has_the_chart_and_the_sums(make, tmp_path):
    trace = Trace(make())
    page = trace.to_timeline_html(tmp_path / "x.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    rows = re.findall(r"<tr><th>([^<]*)<td>([^<]*)<td>([^<]*)\n", page)
    assert rows[0] == ("category", "at the peak", "at the end")
    assert rows[-1] == ("all", bytes_text(trace.peak_allocated), bytes_text(int(trace.curve("allocated")[-1])))
    told = {row[0]: row[1:] for row in rows[1:-1]}
    for column, at in enumerate(("peak", "end")):
        for name, size in trace.by_category(at).items():
            assert told[escape(name.replace("_", " "))][column] == bytes_text(size)


def test_wrong_options_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="no times"):
        Trace(without_time()).plot(axis="time")
    with pytest.raises(ValueError, match="axis='x' is unknown"):
        Trace(first()).plot(axis="x")
    with pytest.raises(ValueError, match="theme='blue' is unknown"):
        Trace(first()).plot(theme="blue")
