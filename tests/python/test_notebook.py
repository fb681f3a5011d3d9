"""The notebook in docs/ runs, and prints what it shows."""

import copy
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/from-a-config-to-a-pareto-plot.ipynb"


def texts(notebook):
    return [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]


def test_the_notebook_prints_what_it_shows():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    shown = nbformat.read(NOTEBOOK, as_version=4)
    assert len(shown.cells) == 12
    ran = copy.deepcopy(shown)
    nbclient.NotebookClient(ran, timeout=300, kernel_name="python3").execute()
    assert texts(ran) == texts(shown) and len(texts(shown)) == 5
