"""What is known of one block, as plain values.

Owns the words for a block's facts in Python (`MemView.selected`); the page's detail panel says the same from columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwidget.show.wire import pool_label, stream_labels
from memwidget.trace.categories import REASONS

if TYPE_CHECKING:
    from memwidget.trace.trace import Trace


def block_facts(trace: Trace, block: int) -> dict[str, Any]:
    """Facts of a block: ints, strings, lists of them, None for what is not known.

    Stacks are lists of ``file:line in function``, innermost first; times are microseconds since the Unix epoch.
    """
    row = trace.blocks[block]
    recording = trace.recording
    stream, pool, alloc_event = int(row["stream"]), int(row["pool"]), int(row["alloc_event"])
    metadata = int(trace.events.metadata[alloc_event]) if alloc_event >= 0 else -1
    row_of_site = int(trace.stack_site[row["stack"]]) if row["stack"] >= 0 else -1
    return {
        "block": int(block),
        "name": trace.block_name(block),
        "address": f"0x{int(row['address']):x}",
        "size": int(row["size"]),
        "requested": int(row["requested"]),
        "alloc_event": _known(alloc_event),
        "free_requested_event": _known(int(row["free_requested_event"])),
        "free_event": _known(int(row["free_event"])),
        "alloc_time_us": _known(int(row["alloc_time_us"]), above=0),
        "free_time_us": _known(int(row["free_time_us"]), above=0),
        "site": trace.site_label(row_of_site) if row_of_site >= 0 else None,
        "stack": [f"{f.filename}:{f.line} in {f.name}" for f in trace.stack(block, "alloc")],
        "free_stack": [f"{f.filename}:{f.line} in {f.name}" for f in trace.stack(block, "free")],
        "no_stack_reason": trace.no_stack_reason(block) or None,
        "stream": stream_labels(recording.streams)[stream] if stream >= 0 else None,
        "pool": pool_label(recording.pools[pool]) if pool >= 0 else None,
        "category": trace.categories[int(row["category"])],
        "category_by": REASONS[int(row["reason"])] or None,
        "label": trace.label(block) or None,
        "forward_stack": [f"{f.filename}:{f.line} in {f.name}" for f in trace.forward_frames(block)],
        "metadata": recording.strings[metadata] if metadata >= 0 else None,
    }


def _known(value: int, above: int = -1) -> int | None:
    return value if value > above else None
