"""A second, slow and obvious caching allocator: what torch's does, block by block, with its state at every moment.

The tests' independent truth. It is written forward from the rules in c10/cuda/CUDACachingAllocator.cpp (best fit,
split, merge), while memwidget infers sizes backward from a history; nothing is shared but the rules themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KiB, MiB = 1 << 10, 1 << 20


@dataclass(eq=False)
class Block:
    """A piece of a segment."""

    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Segment:
    """Memory taken from the device at once, cut into blocks by address."""

    address: int
    size: int
    stream: int
    small: bool
    blocks: list[Block]


class ToyAllocator:
    """One device. `events` is the history; `counters[m]` and `maps[m]` are what holds after the first m events."""

    def __init__(self, settings: dict[str, Any] | None = None, base: int = 0x7F0000000000) -> None:
        self.settings = settings or {}
        self.segments: list[Segment] = []
        self.events: list[dict[str, Any]] = []
        self.counters: list[dict[str, int]] = [self._count()]
        self.maps: list[list[Any]] = [self._map()]
        self._next = base
        self._clock = 1_700_000_000_000_000

    # -- what a program does -----------------------------------------------------------------------------------------

    def alloc(
        self, size: int, stream: int = 0, frames: list[dict[str, Any]] | None = None, reuse: bool = True
    ) -> Block:
        """Hand out a block: the best fit among free ones of the stream and pool, else from a new segment."""
        wanted = self._round(size)
        small = wanted <= MiB
        free = [
            (b.size, b.address, s, b)
            for s in self.segments
            if s.small == small and s.stream == stream
            for b in s.blocks
            if b.state == "inactive" and b.size >= wanted and self._may_use(wanted, b.size)
        ]
        if free and reuse:
            _, _, segment, block = min(free, key=lambda f: f[:2])
        else:
            total = 2 * MiB if small else 20 * MiB if wanted < 10 * MiB else -(-wanted // (2 * MiB)) * 2 * MiB
            segment = Segment(self._next, total, stream, small, [Block(self._next, total)])
            self._next += total + 2 * MiB
            self.segments.append(segment)
            block = segment.blocks[0]
            self._event("segment_alloc", segment.address, total, stream, frames)
        rest = block.size - wanted
        if (
            rest >= 512
            if small or self.settings.get("expandable_segments")
            else rest > MiB and wanted < self._split_limit()
        ):
            at = segment.blocks.index(block)
            segment.blocks.insert(at + 1, Block(block.address + wanted, rest))
            block.size = wanted
        block.state, block.requested, block.frames = "active_allocated", size, frames or []
        self._event("alloc", block.address, size, stream, frames)
        return block

    def request_free(self, block: Block) -> None:
        """The caller gives the block back while another stream still uses it."""
        block.state = "active_pending_free"
        self._event("free_requested", block.address, block.requested, self._of(block).stream, block.frames)

    def complete_free(self, block: Block) -> None:
        """Nothing uses the block any more: merge it with free neighbours."""
        segment = self._of(block)
        block.state = "inactive"
        address, requested = block.address, block.requested
        merged: list[Block] = []
        for b in segment.blocks:
            if merged and b.state == merged[-1].state == "inactive":
                merged[-1].size += b.size
            else:
                merged.append(b)
        segment.blocks = merged
        self._event("free_completed", address, requested, segment.stream, block.frames)

    def free(self, block: Block) -> None:
        """The usual case: both at once."""
        self.request_free(block)
        self.complete_free(block)

    def empty_cache(self) -> None:
        """Give segments that are wholly free back to the device."""
        for segment in [s for s in self.segments if len(s.blocks) == 1 and s.blocks[0].state == "inactive"]:
            self.segments.remove(segment)
            self._event("segment_free", segment.address, segment.size, segment.stream, None)

    def oom(self, size: int, device_free: int) -> None:
        """An allocation fails for good."""
        self._clock += 7
        self.events.append(
            {
                "action": "oom",
                "device_free": device_free,
                "size": self._round(size),
                "stream": 0,
                "time_us": self._clock,
            }
        )
        self.counters.append(self._count())
        self.maps.append(self._map())

    # -- what torch would write --------------------------------------------------------------------------------------

    def snapshot(self, keep_last: int | None = None) -> dict[str, Any]:
        """torch.cuda.memory._snapshot() of a recording that kept only the last events."""
        events = self.events if keep_last is None else self.events[len(self.events) - keep_last :]
        segments = []
        for s in sorted(self.segments, key=lambda s: s.address):
            taken = [b for b in s.blocks if b.state != "inactive"]
            segments.append(
                {
                    "device": 0,
                    "address": s.address,
                    "total_size": s.size,
                    "allocated_size": sum(b.size for b in taken if b.state == "active_allocated"),
                    "active_size": sum(b.size for b in taken),
                    "requested_size": sum(b.requested for b in taken),
                    "stream": s.stream,
                    "segment_type": "small" if s.small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [
                        {
                            "address": b.address,
                            "size": b.size,
                            "requested_size": b.requested,
                            "state": b.state,
                            "frames": b.frames,
                        }
                        for b in s.blocks
                    ],
                }
            )
        return {
            "segments": segments,
            "device_traces": [[dict(e) for e in events]],
            "allocator_settings": dict(self.settings),
            "external_annotations": [],
        }

    # -- rules -------------------------------------------------------------------------------------------------------

    def _round(self, size: int) -> int:
        divisions = self.settings.get("roundup_power2_divisions", {})
        if size >= 512 and divisions:
            d = divisions[str(1 << min(max(size.bit_length() - 1 - 20, 0), 15))]
            if d > 1 and size > 512 * d:
                step = (1 << (size.bit_length() - 1)) // d
                return -(-size // step) * step
        return -(-max(size, 1) // 512) * 512

    def _split_limit(self) -> int:
        limit = int(self.settings.get("max_split_size", -1))
        return limit if limit > 0 else 1 << 62

    def _may_use(self, wanted: int, size: int) -> bool:
        """Blocks past the split limit serve only requests past it (get_free_block)."""
        limit = self._split_limit()
        if wanted < limit:
            return size < limit
        return size < wanted + 20 * MiB

    def _of(self, block: Block) -> Segment:
        return next(s for s in self.segments if block in s.blocks)

    def _event(self, action: str, address: int, size: int, stream: int, frames: list[dict[str, Any]] | None) -> None:
        self._clock += 7
        event: dict[str, Any] = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": self._clock,
        }
        if frames is not None:
            event["frames"] = frames
        self.events.append(event)
        self.counters.append(self._count())
        self.maps.append(self._map())

    def _map(self) -> list[Any]:
        """Every segment and what is in it: (address, size, stream, [(address, size, requested, state), ...])."""
        return [
            (
                s.address,
                s.size,
                s.stream,
                [(b.address, b.size, 0 if b.state == "inactive" else b.requested, b.state) for b in s.blocks],
            )
            for s in sorted(self.segments, key=lambda s: s.address)
        ]

    def _count(self) -> dict[str, int]:
        blocks = [b for s in self.segments for b in s.blocks]
        active = [b for b in blocks if b.state != "inactive"]
        return {
            "allocated": sum(b.size for b in active if b.state == "active_allocated"),
            "active": sum(b.size for b in active),
            "requested": sum(b.requested for b in active),
            "reserved": sum(s.size for s in self.segments),
        }
