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
