"""Memory patterns on a real CUDA device: ``python patterns.py NAME`` prints the findings of one as a line of JSON.

Each runs in a process of its own: a private pool or a workspace that one leaves would be the next one's baseline.
"""

import gc
import json
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memwidget as mw

M = 1 << 20
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def buf(n):
    return torch.empty(n * M, dtype=torch.uint8, device="cuda")


def record(code, **options):
    with mw.memtrace(**options) as rec:
        kept = code()
    del kept
    return rec


@case
def summed_loss():
    w = torch.ones(2 * M, device="cuda", requires_grad=True)

    def code():
        total = 0
        for _ in range(20):
            x = torch.rand(2 * M, device="cuda")
            total = total + ((w * x) ** 2).mean()
        return total

    return record(code)


@case
def list_of_losses():
    w = torch.ones(2 * M, device="cuda", requires_grad=True)

    def code():
        losses = []
        for _ in range(20):
            loss = ((w * torch.rand(2 * M, device="cuda")) ** 2).mean()
            loss.backward()
            w.grad = None
            losses.append(loss)
        return losses

    return record(code)


@case
def create_graph():
    warnings.simplefilter("ignore")

    def one():
        x = torch.rand(4 * M, device="cuda", requires_grad=True)
        y = x.tanh()
        y.backward(torch.ones_like(y), create_graph=True)

    def code():
        for _ in range(10):
            one()
        gc.collect()

    return record(code)


@case
def built_again():
    state = {"model": [buf(64) for _ in range(4)]}

    def code():
        state["model"] = [buf(64) for _ in range(4)]
        return state

    return record(code)


@case
def autocast():
    net, x = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(16)]).cuda(), torch.rand(8, 2048, device="cuda")
    with torch.no_grad():
        net(x)  # the library's workspace comes before

    def code():
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            net(x)
            net(x)

    return record(code)


def training(make, layers, rows, clear):
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(layers)]).cuda()
    opt = make(net.parameters(), lr=1e-3)

    def code():
        for _ in range(6):
            loss = net(torch.rand(rows, 2048, device="cuda")).pow(2).mean()
            if not clear:
                opt.zero_grad()
            loss.backward()
            opt.step()
            if clear:
                opt.zero_grad()
            loss.item()

    return record(code, model=net, optimizer=opt)


@case
def ordinary_training():
    return training(torch.optim.AdamW, 4, 64, clear=True)


@case
def usual_zero_grad():
    return training(torch.optim.AdamW, 4, 64, clear=False)


@case
def late_zero_grad():
    return training(torch.optim.SGD, 16, 2048, clear=False)


@case
def large_batch():
    net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 64)).cuda()
    x = torch.rand(16384, 1024, device="cuda")

    def code():
        net(x).pow(2).mean().backward()
        net.zero_grad()

    return record(code)


@case
def made_at_once():
    weights = [torch.zeros(1024, 1024, device="cuda") for _ in range(12)]
    return record(lambda: [torch.zeros_like(w) for w in weights])


@case
def saved_tensors():
    x = torch.rand(16384, 1024, device="cuda", requires_grad=True)  # 64 MiB
    stayed = {}
    for name, function in (
        ("dropout", lambda h: functional.dropout(h, 0.5)),
        ("norm", lambda h: functional.layer_norm(h, (1024,))),
    ):
        with mw.memtrace() as rec:
            out = function(x * 2)
        blocks = rec.trace.blocks[rec.trace.live_at("end")]
        stayed[name] = sorted(blocks["requested"][blocks["alloc_event"] >= 0].tolist())
        del out
    print(json.dumps(stayed))


@case
def tried_workspace():
    torch.backends.cudnn.benchmark = True
    net, x = nn.Conv2d(64, 64, 5, padding=2).cuda(), torch.rand(16, 64, 128, 128, device="cuda")

    def code():
        with torch.no_grad():
            for _ in range(6):
                net(x)

    return record(code)


@case
def kept_in_a_hook():
    net, acts = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda(), []
    net[0].register_forward_hook(lambda _, __, out: acts.append(out))

    def code():
        with torch.no_grad():
            for _ in range(20):
                net(torch.rand(1024, 1024, device="cuda"))

    return record(code)


@case
def flat_gradients():
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)

    def code():
        flat = torch.zeros(sum(p.numel() for p in net.parameters()), device="cuda")
        for _ in range(6):
            net(torch.rand(64, 2048, device="cuda")).pow(2).mean().backward()
            at = 0
            for p in net.parameters():
                flat[at : at + p.numel()].copy_(p.grad.view(-1))
                at += p.numel()
            opt.step()
            opt.zero_grad()
        return flat

    return record(code, model=net, optimizer=opt)


@case
def gradients_in_evaluation():
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    x = torch.rand(64, 2048, device="cuda")
    net(x).sum().backward()

    def code():
        with torch.no_grad():
            for _ in range(5):
                net(x).sum().item()

    return record(code, model=net)


@case
def checkpointed():
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)) for _ in range(8)
    ).cuda()
    x = torch.rand(4096, 1024, device="cuda", requires_grad=True)

    def code():
        for _ in range(6):
            h = x
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=False)
            h.sum().backward()
            blocks.zero_grad()
            x.grad = None

    return record(code)


@case
def logits():
    small = torch.rand(4096, 32768, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    target = torch.zeros(4096, dtype=torch.long, device="cuda")

    def code():
        full = small.float()
        loss = functional.cross_entropy(full, target)
        del full
        loss.backward()

    return record(code)


@case
def attention():
    def code():
        for length in (1024, 2048):
            q, k, v = (torch.rand(4, length, 64, device="cuda") for _ in range(3))
            out = (q @ k.mT).softmax(-1) @ v
            del q, k, v, out

    return record(code)


@case
def cut_segment():
    def code():
        a = buf(1024)
        del a
        b = [buf(40) for _ in range(24)]
        b = b[::2]
        return b, buf(512)

    return record(code)


@case
def side_stream():
    side = torch.cuda.Stream()

    def code():
        with torch.cuda.stream(side):
            x = buf(512)
        del x
        return buf(512)

    return record(code)


@case
def graph():
    buf(1)
    graph = torch.cuda.CUDAGraph()

    def code():
        with torch.cuda.graph(graph):
            out = buf(256) + 1
        del out

    rec = record(code)
    graph.replay()
    return rec


@case
def workspace():
    x = torch.rand(64, 64, device="cuda")
    return record(lambda: x @ x)


@case
def out_of_memory():
    torch.cuda.set_per_process_memory_fraction(0.01)
    kept = []

    def code():
        try:
            while True:
                kept.append(buf(100))
        except torch.cuda.OutOfMemoryError:
            pass

    return record(code)


@case
def kept_outputs():
    outs = []

    def code():
        outs.clear()
        for _ in range(20):
            outs.append(buf(8))  # noqa: PERF401
        for _ in range(30):
            one, other = buf(4), buf(4)
            del one, other

    return record(code)


@case
def limits():
    try:
        with mw.limit(peak="100 MiB", held=0):
            kept = buf(300)
    except mw.MemoryLimitExceeded as error:
        exceeded = [(e.limit, e.actual) for e in error.exceeded]
    del kept
    with mw.limit(peak="100 MiB", held=0):
        buf(90)
    lines = []
    mw.monitor(to=lines.append).step()
    print(json.dumps({"exceeded": exceeded, "lines": lines}))


def main(name):
    rec = CASES[name]()
    if rec is None:
        return
    found = [
        {
            "kind": f.kind,
            "title": f.title,
            "bytes": f.bytes,
            "bytes_per_step": f.bytes_per_step,
            "certain": f.certain,
            "saves": f.saves,
            "source": (f.site.source or "") if f.site else "",
            "evidence": " ".join(f.evidence),
            "advice": f.advice,
        }
        for f in rec.trace.findings()
    ]
    print(json.dumps({"findings": found, "peak": rec.trace.peak_allocated}))


if __name__ == "__main__":
    main(sys.argv[1])
