"""Findings on a real CUDA device: patterns that need the caching allocator, and their false alarms: `make gpu`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("patterns.py")
MIB = 1 << 20
UNUSUAL = {"oom", "growth", "held", "spike", "fragmentation", "pending_free"}
LINEAR = 4 * 4 * (2048 * 2048 + 2048)  # four layers of floats


@pytest.fixture
def run():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")

    def run(name, settings=""):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
        done = subprocess.run(
            [sys.executable, str(FILE), name],
            env={**clean, **({"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {})},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        report = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(report, indent=1))
        return report

    return run


def of(report, *kinds):
    return [f for f in report["findings"] if f["kind"] in kinds]


@pytest.mark.gpu
def test_growth(run):
    (f,) = of(run("summed_loss"), *UNUSUAL)
    assert f["bytes_per_step"] == 16 * MIB
    (f,) = of(run("list_of_losses"), "growth")
    assert f["bytes_per_step"] == 512
    (f,) = of(run("create_graph"), "growth")
    assert f["bytes_per_step"] >= 32 * MIB


@pytest.mark.gpu
def test_what_is_expected_raises_no_alarm(run):
    for name in ("autocast", "ordinary_training", "usual_zero_grad", "checkpointed", "large_batch", "flat_gradients"):
        assert of(run(name), *UNUSUAL) == [], name
    steps = of(run("autocast"), "step")
    assert any(abs(f["bytes"] - 16 * 8 * MIB) < MIB for f in steps)
    assert of(run("made_at_once"), "growth", "spike") == []
    steps = of(run("ordinary_training"), "step")
    assert any(abs(f["bytes"] - 2 * LINEAR) < MIB and f["certain"] for f in steps)


@pytest.mark.gpu
def test_gradients(run):
    (f,) = of(run("late_zero_grad"), *UNUSUAL)
    assert f["bytes"] == pytest.approx(4 * LINEAR, rel=0.01)
    assert 0.5 * f["bytes"] < f["saves"] < f["bytes"]  # without them backward is highest, by a layer's gradients
    (f,) = of(run("gradients_in_evaluation"), "baseline")
    assert f["saves"] == pytest.approx(LINEAR, rel=0.01)
    assert "zero_grad" in f["advice"]


@pytest.mark.gpu
def test_spikes(run):
    (f,) = of(run("built_again"), "spike")
    assert (f["saves"], f["certain"]) == (256 * MIB, True)
    (f,) = of(run("logits"), "spike")
    assert f["bytes"] >= 512 * MIB
    assert f["source"] in {"full = small.float()", "loss = functional.cross_entropy(full, target)"}
    (f,) = of(run("attention"), "spike")
    assert f["bytes"] >= 4 * 4 * 2048 * 2048
    assert f["source"] == "out = (q @ k.mT).softmax(-1) @ v"


@pytest.mark.gpu
def test_the_allocator(run):
    (f,) = of(run("cut_segment"), "fragmentation")
    assert f["bytes"] == 512 * MIB
    assert "expandable_segments" in f["advice"]
    # There the holes are whole pages, which can be mapped elsewhere.
    report = run("cut_segment", "expandable_segments:True")
    assert of(report, "fragmentation") == []
    (f,) = of(report, "cache")
    assert f["saves"] >= 11 * 40 * MIB
    (f,) = [f for f in of(run("side_stream"), "cache") if "another stream" in f["title"]]
    assert f["bytes"] == 512 * MIB
    (f,) = of(run("graph"), "pool")
    assert 256 * MIB <= f["bytes"] <= 600 * MIB
    report = run("workspace")
    assert any("workspace" in f["title"] for f in of(report, "step"))
    assert of(report, "growth", "fragmentation") == []


@pytest.mark.gpu
def test_out_of_memory_and_what_is_kept(run):
    report = run("out_of_memory")
    assert report["findings"][0]["kind"] == "oom"
    (f,) = of(report, "growth")
    assert f["bytes_per_step"] == 100 * MIB
    (f,) = of(run("kept_outputs"), *UNUSUAL)
    assert (f["kind"], f["bytes"]) == ("held", 160 * MIB)


@pytest.mark.gpu
def test_what_stays_for_backward(run):
    report = run("saved_tensors")
    assert report["dropout"] == [16 * MIB, 64 * MIB]  # a mask of one byte a number, and the output
    assert report["norm"] == [4 * 16384, 4 * 16384, 64 * MIB, 64 * MIB]  # statistics by row, the input, the output
    (f,) = of(run("kept_in_a_hook"), *UNUSUAL)
    assert (f["kind"], f["bytes_per_step"]) == ("growth", 4 * MIB)


@pytest.mark.gpu
def test_a_workspace_is_tried_in_the_first_step_only(run):
    report = run("tried_workspace")
    assert of(report, "growth", "held") == []
    for f in of(report, "spike"):  # whether one is tried, and how large, is the library's choice
        assert "first one only" in f["evidence"]


@pytest.mark.gpu
def test_limits_and_the_monitor(run):
    report = run("limits")
    assert dict(report["exceeded"]) == {"peak": 300 * MIB, "held": 300 * MIB}
    assert "reserved" in report["lines"][0]
    assert "free" in report["lines"][0]
