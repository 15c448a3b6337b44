"""`Dataset`: rows and columns wanted, not yet read."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Never

from forebay import _lib, display, familiar
from forebay.access import is_number, row_numbers
from forebay.casts import cast_query, check_features, rename_query
from forebay.compat import DatasetsFormat, refuse_media
from forebay.distributed import current_world
from forebay.engines import check_datafusion
from forebay.exceptions import PerformanceWarning, QueryError, SettingError
from forebay.explain import Explanation
from forebay.features import read_features, to_json
from forebay.filters import is_expression, to_sql
from forebay.formats import format_of, make_format
from forebay.frames import level_of_loop
from forebay.iteration import ANEW, Iteration
from forebay.loader import Stream
from forebay.manifests import save_manifest
from forebay.options import (
    DEFAULT_MAX_SKIPPED,
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_SHUFFLE_BYTES,
    LEAST_MEMORY_LIMIT,
    MOST_BATCH_ROWS,
    OnError,
    ReadOptions,
    Remainder,
    ShareOptions,
    ShuffleOptions,
    check_count,
    check_flag,
    check_names,
    check_text,
)
from forebay.passes import MOST_PASSES
from forebay.progress import with_progress
from forebay.python_values import to_python
from forebay.replicas import share_of
from forebay.selection import Selection
from forebay.shaping import chosen
from forebay.sql import Function, QueryResult, in_words_of, make_functions, make_parameters, make_tables
from forebay.weights import make_weights, weighing

if TYPE_CHECKING:
    from os import PathLike

    from forebay.compat import Compat
    from forebay.formats import Format, FormatAlias, FormatName
    from forebay.hf.iterable import IterableDataset
    from forebay.mapped import MappedDataset
    from forebay.options import PoolOptions
    from forebay.shaping import Image, Pack, Pad
    from forebay.torch import TorchStream

ROWS_PER_READ = 1024
"""Rows that `Dataset.iter` takes from Arrow to Python at a time, where they are small."""

Filters = Sequence[Any]
"""Conditions `(column, operator, value)`, lists of them, or a `pyarrow.compute.Expression`."""


class Dataset:
    """Rows and columns of Parquet objects, as a query keeps them. Immutable; every method returns a new one.

    Nothing but footers has been read. `len()` reads the predicate columns that statistics do not decide, once.
    """

    def __init__(
        self,
        native: _lib.Dataset,
        shuffle: ShuffleOptions | None = None,
        format: Format | None = None,
        num_passes: int | None = 1,
    ) -> None:
        if not isinstance(native, _lib.Dataset):
            raise TypeError("Dataset: datasets are opened by `forebay.load_dataset(path, split=...)`")
        self._native = native
        self._shuffle = shuffle
        self._format = format
        self._num_passes = num_passes
        self._prepared_format: Format | None = None
        self._weights: _lib.Weights | None = None

    # Not for type checkers, to which it would say that a dataset has all names.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise familiar.missing(self, "a dataset", name, familiar.OF_DATASET)

    def _of(self, native: _lib.Dataset) -> Dataset:
        """Returns a dataset like this one, of other rows or columns."""
        return Dataset(native, self._shuffle, self._format, self._num_passes)

    def filter(self, condition: str | Filters, *, params: Mapping[str, Any] | None = None) -> Dataset:
        """Keeps the rows for which a SQL expression is true, among those kept so far.

        Type-checked now; evaluated once, on its own columns, when the rows are first needed. A row for which it is NULL
        is not kept. `NaN` equals itself and is above every number; an integer that overflows is an error. Column names
        are case-sensitive. The classes of a [ClassLabel](#features) have their names: `label = 'cat'`.

        Args:
            condition: SQL; or, as in `datasets` and pandas, conditions `[(column, operator, value), ...]` that all
                hold, lists of such lists of which one holds, or a `pyarrow.compute.Expression`.
            params: Values of `$name` in SQL. They are bound, not pasted.

        Raises:
            QueryError: it does not parse, does not type-check or is not Boolean.
            ColumnNotFoundError: a column is not in the dataset; near names are listed.
            SettingError: it is none of these forms, or a parameter that cannot be used.

        Example:
            >>> ds.filter("language = 'rust' AND size > $least", params={"least": 500}).num_rows
            278
            >>> ds.filter([("language", "==", "rust"), ("size", ">", 500)]).num_rows
            278
        """
        if isinstance(condition, list | tuple) or is_expression(condition):
            if params is not None:
                raise SettingError("params: only SQL text has parameters; write values into the conditions")
            text, values = to_sql(condition, self.schema)
            with in_words_of(text, "filters", str(condition)):
                return self._of(self._native.filter(check_text("filter", text), make_parameters(values)))
        if not isinstance(condition, str):
            given: object = condition
            got = type(given).__name__
            instead = "; `ds.to_hf().filter(function)` calls Python for each row" if callable(given) else ""
            raise SettingError(f'filter: expected SQL text such as "score > 0.8", or conditions, got {got}{instead}')
        return self._of(self._native.filter(check_text("filter", condition), make_parameters(params)))

    def sql(
        self,
        query: str,
        *,
        params: Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
        functions: Mapping[str, Function] | None = None,
    ) -> Dataset:
        """Keeps the rows that a `SELECT` returns, with its columns: a dataset like any other.

        The query calls this dataset `dataset`, sees the columns that are selected, and returns at most one row for each
        of its rows: `WHERE`, computed columns, `JOIN` on keys that are unique, `IN (SELECT ...)`, `ORDER BY`, `LIMIT`,
        `DISTINCT ON`, window functions, `TABLESAMPLE BERNOULLI (percent) REPEATABLE (seed)`. Ties, rows that it does
        not order, and what `LIMIT` keeps of these go by the dataset's order, which an earlier query may have given it.
        Columns that are functions of the row are computed as it is read, in every epoch; values of other tables and
        rows are found once, with the rows, and kept in memory.

        Planned now; run when the rows are first needed, for `ORDER BY` on the columns that it names alone. `shuffle`
        puts its own order in the place of `ORDER BY`.

        Args:
            query: One `SELECT`. Column and table names are case-sensitive.
            params: Values of `$name` in the query. They are bound, not pasted.
            tables: Further tables by name: a `Dataset`, a place of Parquet files, a table of any Arrow library, or a
                dict of columns.
            functions: Python functions by name, in which upper and lower case are the same.

        Raises:
            QueryError: it does not parse or type-check, is not a `SELECT`, names a table that was not passed, or
                returns other rows than those of the dataset (then `query` runs it).
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a parameter, table or function that cannot be used.

        Example:
            >>> small = ds.sql("SELECT path, size / 1000.0 AS kb FROM dataset WHERE size < $most", params={"most": 10})
            >>> small.column_names, small.num_rows
            (['path', 'kb'], 4)
        """
        native = self._native.sql(check_text("query", query), *_inputs(params, tables, functions))
        return self._of(native)

    def query(
        self,
        query: str,
        *,
        params: Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
        functions: Mapping[str, Function] | None = None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> QueryResult:
        """Runs any `SELECT` and returns its rows: groups, joins of any kind, unions.

        Arguments are those of `sql`. Sorts that exceed the memory spill to temporary files; of a join the side with
        fewer rows must fit into half of it.

        Args:
            query: One `SELECT`.
            params: As in `sql`.
            tables: As in `sql`.
            functions: As in `sql`.
            memory_limit: Bytes that the query may hold.

        Raises:
            QueryError: it does not parse or type-check, or names a table that was not passed; while its rows are read:
                it fails on a value.
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a parameter, table or function that cannot be used.
            MemoryLimitError: it needs more memory than that, spilling included.

        Example:
            >>> import pyarrow as pa
            >>> pa.table(ds.query("SELECT count(*) AS n FROM dataset")).to_pylist() == [{"n": ds.num_rows}]
            True
        """
        memory_limit = check_count("memory_limit", memory_limit, least=LEAST_MEMORY_LIMIT)
        rows = self._native.query(check_text("query", query), *_inputs(params, tables, functions), memory_limit)
        if not isinstance(rows, _lib.Dataset):
            return QueryResult(rows)
        kept = Dataset(rows)
        batch_rows = kept._make_reader(ReadOptions(memory_limit=memory_limit), reads_all=True).fitting_batch_rows
        stream: Stream[Any] = kept.batches(batch_rows, rank=0, world_size=1, memory_limit=memory_limit)
        return QueryResult(stream.reader.stream(0, stream._native_share()))

    def select_columns(self, column_names: str | Sequence[str]) -> Dataset:
        """Keeps the named columns, in that order. Never changes rows or their order.

        Raises:
            ColumnNotFoundError: a name is not in the dataset.
            SettingError: a name is no text, or is given twice.
        """
        return self._of(self._native.select_columns(check_names("columns", column_names)))

    def remove_columns(self, column_names: str | Sequence[str]) -> Dataset:
        """Keeps all columns but the named ones.

        Raises:
            ColumnNotFoundError: a name is not in the dataset.
            SettingError: a name is no text, or is given twice.
        """
        names = check_names("columns", column_names)
        self._native.select_columns(names)
        removed = set(names)
        return self.select_columns([name for name in self.column_names if name not in removed])

    def rename_column(self, original_column_name: str, new_column_name: str) -> Dataset:
        """Gives a column another name.

        Raises:
            ColumnNotFoundError: there is no column of that name.
            SettingError: the new name is no text, or taken.

        Example:
            >>> ds.select_columns(["path", "size"]).rename_column("size", "num_bytes").column_names
            ['path', 'num_bytes']
        """
        return self.rename_columns({check_text("original_column_name", original_column_name): new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> Dataset:
        """Gives columns other names. Features, rows and their order stay.

        Raises:
            ColumnNotFoundError: there is no column of such a name.
            SettingError: a new name is no text, or taken.
        """
        if not isinstance(column_mapping, Mapping):
            raise SettingError(f"column_mapping: expected a dict of names, got {column_mapping!r}")
        old, new = check_names("columns", list(column_mapping)), check_names("columns", list(column_mapping.values()))
        self._native.select_columns(old)
        query = rename_query(self.column_names, dict(zip(old, new, strict=True)))
        return self._of(self._native.sql(query, {}, {}, []))

    @property
    def features(self) -> Any:
        """The columns' [features](../howto/features.md): `datasets.Features` where `datasets` is installed.

        Otherwise a dict of the JSON form that `Features.from_dict` takes. They are those of the files' metadata where
        they fit the columns' types, and follow from the types elsewhere. They stay with columns that are selected,
        renamed or named by a query; a computed column has that of its type.

        Raises:
            SchemaError: a column has a type that features have no word for, such as a map.

        Example:
            >>> ds.select_columns(["path", "size"]).features
            {'path': Value('string'), 'size': Value('int64')}
        """
        return read_features(self._native)

    def cast(self, features: Any) -> Dataset:
        """Gives columns other features, and with them perhaps other types: `datasets.Features`, or a dict of features.

        Columns that are not named stay as they are. Values are converted as rows are read, and one that has no equal in
        the new type is an error; only decimals and text become the nearest float, and floats the nearest narrower one
        or decimal. Text becomes a `ClassLabel` by the names of its classes, or by their numbers. Other numbers become
        one where a class has that number, or are -1; `int64` is taken as it is. Dates and timestamps without a zone are
        taken for UTC where they get one. Text made of other types is that of SQL (`1.0`, `NaN`, `1e30`,
        `2026-01-31T00:00:00`), where `datasets` has `1`, `nan`, `1e+30`, `2026-01-31 00:00:00.000000`. Fields of
        structs are found by their names, and NULL where there are none; bytes and paths become images and other media.

        Raises:
            ColumnNotFoundError: a feature is of a column that is not there.
            SettingError: these are no features, or there is no conversion to their type.

        Example:
            >>> from datasets import ClassLabel
            >>> sorted(set(ds.cast({"licence_id": ClassLabel(names=["mit", "bsd"])}).features["licence_id"].names))
            ['bsd', 'mit']
        """
        described = to_json(features)
        self._native.select_columns(check_names("features", list(described)))
        query = cast_query(self.schema, described)
        try:
            native = self._native if query is None else self._native.sql(query, {}, {}, [])
        except QueryError as error:
            raise SettingError(f"features: {error}") from error
        cast = self._of(native.with_features(json.dumps(described)))
        check_features(cast.schema, described)
        return cast

    def cast_column(self, column: str, feature: Any) -> Dataset:
        """Gives one column another feature; see `cast`."""
        return self.cast({check_text("column", column): feature})

    def decode(self, enable: bool = True) -> Dataset:
        """Yields rows as `datasets` does: images as `PIL.Image`, audio as decoders, JSON as objects, ...

        What decodes them is that of `datasets`, and what that needs. Without it rows hold what the files hold, a dict
        of bytes and path. A dataset in torch's or another format decodes by `with_format(..., compat="datasets")`, and
        `to_torch` by `decode` or `compat`.

        Raises:
            SettingError: `datasets` is not installed, or the dataset has a format.
        """
        check_flag("enable", enable)
        if self._format is not None and repr(self._format) != "decode()":
            raise SettingError(f"decode: the dataset has the format {self._format}; use `compat='datasets'` there")
        return Dataset(self._native, self._shuffle, DatasetsFormat(None) if enable else None, self._num_passes)

    def selection(self) -> Selection:
        """Returns the kept rows as a thing of their own. Evaluates the filters if that has not been done.

        Raises:
            QueryError: a filter or query fails on a value.
            StoreError: the store failed.

        Example:
            >>> ds.filter("language = 'rust'").selection()
            Selection(334 of 1,000 rows)
        """
        self._evaluate()
        return Selection(self._native.selection())

    def select(self, rows: Selection | Iterable[int]) -> Dataset:
        """Keeps the rows of a selection, in the dataset's order; or those of these numbers, in that of the numbers.

        Numbers count the rows kept so far; negative ones count from the end. A state of the result is valid with the
        same rows only.

        Raises:
            SelectionError: the selection is of other objects, or of another version of them, or a part.
            RowIndexError: there is no row of that number.
            SettingError: a row is named twice, or the dataset is shuffled and the rows are numbers.

        Example:
            >>> train, validation = ds.selection().split([0.9, 0.1], seed=7)
            >>> ds.select(train).num_rows
            900
            >>> ds.select([7, 3, 5]).select_columns("path")[:]
            {'path': ['src/7.rs', 'src/3.rs', 'src/5.rs']}
        """
        if isinstance(rows, Selection):
            return self._of(self._native.select(rows._native))
        return self._of(self._native.select_rows(self._row_numbers(rows)))

    def take(self, n: int) -> Dataset:
        """Keeps the first `n` rows of those kept so far, in the dataset's order; all where there are no more.

        Evaluates the filters as far as that takes, if there are any and that has not been done. To look at rows, see
        `head`.

        Raises:
            SettingError: the dataset is shuffled, and has other first rows in each epoch; or it is repeated.

        Example:
            >>> [row["path"] for row in ds.take(2)]
            ['src/0.rs', 'src/1.rs']
        """
        n = check_count("n", n, least=0)
        return self._between("take", 0, n, "draw some by `selection().sample(n, seed)`, or look at `head(n)`")

    def skip(self, n: int) -> Dataset:
        """Leaves out the first `n` rows of those kept so far, in the dataset's order; all where there are no more.

        Evaluates the filters if there are any and that has not been done.

        Raises:
            SettingError: the dataset is shuffled, and has another first row in each epoch; or it is repeated.

        Example:
            >>> list(ds.skip(990).select_columns("path").take(1))
            [{'path': 'src/990.rs'}]
            >>> len(ds.filter("language = 'rust'").skip(300))
            34
        """
        return self._between("skip", check_count("n", n, least=0), None, "skip before `shuffle`")

    def _between(self, method: str, start: int, stop: int | None, instead: str) -> Dataset:
        """Keeps a range of the rows kept so far."""
        if self._shuffle is not None:
            raise SettingError(f"{method}: a shuffled dataset has another order in each epoch; {instead}")
        if self._num_passes != 1:
            raise SettingError(f"{method}: a repeated dataset goes through its rows again; {method} before `repeat`")
        native = self._native
        if not native.filters and not native.restrictions:
            stop = native.num_rows_total if stop is None else min(stop, native.num_rows_total)
            if (start, stop) == (0, native.num_rows_total):
                return self
            return self._of(native.select_ranges([(start, stop)] if start < stop else []))
        if stop is not None and (beginning := self._beginning(stop)) is not None:
            return self._of(beginning.select_rows(range(start, stop)))
        num_rows = self._evaluate()
        stop = num_rows if stop is None else min(stop, num_rows)
        return self if (start, stop) == (0, num_rows) else self._of(native.select_rows(range(start, stop)))

    def _beginning(self, n: int) -> _lib.Dataset | None:
        """Returns the first kept rows, `n` at least, where filters find these without a look at the others.

        What is returned takes only these rows to be kept. None where all are known, or there are no more.
        """
        if self._shuffle is not None or self._native.num_rows_known is not None:
            return None
        beginning = with_progress("selecting", lambda tick: self._native.beginning(n, tick))
        _warn_of_note(beginning or self._native)
        return beginning

    def repeat(self, num_times: int | None = None) -> Dataset:
        """Makes an epoch go through the rows several times, or without an end; each pass is shuffled anew.

        Passes follow each other in the loop. Each is an epoch of the dataset without `repeat`, with a last batch and a
        remainder of its own: no batch holds rows of two. Epoch `e` of `ds.repeat(k)` has the orders of the epochs
        `e * k` to `e * k + k - 1` of `ds`; without an end epoch `e` begins with that of epoch `e`. States name the
        pass, and so hold for any number of passes. What counts rows (`len`, `ds[i]`, SQL) sees them once.

        Args:
            num_times: Passes of an epoch; without an end by default. Of a dataset that is repeated already: of each of
                its passes.

        Raises:
            SettingError: `num_times` is below 1, or the passes are more than 2^31 - 1 altogether.

        Example:
            >>> twice = ds.shuffle(seed=1).repeat(2).batches(100)
            >>> len(twice), sum(batch.num_rows for batch in twice)
            (20, 2000)
        """
        if num_times is not None:
            num_times = check_count("num_times", num_times)
        is_endless = num_times is None or self._num_passes is None
        num_passes = None if is_endless else (num_times or 1) * (self._num_passes or 1)
        if num_passes is not None and num_passes > MOST_PASSES:
            raise SettingError(
                f"num_times: expected at most {MOST_PASSES} passes, got {num_passes}; leave it out for no end"
            )
        return Dataset(self._native, self._shuffle, self._format, num_passes)

    def shard(self, index: int, num_shards: int) -> Dataset:
        """Keeps the row groups of shard `index` of `num_shards`: consecutive ones, of about as many rows in each shard.

        What was chosen of the rows (`filter`, `take`, `select`) does not change the shards: one may have none of them.
        Only their bytes are read, so many machines evaluate a filter in parts: each takes the `selection` of its shard,
        and `Selection.merge` makes one of all. Ranks of a training need no shards; see `to_torch`.

        Raises:
            SettingError: `index` is not below `num_shards`, or the dataset is a shard already, or of a query: take the
                shard before `sql`.

        Example:
            >>> [ds.shard(i, 4).num_rows for i in range(4)]
            [300, 200, 300, 200]
        """
        num_shards = check_count("num_shards", num_shards, most=(1 << 31) - 1)
        index = check_count("index", index, least=0, most=(1 << 31) - 1)
        return self._of(self._native.shard(index, num_shards))

    def gather(self, indices: Any, *, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> _lib.Batch:
        """Returns the rows of these numbers as one Arrow batch: in their order, and as often as each is named.

        Reads only the pages that hold them, all at once.

        Args:
            indices: What `ds[...]` takes: numbers, a slice, an array of numbers or of Booleans.
            memory_limit: Bytes in hand while reading, beside the batch.

        Raises:
            RowIndexError: there is no row of that number.
            SettingError: the dataset is shuffled, or the numbers are none.

        Example:
            >>> ds.select_columns(["path", "size"]).gather([7, -1, 7])
            Batch(3 rows, 2 columns)
              path  Utf8   'src/7.rs', 'src/999.rs', 'src/7.rs'
              size  Int64  21, 2997, 21
        """
        memory_limit = check_count("memory_limit", memory_limit)
        return self._native.gather(self._row_numbers(indices), memory_limit)

    def __getitem__(self, key: Any) -> Any:
        """Returns a row by its number, or several, in the dataset's [format](#with_format): without one, dicts.

        Takes numbers (negative ones count from the end), slices with steps, lists and arrays of numbers, and arrays of
        a Boolean for each row. Rows count in the dataset's order, among those kept.

        Example:
            >>> small = ds.select_columns(["path", "size"])
            >>> small[-1]
            {'path': 'src/999.rs', 'size': 2997}
            >>> small[4:0:-2]
            {'path': ['src/4.rs', 'src/2.rs'], 'size': [12, 6]}
        """
        if isinstance(key, str):
            columns = f"ds.select_columns({key!r})"
            raise SettingError(f"row: {key!r} is no row number; to read a column, iterate over `{columns}.iter()`")
        batch = self.gather(key)
        if is_number(key):
            return self._rows(batch)[0]
        form = self._prepared()
        if form is not None:
            return form(batch)
        import pyarrow as pa

        return to_python(pa.record_batch(batch), "to_pydict")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Returns rows by their numbers, read together: what a `DataLoader` asks for."""
        return self._rows(self.gather(indices))

    def _row_numbers(self, key: Any) -> list[int]:
        if self._shuffle is not None:
            raise SettingError(
                "row: a shuffled dataset has another order in each epoch, in which `to_torch` and `batches` deliver "
                "it, and `to_hf` for a `Trainer`; ask for rows by number before `shuffle`, or take some at random by "
                "`ds.select(ds.selection().sample(n, seed))`"
            )
        return row_numbers(key, self._evaluate())

    def _rows(self, batch: _lib.Batch) -> list[Any]:
        form = self._prepared()
        if form is not None:
            return list(form.rows(batch))
        import pyarrow as pa

        rows: list[Any] = to_python(pa.record_batch(batch), "to_pylist")
        return rows

    def _prepared(self) -> Format | None:
        """Returns the format, which looks at the columns of all kept rows once."""
        if self._format is not None and self._prepared_format is None:
            self._prepared_format = self._format.prepare(self._make_reader(ReadOptions()))
        return self._prepared_format

    @familiar.explained(familiar.OF_SHUFFLE)
    def shuffle(
        self,
        seed: int = 0,
        *,
        shuffle_bytes: int = DEFAULT_SHUFFLE_BYTES,
        num_lanes: int | None = None,
        window_rows: int | None = None,
        weights: str | None = None,
        num_samples: int | None = None,
    ) -> Dataset:
        """Delivers rows in a seeded order that differs from epoch to epoch.

        The order depends on the dataset's version, its filters, `seed`, the epoch and these settings; not on ranks,
        workers, columns, memory or time.

        Args:
            seed: 0 to 2^64 - 1. The default is fixed, so that ranks agree.
            shuffle_bytes: Decoded bytes of the shuffle windows of all lanes together; one rank of `N` holds
                `1/N` of them.
            num_lanes: Lanes that an epoch is dealt into; derived by default, 192 where that fits.
            window_rows: Rows of a lane's window; derived by default.
            weights: SQL of what each row weighs: an epoch is then drawn with replacement, in proportion to it. Columns
                and window functions over the kept rows, so `1.0 / count(*) OVER (PARTITION BY label)` balances classes.
                Computed once, when rows are first needed; 8 bytes of memory for each row.
            num_samples: Rows that an epoch draws by `weights`; as many as there are by default. `len` of the dataset
                stays the number of those that it draws from.

        Raises:
            SettingError: a setting that cannot work; when rows are needed: a weight is NULL, below 0 or not finite.
            QueryError: `weights` does not parse or type-check, or is not one value for each row.

        Example:
            >>> balanced = ds.shuffle(seed=1, weights="1.0 / count(*) OVER (PARTITION BY language)", num_samples=64)
            >>> [batch.num_rows for batch in balanced.batches(32)]
            [32, 32]
        """
        options = ShuffleOptions(
            seed=seed,
            shuffle_bytes=shuffle_bytes,
            num_lanes=num_lanes,
            window_rows=window_rows,
            weights=weights,
            num_samples=num_samples,
            weighed=None if weights is None else self._native,
        )
        if weights is not None:
            weighing(self._native, weights)
        return Dataset(self._native, options, self._format, self._num_passes)

    @familiar.explained(familiar.OF_MAP)
    def map(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = False,
        with_indices: bool = False,
        with_seeds: bool = False,
        input_columns: str | Sequence[str] | None = None,
        remove_columns: str | Sequence[str] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None,
        num_threads: int = 0,
        pool: PoolOptions | None = None,
    ) -> MappedDataset:
        """Has every batch pass through a function on its way to the loop, in other processes or threads if wanted.

        Nothing is computed now, and nothing kept: `to_torch` and `batches` of the result run the function in every
        epoch, on their batches. Workers read no files. Order, steps, `len` and states are those without `map`, whatever
        the number of workers; batches that they have in hand do not count. [More](../howto/transforms.md).

        Args:
            function: Takes what the stream would yield, a dict of tensors and lists (`to_torch`) or a batch in the
                dataset's [format](#with_format) (`batches`; without a format a dict of lists), and returns a dict of
                columns with as many rows. They are added to the batch's, or take their place. None changes nothing. A
                function on tables returns the table.
            batched: Whether it takes batches; otherwise single rows, whose results are stacked where they have one
                shape and type.
            with_indices: Whether it takes the positions of the rows in the order of the epoch after that: in a dataset
                that is not shuffled, the rows' numbers.
            with_seeds: Whether it takes random seeds of 64 bits after that, one for each row, as a NumPy array (an
                integer for a row). They follow from the seed of `shuffle`, the epoch and the row's position, so that
                workers, batches and ranks do not matter.
            input_columns: It takes these columns, as arguments of their own.
            remove_columns: Leaves these columns of the batch out, behind the function.
            fn_kwargs: Further arguments.
            num_proc: Processes that run it; None or 0 for none. They are kept for all epochs of a stream.
            num_threads: Threads that run it instead, for functions that release the interpreter's lock.
            pool: More about workers: batches in hand, a time limit.

        Raises:
            SettingError: an argument cannot work, or the function cannot be sent to a process.
            ColumnNotFoundError: a column is not in the dataset.

        Example:
            >>> def shorten(batch):
            ...     return {"start": [text[:8] for text in batch["text"]]}
            >>> batch = next(iter(ds.map(shorten, batched=True, remove_columns="text").to_torch(32)))
            >>> batch["start"][0], "text" in batch
            ('fn main(', False)
        """
        from forebay.mapped import MappedDataset, make_step

        step, workers = make_step(
            self,
            function,
            number=0,
            batched=batched,
            with_indices=with_indices,
            with_seeds=with_seeds,
            input_columns=input_columns,
            remove_columns=remove_columns,
            fn_kwargs=fn_kwargs,
            num_proc=num_proc,
            num_threads=num_threads,
            pool=pool,
        )
        return MappedDataset(self, (step,), workers)

    @familiar.explained(familiar.OF_FORMAT)
    def with_format(
        self,
        type: FormatName | FormatAlias | None = None,
        *,
        forms: Mapping[str, str] | None = None,
        compat: Compat | None = None,
    ) -> Dataset:
        """Chooses what `batches`, `iter` and loops over the dataset yield.

        | format | a batch | a row |
        |---|---|---|
        | `None` | `Batch`: Arrow, for every Arrow library | dict of Python values |
        | `"torch"`, `"jax"`, `"tensorflow"` | dict of tensors | dict of tensors of one row |
        | `"numpy"` | dict of arrays; dates and times as `datetime64`, `timedelta64` | dict of scalars and arrays |
        | `"arrow"` | `pyarrow.Table` | table of one row |
        | `"pandas"` | `pandas.DataFrame` | frame of one row |
        | `"polars"` | `polars.DataFrame` | frame of one row |

        Tensors and arrays share the batch's memory through DLPack; so do Arrow and Polars. pandas copies what it cannot
        hold. `to_torch` yields tensors whatever the format is; of `"torch"` it takes `forms` and `compat` over, unless
        it is given its own.

        Args:
            type: The format; `datasets`' short names (`"np"`, `"pt"`, `"pd"`, ...) are known too.
            forms: Of single columns, as in `to_torch`; for tensors and arrays.
            compat: `"datasets"` for exactly the rows and batches of `datasets` in this format; see `to_torch`.

        Raises:
            SettingError: no such format, or its library is not installed; or the dataset has media to `decode`, which
                this format would hold as bytes.

        Example:
            >>> frame = next(iter(ds.with_format("pandas").batches(8)))
            >>> frame.shape
            (8, 11)
        """
        name = format_of(type)
        form = make_format(name, forms, compat)
        if self._is_decoded and compat is None:
            if name is None:
                return self
            refuse_media(self.features, ())
        return Dataset(self._native, self._shuffle, form, self._num_passes)

    @property
    def _is_decoded(self) -> bool:
        """Whether rows are what `decode` makes of them."""
        return isinstance(self._format, DatasetsFormat) and self._format.library is None

    @familiar.explained(familiar.OF_STREAM)
    def batches(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        remainder: Remainder = "drop",
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        replicate: int = 1,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        num_threads: int | None = None,
        on_error: OnError = "raise",
        max_skipped: float = DEFAULT_MAX_SKIPPED,
        steps_per_epoch: int | None = None,
        read_once: bool = False,
    ) -> Stream[Any]:
        """Streams batches in the dataset's [format](#with_format): Arrow batches, which every Arrow library takes.

        Arguments, order and state are those of `to_torch`. Needs no torch.

        Raises:
            TensorError: a column has no form in the chosen format; here, and while iterating only where lists
                [seemed to be of one length](../howto/tensors.md#lists-of-different-lengths).

        Example:
            >>> import pyarrow as pa
            >>> batch = next(iter(ds.select_columns(["path", "size"]).batches(32)))
            >>> batch
            Batch(32 rows, 2 columns)
              path  Utf8   'src/0.rs', 'src/1.rs', 'src/2.rs', …
              size  Int64  0, 3, 6, …
            >>> pa.record_batch(batch).num_rows
            32
        """
        share = _share(batch_size, rank, world_size, remainder, drop_last, mesh, replicate, steps_per_epoch, read_once)
        read = ReadOptions(
            memory_limit=memory_limit, num_threads=num_threads, on_error=on_error, max_skipped=max_skipped
        )
        return Stream(self, share, read, self._format)

    @familiar.explained(familiar.OF_STREAM)
    def to_torch(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        remainder: Remainder = "drop",
        rank: int | None = None,
        world_size: int | None = None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        num_threads: int | None = None,
        on_error: OnError = "raise",
        max_skipped: float = DEFAULT_MAX_SKIPPED,
        forms: Mapping[str, str] | None = None,
        compat: Compat | None = None,
        mesh: Any = None,
        replicate: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        padding: bool | Pad | None = None,
        pack: Pack | None = None,
        decode: Mapping[str, Image] | None = None,
        steps_per_epoch: int | None = None,
        read_once: bool = False,
    ) -> TorchStream:
        """Streams batches as dicts of tensors and lists by column, into a `torch.utils.data.IterableDataset`.

        Tensors share the batch's memory: no copy after the shuffle's. What each type becomes:

        | column | form |
        |---|---|
        | numbers, dates, times, durations | `(n,)`, natural dtype; times are integers in their [unit](#units) |
        | Boolean | `(n,)` bool (one copy) |
        | fixed-size lists, fixed-shape tensors, lists that are all of one length | `(n, k, ...)` |
        | fixed-size binary | `(n, bytes)` uint8 |
        | other lists, maps | `Ragged`: values, offsets |
        | structs | dict of their fields |
        | strings, binary, decimals, and lists of them | list of `str`, `bytes`, `decimal.Decimal`, lists |
        | dictionaries | as their values |
        | numbers, lists and structs that may be NULL | `Masked`: values, mask |

        Lists are "of one length" and columns without NULLs where the footers of the kept row groups, or a filter, say
        so: all batches of a stream have the same forms.

        Args:
            batch_size: Rows of a batch.
            drop_last: Leave out a last batch with fewer rows.
            remainder: What becomes of the last rows when the world size does not divide them: `"drop"` (fewer than
                `world_size` rows, others each epoch; `num_dropped` counts them), `"pad"` (rows from the epoch's start
                repeat), or `"keep"` (ranks differ by one row and perhaps one batch: DDP would hang).
            rank: Of this process; by default that of the initialised `torch.distributed`, else of `RANK` and
                `WORLD_SIZE`.
            world_size: As `rank`.
            memory_limit: Bytes in flight, decoded and ready, all together. Never changes the order.
            num_threads: Threads that decode and gather; one for each core by default.
            on_error: What becomes of rows that cannot be read, because an object is damaged, gone or out of reach for
                longer than the store is given: the stream ends with the error, or `"skip"` leaves them out. Their
                positions stay [empty](../howto/errors.md#rows-that-cannot-be-read): the other rows keep their
                order and their ranks. `Stream.holes` lists what was left out, and so does the state.
            max_skipped: How many rows of an epoch `on_error="skip"` may leave out: a number, or a share (a float
                below 1).
            forms: Other forms for single columns (fields of structs behind a dot): `"tensor"` (lists: one length,
                checked in each batch), `"ragged"` (strings and binary: their bytes), `"nested"` (a `torch.nested`
                tensor of the jagged layout), `"list"` (Python objects), `"dictionary"` (`DictionaryEncoded`), or a
                dtype: `"bfloat16"`, `"float32"`, `"int16"`, ... takes the bytes of binary, and of unsigned integers
                of that width, as such, `"float64"` rounds decimals, `"int64"` counts their last digit.
            compat: `"datasets"` for exactly the batches of `datasets`' torch format: int64 and float32, lists stacked
                where those of a batch are of one length, media decoded. [Slower](../howto/features.md#formats). It and
                `forms` are those of `with_format("torch", ...)`, if there was such a call and neither is given here.
            mesh: The `DeviceMesh` over whose ranks batches differ, `mesh["dp"]`, say: ranks of one replica of a model
                that is split get the same batches.
            replicate: How many consecutive ranks get the same batches, where there is no mesh.
            read_once: Has one rank of each replica read for those on the same host, and hand its batches to them by
                shared memory. [More](../howto/gpus.md#models-that-are-split).
            pin_memory: Tensors arrive in pinned memory, from which copies to a GPU can overlap with what it computes.
                Where there is no GPU, batches stay as they are.
            device: A GPU, `"cuda"`, say, to which batches are copied beside what the loop computes, two batches ahead.
                With `drop_last` all tensors of a column have one shape. [More](../howto/dataloader.md#gpus).
            padding: `True`, or [`Pad`](#forebay.Pad): lists of numbers become `(n, length)`, with an `attention_mask`.
            pack: [`Pack`](#forebay.Pack): lists of tokens become [sequences of one length](../howto/packing.md), of
                which `batch_size` are a batch. Each rank has a state of its own then.
            decode: [`Image`](#forebay.Image) by column: encoded images become [pixels](../howto/images.md).
            steps_per_epoch: Batches of an epoch, on every rank. Epoch `e` begins where epoch `e - 1` ended, with batch
                `e * steps_per_epoch` of the passes over the dataset, however many; see [`repeat`](#repeat).

        Raises:
            TensorError: a column has no form, or not the one asked for; here, and while iterating only where lists
                [seemed to be of one length](../howto/tensors.md#lists-of-different-lengths).
            ColumnNotFoundError: `forms` names a column that is not there.
            SkipLimitError: while iterating, when more than `max_skipped` rows could not be read.

        Example:
            >>> batch = next(iter(ds.select_columns(["tokens", "text"]).to_torch(32)))
            >>> batch["tokens"].shape, len(batch["text"])
            (torch.Size([32, 4]), 32)
        """
        from forebay.devices import make_stages
        from forebay.torch import TorchStream

        share = _share(batch_size, rank, world_size, remainder, drop_last, mesh, replicate, steps_per_epoch, read_once)
        read = ReadOptions(
            memory_limit=memory_limit, num_threads=num_threads, on_error=on_error, max_skipped=max_skipped
        )
        form = chosen(self._torch_format(forms, compat), padding, pack, decode, read)
        if self._is_decoded and compat is None:
            refuse_media(self.features, decode or {})
        return TorchStream(self, share, read, form, make_stages(device, pin_memory=pin_memory))

    def _torch_format(self, forms: Mapping[str, str] | None, compat: Compat | None) -> Format:
        """Returns the format that is asked for; where none is, the dataset's own, if that is one of torch."""
        own = self._format
        if forms is None and compat is None and own is not None and own.library == "torch":
            return own
        form = make_format("torch", forms, compat)
        assert form is not None, "torch is a format"  # noqa: S101
        return form

    def to_hf(
        self,
        *,
        split: str | None = None,
        num_shards: int | None = None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        num_threads: int | None = None,
    ) -> IterableDataset:
        """Hands the dataset to Hugging Face `datasets`: a real `datasets.IterableDataset` over Forebay's stream.

        Everything that takes one takes it: `Trainer`, `accelerate`, TRL, `interleave_datasets`, `DataLoader`. Nothing
        is read until it is iterated. One process yields the dataset's order, that of the epoch after `set_epoch`;
        `split_dataset_by_node`, `shard` and DataLoader workers divide it, so that every row is delivered once. States
        are small, and exact under `shuffle`. Its `len` is known.

        Args:
            split: A name for its `split`; by default that of the one that was opened.
            num_shards: How many processes can divide it at most; the lanes of the order by default, at least 192.
            memory_limit: Bytes in flight, decoded and ready, of all shares together; one has at least 256 MiB of them.
            num_threads: Threads that decode and gather, in each process; one for each core by default.

        Raises:
            VersionError: `datasets` is not installed, or of a version that Forebay does not know.
            SchemaError: a column has a type that `datasets` does not know.

        Example:
            >>> rows = ds.select_columns(["path", "size"]).shuffle(seed=42).to_hf()
            >>> len(rows), rows.column_names
            (1000, ['path', 'size'])
            >>> next(iter(rows.map(lambda row: {"kb": row["size"] / 1000}).remove_columns("path"))).keys()
            dict_keys(['size', 'kb'])
        """
        if self._num_passes != 1:
            raise SettingError("repeat: `datasets` has a `repeat` of its own: `ds.to_hf().repeat(...)`")
        if split is not None:
            check_text("split", split)
        if num_shards is not None:
            num_shards = check_count("num_shards", num_shards, most=1 << 20)
        read = ReadOptions(memory_limit=memory_limit, num_threads=num_threads)
        from forebay.hf.versions import import_datasets

        import_datasets("`to_hf`")
        from forebay.hf.iterable import make

        made: IterableDataset = make(self, read, split=split, num_shards=num_shards)
        return made

    def iter(self, batch_size: int | None = None, drop_last_batch: bool = False) -> Iterator[Any]:
        """Yields all rows of the dataset in its order, or batches of them, in the dataset's [format](#with_format).

        Without a format rows are dicts of Python values, and batches dicts of lists; both need pyarrow.

        Raises:
            SettingError: `batch_size` is below 1.
            TensorError: a column has no form in the format.
            ForebayError: while iterating, as any loop over a [stream](../howto/errors.md#when-they-come).

        Example:
            >>> next(ds.select_columns(["path", "size"]).iter())
            {'path': 'src/0.rs', 'size': 0}
        """
        chosen = None if self._format is None else self._format.prepare(self._make_reader(ReadOptions()))
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size, most=MOST_BATCH_ROWS)
        batches = self._all_rows(batch_size, drop_last=drop_last_batch and batch_size is not None)
        if chosen is not None:
            by_rows = batch_size is None
            return Iteration(chain.from_iterable(map(chosen.rows, batches)) if by_rows else map(chosen, batches), ANEW)
        import pyarrow as pa

        records = map(pa.record_batch, batches)
        if batch_size is None:
            return Iteration(chain.from_iterable(to_python(record, "to_pylist") for record in records), ANEW)
        return Iteration((to_python(record, "to_pydict") for record in records), ANEW)

    def _all_rows(self, batch_size: int | None, *, drop_last: bool) -> Iterator[_lib.Batch]:
        """Yields all rows as Arrow batches, whatever the format is; without a `batch_size` of any size.

        Who looks at a few does not wait until filters have found all: the first that they find come before.
        """
        num_first = 0
        beginning = self._beginning(batch_size or 1)
        if beginning is not None:
            for batch in Dataset(beginning)._arrow_batches(batch_size, drop_last=batch_size is not None):
                num_first += batch.num_rows
                yield batch
        yield from self._arrow_batches(batch_size, num_first, drop_last=drop_last)

    def _arrow_batches(
        self, batch_size: int | None, position: int = 0, *, drop_last: bool = False
    ) -> Stream[_lib.Batch]:
        """Streams the rows from `position` on; their weights are computed once for all loops."""
        if batch_size is None:
            batch_size = min(ROWS_PER_READ, self._make_reader(ReadOptions(), reads_all=True).fitting_batch_rows)
        share = ShareOptions(batch_size=batch_size, rank=0, world_size=1, drop_last=drop_last)
        stream: Stream[_lib.Batch] = Stream(self, share, ReadOptions())
        stream._go_to(position)
        return stream

    def __iter__(self) -> Iterator[Any]:
        return self.iter()

    def head(self, n: int = 5) -> _lib.Batch:
        """Returns the first `n` rows as one Arrow batch, which prints as a table.

        Reads the first row groups only as far as needed, also for filters, unless the dataset is shuffled.

        Raises:
            SettingError: `n` is below 0, or more than a batch can have.
            ForebayError: as `iter`.

        Example:
            >>> ds.select_columns(["path", "size"]).head(2).num_rows
            2
        """
        n = check_count("n", n, least=0, most=MOST_BATCH_ROWS)
        if n == 0:
            return self._native.empty_batch()
        # A stream of all rows would read ahead.
        rows = Dataset(self._native).take(n) if self._shuffle is None else self
        batches: Stream[_lib.Batch] = Dataset(rows._native, self._shuffle).batches(n, rank=0, world_size=1)
        return next(iter(batches), None) or self._native.empty_batch()

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self._native.column_names

    @property
    def schema(self) -> Any:
        """The columns' types, as a `pyarrow.Schema`."""
        import pyarrow as pa

        return pa.schema(self._native)

    @property
    def units(self) -> dict[str, str]:
        """What the integers of dates, times and durations count, by column: `"D"`, `"s"`, `"ms"`, `"us"` or `"ns"`.

        Points in time count from 1970-01-01 (UTC where the column has a time zone), times of day from midnight. Fields
        of structs have their path: `"meta.created"`.

        Example:
            >>> ds.units
            {'fetched': 'us', 'published': 'D'}
        """
        return self._native.units

    @property
    def num_rows(self) -> int:
        """The exact number of kept rows. Evaluates the filters if that has not been done."""
        return self._evaluate()

    def _evaluate(self, memory_limit: int | None = None, *, reads_all: bool = False) -> int:
        """Evaluates the filters if that has not been done; returns the number of kept rows.

        `reads_all` says that one reader is about to read all of them: the first are fetched meanwhile.
        """
        known = self._native.num_rows_known
        if known is not None:
            return known
        reading: Literal["later", "in order", "shuffled"] = "later"
        if reads_all:
            reading = "in order" if self._shuffle is None else "shuffled"
        num_rows = with_progress("selecting", lambda tick: self._native.num_rows(tick, memory_limit, reading))
        _warn_of_note(self._native)
        return num_rows

    def __len__(self) -> int:
        return self.num_rows

    def save_manifest(self, uri: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Writes the dataset's objects, and what their footers say, to one object, so that opening it reads no footers.

        `load_dataset(uri, split=...)` opens it in one request, on any machine that reaches the objects. They are read
        only if they are what they were: one that changed is an `ObjectChangedError`. Filters, columns, and rows that
        `take`, `skip`, `select` or a slice of a split chose, are not saved, and neither are credentials.

        Args:
            uri: A path or a URI of any store that can be written to; it ends in `.forebay`.
            storage_options: Of that store; by default those that the dataset was opened with, where it is the same.

        Raises:
            SettingError: the name has another ending.
            StoreError: the store cannot be written to.

        Example:
            >>> path = corpus / "corpus.forebay"
            >>> ds.save_manifest(path)
            >>> forebay.load_dataset(path, split="train").num_rows
            1000
        """
        save_manifest([(None, self._native)], uri, storage_options)

    def explain(self, analyze: bool = False) -> Explanation:
        """What a pass over the dataset takes: row groups, rows, bytes, requests, time, order. Evaluates the filters.

        Args:
            analyze: Reads a pass as well, in the order of the dataset, and drops the rows; what that took is beside the
                estimates under `measured`.

        Raises:
            QueryError: a filter or query fails on a value.
            StoreError: the store failed.

        Example:
            >>> facts = ds.filter("size < 150").explain(analyze=True)
            >>> facts["rows_kept"], facts["measured"]["rows"]
            (50, 50)
        """
        check_flag("analyze", analyze)
        num_rows = self.num_rows
        measured = {"measured": self._measure()} if analyze else {}
        facts = self._native.explain() | {"rows_kept": num_rows} | {"order": self._order()}
        return Explanation(facts | measured)

    def _measure(self) -> dict[str, float]:
        """Reads all kept rows once, and returns what it took."""
        start = time.monotonic()
        unshuffled = Dataset(self._native)
        batch_rows = unshuffled._make_reader(ReadOptions()).fitting_batch_rows
        stream: Stream[_lib.Batch] = unshuffled.batches(batch_rows, rank=0, world_size=1)

        def read(tick: Callable[[int, int], None]) -> dict[str, float]:
            tick(0, len(stream))
            for number, _ in enumerate(stream, 1):
                tick(number, len(stream))
            return stream.stats()

        stats = with_progress("reading", read)
        del stats["memory_bytes"], stats["batches_ready"]
        return stats | {"seconds": time.monotonic() - start}

    @property
    def _epoch_rows(self) -> int:
        """Rows of an epoch: those that are kept, or as many as are drawn of them."""
        drawn = None if self._shuffle is None else self._shuffle.num_samples
        return self.num_rows if drawn is None else drawn

    def _order(self) -> dict[str, int]:
        return self._make_reader(ReadOptions()).order()

    def _make_reader(self, read: ReadOptions, *, reads_all: bool = False) -> _lib.Reader:
        """Evaluates the filters, cuts spans and resolves the order."""
        shuffle = self._shuffle
        settings = None
        if shuffle is not None:
            settings = (shuffle.seed, shuffle.shuffle_bytes, shuffle.num_lanes, shuffle.window_rows)
        is_drawn = shuffle is not None and shuffle.weights is not None
        num_rows = self._evaluate(read.memory_limit, reads_all=reads_all and not is_drawn)
        if shuffle is not None and is_drawn and self._weights is None:
            self._weights = make_weights(self._native, shuffle, num_rows)
        skippable = read.skippable(num_rows)
        return self._native.reader(settings, read.memory_limit, read.num_threads, skippable, self._weights)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Streams all rows to an Arrow consumer, in the dataset's order (epoch 0 of a shuffled one).

        Batches have up to 65,536 rows, and fewer where these take more than 16 MiB. In the dataset's order those of
        large row groups end with them, and are handed over as they were decoded, without a copy.
        """
        batch_rows = self._make_reader(ReadOptions(), reads_all=True).fitting_batch_rows
        return self.batches(batch_rows, rank=0, world_size=1).hand_over(requested_schema, follows_parts=True)

    def __datafusion_table_provider__(self, session: Any = None) -> object:
        """Hands the dataset to `datafusion` as a table, which is read as far as a query needs it.

        Columns, limits and filters on the dataset's own columns are pushed down into the read. Rows come in the order
        of the dataset, also of a shuffled one.

        Raises:
            VersionError: the major version of `datafusion` is not that of the DataFusion that Forebay is built with.

        Example:
            >>> import datafusion
            >>> ctx = datafusion.SessionContext()
            >>> ctx.register_table("files", ds)
            >>> ctx.sql("SELECT count(*) AS n FROM files WHERE size < 10").to_pydict()
            {'n': [4]}
        """
        check_datafusion(session)
        return self._native.__datafusion_table_provider__()

    def __repr__(self) -> str:
        return display.dataset_text(self)

    def _repr_html_(self) -> str:
        return display.dataset_html(self)


def _warn_of_note(native: _lib.Dataset) -> None:
    """Says what a user may want to know of how the selection was made."""
    note = native.selection_note
    if note is not None:
        warnings.warn(note, PerformanceWarning, stacklevel=level_of_loop())


def _share(
    batch_size: int,
    rank: int | None,
    world_size: int | None,
    remainder: Remainder,
    drop_last: bool,
    mesh: Any,
    replicate: int,
    steps_per_epoch: int | None,
    read_once: bool,
) -> ShareOptions:
    if (rank is None) != (world_size is None):
        raise SettingError("rank and world_size: give both or none")
    is_detected = rank is None
    if rank is None or world_size is None:
        rank, world_size = current_world()
    group = None
    if mesh is not None or check_count("replicate", replicate) != 1:
        group = rank, world_size
        rank, world_size = share_of(rank, world_size, mesh, replicate, is_detected=is_detected)
    return ShareOptions(
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        remainder=remainder,
        drop_last=drop_last,
        is_detected=is_detected,
        steps_per_epoch=steps_per_epoch,
        read_once=read_once,
        group=group,
    )


def _inputs(
    params: Mapping[str, Any] | None, tables: Mapping[str, Any] | None, functions: Mapping[str, Function] | None
) -> tuple[dict[str, Any], dict[str, Any], list[_lib.Function]]:
    from forebay.loading import only_split

    return make_parameters(params), make_tables(tables, only_split), make_functions(functions)
