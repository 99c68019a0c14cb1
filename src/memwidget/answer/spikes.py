"""Short peaks: what stood at the highest moment for a short time only.

Owns two readings of the peak. A *burst*: blocks of one line that live briefly and make up much of it (a full table of
logits, an attention matrix, a workspace tried once). A *handover*: the new is made while the old is still there, and
the old goes right after (a model built again in its own cell). A forward pass that piles up activations for a whole
step is neither.
"""

from __future__ import annotations

from collections import Counter
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

if TYPE_CHECKING:
    from memwidget.answer.steps import Steps
    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: Share of the peak that short-lived blocks of one line must make up.
_SHARE = 0.25
#: By this share of the peak it must fall without them.
_GAIN = 0.15
#: Brief: at most this share of a step (of the recording where there are no steps), or so few events.
_BRIEF, _FEW = 0.15, 6
#: Short-lived blocks of more pieces than this are activations in a small model, not one big thing.
_PIECES = 4
#: A recording without steps and of no more events than this shows a few operations, not a run.
_SHORT = 400


def spikes(trace: Trace, steps: Steps) -> list[Finding]:
    """Tell the peak's short-lived part."""
    if trace.n_events == 0 or trace.peak_allocated == 0:
        return []
    return _handover(trace) or _burst(trace, steps)


def _burst(trace: Trace, steps: Steps) -> list[Finding]:
    blocks, m = trace.blocks, trace.peak_event
    length = float(np.median(np.diff(steps.bounds))) if steps.n >= 2 else float(trace.n_events)
    few = trace.n_events <= _SHORT
    if steps.n >= 2 and length < 2 * _FEW:
        # A loop around an operation or two: what it takes, it takes at every turn. Unless one turn stands out.
        if not few or _recurs(trace, steps):
            return []
    else:
        few &= steps.n < 2
    born, asked = blocks["alloc_event"].astype(np.int64), blocks["free_requested_event"].astype(np.int64)
    short = (born >= 0) & (asked >= 0)
    if not few:  # in a few operations: whatever the code gave back again
        short &= asked - born <= max(_BRIEF * length, _FEW)
    live = trace.live_at(m)
    brief = short[live]
    sums = sums_by_site(trace, live[brief])
    if not sums or sums[0][1] < _SHARE * trace.peak_allocated:
        return []
    row, size, count = _headline(trace, sums, live[brief])
    mine = live[brief & (trace.block_site[live] == row)]
    largest = mine[np.argsort(-blocks["size"][mine])][:_PIECES]
    if int(blocks["size"][largest].sum()) < 0.8 * size:
        return []
    # What would stand at most without this line's short-lived blocks, anywhere in the recording.
    below = _peak_without(trace, np.flatnonzero(short & (trace.block_site == row)))
    gain = trace.peak_allocated - below
    # A line can be acted on; backward without a line only where it is much.
    if gain < (_GAIN if row >= 0 else 2 * _GAIN) * trace.peak_allocated:
        return []
    window = (int(blocks["alloc_event"][mine].min()), int(blocks["free_requested_event"][mine].max()) + 1)
    said = [
        (
            f"{many(count, 'block')} made here stood at the peak, the largest of "
            f"{amount(int(blocks['size'][mine].max()))}; {window[1] - window[0]:,} events after the first was made all "
            "were gone."
        ),
        *source_sentence(trace, row),
    ]
    first_only, advice, saves = _first_only(trace, steps, row, mine), "", size
    if first_only:
        said.append("Later steps need less here: it happened in the first one only (a workspace that was tried out).")
        advice = "Set torch.backends.cudnn.benchmark = False, or limit what it may try: the first step's peak falls"
    else:
        saves = min(size - size // 4, gain)
        advice = "Do it in chunks (of the batch or of the sequence), or checkpoint it; in four parts the peak falls"
    return [
        Finding(
            kind="spike",
            title=f"A short peak of {amount(size)} " + (f"at {name_of(trace, row)}" if row >= 0 else "in backward"),
            bytes=size,
            blocks=ids(mine),
            site=frame_of(trace, row),
            label=trace.site_label(row),
            evidence=tuple(said),
            advice=f"{advice} by up to {amount(saves)} (without it the peak would be {amount(below)}).",
            certain=False,
            saves=saves,
            moment=m,
            window=window,
            lines=lines_of(trace, sums),
            frame=row,
        )
    ]


def _recurs(trace: Trace, steps: Steps) -> bool:
    """Whether at least half of the steps come near the peak."""
    curve = trace.curve("allocated")
    tops = np.maximum.reduceat(curve, steps.bounds[:-1])
    return bool((tops >= 0.9 * trace.peak_allocated).mean() >= 0.5)


def _peak_without(trace: Trace, left_out: I64) -> int:
    """The highest allocated bytes if some blocks had not been."""
    change = np.zeros(trace.n_events + 2, np.int64)
    size = trace.blocks["size"][left_out]
    np.add.at(change, trace.blocks["alloc_event"][left_out].astype(np.int64) + 1, size)
    np.subtract.at(change, trace.blocks["free_requested_event"][left_out].astype(np.int64) + 1, size)
    return int((trace.curve("allocated") - np.cumsum(change)[: trace.n_events + 1]).max())


def _headline(trace: Trace, sums: list[tuple[int, int, int]], brief: I64) -> tuple[int, int, int]:
    """The line to name: the largest, but a forward line of half its size before the one that calls backward."""
    named = [r for r in sums if r[0] >= 0 and 2 * r[1] >= sums[0][1]]
    if not named:
        return sums[0]
    top = named[0]
    if _calls_backward(trace, brief[trace.block_site[brief] == top[0]]):
        others = [
            r
            for r in named[1:]
            if 2 * r[1] >= top[1] and not _calls_backward(trace, brief[trace.block_site[brief] == r[0]])
        ]
        return others[0] if others else top
    return top


def _calls_backward(trace: Trace, blocks: I64) -> bool:
    """Whether the largest of these blocks was made below a call of backward()."""
    block = int(blocks[trace.blocks["size"][blocks].argmax()])
    return any(f.name == "backward" and "torch" in f.filename for f in trace.stack(block))


def _first_only(trace: Trace, steps: Steps, row: int, mine: I64) -> bool:
    """Whether the line takes much less in every later step than at the peak in the first."""
    if steps.n < 2 or trace.peak_event > steps.bounds[1]:
        return False
    blocks = trace.blocks
    later = np.flatnonzero((trace.block_site == row) & (blocks["alloc_event"] >= steps.bounds[1]))
    return bool(len(later)) and int(blocks["size"][later].max()) < 0.6 * int(blocks["size"][mine].max())


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
