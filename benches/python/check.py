"""Checks what readers of plain Parquet deliver from tiny data: `python check.py FOLDER [CASE...]`, one JSON line each.

Runs in one process and in seconds, while `run.py --quick` takes minutes; nothing is timed or converted.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import data
import expected
import measuring
import readers
from cases import BY_HAND, CASES, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cases import Case

CHECKED = ("forebay, shuffled", "forebay", *BY_HAND)


def failures(folder: Path, case: Case) -> Iterator[tuple[str, str]]:
    """Yields each reader and variant with its error, empty if it succeeds."""
    tiny = data.make(case.data_set, folder, "tiny")
    wanted = expected.expected(tiny, case)
    # Smaller batches, so that the last is short and batches cross objects.
    small = replace(case, batch_size=300)
    for name in CHECKED:
        for variant in readers.FAMILIES[name].variants_for(case):
            found = measuring.check(readers.load(variant.function), Task(small, tiny, tiny, 2))
            yield f"{name}, {variant.name}", "" if found == wanted else f"{found}, expected {wanted}"


def main(folder: Path, names: list[str]) -> None:
    """Prints the results, and fails if there is an error."""
    has_failed = False
    for name in names or CASES:
        for reader, failure in failures(folder, CASES[name]):
            print(json.dumps({"case": name, "reader": reader, "failure": failure}), flush=True)
            has_failed |= bool(failure)
    sys.exit(int(has_failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write the tiny data")
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; by default all")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    main(arguments.folder, arguments.cases)
