"""What recording costs: training steps with recording off, with Python stacks and with all stacks, interleaved.

``python tests/gpu/overhead.py [ROUNDS]`` prints a table. Each round runs every way for STEPS steps, one after the
other, so that a clock or a neighbour that drifts touches all of them; the figure is the median over the rounds of the
ratio to "off" in the same round. "off" stands in it twice: the second one says how much of a ratio is noise.
"""

import contextlib
import datetime as dt
import statistics
import sys
import time

import torch
from torch import nn

import memwidget as mw

STEPS = 6
WAYS = {
    "off": None,
    "python stacks": {"stacks": "python"},
    "all stacks": {"stacks": "all"},
    "no stacks": {"context": "none"},
    "off again": None,
}


class Block(nn.Module):
    """One layer of a decoder."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.attend(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.project(mixed)
        return x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x))))


def decoder(*, layers, width, heads, vocabulary, batch, length):
    """Build a training step of a GPT-like model: bf16 autocast, AdamW."""
    net = nn.Sequential(nn.Embedding(vocabulary, width), *[Block(width, heads) for _ in range(layers)]).cuda()
    head = nn.Linear(width, vocabulary, bias=False).cuda()
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], foreach=False)

    def step():
        words = torch.randint(0, vocabulary, (batch, length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(head(net(words)).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def small_net():
    """Build a step bound by launching kernels, where recording weighs most."""
    net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(512, 512), nn.ReLU())]).cuda()
    optimizer = torch.optim.AdamW(net.parameters())

    def step():
        net(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step):
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(step, rounds, steps=STEPS):
    """Median seconds a step and facts of the recording, by way and round."""
    for _ in range(5):
        step()
    times = {way: [] for way in WAYS}
    taken = {way: [] for way in WAYS}
    events = dict.fromkeys(WAYS, 0)
    for turn in range(rounds + 1):
        for way, options in WAYS.items():
            recorder = contextlib.nullcontext() if options is None else mw.memtrace(backend="cuda", **options)
            with recorder as rec:
                step()
                found = [timed(step) for _ in range(steps)]
            if turn == 0:
                continue  # the first symbolisation of C++ frames in a process takes seconds
            times[way].append(statistics.median(found))
            if options is not None:
                facts = rec.recording.facts
                taken[way].append(facts["seconds_snapshot"] + facts["seconds_reading"])
                events[way] = sum(map(len, rec.recording.events.values()))
    return times, taken, events


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    today = dt.datetime.now(dt.timezone.utc)
    print(f"{today:%Y-%m-%d}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{rounds} rounds of {STEPS} steps a way, after one round unmeasured\n")
    print("| workload | recording | steps | median step | ratio to off | events | to stop and read |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    gpt = decoder(layers=12, width=768, heads=12, vocabulary=50257, batch=4, length=512)
    for workload, step in (("GPT-2 small, 4 x 512, bf16", gpt), ("8 linear layers, launch-bound", small_net())):
        times, taken, events = measure(step, rounds)
        for way, found in times.items():
            ratio = statistics.median(t / off for t, off in zip(found, times["off"], strict=True))
            cells = [workload, way, str(rounds * STEPS), f"{1e3 * statistics.median(found):.2f} ms", f"{ratio:.2f}"]
            cells += [f"{events[way]:,}", f"{statistics.median(taken[way]):.2f} s"] if taken[way] else ["", ""]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
