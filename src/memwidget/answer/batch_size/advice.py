"""What checkpointing would buy, worked out from the labels of the largest trial.

Owns the what-if. It is a prediction: nothing is run with checkpoints.

::

    encode.layers.0.linear1  activation   gone: computed again in backward
    encode.layers.0.norm2    activation   kept: the last one of its layer, which the next begins with
    encode.layers.3.*        activation   kept for one layer, the largest: it is whole while its backward runs
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.batch_size.replay import live_at
from memwidget.answer.batch_size.trials import Size
from memwidget.units import plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.answer.batch_size.laws import Requests

#: A group that holds less of the peak than this is not worth a word.
_WORTH = 0.10


@dataclass(frozen=True)
class Advice:
    """Checkpoint the modules ``module.0``, ``module.1``, ...: from `before` to `after` samples, as predicted."""

    module: str
    before: int
    after: int
    bytes_saved: int

    @property
    def text(self) -> str:
        """One sentence."""
        return (
            f"Checkpointing each of {plain(self.module, 80)}.* (torch.utils.checkpoint) would allow {self.after:,} "
            f"instead of {self.before:,} (predicted from the labels, not measured)."
        )


def checkpointing(
    law: Requests, size: Size, before: int, largest: Callable[[Callable[[Size], float]], int]
) -> tuple[Advice, ...]:
    """Advice on each group of numbered modules, most saved first."""
    program, template = law.program, law.template
    outcome, sizes = law.run(size)
    groups: dict[str, dict[int, list[int]]] = {}
    for block in live_at(program, outcome.peak_op):
        found = re.match(r"(.*?)\.?(\d+)(?:\.|$)", template.names[block])
        if found and found[1] and template.kinds[block] == "activation":
            groups.setdefault(found[1], {}).setdefault(int(found[2]), []).append(block)
    advice = []
    for module, layers in groups.items():
        gone = _gone(layers, sizes)
        mask: NDArray[np.bool_] = np.zeros(len(sizes), bool)
        mask[gone] = True
        saved = int(sizes[mask].sum())
        if len(layers) < 2 or saved < _WORTH * outcome.allocated:
            continue
        after = largest(partial(_reserved, law, mask))
        if after > before:
            advice.append(Advice(module, before, after, saved))
    return tuple(sorted(advice, key=lambda each: -each.after))


def _reserved(law: Requests, gone: NDArray[np.bool_], size: Size) -> float:
    return law.without(gone, size).reserved


def _gone(layers: dict[int, list[int]], sizes: NDArray[np.int64]) -> list[int]:
    whole = max(layers, key=lambda layer: int(sizes[layers[layer]].sum()))
    return [block for layer, blocks in layers.items() if layer != whole for block in sorted(blocks)[:-1]]
