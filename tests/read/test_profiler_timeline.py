"""torch.profiler's memory timelines: sums and categories against arithmetic on the JSON itself."""

import gzip
import io
import json

import numpy as np
import pytest

import memwidget as mw
from memwidget.read import archive, load_recording
from recordings import difference

ORDER = [
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
]
T0 = 1_700_000_000_000_000


def written(value):
    return json.dumps(value).encode()


def levels(trace):
    """Bytes by category, in torch's order, after the last event of each microsecond."""
    times = trace.event_times_us
    found = {}
    for moment in np.flatnonzero(np.append(times[1:] != times[:-1], True)) + 1:
        by = trace.by_category(int(moment))
        assert set(by) <= set(ORDER)
        found[int(times[moment - 1])] = [by.get(name, 0) for name in ORDER]
    return changes(found)


def changes(rows):
    """The rows that differ from the one before; torch writes one whenever anything is touched."""
    previous = [{}, *rows.values()]
    return {time: row for (time, row), before in zip(rows.items(), previous, strict=False) if row != before}


@pytest.fixture(scope="module")
def timeline(data):
    return json.loads(gzip.decompress((data / "profiler_timeline.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def raw(data):
    return json.loads(gzip.decompress((data / "profiler_timeline.raw.json.gz").read_bytes()))


def test_the_timeline_gives_torchs_curve_of_every_category(data, timeline):
    trace = mw.load(data / "profiler_timeline.json.gz")
    times, sizes = timeline
    assert trace.name == "profiler_timeline"
    assert levels(trace) == changes({time: row[1:] for time, row in zip(times, sizes, strict=True)})
    assert trace.peak_allocated == max(map(sum, sizes)) == 624_034_816
    assert (trace.curve("reserved") == trace.curve("allocated")).all()
    assert not trace.blocks["stack"].max() >= 0
    assert any("no blocks" in note for note in trace.notes)
    # A category's rises are as many bytes as its slabs, and none of them is known better than by guess.
    rises = sum(max(new - old, 0) for a, b in zip([[0] * 9, *sizes], sizes) for old, new in zip(a, b))  # noqa: B905
    assert trace.blocks["size"].sum() == rises
    named = trace.blocks["category"] != 10
    assert set(trace.blocks["reason"][named]) == {3}


def test_raw_rows_give_torchs_curve_of_every_category(data, raw):
    trace = mw.load(data / "profiler_timeline.raw.json.gz")
    start = min(row[0] for row in raw if row[0] > 0) // 1000
    level, expected = [0] * 8, {}
    for time, _, size, category in raw:
        level[category] += size
        expected[start if time < 0 else time // 1000] = list(level)
    assert trace.name == "profiler_timeline"
    assert levels(trace) == changes(expected)
    assert trace.peak_allocated == 624_034_816
    # Where nothing is renamed, a row that adds is a block and one that takes away ends it.
    lasting = trace.blocks["free_event"] < 0
    assert trace.blocks["size"][lasting].sum() == sum(row[2] for row in raw)
    assert any("a guess" in note for note in trace.notes)


def test_pairing_by_size_and_category():
    rows = [
        [-1, 1, 512, 0],
        [T0 * 1000, 2, 1024, 4],
        [T0 * 1000 + 5000, 2, 1024, 4],
        [T0 * 1000 + 9000, 2, 1024, 7],
        [T0 * 1000 + 12000, 4, -1024, 4],  # the younger activation
        [T0 * 1000 + 15000, 3, -1024, 7],
        [T0 * 1000 + 15000, 3, 1024, 5],  # what was unknown is a gradient now
        [T0 * 1000 + 16000, 3, -1024, 5],
        [T0 * 1000 + 16000, 3, 1024, 5],  # nothing happens
        [T0 * 1000 + 20000, 4, -1024, 5],
    ]
    trace = mw.load(written(rows))
    blocks = trace.blocks
    life = [
        (int(b["size"]), trace.categories[b["category"]], int(b["alloc_time_us"]) - T0, int(b["free_time_us"]) - T0)
        for b in blocks
    ]
    assert life == [
        (512, "parameter", 0, -1 - T0),
        (1024, "activation", 0, -1 - T0),
        (1024, "activation", 5, 12),
        (1024, "unknown", 9, 15),
        (1024, "gradient", 15, 20),
    ]
    assert blocks["address"][3] == blocks["address"][4]
    assert len(set(blocks["address"].tolist())) == 4
    assert trace.curve("allocated").tolist() == [0, 512, 1536, 2560, 3584, 2560, 2560, 1536]
    assert (trace.curve("active") == trace.curve("allocated")).all()
    assert not any("handed out again" in note for note in trace.notes)


def test_removals_that_fit_nothing_were_there_from_the_start():
    trace = mw.load(written([[T0 * 1000, 4, -300, 7], [T0 * 1000 + 1000, 2, 200, 7], [T0 * 1000 + 2000, 4, -200, 7]]))
    assert trace.curve("allocated").tolist() == [300, 0, 200, 0]
    assert any("fit no block" in note for note in trace.notes)


def test_a_slab_that_ends_in_part_was_two():
    def row(parameter, activation):
        return [0, parameter, 0, 0, 0, activation, 0, 0, 0]

    times = [T0, T0 + 10, T0 + 20, T0 + 30]
    trace = mw.load(written([times, [row(100, 0), row(100, 1000), row(100, 300), row(0, 400)]]))
    life = sorted(
        (trace.categories[b["category"]], int(b["size"]), int(b["alloc_time_us"]) - T0, int(b["free_time_us"]) - T0)
        for b in trace.blocks
    )
    never = -1 - T0
    assert life == [
        ("activation", 100, 30, never),
        ("activation", 300, 10, never),
        ("activation", 700, 10, 20),
        ("parameter", 100, 0, 30),
    ]
    assert trace.peak_allocated == 1100


@pytest.mark.parametrize("name", ["profiler_timeline.json.gz", "profiler_timeline.raw.json.gz"])
def test_what_it_writes_for_torchs_scripts_is_what_torch_wrote(name, data, timeline, tmp_path):
    trace = mw.load(data / name)
    path = trace.to_timeline_json(tmp_path / "out.json.gz")
    times, sizes = json.loads(gzip.decompress(path.read_bytes()))
    assert all(row[0] == 0 and len(row) == 9 for row in sizes)
    assert times == sorted(set(times))
    assert changes({t: row[1:] for t, row in zip(times, sizes, strict=True)}) == levels(trace)
    again = mw.load(path)
    assert levels(again) == levels(trace)
    if ".raw" not in name:
        assert dict(zip(times, sizes, strict=True)) == changes(dict(zip(*timeline, strict=True)))


def test_our_labels_in_torchs_timeline(data, tmp_path):
    """A recording of our own: what torch has no word for is told as what comes nearest."""
    trace = mw.load(data / "oom.pickle.xz")
    times, sizes = json.loads(trace.to_timeline_json(tmp_path / "t.json").read_text())
    assert max(map(sum, sizes)) == trace.peak_allocated
    assert sum(sizes[-1]) == trace.allocated
    assert sizes[-1][8] == trace.allocated  # nothing is labelled in a snapshot
    assert times[-1] == trace.event_times_us[-1]


def test_archive_keeps_it(data):
    recording = load_recording(data / "profiler_timeline.raw.json.gz")
    assert difference(archive.load(archive.to_bytes(recording)), recording) == []


def test_an_empty_timeline_says_so():
    assert mw.load(b"[[], []]").n_events == 0
    with pytest.raises(mw.SnapshotError, match="saw no memory on the device"):
        mw.load(b" [ ]")


def test_a_file_object_under_any_name(timeline, tmp_path):
    content = written(timeline)
    path = tmp_path / "memory.dat"
    path.write_bytes(b"\xef\xbb\xbf \n" + content)
    for source in (path, io.BytesIO(gzip.compress(content)), content):
        assert mw.load(source).peak_allocated == 624_034_816


ROW = [0] * 9


@pytest.mark.parametrize(
    "value",
    [
        [[T0], [[0] * 8]],  # a row too short
        [[T0], [[0] * 10]],
        [[T0, T0], [ROW]],  # times and rows that are not equally many
        [[T0], [ROW, ROW]],
        [[T0], [[0, 1.5, 0, 0, 0, 0, 0, 0, 0]]],
        [[T0], [[0, True, 0, 0, 0, 0, 0, 0, 0]]],
        [[T0], [[0, 2**70, 0, 0, 0, 0, 0, 0, 0]]],
        [[T0], [[0, None, 0, 0, 0, 0, 0, 0, 0]]],
        [["x"], [ROW]],
        [[-5], [ROW]],
        [[T0], [ROW], [ROW]],
        [[T0, 2, 512, 8]],  # a ninth category
        [[T0, 2, 512, -1]],
        [[T0, 5, 512, 0]],  # a fifth action
        [[T0, 2, "512", 0]],
        [[T0, 2, 512]],
        [[-7, 2, 512, 0]],
        [[2**80, 2, 512, 0]],
        [[T0, 2, 512, 0], 5],
        [[[T0]], [ROW]],
        [[T0, 2, 2**44, 0]] * (1 << 18) + [[T0, 2, 2**44, 0]],  # more than 2**62 in all
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_values_are_named(value):
    with pytest.raises(mw.SnapshotError):
        mw.load(written(value))
