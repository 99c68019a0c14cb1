"""What is wrong, or worth knowing, in a trace: every rule asked, the answers in order.

Owns the order of the rules and what one leaves to the next: bytes that grow are not told again as held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer.finding import EXPECTED, KINDS, Finding
from memwidget.answer.growth import grows, growth
from memwidget.answer.held import gradients, held, idle_gradients, runs
from memwidget.answer.kept import baseline, once, plateau
from memwidget.answer.relief import activations
from memwidget.answer.reserve import out_of_memory, reserve
from memwidget.answer.spikes import spikes
from memwidget.answer.steps import find_steps
from memwidget.recording import CATEGORIES

if TYPE_CHECKING:
    from memwidget.trace.trace import Trace

#: Blocks of one finding that travel to the page; the count goes along.
MOST_BLOCKS = 2_000


def findings(trace: Trace) -> list[Finding]:
    """Look for every kind of finding.

    Returns
    -------
    list of Finding
        What needs attention first, then what is expected, each by bytes; empty where nothing is unusual.
    """
    if not trace.n_events:
        return []
    steps = find_steps(trace)
    stairs = grows(trace, steps)
    growing = growth(trace, steps, stairs)
    first, taken = once(trace, steps)
    across = runs(trace)
    stays = stairs.blocks if stairs else np.zeros(0, np.int64)
    if stairs is not None:
        # All of a growing line that is live belongs to the growth, its first steps too.
        stays = np.union1d(stays, np.flatnonzero(np.isin(trace.block_site, stairs.sites)))
    taken = np.union1d(taken, stays).astype(np.int64)
    idle = idle_gradients(trace)
    old = gradients(trace, idle)
    if old or (idle and "cells" not in trace.recording.facts):  # the last step's stand at the end for the same reason
        taken = np.union1d(taken, np.flatnonzero(trace.blocks["category"] == CATEGORIES.index("gradient")))
    found = [
        *out_of_memory(trace),
        *across,
        *growing,
        *([] if across else held(trace, steps, taken)),
        *old,
        *spikes(trace, steps),
        *reserve(trace),
        *first,
        *plateau(trace, taken),
        *([] if stairs else activations(trace)),
        *baseline(trace),
    ]
    return sorted(found, key=lambda f: (f.kind in EXPECTED, f.kind != "oom", -f.bytes, KINDS.index(f.kind)))


def nothing_unusual(found: list[Finding]) -> bool:
    """Whether all there is to say is what a healthy run has too."""
    return all(finding.kind in EXPECTED for finding in found)


def findings_payload(trace: Trace) -> list[dict[str, Any]]:
    """Findings as plain values for the page; frames by row, blocks by id (at most `MOST_BLOCKS`, largest first)."""
    return [_row(trace, finding) for finding in trace.findings()]


def _row(trace: Trace, f: Finding) -> dict[str, Any]:
    blocks = f.blocks
    if len(blocks) > MOST_BLOCKS:
        by_size = np.argsort(-trace.blocks["size"][list(blocks)], kind="stable")[:MOST_BLOCKS]
        blocks = tuple(sorted(np.array(blocks)[by_size].tolist()))
    return {
        "kind": f.kind,
        "title": f.title,
        "bytes": f.bytes,
        "bytes_per_step": f.bytes_per_step,
        "saves": f.saves,
        "certain": f.certain,
        "expected": f.kind in EXPECTED,
        "label": f.label,
        "frame": f.frame,
        "source": (f.site.source or "") if f.site else "",
        "blocks": list(blocks),
        "n_blocks": len(f.blocks),
        "moment": f.moment,
        "window": list(f.window) if f.window else None,
        "evidence": list(f.evidence),
        "advice": f.advice,
        "lines": [[label, size] for label, size in f.lines[:20]],
    }
