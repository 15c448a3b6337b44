"""Functions on batches: their arguments, their results, and randomness that does not depend on workers.

A `Program` is everything that happens to a batch between the stream and the loop; workers get it as a whole. It is a
pure function of the batch and the positions of its rows, if the user's functions are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from forebay.columns import Masked, length_of, row_of
from forebay.compat import locate
from forebay.exceptions import TransformError
from forebay.python_values import to_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay import _lib
    from forebay.formats import Format

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Rows(NamedTuple):
    """The rows of an epoch that a batch holds."""

    epoch: int
    first: int
    """Position of the first row."""
    step: int
    """Distance between the positions of consecutive rows: the world size."""
    num_rows: int
    repeated: int | None = None
    """Position of the last row if it repeats another, because the rank lacked a row."""

    @property
    def last(self) -> int:
        """Position of the last row, unless it is `repeated`."""
        return self.first + self.step * max(self.num_rows - 1, 0)

    @property
    def positions(self) -> Sequence[int]:
        """The rows' positions in the order of the epoch, independent of ranks and batches."""
        in_turn = range(self.first, self.first + self.step * self.num_rows, self.step)
        return in_turn if self.repeated is None else [*in_turn[:-1], self.repeated]

    def __str__(self) -> str:
        every = f" in steps of {self.step}" if self.step > 1 else ""
        if self.repeated is None:
            return f"the rows at positions {self.first} to {self.last}{every} of epoch {self.epoch}"
        if self.num_rows == 1:
            return f"the row at position {self.repeated} of epoch {self.epoch}, again"
        last = self.last - self.step
        return f"the rows at positions {self.first} to {last}{every}, and {self.repeated} again, of epoch {self.epoch}"


def seeds_of(seed: int, rows: Rows, purpose: str) -> Any:
    """Returns 64 random bits for each row: a hash of seed, epoch, purpose and position.

    A NumPy array, or a list of integers if NumPy is not installed.
    """
    start, mask = _key(seed, rows.epoch, purpose)
    try:
        import numpy as np
    except ImportError:
        return [_mixed(start + position * _GOLDEN) ^ mask for position in rows.positions]
    positions = np.asarray(rows.positions, dtype=np.uint64)
    # SplitMix64, whose n-th number is a bijection of n: no two rows of an epoch have the same bits.
    bits = positions * np.uint64(_GOLDEN) + np.uint64(start)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31)) ^ np.uint64(mask)


def seed_of(seed: int, rows: Rows, purpose: str) -> int:
    """Returns the random bits of the first row, as in `seeds_of`."""
    start, mask = _key(seed, rows.epoch, purpose)
    return _mixed(start + rows.positions[0] * _GOLDEN) ^ mask


def _mixed(bits: int) -> int:
    """Returns the SplitMix64 hash of a state."""
    bits &= _MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)


@lru_cache(maxsize=64)
def _key(seed: int, epoch: int, purpose: str) -> tuple[int, int]:
    import hashlib  # loads OpenSSL, so not when Forebay is imported

    digest = hashlib.blake2b(f"forebay.map {seed} {epoch} {purpose}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def seed_generators(seed: int) -> None:
    """Seeds the process's global generators: Python's, NumPy's if imported, and torch's, at the latest at its import.

    Importing torch takes seconds, which only functions that use it should cost.
    """
    import random

    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        # Half of the bits: seeding with all of them takes six times as long, and rows are seeded one by one.
        numpy.random.seed(seed >> 32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)
    else:
        _UNTIL_TORCH.keep(seed)


class _UntilTorch:
    """Keeps the current seed, and seeds torch's generator with it once a function imports torch."""

    def __init__(self) -> None:
        self._seed = 0

    def keep(self, seed: int) -> None:
        """Replaces the seed; from then on, imports of torch are noticed."""
        self._seed = seed
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, *where: Any) -> Any:
        """Finds torch as the other finders do, with a loader that also seeds it."""
        if name != "torch":
            return None
        specs = (finder.find_spec(name, *where) for finder in list(sys.meta_path) if finder is not self)
        spec: Any = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self._execute, spec.loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[Any], None], torch: Any) -> None:
        execute(torch)
        # Not earlier: many programs look for torch without importing it.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            torch.default_generator.manual_seed(self._seed)


_UNTIL_TORCH = _UntilTorch()


@dataclass(frozen=True)
class Step:
    """A user's function and how to call it; see `Dataset.map`."""

    function: Callable[..., Any]
    batched: bool
    with_indices: bool
    with_seeds: bool
    input_columns: tuple[str, ...] | None
    remove_columns: tuple[str, ...]
    fn_kwargs: Mapping[str, Any]
    purpose: str = "0"
    """Makes the randomness of a step differ from that of others."""
    method: ClassVar[str] = "map"

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    def apply(self, batch: Any, rows: Rows, seed: int, *, owns_process: bool) -> Any:
        """Returns the batch with the columns that the function returned."""
        seeds: Any = None
        if self.with_seeds or (owns_process and not self.batched):
            seeds = seeds_of(seed, rows, self.purpose)
        if not self.batched:
            return self._merged(batch, self._of_rows(batch, rows, seeds, owns_process=owns_process), rows)
        if owns_process and rows.num_rows:
            seed_generators(seed_of(seed, rows, self.purpose))
        extra = ([list(rows.positions)] if self.with_indices else []) + ([seeds] if self.with_seeds else [])
        return self._merged(batch, self._call(batch, extra), rows)

    def _call(self, value: Any, extra: list[Any]) -> Any:
        """Calls the function on a batch or a row."""
        if self.input_columns is None:
            given = [dict(value) if isinstance(value, dict) else value]
        else:
            given = [_column(value, name) for name in self.input_columns]
        return self.function(*given, *extra, **self.fn_kwargs)

    def _of_rows(self, batch: dict[str, Any], rows: Rows, seeds: Any, *, owns_process: bool) -> dict[str, Any] | None:
        """Calls the function on each row; returns its results as columns."""
        results = []
        for index, position in enumerate(rows.positions):
            if owns_process:
                seed_generators(int(seeds[index]))
            row = {name: row_of(column, index) for name, column in batch.items()}
            extra = ([position] if self.with_indices else []) + ([int(seeds[index])] if self.with_seeds else [])
            try:
                results.append(self._call(row, extra))
            except _MissingColumnError:
                raise
            except Exception as error:
                raise _RowError(position) from error
        if all(result is None for result in results):
            return None
        return _columns(results, rows)

    def _merged(self, batch: Any, result: Any, rows: Rows) -> Any:
        """Returns the kept columns of the batch and those of the result."""
        if not isinstance(batch, dict):
            return batch if result is None else _checked_table(batch, result, rows)
        if result is None:
            result = {}
        if not isinstance(result, Mapping):
            raise _WrongResultError(f"expected a dict of columns, or None, got {_kind(result)}")
        for name, column in result.items():
            _check_column(name, column, rows.num_rows)
        missing = [name for name in self.remove_columns if name not in batch]
        if missing:
            has = f", only {', '.join(batch)}"
            raise _MissingColumnError(f"remove_columns: the batch has no column `{missing[0]}`{has}")
        return {name: column for name, column in batch.items() if name not in self.remove_columns} | dict(result)


@dataclass(frozen=True)
class Columns:
    """A step that calls nothing: `select_columns`, `remove_columns` or `rename_columns` of what functions returned."""

    method: str
    names: Mapping[str, str]
    """The new names of columns by their old ones."""

    @property
    def name(self) -> str:
        """The names in messages."""
        return ", ".join(self.names)

    def apply(self, batch: Any, rows: Rows, seed: int, *, owns_process: bool) -> Any:  # noqa: ARG002 - as that of `Step`
        """Returns the batch with these columns."""
        if missing := [name for name in self.names if name not in batch]:
            raise _MissingColumnError(f"the batch has no column `{missing[0]}`, only {', '.join(batch)}")
        if self.method == "select_columns":
            return {name: batch[name] for name in self.names}
        if self.method == "remove_columns":
            return {name: column for name, column in batch.items() if name not in self.names}
        renamed = {self.names.get(name, name): column for name, column in batch.items()}
        if len(renamed) < len(batch):
            raise _MissingColumnError(f"the batch already has a column of a new name: it has {', '.join(batch)}")
        return renamed


@dataclass(frozen=True)
class Collate:
    """A function that makes a batch from a list of rows: the `collate_fn` of a DataLoader."""

    function: Callable[[list[Any]], Any]
    purpose: str = "collate"

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)


class _WrongResultError(Exception):
    """Tells why the result of a function is invalid."""


class _MissingColumnError(Exception):
    """Tells which column that a step names the batch lacks."""


class _RowError(Exception):
    """Tells the position of the row on which a function failed; the cause is what it raised."""


def told(error: BaseException) -> str:
    """Returns an exception's type and text; only the type if it has no text or `str` fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever its `__str__` raises
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _columns(results: list[Any], rows: Rows) -> dict[str, Any]:
    """Returns the results of a function on rows as columns."""
    first = results[0]
    for position, result in zip(rows.positions, results, strict=True):
        if not isinstance(result, Mapping):
            what = f"a dict of columns for the row at position {position}"
            raise _WrongResultError(f"expected {what}, got {_kind(result)}")
        if result.keys() != first.keys():
            names = f"{sorted(map(str, result))} at position {position}, {sorted(map(str, first))} before"
            raise _WrongResultError(f"expected the same columns of every row, got {names}")
    return {name: _stacked([result[name] for result in results]) for name in first}


@dataclass(frozen=True)
class Opener:
    """Converts batches of a stream into the arguments of functions."""

    format: Format | None
    """A prepared format; None for Python values."""

    def batch(self, carried: _lib.Batch) -> Any:
        """Returns a dict of lists, or the format's batch."""
        return to_python(carried, "to_pydict") if self.format is None else self.format(carried)

    def rows(self, carried: _lib.Batch) -> list[Any]:
        """Returns dicts, or the format's rows."""
        return to_python(carried, "to_pylist") if self.format is None else list(self.format.rows(carried))


@dataclass(frozen=True)
class Program:
    """Everything that is done to a batch between the stream and the loop."""

    opener: Opener
    steps: tuple[Step | Columns, ...]
    collate: Collate | None
    seed: int

    @property
    def setting(self) -> str:
        """The name of all functions in messages: the arguments they were passed as."""
        names = (["map"] if self.steps else []) + ([] if self.collate is None else ["collate_fn"])
        return ", ".join(names)

    def __call__(self, carried: _lib.Batch, rows: Rows, *, owns_process: bool = False) -> Any:
        """Runs the functions.

        Args:
            carried: The batch as the stream hands it over.
            rows: The rows that it holds.
            owns_process: Whether the process's global generators may be seeded.

        Raises:
            TransformError: a function raised (its exception is the cause) or returned something invalid.
        """
        step: Step | Columns | Collate | None = None
        try:
            batch = self.opener.batch(carried) if self.steps or self.collate is None else None
            for step in self.steps:
                batch = step.apply(batch, rows, self.seed, owns_process=owns_process)
            if self.collate is None:
                return batch
            step = self.collate
            if owns_process and rows.num_rows:
                seed_generators(seed_of(self.seed, rows, step.purpose))
            return step.function(self._rows(carried, batch, rows.num_rows))
        except _WrongResultError as error:
            raise TransformError(f"{self._where(step)} returned for {rows}: {error}") from None
        except _MissingColumnError as error:
            raise TransformError(f"{self._where(step)} failed on {rows}: {error}") from None
        except _RowError as error:
            row, cause = f"the row at position {error} of epoch {rows.epoch}", error.__cause__ or error
            raise TransformError(f"{self._where(step)} failed on {row}: {told(cause)}") from cause
        except Exception as error:
            locate(error, rows.positions)
            raise TransformError(f"{self._where(step)} failed on {rows}: {told(error)}") from error

    def _rows(self, carried: _lib.Batch, batch: Any, num_rows: int) -> list[Any]:
        """Returns the rows of a batch as a list."""
        if not self.steps:
            return self.opener.rows(carried)
        return [{name: row_of(column, index) for name, column in batch.items()} for index in range(num_rows)]

    def _where(self, step: Step | Columns | Collate | None) -> str:
        if step is None:
            return "taking the batch apart"
        if isinstance(step, Collate):
            return f"collate_fn: `{step.name}`"
        return f"{step.method}: `{step.name}`"


def _column(value: Any, name: str) -> Any:
    try:
        return value[name]
    except (KeyError, IndexError):
        has = f", only {', '.join(value)}" if isinstance(value, dict) else ""
        raise _MissingColumnError(f"input_columns: the batch has no column `{name}`{has}") from None


def _check_column(name: object, column: Any, num_rows: int) -> None:
    """Refuses what is not a column of `num_rows` rows."""
    if not isinstance(name, str):
        raise _WrongResultError(f"expected names of columns, got {name!r}")
    length = length_of(column)
    if length is None:
        has_parts = isinstance(column, Mapping | Masked)
        where = "in each part" if has_parts else "in a tensor, an array or a list"
        expected = f"{num_rows} values {where}"
        raise _WrongResultError(f"column `{name}`: expected {expected}, got {_kind(column)}")
    if length != num_rows:
        raise _WrongResultError(
            f"column `{name}`: expected {num_rows} rows, as many as the batch has, got {length}; a function that makes "
            "other rows belongs in the `collate_fn` of a `DataLoader`"
        )


def _checked_table(batch: Any, result: Any, rows: Rows) -> Any:
    """Returns the table that a function made from a table, or refuses it."""
    if type(result) is not type(batch):
        raise _WrongResultError(f"expected {_kind(batch)}, as it was given, got {_kind(result)}")
    length = length_of(result)
    if length != rows.num_rows:
        raise _WrongResultError(f"expected a table of {rows.num_rows} rows, as it was given, got {length}")
    return result


def _stacked(values: Sequence[Any]) -> Any:
    """Returns the values of rows as one array if they have one shape and type, else as a list."""
    first: Any = values[0]
    kind = type(first)
    if any(type(value) is not kind for value in values):
        return list(values)
    for module in ("torch", "numpy"):
        library: Any = sys.modules.get(module)
        if library is None:
            continue
        # Scalars of NumPy have their own types.
        names = ("Tensor",) if module == "torch" else ("ndarray", "number", "bool_", "datetime64", "timedelta64")
        kinds: Any = tuple(getattr(library, name) for name in names)
        if isinstance(first, kinds):
            is_one = all(value.shape == first.shape and value.dtype == first.dtype for value in values)
            return library.stack(list(values)) if is_one else list(values)
    return list(values)


def _kind(value: object) -> str:
    name = type(value).__module__ + "." + type(value).__qualname__
    return f"`{name.removeprefix('builtins.')}`"
