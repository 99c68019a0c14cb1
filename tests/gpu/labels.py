"""What the labels say of real models, measured: ``python tests/gpu/labels.py agreement|deep|lines|overhead MODEL``.

Prints one line of JSON (overhead also its table). ``MEMWIDGET_DEVICE=cpu`` tries the deep part out on small models.

agreement   the same run recorded by us and profiled by torch: of the bytes at the peak, how many torch names, how many
            of these have our name, how many we do not know; and the confusion table
deep        the share of the bytes made in backward that has a forward line; whether that line belongs to the autograd
            node that made them (its name stands in the C++ stack); the step time beside plain recording
lines       the same line by line: anomaly mode keeps, for every node, the stack that made it; of the bytes of tensors
            that operators make in backward, how many show that very line, among all nodes and among those that save
overhead    a step with labels beside a step without, interleaved pairs: median of the ratios and its interval
"""

import json
import linecache
import os
import random
import re
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memwidget as mw

DEVICE = os.environ.get("MEMWIDGET_DEVICE", "cuda")
SMALL = DEVICE == "cpu"

#: torch.profiler's words -> ours.
WORDS = {
    name.upper(): name
    for name in ("parameter", "optimizer_state", "input", "temporary", "activation", "gradient", "autograd_detail")
}

#: Autograd node -> what a frame of the forward that it belongs to is called, in function, file or text of the line.
NODES = (
    (r"(Addmm|Mm|Linear|Bmm)Backward", r"linear|bmm|attention|matmul|attend| @ "),
    (r"NativeLayerNormBackward", r"norm"),
    (r"NativeDropoutBackward|DropoutBackward", r"dropout|attention"),
    (r"(Gelu|Relu|Threshold|Tanh)Backward", r"gelu|relu|tanh|activation"),
    (r"ConvolutionBackward", r"conv"),
    (r"(Cudnn|Native|Miopen)BatchNormBackward", r"norm"),
    (r"(MaxPool2D\w*|AvgPool2D|Mean)Backward", r"pool|forward"),
    (r"(LogSoftmax|NllLoss\w*)Backward", r"cross_entropy|loss"),
    (r"EmbeddingBackward", r"embedding|sparse"),
    (r"(Softmax|ScaledDotProduct\w*)Backward", r"attention|attend|softmax"),
)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        parts = self.attend(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.project(scaled_attention(*parts).transpose(1, 2).flatten(2))


def scaled_attention(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Layer(nn.Module):
    """One layer of a decoder."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    """GPT-2 small, or a small sister of it."""

    def __init__(self, layers, width, heads, words, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T


class Bottleneck(nn.Module):
    """One block of a ResNet-50."""

    def __init__(self, inner, outer, narrow, stride):
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(inner, narrow, 1, bias=False),
            nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False),
        )
        self.three = nn.Conv2d(narrow, outer, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (narrow, narrow, outer)])
        self.short = (
            nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
            if inner != outer
            else nn.Identity()
        )
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.norms[0](self.one(x)))
        y = self.relu(self.norms[1](self.two(y)))
        return self.relu(self.norms[2](self.three(y)) + self.short(x))


def resnet(depths, classes):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for i, depth in enumerate(depths):
        for j in range(depth):
            layers.append(Bottleneck(inner, 256 << i, 64 << i, 2 if i and not j else 1))
            inner = 256 << i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def transformer():
    width = 64 if SMALL else 512
    net = nn.Transformer(width, 2, 2, 2, batch_first=True).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters())
    loss = nn.CrossEntropyLoss()

    def step():
        x, y = (torch.randn(4, 64 if SMALL else 512, width, device=DEVICE) for _ in range(2))
        goal = torch.rand(4, 64 if SMALL else 512, width, device=DEVICE)
        loss(net(x, y), goal).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def resnet50():
    net = resnet((1, 1) if SMALL else (3, 4, 6, 3), 1000).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    side = 32 if SMALL else 224

    def step():
        x = torch.randn(2 if SMALL else 32, 3, side, side, device=DEVICE)
        y = torch.randint(0, 1000, (len(x),), device=DEVICE)
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt2():
    layers, width, heads, words, length = (2, 64, 2, 500, 64) if SMALL else (12, 768, 12, 50257, 512)
    net = Decoder(layers, width, heads, words, length).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())

    def step():
        text = torch.randint(0, words, (4, length), device=DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            scores = net(text)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), text.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


MODELS = {"transformer": transformer, "resnet50": resnet50, "gpt2": gpt2}


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(step):
    wait()
    began = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - began


# -- agreement -------------------------------------------------------------------------------------------------------


def agreement(step):
    from torch.profiler import ProfilerActivity, profile

    step()
    wait()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with mw.memtrace(backend="cuda") as rec:
        with profile(activities=activities, record_shapes=True, profile_memory=True, with_stack=True) as prof:
            for _ in range(2):
                step()
        wait()
    return compare(rec.trace, prof._memory_profile(), "cuda:0")


def compare(trace, told, device):
    """Our categories at the peak beside torch's: shares, and the confusion table in bytes."""
    rows = []
    for at, action, (key, version), _ in told.timeline:
        address = getattr(getattr(key, "storage", None), "ptr", None)
        if str(key.device) == device and address:
            word = told._categories.get(key, version)
            rows.append((at // 1000, action.name, address, word.name if word else None))
    # Each row bears the version that ends there, or that is made: what lives at the peak is told by the next row of
    # its address, or by its making where nothing comes after.
    at = trace.event_times_us[trace.peak_event - 1]
    theirs, done = {}, set()
    for time_us, action, address, word in rows:
        if time_us <= at:
            theirs[address] = word if action in {"CREATE", "PREEXISTING"} else None
        elif address not in done:
            done.add(address)
            if action in {"INCREMENT_VERSION", "DESTROY"}:
                theirs[address] = word
    blocks = trace.blocks
    named = agreed = unknown = 0
    table = {}
    for block in trace.live_at("peak").tolist():
        size, ours = int(blocks["size"][block]), trace.categories[blocks["category"][block]]
        unknown += size * (ours == "unknown")
        word = theirs.get(int(blocks["address"][block]))
        if word is None:
            table[f"- / {ours}"] = table.get(f"- / {ours}", 0) + size
            continue
        named += size
        phase = blocks["phase"][block]
        in_backward = phase >= 0 and trace.bands[phase].name == "backward"
        detail = word == "AUTOGRAD_DETAIL" and (
            ours in {"autograd_detail", "gradient"} or (ours == "temporary" and in_backward)
        )
        agreed += size * (ours == WORDS[word] or detail)
        table[f"{word} / {ours}"] = table.get(f"{word} / {ours}", 0) + size
    whole = trace.peak_allocated
    return {
        "peak": whole,
        "named": named / whole,
        "agreed": agreed / named,
        "unknown": unknown / whole,
        "table": dict(sorted(table.items(), key=lambda row: -row[1])),
    }


# -- deep ------------------------------------------------------------------------------------------------------------


def in_backward(trace):
    phase = trace.blocks["phase"]
    return [
        b
        for b in range(trace.n_blocks)
        if phase[b] >= 0 and trace.blocks["alloc_event"][b] >= 0 and trace.bands[phase[b]].name == "backward"
    ]


def deep(step):
    for _ in range(3):
        step()
    with mw.memtrace(deep=True) as rec:
        step()
        step()
    trace = rec.trace
    made = in_backward(trace)
    sizes = trace.blocks["requested"]
    total = sum(int(sizes[b]) for b in made)
    lined = sum(int(sizes[b]) for b in made if trace.forward_stack[b] >= 0)
    found = {
        "backward_bytes": total,
        "with_line": lined / total,
        "notes": [note for note in trace.notes if "Deep" in note or "label" in note],
    }
    if DEVICE == "cuda":
        found |= right_lines(step)
    found["ratio"], found["low"], found["high"] = ratio(step, {"deep": True}, {}, 20, steps=3)
    return found


def right_lines(step):
    """Of the bytes whose autograd node the C++ stack names, how many have a forward frame that fits the node."""
    with mw.memtrace(deep=True, stacks="all") as rec:
        step()
    trace = rec.trace
    known = fits = 0
    wrong = {}
    for b in in_backward(trace):
        names = [frame.name for frame in trace.stack(b)]
        node = next((m.group(1) for m in (re.search(r"(\w+Backward\w*)::apply", name) for name in names) if m), None)
        pattern = next((frame for pattern, frame in NODES if node and re.search(pattern, node)), None)
        if pattern is None or trace.forward_stack[b] < 0:
            continue
        size = int(trace.blocks["requested"][b])
        known += size
        frames = trace.forward_frames(b)
        # An operator that is called by no function of torch's stands in the text of the innermost line alone.
        words = [f"{f.name} {Path(f.filename).name}" for f in frames[:6]]
        words.append(linecache.getline(frames[0].filename, frames[0].line))
        if any(re.search(pattern, text, re.IGNORECASE) for text in words):
            fits += size
        else:
            key = f"{node}: {frames[0].name} {Path(frames[0].filename).name}:{frames[0].line}"
            wrong[key] = wrong.get(key, 0) + size
    worst = dict(sorted(wrong.items(), key=lambda row: -row[1])[:8])
    return {"checked_bytes": known, "right": fits / known if known else 0.0, "wrong": worst}


class Watcher(TorchDispatchMode):
    """Notes of each tensor that an operator makes in backward: address, time, node, and the line that made the node."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node() if torch._C._current_graph_task_id() != -1 else None
        if node is not None:
            ours = re.findall(rf'File "{re.escape(__file__)}", line (\d+)', "".join(node.metadata["traceback_"]))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    at = time.time_ns() // 1000
                    saves = any(name.startswith("_raw_saved") for name in dir(node))
                    self.made.append((tensor.untyped_storage().data_ptr(), at, node.name(), saves, int(ours[-1])))
        return out


def lines(step):
    for _ in range(2):
        step()
    with (
        mw.memtrace(deep=True) as rec,
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        Watcher() as watcher,
    ):
        step()
    trace = rec.trace
    blocks, open_ = trace.blocks, {}
    for b in in_backward(trace):
        open_.setdefault(int(blocks["address"][b]), []).append(b)
    total = same = of_saving = same_of_saving = 0
    wrong = {}
    for address, at, node, saves, line in watcher.made:
        # The first operator that returns a tensor at the block's address made it; views and changes in place follow.
        mine = [b for b in open_.get(address, ()) if blocks["alloc_time_us"][b] <= at + 20]
        if not mine:
            continue
        block = mine[-1]
        open_[address] = [b for b in open_[address] if b > block]
        size, frames = int(blocks["requested"][block]), trace.forward_frames(block)
        site = next((f.line for f in frames if f.filename == __file__ and f.name != "__torch_dispatch__"), -1)
        total, of_saving = total + size, of_saving + size * saves
        same, same_of_saving = same + size * (site == line), same_of_saving + size * saves * (site == line)
        if site != line:
            key = f"{node} of line {line}: line {site}"
            wrong[key] = wrong.get(key, 0) + size
    made = sum(int(blocks["requested"][b]) for b in in_backward(trace))
    return {
        "checked": total / made,
        "same": same / total,
        "same_of_saving": same_of_saving / of_saving,
        "wrong": {key: size / total for key, size in sorted(wrong.items(), key=lambda row: -row[1])[:8]},
    }


# -- time ------------------------------------------------------------------------------------------------------------


def ratio(step, one, other, pairs, steps=1):
    """Median of one's step time over the other's, in interleaved pairs, with a bootstrapped 95 % interval."""
    found = []
    for turn in range(pairs + 2):
        times = []
        for options in (one, other) if turn % 2 else (other, one):
            with mw.memtrace(**options):
                step()
                times.append(statistics.median(timed(step) for _ in range(steps)))
        first, second = times if turn % 2 else times[::-1]
        if turn >= 2:
            found.append(first / second)
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(found, k=len(found))) for _ in range(2000))
    return statistics.median(found), medians[50], medians[-51]


def overhead(step):
    for _ in range(5):
        step()
    middle, low, high = ratio(step, {"labels": True}, {"labels": False}, 50, steps=3)
    return {"ratio": middle, "low": low, "high": high, "steps": 150}


if __name__ == "__main__":
    what, name = sys.argv[1:3]
    torch.manual_seed(0)
    answer = {"agreement": agreement, "deep": deep, "lines": lines, "overhead": overhead}[what](MODELS[name]())
    print(json.dumps({"what": what, "model": name, "torch": str(torch.__version__), **answer}))
