"""An out-of-memory event in plain words: what filled the memory, why free memory did not serve, what next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    from memwidget.trace.oom import OutOfMemory


def explain(oom: OutOfMemory) -> tuple[str, ...]:
    """Sentences, most important first; the first says what was asked and what there was."""
    there = f"{bytes_text(oom.allocated)} allocated, {bytes_text(oom.reserved)} reserved"
    said = [f"{bytes_text(oom.requested)} asked for, {there}, {bytes_text(oom.device_free)} free on the device."]
    if oom.limited:
        said.append(
            "The device had room: a limit that the file does not name refused it "
            "(set_per_process_memory_fraction, a container's or a scheduler's limit)."
        )
    if oom.by_site.rows:
        top = oom.by_site.rows[0]
        share = 100 * top.bytes / max(oom.allocated, 1)
        blocks = "1 block" if top.count == 1 else f"{top.count:,} blocks"
        said.append(f"{plain(top.label, 100)} holds most: {bytes_text(top.bytes)} in {blocks} ({share:.0f} %).")
    # A source without labels knows only "there before" and "unknown", which tells nobody anything.
    known = [row for row in oom.by_category.rows if row.label not in {"preexisting", "unknown"}]
    if known:
        shares = ", ".join(f"{plain(row.label, 60).replace('_', ' ')} {bytes_text(row.bytes)}" for row in known[:4])
        said.append(f"By what it was for: {shares}.")
    said.append(_why_not(oom))
    if oom.free.too_small >= oom.requested and not oom.expandable:
        said.append("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets holes of different segments be joined.")
    if oom.outside:
        said.append(f"{bytes_text(oom.outside)} of the device are used outside torch's allocator.")
    return tuple(said)


def _why_not(oom: OutOfMemory) -> str:
    """Why memory that was reserved but in no use did not serve."""
    free = oom.free
    idle = free.free + free.pending
    if not idle:
        return "Nothing of what torch had reserved was free."
    reasons = [
        (free.too_small, f"in holes smaller than that (the largest hole: {bytes_text(free.largest_hole)})"),
        (free.other_stream, "on other streams"),
        (free.other_pool, "in private pools"),
        (free.other_class, "in segments for requests of the other size (up to 1 MiB, or above)"),
        (free.pending, "waiting for another stream to be done with it"),
        (free.usable, "in holes that would have done"),
    ]
    parts = [f"{bytes_text(size)} {why}" for size, why in sorted(reasons, reverse=True) if size]
    return f"Reserved but in no use were {bytes_text(idle)}: {', '.join(parts)}."
