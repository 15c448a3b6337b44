"""What whole queries take and return: functions, tables, parameters, saved queries, rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Never

from forebay import _lib, familiar
from forebay.exceptions import ColumnNotFoundError, QueryError, SettingError
from forebay.iteration import Iteration
from forebay.options import check_named, check_text

if TYPE_CHECKING:
    from forebay.dataset import Dataset

QUERIES = "queries"
"""Folder of the saved queries in the package. In a checkout it holds links: maturin follows those of files alone."""

QUOTED = 200
"""Characters of SQL that errors quote at most."""

_PLACE = re.compile(r" at line:? \d+, column:? \d+( of)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A Python function that queries may call.

    It gets one `pyarrow.Array` for each argument, or the number of rows if there is none, and returns an Arrow array of
    as many values. For equal arguments it must return equal values. It runs on Forebay's threads, one call at a time,
    as Python does; to be used in `DataLoader` workers it must be one that `pickle` finds by name. States know it by its
    name alone: rename one that comes to return other values, so that older states are refused.

    Example:
        >>> import pyarrow as pa, pyarrow.compute as pc
        >>> shout = Function(call=pc.utf8_upper, arguments=[pa.string()], returns=pa.string())
        >>> loud = ds.sql("SELECT shout(language) AS loud FROM dataset", functions={"shout": shout})
        >>> loud.column_names
        ['loud']
    """

    call: Callable[..., Any]
    """What is called."""
    arguments: Sequence[Any]
    """Types of the arguments, of pyarrow or another Arrow library."""
    returns: Any
    """Type of the values."""


def read_query(name: str) -> str:
    """Returns a saved query, by its name or that of its file.

    Each begins with a comment: what it is for, its parameters, and the columns that it expects.

    Raises:
        SettingError: there is none of that name; those there are, are listed.

    Example:
        >>> print(read_query("quality").splitlines()[0])
        -- Text worth training on: neither tiny nor huge, and not written by a program.
    """
    plain, known = check_text("query", name).removesuffix(".sql"), list_queries()
    if plain not in known:
        raise SettingError(f"query: there is no saved query {name[:QUOTED]!r}; there are {', '.join(known)}")
    file = resources.files("forebay") / QUERIES / f"{plain}.sql"
    return file.read_text(encoding="utf-8")


def list_queries() -> list[str]:
    """Returns the names of the saved queries."""
    folder = resources.files("forebay") / QUERIES
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))


class QueryResult:
    """The rows of a query, once: an Arrow stream, and an iterator of batches.

    Takes part in `pa.table(result)`, `pl.DataFrame(result)`, `duckdb.sql("FROM result")`, ... Reads ahead from the
    first batch on; `close()`, or the end of a `with` block, ends it before its end.

    Raises:
        ClosedError: the rows were closed, or went to another consumer before.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    # Not for type checkers, to which it would say that a result has all names.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise familiar.missing(self, "the result of a query", name, familiar.OF_QUERY_RESULT)

    def __repr__(self) -> str:
        return "QueryResult(rows to be read once, by `pyarrow.table(result)`, `polars.DataFrame(result)`, ...)"

    def __iter__(self) -> Iterator[_lib.Batch]:
        return Iteration(self._batches(), "query again")

    def _batches(self) -> Iterator[_lib.Batch]:
        while (batch := self._rows.next()) is not None:
            yield batch

    def close(self) -> None:
        """Ends the query; its rows are not to be had any more."""
        self._rows.close()

    def __enter__(self) -> QueryResult:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


@contextmanager
def in_words_of(query: str, name: str, given: str) -> Iterator[None]:
    """Has errors about SQL that we made quote the argument that it was made of; our lines and columns say nothing."""
    try:
        yield
    except (QueryError, ColumnNotFoundError) as error:
        said = _PLACE.sub(lambda found: " in" if found[1] else "", str(error))
        said = said.replace(f"the SQL {_quoted(query)}", _quoted(query)).replace(_quoted(query), _quoted(given))
        raise type(error)(f"{name}: {said}") from error.__cause__


def _quoted(text: str) -> str:
    return f"`{text}`" if len(text) <= QUOTED else f"`{text[:QUOTED]}…`"


def make_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns each value as an Arrow array of it alone."""
    given = check_named("params", parameters, "values")
    if not given:
        return {}
    import pyarrow as pa

    def make(name: str, value: Any) -> Any:
        try:
            return _one_value(_python_value(value))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise SettingError(f"params: `{name}` has no SQL type: {error}") from error

    return {name: make(name, value) for name, value in given.items()}


def _python_value(value: Any) -> Any:
    """Returns values of arrays as those of Python, but for nanoseconds: `tolist` makes integers of them.

    Those of pandas are taken apart here, as pyarrow cuts them off.
    """
    # `NaT` has `nan` there, an index of pandas another index, and an interval of Arrow no `value`.
    parts = (getattr(value, "nanosecond", 0), getattr(value, "nanoseconds", 0))
    if hasattr(value, "value") and any(isinstance(part, int) and part for part in parts):
        return _nanoseconds(value)
    if str(getattr(value, "dtype", ""))[-4:] in ("[ns]", "[ps]", "[fs]", "[as]"):
        return [_python_value(part) for part in value] if value.ndim else value[()]
    if isinstance(value, memoryview):
        return bytes(value)
    # Arrays and scalars of pyarrow, of NumPy, pandas and torch, of Polars.
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(value, method):
            return getattr(value, method)()
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return list(value) if isinstance(value, tuple | range) else value


def _nanoseconds(value: Any) -> Any:
    """Returns a `Timestamp` or `Timedelta` of pandas as a scalar of pyarrow."""
    import pyarrow as pa

    if hasattr(value, "nanoseconds"):
        return pa.scalar(value.value, pa.duration("ns"))
    zone = None if value.tzinfo is None else pa.lib.tzinfo_to_string(value.tzinfo)
    return pa.scalar(value.value, pa.timestamp("ns", zone))


def _one_value(value: Any) -> Any:
    """Returns an array of a value; integers that are too large for `int64` are of `uint64`, or decimals."""
    import pyarrow as pa

    try:
        return pa.array([value])
    except OverflowError:
        try:
            return pa.array([_with_integers(value, lambda integer: pa.scalar(integer, pa.uint64()))])
        except (pa.ArrowInvalid, OverflowError):
            return pa.array([_with_integers(value, Decimal)])


def _with_integers(value: Any, make: Callable[[int], Any]) -> Any:
    """Returns a value in which `make` makes other numbers of the integers, in lists too."""
    if isinstance(value, list | tuple):
        return [_with_integers(part, make) for part in value]
    return make(value) if isinstance(value, int) and not isinstance(value, bool) else value


def make_tables(tables: Mapping[str, Any] | None, load: Callable[[str], Dataset]) -> dict[str, Any]:
    """Returns each table as the core takes it; `load` opens those given by their place."""
    from forebay.dataset import Dataset

    def make(name: str, table: Any) -> Any:
        if isinstance(table, str | PathLike):
            table = load(fspath(table))
        if isinstance(table, Dataset):
            return table._native
        if isinstance(table, Mapping) and not hasattr(table, "__arrow_c_stream__"):
            import pyarrow as pa

            if any(isinstance(column, Dataset) for column in table.values()):
                raise SettingError(f"tables: `{name}` is several splits; choose one, as in ds['{next(iter(table))}']")
            try:
                table = pa.table(dict(table))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise SettingError(f"tables: `{name}` is no dict of columns: {error}") from error
        if not hasattr(table, "__arrow_c_stream__") and not hasattr(table, "__arrow_c_array__"):
            kind, instead = type(table).__name__, ""
            if type(table).__module__.startswith("datasets."):
                kind, instead = f"datasets.{kind}", "; `table.with_format('arrow')[:]` is one"
            raise SettingError(
                f"tables: `{name}` is of type {kind}; expected a Dataset of Forebay, a place of Parquet, or a table of "
                f"an Arrow library (pyarrow, Polars, pandas 2.2 or later, DuckDB, ...){instead}"
            )
        try:
            return _lib.Table(table)
        except MemoryError:
            raise
        except Exception as error:  # its library may raise anything
            raise SettingError(f"tables: `{name}` cannot be read as Arrow: {error}") from error

    return {name: make(name, table) for name, table in check_named("tables", tables, "tables").items()}


def make_functions(functions: Mapping[str, Function] | None) -> list[_lib.Function]:
    """Returns functions as the core takes them."""

    def make(name: str, function: Any) -> _lib.Function:
        if not isinstance(function, Function):
            got = type(function).__name__
            raise SettingError(f"functions: `{name}` is of type {got}; expected a `forebay.Function` with its types")
        try:
            return _lib.Function(name, function.call, list(function.arguments), function.returns)
        except (TypeError, ValueError) as error:
            raise SettingError(f"functions: `{name}` has a type that is not Arrow's: {error}") from error

    given = check_named("functions", functions, "`forebay.Function`s")
    return [make(name, function) for name, function in given.items()]
