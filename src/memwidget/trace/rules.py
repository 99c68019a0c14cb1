"""The user's own names for blocks, on top of the categories: a KV cache, a framework's gathers.

Owns the rules and how they are tried: in order, the first that fits names the block. Frames and strings are tried
once each, never once a block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I32, Recording


@dataclass(frozen=True)
class Rule:
    r"""A name for the blocks that fit every pattern given (regular expressions, found anywhere in the text).

    Parameters
    ----------
    name : str
        What the blocks are called in place of their category: "KV cache".
    function, file : str
        Both fit the same frame of the block's stack.
    label : str
        The block's own name: a parameter's, or the path of the module that made it.
    metadata : str
        What ``torch.cuda.memory._set_memory_metadata`` said.

    Examples
    --------
    >>> rule = Rule("KV cache", function="update", file=r"cache_utils\.py$")
    """

    name: str
    function: str = ""
    file: str = ""
    label: str = ""
    metadata: str = ""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError("A rule needs the name that its blocks shall have.")
        patterns = {"function": self.function, "file": self.file, "label": self.label, "metadata": self.metadata}
        if not any(patterns.values()):
            raise ValueError(
                f"The rule {self.name!r} fits every block: give it a pattern for {', '.join(map(repr, patterns))}."
            )
        for field, pattern in patterns.items():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"The rule {self.name!r}: {field}={pattern!r} is no regular expression: {error}."
                ) from None


def rule_list(rules: Iterable[Rule | Mapping[str, str]]) -> tuple[Rule, ...]:
    """Rules, given as such or as dicts (from a JSON or TOML file).

    Raises
    ------
    ValueError
        They are something else, or a key of a dict is unknown.
    """
    keys = {field.name for field in fields(Rule)}
    found = []
    for rule in rules if isinstance(rules, Iterable) and not isinstance(rules, (str, Mapping)) else [rules]:
        if isinstance(rule, Mapping) and "name" in rule and keys.issuperset(rule):
            found.append(Rule(**rule))
        elif isinstance(rule, Rule):
            found.append(rule)
        else:
            patterns = ", ".join(sorted(keys - {"name"}))
            raise ValueError(
                f"A rule is an mw.Rule or a dict with a name and some of {patterns}; not {str(rule)[:80]!r}."
            )
    return tuple(found)


def first_fits(
    rules: tuple[Rule, ...],
    recording: Recording,
    stack: NDArray[Any],
    label: I32,
    metadata: NDArray[Any],
) -> I32:
    """The first rule that fits each block, -1 for none; stacks, labels and metadata are indices, one a block."""
    result = np.full(len(stack), -1, np.int32)
    for number in reversed(range(len(rules))):
        rule = rules[number]
        fits = np.ones(len(stack), bool)
        if rule.function or rule.file:
            fits &= _fitting_stacks(rule, recording)[stack]
        if rule.label:
            fits &= _fitting(rule.label, recording.strings, label)
        if rule.metadata:
            fits &= _fitting(rule.metadata, recording.strings, metadata)
        result[fits] = number
    return result


def _fitting(pattern: str, strings: list[str], rows: NDArray[Any]) -> NDArray[np.bool_]:
    used, inverse = np.unique(rows, return_inverse=True)
    search = re.compile(pattern).search
    fits = np.array([row >= 0 and search(strings[row]) is not None for row in used.tolist()], bool)
    return fits[inverse] if len(used) else np.zeros(0, bool)


def _fitting_stacks(rule: Rule, recording: Recording) -> NDArray[np.bool_]:
    """One entry a stack, and a last one for "no stack"."""
    frames = recording.frames
    fits = _fitting(rule.function, recording.strings, frames.name) if rule.function else np.ones(len(frames), bool)
    if rule.file:
        fits = fits & _fitting(rule.file, recording.strings, frames.filename)
    counts = np.concatenate([[0], np.cumsum(fits[recording.stack_frames])])
    found: NDArray[np.bool_] = np.append(counts[recording.stacks[1:]] > counts[recording.stacks[:-1]], False)
    return found
