"""Each notebook runs from top to bottom, and none carries outputs in the repository."""

import html
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    """Read one notebook."""
    return nbformat.read(request.param, as_version=4)


def test_notebook_carries_no_outputs(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
    assert "widgets" not in notebook.metadata


def test_notebook_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # Their matrices are small: on a machine with other work, threads wait for each other longer than they compute.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("application/vnd.jupyter.widget-view+json" in output.data for output in shown)
    # Scripts may name addresses (bokeh's do, of namespaces); nothing may be fetched from one.
    pages = [html.unescape(output.data["text/html"]) for output in shown if "text/html" in output.data]
    assert not [page for page in pages if re.search(r"<(script|link|img|iframe)[^>]+(src|href)=.?(https?:|//)", page)]
