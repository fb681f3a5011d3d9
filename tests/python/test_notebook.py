"""The notebook in docs/ runs, and prints what it shows."""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/from-a-config-to-a-pareto-plot.ipynb"


def outputs(cell):
    return [
        " ".join("".join(output.get("text") or output["data"]["text/plain"]).split())
        for output in cell.get("outputs", [])
    ]


def run(source, names):
    """What a cell prints, and then the value of the expression that it ends with."""
    statements = ast.parse(source).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    texts = (printed.getvalue(), "" if value is None else repr(value))
    return [" ".join(text.split()) for text in texts if text]


def test_the_notebook_prints_what_it_shows(monkeypatch):
    """As Jupyter runs it, but for blanks, in which it lays out a dict, and the picture, which matplotlib draws where it is there."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as pyplot
    except ImportError:
        matplotlib = mock.MagicMock()
        pyplot = matplotlib.pyplot
    monkeypatch.setattr(pyplot, "show", lambda: None)
    monkeypatch.setitem(sys.modules, "matplotlib", matplotlib)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells) == 12
    names = {}
    shown = [outputs(cell) for cell in cells if cell["cell_type"] == "code"]
    ran = [run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert len(shown) == 6 and shown[0] == ran[0] == [] and shown[-1] and ran[-1] == []
    assert ran[:-1] == shown[:-1]
