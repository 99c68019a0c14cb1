"""The recorder and the trace on a real CUDA device, against torch's own counters: `make gpu`."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("cases.py")


def _cases():
    """Names and environment of the cases, from the text: importing it would need torch and a device."""
    for node in ast.parse(FILE.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for mark in node.decorator_list:
            if ast.unparse(mark) == "case":
                yield node.name, {}
            elif isinstance(mark, ast.Call) and ast.unparse(mark.func) == "case":
                given = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
                settings = {"PYTORCH_CUDA_ALLOC_CONF": given["settings"]} if "settings" in given else {}
                yield node.name, {**settings, **given.get("env", {})}


CASES = dict(_cases())


@pytest.fixture(scope="module")
def device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("device")
def test_case(name, record_property):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
    done = subprocess.run(
        [sys.executable, str(FILE), name],
        env={**clean, **CASES[name]},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    record_property("report", report)
    print(json.dumps(report, indent=1))
    failed = [check for check, passed in report.get("checks", {}).items() if not passed]
    assert not failed, failed
    for figure in report.get("compared", ()):
        assert report["trace"][figure] == report["truth"][figure], figure
