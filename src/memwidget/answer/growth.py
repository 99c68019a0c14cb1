"""Memory that grows step by step.

Owns the slope by call site and the test for a staircase; why it grows is told in causes.py. Bytes are looked at where
one step ends and the next begins: what a step takes and gives back does not show there, what it leaves behind does.

A call site grows when, after the first steps (first optimizer state, caches, workspaces), blocks that it makes in
nearly every step live on to the end, whatever else is live: batches of changing lengths, of which the last is always
there still, would hide a slow leak in the total. Or, for one block that is made anew and larger, when its bytes

- rise in at least three steps, in the later half of them too (a cache that has filled is no leak),
- fall back by little of that (a list that is cleared now and then is bounded).

What older blocks give up meanwhile, step by step, is no growth (a buffer that moves on), and the loop is what the
recording ends with (what a loop left behind earlier is held, not growing).

Turns that are told by repeating lines alone prove less than marked steps: a comprehension that makes a model's state,
or a list of samples, repeats one line as well. There the loop must do something else too: make what it gives back, or
leave a sign that what it makes is not wanted (the collector frees it, it is in cycles, memory ran out). What a
constructor makes is a model, and nothing is certain unless a model ran as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer import causes
from memwidget.answer.finding import Finding, amount, callers_sentence, frame_of, ids, many, name_of, source_sentence
from memwidget.answer.kept import CATEGORY_CODE, CONSTRUCTION, in_stack, is_model
from memwidget.answer.steps import LEAST, inside_modules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.answer.steps import Steps
    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: Steps looked at; of more, every n-th. 64 give 2,016 pairs for the median of slopes.
_MOST_BOUNDS = 64
#: Of what was added in some steps, this share may go in others.
_MAY_FALL = 0.34
#: A line whose blocks of this share of the steps live to the end grows.
_NEARLY_ALL = 0.8
#: What older blocks gave up in the same steps makes growth of it only below this share.
_MOVES_ON = 0.67


@dataclass(frozen=True)
class Staircase:
    """What grows: parallel arrays by call site, the steepest first.

    Attributes
    ----------
    sites : frame rows
    slopes : bytes a step
    start, end : bytes of these sites together, after the warm-up and at the last bound
    bounds : moments looked at, after the warm-up
    blocks : ids that were added meanwhile and live at the last bound
    rises : number of the looked-at intervals in which the sum rose
    at_work : whether more shows than lines that repeat: marks, an optimizer, a model that runs, a collector that frees
    """

    sites: I64
    slopes: NDArray[Any]
    start: int
    end: int
    bounds: I64
    blocks: I64
    rises: int
    at_work: bool


def grows(trace: Trace, steps: Steps) -> Staircase | None:
    """Find the call sites that grow, None where there is none."""
    if steps.n < LEAST:
        return None
    stride = -(-steps.n // _MOST_BOUNDS)
    bounds = steps.bounds[::stride]
    warm = max(1, len(bounds) // 10)
    # Repetition alone is a weaker sign of a loop than a mark: four turns over the heads of a model are none.
    if len(bounds) - warm < LEAST + (steps.how == "repetition") or _goes_on_otherwise(trace, steps):
        return None
    rows, levels = _levels(trace, bounds)
    levels, bounds = levels[:, warm:], bounds[warm:]
    kept, given = survivors(trace, trace.block_site, rows, bounds)
    steady = np.array([_is_steady(made) for made in kept], bool)
    rising = np.array([_is_staircase(level) for level in levels], bool)
    # What one line gives up to another (a buffer that moves on) is no growth of the whole.
    if not _is_staircase(levels.sum(0), loose=True):
        rising[:] = False
    if moves_on(kept[steady].sum(0), given.sum(0)):
        rising &= ~steady
        steady[:] = False
    # Of what lives on only that counts: the rest comes and goes.
    lasting = np.cumsum(np.concatenate([_before(trace, rows, bounds)[:, None], kept], 1), axis=1)
    levels = np.where(steady[:, None], lasting, levels)
    growing = steady | rising
    if steps.how == "repetition":
        growing &= ~_built(trace, rows, bounds)
    if not growing.any():
        return None
    levels, rows = levels[growing], rows[growing]
    if steps.how == "repetition" and (rows < 0).all() and (trace.block_site >= 0).any():
        return None  # gradients that backward makes, layer by layer: without a line of Python no loop can be seen
    slopes = _slopes(levels) / stride
    order = np.argsort(-slopes, kind="stable")
    levels, rows, slopes = levels[order], rows[order], slopes[order]
    added = _added(trace, bounds)
    added = added[np.isin(trace.block_site[added], rows)]
    whole = levels.sum(0)
    if _let_go(trace, rows, added, bounds, int(whole[-1] - whole[0])):
        return None
    at_work = True
    if steps.how == "repetition":
        if not _is_loop(trace, bounds, added):
            return None
        at_work = _runs_a_model(trace, bounds) or bool(causes.freed_by_collector(trace, added) or trace.oom_moments)
    rises = int((np.diff(whole) > 0).sum())
    return Staircase(rows, slopes, int(whole[0]), int(whole[-1]), bounds, added, rises, at_work)


def _added(trace: Trace, bounds: I64) -> I64:
    """Blocks made between the first bound and the last that live at the last."""
    born, asked = trace.blocks["alloc_event"], trace.blocks["free_requested_event"]
    return np.flatnonzero((born >= bounds[0]) & (born < bounds[-1]) & ((asked == -1) | (asked >= bounds[-1])))


def survivors(trace: Trace, sites: NDArray[Any], rows: I64, bounds: I64) -> tuple[I64, I64]:
    """By site (sorted rows; a block's site or stack) and step: bytes made that live at the end, older bytes freed."""
    sizes = trace.blocks["size"]
    born, asked = trace.blocks["alloc_event"], trace.blocks["free_requested_event"]
    gone = np.flatnonzero((born < bounds[0]) & (asked >= bounds[0]) & (asked < bounds[-1]))
    found = []
    for blocks, when in ((_added(trace, bounds), born), (gone, asked)):
        sums = np.zeros((len(rows), len(bounds) - 1), np.int64)
        at = np.searchsorted(rows, sites[blocks]), np.searchsorted(bounds, when[blocks], side="right") - 1
        np.add.at(sums, at, sizes[blocks])
        found.append(sums)
    return found[0], found[1]


def moves_on(kept: I64, given: I64) -> NDArray[np.bool_]:
    """Whether older blocks gave up, step by step (the last axis), most of what was made: it took their place."""
    found: NDArray[np.bool_] = np.minimum(kept, given).sum(-1) >= _MOVES_ON * kept.sum(-1)
    return found


def _before(trace: Trace, rows: I64, bounds: I64) -> I64:
    """Bytes by call site that live at the first bound and still at the last."""
    born, asked = trace.blocks["alloc_event"], trace.blocks["free_requested_event"]
    there = np.flatnonzero((born < bounds[0]) & ((asked == -1) | (asked >= bounds[-1])))
    sums = np.zeros(len(rows), np.int64)
    np.add.at(sums, np.searchsorted(rows, trace.block_site[there]), trace.blocks["size"][there])
    return sums


def _is_steady(made: I64) -> bool:
    """Whether nearly every step leaves something, the later ones too; what the last one leaves may be its own."""
    some = made[:-1] > 0
    return bool(
        len(some) >= 3
        and some.mean() >= _NEARLY_ALL
        and some[3 * len(some) // 4 :].mean() >= 0.5
        and made[len(made) // 2 :].sum() >= 0.2 * made.sum()
    )


def _built(trace: Trace, rows: I64, bounds: I64) -> NDArray[np.bool_]:
    """Call sites whose lasting blocks are a model's that is built: parameters, or what a constructor makes."""
    added = _added(trace, bounds)
    if causes.freed_by_collector(trace, added):
        return np.zeros(len(rows), bool)
    state = np.isin(trace.blocks["category"][added], [CATEGORY_CODE["parameter"], CATEGORY_CODE["buffer"]])
    state |= is_model(trace, added)
    sizes, sites = trace.blocks["size"][added], trace.block_site[added]
    found = np.zeros(len(rows), bool)
    for i, row in enumerate(rows.tolist()):
        frame = trace.frame(row) if row >= 0 else None
        mine = sites == row
        constructor = frame is not None and (frame.name == "__init__" or "Parameter(" in (frame.source or ""))
        found[i] = constructor or 2 * sizes[mine & state].sum() > sizes[mine].sum()
    return found


def _runs_a_model(trace: Trace, bounds: I64) -> bool:
    """Whether in most turns something is made in a module's call, or by autograd."""
    born, stacks = trace.blocks["alloc_event"], trace.blocks["stack"]
    made = np.flatnonzero((born >= bounds[0]) & (born < bounds[-1]))
    inside = np.append(inside_modules(trace), np.False_)[stacks[made]] | in_stack(trace, made, name="backward")
    turns = np.unique(np.searchsorted(bounds, born[made[inside]], side="right"))
    return bool(2 * len(turns) >= len(bounds) - 1)


def _goes_on_otherwise(trace: Trace, steps: Steps) -> bool:
    """Whether the loop is over long before the end: a quarter as many allocations follow it."""
    born = trace.blocks["alloc_event"]
    inside = np.count_nonzero((born >= steps.bounds[0]) & (born < steps.bounds[-1]))
    after = np.count_nonzero(born >= steps.bounds[-1])
    return bool(after >= max(LEAST, inside / 4))


def _is_loop(trace: Trace, bounds: I64, added: I64) -> bool:
    """Whether turns told by repetition are those of a loop at work, not of a list that is being made."""
    blocks = trace.blocks
    born, asked = blocks["alloc_event"], blocks["free_requested_event"]
    given_back = np.flatnonzero((born >= bounds[0]) & (born < bounds[-1]) & (asked >= 0) & (asked < bounds[-1]))
    for name in CONSTRUCTION:  # what a weight's initialization takes belongs to the weight
        given_back = given_back[~in_stack(trace, given_back, name=name)]
    sites = np.unique(trace.block_site[(born >= bounds[0]) & (born < bounds[-1])])
    if len(sites) == 1 and not _runs_a_model(
        trace, bounds
    ):  # a list is made of things that are made and dropped within the line: only what a turn leaves
        turn = np.searchsorted(bounds, [born[given_back], asked[given_back]], side="right")
        given_back = given_back[turn[0] < turn[1]]
    if 2 * len(given_back) >= len(bounds) - 1:
        return True
    return bool(trace.oom_moments) or causes.unwanted(trace, added)


def _let_go(trace: Trace, rows: I64, added: I64, bounds: I64, rise: int) -> bool:
    """Whether the program itself gave up after the loop what the loop had gathered: a list that served its turn.

    What the garbage collector freed was forgotten, not given up. What goes all together with nothing made since the
    loop was of no use to anybody either: the code has ended. What the last turn made may be its own.
    """
    born, asked = trace.blocks["alloc_event"], trace.blocks["free_requested_event"]
    sizes, last = trace.blocks["size"], int(bounds[-1])
    older = added[born[added] < bounds[-2]]
    if sizes[older].sum() < 0.5 * rise:  # one block that is made anew, larger, at each turn
        mine = np.flatnonzero(np.isin(trace.block_site, rows) & (born >= 0) & ((asked == -1) | (asked >= last)))
        return bool(sizes[mine[asked[mine] == -1]].sum() < 0.5 * rise)
    gone = older[asked[older] >= 0]
    if sizes[gone].sum() < 0.2 * sizes[older].sum() or causes.freed_by_collector(trace, gone):
        return False
    made = np.count_nonzero((born >= last) & (born < asked[gone].max()))
    return bool(sizes[gone].sum() < 0.8 * sizes[older].sum() or made)


def _levels(trace: Trace, bounds: I64) -> tuple[I64, I64]:
    """Live bytes by call site at each bound: (frame rows, matrix of sites by bounds)."""
    blocks = trace.blocks
    born, asked = blocks["alloc_event"].astype(np.int64), blocks["free_requested_event"].astype(np.int64)
    first = np.searchsorted(bounds, born + 1, side="left")
    end = np.where(asked == -1, len(bounds), np.searchsorted(bounds, asked, side="right"))
    crossing = end > first
    rows, inverse = np.unique(trace.block_site[crossing], return_inverse=True)
    change = np.zeros((len(rows), len(bounds) + 1), np.int64)
    np.add.at(change, (inverse, first[crossing]), blocks["size"][crossing])
    np.subtract.at(change, (inverse, end[crossing]), blocks["size"][crossing])
    return rows.astype(np.int64), np.cumsum(change, axis=1)[:, :-1]


def _is_staircase(level: I64, *, loose: bool = False) -> bool:
    change = np.diff(level)
    rise, fall = int(change[change > 0].sum()), -int(change[change < 0].sum())
    if rise <= 0 or fall > (_MOVES_ON if loose else _MAY_FALL) * rise:
        return False
    if loose:
        return bool(level[-1] > level[0])
    half = len(change) // 2
    up = change > 0
    net = np.array([level[half] - level[0], level[-1] - level[half]])
    if len(change) >= 8 and level[-1] - level[-1 - len(change) // 4] < 0.05 * (level[-1] - level[0]):
        return False  # it has come to its end: a cache that is full, copies that are all made
    return bool(up.sum() >= 3 and up[half:].any() and net.min() >= 0.2 * (level[-1] - level[0]))


def _slopes(levels: I64) -> NDArray[Any]:
    """Theil-Sen: the median slope of all pairs, bytes per bound; the mean rate where more than half are flat."""
    n = levels.shape[1]
    i, j = np.triu_indices(n, 1)
    found = np.empty(len(levels))
    for row, level in enumerate(levels.astype(np.float64)):
        slope = float(np.median((level[j] - level[i]) / (j - i)))
        found[row] = slope if slope > 0 else (level[-1] - level[0]) / (n - 1)
    return found


def growth(trace: Trace, steps: Steps, stairs: Staircase | None) -> list[Finding]:
    """Tell the staircase as a finding."""
    if stairs is None:
        return []
    total = float(stairs.slopes.sum())
    # A line of Python is of more use than "(no Python stack)", even where that grows faster.
    named = np.flatnonzero(stairs.sites >= 0)
    row = int(stairs.sites[named[0]]) if len(named) else -1
    per_step = round(total)
    n = len(stairs.bounds) - 1
    cause = causes.tell(trace, steps, stairs.sites, stairs.blocks, per_step)
    by_line = [
        f"{name_of(trace, site)}: {amount(slope)} a step"
        for site, slope in zip(stairs.sites[:4].tolist(), stairs.slopes[:4].tolist(), strict=True)
    ]
    evidence = [
        (
            f"Live bytes of {many(len(stairs.sites), 'line')} rose in {stairs.rises:,} of {many(n, 'interval')} "
            f"({steps.words}), by {amount(stairs.end - stairs.start)} to {amount(stairs.end)}."
        ),
        "By line: " + "; ".join(by_line) + ("." if len(stairs.sites) <= 4 else "; and more."),
        *source_sentence(trace, row),
        *callers_sentence(trace, stairs.blocks, row),
        *cause.evidence,
    ]
    return [
        Finding(
            kind="growth",
            title=f"Memory grows by {amount(total)} a step at {name_of(trace, row)}",
            bytes=stairs.end - stairs.start,
            blocks=ids(stairs.blocks),
            site=frame_of(trace, row),
            label=trace.site_label(row),
            evidence=tuple(evidence),
            advice=cause.advice if cause.bounded else f"{cause.advice} That saves {amount(total)} a step.",
            certain=stairs.at_work and stairs.rises >= 0.6 * n and n >= 5 and len(named) > 0 and not cause.bounded,
            bytes_per_step=per_step,
            saves=0 if cause.bounded else stairs.end - stairs.start,
            moment=int(stairs.bounds[-1]),
            window=(int(stairs.bounds[0]), int(stairs.bounds[-1])),
            lines=tuple(
                (trace.site_label(site), round(slope))
                for site, slope in zip(stairs.sites.tolist(), stairs.slopes.tolist(), strict=True)
            ),
            frame=row,
        )
    ]
