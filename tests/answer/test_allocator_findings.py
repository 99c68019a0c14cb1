"""What the allocator makes of it, on snapshots from a few readable lines; the numbers are in the lines."""

import pytest

from memwidget.read import load_recording
from memwidget.trace.trace import Trace
from text_snapshot import snapshot

MiB = 1 << 20


def findings(text, kind=None, settings=None):
    found = Trace(load_recording(snapshot(text, settings))).findings()
    return [f for f in found if kind is None or f.kind == kind]


def lines(*parts):
    return "\n".join(parts)


def test_a_segment_cut_into_pieces():
    text = lines(
        "alloc a 1024MiB @ cut.py:1 main",
        "free a",
        *(f"alloc b{i} 40MiB @ cut.py:2 main" for i in range(24)),
        *(f"free b{i}" for i in range(1, 24, 2)),
        "alloc c 512MiB @ cut.py:4 main",
    )
    (f,) = findings(text, "fragmentation")
    assert f.site.line == 4
    assert f.bytes == 512 * MiB  # 1536 reserved, at most 1024 in use
    assert "544 MiB that had been in use lay free" in " ".join(f.evidence)
    assert "largest hole was 104 MiB" in " ".join(f.evidence)  # the last 40 and the segment's rest
    assert "expandable_segments" in f.advice


def test_room_at_the_peak_alone_is_no_fragmentation():
    # A third of the memory is free at the peak, and nothing was reserved in vain.
    text = lines(
        "alloc a 300MiB @ t.py:1 main",
        "alloc b 100MiB @ t.py:2 main",
        "free a",
        "alloc c 200MiB @ t.py:3 main",
        "free c",
        "alloc d 400MiB @ t.py:4 main",
    )
    assert findings(text, "fragmentation") == []


def test_the_rest_of_a_segment_that_was_never_used_is_no_fragmentation():
    # Two blocks of 8 MiB fit into a segment of 20 MiB: a fifth of it stays free.
    text = lines(*(f"alloc a{i} 8MiB @ rest.py:{i} main" for i in range(20)))
    assert findings(text, "fragmentation") == []


def test_a_cache_of_another_stream():
    text = lines("alloc x 512MiB stream=1 @ s.py:1 side", "free x", "alloc y 512MiB @ s.py:2 main")
    stranded = [f for f in findings(text, "cache") if "another stream" in f.title]
    assert [(f.bytes, f.site.line) for f in stranded] == [(512 * MiB, 2)]
    # On one stream it is used again.
    assert not any("another" in f.title for f in findings(text.replace(" stream=1", ""), "cache"))


def test_frees_that_wait():
    text = lines(
        *(f"alloc a{i} 4MiB stream=1 @ w.py:1 main\nrequest a{i}" for i in range(10)),
        *(f"complete a{i}" for i in range(10)),
        "alloc z 4MiB @ w.py:3 main",
    )
    (f,) = findings(text, "pending_free")
    assert (f.bytes, len(f.blocks), f.site.line) == (40 * MiB, 10, 1)
    # Asked for and done in one go: nothing waits.
    plain = lines(*(f"alloc a{i} 4MiB @ w.py:1 main\nfree a{i}" for i in range(10)))
    assert findings(plain, "pending_free") == []


def test_cache_that_can_be_had_back_and_cache_that_cannot():
    (f,) = findings(lines("alloc a 200MiB @ c.py:1 main", "free a"), "cache")
    assert (f.bytes, f.saves) == (200 * MiB, 200 * MiB)
    assert "empty_cache() gives 200 MiB back" in f.advice
    pinned = lines("alloc a 100MiB @ c.py:1 main", "free a", "alloc b 30MiB @ c.py:2 main")
    (f,) = findings(pinned, "cache")
    assert (f.bytes, f.saves) == (70 * MiB, 0)
    assert "will not help" in f.advice


def test_out_of_memory_in_pieces_and_for_want_of_memory():
    pieces = lines(*(f"alloc x{i} 5MiB @ o.py:1 fill" for i in range(8)), "free x0", "free x2", "free x5")
    (f,) = findings(pieces + "\noom 11MiB device_free=1MiB", "oom")
    assert "expandable_segments" in f.advice
    assert f.site.line == 1
    full = lines(*(f"alloc x{i} 20MiB @ o.py:1 fill" for i in range(8)))
    (f,) = findings(full + "\noom 50MiB device_free=1MiB", "oom")
    assert f.bytes == 50 * MiB
    assert "Free at least 49.0 MiB" in f.advice
    assert f.lines[0] == ("o.py:1 in fill", 160 * MiB)


def test_used_outside_torch_is_told_where_the_capacity_is_known():
    text = lines("alloc a 100MiB @ x.py:1 main", "oom 500MiB device_free=300MiB")
    source = snapshot(text)
    known = Trace(load_recording(source), capacity=1000 * MiB).findings()
    assert [f.bytes for f in known if f.kind == "outside"] == [600 * MiB]
    assert not [f for f in Trace(load_recording(source)).findings() if f.kind == "outside"]


def test_memory_from_before_the_history():
    text = lines("alloc old 100MiB @ b.py:1 main", *(f"alloc a{i} 10MiB @ b.py:2 main\nfree a{i}" for i in range(4)))
    late = Trace(load_recording(snapshot(text, keep_last=12))).findings()
    (f,) = [f for f in late if f.kind == "baseline"]
    assert (f.bytes, f.moment) == (100 * MiB, 0)


def test_the_new_model_is_made_while_the_old_one_is_there():
    text = lines(
        *(f"alloc a{i} 64MiB @ cell.py:1 build" for i in range(4)),
        *(f"alloc b{i} 64MiB @ cell.py:1 build" for i in range(4)),
        *(f"free a{i}" for i in range(4)),
    )
    spike, *others = findings(text, "spike")
    assert not others
    assert (spike.bytes, spike.site.line, spike.saves) == (256 * MiB, 1, 256 * MiB)
    assert "old" in spike.title
    assert findings(text, "growth") == []


def test_outputs_kept_until_the_next_validation_are_bounded():
    def validate(n):
        clear = [f"free v{n - 1}_{i}" for i in range(20)] if n else []
        return [*clear, *(f"alloc v{n}_{i} 8MiB @ val.py:5 validate <- main.py:2 main" for i in range(20))]

    def train():
        return ["alloc t 4MiB @ fit.py:9 train <- main.py:3 main", "free t"] * 30

    once = findings(lines(*validate(0), *train()))
    assert [f.kind for f in once if f.kind in {"growth", "held"}] == ["held"]
    (held,) = [f for f in once if f.kind == "held"]
    assert (held.bytes, held.site.line) == (160 * MiB, 5)
    often = findings(lines(*(part for n in range(5) for part in (*validate(n), *train()))))
    assert [f.kind for f in often if f.kind in {"growth", "held"}] == ["held"]


@pytest.mark.parametrize("turns", [8, 20])
def test_what_goes_all_at_once_after_the_loop_may_be_cycles(turns):
    text = lines(*(f"alloc g{i} 100MiB @ cycle.py:3 main" for i in range(turns)), *(f"free g{i}" for i in range(turns)))
    (growth,) = findings(text, "growth")
    assert growth.bytes_per_step == 100 * MiB
    assert "cycles" in " ".join(growth.evidence)


def test_a_list_that_is_gathered_and_used_does_not_grow():
    text = lines(
        *(f"alloc g{i} 10MiB @ cat.py:3 main" for i in range(12)),
        "alloc all 120MiB @ cat.py:4 main",
        *(f"free g{i}" for i in range(12)),
    )
    assert findings(text, "growth") == []


@pytest.mark.parametrize("every", [1, 5])
def test_one_small_block_a_step_is_growth_and_small(every):
    steps = [
        f"alloc x{i} 8MiB @ loop.py:3 main\nalloc y{i} 8MiB @ loop.py:4 main\nfree x{i}\nfree y{i}"
        + (f"\nalloc keep{i} 4 @ loop.py:5 main" if i % every == 0 else "")
        for i in range(40)
    ]
    (growth,) = findings(lines(*steps), "growth")
    assert growth.bytes_per_step == pytest.approx(512 / every, rel=0.25)
    assert growth.site.line == 5


@pytest.mark.parametrize("keep", [None, 220, 60, 25])
def test_a_full_cache_does_not_grow_though_the_history_begins_in_its_midst(keep):
    steps = [
        f"alloc x{i} 4MiB @ loop.py:3 main\nalloc c{i} 8MiB @ loop.py:4 main\nfree x{i}"
        + (f"\nfree c{i - 16}" if i >= 16 else "")
        for i in range(60)
    ]
    found = Trace(load_recording(snapshot(lines(*steps), keep_last=keep))).findings()
    assert [f for f in found if f.kind == "growth"] == []


def test_a_cache_that_fills_is_no_growth():
    steps = [
        f"alloc x{i} 8MiB @ loop.py:3 main\nfree x{i}" + (f"\nalloc c{i} 2MiB @ loop.py:4 main" if i < 6 else "")
        for i in range(40)
    ]
    assert findings(lines(*steps), "growth") == []


def test_layers_of_one_forward_pass_are_no_steps():
    module = "/usr/lib/python3/site-packages/torch/nn/modules/module.py:1700 _call_impl"
    text = lines(
        *(f"alloc w{i} 8MiB @ net.py:7 forward <- {module} <- main.py:3 main" for i in range(16)),
        *(f"alloc o{i} 1MiB @ net.py:7 forward <- {module} <- main.py:3 main\nfree o{i}" for i in range(8)),
    )
    assert findings(text, "growth") == []


# -- expandable segments and private pools, by address ----------------------------------------------------------------


def by_address(*steps, segments, settings=None):
    """Trace of ("alloc" | "free" | "segment_map", offset, bytes); segments: (offset, bytes, pool, expandable).

    Offsets and bytes in MiB; what is live at the end is worked out from the steps.
    """
    base, events, live = 1 << 40, [], {}
    for action, offset, size in steps:
        for name in ("free_requested", "free_completed") if action == "free" else (action,):
            events.append(
                {
                    "action": name,
                    "addr": base + offset * MiB,
                    "size": size * MiB,
                    "stream": 0,
                    "time_us": len(events),
                    "frames": [{"filename": "a.py", "line": 1, "name": "main"}],
                }
            )
        if action == "alloc":
            live[offset] = size
        elif action == "free":
            del live[offset]
    found = []
    for start, total, pool, is_expandable in segments:
        inside = sorted(offset for offset in live if start <= offset < start + total)
        blocks, at = [], start
        for offset in [*inside, start + total]:
            rows = [("inactive", at, offset - at)] if offset > at else []
            rows += [("active_allocated", offset, live[offset])] if offset in live else []
            blocks += [
                {"address": base + o * MiB, "size": n * MiB, "requested_size": n * MiB, "state": state, "frames": []}
                for state, o, n in rows
            ]
            at = offset + live.get(offset, 0)
        active = sum(live[offset] for offset in inside) * MiB
        found.append(
            {
                "device": 0,
                "address": base + start * MiB,
                "total_size": total * MiB,
                "allocated_size": active,
                "active_size": active,
                "requested_size": active,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": pool,
                "is_expandable": is_expandable,
                "frames": [],
                "blocks": blocks,
            }
        )
    return Trace(
        load_recording({"segments": found, "device_traces": [events], "allocator_settings": dict(settings or {})})
    )


def pieces(size, n):
    """Put n blocks of a size into what one of 1024 MiB had mapped, and let every other go."""
    return [
        ("segment_map", 0, 1040),
        ("alloc", 0, 1024),
        ("free", 0, 1024),
        *(("alloc", size * i, size) for i in range(n)),
        *(("free", size * i, size) for i in range(1, n, 2)),
    ]


EXPANDABLE = {"expandable_segments": True}


def test_free_pages_of_an_expandable_segment_are_no_fragmentation():
    # Holes of 40 MiB are two pages of 20 MiB each: 512 MiB behind them map 400 on top, and the holes can be given back.
    steps = [*pieces(40, 24), ("segment_map", 1040, 400), ("alloc", 920, 512)]
    trace = by_address(*steps, segments=[(0, 1440, (0, 0), True)], settings=EXPANDABLE)
    found = trace.findings()
    assert [f for f in found if f.kind == "fragmentation"] == []
    (cache,) = [f for f in found if f.kind == "cache"]
    # 11 holes of 40 MiB; of what is free at the end, 920 + 512 = 1432 to 1440, there is no whole page.
    assert (cache.bytes, cache.saves) == ((11 * 40 + 8) * MiB, 11 * 40 * MiB)


def test_holes_smaller_than_a_page_are_fragmentation_there_too():
    steps = [*pieces(16, 64), ("segment_map", 1040, 300), ("alloc", 1024, 300)]
    trace = by_address(*steps, segments=[(0, 1340, (0, 0), True)], settings=EXPANDABLE)
    (f,) = [f for f in trace.findings() if f.kind == "fragmentation"]
    assert f.bytes == 300 * MiB  # none of the 32 holes of 16 MiB has a whole page of 20
    assert "expandable" not in f.advice
    assert "pad" in f.advice


def test_what_a_private_pool_keeps_free_is_no_cache():
    segments = [(0, 400, (1, 0), False), (500, 200, (0, 0), False)]
    steps = [
        *(step for o, n in ((0, 400), (500, 200)) for step in (("segment_alloc", o, n), ("alloc", o, n))),
        ("free", 0, 400),
        ("free", 500, 200),
    ]
    trace = by_address(*steps, segments=segments)
    (cache,) = [f for f in trace.findings() if f.kind == "cache"]
    assert (cache.bytes, cache.saves) == (200 * MiB, 200 * MiB)
    assert "gives 200 MiB back" in cache.advice
    (pool,) = [f for f in trace.findings() if f.kind == "pool"]
    assert pool.bytes == 400 * MiB
    assert trace.fragmentation_at("end").releasable == 200 * MiB
