"""The examples of docs/use-from-python.md print what the page shows."""

import doctest
import os
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/use-from-python.md"


def test_the_page_shows_real_output(monkeypatch, tmp_path):
    pytest.importorskip("pandas")
    text = PAGE.read_text().replace("```python\n", "").replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 10
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(examples, out=report.append)
    if os.environ.get("KVCAST_REGENERATE"):
        print("".join(report))
    assert runner.failures == 0, "".join(report)
