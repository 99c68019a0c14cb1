"""What the caching allocator makes of it: fragmentation, cache, pending frees, private pools, memory outside torch.

Owns the judgement on reserved memory that is in no use. A CPU recording has none of it.

Fragmentation is told by two numbers together, each at least a seventh of what was reserved:

- the cost: what was reserved beyond the most that was ever in use, as far as it was reserved while enough lay free in
  the request's own pool and stream;
- the room: what had been freed and lay there at the worst such moment.

Either alone is ordinary. A training step leaves a fifth of its memory free at the peak because nothing fits there that
it needs later, without a byte reserved in vain (cost 0 to 4 %); and a step of GPT-2 small reserves 394 MiB on top when
456 MiB lie in pieces, which is 9 % of what it has. In expandable segments only what lies in no whole page counts: free
pages are unmapped, and mapped where they are needed, before memory runs out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.finding import Finding, amount, frame_of, ids, lines_of, many, name_of, sums_by_site
from memwidget.answer.oom import explain
from memwidget.answer.relief import activations_at, less
from memwidget.recording import ACTION
from memwidget.trace.segments import EXPANDABLE

if TYPE_CHECKING:
    from memwidget.recording import I64
    from memwidget.trace.fragmentation import Growth
    from memwidget.trace.trace import Trace

_SEVENTH = 1 / 7
#: Occasions looked at, those with most room first; each is a pass over the segments.
_MOST_GROWTHS = 64
#: Idle reserved memory below this share of the peak is what every run has.
_IDLE = 0.2
_PENDING = 0.1
#: Streams looked at, those with the largest segments: torch itself hands out 32 of each priority.
_MOST_STREAMS = 100
_POOL_ADVICE = {
    True: "Delete graphs that are not replayed any more; capture several into one pool (pool=other.pool())",
    False: "Delete the MemPool when it is not needed any more",
}


def reserve(trace: Trace) -> list[Finding]:
    """Everything about reserved memory."""
    if trace.device_type == "cpu" or not len(trace.segments):
        return []
    return [
        *_fragmentation(trace),
        *_pending(trace),
        *_pools(trace),
        *_stranded(trace),
        *_cache(trace),
        *_outside(trace),
    ]


def _site(trace: Trace, block: int) -> int:
    return int(trace.block_site[block]) if block >= 0 else -1


def _maker(trace: Trace, event: int) -> int:
    """The block that the first allocation from an event on made; -1 for none."""
    born = trace.blocks["alloc_event"]
    later = np.flatnonzero(born >= event)
    return int(later[born[later].argmin()]) if len(later) else -1


def _fragmentation(trace: Trace) -> list[Finding]:
    grown = _in_pieces(trace)
    if not grown:
        return []
    worst = max(grown, key=lambda g: g.free)
    added = sum(g.reserved for g in trace.growth_despite_room)
    cost = min(trace.peak_reserved - trace.peak_active, added)
    reserved_then = int(trace.curve("reserved")[worst.event]) + worst.reserved
    then = trace.fragmentation_at(worst.event)
    expandable = bool(trace.recording.settings.get("expandable_segments", False))
    room = worst.free
    if expandable:
        room = min(room, then.free - then.releasable)
        cost = min(cost, room)
    if cost < _SEVENTH * trace.peak_reserved or room < _SEVENTH * reserved_then:
        return []
    block = _maker(trace, worst.event)
    row = _site(trace, block)
    said = [
        (
            f"{amount(worst.reserved)} were reserved for {amount(worst.request)} at event {worst.event:,} although "
            f"{amount(worst.free)} that had been in use lay free in its own pool; the largest hole was "
            f"{amount(then.largest_hole)}."
        ),
        f"In all {amount(added)} were reserved while enough lay free in pieces.",
        f"At most {amount(trace.peak_active)} were in use, {amount(trace.peak_reserved)} reserved.",
        f"empty_cache() would have given back {amount(then.releasable)} then: the rest lies between live blocks.",
    ]
    advice = (
        f"Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the first allocation: up to {amount(cost)} less "
        "reserved. Or free in the order of allocation, and take sizes that repeat."
        if not expandable
        else f"Take sizes that repeat (pad to a few lengths), largest first: up to {amount(cost)} less reserved."
    )
    return [
        Finding(
            kind="fragmentation",
            title=f"Free memory lies in pieces: {amount(cost)} were reserved on top",
            bytes=cost,
            blocks=(block,) if block >= 0 else (),
            site=frame_of(trace, row),
            label=trace.site_label(row),
            evidence=tuple(said),
            advice=advice,
            certain=True,
            saves=cost,
            moment=worst.event,
            window=(min(g.event for g in grown), max(g.event for g in grown) + 1),
            frame=row,
        )
    ]


def _in_pieces(trace: Trace) -> list[Growth]:
    """Each time memory was reserved although what had been freed before, put together, would have served.

    Segments of 20 MiB that serve 8 MiB blocks keep a rest of 4 MiB that never was in use: that is no fragmentation, and
    `Growth.free` is without it here.
    """
    grown = sorted(trace.growth_despite_room, key=lambda g: -g.free)[:_MOST_GROWTHS]
    blocks, segments = trace.blocks, trace.segments
    order = np.argsort(blocks["address"], kind="stable")
    address, size, born = (blocks[c][order] for c in ("address", "size", "alloc_event"))
    ends = address + size.astype(np.uint64)
    found = []
    for g in grown:
        cause = _maker(trace, g.event)
        alive = (segments["alloc_event"] < g.event) & (
            (segments["free_event"] < 0) | (segments["free_event"] >= g.event)
        )
        alive &= (segments["stream"] == blocks["stream"][cause]) & (segments["pool"] == blocks["pool"][cause])
        alive &= segments["kind"] == segments["kind"][segments["alloc_event"] == g.event].max(initial=0)
        fresh = 0
        for segment in segments[alive]:
            start, end = segment["address"], segment["address"] + np.uint64(segment["size"])
            lo, hi = np.searchsorted(address, [start, end])
            mine = (born[lo:hi] < g.event) & (born[lo:hi] >= segment["alloc_event"])
            used = max(ends[lo:hi][mine].max(initial=np.uint64(0)), start)
            fresh += int(end - min(used, end))  # in a file that contradicts itself a block may go past its segment
        if g.free - fresh >= g.request:
            found.append(g._replace(free=g.free - fresh))
    return found


def _pending(trace: Trace) -> list[Finding]:
    # The two events of an ordinary free stand next to each other; what waits, waits longer than that.
    asked, died = trace.blocks["free_requested_event"], trace.blocks["free_event"]
    ever = np.flatnonzero((asked >= 0) & ((died < 0) | (died - asked > 1)))
    change = np.zeros(trace.n_events + 2, np.int64)
    np.add.at(change, asked[ever] + 1, trace.blocks["size"][ever])
    ends = np.where(died[ever] < 0, trace.n_events, died[ever])
    np.subtract.at(change, ends + 1, trace.blocks["size"][ever])
    waiting = np.cumsum(change)[: trace.n_events + 1]
    m = int(waiting.argmax())
    size = int(waiting[m])
    if size <= 0 or size < _PENDING * trace.peak_active:
        return []
    late = np.intersect1d(ever, trace.pending_at(m))
    sums = sums_by_site(trace, late)
    row = next((site for site, _, _ in sums if site >= 0), -1)
    return [
        Finding(
            kind="pending_free",
            title=f"Up to {amount(size)} were freed but waited for another stream",
            bytes=size,
            blocks=ids(late),
            site=frame_of(trace, row),
            label=trace.site_label(row),
            evidence=(
                (
                    f"{many(len(late), 'block')} made at {name_of(trace, row)} waited at event {m:,}; over the "
                    f"recording {many(len(ever), 'block')} did."
                ),
                "record_stream() keeps a freed block from being used again until that stream has come past it.",
            ),
            advice=f"Let the side stream finish earlier (an event, wait_stream) before the tensor is dropped, or keep "
            f"fewer in flight: up to {amount(size)} less.",
            certain=True,
            saves=size,
            moment=m,
            window=(max(m - 1, 0), min(m + 1, trace.n_events)),
            lines=lines_of(trace, sums),
            frame=row,
        )
    ]


def _pools(trace: Trace) -> list[Finding]:
    """Private pools that hold much more than they use, at the end."""
    pools = trace.recording.pools
    found = []
    segments = trace.segments
    last = segments[segments["free_event"] < 0]
    lives = np.flatnonzero(trace.blocks["free_event"] < 0)
    for pool in np.unique(last["pool"]).tolist():
        if pool < 0 or pools[pool] == (0, 0):
            continue
        reserved = int(last["size"][last["pool"] == pool].sum())
        mine = lives[trace.blocks["pool"][lives] == pool]
        active = int(trace.blocks["size"][mine].sum())
        idle = reserved - active
        if reserved < _PENDING * trace.peak_reserved:
            continue
        graph = pools[pool][0] != 0
        what = "A CUDA graph's private pool" if graph else "A memory pool of its own"
        row = _first_row(trace, pool)
        found.append(
            Finding(
                kind="pool",
                title=f"{what} {pools[pool]} holds {amount(reserved)}, {amount(active)} of it in use",
                bytes=reserved,
                blocks=ids(mine),
                site=frame_of(trace, row),
                label=trace.site_label(row),
                evidence=(
                    (
                        f"{many(int((last['pool'] == pool).sum()), 'segment')} belong to it at the end; "
                        f"{amount(idle)} of them are in no block that Python holds."
                    ),
                    "Nothing outside the pool can use them, and empty_cache() has no effect while its owner lives."
                    + (" A replay writes there." if graph else ""),
                ),
                advice=f"{_POOL_ADVICE[graph]}: that gives up to {amount(reserved)} back.",
                certain=True,
                saves=reserved,
                moment=trace.n_events,
                frame=row,
            )
        )
    return found


def _first_row(trace: Trace, pool: int) -> int:
    blocks = np.flatnonzero((trace.blocks["pool"] == pool) & (trace.block_site >= 0))
    sums = sums_by_site(trace, blocks)
    return sums[0][0] if sums else -1


def _stranded(trace: Trace) -> list[Finding]:
    """Memory reserved for one stream while another stream's cache would have done."""
    events, blocks, segments = trace.events, trace.blocks, trace.segments
    if len(np.unique(segments["stream"])) < 2:
        return []
    worst = (0, -1, -1, 0)
    grow = np.flatnonzero(np.isin(events.action, [ACTION["segment_alloc"], ACTION["segment_map"]]))
    streams, row_of = np.unique(segments["stream"], return_inverse=True)
    held = np.zeros(len(streams), np.int64)
    np.maximum.at(held, row_of, segments["size"])
    for stream in streams[np.argsort(-held, kind="stable")[:_MOST_STREAMS]].tolist():
        free = _idle_curve(trace, stream)
        others = grow[(events.stream[grow] != stream) & (events.size[grow] <= free[grow])]
        if len(others):
            best = int(others[events.size[others].argmax()])
            size = int(min(events.size[best], free[best]))
            if size > worst[0]:
                worst = (size, best, stream, int(free[best]))
    size, event, stream, free_there = worst
    if event < 0 or size < _PENDING * trace.peak_reserved:
        return []
    block = _maker(trace, event)
    row = _site(trace, block)
    own = int(events.stream[event])
    mine = np.flatnonzero((blocks["stream"] == stream) & (blocks["alloc_event"] < event))
    sums = sums_by_site(trace, mine)
    return [
        Finding(
            kind="cache",
            title=f"{amount(free_there)} lay in the cache of another stream, where nobody else can use it",
            bytes=free_there,
            blocks=(block,) if block >= 0 else (),
            site=frame_of(trace, row),
            label=trace.site_label(row),
            evidence=(
                (
                    f"At event {event:,} {amount(int(events.size[event]))} were reserved for {_stream(trace, own)} "
                    f"while {_stream(trace, stream)} had {amount(free_there)} free."
                ),
                "A freed block goes back to the stream that it was allocated on, and serves that stream only.",
                *([f"{name_of(trace, sums[0][0])} allocated most there."] if sums else []),
            ),
            advice=f"Allocate on the stream that uses it later (make the tensor outside the stream's block): up to "
            f"{amount(size)} less reserved.",
            certain=True,
            saves=size,
            moment=event,
            window=(max(event - 1, 0), event + 1),
            frame=row,
        )
    ]


def _stream(trace: Trace, stream: int) -> str:
    if stream < 0:
        return "an unknown stream"
    raw = trace.recording.streams[stream]
    return "the default stream" if raw == 0 else f"stream {raw:#x}"


def _idle_curve(trace: Trace, stream: int) -> I64:
    """Free bytes of a stream's segments of the default pool before each event."""
    pools = trace.recording.pools
    curve = np.zeros(trace.n_events + 1, np.int64)
    default = [i for i, pool in enumerate(pools) if pool == (0, 0)] + [-1]
    for table, sign in ((trace.segments, 1), (trace.blocks, -1)):
        mine = table[(table["stream"] == stream) & np.isin(table["pool"], default)]
        born, died = mine["alloc_event"], mine["free_event"]
        curve[0] += sign * int(mine["size"][(born < 0) & (died != -2)].sum())
        np.add.at(curve, born[born >= 0] + 1, sign * mine["size"][born >= 0])
        np.add.at(curve, died[died >= 0] + 1, -sign * mine["size"][died >= 0])
    return np.cumsum(curve)


def _cache(trace: Trace) -> list[Finding]:
    """Reserved, in no use, and to be had back: at the end."""
    end = trace.fragmentation_at("end")
    idle = end.free - _idle_in_pools(trace)
    if idle <= 0 or idle < _IDLE * trace.peak_reserved:
        return []
    back = min(end.releasable, idle)
    said = [f"{amount(trace.active)} are in use, {amount(trace.reserved)} reserved; torch keeps the rest."]
    if back:
        pages = (trace.segments["kind"] == EXPANDABLE).any()
        said.append(f"{amount(back)} of it are in {'pages' if pages else 'segments'} that are wholly free.")
        advice = (
            f"Not a leak, and the next allocations use it. torch.cuda.empty_cache() gives {amount(back)} back, "
            "for another process's sake."
        )
    else:
        said.append("Every segment still holds a live block.")
        advice = "Not a leak, and the next allocations use it. empty_cache() will not help."
    return [
        Finding(
            kind="cache",
            title=f"{amount(idle)} are reserved and in no use at the end",
            bytes=idle,
            blocks=(),
            site=None,
            label="",
            evidence=tuple(said),
            advice=advice,
            certain=True,
            saves=back,
            moment=trace.n_events,
        )
    ]


def _idle_in_pools(trace: Trace) -> int:
    """Bytes of private pools that are in no block at the end: told with the pool, and of no use to others."""
    private = [i for i, pool in enumerate(trace.recording.pools) if pool != (0, 0)]
    sums = []
    for table in (trace.segments, trace.blocks):
        mine = np.isin(table["pool"], private) & ((table["free_event"] == -1) | (table["free_event"] >= trace.n_events))
        sums.append(int(table["size"][mine].sum()))
    return max(sums[0] - sums[1], 0)


def _outside(trace: Trace) -> list[Finding]:
    """Used on the device by others than torch's allocator."""
    m, outside = -1, 0
    free = trace.recording.facts.get("device_free")
    if trace.capacity is None:
        return []
    if trace.oom_moments:
        report = trace.out_of_memory()
        m, outside = report.moment, report.outside or 0
    elif isinstance(free, dict) and isinstance(free.get(str(trace.device)), int):
        m, outside = trace.n_events, trace.capacity - int(free[str(trace.device)]) - trace.reserved
    if outside < 0.02 * trace.capacity:
        return []
    return [
        Finding(
            kind="outside",
            title=f"{amount(outside)} of the device are used outside torch's allocator",
            bytes=outside,
            blocks=(),
            site=None,
            label="",
            evidence=(
                (
                    f"The device has {amount(trace.capacity)}; of what is used, torch reserved "
                    f"{amount(int(trace.curve('reserved')[m]))}."
                ),
                "The CUDA context, libraries (NCCL, graphs' executables) and other processes are there.",
            ),
            advice="nvidia-smi names the processes; empty_cache() will not help here.",
            certain=True,
            moment=m,
        )
    ]


def out_of_memory(trace: Trace) -> list[Finding]:
    """The last allocation that failed for good."""
    if not trace.oom_moments:
        return []
    report = trace.out_of_memory()
    top = next((r for r in report.by_site.rows if r.frame >= 0), None)
    live = trace.live_at(report.moment)
    mine = live[trace.block_site[live] == top.frame] if top else live
    short = report.requested
    fits = report.free.too_small >= report.requested
    if report.limited:
        advice = f"Raise the limit, or free {amount(short)}"
    elif fits and not report.expandable:
        advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which would have served it from the holes"
    else:
        advice = f"Free at least {amount(max(short - report.device_free - report.free.usable, 0) or short)}"
    where = f": start at {name_of(trace, top.frame)}, which holds {amount(top.bytes)}" if top else ""
    waiting = activations_at(trace, report.moment)
    held = int(trace.blocks["size"][waiting].sum())
    saving = [f"{amount(held)} are activations. {less(trace, waiting)}"] if 4 * held >= report.allocated > 0 else []
    return [
        Finding(
            kind="oom",
            title=f"Out of memory: {amount(report.requested)} were asked for"
            + (f"; {name_of(trace, top.frame)} filled most" if top else ""),
            bytes=report.requested,
            blocks=ids(mine),
            site=frame_of(trace, top.frame if top else -1),
            label=top.label if top else "",
            evidence=(*explain(report), *saving),
            advice=f"{advice}{where}.",
            certain=True,
            saves=top.bytes if top else 0,
            moment=report.moment,
            window=(max(report.moment - 1, 0), min(report.moment + 1, trace.n_events)),
            lines=tuple((r.label, r.bytes) for r in report.by_site.rows[:5]),
            frame=top.frame if top else -1,
        )
    ]
