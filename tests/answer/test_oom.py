"""Out of memory in words: true ones, and none that the facts do not bear out."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwidget.answer.oom import explain
from memwidget.read import load_recording
from memwidget.trace.rules import Rule
from memwidget.trace.trace import Trace
from text_snapshot import snapshot

DATA = Path(__file__).parents[1] / "data"
HOLES = "\n".join(
    [*(f"alloc x{i} 5MiB" for i in range(8)), "free x0", "free x2", "free x5", "oom 11MiB device_free=1MiB"]
)


def test_a_limit_that_the_file_does_not_name() -> None:
    """set_per_process_memory_fraction(0.01) on an H200: 32 MiB refused with 137.76 GiB free (torch's own message)."""
    said = explain(Trace(load_recording(DATA / "oom.pickle.xz")).out_of_memory())
    assert said[0].startswith("32.0 MiB asked for, 1.38 GiB allocated, 1.38 GiB reserved, 138 GiB free")
    assert "limit" in said[1]
    assert "capture.py:212 in oom holds most: 1.25 GiB" in said[2]
    assert not any("expandable" in s for s in said)  # 240 KiB of holes are not the cause


@pytest.mark.parametrize("on", [False, True])
def test_expandable_segments_are_advised_only_where_they_help_and_are_off(on: bool) -> None:
    said = explain(Trace(load_recording(snapshot(HOLES, {"expandable_segments": on}))).out_of_memory())
    assert any("15.0 MiB in holes smaller than that (the largest hole: 5.00 MiB)" in s for s in said)
    assert any("expandable_segments:True" in s for s in said) is not on
    assert not any("limit" in s for s in said)


def test_what_the_memory_was_for_is_said_where_it_is_known() -> None:
    text = "alloc a 12MiB @ a.py:1 update_cache\nalloc b 30MiB @ a.py:2 g\noom 11MiB device_free=1MiB"
    plain = Trace(load_recording(snapshot(text)))
    assert not any("what it was for" in s for s in explain(plain.out_of_memory()))
    named = plain.with_rules([Rule("KV cache", function="update_cache")])
    assert "By what it was for: KV cache 12.0 MiB." in explain(named.out_of_memory())
    assert named.out_of_memory().by_category["KV cache"] == 12 << 20
