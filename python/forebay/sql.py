"""Arguments and results of whole queries: functions, tables, parameters, saved queries, rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import resources
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Never

from forebay import _lib, display, familiar
from forebay.exceptions import ClosedError, ColumnNotFoundError, QueryError, SettingError
from forebay.iteration import Iteration
from forebay.options import check_named, check_text
from forebay.packages import import_for
from forebay.python_values import array_of_one, to_array

if TYPE_CHECKING:
    from forebay.dataset import Dataset

QUERIES = "queries"
"""Folder of the saved queries in the package. In a checkout it holds links to files, as maturin follows no others."""

QUOTED = 200
"""The most characters of SQL that errors quote."""

_PLACE = re.compile(r" at line:? \d+, column:? \d+( of)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A Python function that queries may call.

    It gets one `pyarrow.Array` per argument, or the number of rows if it has no arguments, and returns an Arrow array
    with as many values. It must accept empty arrays, with which it is called when a query is planned, and must return
    equal values for equal arguments. It runs on Forebay's threads, one call at a time because of the GIL; in
    `DataLoader` workers, it must be one that `pickle` finds by name. States identify it by its name only: if it comes
    to return other values, rename it, so that older states are refused.

    Example:
        >>> import pyarrow as pa, pyarrow.compute as pc
        >>> shout = Function(call=pc.utf8_upper, arguments=[pa.string()], returns=pa.string())
        >>> loud = ds.sql("SELECT shout(language) AS loud FROM dataset", functions={"shout": shout})
        >>> loud.column_names
        ['loud']
    """

    call: Callable[..., Any]
    """The function to call."""
    arguments: Sequence[Any]
    """Types of the arguments, from pyarrow or another Arrow library."""
    returns: Any
    """Type of the returned values."""

    def __post_init__(self) -> None:
        call: object = self.call
        if not callable(call):
            raise SettingError(f"call: expected a function, got {call!r}")
        arguments: object = self.arguments
        if not isinstance(arguments, Sequence) or isinstance(arguments, str | bytes):
            raise SettingError(f"arguments: expected a list of Arrow types, such as `[pa.int64()]`, got {arguments!r}")
        for argument in arguments:
            _check_type("arguments", argument)
        _check_type("returns", self.returns)


def _check_type(name: str, value: Any) -> None:
    if isinstance(value, type) or not hasattr(value, "__arrow_c_schema__"):
        raise SettingError(f"{name}: expected types of Arrow, such as `pa.int64()` or `pa.string()`, got {value!r}")


def read_query(name: str) -> str:
    """Returns the text of a saved query, by its name or file name.

    Each begins with a comment that tells its purpose, parameters and expected columns.

    Raises:
        SettingError: there is no query of that name; the message lists those that exist.

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
    """The rows of a query, to be read once: an Arrow stream and an iterator of batches.

    Works in `pa.table(result)`, `pl.DataFrame(result)`, `duckdb.sql("FROM result")`, ... Reads ahead from the first
    batch on; `close()`, or the end of a `with` block, stops it early. To read the rows again, call `query` again, or
    keep the table.

    Raises:
        ClosedError: the rows were closed, a loop over them has begun or has failed, or another consumer took them.
    """

    def __init__(self, rows: Any, columns: _lib.Dataset | _lib.Rows) -> None:
        self._rows = rows
        self._columns = columns
        self._is_in_loop = False

    # Hidden from type checkers, which would take it to mean that a result has every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise familiar.missing(self, "the result of a query", name, familiar.OF_QUERY_RESULT)

        # Without it, `pandas.DataFrame(result)` would take each batch for a row, and NumPy the result for an object.
        def __array__(self, *_: object, **__: object) -> Never:
            raise TypeError(
                "the result of a query is no array; `pyarrow.table(result).to_pandas()` makes a data frame of it, and "
                "`pyarrow.table(result)['n'].to_numpy()` an array of a column"
            )

    def __repr__(self) -> str:
        return display.result_text(self._columns)

    def __iter__(self) -> Iterator[_lib.Batch]:
        return Iteration(self._batches(), "query again")

    def _batches(self) -> Iterator[_lib.Batch]:
        self._check_unread()
        self._is_in_loop = True
        # However the loop ends, nobody takes the rest for all rows.
        with closing(self._rows) as rows:
            while (batch := rows.next()) is not None:
                yield batch

    def _check_unread(self) -> None:
        if self._is_in_loop:
            raise ClosedError("the rows of a query are read once, and a loop over them has begun; query again")

    def close(self) -> None:
        """Ends the query; its rows can no longer be read."""
        self._rows.close()

    def __enter__(self) -> QueryResult:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self._check_unread()
        return self._rows.__arrow_c_stream__(requested_schema)


@contextmanager
def in_words_of(query: str, name: str, given: str) -> Iterator[None]:
    """Makes errors about generated SQL quote the argument it was made from, without lines and columns in the SQL."""
    try:
        yield
    except (QueryError, ColumnNotFoundError) as error:
        said = _PLACE.sub(lambda found: " in" if found[1] else "", str(error))
        said = said.replace(f"the SQL {_shown(query)}", _shown(query)).replace(_shown(query), _shown(given))
        if given not in query:  # It is no SQL, and so has no quotes.
            said = said.replace("; write text in single quotes", "")
        raise type(error)(f"{name}: {said}") from error.__cause__


def _shown(text: str) -> str:
    return f"`{text}`" if len(text) <= QUOTED else f"`{text[:QUOTED]}…`"


def make_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns each value as an Arrow array with one element."""
    given = check_named("params", parameters, "values")
    if not given:
        return {}
    pa = import_for("params: values", "pyarrow")

    def make(name: str, value: Any) -> Any:
        try:
            return array_of_one(value)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise SettingError(f"params: `{name}` has no SQL type: {error}") from error

    return {name: make(name, value) for name, value in given.items()}


def make_tables(tables: Mapping[str, Any] | None, load: Callable[[str], Dataset]) -> dict[str, Any]:
    """Returns each table as the core takes it; `load` opens those given by location."""
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
                table = pa.table({name: to_array(column) for name, column in table.items()})
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise SettingError(f"tables: `{name}` is not a dict of columns: {error}") from error
        if not hasattr(table, "__arrow_c_stream__") and not hasattr(table, "__arrow_c_array__"):
            kind, instead = type(table).__name__, ""
            if type(table).__module__.startswith("datasets."):
                kind, instead = f"datasets.{kind}", "; `table.with_format('arrow')[:]` is one"
            elif kind == "LazyFrame":
                instead = "; `table.collect()` is one"
            elif isinstance(table, list | tuple) and all(isinstance(row, Mapping) for row in table):
                instead = "; `pyarrow.Table.from_pylist(table)` is one"
            raise SettingError(
                f"tables: `{name}` is of type {kind}; expected a Dataset of Forebay, a path or URI of Parquet, a dict "
                f"of columns, or a table of an Arrow library (pyarrow, Polars, pandas from 2.2, DuckDB, ...){instead}"
            )
        try:
            return _lib.Table(table)
        except MemoryError:
            raise
        except Exception as error:  # its library may raise anything
            read = _through_pyarrow(table)
            if read is None:
                raise SettingError(
                    f"tables: `{name}` cannot be read as Arrow: {error}; if that is about a type, cast the column, or "
                    "pass a `pyarrow.Table`"
                ) from error
            return read

    return {name: make(name, table) for name, table in check_named("tables", tables, "tables").items()}


def _through_pyarrow(table: Any) -> _lib.Table | None:
    """Returns a table that the core refuses, such as one of Polars with a column of NULLs; None if pyarrow fails too.

    Readers, which have no length, and streams are not tried: what is left of one would be taken for all of its rows.
    """
    from forebay.position import Position

    if not hasattr(table, "__len__") or isinstance(table, Position):
        return None
    try:
        import pyarrow as pa

        return _lib.Table(pa.table(table))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - its library may raise anything
        return None


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
