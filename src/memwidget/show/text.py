"""A trace in words.

Owns the plain-text summary that stands beside the widget, in terminals and in diffs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer.finding import EXPECTED
from memwidget.answer.oom import explain
from memwidget.trace.trace import NO_STACK
from memwidget.units import bytes_text, duration_text, plain

if TYPE_CHECKING:
    from memwidget.trace.trace import Trace

_LARGEST = 5
_MOST_FINDINGS = 8


def device_text(trace: Trace) -> str:
    """``cuda:0`` or ``cpu``."""
    return "cpu" if trace.device_type == "cpu" else f"{trace.device_type}:{trace.device}"


def where_text(trace: Trace, moment: int) -> str:
    """When a moment was: the event, the time since the first, the innermost range around it."""
    parts = [f"event {moment:,} of {trace.n_events:,}"]
    if trace.has_time and moment > 0:
        times = trace.event_times_us
        parts.append(f"t+{duration_text(int(times[moment - 1]) - int(times[0]))}")
    around = [band for band in trace.bands if band.lo < moment <= band.hi]
    if around:
        kind = around[-1].kind
        parts.append(f"in {plain(around[-1].name, 60)}" if kind != "step" else f"in step {plain(around[-1].name, 60)}")
    return ", ".join(parts)


def summary(trace: Trace) -> str:
    """Plain-text summary: the peak and when, the largest call sites at it, the end, notes, what recording cost."""
    title = f"{plain(trace.name, 120) or 'recording'} on {device_text(trace)}"
    if trace.n_events == 0:
        lines = [*_segments_only(trace, title)]
    else:
        of = f" of {bytes_text(trace.capacity)}" if trace.capacity else ""
        reserved, then = [], ""
        if trace.has_reserved:
            at_peak = bytes_text(int(trace.curve("reserved")[trace.peak_event]))
            reserved = [f"  reserved {at_peak} then, at most {bytes_text(trace.peak_reserved)}"]
            then = f", {bytes_text(trace.reserved)} reserved"
        lines = [
            f"{title}: peak {bytes_text(trace.peak_allocated)}{of}",
            f"  at {where_text(trace, trace.peak_event)}",
            *reserved,
            *_oom(trace),
            *_categories(trace),
            *_sites(trace, "peak", "at the peak"),
            f"  at the end {bytes_text(trace.allocated)} allocated{then}",
            *_findings(trace),
        ]
    lines += [f"  note: {plain(note, 400)}" for note in trace.notes[:20]]
    if len(trace.notes) > 20:
        lines.append(f"  and {len(trace.notes) - 20} more notes")
    lines += _cost(trace.recording.facts)
    return "\n".join(lines)


def without_history(trace: Trace) -> str:
    """Why there is no timeline; empty where there is one."""
    if trace.n_events:
        return ""
    if "backend" in trace.recording.facts:  # by our recorder, which was on
        return "nothing was allocated or freed while recording"
    # Nothing was recorded, which is not the same as nothing having been allocated: never "0 bytes".
    return "history not recorded, so there is no timeline and no peak"


def _segments_only(trace: Trace, title: str) -> list[str]:
    lines = [f"{title}: {without_history(trace)}"]
    segments = trace.recording.segments
    mine = segments.device == trace.device
    if mine.any():
        lines.append(
            f"  when the snapshot was taken: {bytes_text(trace.allocated)} allocated "
            f"in {_many(trace.n_blocks, 'block')}, {bytes_text(trace.reserved)} reserved "
            f"in {_many(int(np.count_nonzero(mine)), 'segment')}"
        )
        lines += _sites(trace, "end", "then")
    elif "backend" not in trace.recording.facts:
        lines.append("  the file holds no segments either")
    return lines


def _findings(trace: Trace) -> list[str]:
    """What is wrong, with the next step; what a healthy run has too, in a line each."""
    found = trace.findings()
    lines = [] if any(f.kind not in EXPECTED for f in found) else ["  nothing unusual"]
    for f in found[:_MOST_FINDINGS]:
        if f.kind == "oom":
            continue  # told above, at length
        likely = "" if f.certain else ", likely"
        if f.kind in EXPECTED:
            lines.append(f"  {f.kind} (expected): {plain(f.title, 160)}")
        else:
            lines += [f"  {f.kind}{likely}: {plain(f.title, 160)}", f"    -> {plain(f.advice, 300)}"]
    if len(found) > _MOST_FINDINGS:
        lines.append(f"  and {len(found) - _MOST_FINDINGS} more findings: trace.findings()")
    return lines


def _oom(trace: Trace) -> list[str]:
    if not trace.oom_moments:
        return []
    report = trace.out_of_memory()
    head, *rest = explain(report)
    return [f"  out of memory at event {report.moment:,}: {head}", *(f"    {sentence}" for sentence in rest)]


def _categories(trace: Trace) -> list[str]:
    """What the peak was made of, where labels say so; the share of guesses with it."""
    if not trace.has_labels:
        return []
    rows = trace.by_category("peak").rows
    parts = [f"{plain(row.label, 60).replace('_', ' ')} {bytes_text(row.bytes)}" for row in rows[:_LARGEST]]
    guessed = sum(row.by_guess for row in rows)
    by_guess = f" ({bytes_text(guessed)} of it a guess)" if guessed else ""
    return [f"  by category {', '.join(parts)}{by_guess}"]


def _sites(trace: Trace, at: str, when: str) -> list[str]:
    rows = trace.by_site(at).rows
    if not rows:
        return []
    total = max(sum(row.bytes for row in rows), 1)
    lines = [f"  largest call sites {when}:"]
    # A sixth one alone takes no more room than "1 other call site" would.
    shown = rows if len(rows) == _LARGEST + 1 else rows[:_LARGEST]
    lines += [f"{_amount(row.bytes, row.count, total)}  {plain(row.label, 100)}" for row in shown]
    rest = rows[len(shown) :]
    if rest:
        amount = _amount(sum(row.bytes for row in rest), sum(row.count for row in rest), total)
        lines.append(f"{amount}  {len(rest):,} other call sites")
    if any(row.frame < 0 for row in shown):
        lines += _no_stack(trace, at)
    return lines


def _no_stack(trace: Trace, at: str) -> list[str]:
    """Why most of the bytes without a call site have none: often the largest share, and the first question."""
    live = trace.live_at(at)
    live = live[trace.block_site[live] < 0]
    by_reason = np.bincount(trace.no_stack[live], trace.blocks["size"][live])
    reason = NO_STACK[int(by_reason.argmax())]
    return [f"    no Python stack: {plain(reason, 300)}"] if reason else []


def _amount(size: int, count: int, total: int) -> str:
    percent = math.floor(100 * size / total + 0.5)
    share = f"{percent} %" if percent or not size else "<1 %"
    return f"    {bytes_text(size):>9}  {share:>5}  {_many(count, 'block'):>14}"


def _many(n: int, thing: str) -> str:
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"


def _cost(facts: dict[str, Any]) -> list[str]:
    parts = {
        key.removeprefix("seconds_").replace("_", " "): float(value)
        for key, value in facts.items()
        if key.startswith("seconds_") and isinstance(value, (int, float)) and math.isfinite(value)
    }
    if not parts:
        return []
    return ["  recording cost: " + ", ".join(f"{plain(k, 40)} {duration_text(v * 1e6)}" for k, v in parts.items())]
