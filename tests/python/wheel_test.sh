#!/usr/bin/env bash
# Installs a wheel into a fresh virtual environment, which takes numpy and pytest from the one that
# makes it, and runs the tests of the package there.
# Usage: wheel_test.sh PYTHON WHEEL PROGRAM
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$(realpath "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -m venv "$work/venv"
"$1" -c 'import numpy, os, pytest
for module in numpy, pytest: print(os.path.dirname(os.path.dirname(module.__file__)))' \
  >"$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tools.pth"
"$work/venv/bin/python" -m pip install --quiet --no-deps --no-index "$(realpath "$2")"
cd "$work"
# The wheel's own catalog, wherever the sources are.
"$work/venv/bin/python" -c '
import kvcast, pathlib
folder = pathlib.Path(kvcast.__file__).parent
assert folder.is_relative_to(pathlib.Path.cwd()), folder
assert (folder / "data/models/llama-7b.json").is_file()
print(kvcast.estimate(model="llama-7b", hardware="h200").ttft_s, "s from", len(kvcast.model_list()), "models")'
"$tests/bindings_test.sh" "$work/venv/bin/python" "" "$program"
