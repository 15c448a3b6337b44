"""Measures readers from rows to tensors and strings: runs them in turn, and checks that they deliver the same rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import compared
import convert
import data
import harness
import measuring
import pyarrow.parquet as pq
import readers
from cases import CASES
from compared import OURS, UNSHUFFLED
from harness import FailedError
from measuring import Measurement
from report import count, progress

if TYPE_CHECKING:
    from pathlib import Path

    from cases import Case
    from harness import Run
    from readers import Family, Variant
    from report import Part
    from results import Log

LOADER_SECONDS = 10.0
"""When loaders that shuffle row by row are stopped, as a pass takes them minutes; their first seconds are slow."""
FREE_BYTES = 4 << 30
QUICK_SECONDS = 0.5
QUICK_CASE = "tokens"
"""The case in which a quick run measures all readers."""
QUICK_READERS = (OURS, UNSHUFFLED, "pyarrow", "polars")
SLOW = 10
"""Readers at least this many times slower than ours are measured only `SLOW_ROUNDS` times."""
SLOW_ROUNDS = 3


@dataclass
class Seen:
    """The measurements of one family: its best variant, and the copy that it reads."""

    family: Family
    variant: Variant
    found: list[Measurement] = field(default_factory=list)
    conversion: dict[str, float] | None = None

    def median(self, name: str) -> float:
        """Returns the median of a field."""
        return measuring.median(self.found, name)


@dataclass(frozen=True)
class Folders:
    """The folders of a case's rows, in three sizes."""

    tiny: Path
    source: Path
    whole: Path

    @classmethod
    def make(cls, run: Run, case: Case) -> Folders:
        """Returns the folders, writing missing data."""
        size: data.Size = "quick" if run.is_quick else "full"
        return cls(
            data.make(case.data_set, run.data, "tiny"),
            data.make(case.data_set, run.data, size),
            data.repeated(case.data_set, run.data, 1 if run.is_quick else case.repeats, size),
        )

    def of(self, family: Family) -> Path:
        """Returns what a family reads in a pass."""
        return self.whole if family.reads_repeated else self.source


@dataclass(frozen=True)
class Comparison:
    """The readers of one case, and how they are measured."""

    run: Run
    log: Log
    case: Case
    folders: Folders

    def measure(self) -> dict[str, Seen]:
        """Measures all readers in turn, so that other load on the machine affects all of them.

        Raises:
            FailedError: Ours failed, or two readers delivered different rows. Failing rivals are left out and recorded.
        """
        families = readers.families(self.case)
        if self.run.is_quick and self.case.name != QUICK_CASE:
            families = {reader: families[reader] for reader in QUICK_READERS}
        if self.run.readers:
            wanted = (OURS, *self.run.readers)
            families = {reader: families[reader] for reader in families if any(part in reader for part in wanted)}
        seen = {reader: Seen(family, family.variants_for(self.case)[0]) for reader, family in families.items()}
        seen = {reader: one for reader, one in seen.items() if self._convert(one)}
        bar = progress(self.case.name, len(seen) * self.run.num_rounds)
        for round_index in range(self.run.num_rounds):
            for reader, one in seen.items():
                bar.update()
                if round_index == 0:
                    self._choose(reader, one)
                elif one.found and (round_index < SLOW_ROUNDS or not _is_slow(one, seen[OURS])):
                    one.found += self._tried(reader, one.variant, round_index)
        bar.close()
        seen = {reader: one for reader, one in seen.items() if one.found}
        self._agree(seen)
        return seen

    def _convert(self, one: Seen) -> bool:
        """Writes the copies that a family reads; returns False if that fails."""
        family = one.family
        if family.conversion is None:
            return True
        try:
            for folder in (self.folders.tiny, self.folders.of(family)):
                one.conversion = self.run.program(
                    "convert.py",
                    family.conversion,
                    folder,
                    self.case.name,
                    environment=family.environment,
                    seconds=harness.SECONDS_OF_A_BUILD,
                )
        except FailedError as error:
            self.run.note(f"{self.case.name}, conversion to {family.conversion}", error)
            return False
        return True

    def _choose(self, reader: str, one: Seen) -> None:
        """Measures all variants of a reader and keeps the best."""
        for variant in one.family.variants_for(self.case)[: 1 if self.run.is_quick else None]:
            found = self._tried(reader, variant, 0)
            if found and (not one.found or _speed(found[0]) > _speed(one.found[0])):
                one.found, one.variant = found, variant

    def _tried(self, reader: str, variant: Variant, round_index: int) -> list[Measurement]:
        """Measures one variant; returns nothing if a rival fails.

        Raises:
            FailedError: Ours failed.
        """
        try:
            return [self._once(reader, variant, round_index)]
        except FailedError as error:
            if reader.startswith("forebay"):
                raise
            self.run.note(f"{self.case.name}, {compared.full_name(reader, variant)}", error)
            return []

    def _once(self, reader: str, variant: Variant, round_index: int) -> Measurement:
        """Measures one variant in its own process.

        Raises:
            FailedError: It failed, or did not deliver the right rows.
        """
        family = readers.FAMILIES[reader]
        num_cores = family.num_cores or self.run.num_cores
        order = {
            "case": self.case.name,
            "function": variant.function,
            "num_workers": variant.num_workers,
            "num_cores": num_cores,
            "tiny": str(self.folders.tiny),
            "source": str(self.folders.source),
            "folder": str(self.folders.of(family)),
            "free_bytes": free_bytes(self.run),
            "max_seconds": (QUICK_SECONDS if self.run.is_quick else LOADER_SECONDS) if family.is_loader else None,
        }

        def once() -> Any:
            folder = self.folders.of(family)
            data.into_page_cache(convert.place(family.conversion, folder) if family.conversion else self.folders.source)
            order_text = json.dumps(order)
            found = self.run.program("readers.py", order_text, environment=family.environment, num_cores=num_cores)
            if found["checked"] != self._expected():
                raise FailedError(f"other rows than those in {self.folders.tiny.name}: {found['checked']}")
            return found["measured"]

        name = compared.full_name(reader, variant)
        measured = Measurement(**self.log.once(f"{name}, round {round_index + 1}", once))
        rates = f"{count(measured.rows_per_second)} rows/s, {count(measured.rows_per_second_of_all)} of all"
        print(f"    {name}: {rates}, first batch {measured.first_batch_seconds:.2f} s", flush=True)
        return measured

    def _expected(self) -> Any:
        """Returns what a reader must deliver from the tiny data set, as read by pyarrow's simplest call."""
        return self.log.once("expected", lambda: self.run.program("expected.py", self.case.name, self.folders.tiny))

    def _agree(self, seen: dict[str, Seen]) -> None:
        """Compares the rows delivered by the readers that read a whole pass."""
        rows_in = {folder: num_rows(folder) for folder in {self.folders.source, self.folders.whole}}
        sums = Counter[int]()
        told = []
        for reader, one in seen.items():
            folder = self.folders.of(one.family)
            for measured in one.found:
                if not measured.is_whole:
                    continue
                if measured.rows != rows_in[folder]:
                    raise FailedError(f"{reader} read {measured.rows} of the {rows_in[folder]} rows in {folder.name}")
                # A pass reads the source's objects several times.
                total = measured.checksum * (rows_in[self.folders.whole] // rows_in[folder])
                sums[total] += 1
                told.append(f"{reader}: {total}")
        if len(sums) > 1:
            raise FailedError(f"the readers do not agree on {self.folders.whole.name}: {', '.join(told)}")


def measure(run: Run, log: Log, name: str) -> list[Part]:
    """Measures one case."""
    case = CASES[name]
    seen = Comparison(run, log, case, Folders.make(run, case)).measure()
    return [compared.table(case, seen), *compared.bars(run, case, seen)]


def free_bytes(run: Run) -> int:
    """Returns how much memory to allocate and free before a reader starts, so that the host has it at hand."""
    return 0 if run.is_quick else FREE_BYTES


def _speed(found: Measurement) -> float:
    """Returns the rate by which variants are compared: of the pass, or of the part that was read."""
    return found.rows_per_second_of_all if found.is_whole else found.rows_per_second


def _is_slow(one: Seen, ours: Seen) -> bool:
    return _speed(one.found[0]) * SLOW < _speed(ours.found[0])


def num_rows(folder: Path) -> int:
    """Returns the number of rows in a folder, from the footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
