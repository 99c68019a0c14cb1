"""What stays, once: memory from before the recording, and first-time memory.

Owns what a healthy run keeps: memory from before, optimizer state, library workspaces, autocast's copies, the model.
What is merely still held is told in held.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer.finding import (
    Finding,
    amount,
    frame_of,
    ids,
    lines_of,
    many,
    name_of,
    sums_by_site,
    worth,
)
from memwidget.answer.steps import optimizer_ranges
from memwidget.recording import CATEGORIES
from memwidget.trace.sites import normal_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.answer.steps import Steps
    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: Code of each category in the blocks' column.
CATEGORY_CODE = {name: code for code, name in enumerate(CATEGORIES)}
#: torch's default cuBLAS workspaces: 8,519,680 B, and 32 MiB on Hopper; told by name where C++ stacks were recorded.
_WORKSPACE_SIZES = (8_519_680, 32 << 20)
_WORKSPACE_NAMES = ("Workspace", "cudnnHandle", "cublasLt")
#: Functions that make a model's weights, or move them.
CONSTRUCTION = ("__init__", "_apply", "reset_parameters")


def baseline(trace: Trace) -> list[Finding]:
    """What was there before the first event."""
    blocks = trace.blocks
    if not trace.n_events:
        return []
    there = np.flatnonzero((blocks["alloc_event"] < 0) & (blocks["free_requested_event"] != -2))
    size = int(blocks["size"][there].sum())
    if not worth(trace, size):
        return []
    grads = there[blocks["category"][there] == CATEGORY_CODE["gradient"]]
    grad = int(blocks["size"][grads].sum())
    said = [f"{many(len(there), 'block')} were live at the first event; their allocation is not in the history."]
    stays = blocks["free_requested_event"][there] == -1
    said.append(f"{amount(int(blocks['size'][there][stays].sum()))} of it are live to the end.")
    known = [row for row in sums_by_site(trace, there) if row[0] >= 0][:3]
    if known:
        said.append(f"By line: {'; '.join(f'{amount(size)} {name_of(trace, row)}' for row, size, _ in known)}.")
    labels = trace.blocks["category"][there]
    for name in ("parameter", "optimizer_state", "buffer"):
        part = int(blocks["size"][there][labels == CATEGORY_CODE[name]].sum())
        if worth(trace, part):
            said.append(f"{amount(part)} of it are {name.replace('_', ' ')}s.")
    advice, saves = "Expected. Record from an earlier cell on to see how it came about.", 0
    if worth(trace, grad):
        said.append(f"{amount(grad)} of it are gradients from before.")
        advice, saves = f"Call zero_grad(set_to_none=True) right after step(): that frees {amount(grad)}.", grad
    return [
        told(
            trace,
            "baseline",
            f"{amount(size)} were live before the first event",
            there,
            said,
            advice,
            certain=True,
            saves=saves,
            moment=0,
        )
    ]


def once(trace: Trace, steps: Steps) -> tuple[list[Finding], I64]:
    """First-time memory that stays: optimizer state, library workspaces. Returns the blocks as well."""
    blocks = trace.blocks
    born, asked = blocks["alloc_event"], blocks["free_requested_event"]
    state = _optimizer_state(trace)
    lives = np.flatnonzero((born >= 0) & (asked == -1))
    work = _workspaces(trace, np.setdiff1d(lives, state))
    found = []
    size = int(blocks["size"][state].sum())
    if worth(trace, size):
        last = born[state].max()
        when, made = (" in the first step" if steps.n and last < steps.bounds[1] else ""), "in the first optimizer step"
        # Any optimizer's steps: the one that steps most often need not be the one whose state this is.
        starts = [band.lo for band in trace.bands if band.name.startswith("Optimizer.step#")]
        if starts and last < min(starts):  # loaded from a checkpoint, or made with the optimizer (Adagrad)
            when, made = " before the first step", "before the first optimizer step"
        found.append(
            told(
                trace,
                "step",
                f"The optimizer's state took {amount(size)}{when}",
                state,
                [
                    (
                        f"{many(len(state), 'block')} were allocated {made} and stay; later steps "
                        "add none: this is no leak."
                    ),
                    "A resumed run has it before its first forward pass.",
                ],
                "Expected. Less of it: an optimizer with smaller state (SGD, Adafactor, 8-bit Adam), or sharded state.",
                certain=True,
                moment=int(last) + 1,
            )
        )
    size = int(blocks["size"][work].sum())
    if worth(trace, size):
        sizes = [amount(s) for s in np.unique(blocks["size"][work]).tolist()]
        found.append(
            told(
                trace,
                "step",
                f"A library took {amount(size)} for its workspace, once",
                work,
                [
                    (
                        f"{many(len(work), 'block')} of {' and '.join(sizes)} "
                        "made inside a matrix product and kept for the next ones."
                    )
                ],
                "Expected. CUBLAS_WORKSPACE_CONFIG sets its size (:4096:2 is 8 MiB).",
                certain=_named_workspaces(trace, work).all(),
                moment=int(born[work].max()) + 1,
            )
        )
    return found, np.concatenate([state, work])


def _optimizer_state(trace: Trace) -> I64:
    """Blocks of known category, else made inside an optimizer's first step (by frames or marks) and there in its last.

    At the end of a script they go with the optimizer, so "never freed" would miss them.
    """
    blocks = trace.blocks
    born, asked = blocks["alloc_event"], blocks["free_requested_event"]
    ranges = optimizer_ranges(trace)
    inside = np.zeros(len(blocks), bool)
    if ranges:
        inside |= (born >= ranges[0][0]) & (born < ranges[0][1])
    unknown = np.flatnonzero((blocks["category"] == CATEGORY_CODE["unknown"]) & (born >= 0))
    inside[unknown] |= in_stack(trace, unknown, file="/torch/optim/")
    stays = (born >= 0) & (asked == -1)
    if len(ranges) > 1:
        stays = (born >= 0) & (born < ranges[1][0]) & ((asked == -1) | (asked >= ranges[-1][0]))
    known = blocks["category"] == CATEGORY_CODE["optimizer_state"]
    guessed = (blocks["category"] == CATEGORY_CODE["unknown"]) & inside
    return np.flatnonzero(stays & (known | guessed)).astype(np.int64)


def _workspaces(trace: Trace, lives: I64) -> I64:
    guess = np.isin(trace.blocks["requested"][lives], _WORKSPACE_SIZES)
    # A size alone proves nothing where a site makes that size again and again.
    sites, counts = np.unique(trace.block_site[lives[guess]], return_counts=True)
    guess &= ~np.isin(trace.block_site[lives], sites[counts > 2])
    if trace.device_type == "cpu":
        guess[:] = False
    found: I64 = lives[_named_workspaces(trace, lives) | guess]
    return found


def _named_workspaces(trace: Trace, blocks: I64) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.logical_or.reduce([in_stack(trace, blocks, name=name) for name in _WORKSPACE_NAMES])
    return found


def is_model(trace: Trace, blocks: I64) -> NDArray[np.bool_]:
    """Whether blocks are a model's weights as it is built or moved: made by a layer, by .to() or .cuda()."""
    in_layer = in_stack(trace, blocks, file="/torch/nn/modules/")
    names = [in_stack(trace, blocks, name=name) for name in CONSTRUCTION]
    found: NDArray[np.bool_] = in_layer & np.logical_or.reduce(names)
    return found


def in_stack(trace: Trace, blocks: I64, *, file: str = "", name: str = "") -> NDArray[np.bool_]:
    """Whether a block's stack has a frame whose file, or whose function, contains a text."""
    r = trace.recording
    texts = np.array([(file in normal_path(s)) if file else (name in s) for s in r.strings], bool)
    if not len(texts) or not len(r.frames):
        return np.zeros(len(blocks), bool)
    hit = texts[r.frames.filename if file else r.frames.name]
    hits = np.concatenate([[0], np.cumsum(hit[r.stack_frames])])  # before each entry of the stacks
    found = np.append(hits[r.stacks[1:]] > hits[r.stacks[:-1]], np.False_)
    inside: NDArray[np.bool_] = found[trace.blocks["stack"][blocks]]  # -1 takes the last entry
    return inside


def plateau(trace: Trace, taken: I64) -> list[Finding]:
    """Memory that rises once, is used again and goes at once: autocast's copies of weights, a list that is cleared.

    Blocks freed one after the other with no allocation in between, each of which lived at least a quarter of the
    recording.
    """
    blocks = trace.blocks
    born, asked = blocks["alloc_event"].astype(np.int64), blocks["free_requested_event"].astype(np.int64)
    long = np.flatnonzero((born >= 0) & (asked - born >= max(trace.n_events // 4, 4)))
    long = np.setdiff1d(long, taken)
    # Weights that go with their model, and gradients (made in backward, without a Python stack), are another story.
    long = long[(trace.block_site[long] >= 0) & ~is_model(trace, long)]
    if len(long) < 3:
        return []
    allocs = np.sort(born[born >= 0])
    between = np.searchsorted(allocs, asked[long])  # allocations before each free: equal within one burst
    burst, inverse = np.unique(between, return_inverse=True)
    sums = np.zeros(len(burst), np.int64)
    np.add.at(sums, inverse, blocks["size"][long])
    best = int(sums.argmax())
    mine = long[inverse == best]
    if len(mine) < 3 or not worth(trace, int(sums[best])):
        return []
    lines = np.isin(trace.block_site, np.unique(trace.block_site[mine]))
    lasting = lines & (born >= 0) & ((asked == -1) | (asked - born >= trace.n_events // 4))
    if int(sums[best]) < 0.8 * int(blocks["size"][lasting].sum()):
        return []
    cast = bool(in_stack(trace, mine, name="at::autocast").mean() > 0.5)
    if not cast and in_stack(trace, mine, file="/torch/nn/modules/").mean() <= 0.5:
        return []  # a list or a dict that had its time
    first, gone = int(born[mine].min()), int(asked[mine].min())
    # With those that came later and went along, but for what a last call made and dropped.
    together = lines & (born >= 0) & (asked - born >= trace.n_events // 10)
    together &= np.searchsorted(allocs, asked) == burst[best]
    flat = int(born[together].max())
    # A good deal was made while it stood, else it is a list that was gathered and used. Under autocast a second pass
    # makes a third of what the first one made: only outputs.
    rise, stand = np.diff(np.searchsorted(allocs, [first, flat, gone]))
    if stand < 0.25 * rise:
        return []
    what = "Autocast's copies of the weights" if cast else "Something that layers made"
    return [
        told(
            trace,
            "step",
            f"{what} took {amount(int(sums[best]))}, once, and gave it back",
            mine,
            [
                (
                    f"{many(len(mine), 'block')} rose from event {first:,} to {flat:,}, none was added afterwards, and "
                    f"all went together at event {gone:,}: this is no leak."
                ),
            ],
            "Expected: autocast drops its copies where its block ends."
            if cast
            else "Expected: results that were kept for a while, or autocast's copies of the weights, if it ran.",
            certain=cast,
            moment=gone,
        )
    ]


def told(  # noqa: PLR0917
    trace: Trace,
    kind: str,
    title: str,
    blocks: I64,
    evidence: list[str],
    advice: str,
    *,
    certain: Any,
    saves: int = 0,
    moment: int,
    row: int | None = None,
    per_step: int = 0,
    size: int | None = None,
) -> Finding:
    """Make a finding about some blocks, named by their largest line of Python."""
    sums = sums_by_site(trace, blocks)
    if row is None:
        row = next((site for site, _, _ in sums if site >= 0), -1)
    return Finding(
        kind=kind,
        title=title,
        bytes=int(trace.blocks["size"][blocks].sum()) if size is None else size,
        blocks=ids(blocks),
        site=frame_of(trace, row),
        label=trace.site_label(row),
        evidence=tuple(evidence),
        advice=advice,
        certain=bool(certain),
        bytes_per_step=per_step,
        saves=saves,
        moment=moment,
        window=(max(0, int(trace.blocks["alloc_event"][blocks].min(initial=trace.n_events))), trace.n_events),
        lines=lines_of(trace, sums),
        frame=row,
    )
