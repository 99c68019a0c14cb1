"""How well `tune_batch_size` predicts on a real device, beside doubling until out of memory and bisection.

``python batch_size_table.py [NAME ...]`` runs every case, or those, each in a process of its own, and prints a table in
Markdown; ``python batch_size_table.py --json NAME`` runs one and prints a line of JSON, which test_batch_size.py reads.
Limits are set with ``set_per_process_memory_fraction``, so that the allocator itself keeps them. Trials go up to an
eighth of the size that is proposed.
"""

import gc
import json
import math
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional as f

import memwidget as mw
from memwidget.answer.batch_size.fit import BatchSizeFit
from memwidget.answer.batch_size.trials import read_trial
from memwidget.record import Options
from memwidget.record.trials import Stand, out_of_memory

GIB = 1 << 30
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def _images(net):
    net = net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(b):
        images = torch.randn(b, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (b,), device="cuda")
        f.cross_entropy(net(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case
def resnet50():
    from torchvision.models import resnet50 as build

    return _images(build()), {8: (3, 4, 6, 8), 24: (8, 12, 16, 24), 48: (12, 24, 36, 48)}


@case
def densenet121():
    from torchvision.models import densenet121 as build

    return _images(build()), {24: (8, 12, 16, 18)}


@case
def gpt2_small(length=256):
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step(b):
        words = torch.randint(0, 50257, (b, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, {12: (1, 2, 3), 24: (2, 4, 6, 7), 48: (4, 8, 12, 14)}


class WrittenOut(nn.Module):
    """A transformer whose attention holds every score: quadratic in the length."""

    def __init__(self, words=1000, width=256, heads=4, layers=4):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(words, width)
        self.parts = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "all": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "wide": nn.Sequential(
                        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                    ),
                }
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, words):
        x = self.embed(words)
        b, s, width = x.shape
        for part in self.parts:
            q, k, v = part["all"](part["before"](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            scores = (q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
            x = x + part["out"]((f.dropout(scores, 0.1) @ v).transpose(1, 2).reshape(b, s, width))
            x = x + part["wide"](x)
        return self.head(x)


def _written_out():
    net = WrittenOut().cuda()
    optimizer = torch.optim.AdamW(net.parameters())

    def step(b, s):
        words = torch.randint(0, 1000, (b, s), device="cuda")
        f.cross_entropy(net(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@case
def attention_length():
    step = _written_out()
    return lambda s: step(4, s), {6: (96, 144, 192, 256), 24: (256, 384, 512, 640), 48: (256, 512, 768, 896)}


@case
def attention_both():
    pairs = ((2, 128), (4, 128), (2, 256), (4, 256), (8, 256))
    return _written_out(), {16: pairs, 32: pairs}


# -- what others do ------------------------------------------------------------------------------------------------


def runs(step, size):
    """One step, without any of memwidget; False where memory ran out."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        step(*size)
        torch.cuda.synchronize()
    except RuntimeError as error:  # a convolution that finds no room for any algorithm raises a plain one
        if not out_of_memory(error):
            raise
        return False
    return True


def doubling_and_bisection(step, rest):
    """Double until out of memory, then halve the gap; steps run, of them out of memory, sizes after either part."""
    steps = ooms = 0
    good, bad, n = 0, None, 2
    doubled = 0
    while bad is None or bad - good > 1:
        steps += 1
        if runs(step, (n, *rest)):
            good = n
        else:
            ooms, bad, doubled = ooms + 1, n, doubled or good
        n = (good + bad) // 2 if bad is not None else n * 2
    return {"steps": steps, "ooms": ooms, "doubling": doubled, "bisection": good}


def halving(step, rest, first):
    """Start large and halve on every failure, as accelerate's find_executable_batch_size did."""
    n, steps = first, 1
    while not runs(step, (n, *rest)):
        n, steps = n // 2, steps + 1
    return {"steps": steps, "ooms": steps - 1, "size": n}


# -- one limit -----------------------------------------------------------------------------------------------------


def limited(step, name, gib, sizes):
    _, total = torch.cuda.mem_get_info()
    knows = hasattr(torch.cuda.memory, "get_per_process_memory_fraction")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(gib * GIB / total)
    try:
        began = time.perf_counter()
        fit = mw.tune_batch_size(step, sizes, None if knows else gib * GIB)
        seconds = time.perf_counter() - began
        size = fit.size_of(fit.size)
        check = fit.checks[0]
        # As it was told before the proposal ran: a run that was outside its interval corrects the fit.
        told = BatchSizeFit(fit.trials, fit.limit, fit.margin, fit.device_limit, kind=fit.kind)
        expected = told.predict_both(check.size)
        margin = int(fit.limit * fit.margin)
        more = (math.ceil(size[0] * 1.1), *size[1:])
        stand = Stand(Options(backend="cuda"), [])
        beyond = read_trial(more, stand.trial(lambda: step(*more)))
        peak = max(beyond.allocated, beyond.reserved)
        row = {
            "case": name,
            "limit": fit.limit,
            "sizes": [list(trial.size) for trial in fit.trials],
            "size": list(size),
            "proposed": list(check.size),
            "method": fit.method,
            "why": fit.why,
            "predicted": [expected.allocated[0], expected.reserved[0]],
            "interval": list(told.predict(check.size)[1:]),
            "measured": [check.allocated, check.reserved],
            "failed": check.failed,
            "ten percent more": beyond.failed[:60] or peak,
            "steps": 1 + 2 * (len(fit.trials) + len(fit.checks)),
            "ooms": sum(not trial.fits for trial in (*fit.trials, *fit.checks)),
            "seconds": round(seconds, 1),
            "notes": fit.notes,
            "grows": [[g.line, round(g.bytes_per_sample)] for g in fit.grows()[:3]],
            "advice": [each.text for each in fit.advice()[:1]],
        }
        row["checks"] = {
            "an eighth": 8 * math.prod(fit.trials[-1].size) <= math.prod(size),
            "allocated within 3 %": not check.failed and abs(expected.allocated[0] / check.allocated - 1) <= 0.03,
            "reserved within 3 %": not check.failed and abs(expected.reserved[0] / check.reserved - 1) <= 0.03,
            "the proposal runs": check.fits and len(fit.checks) == 1,
            "ten percent more does not fit, or only in the margin": not beyond.fits or peak > fit.limit - margin,
        }
        torch.cuda.empty_cache()
        began = time.perf_counter()
        row["others"] = doubling_and_bisection(step, size[1:])
        row["others"]["seconds"] = round(time.perf_counter() - began, 1)
        row["halving"] = halving(step, size[1:], 1 << (2 * size[0]).bit_length())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return row


def one(name):
    torch.manual_seed(0)
    step, limits = CASES[name]()
    rows = [limited(step, name, gib, sizes) for gib, sizes in limits.items()]
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def markdown(reports):
    head = (
        "| case | limit | trials | method | proposed | predicted | measured | off | +10 % | steps, OOMs | "
        "doubling | bisection: size, steps, OOMs | halving: size, OOMs |"
    )
    lines = [head, "| --- |" + " ---: |" * (head.count("|") - 2)]
    for report in reports:
        for row in report["rows"]:
            predicted, measured = row["predicted"], row["measured"]
            off = ", ".join(f"{p / m - 1:+.2%}" for p, m in zip(predicted, measured, strict=True) if m > 0)
            more = row["ten percent more"]
            cells = [
                row["case"],
                f"{row['limit'] / GIB:.0f} GiB",
                " ".join("x".join(map(str, size)) for size in row["sizes"]),
                row["method"],
                "x".join(map(str, row["proposed"])),
                f"{predicted[1] / GIB:.2f}",
                f"{measured[1] / GIB:.2f}",
                off,
                "OOM" if isinstance(more, str) else f"{more / GIB:.2f}",
                f"{row['steps']}, {row['ooms']} ({row['seconds']} s)",
                str(row["others"]["doubling"]),
                "{bisection}, {steps}, {ooms} ({seconds} s)".format(**row["others"]),
                "{size}, {ooms}".format(**row["halving"]),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--json"]:
        print(json.dumps(one(sys.argv[2])))
        return
    reports, began = [], time.perf_counter()
    for name in sys.argv[1:] or CASES:
        done = subprocess.run([sys.executable, __file__, "--json", name], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name} failed:\n{done.stderr[-3000:]}")
            continue
        reports.append(json.loads(done.stdout.splitlines()[-1]))
    if not reports:
        sys.exit(1)
    print(f"{reports[0]['device']}, torch {reports[0]['torch']}; {time.perf_counter() - began:.0f} s in all\n")
    print("Peaks in GiB (reserved); off: predicted against measured, allocated and reserved.\n")
    print(markdown(reports))
    for report in reports:
        for row in report["rows"]:
            failed = [check for check, passed in row["checks"].items() if not passed]
            print(f"\n{row['case']}, {row['limit'] / GIB:.0f} GiB: {row['why']}; not met: {failed or 'nothing'}")
            print(f"  +10 %: {row['ten percent more']}; notes: {row['notes']}; {row['advice']}; {row['grows']}")


if __name__ == "__main__":
    main()
