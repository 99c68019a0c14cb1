"""Chrome traces and finished profiles: against the profiler's own totals, and by hand."""

import gzip
import json

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import memwidget as mw
from memwidget.read import archive, load_recording
from recordings import difference

BASE = 1_700_000_000_000_000_000


def train(steps=2):
    """A small training loop under the profiler; what it returns is finished."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    given = torch.randn(32, 64)

    def step():
        with record_function("the forward"):
            loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as prof:
        for number in range(steps):
            with record_function(f"ProfilerStep#{number}"):
                step()
    return prof


@pytest.fixture(scope="module")
def prof():
    return train()


@pytest.fixture(scope="module")
def live(prof):
    return mw.load(prof)  # before the export, which can be made once


@pytest.fixture(scope="module")
def path(prof, live, tmp_path_factory):
    assert live.n_events
    path = tmp_path_factory.mktemp("chrome") / "run.json"
    prof.export_chrome_trace(str(path))
    return path


@pytest.fixture(scope="module")
def memory(path):
    found = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "[memory]"]
    return sorted(found, key=lambda event: event["ts"])


def test_the_curve_is_the_profilers_own_total(path, memory):
    trace = mw.load(path)
    assert (trace.name, trace.device_type, trace.devices) == ("run", "cpu", (0,))
    # Event by event as the profiler's own total, which counts all profiles of the process; ours begins with this one.
    curve, totals = trace.curve("allocated"), [event["args"]["Total Allocated"] for event in memory]
    assert trace.n_events == len(memory)
    assert np.diff(curve[1:]).tolist() == np.diff(totals).tolist()
    live, before = set(), 0
    for event in memory:
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            live.add(address)
        elif address in live:
            live.remove(address)
        else:
            before -= size
    assert curve[0] == before
    assert any("before the profile" in note for note in trace.notes)


def test_a_finished_profile_equals_the_trace_it_exports(path, live):
    assert difference(live.recording, load_recording(path), skip={"name", "labels", "notes"}) == []


def test_categories_of_a_finished_profile_are_torchs(prof, live):
    found = prof._memory_profile()
    expected = {}
    for time, action, (key, version), _ in found.timeline:
        category = found._categories.get(key, version)
        if action.name == "CREATE" and category is not None and version == 0:
            expected[key.storage.ptr, time // 1000] = category.name.lower()
    rows = {(int(b["address"]), int(b["alloc_time_us"])): live.categories[b["category"]] for b in live.blocks}
    assert len(expected) > 50
    assert {place: rows[place] for place in expected} == expected
    assert {"gradient", "activation", "temporary"} <= set(live.by_category())


def test_operators_are_those_of_key_averages(prof, live):
    rows = {row.label: row for row in live.by_operator().rows}
    expected = {
        event.key: (event.count, event.cpu_memory_usage, event.self_cpu_memory_usage)
        for event in prof.key_averages()
        if event.key.startswith("aten::") and (event.cpu_memory_usage or event.self_cpu_memory_usage)
    }
    assert len(expected) > 10
    assert {name: (rows[name].calls, rows[name].bytes, rows[name].self_bytes) for name in expected} == expected
    assert list(live.by_operator().values()) == sorted(live.by_operator().values(), reverse=True)


def test_lines_operators_and_ranges(live):
    sizes = [
        (live.blocks["size"][block], [frame.name for frame in live.stack(block)]) for block in range(live.n_blocks)
    ]
    hidden = [names for size, names in sizes if size == 32 * 128 * 4 and "aten::addmm" in names]
    assert len(hidden) == 2
    for names in hidden:
        # Operators inside, Python around them, innermost first.
        assert names.index("aten::addmm") < names.index("aten::linear") < names.index("forward") < names.index("step")
        assert "nn.Module: Linear_0" in names
        assert not any("built-in" in name for name in names)
    sites = [live.site(block) for block in range(live.n_blocks)]
    assert {site.filename.rsplit("/", 1)[-1] for site in sites if site} == {"test_profiler_chrome.py"}
    assert {site.name for site in sites if site} >= {"step"}
    names = [(band.kind, band.name) for band in live.bands]
    assert names.count(("annotation", "the forward")) == 2
    assert [name for kind, name in names if kind == "step"] == ["ProfilerStep#0", "ProfilerStep#1"]
    forward = next(band for band in live.bands if band.name == "the forward")
    inside = live.blocks[(live.blocks["alloc_event"] >= forward.lo) & (live.blocks["alloc_event"] < forward.hi)]
    assert 32 * 128 * 4 in inside["size"]


def test_archive_keeps_it(live):
    assert difference(archive.load(archive.to_bytes(live.recording)), live.recording) == []


def test_without_stacks_and_without_memory(tmp_path):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as bare:
        kept = torch.ones(1000)
    trace = mw.load(bare)
    assert 4000 in trace.blocks["size"]
    assert "aten::ones" in trace.by_operator()
    assert any("with_stack=True" in note for note in trace.notes)
    with profile(activities=[ProfilerActivity.CPU]) as none:
        kept = kept + 1
    with pytest.raises(mw.SnapshotError, match="profile_memory=True"):
        mw.load(none)
    none.export_chrome_trace(str(tmp_path / "none.json"))
    with pytest.raises(mw.SnapshotError, match="profile_memory=True"):
        mw.load(tmp_path / "none.json")
    running = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with pytest.raises(mw.SnapshotError, match="not finished"):
        mw.load(running)


# -- by hand: what no CPU run shows ----------------------------------------------------------------------------------


def memory_event(at, size, address, device=(1, 0), thread=1, **totals):
    kind, ordinal = device
    args = {"Device Type": kind, "Device Id": ordinal, "Addr": address, "Bytes": size}
    args |= {name.replace("_", " ").title(): value for name, value in totals.items()}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 9, "tid": thread, "ts": at, "args": args}


def span(name, start, end, kind="cpu_op", thread=1):
    return {"ph": "X", "cat": kind, "name": name, "pid": 9, "tid": thread, "ts": start, "dur": end - start}


def chrome(*events, **more):
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": list(events), **more}).encode()


def test_several_devices_and_kinds():
    content = chrome(
        memory_event(1, 512, 0xA000),
        memory_event(2, 1024, 0xA000, device=(1, 1)),
        memory_event(3, 64, 0xA000, device=(0, -1)),
        memory_event(4, -1024, 0xA000, device=(1, 1)),
        memory_event(5, 4096, 0xF, device=(9, 0)),
    )
    trace = mw.load(content)
    assert (trace.device_type, trace.devices, trace.device) == ("cuda", (0, 1), 1)
    assert trace.curve("allocated").tolist() == [0, 1024, 0]
    assert trace.for_device(0).curve("allocated").tolist() == [0, 512]
    assert mw.load(content, device="cuda:0").allocated == 512
    host = mw.load(content, device="cpu")
    assert (host.device_type, host.allocated) == ("cpu", 64)
    assert any('device="cpu"' in note for note in trace.notes)
    assert any("not known here" in note for note in trace.notes)
    with pytest.raises(mw.SnapshotError, match="no memory events of xpu"):
        mw.load(content, device="xpu")
    with pytest.raises(ValueError, match="cuda:1"):
        mw.load(content, device="gpu")


def test_what_existed_before_and_what_was_reserved():
    mib = 1 << 20
    trace = mw.load(
        chrome(
            memory_event(10, 3 * mib, 0xA00000, total_allocated=13 * mib, total_reserved=20 * mib),
            memory_event(20, -4 * mib, 0x100000, total_allocated=9 * mib, total_reserved=20 * mib),
            memory_event(30, 5 * mib, 0xE00000, total_allocated=14 * mib, total_reserved=40 * mib),
        )
    )
    # 10 MiB were there: 4 are freed here, of the other 6 nothing more is known.
    assert (trace.curve("allocated") // mib).tolist() == [4, 10, 13, 9, 14]
    assert (trace.curve("reserved") // mib).tolist() == [20, 20, 20, 20, 40]
    assert trace.by_category("end") == {"unknown": 8 * mib, "preexisting": 6 * mib}
    assert trace.blocks["size"].tolist() == [4 * mib, 6 * mib, 3 * mib, 5 * mib]  # whole blocks: nothing is rounded
    assert any("existed before the first event" in note for note in trace.notes)


def test_sizes_are_whole_blocks_and_times_are_absolute():
    trace = mw.load(chrome(memory_event(1.5, 700, 0xA000), memory_event(7.25, -700, 0xA000)))
    assert trace.peak_allocated == 700
    assert trace.event_times_us.tolist() == [BASE // 1000 + 1, BASE // 1000 + 7]


def test_what_was_open_is_the_stack_of_its_own_thread():
    trace = mw.load(
        chrome(
            span("main.py(3): work", 0, 100, "python_function"),
            span("aten::outer", 10, 50),
            span("aten::inner", 20, 30),
            span("aten::elsewhere", 0, 1000, thread=2),
            span("aten::later", 51, 60),
            span("<built-in method x of y at 0x1>", 20, 30, "python_function"),
            # A named range begins inside the function that opens it, and outlives that.
            span("profiler.py(7): __enter__", 61, 63, "python_function"),
            span("mine", 62, 90, "user_annotation"),
            span("aten::last", 70, 80),
            memory_event(25, 1, 0x1),
            memory_event(40, 2, 0x2),
            memory_event(55, 4, 0x3),
            memory_event(75, 8, 0x4),
            memory_event(500, 16, 0x5, thread=2),
            memory_event(500, 32, 0x6, thread=3),
        )
    )
    stacks = {int(b["size"]): [f.name for f in trace.stack(i)] for i, b in enumerate(trace.blocks)}
    assert stacks == {
        1: ["aten::inner", "aten::outer", "work"],
        2: ["aten::outer", "work"],
        4: ["aten::later", "work"],
        8: ["aten::last", "work"],
        16: ["aten::elsewhere"],
        32: [],
    }
    assert trace.site_label(int(trace.block_site[0])) == "main.py:3 in work"
    rows = {r.label: (r.calls, r.bytes, r.self_bytes, r.allocations) for r in trace.by_operator().rows}
    assert rows == {
        "aten::outer": (1, 3, 2, 2),
        "aten::inner": (1, 1, 1, 1),
        "aten::later": (1, 4, 4, 1),
        "mine": (1, 8, 0, 1),
        "aten::last": (1, 8, 8, 1),
        "aten::elsewhere": (1, 16, 16, 1),
    }
    assert [(band.name, band.lo, band.hi) for band in trace.bands] == [("mine", 3, 4)]


def test_an_array_alone_compressed_and_text_beyond_ascii(tmp_path):
    text = "größe \u20ac"
    events = [memory_event(1, 512, 1), span(f"main.py(1): {text}", 0, 9, "python_function"), {"ph": "M"}]
    for ensure_ascii in (True, False):
        content = json.dumps(events, ensure_ascii=ensure_ascii).encode()
        path = tmp_path / "x.pt.trace.json.gz"
        path.write_bytes(gzip.compress(content))
        trace = mw.load(path)
        assert trace.stack(0)[0].name == text
        assert trace.name == "x.pt.trace"


def test_an_allocation_longer_than_a_window_apart():
    """Elements that lie across the edges of what is parsed at once."""
    padding = [{"ph": "M", "args": {"x": "y" * (i % 97)}} for i in range(90_000)]
    events = [memory_event(1, 512, 1), *padding, memory_event(2, -512, 1), *padding, memory_event(3, 64, 2)]
    trace = mw.load(chrome(*events))
    assert trace.curve("allocated").tolist() == [0, 512, 0, 64]


def test_progress_is_told_from_50_mb(monkeypatch):
    from memwidget import read

    monkeypatch.setattr(read, "PROGRESS_FROM", 1000)
    monkeypatch.setattr("memwidget.read.jsonstream.WINDOW", 4096)
    told = []
    events = [memory_event(i, 512, i) for i in range(200)]
    load_recording(chrome(*events), progress=lambda fraction, _: told.append(fraction))
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] == 1.0
