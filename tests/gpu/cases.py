"""Programs that use CUDA memory in the ways people do, each recorded by memwidget itself in a process of its own.

``python cases.py NAME`` runs one and prints one line of JSON: torch's own counters, the trace's figures beside them,
and what else the case asserts. Fresh processes, because allocator settings are read once and a leak in one case must
not colour the next.
"""

import gc
import json
import os
import sys
import threading
import weakref
from pathlib import Path

import torch
from torch import nn

import memwidget as mw
from memwidget.answer.oom import explain
from memwidget.record import RecorderError
from memwidget.recording import ACTION

CASES = {}
HERE = Path(__file__).name
MIB = 1 << 20
#: The trace's figure -> torch's counter.
COUNTERS = {
    "peak_allocated": "allocated_bytes.all.peak",
    "peak_active": "active_bytes.all.peak",
    "peak_reserved": "reserved_bytes.all.peak",
    "peak_requested": "requested_bytes.all.peak",
    "allocated": "allocated_bytes.all.current",
    "active": "active_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
}


def case(function=None, *, settings="", env=None, **options):
    """Register a case: `settings` for PYTORCH_CUDA_ALLOC_CONF, further variables, memtrace's options."""

    def register(function):
        variables = {**({"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}), **(env or {})}
        CASES[function.__name__] = (function, variables, options)
        return function

    return register if function is None else register(function)


def counters():
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {figure: stats[counter] for figure, counter in COUNTERS.items()}


def floats(mib):
    return torch.empty(int(mib * MIB) // 4, device="cuda")


def history_is_on():
    return torch._C._cuda_isHistoryEnabled()


def transformer_step(width=512, steps=5, scope=None):
    model = nn.Transformer(d_model=width, nhead=2, num_encoder_layers=2, num_decoder_layers=2).cuda().train()
    source, target = torch.randn(1, 1024, width, device="cuda"), torch.rand(1, 1024, width, device="cuda")
    labels = torch.rand_like(model(source, target)).detach()
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())
    for _ in range(steps):
        with scope("forward"):
            loss = loss_of(model(source, target), labels)
        with scope("backward"):
            loss.backward()
        with scope("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return model, optimizer, loss.item()


def small_model(width=1024, depth=6):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)).cuda()


class Report(dict):
    """Named results; `check` adds one that must be true."""

    def check(self, name, passed):
        self.setdefault("checks", {})[name] = bool(passed)


def recorded(report, name, work, *, whole=True, **options):
    """Record `work`; put its counters beside the trace's figures."""
    torch.cuda.init()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with mw.memtrace(name, backend="cuda", **options) as rec:
        kept = work(rec)
        truth = counters()
    trace = rec.trace
    report["truth"] = truth
    report["trace"] = {figure: int(getattr(trace, figure)) for figure in truth}
    report["compared"] = list(COUNTERS) if whole else ["allocated", "active", "reserved"]
    report["events"], report["blocks"] = trace.n_events, trace.n_blocks
    report["notes"] = list(trace.notes)
    report["cost"] = {k: v for k, v in trace.recording.facts.items() if k.startswith("seconds_")}
    return rec, trace, kept


def simple(report, name, work, **options):
    rec, trace, kept = recorded(report, name, lambda _: work(), **options)
    report.check("switched off again", not history_is_on())
    report.check("capacity known", trace.capacity == torch.cuda.get_device_properties(0).total_memory)
    return rec, trace, kept


@case
def transformer(report):
    _, trace, _ = recorded(report, "transformer", lambda rec: transformer_step(scope=rec.phase))
    facts, recording = trace.recording.facts, trace.recording
    report.check("switched off again", not history_is_on())
    report.check("15 phases", len(facts["phases"]) == 15)
    # Kernels run later, allocations do not: those of each phase lie inside it, to the clocks' few microseconds.
    events = recording.events[0]
    allocs = events.time_us[events.action == ACTION["alloc"]]
    spans = [(recording.annotations.start_us[r], recording.annotations.end_us[r]) for r in facts["phases"]]
    report.check(
        "phases hold allocations", all(((allocs >= lo - 10) & (allocs <= hi + 10)).any() for lo, hi in spans[:3])
    )


@case(stacks="all")
def transformer_all_stacks(report, **options):
    _, trace, _ = recorded(report, "all stacks", lambda rec: transformer_step(steps=2, scope=rec.phase), **options)
    report.check("C++ frames, or a note why not", (trace.frame_kind == 2).any() or any("C++" in n for n in trace.notes))
    missing = sum(trace.stack(block) == () for block in range(trace.n_blocks))
    report.check("every allocation has a stack", missing == int((trace.blocks["alloc_event"] < 0).sum()))


@case
def annotations(report):
    scope = torch.profiler.record_function
    _, trace, _ = simple(report, "annotated", lambda: transformer_step(steps=3, scope=scope))
    names = [band.name for band in trace.bands if band.kind == "annotation"]
    report.check("three steps of bands", [names.count(n) for n in ("forward", "backward", "optimizer")] == [3] * 3)


@case
def fragment(report):
    def work():
        first, second = floats(2.25), floats(24)
        held = [floats(3) for _ in range(40)]
        del held[::2]
        return first, second, held, [floats(5) for _ in range(8)]

    _, trace, _ = simple(report, "fragment", work)
    sites = [trace.site(block) for block in range(trace.n_blocks)]
    report.check("every block has this file's line", all(site and Path(site.filename).name == HERE for site in sites))
    report.check("the line's text is stored", all(site.source and "torch.empty" in site.source for site in sites))


@case
def segments_freed(report):
    def work():
        first, second, third = floats(640), floats(64), floats(0.06)
        del first
        torch.cuda.empty_cache()
        del second
        torch.cuda.empty_cache()
        return third, floats(128)

    simple(report, "segments freed", work)


@case
def leak_by_loss(report):
    def work():
        net, total = small_model(), 0
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(30):
            loss = net(torch.randn(256, 1024, device="cuda")).square().mean()
            total = total + loss
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
        return net, optimizer, total

    simple(report, "leak by loss", work)


@case
def leak_by_list(report):
    def work():
        net = small_model()
        with torch.no_grad():
            return net, [net[:-1](torch.randn(512, 1024, device="cuda")) for _ in range(40)]

    simple(report, "leak by list", work)


@case
def accumulation(report):
    def work():
        net = small_model()
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(24):
            net(torch.randn(256, 1024, device="cuda")).square().mean().backward()
            if step % 8 == 7:
                optimizer.step()
                optimizer.zero_grad()
        return net, optimizer

    simple(report, "accumulation", work)


@case
def out_of_memory(report):
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.5e9, free / 2) / total)
    torch.cuda.reset_peak_memory_stats()
    rec = mw.memtrace("oom", backend="cuda")
    alive, raised, truth = [], False, {}

    def fill():
        net, held = small_model(2048, 8), []
        alive.append(weakref.ref(net))
        try:
            while True:
                held.append(net(torch.randn(4096, 2048, device="cuda")))
        finally:
            truth.update(counters())

    try:
        with rec:
            fill()
    except torch.cuda.OutOfMemoryError:
        raised = True
    trace = rec.trace
    report["truth"] = truth
    report["trace"] = {figure: int(getattr(trace, figure)) for figure in truth}
    # What fill() held is freed on the way out, before the recording ends.
    report["compared"] = ["peak_allocated", "peak_active", "peak_reserved", "peak_requested"]
    report["events"], report["blocks"], report["notes"] = trace.n_events, trace.n_blocks, list(trace.notes)
    report.check("the error went on", raised)
    report.check("the failing moment is known", len(trace.oom_moments) == 1)
    at = trace.moment("oom")
    report.check("it held then what torch counted", int(trace.curve("allocated")[at]) == truth["allocated"])
    report.check("switched off again", not history_is_on())
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    report.check("nothing is kept alive", alive[0]() is None and torch.cuda.memory_allocated() < MIB)
    try:
        view = mw.MemView(trace)
    except (ImportError, RuntimeError):
        report["view"] = "no widget here"
    else:
        report.check("the view opens there", view.moment == at)


@case
def cuda_graph(report):
    def work():
        net, given = small_model(), torch.randn(256, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(given).sum().backward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        net.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            out = net(given)
            loss = out.sum()
            loss.backward()
        for _ in range(3):
            graph.replay()
        return net, graph, out, loss, floats(4)

    _, trace, _ = simple(report, "CUDA graph", work)
    report.check("a graph's pool", any(pool[0] for pool in trace.recording.pools))


@case
def mem_pool(report):
    def work():
        pool = torch.cuda.MemPool()
        outside = floats(6)
        with torch.cuda.use_mem_pool(pool):
            inside = [floats(3) for _ in range(4)]
        del inside[1]
        return pool, outside, inside

    _, trace, _ = simple(report, "MemPool", work)
    report.check("its own pool", any(pool[1] for pool in trace.recording.pools))


@case
def streams(report):
    def work():
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        for _ in range(20):
            with torch.cuda.stream(first):
                given = torch.randn(MIB, device="cuda")
            with torch.cuda.stream(second):
                torch.cuda._sleep(2_000_000)
                used = given * 2
                given.record_stream(second)
            del given
        return used, floats(16)

    _, trace, _ = simple(report, "streams", work)
    report.check("three streams", len({int(s) for s in trace.blocks["stream"]}) == 3)


@case(settings="expandable_segments:True")
def expandable_segments(report):
    _, trace, _ = recorded(report, "expandable", lambda rec: transformer_step(steps=3, scope=rec.phase))
    mapped = (trace.events.action == ACTION["segment_map"]).any()
    report.check("mapped, not allocated", mapped and not (trace.events.action == ACTION["segment_alloc"]).any())


@case(settings="roundup_power2_divisions:4")
def rounded_up(report):
    recorded(report, "rounded", lambda rec: transformer_step(width=384, steps=2, scope=rec.phase))


@case(settings="max_split_size_mb:32,garbage_collection_threshold:0.6")
def not_split(report):
    def work():
        held = [floats(size) for size in (70, 3, 41, 19, 64, 5)]
        del held[0], held[3]
        return held, floats(33), floats(40), floats(0.3)

    simple(report, "max_split_size", work)


@case(max_entries=400)
def overflow(report, **options):
    def work():
        net = small_model()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(40):
            net(torch.randn(128, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    _, trace, _ = simple(report, "overflow", work, whole=False, **options)
    report.check("400 events", trace.n_events == 400)
    report.check("it says so", any("overwritten" in note for note in trace.notes))
    report.check("not above the true peak", trace.peak_allocated <= report["truth"]["peak_allocated"])


@case
def started_midway(report):
    before = [floats(3), floats(0.5), floats(11)]

    def work():
        del before[0]
        return [floats(7), floats(0.1), floats(2)]

    simple(report, "started midway", work)


@case
def foreign_history(report):
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    before = floats(5)

    def work(_):
        return [floats(size) for size in (1, 2, 3)]

    _, trace, kept = recorded(report, "foreign", work)
    allocs = trace.events.size[trace.events.action == ACTION["alloc"]].tolist()
    report.check("exactly the window", allocs == [MIB, 2 * MIB, 3 * MIB])
    report.check("left running", history_is_on())
    theirs = torch.cuda.memory._snapshot()["device_traces"][0]
    sizes = [entry["size"] for entry in theirs if entry["action"] == "alloc"]
    report.check("never cleared", sizes == [5 * MIB, MIB, 2 * MIB, 3 * MIB])
    report["marks"] = sum(entry["action"] == "snapshot" for entry in theirs)
    report.check("it says so", any("left as it is" in note for note in trace.notes))
    report.check("what was there is counted", trace.curve("allocated")[0] == before.untyped_storage().nbytes())
    report.check("kept", len(kept) == 3)


@case
def one_inside_another(report):
    inner = []

    def work(_):
        first = floats(4)
        with mw.memtrace("inner", backend="cuda") as rec:
            second = floats(8)
        inner.append(rec.trace)
        return first, second, floats(16)

    _, trace, _ = recorded(report, "outer", work)
    report.check("the outer one has all", (trace.events.action == ACTION["alloc"]).sum() == 3)
    sizes = inner[0].events.size[inner[0].events.action == ACTION["alloc"]].tolist()
    report.check("the inner one its own", sizes == [8 * MIB])
    report.check("both are off", not history_is_on())


def well_known_example():
    """2.25 MiB take a segment of 20 MiB, 24 MiB another; every second of 40 blocks goes, and 5 MiB find no hole."""
    first, second = floats(2.25), floats(24)
    threes = [floats(3) for _ in range(40)]
    del threes[::2]
    return first, second, threes, [floats(5) for _ in range(8)]


def reserves(report, trace):
    """The map at the end against torch's own list of segments, which is asked for apart."""
    theirs = {
        (s["address"], s["total_size"]): sum(b["size"] for b in s["blocks"] if b["state"] == "active_allocated")
        for s in torch.cuda.memory_snapshot()
    }
    state = trace.allocator_at("end")
    ours = {(s.address, s.size): sum(b.size for b in s.blocks if b.state == "allocated") for s in state.segments}
    report.check("segments and what is allocated in each equal torch's", ours == theirs)
    report.check("no gaps", all(sum(b.size for b in s.blocks) == s.size for s in state.segments))


@case
def fragmentation(report):
    _, trace, _kept = recorded(report, "fragmentation", lambda _: well_known_example())
    there = trace.fragmentation_at("end")
    report["fragmentation"] = {
        "reserved": there.reserved,
        "free": there.free,
        "largest_hole": there.largest_hole,
        "usable": there.usable,
    }
    report.check("184 MiB reserved, 57 MiB of it free", (there.reserved, there.free) == (184 * MIB, 57 * MIB))
    report.check("the largest hole is 15 MiB", there.largest_hole == 15 * MIB)
    report.check("none can take the 24 MiB of the peak", there.usable == 0 and there.request.size == 24 * MIB)
    grown = trace.growth_despite_room
    report.check("six times reserved despite room", len(grown) == 6)
    report.check("at last 5 MiB beside 42 MiB in holes", grown[-1][1:] == (20 * MIB, 5 * MIB, 42 * MIB))
    report.check("empty_cache would give nothing back", there.releasable == 0)
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    report.check("and gives nothing back", torch.cuda.memory_reserved() == before)
    reserves(report, trace)


@case(settings="expandable_segments:True")
def expandable_and_mem_pool(report):
    def work(_):
        held, pool = well_known_example(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = [floats(3) for _ in range(6)]
        del inside[1::2]
        torch.cuda.empty_cache()
        return held, pool, inside

    _, trace, _kept = recorded(report, "expandable and MemPool", work)
    reserves(report, trace)
    pools = {s.pool for s in trace.allocator_at("end").segments}
    report.check("the pool stands apart", len(pools) == 2 and any(pool and pool[1] for pool in pools))


@case
def out_of_memory_report(report):
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    limit = min(int(1e9), free // 2)
    torch.cuda.set_per_process_memory_fraction(limit / total)
    rec, asked, seen = mw.memtrace("oom report", backend="cuda"), 600 * MIB, {}
    try:
        with rec:
            held = [floats(3) for _ in range(200)]
            del held[::2]
            try:
                held.append(floats(asked / MIB))
            finally:
                seen.update(torch.cuda.memory_stats())
    except torch.cuda.OutOfMemoryError:
        pass
    trace = rec.trace
    oom = trace.out_of_memory()
    report.check("what was asked", oom.requested == asked)
    report.check("as torch counted", oom.allocated == seen["allocated_bytes.all.current"])
    report.check("reserved too", oom.reserved == seen["reserved_bytes.all.current"])
    report.check("a limit is named", oom.limited and any("had room" in line for line in explain(oom)))
    report.check("capacity is known", trace.capacity == total)
    # Context and libraries: between nothing and what was in use when this process began, and 2 GiB of its own.
    report.check("outside torch", oom.outside is not None and 0 <= oom.outside <= total - free + (2 << 30))
    report.check("holes are too small", oom.free.usable == 0 and oom.free.too_small == oom.free.free > 0)


@case
def thread_meanwhile(report):
    """Another thread allocates all the time, through the start and the end of the recording."""
    torch.cuda.init()
    done, kept, failed = threading.Event(), [], []

    def busy():
        try:
            turn = 0
            while not done.is_set():
                kept.append(floats(0.25 + turn % 7))
                if len(kept) > 20:
                    del kept[turn % 20]
                turn += 1
        except Exception as error:  # noqa: BLE001
            failed.append(repr(error))

    thread = threading.Thread(target=busy)
    thread.start()
    repaired = 0
    try:
        for turn in range(20):
            with mw.memtrace("meanwhile", backend="cuda", labels=False) as rec:
                mine = [floats(1) for _ in range(50)]
                del mine[::2]
            trace, taken = rec.trace, rec.snapshot["segments"]
            lives = {b["address"]: b["size"] for s in taken for b in s["blocks"] if b["state"] == "active_allocated"}
            blocks = trace.blocks[trace.live_at("end")]
            ours = dict(zip(blocks["address"].tolist(), blocks["size"].tolist(), strict=True))
            report.check(f"turn {turn}: live blocks equal the segments'", ours == lives)
            report.check(
                f"turn {turn}: nothing is missing", not any("live by the history but not" in n for n in trace.notes)
            )
            repaired += any("Another thread allocated while" in note for note in trace.notes)
    finally:
        done.set()
        thread.join()
    report["repaired"] = repaired
    report.check("the thread went on", not failed)
    report.check("it did come between", repaired > 0)


@case
def fork(report):
    """A child forked from a recording process knows that it does not record, and does not disturb the parent."""

    def work(rec):
        first = floats(4)
        child = os.fork()
        if child == 0:
            try:
                rec.end()
            except RuntimeError as error:
                os._exit(0 if "was forked from the one that records" in str(error) else 1)
            os._exit(2)
        report.check("the child says so", os.waitpid(child, 0)[1] == 0)
        return first, floats(8)

    _, trace, _kept = recorded(report, "fork", work)
    sizes = trace.events.size[trace.events.action == ACTION["alloc"]].tolist()
    report.check("the parent has all of it", sizes == [4 * MIB, 8 * MIB])


def refused(report, words):
    kept = torch.ones(10, device="cuda")
    try:
        with mw.memtrace(backend="cuda"):
            pass
    except RecorderError as error:
        report["said"] = str(error)
        report.check("one clear sentence", words in str(error))
    else:
        report.check("refused", passed=False)
    report.check("CUDA still works", kept.sum().item() == 10)


@case(settings="backend:cudaMallocAsync")
def malloc_async(report):
    refused(report, "cudaMallocAsync")


@case(env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
def no_caching(report):
    refused(report, "PYTORCH_NO_CUDA_MEMORY_CACHING")


def main(name):
    function, _, options = CASES[name]
    report = Report(case=name, torch=torch.__version__, device=torch.cuda.get_device_name())
    function(report, **options)
    print(json.dumps(report))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main(sys.argv[1])
