"""Where one step of a recording ends and the next begins.

Owns the ways to tell, in order of trust: marks (``rec.step()``, the profiler's), the optimizer's steps that torch
annotates, and repetition in the order of allocations. It must not know what grows.

Repetition is looked for in the user's own lines first. The frames of a stack that are the user's, outermost first,
say where the loop's body stands: at the first depth at which one line comes back regularly with other lines in
between, each return is a new turn::

    train.py:8 main -> loop.py:31 step      8 is always the same: nothing to see at depth 0
                       loop.py:31, 32, 33, 31, 32, 33 ...     depth 1: each 31 begins a turn

A loop whose whole body is one line shows in whole stacks only: the rarest stack that comes back regularly begins a
turn. Everything here is a sort and a few passes, so linear but for a logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwidget.trace.sites import USER, normal_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: Fewer turns than this prove no loop.
LEAST = 4
#: Turns may differ this much in length from the median turn and still be regular.
_REGULAR = (0.4, 2.5)
#: User frames looked at from the outside in. Loops stand in main, train or a trainer's method: near the outside.
_DEPTHS = 6


@dataclass(frozen=True)
class Steps:
    """Moments between steps, first start to last end, and how they were told.

    Attributes
    ----------
    bounds : ndarray of int64, moments, ascending
    how : {"marks", "optimizer", "repetition", "none"}
    """

    bounds: I64
    how: str

    @property
    def n(self) -> int:
        """Number of steps."""
        return max(len(self.bounds) - 1, 0)

    @property
    def words(self) -> str:
        """How the steps were told, for a sentence."""
        return {
            "marks": "steps as marked",
            "optimizer": "steps of the model or its optimizer",
            "repetition": "turns of a loop, told by lines that repeat",
        }.get(self.how, "")


def find_steps(trace: Trace) -> Steps:
    """Tell the steps; "none" where there are not two."""
    none = Steps(np.zeros(0, np.int64), "none")
    marked = _marks(trace)
    optimizer = _optimizer(trace)
    if marked.how == "marks" and marked.n >= 2:
        return marked
    # Of models that come one after the other the recorder tells the steps of one.
    uneven = marked.n > 1 and np.diff(marked.bounds).max() > trace.n_events / 2 and optimizer.n > marked.n
    if marked.n >= LEAST and not uneven:
        return marked
    if optimizer.n >= LEAST:
        return optimizer
    repeated = _repetition(trace)
    if repeated.n >= LEAST:
        return repeated
    return next((few for few in (marked, optimizer) if few.n >= 2), none)


def _marks(trace: Trace) -> Steps:
    """Bands of steps: the user's own marks, else those that the recorder told from forward passes and optimizers."""
    bands = [band for band in trace.bands if band.kind == "step" and band.depth == 0]
    if not bands:
        return Steps(np.zeros(0, np.int64), "marks")
    own = bool(trace.recording.facts.get("steps")) or bands[0].name.startswith("ProfilerStep#")
    bounds = np.unique([bands[0].lo, *(band.hi for band in bands)])
    return Steps(bounds.astype(np.int64), "marks" if own else "optimizer")


def optimizer_ranges(trace: Trace) -> list[tuple[int, int]]:
    """Moments (lo, hi) of each optimizer step that torch annotated, of the optimizer that steps most often."""
    found: dict[str, list[tuple[int, int]]] = {}
    for band in trace.bands:
        if band.name.startswith("Optimizer.step#"):
            found.setdefault(band.name, []).append((band.lo, band.hi))
    return max(found.values(), key=len) if found else []


def _optimizer(trace: Trace) -> Steps:
    ends = [hi for _, hi in optimizer_ranges(trace)]
    return Steps(np.unique(np.array([0, *ends] if ends else [], np.int64)), "optimizer")


# -- repetition -------------------------------------------------------------------------------------------------------


def _repetition(trace: Trace) -> Steps:
    blocks = trace.blocks
    made = np.flatnonzero((blocks["alloc_event"] >= 0) & (blocks["stack"] >= 0))
    if not len(made):
        # No stacks to go by: sizes repeat too.
        made = np.flatnonzero(blocks["alloc_event"] >= 0)
        turns = _rarest(blocks["requested"][made])
    else:
        stacks = blocks["stack"][made]
        turns = np.zeros(0, np.int64)
        outside = ~inside_modules(trace)[stacks]
        for tokens in _user_lines(trace, stacks):
            turns = _returns(tokens)
            if len(turns) >= LEAST:
                break
        if len(turns) < LEAST and outside.any():
            # Layers repeat as well: a turn begins with something that is made outside them.
            turns = _rarest(np.where(outside, stacks, -1))
            if len(turns) >= LEAST and np.median(np.diff(turns)) == 1:
                # One line that makes several things a turn: the rarest size of them begins one.
                _, sized = np.unique(np.stack([stacks, blocks["requested"][made]]), axis=1, return_inverse=True)
                rarer = _rarest(np.where(outside, sized.ravel(), -1))
                turns = rarer if LEAST <= len(rarer) < len(turns) else turns
    if len(turns) < LEAST:
        return Steps(np.zeros(0, np.int64), "repetition")
    events = blocks["alloc_event"][made].astype(np.int64)
    starts = events[turns]
    # The last turn ends where it would by the length of the others, or with the recording.
    length = int(np.median(np.diff(starts)))
    last = min(int(starts[-1]) + length, trace.n_events)
    return Steps(np.append(starts, last) if last > starts[-1] else starts, "repetition")


def _module_calls(trace: Trace) -> NDArray[np.bool_]:
    """Frames of a module or an optimizer at work: what repeats inside, for layers or parameters, is no loop."""
    paths = [normal_path(text) for text in trace.recording.strings]
    texts = np.array([p.endswith("/torch/nn/modules/module.py") or "/torch/optim/" in p for p in paths], bool)
    files = trace.recording.frames.filename
    return texts[files] if len(texts) else np.zeros(len(files), bool)


def inside_modules(trace: Trace) -> NDArray[np.bool_]:
    """Whether a stack passes through a module's call, one entry a stack."""
    r = trace.recording
    so_far = np.concatenate([[0], np.cumsum(_module_calls(trace)[r.stack_frames])])
    inside: NDArray[np.bool_] = so_far[r.stacks[1:]] > so_far[r.stacks[:-1]]
    return inside


def _user_lines(trace: Trace, stacks: I64) -> list[I64]:
    """The user's line at each depth from the outside, one entry an allocation; the innermost where there is no more.

    Lines of a model that is called do not count.
    """
    recording, kinds, calls = trace.recording, trace.frame_kind, _module_calls(trace)
    per_stack = np.full((recording.n_stacks, _DEPTHS), -1, np.int64)
    for stack in np.unique(stacks).tolist():
        rows = recording.stack_frames[recording.stacks[stack] : recording.stacks[stack + 1]]
        rows = rows[::-1]  # outermost first
        call = np.flatnonzero(calls[rows])
        rows = rows[: call[0]] if len(call) else rows
        mine = rows[kinds[rows] == USER]
        if len(mine):
            per_stack[stack] = np.append(mine[:_DEPTHS], np.repeat(mine[-1], max(_DEPTHS - len(mine), 0)))
    found: list[I64] = []
    for depth in range(_DEPTHS):
        tokens = per_stack[stacks, depth]
        if depth and (tokens == found[-1]).all():
            break
        found.append(tokens)
    return found


def _returns(tokens: I64) -> I64:
    """Positions at which the line that begins the most regular loop comes back; empty where none does."""
    fresh = np.ones(len(tokens), bool)
    fresh[1:] = tokens[1:] != tokens[:-1]
    runs = np.flatnonzero(fresh & (tokens >= 0))
    best: tuple[int, I64] = (0, np.zeros(0, np.int64))
    for positions in _regular(tokens[runs], runs, len(tokens)):
        if len(positions) > best[0]:
            best = (len(positions), positions)
    return best[1]


def _rarest(tokens: I64) -> I64:
    """Positions of the rarest token that comes back regularly: of runs of one token, else of single ones."""
    fresh = np.ones(len(tokens), bool)
    fresh[1:] = tokens[1:] != tokens[:-1]
    none = np.zeros(0, np.int64)
    for positions in (np.flatnonzero(fresh & (tokens >= 0)), np.flatnonzero(tokens >= 0)):
        candidates = _regular(tokens[positions], positions, len(tokens))
        found = min(candidates, key=lambda p: (len(p), int(p[0])), default=none)
        if len(found):
            return found
    return none


def _regular(tokens: I64, positions: I64, total: int) -> list[I64]:
    """For each token that comes back in even gaps over at least half of everything: its positions, first come first."""
    _, inverse, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    often = np.flatnonzero(counts[inverse] >= LEAST)
    order = often[np.argsort(tokens[often], kind="stable")]
    cuts = np.flatnonzero(np.diff(tokens[order])) + 1
    found = []
    for group in np.split(order, cuts):
        if len(group) < LEAST:
            continue
        at = positions[group]
        gaps = np.diff(at)
        typical = float(np.median(gaps))
        even = np.count_nonzero((gaps >= _REGULAR[0] * typical) & (gaps <= _REGULAR[1] * typical))
        if even >= 0.8 * len(gaps) and typical * len(at) >= 0.5 * total:
            found.append(at)
    return sorted(found, key=lambda p: int(p[0]))
