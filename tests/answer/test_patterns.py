"""Patterns that people hit, on the CPU recorder: each alarm, and the false alarm beside it. KiB stand for MiB."""

import gc
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memwidget as mw

KiB = 1024
UNUSUAL = {"growth", "held", "spike", "fragmentation", "pending_free"}


def buf(n):
    return torch.empty(n * KiB, dtype=torch.uint8)


def record(code, **options):
    """Findings of a function, with what it returns kept until the recording has ended."""
    with mw.memtrace(backend="cpu", **options) as rec:
        kept = code(rec) if code.__code__.co_argcount else code()
    found = rec.trace.findings()
    del kept
    return found


def of_kind(found, *kinds):
    return [f for f in found if f.kind in kinds]


def the_line(finding):
    """Source of the line, as stored with the recording."""
    return finding.site.source


# -- graphs and references --------------------------------------------------------------------------------------------


def test_a_loss_summed_with_its_graph():
    def code():
        w, total = torch.ones(2 * KiB, requires_grad=True), 0
        for _ in range(20):
            x = torch.rand(2 * KiB)
            total = total + ((w * x) ** 2).mean()
        return total

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.kind == "growth"
    assert growth.bytes_per_step == 16 * KiB  # x, and w * x saved by pow
    assert the_line(growth) in {"x = torch.rand(2 * KiB)", "total = total + ((w * x) ** 2).mean()"}
    assert len(growth.lines) == 2
    assert ".item()" in growth.advice or ".detach()" in growth.advice


def test_the_allocation_is_named_though_the_name_is_deleted():
    def code():
        w, total = torch.ones(2 * KiB, requires_grad=True), 0
        for _ in range(20):
            x = torch.rand(2 * KiB)
            total = total + ((w * x) ** 2).mean()
            del x
        return total

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 16 * KiB
    assert len(growth.lines) == 2  # that of x too, whose name is gone


def test_a_loss_summed_after_backward_leaves_next_to_nothing():
    def code():
        w, total = torch.ones(2 * KiB, requires_grad=True), 0
        for _ in range(20):
            x = torch.rand(2 * KiB)
            loss = ((w * x) ** 2).mean()
            loss.backward()
            w.grad = None
            total = total + loss
        return total

    assert all(f.bytes_per_step <= 512 for f in of_kind(record(code), "growth"))
    assert of_kind(record(code), "spike") == []


def test_a_list_of_losses_grows_by_one_number_a_step():
    def code():
        w, losses = torch.ones(2 * KiB, requires_grad=True), []
        for _ in range(20):
            loss = ((w * torch.rand(2 * KiB)) ** 2).mean()
            loss.backward()
            w.grad = None
            losses.append(loss)
        return losses

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == 4  # one float; one block of 512 B on a GPU
    assert ".item()" in growth.advice


@pytest.mark.parametrize("grad", [True, False])
def test_outputs_kept_with_and_without_their_graph(grad):
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU())])

    def code():
        outs = []
        with torch.set_grad_enabled(grad):
            for _ in range(12):
                outs.append(net(torch.rand(64, 64)))  # noqa: PERF401
        return outs

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == (5 if grad else 1) * 16 * KiB  # the input and four outputs, or the last one alone
    assert the_line(growth).startswith("outs.append(net(")
    assert ("no_grad" in growth.advice) == grad


def test_a_ring_of_gradients_is_not_cured_by_collecting():
    def one():
        x = torch.rand(4 * KiB, requires_grad=True)
        y = x.tanh()
        y.backward(torch.ones_like(y), create_graph=True)

    def code():
        for _ in range(10):
            one()
        gc.collect()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of just this
        (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step >= 16 * KiB
    assert "collector cannot see" in " ".join(growth.evidence)


def test_a_retained_graph_is_flat_across_its_backwards():
    def code():
        h = torch.rand(8 * KiB, requires_grad=True)
        for _ in range(8):
            h = h.tanh()
        heads = [torch.rand(8 * KiB, requires_grad=True) for _ in range(4)]
        for head in heads:
            (h * head).sum().backward(retain_graph=True)

    assert of_kind(record(code), "growth") == []


class Trainer:
    """Keeps what validation gives until the next validation."""

    def __init__(self):
        self.outs = []

    def validate(self):
        self.outs.clear()
        for _ in range(20):
            self.outs.append(buf(8))

    def train(self):
        for _ in range(20):
            one, other = buf(4), buf(4)
            del one, other


def test_outputs_kept_from_one_validation_to_the_next_are_held_and_bounded():
    def code():
        trainer = Trainer()
        for _ in range(3):
            trainer.validate()
            trainer.train()
        return trainer

    (held,) = of_kind(record(code), *UNUSUAL)
    assert (held.kind, held.bytes) == ("held", 160 * KiB)
    assert "in validate" in " ".join(held.evidence)


# -- cycles, hooks, caches --------------------------------------------------------------------------------------------


class Node:
    """Refers to itself."""

    def __init__(self):
        self.data, self.me = buf(100), self


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
def test_cycles_grow_until_the_collector_comes():
    def code():
        for _ in range(20):
            Node()
        gc.collect()

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 100 * KiB
    assert "garbage collector ran" in " ".join(growth.evidence)
    assert "cycle" in growth.advice


class Hooked(nn.Module):
    """Its hook closes over it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.empty(16 * KiB))
        self.register_forward_hook(lambda *_: self.w)


@pytest.mark.usefixtures("no_gc")
def test_a_hook_that_closes_over_its_module_grows_until_the_collector_comes():
    def code():
        for _ in range(10):
            Hooked()
        gc.collect()

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 64 * KiB
    assert "garbage collector ran" in " ".join(growth.evidence)


def test_a_hook_that_appends_grows_under_no_grad():
    net, acts = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), []
    net[0].register_forward_hook(lambda _, __, out: acts.append(out))

    def code():
        with torch.no_grad():
            for _ in range(20):
                net(torch.rand(32, 64))

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == 8 * KiB
    assert the_line(growth) == "net(torch.rand(32, 64))"


def test_a_dict_that_grows_and_one_that_fills():
    def grows():
        cache = {}
        for i in range(30):
            cache[i] = torch.rand(KiB)
        return cache

    def fills():
        cache = {}
        for i in range(30):
            x = torch.rand(4 * KiB)
            if i < 5:
                cache[i] = torch.rand(KiB)
            del x
        return cache

    (growth,) = of_kind(record(grows), "growth")
    assert growth.bytes_per_step == 4 * KiB
    assert of_kind(record(fills), "growth") == []


def test_autocasts_copies_of_the_weights_are_a_step():
    net, x = nn.Sequential(*[nn.Linear(128, 128) for _ in range(16)]), torch.rand(4, 128)

    def code():
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            net(x)
            net(x)

    found = record(code)
    assert of_kind(found, *UNUSUAL) == []
    (step,) = of_kind(found, "step")
    assert step.bytes == pytest.approx(16 * 2 * (128 * 128 + 128), rel=0.02)


# -- training ---------------------------------------------------------------------------------------------------------


def training(steps, clear):
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    opt = torch.optim.AdamW(net.parameters())

    def code():
        history = []
        for _ in range(steps):
            loss = net(torch.rand(8, 256)).pow(2).mean()
            if clear == "before backward":
                opt.zero_grad()
            loss.backward()
            opt.step()
            if clear == "after step":
                opt.zero_grad()
            history.append(loss.item())
        return history

    parameters = sum(p.numel() * 4 for p in net.parameters())
    return record(code), parameters


def test_optimizer_state_comes_once():
    found, parameters = training(4, "after step")
    assert of_kind(found, *UNUSUAL) == []
    (state,) = of_kind(found, "step")
    assert state.bytes == pytest.approx(2 * parameters, rel=0.01)
    assert "first step" in state.title


def test_gradients_that_stand_through_the_forward_pass():
    found, parameters = training(6, "before backward")
    (held,) = of_kind(found, *UNUSUAL)
    assert (held.kind, held.bytes) == ("held", parameters)
    assert "zero_grad(set_to_none=True)" in held.advice
    assert held.saves == parameters


def test_an_ordinary_loop_is_nothing_unusual():
    found, _ = training(12, "after step")
    assert of_kind(found, *UNUSUAL) == []


def test_recomputation_under_checkpointing_is_no_leak():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()) for _ in range(8))
    x = torch.rand(256, 64, requires_grad=True)

    def code():
        for _ in range(6):
            h = x
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=False)
            h.sum().backward()
            blocks.zero_grad()
            x.grad = None

    assert of_kind(record(code), "growth", "held") == []


# -- spikes -----------------------------------------------------------------------------------------------------------


def test_logits_are_a_spike_at_the_users_line():
    state = SimpleNamespace(
        logits=torch.rand(64, 1024, dtype=torch.bfloat16, requires_grad=True), y=torch.zeros(64, dtype=torch.long)
    )

    def code():
        full = (state.logits * 1).float()
        loss = functional.cross_entropy(full, state.y)
        del full
        loss.backward()

    (spike,) = of_kind(record(code), "spike")
    assert the_line(spike) in {
        "full = (state.logits * 1).float()",
        "loss = functional.cross_entropy(full, state.y)",
    }
    assert "chunks" in spike.advice
    assert spike.bytes >= 256 * KiB


def attention(length):
    def code():
        q, k, v = (torch.rand(4, length, 8) for _ in range(3))
        out = (q @ k.mT).softmax(-1) @ v
        del out

    return record(code)


def test_attention_spikes_by_four_for_twice_the_length():
    (short,), (long,) = (of_kind(attention(n), "spike") for n in (64, 128))
    assert the_line(short) == the_line(long) == "out = (q @ k.mT).softmax(-1) @ v"
    assert long.bytes / short.bytes == pytest.approx(4, rel=0.15)


def test_a_workspace_tried_in_the_first_step_only():
    def code(rec):
        for i in range(6):
            x = buf(64)
            work = torch.empty((400 if i == 0 else 20) * KiB, dtype=torch.uint8)
            del work
            y = buf(64)
            del x, y
            for _ in range(6):
                z = buf(16)
                del z
            rec.step()

    (spike,) = of_kind(record(code), "spike")
    assert "first" in " ".join(spike.evidence)
    assert spike.bytes == 400 * KiB
