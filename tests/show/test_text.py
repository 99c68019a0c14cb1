"""Numbers and summaries in words."""

from __future__ import annotations

import json

import pytest

from memwidget.show.text import summary
from memwidget.trace.trace import NO_STACK, Trace
from memwidget.units import bytes_exact, bytes_text, count_text, duration_text
from show.hand_made import GOLDEN, first, hostile, labelled, recording, without_history

WRITERS = {"bytes": bytes_text, "bytes_exact": bytes_exact, "count": count_text, "duration": duration_text}


@pytest.mark.parametrize("kind", WRITERS)
def test_numbers_are_written_as_the_shared_vectors_say(kind):
    vectors = json.loads((GOLDEN / "format.json").read_text("utf-8"))
    assert vectors.keys() == WRITERS.keys()
    assert [[n, WRITERS[kind](n)] for n, _ in vectors[kind]] == vectors[kind]


def test_summary_names_the_peak_its_lines_and_what_recording_cost():
    assert summary(Trace(first())) == (
        "first on cuda:0: peak 20.0 MiB of 140 GiB\n"
        "  at event 10 of 12, t+9.00 ms\n"
        "  reserved 22.0 MiB then, at most 22.0 MiB\n"
        "  out of memory at event 8: 64.0 MiB asked for, 8.00 MiB allocated, 22.0 MiB reserved, "
        "100 GiB free on the device.\n"
        "    The device had room: a limit that the file does not name refused it "
        "(set_per_process_memory_fraction, a container's or a scheduler's limit).\n"
        "    train.py:31 in step holds most: 8.00 MiB in 1 block (100 %).\n"
        "    Reserved but in no use were 14.0 MiB: 14.0 MiB in holes smaller than that (the largest hole: 12.0 MiB).\n"
        "    40.0 GiB of the device are used outside torch's allocator.\n"
        "  largest call sites at the peak:\n"
        "     20.0 MiB  100 %        2 blocks  train.py:31 in step\n"
        "     1.00 KiB   <1 %         1 block  train.py:40 in step\n"
        "        512 B   <1 %         1 block  (no Python stack)\n"
        f"    no Python stack: {NO_STACK[2]}\n"  # other blocks have stacks: this one came from autograd's thread
        "  at the end 8.00 MiB allocated, 22.0 MiB reserved\n"
        "  held, likely: 8.00 MiB made at train.py:31 in step are still live at the end\n"
        "    -> If nobody needs it any more, del the name, list or attribute that keeps it: that frees 8.00 MiB.\n"
        "  pending_free: Up to 6.00 MiB were freed but waited for another stream\n"
        "    -> Let the side stream finish earlier (an event, wait_stream) before the tensor is "
        "dropped, or keep fewer in flight: up to 6.00 MiB less.\n"
        "  outside (expected): 40.0 GiB of the device are used outside torch's allocator\n"
        "  cache (expected): 14.0 MiB are reserved and in no use at the end\n"
        "  note: The history starts where it starts.\n"
        "  recording cost: snapshot 250 ms"
    )


def test_without_history_the_segments_speak_and_no_peak_is_claimed():
    said = summary(Trace(without_history()))
    assert "history not recorded" in said
    assert "4.00 MiB allocated in 1 block, 20.0 MiB reserved in 1 segment" in said
    assert "0 B" not in said


def test_an_empty_recording_of_ours_is_no_file_without_segments():
    said = summary(Trace(recording([], facts={"backend": "cpu"}, device_type="cpu", name="idle")))
    assert said == "idle on cpu: nothing was allocated or freed while recording"
    assert "the file holds no segments either" in summary(Trace(recording([], name="empty")))


def test_summary_holds_nothing_that_a_terminal_obeys():
    assert all(c.isprintable() or c == "\n" for c in summary(Trace(hostile())))


def test_the_peak_by_category_where_labels_say_so():
    lines = summary(Trace(labelled())).splitlines()
    (found,) = [line for line in lines if line.startswith("  by category")]
    # 4 KiB of targets and 16 KiB of gradient were never sampled.
    assert found == (
        "  by category activation 32.0 KiB, gradient 16.0 KiB, parameter 16.0 KiB, input 12.0 KiB, temporary 8.00 KiB "
        "(20.0 KiB of it a guess)"
    )
    assert not [line for line in summary(Trace(first())).splitlines() if "by category" in line]
