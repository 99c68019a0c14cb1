"""`tune_batch_size` on a real CUDA device: predictions from trials of an eighth of the size, at several limits."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("batch_size_table.py")
NEEDS = {"resnet50": "torchvision", "densenet121": "torchvision", "gpt2_small": "transformers"}


def _cases():
    """Names of the cases, from the text: importing it would need a device."""
    for node in ast.parse(FILE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(mark) == "case" for mark in node.decorator_list):
            yield node.name


@pytest.fixture(scope="module")
def device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(_cases()))
@pytest.mark.usefixtures("device")
def test_predicted_and_measured(name):
    pytest.importorskip(NEEDS.get(name, "torch"))
    done = subprocess.run(
        [sys.executable, str(FILE), "--json", name], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(report, indent=1))
    failed = {
        f"{row['limit'] >> 30} GiB": [check for check, passed in row["checks"].items() if not passed]
        for row in report["rows"]
    }
    assert not any(failed.values()), failed
