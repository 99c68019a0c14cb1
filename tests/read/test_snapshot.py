"""Every layout of torch's snapshot dict, from small hand-made ones."""

import copy

import numpy as np
import pytest

from memwidget import SnapshotError
from memwidget.read import load_recording, recording_from_snapshot
from memwidget.recording import ACTION, ACTIONS
from recordings import difference

F = {"name": "step", "filename": "train.py", "line": 7}
G = {"name": "<module>", "filename": "train.py", "line": 30}
MIB = 1 << 20


def event(action="alloc", addr=0x7F0000000000, size=500, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


def segment(*blocks, **more):
    base = {"device": 0, "address": 0x7F0000000000, "total_size": 2 * MIB, "stream": 0, "segment_type": "small"}
    return {**base, "blocks": list(blocks), **more}


def words(recording, stack):
    """A stack as (file, line, name), innermost first."""
    rows = recording.stack_frames[recording.stacks[stack] : recording.stacks[stack + 1]]
    f, s = recording.frames, recording.strings
    return [(s[f.filename[r]], int(f.line[r]), s[f.name[r]]) for r in rows]


def names(recording, device=0):
    return [ACTIONS[action] for action in recording.events[device].action]


def test_a_blocks_without_address_but_with_history():
    old = segment(
        {"size": 512, "state": "active_allocated", "history": [{"addr": 1, "real_size": 500, "frames": [F, G]}]},
        {"size": MIB, "state": "inactive"},
        {"size": MIB - 512, "state": "active_allocated", "history": [{"addr": 2, "real_size": 9}]},
    )
    recording = recording_from_snapshot({"segments": [old], "device_traces": [[event(frames=[G])]]})
    blocks = recording.segment_blocks
    start = 0x7F0000000000
    assert blocks.address.tolist() == [start, start + 512, start + 512 + MIB]
    assert blocks.requested.tolist() == [500, MIB, 9]
    assert words(recording, blocks.stack[0]) == [("train.py", 7, "step"), ("train.py", 30, "<module>")]
    assert blocks.stack[1:].tolist() == [-1, -1]
    assert recording.segments.pool.tolist() == [-1]
    assert recording.events[0].time_us.tolist() == [0]


def test_l_bare_list_of_segments_has_no_history():
    block = {"address": 0x7F0000000000, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated"}
    for source in ([segment(block)], (segment(block),), {"segments": [segment(block)]}):
        recording = load_recording(source)
        assert recording.facts["history"] == "none"
        assert any("history was not recorded" in note for note in recording.notes)
        assert recording.devices == (0,)
        assert recording.segment_blocks.size.tolist() == [2 * MIB]


@pytest.mark.parametrize("action", ["free_completed", "segment_free", "snapshot"])
def test_one_stale_event_a_device_is_no_history(action):
    recording = recording_from_snapshot({"segments": [segment()], "device_traces": [[event(action)], [event(action)]]})
    assert recording.facts["history"] == "none"
    assert recording.events == {}


def test_one_allocation_is_history():
    recording = recording_from_snapshot({"segments": [segment()], "device_traces": [[event()]]})
    assert "history" not in recording.facts
    assert names(recording) == ["alloc"]


@pytest.mark.parametrize("traces", [[[]], [[], [], [], []], []])
def test_empty(traces):
    recording = recording_from_snapshot({"segments": [], "device_traces": traces})
    assert recording.devices == ()
    assert recording.notes == ["The snapshot is empty: it has no segments and no events."]


def test_fields_of_events_since_they_came():
    first = [F, G]
    trace = [
        event(time_us=1700000000000001, compile_context="N/A", user_metadata="", frames=first),
        event("free_requested", frames=first, time_us=1700000000000002, pool_id=(0, 0)),
        event("free_completed", frames=[F, G], compile_context="Torch-Compiled Region: 0/0", user_metadata="epoch 1"),
        event("segment_map", frames=[], segment_pool_id=[1, 0], forward_frames=["  File x"]),
        {
            "action": "oom",
            "device_free": 77 * MIB,
            "size": 80 << 30,
            "stream": 5,
            "frames": [{"filename": "??", "line": 0}],
        },
        event("annotate", size=0, user_metadata="weights"),
    ]
    recording = recording_from_snapshot({"segments": [segment()], "device_traces": [trace]})
    events = recording.events[0]
    assert events.time_us.tolist() == [1700000000000001, 1700000000000002, 0, 0, 0, 0]
    assert [recording.strings[i] if i >= 0 else None for i in events.metadata] == [
        None,
        None,
        "epoch 1",
        None,
        None,
        "weights",
    ]
    assert events.compile_context[:2].tolist() == [-1, -1]
    assert recording.strings[events.compile_context[2]] == "Torch-Compiled Region: 0/0"
    assert [recording.pools[i] if i >= 0 else None for i in events.pool] == [None, (0, 0), None, (1, 0), None, None]
    assert events.stack[0] == events.stack[1] == events.stack[2]  # by identity and by content
    assert events.stack[3] == events.stack[5] == -1
    assert words(recording, events.stack[4]) == [("??", 0, "??")]
    assert int(events.address[4]) == 77 * MIB
    assert [recording.streams[i] for i in events.stream] == [0, 0, 0, 0, 5, 0]
    assert recording.notes == []


def test_unknown_keys_and_actions_are_notes():
    snapshot = {
        "segments": [segment(color="red")],
        "device_traces": [[event("user_defined"), event(mood=3), event("snapshot", 0)]],
        "host_traces": [[event()]],
        "version": 9,
    }
    recording = recording_from_snapshot(snapshot)
    assert names(recording) == ["other", "alloc", "snapshot"]
    assert [note for note in recording.notes if "user_defined" in note]
    assert [n for n in recording.notes if "color in segments, mood in events, version in the snapshot" in n]
    assert [note for note in recording.notes if "pinned host memory" in note]
    assert len(recording.notes) == 3


def test_addresses_and_streams_of_64_bits():
    high = [2**63, 2**64 - 1]
    trace = [event(addr=address, stream=address) for address in [*high, -5, 1]]
    recording = recording_from_snapshot(
        {"segments": [segment(address=2**64 - 4096, stream=2**63)], "device_traces": [trace]}
    )
    assert recording.events[0].address.tolist() == [*high, 2**64 - 5, 1]
    assert [recording.streams[i] for i in recording.events[0].stream] == [*high, 2**64 - 5, 1]
    assert int(recording.segments.address[0]) == 2**64 - 4096
    assert recording.streams[recording.segments.stream[0]] == 2**63


def test_both_names_of_a_pending_block_and_pool_ids_as_list():
    blocks = [
        {"address": 0x7F0000000000 + i, "size": 1, "requested_size": 1, "state": state}
        for i, state in enumerate(["active_pending_free", "active_awaiting_free", "active_allocated", "inactive"])
    ]
    recording = recording_from_snapshot([segment(*blocks, segment_pool_id=[0, 3])])
    assert recording.segment_blocks.state.tolist() == [1, 1, 0, 2]
    assert recording.pools == [(0, 3)]


def test_segments_with_holes_out_of_order_on_other_devices():
    late = {"address": 9000, "size": 100, "requested_size": 90, "state": "active_allocated"}
    early = {"address": 8200, "size": 100, "requested_size": 80, "state": "active_allocated"}
    snapshot = {
        "segments": [segment(late, early, address=8192, device=1), segment(address=4096, device=1), segment(device=0)],
        "device_traces": [[], [event("snapshot", 0), event(), event()]],
    }
    recording = recording_from_snapshot(snapshot)
    assert recording.segments.device.tolist() == [0, 1, 1]
    assert recording.segments.address.tolist() == [0x7F0000000000, 4096, 8192]
    assert recording.segment_blocks.segment.tolist() == [2, 2]
    assert recording.segment_blocks.requested.tolist() == [80, 90]
    assert list(recording.events) == [1]
    assert recording.devices == (0, 1)


def test_annotations_are_paired_by_name_and_device_from_the_inside():
    def mark(stage, name, time, device=0):
        return {"stage": stage, "name": name, "device": device, "time_us": time}

    marks = [
        mark("END", "lost", 1),
        mark("START", "a", 2),
        mark("START", "a", 3),
        mark("START", "a", 4, 1),
        mark("END", "a", 5),
        mark("START", "open", 6),
        mark("END", "a", 7),
        mark("END", "a", 8, 1),
    ]
    recording = recording_from_snapshot({"segments": [], "device_traces": [], "external_annotations": marks})
    a = recording.annotations
    rows = [
        (recording.strings[n], d, s, e)
        for n, d, s, e in zip(a.name, a.device.tolist(), a.start_us.tolist(), a.end_us.tolist(), strict=True)
    ]
    assert rows == [("lost", 0, -1, 1), ("a", 0, 2, 7), ("a", 0, 3, 5), ("a", 1, 4, 8), ("open", 0, 6, -1)]


def test_frames_with_more_or_less_than_usual():
    fx = {**F, "fx_node_op": "call_function", "fx_node_name": "add", "fx_original_trace": "..."}
    frames = [fx, {"name": "g"}, {**G, "line": None}, {**F, "filename": r"C:\work\train.py", "name": "bad \ud800"}]
    recording = recording_from_snapshot({"segments": [], "device_traces": [[event(frames=tuple(frames))]]})
    assert words(recording, 0) == [
        ("train.py", 7, "step"),
        ("??", 0, "g"),
        ("train.py", 0, "<module>"),
        (r"C:\work\train.py", 7, "bad ?"),
    ]
    assert "fx" not in "".join(recording.notes)


def test_settings_are_kept_plain():
    settings = {
        "expandable_segments": True,
        "max_split_size": -1,
        "roundup_power2_divisions": {"1": 0, "2": 4},
        "strange": [1, [2]],
        "trace_alloc_max_entries": 400,
    }
    recording = recording_from_snapshot({"segments": [], "device_traces": [], "allocator_settings": settings})
    assert recording.settings == {key: value for key, value in settings.items() if key != "strange"}
    assert recording.facts["max_entries"] == 400


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.update(segments=5), "segments should be a list, found int"),
        (lambda s: s.update(device_traces={}), "device_traces should be a list, found dict"),
        (lambda s: s["device_traces"].append(3), r"device_traces\[1\] should be a list"),
        (lambda s: s["device_traces"][0].append(None), r"device_traces\[0\]\[1\] should be a dict"),
        (lambda s: s["device_traces"][0][0].update(addr="0x7f"), r"device_traces\[0\]\[0\]\.addr should be an address"),
        (
            lambda s: s["device_traces"][0][0].update(addr=2**64),
            r"\.addr should be an address, found a number out of range",
        ),
        (
            lambda s: s["device_traces"][0][0].pop("addr"),
            r"device_traces\[0\]\[0\]\.addr should be an address, found nothing",
        ),
        (
            lambda s: s["device_traces"][0][0].update(size=1.5),
            r"device_traces\[0\]\[0\]\.size should be a number, found float",
        ),
        (lambda s: s["device_traces"][0][0].update(size=True), r"\.size should be a number, found bool"),
        (lambda s: s["device_traces"][0][0].update(size=-1), r"\.size"),
        (lambda s: s["device_traces"][0][0].update(size=2**60), r"\.size"),
        (lambda s: s["device_traces"][0][0].update(time_us="now"), r"\.time_us"),
        (lambda s: s["device_traces"][0][0].update(action=3), r"\.action should be text"),
        (lambda s: s["device_traces"][0][0].update(action=[3]), r"\.action should be text"),
        (lambda s: s["device_traces"][0][0].update(frames="x"), r"\.frames should be a list of frames"),
        (lambda s: s["device_traces"][0][0].update(frames=[3]), r"device_traces\[0\]\[0\]\.frames\[0\]"),
        (lambda s: s["device_traces"][0][0].update(frames=[{"line": "7"}]), r"frames\[0\]\.line"),
        (lambda s: s["device_traces"][0][0].update(frames=[{"name": 7}]), r"frames\[0\]\.name"),
        (lambda s: s["device_traces"][0][0].update(pool_id=7), r"\.pool_id should be a pair"),
        (lambda s: s["device_traces"][0][0].update(user_metadata=7), r"\.user_metadata should be text"),
        (
            lambda s: s["segments"][0].update(total_size=None),
            r"segments\[0\]\.total_size should be a number, found nothing",
        ),
        (lambda s: s["segments"][0].update(blocks=[{"size": 1}]), r"segments\[0\]\.blocks\[0\]\.state"),
        (lambda s: s.update(external_annotations=[{"name": 1}]), r"external_annotations\[0\]\.name"),
    ],
)
def test_a_wrong_type_names_the_field(change, field):
    snapshot = {"segments": [segment()], "device_traces": [[event()]]}
    change(snapshot)
    with pytest.raises(SnapshotError, match=field):
        recording_from_snapshot(snapshot)


def test_what_one_gives_is_left_as_it_was():
    snapshot = {
        "segments": [segment(frames=[F])],
        "device_traces": [[event(frames=[F, G]), {"action": "oom", "size": 1}]],
    }
    before = copy.deepcopy(snapshot)
    recording = recording_from_snapshot(snapshot)
    assert snapshot == before
    for table in (recording.events[0], recording.segments):
        assert all(isinstance(getattr(table, column.name), np.ndarray) for column in table.columns())


def test_numbering_follows_first_use():
    """Whatever the order in which things were met, equal content is an equal Recording."""
    trace = [event(frames=[G], stream=9), event(frames=[F, G], stream=3), event(frames=[G], stream=9)]
    recording = recording_from_snapshot({"segments": [], "device_traces": [trace]})
    assert recording.events[0].stack.tolist() == [0, 1, 0]
    assert recording.streams == [9, 3]
    assert recording.strings == ["train.py", "<module>", "step"]
    copied = recording_from_snapshot({"segments": [], "device_traces": copy.deepcopy([trace])})
    assert difference(recording, copied) == []


def test_actions_are_torchs_words():
    trace = [event(action) for action in ACTION]
    assert names(recording_from_snapshot({"segments": [], "device_traces": [trace]})) == list(ACTION)
