"""The results that the page shows, in `docs/benchmarks/CASE.json`: the last of each case, with its day and build.

A run seldom measures everything, and the results beside the data are lost with the machine. A case is always measured
completely in one run, so the page can show cases from several runs, and says which is from which.
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
    """The folder of the cases that the page shows."""

    folder: Path = FOLDER

    def take(self, results: Results, cases: Sequence[str]) -> None:
        """Replaces the results of cases by those of a run."""
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
        """Returns the page with the cases that were measured; it names the others."""
        found = {case: json.loads(self._path(case).read_text()) for case in cases if self._path(case).exists()}
        parts: list[Part] = [report.of_json(part) for case in found.values() for part in case["parts"]]
        missing = [case for case in cases if case not in found]
        failures = [failure for case in found.values() for failure in case.get("failures", [])]
        return report.page(parts, _machine(found), missing, failures)

    def _path(self, case: str) -> Path:
        return self.folder / f"{case}.json"


def _machine(found: dict[str, dict[str, Any]]) -> list[Table]:
    """Returns tables of the settings that all cases share, and of those that differ."""
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
    """Returns the commit that is measured, and whether there are uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
