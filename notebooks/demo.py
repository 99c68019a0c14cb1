"""Runs the first notebook for real and leaves what it made in a folder: the executed notebook and its pages.

Owns what `make demo` writes and says; opening JupyterLab on it is the Makefile's part.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent / "01_first_look.ipynb"


def main(folder):
    """Execute in `folder`, where the notebook writes its pages; say where everything is."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.html"):
        old.unlink()
    book = nbformat.read(NOTEBOOK, as_version=4)
    print(f"Running {NOTEBOOK.name} ...", flush=True)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    executed = folder / "first_look.ipynb"
    nbformat.write(book, executed)
    pages = sorted(folder.glob("*.html"))
    if not pages:
        sys.exit(f"{NOTEBOOK.name} wrote no page")
    print(f"Executed notebook:  {executed}")
    for page in pages:
        print(f"Interactive page:   {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
