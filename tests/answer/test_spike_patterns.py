"""Short peaks and ordinary ones: each alarm, and the false alarm beside it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from answer.cpu_patterns import UNUSUAL, KiB, buf, of_kind, record, the_line


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


def ordinary(net, *, backward):
    x = torch.rand(4096, 64)

    def code():
        with torch.set_grad_enabled(backward):
            loss = net(x).pow(2).mean()
        if backward:
            loss.backward()
        return net

    return record(code)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8),
        ),
    ],
    ids=["equal layers", "a wide layer", "convolutions"],
)  # fmt: skip
def test_a_large_batch_through_layers_is_no_spike(make, backward):
    assert of_kind(ordinary(make(), backward=backward), *UNUSUAL) == []


def test_logits_in_the_middle_of_training_are_a_spike_at_the_loss():
    words, width = 4096, 32
    embed, layer, head = nn.Embedding(words, width), nn.Linear(width, width), nn.Linear(width, words)
    parameters = [*embed.parameters(), *layer.parameters(), *head.parameters()]
    opt = torch.optim.SGD(parameters, lr=0.1)

    def code():
        for _ in range(5):
            ids = torch.randint(words, (512,))
            h = embed(ids)
            for _ in range(20):
                h = layer(h).tanh()
            loss = functional.cross_entropy(head(h), ids)
            loss.backward()
            opt.step()
            opt.zero_grad()

    (spike,) = of_kind(record(code), *UNUSUAL)
    assert the_line(spike) == "loss = functional.cross_entropy(head(h), ids)"
    assert spike.bytes == pytest.approx(4 * words * 512, rel=0.01)
    assert "loss in chunks" in spike.advice


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


def adam(**options):
    net = nn.Linear(256, 256)
    opt = torch.optim.AdamW(net.parameters(), **options)

    def step():
        net(torch.rand(4, 256)).pow(2).mean().backward()
        opt.step()
        opt.zero_grad()

    step()  # its state is there
    return record(step)


def test_the_optimizers_own_temporaries_are_no_peak_to_split():
    assert of_kind(adam(foreach=False), *UNUSUAL) == []
    found = adam(foreach=True)
    assert of_kind(found, *UNUSUAL) == []
    (fact,) = [f for f in found if "optimizer's step takes" in f.title]
    assert "foreach=False" in fact.advice


def built_and_dropped():
    net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    with torch.no_grad():
        return net(torch.rand(16, 256))


def copied_and_dropped():
    net = {"weight": torch.rand(256, 256), "bias": torch.rand(256)}

    def code():
        copy = {name: value.clone() for name, value in net.items()}
        del copy

    return code


@pytest.mark.parametrize(
    "code",
    [lambda: torch.ones(2).sum().item(), built_and_dropped, copied_and_dropped()],
    ids=["12 bytes", "a model of a function", "a copy"],
)
def test_what_no_chunk_would_lower_is_no_spike(code):
    assert of_kind(record(code), "spike") == []


def test_a_spikes_own_advice_ends_it():
    rows = torch.rand(512, 1, 4)

    def distances(parts):
        for some in rows.chunk(parts):
            (some - rows.transpose(0, 1)).pow(2).sum(-1).min().item()

    assert len(of_kind(record(lambda: distances(1)), "spike")) == 1
    assert of_kind(record(lambda: distances(4)), "spike") == []
