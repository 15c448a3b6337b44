"""Prints what a reader must deliver from tiny data, as read at once by pyarrow: `python expected.py CASE FOLDER`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import forms
import pyarrow.parquet as pq
from cases import CASES, Case
from measuring import Checked


def expected(folder: Path, case: Case) -> Checked:
    """Returns the number of rows and the digest of the objects of a folder."""
    paths = sorted(folder.glob("*.parquet"))
    tables = [pq.read_table(path, columns=list(case.columns), use_threads=False) for path in paths]
    digests = [forms.digests(batch, case) for table in tables for batch in forms.cut(table, case)]
    return Checked(sum(table.num_rows for table in tables), forms.of_rows(digests))


if __name__ == "__main__":
    print(json.dumps(asdict(expected(Path(sys.argv[2]), CASES[sys.argv[1]]))))
