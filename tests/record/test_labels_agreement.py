"""Our categories against torch.profiler's, on the CPU: one profiler run is the recording and the reference at once.

Profilers do not nest, so our recorder cannot run beside torch's. Here torch's profiler records, our hooks sample, and
the events that our recorder would have read come out of the profiler's own tree. (tests/gpu does it on a device.)
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from memwidget.record import Options
from memwidget.record.cpu import _read_tree
from memwidget.record.watch import Watch
from memwidget.recording import Recording
from memwidget.trace.trace import Trace

MODELS = Path(__file__).parents[1] / "gpu" / "labels.py"


@pytest.fixture(scope="module")
def models():
    """Give the models of the device's measurement, in their small sizes."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MEMWIDGET_DEVICE", "cpu")
    spec = importlib.util.spec_from_file_location("gpu_labels", MODELS)
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, "gpu_labels", module)
    spec.loader.exec_module(module)
    yield module
    patch.undo()


def profiled(build):
    """Two steps of a model that is built inside: the trace by our rules, and torch's timeline."""
    torch.manual_seed(0)
    watch = Watch("cpu", [])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as prof:
        watch.start()
        step = build()
        for _ in range(2):
            step()
        watch.stop()
    recording = Recording(device_type="cpu", streams=[0], pools=[(0, 0)])
    tree = prof.profiler.kineto_results.experimental_event_tree()
    _read_tree(tree, 0, recording, Options(backend="cpu", context="none"), [])
    watch.store(recording)
    return Trace(recording), prof._memory_profile()


@pytest.mark.parametrize("name", ["transformer", "resnet50", "gpt2"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_torch_names_has_the_same_name(models, name, capsys):
    trace, told = profiled(models.MODELS[name])
    found = models.compare(trace, told, "cpu")
    with capsys.disabled():
        print(
            f"\n{name}: torch names {found['named']:.1%} of the peak; agreed {found['agreed']:.2%}; "
            f"unknown {found['unknown']:.2%}"
        )
        for row, size in found["table"].items():
            print(f"  {row:<36} {size:>12,}")
    assert found["named"] >= 0.3
    assert found["agreed"] >= 0.97
    assert found["unknown"] <= 0.02
