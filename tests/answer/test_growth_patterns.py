"""Memory that grows, and what only looks like it, on the CPU recorder: each alarm, and the false alarm beside it."""

import functools
import gc
import warnings

import pytest
import torch
from torch import nn

from answer.cpu_patterns import UNUSUAL, KiB, buf, of_kind, record, the_line, traced

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
    def code(rec):
        h = torch.rand(8 * KiB, requires_grad=True)
        for _ in range(8):
            h = h.tanh()
        heads = [torch.rand(8 * KiB, requires_grad=True) for _ in range(4)]
        for i, head in enumerate(heads):
            loss = (h * head).sum()
            with rec.phase(f"backward {i}"):
                loss.backward(retain_graph=True)

    trace = traced(code)
    assert of_kind(trace.findings(), *UNUSUAL) == []
    ends = [trace.live_at(band.hi) for band in trace.bands if band.name.startswith("backward ")]
    kept = [sum(trace.blocks["size"][b] for b in live if trace.site(b).source == "h = h.tanh()") for live in ends]
    assert kept == [8 * 32 * KiB] * 4


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
            for _ in range(2):
                net(x)

    found = record(code)
    assert of_kind(found, *UNUSUAL) == []
    (step,) = of_kind(found, "step")
    assert step.bytes == pytest.approx(16 * 2 * (128 * 128 + 128), rel=0.02)


def test_outputs_that_are_gathered_and_joined_are_nothing_unusual():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def code():
        outs = []
        with torch.no_grad():
            for _ in range(20):
                outs.append(net(torch.rand(64, 64)))  # noqa: PERF401
        return float(torch.cat(outs).mean())

    assert of_kind(record(code), "growth", "held", "step") == []


def test_features_in_an_unbounded_cache_grow_and_in_a_bounded_one_do_not():
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).eval()

    def code(size):
        @functools.lru_cache(maxsize=size)
        def features(i):
            with torch.no_grad():
                return net(torch.rand(64, 64) + i)

        def code():
            for i in range(30):
                features(i).sum().item()
            return features

        return code

    (growth,) = of_kind(record(code(None)), *UNUSUAL)
    assert (growth.kind, growth.bytes_per_step) == ("growth", 4 * 64 * 8)
    assert the_line(growth).startswith("return net(")
    assert of_kind(record(code(4)), "growth") == []


@pytest.mark.parametrize("marks", [True, False])
def test_batches_of_changing_length_hide_no_leak(marks):
    emb, enc = nn.Embedding(500, 64), nn.Linear(64, 64)
    opt = torch.optim.AdamW([*emb.parameters(), *enc.parameters()])

    def code(rec):
        kept = []
        for i in range(40):
            x = torch.randint(0, 500, (16, 5 + i * 37 % 113))
            pooled = enc(emb(x)).mean(1)
            loss = pooled.pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            kept.append(pooled.detach())
            if marks:
                rec.step()
        return kept

    trace = traced(code)
    (growth,) = of_kind(trace.findings(), "growth")
    assert (growth.bytes_per_step, growth.certain) == (16 * 64 * 4, True)
    assert the_line(growth) == "pooled = enc(emb(x)).mean(1)"
    assert trace.blocks["size"][list(growth.blocks)].sum() == growth.bytes


class Block(nn.Module):
    """Made of parameters of its own."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64) * 0.02)
        self.b = nn.Parameter(torch.zeros(64))


class Stack(nn.Module):
    """Appends its blocks in a loop."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(10):
            self.blocks.append(Block())


def parameters():
    made = []
    for _ in range(8):
        made.append(nn.Parameter(torch.randn(64, 64) * 0.02))
        made.append(nn.Parameter(torch.zeros(64)))
    return made


def normalised():
    made = []
    for w in torch.randn(10, 64, 64):
        u = w / w.norm()
        made.append(u)
    return made


@pytest.mark.parametrize("make", [Stack, parameters, normalised])
def test_a_loop_that_builds_something_once_does_not_grow(make):
    def code():
        return make()

    assert of_kind(record(code), "growth") == []


def test_a_dict_filled_in_a_plain_loop_is_at_most_likely_to_grow():
    def code():
        made = {}
        for i in range(20):
            made[i] = torch.randn(64, 64)
        return made

    assert not any(f.certain for f in of_kind(record(code), "growth"))


def test_cat_on_one_line_grows_by_what_a_turn_adds():
    def code():
        keys = torch.zeros(0, 64)
        for _ in range(30):
            keys = torch.cat([keys, torch.randn(16, 64)])
        return keys

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == 4 * 16 * 64
    assert growth.bytes <= 30 * 4 * 16 * 64


def test_a_tensor_extended_by_cat_grows_and_may_be_meant_to():
    def code():
        w, keys = torch.rand(64, 64), torch.rand(1, 64)
        for _ in range(30):
            new = keys[-1:] @ w
            keys = torch.cat([keys, new])
            del new
        return keys

    (growth,) = of_kind(record(code), "growth")
    assert (growth.bytes_per_step, growth.certain, growth.saves) == (4 * 64, False, 0)
    assert the_line(growth) == "keys = torch.cat([keys, new])"
    assert "KV cache" in growth.advice

    def generations():
        for _ in range(3):
            code()

    assert of_kind(record(generations), "growth") == []


@pytest.mark.parametrize("kept", [True, False])
def test_models_that_come_one_after_the_other(kept):
    def code():
        results = []
        for _ in range(6):
            net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
            opt = torch.optim.Adam(net.parameters())
            for _ in range(4):
                net(torch.rand(32, 64)).mean().backward()
                opt.step()
                opt.zero_grad()
            results.append(opt if kept else net[2].weight.sum().item())
        return results

    found = of_kind(record(code), *UNUSUAL)
    if not kept:
        assert found == []
        return
    (growth,) = found
    numbers = 64 * 64 + 64 + 64 * 4 + 4
    assert growth.bytes_per_step == pytest.approx(3 * 4 * numbers / 4, rel=0.25)  # told by the optimizer's steps
    assert "models and optimizers" in " ".join(growth.evidence)


def test_what_is_logged_in_inference_mode_is_merely_kept():
    net, log = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), []

    def code():
        with torch.inference_mode():
            for _ in range(20):
                log.append((x := torch.rand(8, 64), net(x)))  # noqa: PERF401

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 4 * 8 * (64 + 16)
    assert "autograd" not in " ".join((*growth.evidence, growth.advice))
    assert "clear or cap" in growth.advice


def test_one_large_thing_before_the_loop_is_a_spike_there():
    def code():
        raw = torch.rand(1024 * KiB)
        data = ((raw - raw.mean()) / raw.std())[: 64 * 64].clone().view(64, 64)
        del raw
        net = nn.Linear(64, 64)
        for _ in range(10):
            net(data).mean().backward()
            net.zero_grad()

    (spike,) = of_kind(record(code), *UNUSUAL)
    assert (spike.kind, the_line(spike)) == (
        "spike",
        "data = ((raw - raw.mean()) / raw.std())[: 64 * 64].clone().view(64, 64)",
    )
    assert spike.bytes == pytest.approx(8 * 1024 * KiB, rel=0.01)  # the difference and the quotient


def test_operations_one_after_the_other_are_no_spike():
    def code():
        def transform(x):
            h = x * 2
            g = torch.relu(h)
            return (g @ torch.rand(64, 64)).sum().item()

        return transform(torch.rand(1024, 64))

    assert of_kind(record(code), *UNUSUAL) == []


def test_a_name_that_is_bound_to_as_much_again_is_no_spike():
    def code():
        x = torch.rand(64 * KiB)
        for _ in range(10):
            x = x * 0.99
        return x

    assert of_kind(record(code), "spike", "growth") == []


class Initialized(nn.Module):
    """Takes memory for a moment as it is made."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64) * 0.02)
        nn.init.orthogonal_(self.w)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.zeros(64, 64) for _ in range(12)],
        lambda: nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)]),
        lambda: [Initialized() for _ in range(12)],
        lambda: {i: torch.rand(64, 64).to(torch.bfloat16) for i in range(12)}.popitem() and None,
    ],
)
def test_a_list_that_is_made_at_once_does_not_grow(make):
    def code():
        net = nn.Linear(64, 64)
        for _ in range(4):
            net(torch.rand(64, 64)).mean().backward()
        return net, make()

    assert of_kind(record(make), "growth") == []
    assert of_kind(record(code), "growth") == []
