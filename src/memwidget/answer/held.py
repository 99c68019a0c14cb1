"""What is still held: live at the end, gradients that nothing reads, what earlier runs of a cell left.

Owns the words for memory that something merely holds on to. What a healthy run keeps is told in kept.py, what grows in
growth.py; both are left out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer import causes
from memwidget.answer.finding import (
    Finding,
    amount,
    callers_sentence,
    fact_rows,
    many,
    name_of,
    source_sentence,
    sums_by_site,
    worth,
)
from memwidget.answer.kept import CATEGORY_CODE, in_stack, is_model, told
from memwidget.recording import SPAN
from memwidget.units import plain

if TYPE_CHECKING:
    from memwidget.answer.steps import Steps
    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: What a model and its optimizer are made of: it is meant to stay.
_STATE = [CATEGORY_CODE[name] for name in ("parameter", "buffer", "optimizer_state")]
#: Less than this stays without a word: a result on the screen, a loss.
LEAST = 64 << 10
#: trace.NO_STACK's code for blocks that autograd's own thread made.
_BACKWARD = 2


def held(trace: Trace, steps: Steps, taken: I64) -> list[Finding]:
    """What the recorded code made and did not give back."""
    blocks = trace.blocks
    lives = np.flatnonzero((blocks["alloc_event"] >= 0) & (blocks["free_requested_event"] == -1))
    lives = np.setdiff1d(lives, taken)
    lives = lives[~np.isin(blocks["category"][lives], _STATE)]
    lives = lives[~is_model(trace, lives) & ~causes.passing(trace, lives)]
    # A graph's gradients and results stand where its replay writes them: told with the pool.
    private = [i for i, pool in enumerate(trace.recording.pools) if pool != (0, 0)]
    lives = lives[~np.isin(blocks["pool"][lives], private)]
    if steps.n and steps.how != "repetition" and "cells" not in trace.recording.facts:
        # What a script set up before its first step is its state.
        lives = lives[blocks["alloc_event"][lives] >= steps.bounds[1]]
    reused = lives[(blocks["category"][lives] == CATEGORY_CODE["gradient"]) & _optimizes(trace)]
    lives = np.setdiff1d(lives, reused)
    found = _reused(trace, reused)
    size = int(blocks["size"][lives].sum())
    if not worth(trace, size) or size < LEAST:
        return found
    sums = sums_by_site(trace, lives)
    for row, site_size, count in sums[:3]:
        if not worth(trace, site_size) or site_size < LEAST:
            continue
        found.append(_held_line(trace, lives[trace.block_site[lives] == row], row, site_size, count))
    return found


def _optimizes(trace: Trace) -> bool:
    """Whether an optimizer stepped; by the marks themselves, as a step that allocates nothing has no events."""
    r = trace.recording
    marked = any(r.strings[name].startswith("Optimizer.step#") for name in np.unique(r.annotations.name).tolist())
    return marked or bool((r.spans.kind == SPAN["optimizer"]).any())


def _reused(trace: Trace, grads: I64) -> list[Finding]:
    """A fact: gradients of the last step, which the next one zeroes or drops before it needs its own."""
    size = int(trace.blocks["size"][grads].sum())
    if not worth(trace, size) or size < LEAST:
        return []
    return [
        told(
            trace,
            "step",
            f"{amount(size)} of gradients stay until the next zero_grad()",
            grads,
            [f"{many(len(grads), 'gradient')} of the last step stood at the end."],
            f"Expected. zero_grad(set_to_none=True) right after step() has {amount(size)} less between the steps.",
            certain=True,
            moment=trace.n_events,
        )
    ]


def _held_line(trace: Trace, mine: I64, row: int, size: int, count: int) -> Finding:
    said = [
        f"{many(count, 'block')} made here stayed to the end.",
        *source_sentence(trace, row),
        *callers_sentence(trace, mine, row),
    ]
    fixes: list[str] = []
    # A holder of gradients is the model itself: nobody is told to delete that.
    gradient = trace.blocks["category"][mine] == CATEGORY_CODE["gradient"]
    mostly = int(trace.blocks["size"][mine][gradient].sum()) * 2 > size
    holders = [] if mostly else causes.holders(trace, mine)[:4]
    for holder, holder_size in holders:
        sentence, fix = causes.holder_words(holder, holder_size)
        said.append(sentence)
        fixes += [fix] if fix and fix not in fixes else []
    # What nobody refers to hangs on the graph of something that is referred to.
    through = [] if mostly or 2 * causes.held_bytes(trace, mine) >= size else causes.graphs(trace, mine)[:3]
    for holder in through:
        said.append(f"{plain(holder['holder'], 80)} has a grad_fn: its graph keeps what it was computed from.")
        fix = causes.holder_words(holder, 0)[1]
        fixes += [fix] if fix and fix not in fixes else []
    failed = trace.recording.facts.get("error")
    if isinstance(failed, str) and failed:
        said.append(
            f"The code ended with {plain(failed, 60)}, whose traceback holds the locals of each frame it passed."
        )
    if trace.device_type != "cpu":
        said.append("empty_cache() cannot free it: something still refers to it.")
    in_backward = row < 0 and bool(
        (trace.no_stack[mine] == _BACKWARD).all() or in_stack(trace, mine, name="autograd").all()
    )
    # Each line that lets go is promised what it is known to free, not what has holders that nobody found.
    freed = causes.let_go(trace, mine, [holder for holder, _ in holders]) if fixes and not through else size
    gradients = bool(gradient.all())
    where = "in backward" if in_backward else f"at {name_of(trace, row)}"
    if fixes:
        advice = f"Run: {'; '.join(fixes)}"
    elif mostly or in_backward:
        said += [] if gradients else ["What backward makes and leaves are gradients, as a rule."]
        of = [plain(holder["holder"], 80) for holder, _ in causes.holders(trace, mine)[:4]]
        said += [f"Whose they are: {', '.join(of)}."] if of else []
        advice = "Set .grad to None, or call zero_grad(set_to_none=True), when they have been used"
    elif holders:  # found, and no line lets go
        advice = f"It goes when {plain(holders[0][0]['holder'], 80)} ends"
    else:
        advice = "If nobody needs it any more, del the name, list or attribute that keeps it"
    # Where a cell ends, what it left is left; a file or a block of code may end in the middle of things.
    ended = (bool(fixes) or "cells" in trace.recording.facts) and not through and freed == size
    return told(
        trace,
        "held",
        f"{amount(size)} made {where} are still live at the end",
        mine,
        said,
        f"{advice}: that frees {'up to ' if through or freed < size else ''}{amount(freed or size)}.",
        certain=gradients or (ended and not in_backward),
        saves=freed or size,
        moment=trace.n_events,
        row=row,
    )


def idle_gradients(trace: Trace) -> list[tuple[int, I64, I64]]:
    """Gradients that stand through a forward pass although nothing is to be added to them.

    Those that are dropped before the next backward: the usual zero_grad(), backward(), step() has them. And those that
    zero_grad() left in place, as zeros, before the forward pass (set_to_none=False); they are idle until backward comes
    to them, which is taken to be where it was as they were made.

    Returns
    -------
    list of (first moment, block ids, moment until which each is idle), one a forward pass
    """
    blocks = trace.blocks
    grads = np.flatnonzero(blocks["category"] == CATEGORY_CODE["gradient"])
    born, asked = blocks["alloc_event"][grads].astype(np.int64), blocks["free_requested_event"][grads].astype(np.int64)
    asked = np.where(asked < 0, trace.n_events, asked)
    phases = [band for band in trace.bands if band.kind == "phase"]
    backward = np.array([(b.lo, b.hi) for b in phases if b.name == "backward"], np.int64).reshape(-1, 2)
    zeroed = _zeroed(trace)
    if not len(grads) or not len(backward):
        return []
    own = backward[np.maximum(np.searchsorted(backward[:, 0], born, side="right") - 1, 0)]
    share = np.clip((born - own[:, 0]) / np.maximum(own[:, 1] - own[:, 0], 1), 0, 1)
    found = []
    for band in phases:
        if band.name != "forward":
            continue
        later, before = backward[backward[:, 0] >= band.hi], backward[backward[:, 0] <= band.lo]
        lo, hi = later[0].tolist() if len(later) else (trace.n_events, trace.n_events)
        here = (born < band.lo) & (asked >= band.hi)
        zero = zeroed[zeroed <= band.lo]
        if len(zero) and len(before) and zero[-1] > before[-1, 0]:
            here &= born < zero[-1]
            start, until = int(zero[-1]), np.minimum(asked, (lo + share * (hi - lo)).astype(np.int64))
        else:
            here &= asked <= lo
            start, until = band.lo, asked
        if here.any():
            found.append((start, grads[here], until[here]))
    return found


def _zeroed(trace: Trace) -> I64:
    """Moments at which zero_grad() ended. Where it leaves the gradients it allocates nothing, so no band shows it."""
    marks, strings = trace.recording.annotations, trace.recording.strings
    if not trace.has_time or not len(marks):
        return np.zeros(0, np.int64)
    mine = np.array([strings[name].startswith("Optimizer.zero_grad#") for name in marks.name.tolist()], bool)
    ends = np.sort(marks.end_us[mine & (marks.end_us >= 0)])
    return np.searchsorted(trace.event_times_us, ends, side="right").astype(np.int64)


def gradients(trace: Trace, idle: list[tuple[int, I64, I64]]) -> list[Finding]:
    """Idle gradients that the peak could do without.

    They cost something only where the peak lies in a forward pass, or early in backward, and not in the optimizer's
    step, when there are gradients anyway.
    """
    size_of = trace.blocks["size"]
    change = np.zeros(trace.n_events + 2, np.int64)
    for start, mine, until in idle:
        change[start] += size_of[mine].sum()
        np.subtract.at(change, until + 1, size_of[mine])
    lowered = int((trace.curve("allocated") - np.cumsum(change)[: trace.n_events + 1]).max(initial=0))
    saves = trace.peak_allocated - lowered
    m = trace.peak_event
    at_peak = [mine[until >= m] for start, mine, until in idle if start <= m <= until.max()]
    if not at_peak or not worth(trace, saves):
        return []
    standing = at_peak[-1]
    size = int(size_of[standing].sum())
    return [
        told(
            trace,
            "held",
            f"{amount(size)} of old gradients stand through the forward pass",
            standing,
            [
                (
                    f"{many(len(standing), 'gradient')} were live at the peak (event {m:,}), and nothing read them: "
                    "zero_grad() came late, or left zeros in place."
                )
            ],
            f"Call zero_grad(set_to_none=True) right after step(): the peak falls by {amount(saves)}.",
            certain=(trace.blocks["reason"][standing] == 1).all(),  # by identity
            saves=saves,
            moment=m,
        )
    ]


def runs(trace: Trace) -> list[Finding]:
    """Growth across the runs of one cell: what its earlier runs made is still there.

    The recorder keeps, by the cell's text, what each run left, and looks after the next one whether it is still live
    and whether the next run left as much at the same lines ("again": where that lies).
    """
    left = [row for row in fact_rows(trace, "earlier_runs") if isinstance(row.get("bytes"), int)]
    still = [int(row["bytes"]) for row in left if row["bytes"] > 0]
    if not still:
        return []
    blocks = trace.blocks
    lives = np.flatnonzero((blocks["alloc_event"] >= 0) & (blocks["free_requested_event"] == -1))
    again = left[-1].get("again")
    if isinstance(again, list):
        where = np.array([a for a in again if isinstance(a, int) and 0 <= a < 1 << 64], np.uint64)
        lives = lives[np.isin(blocks["address"][lives], where)]
    now = int(blocks["size"][lives].sum())
    if now <= 0 or min(*still, now) < 0.5 * max(*still, now):
        return []
    sums = sums_by_site(trace, lives)
    row = next((site for site, _, _ in sums if site >= 0), -1)
    holders = causes.holders(trace, lives)
    words = [causes.holder_words(holder, size) for holder, size in holders[:4]]
    earlier = [plain(name, 80) for row_ in left for name in _texts(row_.get("holders"))]
    old_fixes = [plain(fix, 200) for row_ in left for fix in _texts(row_.get("fixes"))]
    fixes = list(dict.fromkeys([*(fix for _, fix in words if fix), *old_fixes]))
    known = causes.let_go(trace, lives, [holder for holder, _ in holders[:4]]) >= 0.99 * now
    said = [
        f"This cell ran {len(left) + 1} times; of the earlier runs {', '.join(map(amount, still))} are still live.",
        *(sentence for sentence, _ in words),
        *([f"What the earlier runs left is held by {', '.join(dict.fromkeys(earlier))}."] if earlier else []),
    ]
    total = sum(still) + now
    return [
        told(
            trace,
            "growth",
            f"Each run of this cell leaves {amount(now)} at {name_of(trace, row)}",
            lives,
            said,
            f"Run: {'; '.join(fixes[:6])}. That frees {'' if known else 'up to '}{amount(total)}."
            if fixes
            else f"Clear what keeps the earlier results before the cell runs again: that frees {amount(sum(still))}.",
            certain=len(still) > 1,  # after two runs, the first may have made what stays once
            saves=total,
            moment=trace.n_events,
            row=row,
            per_step=now,
            size=total,
        )
    ]


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, (list, tuple)) else []
