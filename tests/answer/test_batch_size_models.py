"""Three kinds of models on the CPU: trials of at most an eighth of the size say what the largest that fits takes."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as f

import memwidget as mw
from memwidget.answer.batch_size.trials import read_trial
from memwidget.record import Options
from memwidget.record.trials import Stand

MiB = 1 << 20


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return f.relu(x + self.norm2(self.second(f.relu(self.norm1(self.first(x))))))


def resnet():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *(Residual(8) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(n):
        f.cross_entropy(net(torch.randn(n, 3, 16, 16)), torch.randint(0, 8, (n,))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Attention(nn.Module):
    """Attention that holds every score: quadratic in the length."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.all, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = self.all(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
        return x + self.out((scores @ v).transpose(1, 2).reshape(b, s, width))


def _language(layer, autocast):
    net = nn.Sequential(nn.Embedding(300, 32), *(layer() for _ in range(2)), nn.Linear(32, 300))
    optimizer = torch.optim.AdamW(net.parameters())

    def step(b, s):
        words = torch.randint(0, 300, (b, s))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = f.cross_entropy(net(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def gpt():
    step = _language(lambda: nn.TransformerEncoderLayer(32, 2, 128, batch_first=True), autocast=True)
    return lambda n: step(n, 32)


def length():
    step = _language(lambda: Attention(32), autocast=False)
    return lambda s: step(2, s)


def batch_and_length():
    return _language(lambda: Attention(32), autocast=False)


PAIRS = ((2, 16), (4, 16), (2, 32), (4, 32), (5, 32))


@pytest.mark.parametrize(
    ("build", "sizes", "limit"),
    [(resnet, (2, 3, 4), 20), (gpt, (2, 3, 4), 24), (length, (16, 24, 32, 40), 12), (batch_and_length, PAIRS, 20)],
)
def test_small_trials_predict_the_largest_size_that_fits(build, sizes, limit):
    torch.manual_seed(0)
    step = build()
    fit = mw.tune_batch_size(step, sizes, limit * MiB, backend="cpu")
    size = fit.size_of(fit.size)
    assert 8 * math.prod(fit.trials[-1].size) <= math.prod(size)
    (check,) = fit.checks  # it ran, and was right
    expected, low, high = fit.predict(size)
    assert check.size == size
    assert expected == pytest.approx(check.allocated, rel=0.03)
    assert low <= check.allocated <= high <= 0.95 * limit * MiB
    more = (math.ceil(1.1 * size[0]), *size[1:])
    stand = Stand(Options(backend="cpu"), [])
    assert not stand.warm_up(lambda: step(*fit.trials[0].size))
    assert read_trial(more, stand.trial(lambda: step(*more))).allocated > 0.95 * limit * MiB
