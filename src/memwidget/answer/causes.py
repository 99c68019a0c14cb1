"""Why memory stays or grows, as far as a recording shows it.

Owns the reading of the signs: who held it when the recording ended (where the notebook's recorder looked), what the
garbage collector freed, what the lines say, and how many blocks one step leaves. It must not decide whether something
grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer.finding import amount, fact_rows, many, name_of
from memwidget.answer.steps import LEAST
from memwidget.recording import CATEGORIES, SPAN, TRAINS
from memwidget.trace.sites import USER
from memwidget.units import plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.answer.steps import Steps
    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: One scalar takes one block of this size on a GPU.
_SCALAR = 512
#: Stacks of which the lines are read.
_STACKS = 20
#: Events within which the old goes when its successor is made.
_SOON = 8
#: Turns in which a cycle must have been found for a loop that makes them.
_TURNS = 3
_BREAK = "Break the cycle (weakref, no self-reference in hooks and closures), or call gc.collect() now and then."
_APPEND = re.compile(r"\.(append|add|extend|insert)\(|\]\s*=[^=]")
#: Not the head of a loop whose body stands on the same line.
_COMPREHENSION = re.compile(r"[\[({,].*\sfor\s.+\sin\s")


@dataclass(frozen=True)
class Cause:
    """The likely reason: sentences that support it, the next step, and whether it may come to an end by itself."""

    evidence: tuple[str, ...]
    advice: str
    known: bool = False
    bounded: bool = False


def tell(trace: Trace, steps: Steps, sites: I64, blocks: I64, per_step: int) -> Cause:
    """Why these blocks of these call sites pile up."""
    collected = _collected(trace, blocks)
    if collected is not None and collected.known:
        return collected
    held = _held_by(trace, steps, sites, blocks, per_step)
    if held is not None:
        return held
    likely = _by_signs(trace, steps, sites, blocks, per_step)
    if collected is None or likely.bounded:
        return likely
    return Cause((*likely.evidence, *collected.evidence), likely.advice)


def _by_signs(trace: Trace, steps: Steps, sites: I64, blocks: I64, per_step: int) -> Cause:
    """By what the lines and the blocks of one step look like."""
    named = sites[sites >= 0]
    where = name_of(trace, int(named[0])) if len(named) else "the loop"
    sources = [(int(row), trace.frame(int(row)).source or "") for row in named.tolist()]
    if any("create_graph" in text for _, text in sources):
        return Cause(
            ("create_graph=True ties each tensor to its gradient in a ring that Python's collector cannot see.",),
            "Use torch.autograd.grad(..., create_graph=True) for backward(), or set .grad to None after each use.",
        )
    total = _running_total(trace, steps, sites)
    if total >= 0:
        return Cause(
            (
                (
                    f"{name_of(trace, total)} makes one number a step that replaces the last: a running total, whose "
                    "grad_fn keeps the graph of every step."
                ),
            ),
            f"At {name_of(trace, total)}, add loss.item() or loss.detach() instead of the loss itself.",
        )
    longer = _made_longer(trace, steps, blocks)
    if longer:
        return Cause(
            ("Each turn makes one block that is larger than the last, and frees that: a tensor extended by cat().",),
            f"Expected of a KV cache until its sequence ends. Else, at {where}, allocate the whole once and write into "
            "it: cat() holds the old and the new at the same time.",
            bounded=True,
        )
    made_of = _made_of(trace, blocks)
    models = made_of.get("parameter", 0) + made_of.get("optimizer_state", 0) + made_of.get("gradient", 0)
    if models > 0.5 and _models_pile_up(trace, steps, blocks):
        parts = ", ".join(f"{100 * share:.0f} % {name.replace('_', ' ')}" for name, share in made_of.items())
        return Cause(
            (f"It is made of models and optimizers ({parts}): earlier ones are kept.",),
            "Keep numbers of them, or their state_dict() on the CPU; an optimizer holds its model's parameters too.",
        )
    each = max(1, round(len(blocks) / max(steps.n - 1, 1)))
    if per_step <= 2 * _SCALAR:
        return Cause(
            (f"Each step leaves {many(each, 'block')} of {amount(per_step / each)}: numbers kept as tensors.",),
            f"Keep plain numbers at {where}: .item() before they go into a list.",
        )
    appended = _appended(trace, blocks)
    largest = int(np.median(np.sort(trace.blocks["size"][blocks])[-max(steps.n - 1, 1) :])) if len(blocks) else 0
    # Labels know what is kept for backward; without it the lines themselves keep what they made.
    no_graph = (
        (trace.has_labels or "holders" in trace.recording.facts)
        and not made_of.get("activation")
        and ((appended and trace.has_labels) or not _differentiates(trace))
    )
    if each == 1 or largest > 0.9 * per_step or no_graph:
        kept = "appends it to" if appended else "keeps it in"
        what = f"one block of {amount(largest)}" if each == 1 else many(each, "block")
        elsewhere = "keep only what is needed" if trace.device_type == "cpu" else "keep .cpu() or only what is needed"
        return Cause(
            ((f"Each step leaves {what}; its line {kept} something that lives on (a list, a dict, a hook's store)."),),
            f"At {where}, {elsewhere}, or clear or cap what keeps it.",
        )
    if _goes_back(trace, steps):
        return Cause(
            (
                (
                    f"Each step leaves {many(each, 'block')} although backward runs in it: they are kept for "
                    "themselves (in a list, a hook's store), or as a graph by retain_graph=True."
                ),
            ),
            f"Clear or cap what keeps the tensors of {where}; where it is a graph, .detach() what goes on to the next "
            "step.",
        )
    return Cause(
        (f"Each step leaves {many(each, 'block')}: what was computed from each other, as an autograd graph keeps it.",),
        f"Keep .detach() or .item() of what {where} computes, or run it under torch.no_grad().",
    )


def _models_pile_up(trace: Trace, steps: Steps, blocks: I64) -> bool:
    """Whether parameters or optimizer state come in most turns; gradients alone are kept without their model."""
    turns = np.searchsorted(steps.bounds, trace.blocks["alloc_event"][blocks], side="right")
    codes = [CATEGORIES.index(name) for name in ("parameter", "optimizer_state")]
    state = np.isin(trace.blocks["category"][blocks], codes)
    return 2 * len(np.unique(turns[state])) >= len(np.unique(turns))


def _made_of(trace: Trace, blocks: I64) -> dict[str, float]:
    """Share of each known category in these blocks, the largest first."""
    codes = trace.blocks["category"][blocks]
    sums = np.bincount(codes[codes < len(CATEGORIES)], trace.blocks["size"][blocks][codes < len(CATEGORIES)])
    total = max(int(trace.blocks["size"][blocks].sum()), 1)
    found = {CATEGORIES[code]: sums[code] / total for code in np.argsort(-sums).tolist() if sums[code] > 0.01 * total}
    return {name: share for name, share in found.items() if name not in {"unknown", "preexisting"}}


def _differentiates(trace: Trace) -> bool:
    """Whether anything shows that autograd noted what was computed: a module's call that trains, backward, a graph."""
    spans = trace.recording.spans
    trains = bool(((spans.flags & TRAINS) > 0).any() or (spans.kind == SPAN["backward"]).any())
    return trains or any(row.get("graph") is True for row in fact_rows(trace, "holders"))


def _goes_back(trace: Trace, steps: Steps) -> bool:
    """Whether most steps have a backward."""
    starts = [band.lo for band in trace.bands if band.kind == "phase" and band.name == "backward"]
    return 2 * len(np.unique(np.searchsorted(steps.bounds, starts, side="right"))) >= steps.n


def _made_longer(trace: Trace, steps: Steps, blocks: I64) -> bool:
    """Whether the growth is one block that each turn makes anew, larger, before it frees the last."""
    sizes, born, asked = (trace.blocks[c] for c in ("size", "alloc_event", "free_requested_event"))
    if not len(blocks):
        return False
    top = int(blocks[sizes[blocks].argmax()])
    mine = np.flatnonzero((trace.block_site == trace.block_site[top]) & (born >= 0) & (born <= born[top]))
    mine = mine[np.argsort(born[mine])]
    so_far = np.concatenate([[0], np.maximum.accumulate(sizes[mine])[:-1]])
    chain = mine[sizes[mine] > so_far]  # each larger than all before
    over = (asked[chain[:-1]] > born[chain[1:]]) & (asked[chain[:-1]] - born[chain[1:]] <= _SOON)
    return bool(len(chain) >= max(LEAST, 0.7 * steps.n) and over.mean() > 0.8)


def unwanted(trace: Trace, blocks: I64) -> bool:
    """Whether a sign says that nobody wants what piles up: cycles, the collector, a container that is added to."""
    asked = trace.blocks["free_requested_event"][blocks]
    cycles = [block for row, block in _matches(trace, blocks) if row.get("kind") == "cycle"]
    if 2 * len(set(cycles)) >= len(blocks) or freed_by_collector(trace, blocks):
        return True
    if "gc" not in trace.recording.facts and len(blocks) > 1 and (asked >= 0).all():
        # All gone: a list would have let them go from the last to the first.
        order = np.argsort(trace.blocks["alloc_event"][blocks], kind="stable")
        return bool((np.diff(asked[order]) > 0).any())
    return _appended(trace, blocks)


def _appended(trace: Trace, blocks: I64) -> bool:
    """Whether a line that led to these blocks adds to a container, turn by turn."""
    r = trace.recording
    for stack in np.unique(trace.blocks["stack"][blocks])[:_STACKS].tolist():
        if stack < 0:
            continue
        rows = r.stack_frames[r.stacks[stack] : r.stacks[stack + 1]]
        for row in rows[trace.frame_kind[rows] == USER].tolist():
            source = trace.frame(row).source or ""
            if _APPEND.search(source) and not _COMPREHENSION.search(source):
                return True
    return False


def freed_by_collector(trace: Trace, blocks: I64) -> bool | None:
    """Whether most of these freed blocks went while Python's garbage collector ran; None where nobody noted that."""
    if "gc" not in trace.recording.facts or not trace.has_time or not len(blocks):
        return None
    asked = trace.blocks["free_requested_event"][blocks]
    times = trace.event_times_us[asked[asked >= 0]]
    inside = np.zeros(len(times), bool)
    for run in fact_rows(trace, "gc"):
        start, end = run.get("start_us"), run.get("end_us")
        if isinstance(start, int) and isinstance(end, int):
            inside |= (times >= start) & (times <= end)
    return bool(len(times) and inside.mean() > 0.5)


def _collected(trace: Trace, blocks: I64) -> Cause | None:
    """What the garbage collector freed was in reference cycles: told by its times, or by all going at once."""
    asked = trace.blocks["free_requested_event"][blocks]
    freed = blocks[asked >= 0]
    if len(freed) < max(2, len(blocks) / 2):
        return None
    gone = amount(int(trace.blocks["size"][freed].sum()))
    if freed_by_collector(trace, freed):
        return Cause(
            (f"{gone} of it were freed while Python's garbage collector ran: reference cycles held them.",),
            _BREAK,
            known=True,
        )
    at = f"event {int(asked[asked >= 0].min()):,}"
    if "gc" in trace.recording.facts:
        return Cause((f"{gone} of it went together at {at}, as the code ended.",), "")
    return Cause(
        (f"{gone} of it went together at {at}, nothing was made of it: the code ended, or gc.collect() freed cycles.",),
        "",
    )


def _running_total(trace: Trace, steps: Steps, growing: I64) -> int:
    """The line that makes nothing but one scalar a step, each freed only after the next was made; -1 for none."""
    blocks = trace.blocks
    born, asked = blocks["alloc_event"], blocks["free_requested_event"]
    made = np.flatnonzero((born >= steps.bounds[1]) & (born < steps.bounds[-1]))
    site = trace.block_site[made]
    for row in np.unique(site).tolist():
        mine = made[site == row]
        if row < 0 or not 0.7 * steps.n <= len(mine) + 1 <= 1.3 * steps.n or blocks["size"][mine].max() > _SCALAR:
            continue
        follows = (asked[mine[:-1]] > born[mine[1:]]) & (asked[mine[:-1]] - born[mine[1:]] <= _SOON)
        if len(follows) and follows.mean() > 0.7 and row not in growing:
            return int(row)
    return -1


# -- holders ----------------------------------------------------------------------------------------------------------


def holders(trace: Trace, blocks: I64) -> list[tuple[dict[str, Any], int]]:
    """Who held these blocks when the recording ended: (row of the recorder's, bytes), the most bytes first.

    A block counts once for each kind of holder; one that is held in two ways needs both to let go.
    """
    found: dict[str, tuple[dict[str, Any], int]] = {}
    for row, block in _matches(trace, blocks):
        before = found.get(row["holder"], (row, 0))
        found[row["holder"]] = (before[0], before[1] + int(trace.blocks["size"][block]))
    return sorted(found.values(), key=lambda pair: -pair[1])


def let_go(trace: Trace, blocks: I64, known: list[dict[str, Any]]) -> int:
    """Bytes of these blocks that go when these holders let go: those whose every holder is one of them."""
    names = {row["holder"] for row in known if row.get("fix")}
    of_block: dict[int, bool] = {}
    for row, block in _matches(trace, blocks):
        of_block[block] = of_block.get(block, True) and row["holder"] in names
    return int(trace.blocks["size"][[block for block, goes in of_block.items() if goes]].sum()) if of_block else 0


def held_bytes(trace: Trace, blocks: I64) -> int:
    """Bytes of these blocks that any holder refers to."""
    found = {block for _, block in _matches(trace, blocks)}
    return int(trace.blocks["size"][sorted(found)].sum()) if found else 0


def _matches(trace: Trace, blocks: I64) -> Iterator[tuple[dict[str, Any], int]]:
    """(row of the recorder's, block) for each of these blocks that a holder refers to, once a holder."""
    rows = fact_rows(trace, "holders")
    if not rows or not len(blocks):
        return
    order = np.argsort(trace.blocks["address"][blocks], kind="stable")
    starts = trace.blocks["address"][blocks][order]
    seen: set[tuple[str, int]] = set()
    for row in rows:
        address, holder = row.get("address"), row.get("holder")
        if not isinstance(address, int) or not 0 <= address < 1 << 64 or not isinstance(holder, str):
            continue
        at = int(np.searchsorted(starts, np.uint64(address), side="right")) - 1
        if at < 0 or (holder, at) in seen:
            continue
        block = int(blocks[order[at]])
        if address < int(starts[at]) + int(trace.blocks["size"][block]):
            seen.add((holder, at))
            yield row, block


def graphs(trace: Trace, blocks: I64) -> list[dict[str, Any]]:
    """Holders of a tensor that an autograd graph hangs on, each once: through it they hold what it was made from.

    Only tensors of this recording, made after some of these blocks: a graph keeps nothing that came later.
    """
    born, asked = trace.blocks["alloc_event"], trace.blocks["free_requested_event"]
    younger = np.flatnonzero((born > born[blocks].min(initial=trace.n_events)) & (asked == -1))
    rows = [row for row, _ in _matches(trace, younger) if row.get("graph") is True]
    return list({row["holder"]: row for row in rows}.values())


def passing(trace: Trace, blocks: I64) -> NDArray[np.bool_]:
    """Blocks that only the cell's undisplayed value holds, which goes as the cell ends."""
    stays: set[int] = set()
    goes: set[int] = set()
    for row in fact_rows(trace, "holders"):
        address = row.get("address")
        if isinstance(address, int) and 0 <= address < 1 << 64:
            (goes if row.get("kind") == "passing" else stays).add(address)
    known = np.array(sorted(goes - stays), np.uint64)
    return np.isin(trace.blocks["address"][blocks], known)


def holder_words(row: dict[str, Any], size: int) -> tuple[str, str]:
    """A holder as (evidence, the line that lets go)."""
    name, fix = plain(str(row.get("holder", "")), 80), plain(str(row.get("fix", "")), 200)
    return f"{name} holds {amount(size)} of it.", fix


def _held_by(trace: Trace, steps: Steps, sites: I64, blocks: I64, per_step: int) -> Cause | None:
    """What the recorder found to hold the blocks of most turns, and what to do so that it does not come back."""
    # The names that a loop leaves hold its last turn alone, whatever keeps the turns before: no cause of growth.
    born = trace.blocks["alloc_event"]
    turns = len(np.unique(np.searchsorted(steps.bounds, born[blocks], side="right")))
    of_holder: dict[str, list[int]] = {}
    for row, block in _matches(trace, blocks):
        of_holder.setdefault(row["holder"], []).append(block)
    # Of cycles the recorder looks at as many as its time allows; those of a few turns speak for all.
    cyclic = {row["holder"] for row, _ in _matches(trace, blocks) if row.get("kind") == "cycle"}
    lasting = {
        holder
        for holder, held in of_holder.items()
        if len(np.unique(np.searchsorted(steps.bounds, born[held], side="right")))
        >= (min(_TURNS, turns) if holder in cyclic else turns / 2)
    }
    if not lasting:
        return None
    rows = [(row, size) for row, size in holders(trace, blocks) if row["holder"] in lasting][:4]
    kinds = {row.get("kind") for row, _ in rows}
    words = [holder_words(row, size) for row, size in rows]
    fixes = list(dict.fromkeys(fix for _, fix in words if fix))
    again = _BREAK if kinds == {"cycle"} else _by_signs(trace, steps, sites, blocks, per_step).advice
    if kinds != {"cycle"} and 2 * sum(size for _, size in rows) < int(trace.blocks["size"][blocks].sum()):
        # It holds the ends of graphs, and through them the rest.
        again = f"Keep .item() or .detach() in {plain(rows[0][0]['holder'], 80)}."
    now = f"Run: {'; '.join(fixes)}. That frees what is there now. " if fixes else ""
    return Cause(tuple(said for said, _ in words), f"{now}{again}", known=True)
