"""What each block was for: the rules one by one on histories written by hand, and a real run against torch.profiler."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

import memwidget as mw
from memwidget.recording import (
    ACTION,
    CATEGORIES,
    IN_BACKWARD,
    SPAN,
    TRAINS,
    Events,
    Labels,
    Recording,
    Spans,
)
from memwidget.trace.categories import GUESS, IDENTITY, PHASE, match
from memwidget.trace.trace import Trace
from text_snapshot import snapshot

DATA = Path(__file__).resolve().parents[1] / "data"
START = 1_700_000_000_000_000
KIB = 1024


def history(text, labels=(), spans=(), *, device_type="cuda", step_us=1000):
    """A trace from words, one a millisecond, and its blocks by name.

    ``x:16@1`` allocates 16 KiB as block x at place 1 (a place of its own without @), ``-x`` frees it, ``.`` waits.
    Labels are (time in ms, block, category, name), spans are (kind, start, end[, flags[, thread[, name]]]).
    """
    place, rows, live = {}, [], {}
    time = START
    for word in text.split():
        time += step_us
        if word == ".":
            continue
        if word.startswith("-"):
            name = word[1:]
            address, size = live.pop(name)
            rows += [("free_requested", address, size, time), ("free_completed", address, size, time)]
            continue
        name, _, rest = word.partition(":")
        size, _, at = rest.partition("@")
        address = (1 << 40) + (int(at) if at else 100 + len(place)) * 1024 * KIB
        place[name] = address
        live[name] = address, int(size) * KIB
        rows.append(("alloc", address, int(size) * KIB, time))
    events = Events.empty(len(rows))
    events.action[:] = [ACTION[row[0]] for row in rows]
    events.address[:] = np.array([row[1] for row in rows], np.uint64)
    events.size[:] = [row[2] for row in rows]
    events.time_us[:] = [row[3] for row in rows]
    sizes = {name: int(text.split(f"{name}:")[1].split()[0].split("@")[0]) * KIB for name in place}
    recording = Recording(device_type=device_type, events={0: events}, pools=[(0, 0)], streams=[0])
    strings = recording.strings
    made = Labels.empty(len(labels))
    for row, (at, block, category, name) in enumerate(labels):
        made.time_us[row] = START + int(at * 1000)
        made.address[row], made.nbytes[row] = place[block], sizes[block]
        made.category[row], made.name[row] = CATEGORIES.index(category), len(strings)
        strings.append(name)
    recording.labels = made
    table = Spans.empty(len(spans))
    for row, (kind, lo, hi, *more) in enumerate(spans):
        flags, thread, name = [*more, *(0, 0, "")[len(more) :]]
        table.kind[row], table.start_us[row], table.end_us[row] = SPAN[kind], START + lo * 1000, START + hi * 1000
        table.flags[row], table.thread[row], table.name[row] = flags, thread, len(strings)
        strings.append(name)
    recording.spans = table
    trace = Trace(recording)
    names = [word.partition(":")[0] for word in text.split() if ":" in word]
    ids = dict(zip(names, np.flatnonzero(trace.blocks["alloc_event"] >= 0).tolist(), strict=True))
    return trace, ids


def said(trace, ids):
    return {
        name: (trace.categories[trace.blocks["category"][b]], int(trace.blocks["reason"][b])) for name, b in ids.items()
    }


# A millisecond a word: "a" is allocated at 1 ms, and so on.


def test_forward_backward_and_optimizer():
    #            1     2     3    4  5    6     7     8      9    10   11    12
    trace, ids = history(
        "tmp:16 act:32 -tmp loss:4 . grad:64 work:8 -work odd:24 -act state:64 fused:8 -fused",
        [(0.5, "grad", "parameter", "other")],  # 64 KiB is a parameter's size; not alive at that time: no match
        [("forward", 0.5, 3.5, TRAINS), ("backward", 5.5, 10.5), ("optimizer", 10.6, 13.5)],
    )
    assert said(trace, ids) == {
        "tmp": ("temporary", PHASE),
        "act": ("activation", PHASE),
        "loss": ("activation", PHASE),  # between the forward and its backward
        "grad": ("gradient", GUESS),
        "work": ("temporary", PHASE),
        "odd": ("autograd_detail", PHASE),
        "state": ("optimizer_state", PHASE),
        "fused": ("temporary", PHASE),
    }


def test_identity_comes_before_phase_and_ranks():
    trace, ids = history(
        "a:16 b:16 c:16 d:16 e:16",
        [
            (6, "a", "gradient", "w"),
            (6.1, "a", "parameter", "w"),
            (6, "b", "input", "x"),
            (6.1, "b", "gradient", "v"),
            (6, "c", "optimizer_state", "w / m"),
            (6, "c", "unknown", "variable"),
            (6, "d", "unknown", "variable"),
        ],
        [("forward", 0.5, 7, TRAINS)],
    )
    assert said(trace, ids) == {
        "a": ("parameter", IDENTITY),
        "b": ("gradient", IDENTITY),
        "c": ("optimizer_state", IDENTITY),
        "d": ("activation", PHASE),
        "e": ("activation", PHASE),
    }
    assert [trace.label(ids[name]) for name in "abcde"] == ["w", "v", "w / m", "variable", ""]


def test_what_a_forward_made_is_no_input():
    trace, ids = history(
        "x:16 hidden:16 out:16",
        [(1.5, "x", "input", "x"), (2.6, "hidden", "input", "x")],
        [("forward", 1.6, 2.5), ("forward", 2.7, 3.5)],
    )
    assert said(trace, ids) == {"x": ("input", IDENTITY), "hidden": ("output", PHASE), "out": ("output", PHASE)}


def test_guesses_outside_of_phases():
    #            1    2      3     4   5      6      7
    trace, ids = history(
        "x:16 kept:16 . act:8 . . -act . -x x2:16 . y:8 . -y",
        [],
        [
            ("forward", 2.5, 4.5, TRAINS),
            ("backward", 5.5, 7.5),
            ("forward", 10.5, 10.6, TRAINS),
            ("backward", 12.5, 14.5),
        ],
    )
    # `kept` lives on into the second backward; x goes before it, x2 is the last one's.
    assert said(trace, ids) == {
        "x": ("input", GUESS),
        "kept": ("unknown", 0),
        "act": ("activation", PHASE),
        "x2": ("input", GUESS),
        "y": ("activation", PHASE),
    }


def test_functional_code_is_guessed_from_what_backward_frees():
    trace, ids = history("w:16 a:8 b:8 . -a -b c:8", [], [("backward", 3.5, 6.5)])
    assert said(trace, ids) == {
        "w": ("unknown", 0),
        "a": ("activation", GUESS),
        "b": ("activation", GUESS),
        "c": ("unknown", 0),
    }


def test_two_uses_of_one_address_within_a_microsecond():
    trace, ids = history(
        "a:16@1 -a b:16@1 -b c:16@1", [(3, "a", "parameter", "b?"), (2, "a", "buffer", "a?")], step_us=1000
    )
    # At 2 ms a is freed (and still counts), at 3 ms b is allocated (and counts already).
    assert {name: trace.label(b) for name, b in ids.items()} == {"a": "a?", "b": "b?", "c": ""}
    same, ids = history("a:16@1 -a b:16@1 -b c:16@1", [(0, "a", "parameter", "c?")], step_us=0)
    assert {name: same.label(b) for name, b in ids.items()} == {"a": "", "b": "", "c": "c?"}


def test_a_sample_beside_a_life_counts_within_the_clocks_difference_if_the_bytes_agree():
    trace, _ = history("a:16@1 -a . b:32@1")
    address = np.full(5, trace.blocks["address"][0])
    ms = START + np.array([900, 950, 2050, 3950, 3950])
    nbytes = np.array([16, 16, 16, 32, 16]) * KIB
    # 1 ms: a; 2 ms: freed; 4 ms: b. 100 us before is the last that counts.
    assert match(trace.blocks, address, ms, nbytes).tolist() == [0, 0, 0, 1, -1]
    assert match(trace.blocks, address[:1], np.array([START + 899]), nbytes[:1]).tolist() == [-1]
    assert match(trace.blocks, address[:1] + np.uint64(512), ms[:1], nbytes[:1]).tolist() == [-1]
    # Inside a life, a storage that is larger than the block is not in it.
    assert match(trace.blocks, address[:1], np.array([START + 1500]), np.array([17 * KIB])).tolist() == [-1]


def test_two_threads_in_different_phases_leave_it_to_identity():
    trace, ids = history(
        "a:16 b:16 c:16 d:16",
        [(5, "b", "gradient", "w")],
        [("forward", 0.5, 3.5, TRAINS, 0), ("backward", 1.5, 4.5, 0, 1), ("module", 0.5, 3.5, 0, 0, "net")],
    )
    assert said(trace, ids) == {
        "a": ("activation", PHASE),
        "b": ("gradient", IDENTITY),
        "c": ("unknown", 0),
        "d": ("autograd_detail", PHASE),
    }
    assert [trace.label(ids[name]) for name in "abc"] == ["net", "w", ""]
    assert any("Two threads" in note for note in trace.notes)


def test_what_runs_within_backward_is_not_a_second_thread():
    trace, ids = history(
        "again:16 -again grad:8",
        [],
        [
            ("backward", 0.5, 4, 0, 0),
            ("module", 0.8, 2.5, IN_BACKWARD, 1, "layer"),
            ("optimizer", 2.6, 3.5, IN_BACKWARD, 1),
        ],
    )
    assert said(trace, ids) == {"again": ("temporary", PHASE), "grad": ("optimizer_state", PHASE)}
    assert trace.label(ids["again"]) == "layer"


def test_unmatched_samples_are_counted_not_guessed():
    recording = history("a:16 b:16", [(1.5, "a", "parameter", "w")])[0].recording
    recording.labels.address[0] += np.uint64(1 << 30)
    trace = Trace(recording)
    assert not trace.has_labels
    assert "1 labelled tensors lie in memory that this allocator's history does not hold; they label nothing." in (
        trace.notes
    )


def test_a_history_without_times_is_labelled_at_its_ends():
    trace, ids = history("a:16@1 -a b:16@1 c:8@2", [(0, "a", "input", "x"), (9, "b", "parameter", "w")])
    trace.recording.events[0].time_us[:] = 0
    again = Trace(trace.recording)
    assert not again.has_time
    # What lived at the end is known; at the start none of these did.
    assert said(again, ids) == {"a": ("unknown", 0), "b": ("parameter", IDENTITY), "c": ("unknown", 0)}


def test_sums_by_category_and_how():
    trace, _ = history(
        "a:16 b:32 c:64 . -c", [(2.5, "a", "parameter", "w")], [("forward", 1.5, 3.5, TRAINS), ("backward", 4.5, 6)]
    )
    found = trace.by_category("peak")
    assert list(found.items()) == [("activation", 96 * KIB), ("parameter", 16 * KIB)]
    row = found.rows[0]
    assert (row.count, row.by_identity, row.by_phase, row.by_guess, row.by_rule) == (2, 0, 96 * KIB, 0, 0)
    assert sum(found.values()) == trace.peak_allocated
    assert trace.by_category("end")["activation"] == 32 * KIB


def test_rules_name_what_only_the_user_knows():
    trace = mw.load(DATA / "gpt2_small.pickle.xz")
    assert not trace.has_labels
    functions = {frame.name for b in trace.live_at("peak")[-50:] for frame in trace.stack(b)}
    assert "forward" in functions
    rules = [
        mw.Rule("attention", function="^_?attn|attention"),
        mw.Rule("layers", function="^forward$", file="transformer|gpt|capture"),
        {"name": "everything else", "function": "."},
    ]
    named = trace.with_rules(rules)
    live = trace.live_at("peak")
    expected = {}
    for block in live:
        frames = trace.stack(block)
        if any("attention" in f.name or f.name.startswith(("attn", "_attn")) for f in frames):
            name = "attention"
        elif any(
            f.name == "forward" and any(t in f.filename for t in ("transformer", "gpt", "capture")) for f in frames
        ):
            name = "layers"
        elif frames:
            name = "everything else"
        else:
            name = CATEGORIES[trace.blocks["category"][block]]
        expected[name] = expected.get(name, 0) + int(trace.blocks["size"][block])
    assert dict(named.by_category("peak")) == expected
    assert "layers" in expected
    assert named.has_labels
    assert trace.categories == CATEGORIES


def test_rules_by_label_and_metadata_and_the_first_wins():
    trace, ids = history("a:16 b:16 c:16", [(4, "a", "parameter", "wte.weight"), (4, "b", "parameter", "wpe.weight")])
    strings = trace.recording.strings
    trace.recording.events[0].metadata[2] = len(strings)
    strings.append("cache of request 7")
    named = trace.with_rules(
        [mw.Rule("tokens", label="^wte"), mw.Rule("embeddings", label=r"\.weight$"), mw.Rule("cache", metadata="cache")]
    )
    assert {name: named.categories[named.blocks["category"][b]] for name, b in ids.items()} == {
        "a": "tokens",
        "b": "embeddings",
        "c": "cache",
    }


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"name": "x"}, "fits every block"),
        ({"name": "", "function": "f"}, "needs the name"),
        ({"name": "x", "function": "("}, "no regular expression"),
    ],
)
def test_a_wrong_rule_is_refused_in_a_sentence(rule, sentence):
    with pytest.raises(ValueError, match=sentence):
        mw.Rule(**rule)


@pytest.mark.parametrize("rules", ["x", None, 3, [3], {"name": "x", "function": "f"}.keys(), [{"names": "x"}]])
def test_what_are_no_rules_is_said(rules):
    with pytest.raises(ValueError, match=r"A rule is an mw\.Rule or a dict with a name and some of file, function"):
        mw.load(snapshot("alloc a 512"), rules=rules)


#: torch.profiler's words -> ours.
PROFILER = {
    "PARAMETER": "parameter",
    "OPTIMIZER_STATE": "optimizer_state",
    "INPUT": "input",
    "TEMPORARY": "temporary",
    "ACTIVATION": "activation",
    "GRADIENT": "gradient",
    "AUTOGRAD_DETAIL": "autograd_detail",
}


def profiled():
    """The snapshot of a run, with the spans and start samples that our recorder would have added.

    It was taken without them. Spans are read off the stacks (functions called forward; the first thing that backward
    makes, _make_grads; torch's own mark around the optimizer's step). Of torch.profiler's words for that run only those
    for what was there before become samples: gradients, activations and temporaries are decided by our rules alone.
    """
    with lzma.open(DATA / "truth_transformer.categories.json.xz") as file:
        truth = [row for row in json.load(file) if row[3] == "cuda:0" and row[2]]
    trace = mw.load(DATA / "truth_transformer.pickle.xz")
    recording, times = trace.recording, trace.event_times_us
    optimizer = [band for band in trace.bands if band.name.startswith("Optimizer.step")]
    spans = []
    for lo, band in zip([0, optimizer[0].hi], optimizer, strict=True):
        functions = {
            int(trace.blocks["alloc_event"][b]): [frame.name for frame in trace.stack(b)]
            for b in range(trace.n_blocks)
            if lo <= trace.blocks["alloc_event"][b] < band.lo
        }
        backward = next(e for e, names in sorted(functions.items()) if "_make_grads" in names)
        for loss in (False, True):
            inside = [e for e, names in functions.items() if "forward" in names and ("cross_entropy" in names) == loss]
            spans.append(("forward", times[min(inside)], times[max(inside)], TRAINS))
        spans.append(("backward", times[backward], times[band.lo] - 1, 0))
        spans.append(("optimizer", times[band.lo], times[band.hi - 1], 0))
    table = Spans.empty(len(spans))
    table.kind[:] = [SPAN[kind] for kind, *_ in spans]
    table.start_us[:], table.end_us[:], table.flags[:] = zip(*(span[1:] for span in spans), strict=True)
    recording.spans = table
    before = [row for row in truth if row[1] == "PREEXISTING"]
    labels = Labels.empty(len(before))
    labels.time_us[:] = times[0] - 1
    labels.address[:] = np.array([row[2] for row in before], np.uint64)
    labels.nbytes[:] = [row[4] for row in before]
    labels.category[:] = [CATEGORIES.index(PROFILER[row[5]]) for row in before]
    recording.labels = labels
    return Trace(recording), truth


def test_a_real_run_against_torch_profiler(capsys):
    trace, truth = profiled()
    blocks, live = trace.blocks, trace.live_at("peak")
    at = trace.event_times_us[trace.peak_event - 1]
    # Each row of torch's bears the version that ends there, or that is made: what lives at the peak is told by the
    # next row of its address, or by its making where nothing comes after.
    theirs, told = {}, set()
    for time, action, address, _, _, word in truth:
        if time // 1000 <= at:
            theirs[address] = word if action in {"CREATE", "PREEXISTING"} else None
        elif address not in told:
            told.add(address)
            if action in {"INCREMENT_VERSION", "DESTROY"}:
                theirs[address] = word
    named = agreed = unknown = 0
    table = {}
    for b in live:
        word, ours, size = (
            theirs.get(int(blocks["address"][b])),
            trace.categories[blocks["category"][b]],
            blocks["size"][b],
        )
        unknown += size * (ours == "unknown")
        if word is None:
            continue
        named += size
        in_backward = blocks["phase"][b] >= 0 and trace.bands[blocks["phase"][b]].name == "backward"
        same = ours == PROFILER[word] or (
            word == "AUTOGRAD_DETAIL"
            and (ours in {"autograd_detail", "gradient"} or (ours == "temporary" and in_backward))
        )
        agreed += size * bool(same)
        table[word, ours] = table.get((word, ours), 0) + int(size)
    whole = blocks["size"][live].sum()
    with capsys.disabled():
        print(
            f"\ntorch names {named / whole:.1%} of the peak; agreed {agreed / named:.2%}; unknown {unknown / whole:.2%}"
        )
        for (word, ours), size in sorted(table.items(), key=lambda row: -row[1]):
            print(f"  {word:<16} {ours:<16} {size:>12,}")
    assert whole == trace.peak_allocated
    assert named / whole > 0.5
    assert agreed / named >= 0.97
    assert unknown / whole <= 0.02
