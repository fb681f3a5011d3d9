"""CSVs of measurements on a GPU, for the programs beside this file."""

import csv
import os
import sys


class Rows:
    """A CSV: a row is there as soon as it is measured. `identity_of` tells rows apart."""

    def __init__(self, path, columns, identity_of):
        self.known = set()
        is_new = not os.path.exists(path) or os.path.getsize(path) == 0
        if not is_new:
            with open(path, newline="") as file:
                reader = csv.DictReader(file)
                if reader.fieldnames != columns:
                    sys.exit(f"--output {path}: got other columns; expected a file of this program")
                self.known = {identity_of(row) for row in reader}
        self.file = open(path, "a", newline="")
        self.writer = csv.DictWriter(self.file, columns, lineterminator="\n", restval="")
        if is_new:
            self.writer.writeheader()

    def write(self, row):
        self.writer.writerow(row)
        self.file.flush()
