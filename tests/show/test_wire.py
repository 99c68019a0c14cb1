"""The payload says what the trace says; both sides of the wire read the same golden files."""

from __future__ import annotations

import json
from zlib import crc32

import numpy as np
import pytest

from memwidget.read import load_recording
from memwidget.show import wire
from memwidget.show.palette import BACKGROUND, PALETTE, site_color
from memwidget.trace.trace import Trace
from show.hand_made import BASE, GOLDEN, GOLDENS, LOSS, MARKUP, golden_files, hostile, recording
from text_snapshot import snapshot

DTYPES = {"f8": "<f8", "i4": "<i4", "u4": "<u4", "u1": "u1"}
RECORDINGS = ("streams", "overflow", "oom", "cuda_graph", "annotated_transformer")


def decode(payload):
    """The other end of the wire, written from its description."""
    header, buffers = payload
    assert len(buffers) == len(header["columns"])
    columns = {c["name"]: np.frombuffer(b, DTYPES[c["dtype"]]) for c, b in zip(header["columns"], buffers, strict=True)}
    assert all(len(columns[c["name"]]) == c["length"] for c in header["columns"])
    return json.loads(json.dumps(header, allow_nan=False)), columns


@pytest.mark.parametrize("name", GOLDENS)
def test_payload_is_the_golden_one(name):
    # A deliberate change: `python tests/show/hand_made.py` writes them anew, and the wire version says whether old
    # pages can still be read.
    for file, content in golden_files(GOLDENS[name]).items():
        assert content == (GOLDEN / name / file).read_bytes(), file


@pytest.mark.parametrize("name", [*GOLDENS, *RECORDINGS])
def test_stacked_blocks_are_the_curves_at_every_moment(name, data):
    source = GOLDENS[name]() if name in GOLDENS else load_recording(data / f"{name}.pickle.xz")
    trace = Trace(source)
    header, c = decode(wire.payload(trace))
    born, asked, freed = c["alloc_event"], c["free_requested_event"], c["free_event"]
    for m in range(header["n_events"] + 1):
        solid = (born < m) & ((asked == -1) | (asked >= m))
        pending = (born < m) & (asked != -1) & (asked < m) & ((freed == -1) | (freed >= m))
        assert c["size"][solid].sum() == trace.curve("allocated")[m]
        assert c["size"][solid | pending].sum() == trace.curve("active")[m]
    if name != "hostile":
        steps = np.searchsorted(c["reserved_moment"], np.arange(header["n_events"] + 1), side="right") - 1
        assert np.array_equal(c["reserved"][steps], trace.curve("reserved"))
    else:  # nothing tells what was reserved, and nothing is sent for it
        assert len(c["reserved"]) == len(c["reserved_moment"]) == header["peak_reserved"] == header["reserved"] == 0


@pytest.mark.parametrize("name", ["allocator", *RECORDINGS])
def test_segments_come_to_reserved_and_no_event_is_left_untold(name, data):
    source = GOLDENS[name]() if name in GOLDENS else load_recording(data / f"{name}.pickle.xz")
    trace = Trace(source)
    header, c = decode(wire.payload(trace))
    born, gone, size = c["seg_alloc_event"], c["seg_free_event"], c["seg_size"]
    for m in range(header["n_events"] + 1):
        assert size[(born < m) & ((gone == -1) | (gone >= m))].sum() == trace.curve("reserved")[m]
    told = {e for column in ("alloc_event", "free_requested_event", "free_event") for e in c[column] if e >= 0}
    assert sorted([*told, *c["loose_event"]]) == list(range(header["n_events"]))
    events = trace.events
    assert np.array_equal(c["loose_size"], events.size[c["loose_event"]])
    for stack, event in zip(c["loose_stack"], c["loose_event"], strict=True):
        rows = [] if stack < 0 else c["stack_frame"][c["stack_offset"][stack] : c["stack_offset"][stack + 1]]
        own = events.stack[event]
        frames = source.stack_frames[source.stacks[own] : source.stacks[own + 1]] if own >= 0 else []
        assert [c["frame_line"][r] for r in rows] == [source.frames.line[r] for r in frames]


@pytest.mark.parametrize("name", ["first", "annotated_transformer"])
def test_stacks_times_and_names_survive_the_renumbering(name, data):
    source = GOLDENS[name]() if name in GOLDENS else load_recording(data / f"{name}.pickle.xz")
    trace = Trace(source)
    header, c = decode(wire.payload(trace))
    texts = header["strings"]
    address = c["address_hi"].astype(np.uint64) << np.uint64(32) | c["address_lo"]
    assert np.array_equal(address, trace.blocks["address"])
    for block in range(0, header["n_blocks"], max(1, header["n_blocks"] // 200)):
        for column, which in (("stack", "alloc"), ("free_stack", "free")):
            stack = c[column][block]
            rows = [] if stack < 0 else c["stack_frame"][c["stack_offset"][stack] : c["stack_offset"][stack + 1]]
            assert [(texts[c["frame_file"][r]], c["frame_line"][r], texts[c["frame_name"][r]]) for r in rows] == [
                (f.filename, f.line, f.name) for f in trace.stack(block, which)
            ]
        reason = list(header["no_stack"].values())[c["no_stack"][block]]
        assert reason == trace.no_stack_reason(block)
        if c["stack"][block] >= 0 and (site := c["stack_site"][c["stack"][block]]) >= 0:
            assert texts[c["frame_label"][site]] == trace.site_label(int(trace.block_site[block]))
    assert np.array_equal(c["time_us"] + header["start_us"], trace.event_times_us)
    assert len(set(texts)) == len(texts)


def test_only_this_devices_strings_travel():
    source = recording([("alloc", BASE, 512, {"stack": LOSS})], name="two")
    source.strings.append("a name that only another device uses")
    assert "a name that only another device uses" not in wire.payload(Trace(source)).header["strings"]


def test_strings_are_capped_one_by_one_and_together(monkeypatch):
    header, _ = decode(wire.payload(Trace(hostile())))
    assert max(map(len, header["strings"])) == wire.MAX_STRING
    assert MARKUP in header["strings"]
    monkeypatch.setattr(wire, "MAX_STRINGS_BYTES", 500)
    header, columns = decode(wire.payload(Trace(hostile())))
    assert sum(len(s.encode()) for s in header["strings"]) <= 500 + len("…".encode())
    assert "…" in header["strings"]
    assert "left out" in header["notes"][-1]
    assert columns["frame_name"].max() < len(header["strings"])


def test_json_in_a_page_ends_no_element():
    written = wire.to_json({"a": "</script><!-- \u2028"})
    assert not set("<>&\u2028") & set(written)
    assert json.loads(written) == {"a": "</script><!-- \u2028"}


def test_a_line_has_one_colour_wherever_it_lies():
    color = crc32(b"train.py\0step\0x = f(y)") % 96
    for path in ("/home/me/train.py", "C:\\work\\train.py", "train.py"):
        assert site_color(path, 31, "step", "    x = f(y)\n") == color
    assert site_color("/a/train.py", 90, "step", "x = f(y)") == color  # moved down by an edit above
    cells = ("<ipython-input-3-0a1b2c>", "/tmp/ipykernel_17/123.py", "/tmp/ipykernel_99/456.py")
    assert len({site_color(cell, 5, "<module>", None) for cell in cells}) == 1


def _linear(color):
    srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def _contrast(color, other):
    low, high = sorted(float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (color, other))
    return (high + 0.05) / (low + 0.05)


#: Machado, Oliveira, Fernandes 2009, severity 1, linear RGB: normal, protanopia, deuteranopia, tritanopia.
EYES = (
    np.eye(3),
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
)
TO_LMS = [[0.4122215, 0.5363325, 0.0514460], [0.2119035, 0.6806995, 0.1073970], [0.0883025, 0.2817188, 0.6299787]]
TO_LAB = [[0.2104543, 0.7936178, -0.0040720], [1.9779985, -2.4285922, 0.4505937], [0.0259040, 0.7827718, -0.8086758]]


def _closest(colors, eye):
    seen = np.clip(np.array([_linear(c) for c in colors]) @ np.array(eye).T, 0, 1)
    lab = np.cbrt(seen @ np.array(TO_LMS).T) @ np.array(TO_LAB).T
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    return apart[np.triu_indices(len(colors), 1)].min()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stand_out_and_apart(theme):
    palette = PALETTE[theme]
    assert [len(palette[k]) for k in ("site", "category", "ramp", "stream", "pool")] == [96, 11, 8, 8, 8]
    assert min(_contrast(c, BACKGROUND[theme]) for c in palette["site"]) >= 3
    assert min(_closest(palette["category"], eye) for eye in EYES) >= 0.059
    assert _closest(palette["site"], EYES[0]) >= 0.042
    assert min(_closest([palette["accent"], c], EYES[0]) for c in palette["site"]) > 0.07
    ramp = [_contrast(c, BACKGROUND[theme]) for c in palette["ramp"]]
    assert ramp == sorted(ramp)


def test_phases_have_their_own_names_and_colours():
    spans = [("load", 0, 0), ("backward", 3, 4), ("forward", 1, 2), ('a "b"', 5, 6)]
    events = [("alloc", BASE + i * 512, 512) for i in range(7)]
    made = recording(events, [], spans, facts={"phases": [0, 1, 2, 3]})
    header, c = decode(wire.payload(Trace(made)))
    names = [header["strings"][row] for row in header["phases"]]
    assert names == ["forward", "backward", "load", 'a "b"']
    assert [names[i] if i >= 0 else "" for i in c["phase"]] == [
        *("load", "forward", "forward", "backward", "backward", 'a "b"', 'a "b"')
    ]
    for theme in ("light", "dark"):
        colors = header["palette"][theme]["phase"]
        assert colors[:2] == [PALETTE[theme]["category"][i] for i in (0, 2)]
        assert len(set(colors)) == 4


def test_lines_are_looked_up_only_when_asked_and_are_marked(tmp_path):
    """A recording from elsewhere stores no text; a view on this machine may show the file's line, a page never does."""
    code = tmp_path / "train.py"
    code.write_text("import torch\nx = make()\n", "utf-8")
    secret = tmp_path / "id_rsa"
    secret.write_text("PRIVATE\nPRIVATE\n", "utf-8")
    trace = Trace(load_recording(snapshot(f"alloc a 512 @ {code}:2 step\nalloc b 512 @ {secret}:2 step")))
    header, columns = decode(wire.payload(trace, read_sources=True))
    assert "x = make()" in header["strings"]
    assert sorted(columns["frame_source_now"].tolist()) == [0, 1]
    assert not any("PRIVATE" in text for text in header["strings"])
    header, columns = decode(wire.payload(trace))
    assert "x = make()" not in header["strings"]
    assert not columns["frame_source_now"].any()
