"""Compares what readers of plain Parquet deliver of tiny data: `python check.py FOLDER [CASE...]`, one JSON line each.

All in one process and in seconds, where `run.py --quick` takes minutes; nothing is timed and nothing converted.
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
    """Yields each reader and variant, and how it fails: nothing if it does not."""
    tiny = data.make(case.data_set, folder, "tiny")
    wanted = expected.expected(tiny, case)
    # Smaller batches, of which the last is short, and objects do not end with one.
    small = replace(case, batch_size=300)
    for name in CHECKED:
        for variant in readers.FAMILIES[name].variants_for(case):
            found = measuring.check(readers.load(variant.function), Task(small, tiny, tiny, 2))
            yield f"{name}, {variant.name}", "" if found == wanted else f"{found}, expected {wanted}"


def main(folder: Path, names: list[str]) -> None:
    """Prints what was found and fails where something was."""
    has_failed = False
    for name in names or CASES:
        for reader, failure in failures(folder, CASES[name]):
            print(json.dumps({"case": name, "reader": reader, "failure": failure}), flush=True)
            has_failed |= bool(failure)
    sys.exit(int(has_failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the tiny data is made")
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; by default all")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    main(arguments.folder, arguments.cases)
