"""KVCAST_PROGRAM names the program that the package is compared with."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Program:
    def __init__(self, path):
        self.path = path

    def __call__(self, *words):
        return subprocess.run([self.path, *words], capture_output=True, text=True, cwd=ROOT)

    def json(self, *words):
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def program():
    path = os.environ.get("KVCAST_PROGRAM")
    if not path:
        pytest.fail("KVCAST_PROGRAM is not set, expected the program's path")
    return Program(path)


@pytest.fixture(autouse=True)
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)
