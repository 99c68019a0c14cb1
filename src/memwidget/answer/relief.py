"""What would make a training peak lower, where labels say what it is made of.

Owns the what-if for activations: checkpointing the numbered modules that hold them, and half precision. These are upper
bounds worked out from one moment's blocks, not predictions of a replay (those are batch_size/advice.py).

Checkpointed, a layer keeps what the next one begins with, its last block; the rest is made again in backward, one layer
at a time::

    layers.0   a b c d        kept: d        saved: all of a b c but for one layer's, while it is made again
    layers.1   a b c d        kept: d
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.finding import Finding, amount, many
from memwidget.answer.kept import CATEGORY_CODE, told
from memwidget.units import plain

if TYPE_CHECKING:
    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

_LAYER = re.compile(r"(.+?)\.(\d+)(?:\.|$)")
#: Activations of a smaller share of the peak leave little to save.
_MUCH = 0.5
#: Savings below this share of the peak are not worth a second forward pass.
_LEAST = 0.05


def activations_at(trace: Trace, moment: int) -> I64:
    """Activations live at a moment."""
    live = trace.live_at(moment)
    found: I64 = live[trace.blocks["category"][live] == CATEGORY_CODE["activation"]]
    return found


def activations(trace: Trace) -> list[Finding]:
    """A fact: activations make most of the peak, and what less of them would take."""
    mine = activations_at(trace, trace.peak_event)
    size = int(trace.blocks["size"][mine].sum())
    if size < _MUCH * trace.peak_allocated or not size:
        return []
    share = 100 * size / trace.peak_allocated
    return [
        told(
            trace,
            "step",
            f"Activations make {amount(size)} of the peak",
            mine,
            [f"Kept for backward: {many(len(mine), 'block')}, {share:.0f} % of the peak."],
            f"Expected of training. {less(trace, mine)}"
            if _goes_back(trace)
            else f"Nothing here called backward: under torch.no_grad() they are not kept, up to {amount(size)} less.",
            certain=(trace.blocks["reason"][mine] == 1).all(),  # by identity
            moment=trace.peak_event,
        )
    ]


def _goes_back(trace: Trace) -> bool:
    """Whether anything was made in backward."""
    named = any(band.kind == "phase" and band.name == "backward" for band in trace.bands)
    return named or bool((trace.blocks["category"] == CATEGORY_CODE["gradient"]).any())


def less(trace: Trace, mine: I64) -> str:
    """What would save some of these activations."""
    size = int(trace.blocks["size"][mine].sum())
    module, saves, layers = _checkpointing(trace, mine)
    half = f"autocast takes up to {amount(size // 2)} of those that are float32"
    if saves < _LEAST * trace.peak_allocated:
        return f"To have less: a smaller batch, or {half}."
    return (
        f"To have less: checkpoint each of the {layers:,} modules {plain(module, 80)}.* (up to {amount(saves)} less); "
        f"{half}."
    )


def _checkpointing(trace: Trace, mine: I64) -> tuple[str, int, int]:
    """The group of numbered modules that saves most: (name, bytes, number of modules); "" for none."""
    layers: dict[str, dict[str, list[int]]] = {}
    for block in mine[np.argsort(trace.blocks["alloc_event"][mine], kind="stable")].tolist():
        if found := _LAYER.match(trace.label(block)):
            layers.setdefault(found[1], {}).setdefault(found[2], []).append(block)
    sizes, best = trace.blocks["size"], ("", 0, 0)
    for module, numbered in layers.items():
        # Of a layer whose backward has begun the last block is gone already.
        kept = int(np.median([sizes[blocks[-1]] for blocks in numbered.values()]))
        inside = [max(int(sizes[blocks].sum()) - kept, 0) for blocks in numbered.values()]
        saves = sum(inside) - max(inside)
        if saves > best[1]:
            best = (module, saves, len(inside))
    return best
