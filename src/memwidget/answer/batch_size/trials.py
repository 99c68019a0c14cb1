"""One trial as plain numbers: what a size really took, by phase, category and line.

Owns the way from a recording to those numbers. A trial holds no tensor, no recording and no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer.batch_size.replay import MIB, Program, Start
from memwidget.trace.trace import Trace
from memwidget.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwidget.record.trials import Measured
    from memwidget.recording import I64, Recording

Size = tuple[int, ...]

#: Settings that change what the replayed rules say; anything else is a matter of speed or of when to give back.
_OTHER_RULES = ("expandable_segments", "max_split_size", "roundup_power2_divisions", "large_segment_size")
#: A recording that holds this much of what the counters saw is whole: frees of older blocks are known by request only.
_CLOSE = 0.005
#: Below this, whether two steps differ is not worth a word.
_SAME = 0.01
#: Two runs of one size that ask for the same bytes to within this share are the same step.
_SAME_BYTES = 1e-4


@dataclass(frozen=True)
class Trial:
    """What one size took.

    Attributes
    ----------
    size : tuple of int
    allocated, reserved : int
        Peaks in bytes, with all that was there before; equal on the CPU.
    failed : str
        The out-of-memory error of a trial that did not fit, else empty.
    steps, left : tuple of int
        Allocated peak of each of its steps, and what was allocated after it.
    counts : tuple of int
        Allocations in each of its steps.
    phases, categories, lines : dict of str to int
        Highest allocated bytes in each phase; bytes at the peak by category and by call site.
    program : Program or None
        The requests, in order; None without a recording.
    kinds, sites, names : tuple
        Of each block of the program: category, call site, and the parameter or module it belongs to.
    twins : tuple of two arrays
        Blocks of the first and of the last run of the size, one by one; empty where the runs differ in number.
    """

    size: Size
    allocated: int
    reserved: int
    failed: str = ""
    seconds: float = 0.0
    steps: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    phases: dict[str, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    program: Program | None = field(default=None, repr=False)
    kinds: tuple[str, ...] = field(default=(), repr=False)
    sites: tuple[str, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)
    twins: tuple[I64, ...] = field(default=(), repr=False)
    #: Share of the bytes that the runs of this one size did not ask for alike.
    scatter: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it ran to its end."""
        return not self.failed


def read_trial(size: Size, measured: Measured, device: int = 0) -> Trial:
    """Turn what was recorded and counted into numbers."""
    facts: dict[str, Any] = {"failed": measured.failed, "seconds": measured.seconds}
    recording = measured.recording
    if recording is None or device not in recording.devices:
        # Without events nothing was allocated, where there are no counters to say more (CPU).
        return Trial(size, max(0, measured.allocated), max(0, measured.reserved), notes=tuple(measured.notes), **facts)
    trace = Trace(recording, device)
    on_cpu = trace.device_type == "cpu"
    held = sum(measured.held.values())
    curve = trace.curve("allocated") + held
    steps = [(band.lo, band.hi) for band in trace.bands if band.kind == "step"]
    born = trace.blocks["alloc_event"]
    runs = [np.flatnonzero((born >= lo) & (born < hi)) for lo, hi in steps]
    counts = tuple(map(len, runs))
    same = len(set(counts)) == 1
    twins = tuple(runs[at][np.argsort(born[runs[at]], kind="stable")] for at in (0, -1)) if same and runs[1:] else ()
    # What a step finds of the step before it (gradients, say) is seen from the second on; on the CPU only from there,
    # unless the two do not do the same.
    first = steps[-1][0] if on_cpu and len(steps) > 1 and same else 0
    peak = first + int(curve[first:].argmax())
    allocated = int(curve[peak]) if on_cpu else measured.allocated
    whole = on_cpu or abs(int(curve.max()) - allocated) <= _CLOSE * allocated
    notes = list(measured.notes)
    if not whole:
        notes.append("The recording holds less than the counters saw (a longer history than is kept): totals only.")
    categories = dict(trace.by_category(peak))
    for category, share in measured.held.items():
        categories[category] = categories.get(category, 0) + share
    codes = [trace.categories[code] for code in trace.blocks["category"].tolist()]
    return Trial(
        size,
        allocated,
        allocated if on_cpu else measured.reserved,
        **facts,
        steps=tuple(int(curve[lo : hi + 1].max()) for lo, hi in steps),
        left=tuple(int(curve[hi]) for _, hi in steps),
        counts=counts,
        phases=_phases(trace, curve, first) if whole else {},
        categories=categories if whole else {},
        lines=dict(trace.by_site(peak)) if whole else {},
        notes=tuple(notes),
        program=_program(trace, first, held) if whole and not measured.failed else None,
        kinds=tuple(codes),
        sites=tuple(_site_names(trace)),
        names=tuple(trace.label(block) for block in range(trace.n_blocks)),
        twins=twins,
        scatter=_scatter(trace, runs, twins),
    )


def _scatter(trace: Trace, runs: list[I64], twins: tuple[I64, ...]) -> float:
    """Share of the bytes that two runs did not ask for alike; but for scratch, which libraries choose."""
    asked = trace.blocks["requested"].astype(np.int64)
    asked[trace.blocks["free_requested_event"] == trace.blocks["alloc_event"] + 1] = 0
    totals = [int(asked[run].sum()) for run in runs]
    if len(totals) < 2 or not max(totals):
        return 0.0
    if twins:
        return float(np.abs(asked[twins[0]] - asked[twins[1]]).sum()) / max(totals)
    return (max(totals) - min(totals)) / max(totals)


def _site_names(trace: Trace) -> list[str]:
    rows = trace.block_site.tolist()
    words = {row: trace.site_label(row) for row in set(rows)}
    return [words[row] for row in rows]


def _phases(trace: Trace, curve: Any, first: int) -> dict[str, int]:
    """Highest allocated bytes in each phase, and outside of all of them."""
    sums: dict[str, int] = {}
    outside = np.ones(len(curve), bool)
    outside[:first] = False
    for band in trace.bands:
        if band.kind == "phase" and band.depth == 0 and band.lo >= first:
            outside[band.lo + 1 : band.hi + 1] = False
            sums[band.name] = max(sums.get(band.name, 0), int(curve[band.lo : band.hi + 1].max()))
    sums["elsewhere"] = int(curve[outside].max(initial=0))
    return sums


def _program(trace: Trace, first: int, base: int) -> Program | None:
    """The requests of a trace in order, with the segments that they met."""
    blocks, on_cpu = trace.blocks, trace.device_type == "cpu"
    born, died = blocks["alloc_event"], blocks["free_event"]
    known = int((born < 0).sum())
    at = np.concatenate([born, died])
    op = np.concatenate([np.arange(1, len(blocks) + 1), -np.arange(1, len(blocks) + 1)])
    seen = at >= 0
    # At one event the free comes first: an implied free lets its address be used again.
    order = np.lexsort((op[seen], at[seen]))
    ops = op[seen][order].astype(np.int32)
    pools = trace.recording.pools
    usual = pools.index((0, 0)) if (0, 0) in pools else -1
    pool = np.where(blocks["pool"] < 0, usual, blocks["pool"])  # of a segment that was gone at the end
    queue = (blocks["stream"].astype(np.int64) * 1000 + pool).astype(np.int32)
    sizes = np.where(born < 0, blocks["size"], blocks["requested"]).astype(np.int64)
    start: list[Start] = []
    if not on_cpu:
        if not _usual_rules(trace.recording):
            return None
        for segment in trace.allocator_at(0).segments:
            its = pools.index(segment.pool) if segment.pool in pools else usual
            pieces = tuple((piece.size, piece.block) for piece in segment.blocks)
            start.append(Start(segment.address, segment.stream * 1000 + its, segment.size <= 2 * MIB, pieces))
    return Program(
        ops,
        sizes,
        queue,
        known,
        int(np.searchsorted(at[seen][order], first)),
        base,
        tuple(start),
        "plain" if on_cpu else "caching",
        int(trace.recording.facts.get("threads", 0)),
    )


def _usual_rules(recording: Recording) -> bool:
    settings = recording.settings
    for name in _OTHER_RULES:
        value = settings.get(name)
        if isinstance(value, dict):
            if any(int(each) > 1 for each in value.values()):
                return False
        elif value not in (None, False, 0, -1, "", 18446744073709551615, 9223372036854775807):
            return False
    return True


def differences(trials: Sequence[Trial], alike: bool) -> list[str]:
    """Sentences on steps that are not alike: between the repeats of one size, and, unless `alike`, between sizes."""
    found = []
    for trial in trials:
        if not trial.fits or len(trial.steps) < 2:
            continue
        low, high = min(trial.steps), max(trial.steps)
        last, one = trial.counts[-1], trial.counts[0]
        if high - low > _SAME * high and abs(last - one) > _SAME * max(last, one):
            found.append(
                f"The steps of size {words(trial.size)} differ from call to call ({one:,} and {last:,} allocations): "
                "if step() accumulates gradients over several calls or takes inputs of varying length, let one call "
                "do a whole round of the longest ones."
            )
            break
    else:
        trial = max(trials, key=lambda each: each.scatter)
        if trial.scatter > _SAME_BYTES:
            found.append(
                f"Two runs of size {words(trial.size)} asked for other sizes ({trial.scatter:.2%} of the bytes): what "
                "the step takes depends on its data (a mask, an expert) or on what the run before it left; the "
                "interval reaches as far as such runs differ."
            )
    for trial in trials:
        more = trial.left[-1] - trial.left[0] if trial.fits and trial.left else 0
        if more > _SAME * trial.allocated:
            found.append(
                f"A step of size {words(trial.size)} leaves {bytes_text(more)} behind: memory grows from call to call, "
                "and a size that fits now will not for long."
            )
            break
    counts = {trial.size: trial.counts[-1] for trial in trials if trial.fits and trial.counts}
    if not alike and counts and max(counts.values()) - min(counts.values()) > 0.05 * max(counts.values()):
        listed = ", ".join(f"{words(size)}: {count:,}" for size, count in counts.items())
        found.append(
            f"The sizes run different steps (allocations in a step, by size: {listed}): a loop over samples or "
            "micro-batches, or inputs of varying length; the prediction follows totals only, and is wider."
        )
    return found


def words(size: Size) -> str:
    """``8``, or ``8 x 512``."""
    return " x ".join(map(str, size))
