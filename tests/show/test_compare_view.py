"""A comparison as it travels: to the widget by questions, to a page in its parts."""

import json

import pytest

import memwidget as mw
from memwidget.show import export
from memwidget.show import view as view_module
from memwidget.show.compared import compare_html, compared
from memwidget.show.view import CompareView
from memwidget.trace.trace import Trace
from show.hand_made import BASE, MIB, first, recording
from show.test_export import Elements

STEP = [("/home/me/train.py", 34, "step", "loss = criterion(out, y)")]


@pytest.fixture
def comparison():
    """Give two runs: the line of the loss moved, and took 6 MiB less; the other line is there in the first alone."""
    after = recording(
        [("segment_alloc", BASE, 20 * MIB), ("alloc", BASE, MIB, {"stack": STEP})],
        name="after",
    )
    return mw.compare(Trace(first()), Trace(after))


def test_rows_say_what_each_recording_calls_a_line(comparison):
    rows = {tuple(row["labels"]): (row["before"], row["after"]) for row in compared(comparison)["by_site"]}
    moved = ("train.py:40 in step", "train.py:34 in step")
    assert rows[moved][1] == MIB
    assert rows[("train.py:31 in step", "")][1] == 0
    assert all(isinstance(size, int) for pair in rows.values() for size in pair)


def test_the_widget_answers_for_each_side_and_refuses_others(comparison, monkeypatch):
    monkeypatch.setattr(view_module, "bundle", lambda name: f"/* {name} */")
    view, answers = CompareView(comparison), []
    view.send = lambda content, buffers=None: answers.append((content, buffers or []))
    for kind, side in (("compared", 0), ("data", 0), ("data", 1), ("data", 2), ("other", 0)):
        view._handle_custom_msg({"kind": kind, "id": f"{kind} {side}", "device": side}, [])
    assert [content["kind"] for content, _ in answers] == ["compared", "data", "data", "error"]
    assert [content["header"]["name"] for content, _ in answers[1:3]] == ["first", "after"]
    assert answers[3][0]["message"] == "A comparison has two sides, 0 and 1, not 2."
    shown, _ = view._repr_mimebundle_()
    assert shown["application/vnd.jupyter.widget-view+json"]["model_id"] == view.model_id
    assert shown["text/plain"] == comparison.summary()
    view.close()
    assert repr(view) == "CompareView(closed)"


def test_the_page_holds_both_sides(comparison, monkeypatch, tmp_path):
    real = export._read
    monkeypatch.setattr(export, "_read", lambda name: "/* {{title}} */" if name.startswith("static/") else real(name))
    path = comparison.to_html(tmp_path / "c.html", theme="dark")
    page = Elements(path.read_text("utf-8"))
    names = [json.loads(page.by_id(f"memwidget-header-{side}"))["name"] for side in (0, 1)]
    assert names == ["first", "after"]
    assert json.loads(page.by_id("memwidget-compared")) == json.loads(json.dumps(compared(comparison)))
    assert json.loads(page.by_id("memwidget-options"))["theme"] == "dark"
    with pytest.raises(TypeError, match="no option 'them'; it takes theme, height"):
        compare_html(comparison, them="dark")
