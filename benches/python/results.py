"""Stores measurements, so that a stopped run can be resumed and the page can combine several runs.

Each case has two files in the folder of results. `CASE.jsonl` has the settings, and then one line for each measurement
as soon as it is made. `CASE.json` has the settings, tables and bars of the case, and is written when the case is done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import report
from harness import FailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from report import Part


@dataclass
class Log:
    """The measurements of one case."""

    path: Path
    seen: dict[str, Any] = field(default_factory=dict)

    def once(self, key: str, measure: Callable[[], Any]) -> Any:
        """Returns the measurement with this key; makes it unless the resumed run has made it already."""
        if key not in self.seen:
            self.seen[key] = measure()
            with self.path.open("a") as log:
                log.write(json.dumps({"key": key, "value": self.seen[key]}) + "\n")
        return self.seen[key]


@dataclass(frozen=True)
class Results:
    """A folder of results, and the settings that they depend on."""

    folder: Path
    settings: dict[str, Any]

    def begin(self, case: str, *, is_resumed: bool) -> Log:
        """Opens the log of a case; if the run is resumed, with its content.

        Raises:
            FailedError: The log was made with other settings.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{case}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if is_resumed and path.exists() else []
        if not lines:
            path.write_text(json.dumps({"settings": self.settings}) + "\n")
            self._path(case).unlink(missing_ok=True)
            return Log(path)
        self._compare(path, lines[0]["settings"])
        return Log(path, {line["key"]: line["value"] for line in lines[1:]})

    def _compare(self, path: Path, found: dict[str, Any]) -> None:
        keys = sorted(found.keys() | self.settings.keys())
        other = [key for key in keys if found.get(key) != self.settings.get(key)]
        if other:
            differences = ", ".join(f"{key} was {found.get(key)}, is {self.settings.get(key)}" for key in other)
            raise FailedError(f"{path.name} is of another run, measure it anew without --resume: {differences}")

    def finish(self, case: str, parts: list[Part], failures: list[str]) -> None:
        """Stores the tables and bars of a case, and what could not be measured."""
        found = {
            "settings": self.settings,
            "failures": failures,
            "parts": [report.to_json(part) for part in parts],
        }
        self._path(case).write_text(json.dumps(found, indent=1))

    def parts(self, case: str) -> list[Part]:
        """Returns the tables and bars of a case, empty if it has not been measured."""
        return [report.of_json(part) for part in self._file(case).get("parts", [])]

    def is_done(self, case: str) -> bool:
        """Whether a case has been measured completely."""
        return self._file(case).get("failures") == []

    def failures(self, case: str) -> list[tuple[str, str]]:
        """Returns what could not be measured in a case, with the end of each error message."""
        found = [failure.partition(": ") for failure in self._file(case).get("failures", [])]
        return [(what, said.strip().rpartition("\n")[2]) for what, _, said in found]

    def is_of_this(self, case: str) -> bool:
        """Whether a case has been measured with these settings."""
        return self._file(case).get("settings") == self.settings

    def _file(self, case: str) -> dict[str, Any]:
        path = self._path(case)
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def _path(self, case: str) -> Path:
        return self.folder / f"{case}.json"
