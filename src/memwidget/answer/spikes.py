"""Short peaks: what stood at the highest moment for a short time only, and one line could do without.

Owns two readings of the peak. A *burst*: blocks of one line that live briefly and make up much of it (a full table of
logits, an attention matrix, a workspace tried once). A *handover*: the new is made while the old is still there, and
the old goes right after (a model built again in its own cell).

What is ordinary is neither, however large the batch: activations that wait for backward, and what layers hand to one
another. Of those only what stands out counts: a loss over a whole vocabulary, and sizes of another order. What an
operator takes for itself in backward, where no line of Python is at work, is told as a fact. So is what an optimizer's
step takes for all parameters at once: no batch is in it that could be split. A model that goes with the function that
built it, a copy that nothing is computed from, and what is done in parts already are no peaks to split either.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.finding import (
    Finding,
    amount,
    frame_of,
    ids,
    lines_of,
    many,
    name_of,
    source_sentence,
    sums_by_site,
)
from memwidget.answer.kept import in_stack, is_model, told
from memwidget.answer.steps import inside_modules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.answer.steps import Steps
    from memwidget.recording import I32, I64
    from memwidget.trace.trace import Trace

#: Share of the peak that short-lived blocks of one line must make up.
_SHARE = 0.25
#: By this share of the peak it must fall without them.
_GAIN = 0.15
#: Less than this is no peak that anybody would split.
_LEAST = 64 << 10
#: What a line makes so many times one after the other, in one step, is done in parts already: the advice is four.
_PARTS = 4
#: Brief: at most this share of a step (of the recording where there are no steps), or so few events.
_BRIEF, _FEW = 0.15, 6
#: Short-lived blocks of more pieces than this are activations in a small model, not one big thing.
_PIECES = 4
#: A recording without steps and of no more events than this shows a few operations, not a run.
_SHORT = 400
#: By so much what layers make must exceed three of four of their blocks to stand out: a transformer's hidden layer has
#: 4 times its width (gated ones up to 8), an attention matrix of 1,024 positions 16 times, logits 8 to 65 times.
_ORDER = 8
#: trace.NO_STACK's code for blocks that autograd's own thread made.
_BACKWARD = 2
_LOSSES = ("cross_entropy", "nll_loss", "log_softmax")
_NODE = re.compile(r"generated::(\w+?)::apply")


@dataclass(frozen=True)
class _Nature:
    """What blocks are in the course of training, one entry a block.

    Attributes
    ----------
    sites : line that made it; for a block of backward its forward's, where deep mode knows it; -1 for none
    backward : made in backward
    waits : made before backward and freed in it
    last : one of the last few of those before backward begins
    layers : made below a module that is no loss
    loss : made by a loss over classes
    """

    sites: I32
    backward: NDArray[np.bool_]
    waits: NDArray[np.bool_]
    last: NDArray[np.bool_]
    layers: NDArray[np.bool_]
    loss: NDArray[np.bool_]

    @classmethod
    def of(cls, trace: Trace) -> _Nature:
        blocks = trace.blocks
        every = np.arange(len(blocks))
        born, asked = blocks["alloc_event"].astype(np.int64), blocks["free_requested_event"].astype(np.int64)
        backward = (trace.no_stack == _BACKWARD) | in_stack(trace, every, file="/torch/autograd/__init__.py")
        backward |= in_stack(trace, every, name="autograd::Engine")
        runs = np.sort(born[backward])
        following = np.searchsorted(runs, born)  # the first allocation of backward behind each block
        begins = np.append(runs, np.iinfo(np.int64).max)[following]
        allocs = np.sort(born[born >= 0])
        waits = ~backward & (born >= 0) & (asked >= begins)
        last = waits & (np.searchsorted(allocs, begins) - np.searchsorted(allocs, born) <= _FEW)
        sites = trace.block_site.copy()
        of_forward = np.flatnonzero(trace.forward_stack >= 0)
        sites[of_forward] = trace.stack_site[trace.forward_stack[of_forward]]
        loss = in_stack(trace, every, file="/torch/nn/modules/loss.py")
        for name in _LOSSES:
            loss |= in_stack(trace, every, name=name)
        inside = np.append(inside_modules(trace), np.False_)[blocks["stack"]]  # -1 takes the last entry
        return cls(sites, backward & (trace.forward_stack < 0), waits, last, inside & ~loss, loss)


def spikes(trace: Trace, steps: Steps) -> list[Finding]:
    """Tell the peak's short-lived part."""
    if trace.n_events == 0 or trace.peak_allocated < _LEAST:
        return []
    return _handover(trace) or _burst(trace, steps)


def _burst(trace: Trace, steps: Steps) -> list[Finding]:
    blocks, m = trace.blocks, trace.peak_event
    length = float(np.median(np.diff(steps.bounds))) if steps.n >= 2 else float(trace.n_events)
    few = trace.n_events <= _SHORT
    if steps.n >= 2 and length < 2 * _FEW:
        # A loop around an operation or two: what it takes, it takes at every turn. Unless one turn stands out.
        if not few or _recurs(trace, steps, 0.9 if steps.how == "repetition" else 0.5):
            return []
    else:
        few &= steps.n < 2
    born, asked = blocks["alloc_event"].astype(np.int64), blocks["free_requested_event"].astype(np.int64)
    short = (born >= 0) & (asked >= 0)
    if steps.n >= 2 and m <= steps.bounds[1] and not _recurs(trace, steps, 0.5):
        short &= asked <= steps.bounds[1]  # what is done once, before the first step or in it
    elif not few:  # in a few operations: whatever the code gave back again
        short &= asked - born <= max(_BRIEF * length, _FEW)
    live = trace.live_at(m)
    live = live[short[live]]
    live = live[~is_model(trace, live)]
    nature = _Nature.of(trace)
    found: list[Finding] = []
    least = max(_SHARE * trace.peak_allocated, _LEAST)
    for row, size, count in sums_by_site(trace, live, nature.sites):
        if size < least:
            break
        mine = live[nature.sites[live] == row]
        mine = mine[nature.backward[mine] == bool(nature.backward[mine].mean() > 0.5)]
        largest = mine[np.argsort(-blocks["size"][mine])][:_PIECES]
        if int(blocks["size"][largest].sum()) < 0.8 * size:
            continue
        if _stays(trace, nature, row, mine) >= size / 2:
            continue  # one of this size stands there all the time, and is made anew
        # What would stand at most without this line's short-lived blocks, anywhere in the recording.
        below = _peak_without(trace, np.flatnonzero(short & (nature.sites == row)))
        if trace.peak_allocated - below < _GAIN * trace.peak_allocated:
            continue
        if row < 0 or nature.backward[largest[0]]:
            least = min(least, size / 3)  # a loss's own table, beside two or three of its gradients
            activation = blocks["size"][nature.waits].max(initial=0)
            found += _workspace(trace, mine, below) if blocks["size"][largest[0]] > 2 * activation else []
        elif in_stack(trace, largest, file="/torch/optim/").any():
            found += _optimizer(trace, mine, below)
        elif _first_only(trace, steps, row, mine) or (
            _stands_out(trace, nature, int(largest[0]), few=few)
            and _used(trace, mine)
            and not _in_parts(trace, steps, nature, row, mine)
        ):
            return [_told(trace, steps, nature, row, size, count, mine, below)]
    return found[:1]


def _stays(trace: Trace, nature: _Nature, row: int, mine: I64) -> int:
    """Bytes in blocks as large, of the same line, as long before some of its blocks as they take, or after them."""
    born, asked, sizes = (trace.blocks[c] for c in ("alloc_event", "free_requested_event", "size"))
    first, last = int(born[mine].min()), int(asked[mine].max()) + 1
    line = np.flatnonzero((nature.sites == row) & (born >= 0) & (sizes >= 0.9 * sizes[mine].max()))
    there = []
    for m in (max(2 * first - last, 0), min(2 * last - first, trace.n_events)):
        live = line[(born[line] < m) & ((asked[line] == -1) | (asked[line] >= m))]
        there.append(int(sizes[live].sum()))
    return max(there)


def _stands_out(trace: Trace, nature: _Nature, block: int, *, few: bool) -> bool:
    """Whether a block is more than what every layer and every step have."""
    sizes = trace.blocks["size"]
    if nature.loss[block]:
        return True
    if not nature.layers[block] and not nature.waits[block]:
        # Among a few operations, what one makes is no more than what the next one does.
        others = sizes[(nature.sites != nature.sites[block]) & ~nature.backward]
        return not few or bool(sizes[block] >= 2 * others.max(initial=0))
    if nature.waits[block] and not nature.last[block]:
        return False
    ordinary = np.quantile(sizes[nature.layers & ~nature.backward], 0.75) if nature.layers.any() else sizes[block]
    return bool(sizes[block] >= _ORDER * ordinary)


def _told(  # noqa: PLR0917
    trace: Trace, steps: Steps, nature: _Nature, row: int, size: int, count: int, mine: I64, below: int
) -> Finding:
    blocks, gain = trace.blocks, trace.peak_allocated - below
    window = (int(blocks["alloc_event"][mine].min()), int(blocks["free_requested_event"][mine].max()) + 1)
    said = [
        (
            f"{many(count, 'block')} made here stood at the peak, the largest of "
            f"{amount(int(blocks['size'][mine].max()))}; {window[1] - window[0]:,} events after the first was made all "
            "were gone."
        ),
        *source_sentence(trace, row),
    ]
    saves = min(size - size // 4, gain)
    if _first_only(trace, steps, row, mine):
        saves = gain
        said.append("Later steps need less here: it happened in the first one only (a workspace that was tried out).")
        advice = "Set torch.backends.cudnn.benchmark = False, or limit what it may try: the first step's peak falls"
    elif nature.last[mine].any():
        advice = (
            "Compute the loss in chunks (of the batch or of the sequence, each under checkpoint): in four parts the "
            "peak falls"
        )
    else:
        advice = "Do it in chunks (of the batch or of the sequence): in four parts the peak falls"
    return Finding(
        kind="spike",
        title=f"A short peak of {amount(size)} at {name_of(trace, row)}",
        bytes=size,
        blocks=ids(mine),
        site=frame_of(trace, row),
        label=trace.site_label(row),
        evidence=tuple(said),
        advice=f"{advice} by up to {amount(saves)} (without it the peak would be {amount(below)}).",
        certain=False,
        saves=saves,
        moment=trace.peak_event,
        window=window,
        lines=lines_of(trace, sums_by_site(trace, mine, nature.sites)),
        frame=row,
    )


def _workspace(trace: Trace, mine: I64, below: int) -> list[Finding]:
    """A fact: what operators take for themselves in backward makes the peak."""
    size = int(trace.blocks["size"][mine].sum())
    largest = int(mine[trace.blocks["size"][mine].argmax()])
    node = next((found[1] for f in trace.stack(largest) if (found := _NODE.search(f.name))), "")
    born, asked = int(trace.blocks["alloc_event"][largest]), int(trace.blocks["free_requested_event"][largest])
    alike = np.flatnonzero(trace.blocks["size"] == trace.blocks["size"][largest])
    said = [
        (
            f"The largest, {amount(int(trace.blocks['size'][largest]))}, stood for {asked - born:,} events; "
            f"{many(len(alike), 'block')} of that size came in all. Without them the peak would be {amount(below)}."
        ),
        f"{node} took it." if node else 'stacks="all" names the operator.',
    ]
    return [
        told(
            trace,
            "step",
            f"What operators take for a moment in backward makes {amount(size)} of the peak",
            mine,
            said,
            "Expected. A smaller batch needs less of it; in half precision another kernel may serve that needs none.",
            certain=bool(node),
            moment=trace.peak_event,
            row=-1,
        )
    ]


def _optimizer(trace: Trace, mine: I64, below: int) -> list[Finding]:
    """A fact: the optimizer's step makes the peak, by working on all parameters at once."""
    if not in_stack(trace, mine, name="_multi_tensor").any():
        return []  # one parameter after the other: nothing to save
    size, largest = int(trace.blocks["size"][mine].sum()), int(trace.blocks["size"][mine].max())
    return [
        told(
            trace,
            "step",
            f"The optimizer's step takes {amount(size)} for a moment, and makes the peak",
            mine,
            [
                (
                    f"It works on all parameters at once: {many(len(mine), 'block')}, the largest of "
                    f"{amount(largest)}. Without them the peak would be {amount(below)}."
                )
            ],
            "Expected. With foreach=False, or fused=True, the optimizer takes one parameter after the other.",
            certain=True,
            moment=trace.peak_event,
        )
    ]


def _used(trace: Trace, mine: I64) -> bool:
    """Whether anything was made while these blocks stood: else they are a result or a copy that was dropped."""
    born, asked = trace.blocks["alloc_event"], trace.blocks["free_requested_event"]
    return bool(((born > born[mine].max()) & (born < asked[mine].max())).any())


def _in_parts(trace: Trace, steps: Steps, nature: _Nature, row: int, mine: I64) -> bool:
    """Whether the line makes as large blocks several times in a step, each after the one before has gone."""
    born, asked, sizes = (trace.blocks[c] for c in ("alloc_event", "free_requested_event", "size"))
    line = np.flatnonzero((nature.sites == row) & (born >= 0) & (sizes >= 0.9 * sizes[mine].max()))
    if steps.n >= 2 and steps.how != "repetition":  # turns that repeat may be the parts
        turn = np.searchsorted(steps.bounds, born[line], side="right")
        line = line[turn == np.searchsorted(steps.bounds, trace.peak_event, side="left")]
    times, until = 0, -1
    for block in line[np.argsort(born[line])].tolist():
        if born[block] > until:
            times += 1
            until = asked[block] if asked[block] >= 0 else trace.n_events
    return times >= _PARTS


def _recurs(trace: Trace, steps: Steps, share: float = 0.9) -> bool:
    """Whether at least half of the steps come to a share of the peak."""
    curve = trace.curve("allocated")
    tops = np.maximum.reduceat(curve, steps.bounds[:-1])
    return bool((tops >= share * trace.peak_allocated).mean() >= 0.5)


def _peak_without(trace: Trace, left_out: I64) -> int:
    """The highest allocated bytes if some blocks had not been."""
    change = np.zeros(trace.n_events + 2, np.int64)
    size = trace.blocks["size"][left_out]
    np.add.at(change, trace.blocks["alloc_event"][left_out].astype(np.int64) + 1, size)
    np.subtract.at(change, trace.blocks["free_requested_event"][left_out].astype(np.int64) + 1, size)
    return int((trace.curve("allocated") - np.cumsum(change)[: trace.n_events + 1]).max())


def _first_only(trace: Trace, steps: Steps, row: int, mine: I64) -> bool:
    """Whether the line takes much less in every later step than at the peak in the first."""
    if steps.n < 2 or not steps.bounds[0] <= trace.peak_event <= steps.bounds[1]:
        return False
    blocks = trace.blocks
    later = np.flatnonzero((trace.block_site == row) & (blocks["alloc_event"] >= steps.bounds[1]))
    turns = np.unique(np.searchsorted(steps.bounds, blocks["alloc_event"][later], side="right"))
    return len(turns) >= 2 and int(blocks["size"][later].max()) < 0.6 * int(blocks["size"][mine].max())


def _handover(trace: Trace) -> list[Finding]:
    """Old and new of the same sizes at the peak, of which the old goes next, before anything else is made."""
    blocks, m = trace.blocks, trace.peak_event
    live = trace.live_at(m)
    born, asked = blocks["alloc_event"][live].astype(np.int64), blocks["free_requested_event"][live].astype(np.int64)
    allocs = np.sort(blocks["alloc_event"][blocks["alloc_event"] >= m])
    # The next allocation after the peak; a large one, so that a scalar in between does not matter.
    until = next(
        (int(e) for e in allocs.tolist() if trace.events.size[e] >= trace.peak_allocated // 100), trace.n_events
    )
    goes = (asked >= m) & (asked < until)
    old = live[goes]
    size = int(blocks["size"][old].sum())
    if size < _SHARE * trace.peak_allocated or not len(old):
        return []
    # Made since the old ones were complete, the newest first, as much as the old ones are.
    newest = live[~goes & (born > int(blocks["alloc_event"][old].max()))]
    wanted, kept = Counter(blocks["size"][old].tolist()), []
    for block in newest[::-1].tolist():
        one = int(blocks["size"][block])
        if wanted[one] > 0:
            wanted[one] -= 1
            kept.append(block)
    if int(blocks["size"][kept].sum()) < 0.9 * size:
        return []
    sums = sums_by_site(trace, np.array(kept, np.int64))
    row = next((site for site, _, _ in sums if site >= 0), -1)
    # Only what is built again, not a value that an operation replaces by its next: those are made of one another.
    if len(kept) < 2 and (blocks["alloc_event"][old] >= 0).all():
        return []
    window = (int(blocks["alloc_event"][kept].min()), int(blocks["free_requested_event"][old].max()) + 1)
    return [
        Finding(
            kind="spike",
            title=f"The new was made at {name_of(trace, row)} while the old {amount(size)} were still there",
            bytes=size,
            blocks=ids(np.concatenate([old, np.array(kept, np.int64)])),
            site=frame_of(trace, row),
            label=trace.site_label(row),
            evidence=(
                f"{many(len(old), 'block')} went right after as many of the same sizes ({len(kept):,}) had been made.",
                "A name is bound again only when its new value is complete.",
                *source_sentence(trace, row),
            ),
            advice=f"del the old one (and its optimizer) before this line: the peak falls by {amount(size)}.",
            certain=True,
            saves=size,
            moment=m,
            window=window,
            lines=lines_of(trace, sums),
            frame=row,
        )
    ]
