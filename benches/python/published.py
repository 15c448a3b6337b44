"""What the page shows: of each case what was measured last, with the day and the build, in `docs/benchmarks/CASE.json`.

A run seldom measures everything, and what is kept beside the data is gone with the machine. A case is seen whole in one
run, so cases of several runs can stand on one page, as long as it says which is of which.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import report
from harness import ROOT
from report import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from report import Part
    from results import Results

FOLDER = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True)
class Published:
    """A folder of the cases that the page shows."""

    folder: Path = FOLDER

    def take(self, results: Results, cases: Sequence[str]) -> None:
        """Puts cases of a run in the place of what was measured of them before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        day, commit = dt.datetime.now(dt.UTC).date().isoformat(), _commit()
        for case in cases:
            found = {
                "day": day,
                "commit": commit,
                "settings": results.settings,
                "failures": results.failures(case),
                "parts": [report.to_json(part) for part in results.parts(case)],
            }
            self._path(case).write_text(json.dumps(found, indent=1) + "\n")

    def page(self, cases: Sequence[str]) -> str:
        """Returns the page of those of the cases that were measured, which names the others."""
        found = {case: json.loads(self._path(case).read_text()) for case in cases if self._path(case).exists()}
        parts: list[Part] = [report.of_json(part) for case in found.values() for part in case["parts"]]
        missing = [case for case in cases if case not in found]
        failures = [failure for case in found.values() for failure in case.get("failures", [])]
        return report.page(parts, _machine(found), missing, failures)

    def _path(self, case: str) -> Path:
        return self.folder / f"{case}.json"


def _machine(found: dict[str, dict[str, Any]]) -> list[Table]:
    """Returns what all numbers depend on besides the code, and for each case what else."""
    settings = [case["settings"] for case in found.values()]
    names = list(dict.fromkeys(name for of_case in settings for name in of_case))
    common = {name: settings[0].get(name) for name in names if len({str(of.get(name)) for of in settings}) == 1}
    others = [name for name in names if name not in common]
    rows = [
        [f"`{name}`", case["day"], case["commit"], *(str(case["settings"].get(other, "")) for other in others)]
        for name, case in found.items()
    ]
    return [report.machine(common), Table("When, and with which build", ["case", "day", "commit", *others], rows)]


def _commit() -> str:
    """Returns the commit whose code is measured, and whether it was changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
