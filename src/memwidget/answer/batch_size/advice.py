"""What checkpointing would buy, worked out from the labels of the largest trial.

Owns the what-if. It is a prediction: nothing is run with checkpoints. Blocks are asked for in another order, and the
allocator is replayed::

    forward                                          backward of layer 0
    layers.0.linear1  activation   not yet           asked for here, before its first block is freed
    layers.0.norm2    activation   as it was: the last one of its layer, which the next begins with
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from memwidget.answer.batch_size.replay import Program, later, lifetimes
from memwidget.answer.batch_size.trials import Size
from memwidget.units import plain

if TYPE_CHECKING:
    from memwidget.answer.batch_size.requests import Requests
    from memwidget.recording import I64

#: A group that holds less of the peak than this is not worth a word.
_WORTH = 0.10


@dataclass(frozen=True)
class Advice:
    """Checkpoint the modules ``module.0``, ``module.1``, ...: from `before` to `after` samples, as predicted.

    `module` is empty where the modules are ``0``, ``1``, ... themselves.
    """

    module: str
    before: int
    after: int
    bytes_saved: int

    @property
    def text(self) -> str:
        """One sentence."""
        each = f"{plain(self.module, 80)}.*" if self.module else "the numbered modules"
        return (
            f"Checkpointing each of {each} (torch.utils.checkpoint) would allow {self.after:,} "
            f"instead of {self.before:,} (predicted from the labels, not measured)."
        )


def checkpointing(
    law: Requests, size: Size, before: int, largest: Callable[[Callable[[Size], float]], int]
) -> tuple[Advice, ...]:
    """Advice on each group of numbered modules, most samples first."""
    need = law.need(size)
    advice = []
    for module, moved in _recomputed(law, size).items():
        program = later(law.program, moved)
        saved = need.allocated - law.need_of(program, size).allocated
        if saved < _WORTH * need.allocated:
            continue
        after = largest(partial(_reserved, law, program))
        if after > before:
            advice.append(Advice(module, before, after, round(saved)))
    return tuple(sorted(advice, key=lambda each: -each.after))


def _reserved(law: Requests, program: Program, size: Size) -> float:
    return law.need_of(program, size).reserved


def _recomputed(law: Requests, size: Size) -> dict[str, dict[int, int]]:
    """For each group of modules, the blocks that would be made again, and the op before which.

    What does not grow is left where it is: autocast's copies of weights go before any backward begins.
    """
    program, template = law.program, law.template
    born, died = lifetimes(program)
    grows = law.sizes_at(tuple(2 * n for n in size)) > law.sizes_at(size)
    layers: dict[tuple[str, str], list[int]] = {}
    for block in range(program.known, len(born)):
        if template.kinds[block] == "activation" and died[block] >= 0 and grows[block]:
            found = re.match(r"(?:(.+?)\.)??(\d+)(?:\.|$)", template.names[block])
            if found:  # a bare Sequential's layers have numbers alone
                layers.setdefault((found[1] or "", found[2]), []).append(block)
    groups: dict[str, dict[int, int]] = {}
    numbers: dict[str, int] = {}
    for (module, _), blocks in layers.items():
        moved = groups.setdefault(module, {})
        numbers[module] = numbers.get(module, 0) + 1
        for run in _runs(blocks, born, died):
            first = min(int(died[block]) for block in run)
            moved.update(dict.fromkeys(run[:-1], first))
    return {module: moved for module, moved in groups.items() if numbers[module] > 1 and moved}


def _runs(blocks: list[int], born: I64, died: I64) -> list[list[int]]:
    """Blocks of one layer, step by step: a step's blocks are all gone before the next step's are made."""
    runs: list[list[int]] = []
    end = -1
    for block in sorted(blocks, key=lambda each: int(born[each])):
        if born[block] > end:
            runs.append([])
        runs[-1].append(block)
        end = max(end, int(died[block]))
    return runs
