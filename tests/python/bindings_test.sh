#!/usr/bin/env bash
# Runs the tests of the Python package. Exits with 77 where the package was not built, or where Python
# has no numpy or pytest.
# Usage: bindings_test.sh PYTHON FOLDER_WITH_THE_PACKAGE PROGRAM
#        an empty folder: the package is installed in that Python
set -euo pipefail
python=${1:-} package=${2:-} program=${3:-}
if [[ $package == none ]]; then
  echo "bindings_test.sh: not run, since it is not built: pybind11 or Python's development files are missing, or sanitizers are on"
  exit 77
fi
for module in numpy pytest; do
  if ! "$python" -c "import $module" 2>/dev/null; then
    echo "bindings_test.sh: not run, since $python has no $module"
    exit 77
  fi
done
cd "$(dirname "${BASH_SOURCE[0]}")"
# A machine that its user calibrated would answer where no hardware is named.
export XDG_CONFIG_HOME=/dev/null KVCAST_PROGRAM=$program PYTHONPATH=$package OMP_NUM_THREADS=2 PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest -q -p no:cacheprovider .
