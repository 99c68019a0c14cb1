"""Two recordings side by side: what moved is found again, what differs has its bytes."""

import pytest

import memwidget as mw
from memwidget import cli
from memwidget.read import load_recording
from memwidget.trace.trace import Trace
from text_snapshot import snapshot

MiB = 1 << 20


def trace(text, sources=(), name=""):
    """A trace whose lines have a text: (line, text) pairs."""
    recording = load_recording(snapshot(text), name=name)
    for line, source in sources:
        rows = recording.frames.line == line
        recording.frames.source[rows] = len(recording.strings)
        recording.strings.append(source)
    return Trace(recording)


BEFORE = """
alloc x 10MiB @ train.py:10 step
alloc y 20MiB @ train.py:11 step
alloc z 30MiB @ train.py:12 step
"""
AFTER = """
alloc x 10MiB @ train.py:14 step
alloc y 50MiB @ train.py:15 step
alloc w 5MiB @ train.py:16 step
"""


def rows(found):
    return {(row.name, row.before // MiB, row.after // MiB) for row in found if row.change or row.before}


def test_moved_lines_are_found_by_function_and_text():
    before = trace(BEFORE, [(10, "x = load()"), (11, "y = f(x)"), (12, "z = g(y)")])
    after = trace(AFTER, [(14, "x = load()"), (15, "y = f(x)"), (16, "w = h(y)")])
    assert rows(mw.compare(before, after).by_site) == {
        ("train.py:14 in step (was train.py:10 in step)", 10, 10),
        ("train.py:15 in step (was train.py:11 in step)", 20, 50),
        ("train.py:12 in step", 30, 0),
        ("train.py:16 in step", 0, 5),
    }


def test_an_edited_line_is_one_row():
    before = trace(BEFORE, [(10, "a = randn(1000)"), (11, "b = randn(2000)"), (12, "c = randn(3000)")])
    swapped = """
    alloc x 20MiB @ train.py:10 step
    alloc y 10MiB @ train.py:11 step
    alloc z 50MiB @ train.py:12 step
    """
    after = trace(swapped, [(10, "b = randn(2000)"), (11, "a = randn(1000)"), (12, "c = randn(5000)")])
    assert rows(mw.compare(before, after).by_site) == {
        ("train.py:11 in step (was train.py:10 in step)", 10, 10),
        ("train.py:10 in step (was train.py:11 in step)", 20, 20),
        ("train.py:12 in step", 30, 50),
    }


def test_without_text_a_function_of_as_many_lines_is_matched_in_order():
    found = mw.compare(trace(BEFORE), trace(AFTER)).by_site
    assert [(row.name[:11], row.change // MiB) for row in found[:2]] == [("train.py:15", 30), ("train.py:16", -25)]
    # One line more: which one is new cannot be told, so none is guessed.
    more = trace(AFTER + "alloc v 1MiB @ train.py:17 step\n")
    assert {row.name for row in mw.compare(trace(BEFORE), more).by_site if row.before and row.after} == set()


def test_a_recording_beside_itself_shows_no_difference():
    one = trace(BEFORE)
    comparison = mw.compare(one, one)
    for found in (comparison.totals, comparison.by_site, comparison.by_category, comparison.by_phase):
        assert all(row.change == 0 for row in found)
    assert "no difference" in comparison.summary()


def test_the_summary_says_what_changed_most_first():
    said = mw.compare(trace(BEFORE, name="plain"), trace(AFTER, name="other")).summary()
    assert said.splitlines()[0] == "plain -> other"
    assert "60.0 MiB ->  65.0 MiB   +5.00 MiB  peak allocated" in said
    changes = [line for line in said.splitlines() if "train.py" in line]
    assert "+30.0 MiB" in changes[0]


def test_a_data_frame_holds_every_row():
    pytest.importorskip("pandas")
    frame = mw.compare(trace(BEFORE), trace(AFTER)).to_dataframe()
    assert list(frame.columns) == ["by", "name", "before", "after", "change"]
    assert (frame["after"] - frame["before"] == frame["change"]).all()
    assert frame[frame["by"] == "site"]["change"].sum() == 5 * MiB


def test_checkpointing_shows_as_less_at_the_forward_line():
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
    block = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(64, 64), torch.nn.Tanh())])
    x = torch.rand(512, 64, requires_grad=True)
    found = []
    for plain in (True, False):
        with mw.memtrace(backend="cpu") as rec:
            out = block(x) if plain else checkpoint(block, x, use_reentrant=False)
            (out * 1).sum().item()
        found.append(rec)
    comparison = mw.compare(*found)
    # Three of the four Tanh outputs of 128 KiB are not kept; the state of the random numbers is (5 KB).
    assert comparison.totals[2].change == pytest.approx(-3 * 512 * 64 * 4, rel=0.02)


def test_the_command_prints_the_table_and_refuses_a_bad_file(tmp_path, capsys):
    for name, text in (("a", BEFORE), ("b", AFTER)):
        trace(text).save(tmp_path / f"{name}.memtrace")
    assert cli.main(["compare", str(tmp_path / "a.memtrace"), str(tmp_path / "b.memtrace")]) == 0
    assert "peak allocated" in capsys.readouterr().out
    (tmp_path / "bad").write_bytes(b"no recording")
    assert cli.main(["compare", str(tmp_path / "a.memtrace"), str(tmp_path / "bad")]) == 2
    assert capsys.readouterr().err.startswith("memwidget: ")
