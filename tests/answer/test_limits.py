"""Limits: what goes over is named by line and byte, and nothing of the code is held."""

import gc
import logging
import subprocess
import sys
import weakref
from collections import deque

import pytest
import torch

import memwidget as mw

KiB = 1024


def buf(n):
    return torch.empty(n * KiB, dtype=torch.uint8)


def test_the_peak():
    def code(peak):
        with mw.limit(peak=peak, backend="cpu"):
            return buf(900), buf(200)

    with pytest.raises(mw.MemoryLimitExceeded) as caught:
        code("1 MiB")
    (exceeded,) = caught.value.exceeded
    assert (exceeded.limit, exceeded.allowed, exceeded.actual) == ("peak", 1 << 20, 1100 * KiB)
    assert "test_limits.py" in str(caught.value)
    assert "1,126,400 B" in str(caught.value)
    assert code(1100 * KiB)


def test_what_is_held():
    kept = []
    with pytest.raises(mw.MemoryLimitExceeded) as caught, mw.limit(held=0, backend="cpu"):
        kept.append(buf(7))
    assert caught.value.exceeded[0].actual == 7 * KiB
    with mw.limit(held="7 KiB", backend="cpu"):
        kept.append(buf(7))
    with mw.limit(held=0, backend="cpu"):
        buf(7)


def test_growth_by_step():
    kept = []

    def code(growth, keep):
        with mw.limit(growth=growth, backend="cpu") as guard:
            for _ in range(10):
                buf(50)
                kept.append(buf(3) if keep else None)
                guard.step()

    with pytest.raises(mw.MemoryLimitExceeded) as caught:
        code("0 B/step", keep=True)
    (exceeded,) = caught.value.exceeded
    assert (exceeded.limit, exceeded.actual) == ("growth", 3 * KiB)
    code("3 KiB/step", keep=True)
    code(0, keep=False)


@pytest.mark.parametrize(("steps", "since"), [(3, 0), (4, 0), (20, 12)])
def test_growth_of_a_few_steps_or_the_last_ones(steps, since):
    def code(kept):
        with mw.limit(growth=0, backend="cpu") as guard:
            for step in range(steps):
                batch = buf(50 + step * 37 % 11)  # the last one is still there as the step ends
                kept.append(buf(5) if step >= since else batch.numel())
                guard.step()

    with pytest.raises(mw.MemoryLimitExceeded) as caught:
        code([])
    assert caught.value.exceeded[0].actual == 5 * KiB


@pytest.mark.parametrize("steps", [12, 17])
def test_what_holds_the_last_few_or_takes_their_place_does_not_grow(steps):
    last, weights = deque(maxlen=4), [torch.rand(100, 10) for _ in range(3 * steps)]
    with mw.limit(growth=0, backend="cpu") as guard:
        weights = [w * 2 for w in weights]
        for step in range(steps):
            last.append(buf(5 + step * 37 % 11))
            weights[step] = weights[step].half()
            guard.step()


def test_too_few_steps_to_tell_are_said():
    def code():
        with mw.limit(growth=0, backend="cpu") as guard:
            for _ in range(2):
                buf(5)
                guard.step()

    with pytest.warns(UserWarning, match="2 steps are too few"):
        code()


def test_a_recording_that_stopped_early_proves_nothing():
    def code(peak):
        with mw.limit(peak=peak, backend="cpu", max_entries=10):
            for _ in range(40):
                buf(3)
            return buf(2000)

    with pytest.raises(RuntimeError, match="max_entries"):
        code("1 MiB")
    with pytest.raises(mw.MemoryLimitExceeded):
        code("1 KiB")


def test_several_at_once_and_the_trace_stays():
    guard = mw.limit(peak=1, held=1, backend="cpu")
    with pytest.raises(mw.MemoryLimitExceeded) as caught, guard:
        kept = buf(5)
    assert [e.limit for e in caught.value.exceeded] == ["peak", "held"]
    assert guard.trace.peak_allocated == kept.numel()


def test_the_blocks_own_error_comes_first():
    def code():
        with mw.limit(peak=0, backend="cpu"):
            buf(10)
            raise KeyError

    with pytest.raises(KeyError):
        code()


def test_nothing_of_the_code_is_held():
    class Marker:
        pass

    def code():
        marker = Marker()
        with mw.limit(peak=0, backend="cpu"):
            buf(10)
            marker.tensor = buf(10)
        return marker

    marks = []

    def catch():
        try:
            code()
        except mw.MemoryLimitExceeded as error:
            frame = error.__traceback__.tb_next.tb_frame
            marks.append(weakref.ref(frame.f_locals["marker"]))
            return error.with_traceback(None)
        return None

    error = catch()
    gc.collect()
    assert marks[0]() is None
    assert error.exceeded[0].actual == 10 * KiB


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "at least one"),
        ({"peak": "2 apples"}, '"2 GiB"'),
        ({"peak": "1 GiB/step"}, '"2 GiB"'),
        ({"growth": "fast"}, '"0 B/step"'),
        ({"held": -1}, "negative"),
    ],
)
def test_a_wrong_limit_is_refused_in_a_sentence(arguments, part):
    with pytest.raises(ValueError, match=r"limit|peak|growth|held") as caught:
        mw.limit(**arguments)
    assert part in str(caught.value)


TESTS = """
import pytest, torch
kept = []

@pytest.mark.memwidget_limit(held=0, backend="cpu")
def test_leaves_something():
    kept.append(torch.ones(1000))

@pytest.mark.memwidget_limit(peak="1 MiB", growth="0 B/step", held="4000 B", backend="cpu")
def test_within():
    kept.append(torch.ones(1000))

@pytest.mark.memwidget_limit(peak="1 MiB", backend="cpu")
def test_fails_by_itself():
    assert torch.ones(1 << 20).sum() == 0
"""


def test_the_marker(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    if b"memwidget_limit" not in subprocess.run([*command, "--markers"], capture_output=True, check=False).stdout:
        command += ["-p", "memwidget.pytest_plugin"]  # a checkout that is on the path but not installed
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    assert "1 passed" in said
    assert "2 failed" in said
    assert "What is held at the end is 3.91 KiB (4,000 B), 0 B (0 B) allowed" in said
    assert "test_it.py:7 in test_leaves_something" in said
    assert said.count("MemoryLimitExceeded") >= 1
    assert "The peak is" not in said  # the test's own failure comes first


def test_monitor_tells_a_line_every_few_steps(caplog):
    lines = []
    watch = mw.monitor(every=2, to=lines.append)
    for _ in range(5):
        watch.step()
    assert [line.split(" on ")[0] for line in lines] == ["step 2", "step 4"]
    assert all("allocated" in line and "peak" in line for line in lines)
    with caplog.at_level(logging.INFO):
        assert list(mw.monitor(to=logging.getLogger("memory")).over("ab")) == ["a", "b"]
    assert [r.message.split(" on ")[0] for r in caplog.records] == ["step 1", "step 2"]
    with pytest.raises(ValueError, match="every="):
        mw.monitor(every=0)
