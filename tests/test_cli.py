"""The console script: what it prints, and how it leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from memwidget import cli


@pytest.fixture
def sample(data):
    return str(data / "annotated_transformer.pickle.xz")


def test_summary_prints_the_peak(sample, capsys):
    assert cli.main(["summary", sample, "--capacity", "80GiB"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("annotated_transformer on cuda:0: peak 660 MiB of 80.0 GiB\n")
    assert err == ""


def test_html_and_demo_write_a_page(sample, tmp_path, capsys, monkeypatch):
    pages = []
    monkeypatch.setattr(cli.webbrowser, "open", lambda url: pages.append(url) or True)
    for arguments in (["html", sample], ["demo", "--no-open"], ["demo"]):
        page = tmp_path / f"{len(pages)}-{arguments[0]}.html"
        assert cli.main([*arguments, "-o", str(page)]) == 0
        assert capsys.readouterr().out == f"{page}\n"
        assert page.read_text("utf-8").count("memwidget-header") >= 1
    assert pages == [page.as_uri()]


@pytest.mark.parametrize("command", [["summary", "FILE"], ["html", "FILE", "-o", "OUT"]])
@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x04}\x94(", b"cos\nsystem\n(S'id'\ntR.", None])
def test_a_bad_file_is_one_line_and_status_2(command, content, tmp_path, capsys):
    file = tmp_path / "bad\x1b[2J.pickle"
    if content is not None:
        file.write_bytes(content)
    names = {"FILE": str(file), "OUT": str(tmp_path / "out.html")}
    assert cli.main([names.get(word, word) for word in command]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memwidget: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert not (tmp_path / "out.html").exists()


def test_a_page_does_not_replace_its_recording(sample, tmp_path, capsys):
    recording = tmp_path / "copy.pickle.xz"
    shutil.copyfile(sample, recording)
    assert cli.main(["html", str(recording), "-o", f"{tmp_path}/./copy.pickle.xz"]) == 2
    assert "is the recording itself" in capsys.readouterr().err
    assert cli.main(["summary", str(recording)]) == 0


def test_bad_arguments_leave_with_2(sample, tmp_path, capsys):
    assert cli.main(["summary", sample, "--device", "9"]) == 2
    assert "device 9" in capsys.readouterr().err
    assert cli.main(["summary", sample, "--device", "cpu"]) == 2
    assert "holds nothing of cpu" in capsys.readouterr().err
    assert cli.main(["summary", sample, "--device", "cuda:0"]) == 0
    assert cli.main(["html", sample, "-o", str(tmp_path)]) == 2
    assert "directory" in capsys.readouterr().err
    for arguments in ([], ["summary", sample, "--capacity", "much"], ["open"]):
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        assert left.value.code == 2


def test_a_reader_that_leaves_early_is_no_error(sample):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "memwidget", "summary", sample], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("written", "size"), [("80GiB", 80 << 30), ("1.5 g", 3 << 29), ("512MB", 512 << 20), ("1024", 1024), ("8 B", 8)]
)
def test_bytes_are_read_as_people_write_them(written, size):
    assert cli.parse_bytes(written) == size
