"""Runs the first notebook for real and leaves what it shows in a folder: the executed notebook, a page a trace.

Owns what `make demo` writes and says; opening JupyterLab on it is the Makefile's part.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent / "01_first_look.ipynb"
#: Runs in the notebook's kernel, where the traces are; prints one path a line.
EXPORT = """
import memwidget as _mw
for _name, _value in list(globals().items()):
    if isinstance(_value, _mw.Trace) and not _name.startswith("_"):
        _path = {folder!r} + f"/first_look_{{_name}}.html"
        _value.to_html(_path)
        print(_path)
"""


def main(folder):
    """Execute, export, say where everything is."""
    folder.mkdir(parents=True, exist_ok=True)
    book = nbformat.read(NOTEBOOK, as_version=4)
    print(f"Running {NOTEBOOK.name} ...", flush=True)
    client = NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}})
    with client.setup_kernel():
        for index, cell in enumerate(book.cells):
            client.execute_cell(cell, index)
        client.set_widgets_state()
        export = nbformat.v4.new_code_cell(EXPORT.format(folder=str(folder)))
        client.execute_cell(export, len(book.cells), store_history=False)
    executed = folder / "first_look.ipynb"
    nbformat.write(book, executed)
    pages = "".join(output.text for output in export.outputs if output.output_type == "stream").split("\n")
    print(f"Executed notebook:  {executed}")
    for page in filter(None, pages):
        print(f"Interactive page:   {Path(page).as_uri()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
