"""`Dataset`: the rows and columns to read; nothing is read yet."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Never

from forebay import _lib, display, familiar
from forebay.access import is_number, row_numbers
from forebay.casts import cast_query, check_features
from forebay.column import Column
from forebay.compat import DatasetsFormat, locate, refuse_media
from forebay.distributed import current_world
from forebay.engines import check_datafusion
from forebay.exceptions import DataError, PerformanceWarning, QueryError, SettingError
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
    check_bytes,
    check_count,
    check_flag,
    check_names,
    check_text,
)
from forebay.packages import import_for
from forebay.passes import MOST_PASSES
from forebay.progress import with_progress
from forebay.python_values import to_python
from forebay.replicas import share_of
from forebay.selection import Selection
from forebay.shaping import check_are_images, chosen
from forebay.sql import Function, QueryResult, in_words_of, make_functions, make_parameters, make_tables
from forebay.weights import make_weights, refuse_own_order, weighing

if TYPE_CHECKING:
    from os import PathLike

    from torch.utils.data import Dataset as TorchDataset

    from forebay.compat import Compat
    from forebay.formats import Format, FormatAlias, FormatName
    from forebay.hf.iterable import IterableDataset
    from forebay.mapped import MappedDataset
    from forebay.options import PoolOptions
    from forebay.shaping import Image, Pack, Pad
    from forebay.torch import TorchStream

    _MapStyle = TorchDataset[Any]
else:
    # Torch's `DataLoader` takes whatever has a length and items, and only type checkers ask for its class.
    _MapStyle = object

ROWS_PER_READ = 1024
"""Rows that `Dataset.iter` reads at a time, if they are small."""

_ROWS_PER_CONVERSION = 256
"""Rows that become Python objects at a time: of more new objects, the garbage collector visits many again and again."""

Filters = Sequence[Any]
"""Conditions `(column, operator, value)`, lists of them, or a `pyarrow.compute.Expression`."""


class Dataset(_MapStyle):
    """The rows and columns of Parquet objects that a query keeps. Immutable: methods return a new dataset.

    Opening it reads footers only. `len()` reads, once, the predicate columns that statistics cannot decide.
    """

    def __init__(
        self,
        native: _lib.Dataset,
        shuffle: ShuffleOptions | None = None,
        format: Format | None = None,
        num_passes: int | None = 1,
    ) -> None:
        if not isinstance(native, _lib.Dataset):
            raise TypeError("Dataset: datasets are opened with `forebay.load_dataset(path, split=...)`")
        self._native = native
        self._shuffle = shuffle
        self._format = format
        self._num_passes = num_passes
        self._prepared_format: Format | None = None
        self._weights: _lib.Weights | None = None

    # Hidden from type checkers, which would take it to mean that a dataset has every attribute, or is an array.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise familiar.missing(self, "a dataset", name, familiar.OF_DATASET)

        # Without it, `pyarrow.table(splits)` would make a column of each split, row by row.
        def __arrow_array__(self, *_: object, **__: object) -> Never:
            raise TypeError(
                "a dataset is no column but a table: `pyarrow.table(ds)`; choose one if there are several splits"
            )

    def _of(self, native: _lib.Dataset) -> Dataset:
        """Returns a dataset like this one, with other rows or columns."""
        return Dataset(native, self._shuffle, self._format, self._num_passes)

    @familiar.explained(familiar.OF_FILTER)
    def filter(self, condition: str | Filters, *, params: Mapping[str, Any] | None = None) -> Dataset:
        """Keeps those of the current rows for which a SQL expression is true.

        The expression is type-checked now and evaluated once, on the columns it names, when the rows are first needed.
        NULL does not keep a row. `NaN` equals itself and is above every number; integer overflow is an error. Column
        names are case-sensitive. A [ClassLabel](#features) can be compared with its class names: `label = 'cat'`.

        Args:
            condition: SQL; or, as in `datasets` and pandas, a list of conditions `(column, operator, value)` that must
                all hold, a list of such lists of which one must hold, or a `pyarrow.compute.Expression`.
            params: Values of `$name` in SQL. They are bound, not pasted.

        Raises:
            QueryError: the expression does not parse or type-check, or is not Boolean.
            ColumnNotFoundError: a column is not in the dataset; the message lists similar names.
            SettingError: the condition has none of these forms, or a parameter cannot be used.

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
        """Returns the rows and columns of a `SELECT` as a dataset like any other.

        In the query, this dataset is the table `dataset`, with its selected columns. The query returns at most one row
        for each row of it: `WHERE`, computed columns, `JOIN` on unique keys, `IN (SELECT ...)`, `ORDER BY`, `LIMIT`,
        `DISTINCT ON`, window functions, `TABLESAMPLE BERNOULLI (percent) REPEATABLE (seed)`. Ties, rows without an
        `ORDER BY`, and what `LIMIT` keeps of them follow the dataset's order, which may come from an earlier query.
        Columns that are functions of the row are computed as it is read, in every epoch; values from other tables and
        rows are found once, with the rows, and kept in memory.

        The query is planned now and run when the rows are first needed; `ORDER BY` reads only the columns it names.
        `shuffle` replaces the order of `ORDER BY`.

        Args:
            query: One `SELECT`. Column and table names are case-sensitive.
            params: Values of `$name` in the query. They are bound, not pasted.
            tables: Further tables by name: a `Dataset`, the location of Parquet files, a table of any Arrow library,
                or a dict of columns.
            functions: Python functions by name; names are case-insensitive.

        Raises:
            QueryError: the query does not parse or type-check, is not a `SELECT`, names a table that was not passed, or
                returns rows that are not rows of the dataset (use `query` for these).
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a parameter, table or function cannot be used.

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
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    ) -> QueryResult:
        """Runs any `SELECT`, including `GROUP BY`, joins of any kind and unions, and returns its rows, to be read once.

        Sorts that exceed `memory_limit` spill to temporary files; the smaller side of a join, by rows, must fit into
        half of it.

        Args:
            query: One `SELECT`.
            params: As in `sql`.
            tables: As in `sql`.
            functions: As in `sql`.
            memory_limit: Bytes that the query may hold; a number, or text such as `"2 GiB"`.

        Raises:
            QueryError: the query does not parse or type-check, or names a table that was not passed; now or in a loop
                over the rows: it fails on a value. An Arrow library that reads the rows raises an
                [exception of its own](../howto/errors.md#through-arrow) instead, with the same message.
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a parameter, table or function cannot be used.
            MemoryLimitError: as when it fails on a value: it needs more than `memory_limit`, even with spilling.

        Example:
            >>> import pyarrow as pa
            >>> pa.table(ds.query("SELECT count(*) AS n FROM dataset")).to_pylist() == [{"n": ds.num_rows}]
            True
        """
        memory_limit = check_bytes("memory_limit", memory_limit, least=LEAST_MEMORY_LIMIT)
        rows = self._native.query(check_text("query", query), *_inputs(params, tables, functions), memory_limit)
        if not isinstance(rows, _lib.Dataset):
            return QueryResult(rows, rows)
        kept = Dataset(rows)
        batch_rows = kept._make_reader(ReadOptions(memory_limit=memory_limit), reads_all=True).fitting_batch_rows
        stream: Stream[Any] = kept.batches(batch_rows, rank=0, world_size=1, memory_limit=memory_limit)
        return QueryResult(stream.reader.stream(0, stream._native_share()), rows)

    def select_columns(self, column_names: str | Sequence[str]) -> Dataset:
        """Keeps the named columns, in that order. Never changes rows or their order.

        Raises:
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a name is not a string, or is given twice.
        """
        return self._of(self._native.select_columns(check_names("columns", column_names)))

    def remove_columns(self, column_names: str | Sequence[str]) -> Dataset:
        """Keeps all columns except the named ones.

        Raises:
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a name is not a string, or is given twice.
        """
        names = check_names("columns", column_names)
        self._native.select_columns(names)
        removed = set(names)
        return self.select_columns([name for name in self.column_names if name not in removed])

    def rename_column(self, original_column_name: str, new_column_name: str) -> Dataset:
        """Renames a column.

        Raises:
            ColumnNotFoundError: the column is not in the dataset.
            SettingError: the new name is not a string, or is taken.

        Example:
            >>> ds.select_columns(["path", "size"]).rename_column("size", "num_bytes").column_names
            ['path', 'num_bytes']
        """
        old = check_text("original_column_name", original_column_name)
        return self.rename_columns({old: check_text("new_column_name", new_column_name)})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> Dataset:
        """Renames columns. Features, rows and their order stay the same.

        Raises:
            ColumnNotFoundError: a column is not in the dataset.
            SettingError: a new name is not a string, or is taken.
        """
        if not isinstance(column_mapping, Mapping):
            raise SettingError(f"column_mapping: expected a dict of names, got {column_mapping!r}")
        check_names("column_mapping", [*column_mapping, *column_mapping.values()])
        return self._of(self._native.rename_columns(dict(column_mapping)))

    @property
    def features(self) -> Any:
        """The columns' [features](../howto/features.md): `datasets.Features` if `datasets` is installed.

        Otherwise a dict in the JSON form that `Features.from_dict` takes. Features come from the files' metadata if
        that fits the columns' types, and otherwise follow from the types. Columns keep theirs when they are selected,
        renamed or named in a query; a computed column has that of its type.

        Raises:
            SchemaError: a column has a type that features cannot express, such as a map.

        Example:
            >>> ds.select_columns(["path", "size"]).features
            {'path': Value('string'), 'size': Value('int64')}
        """
        return read_features(self._native)

    def cast(self, features: Any) -> Dataset:
        """Changes the features of columns, and their types if need be.

        Takes `datasets.Features`, an Arrow schema, or a dict of features, Arrow types or names of types (`"int32"`).
        Other columns stay as they are. Values are converted as rows are read, and a value that the new type cannot
        represent is an error. Only floats round: decimals, text and wider floats become the nearest float, floats the
        nearest decimal. Text becomes a `ClassLabel` by class name, or else by class number. Numbers become one if a
        class has that number, or if they are -1; `int64` is not checked. Dates, and timestamps without a time zone, are
        taken as UTC if the new type has a zone. Text made from other types is as in SQL (`1.0`, `NaN`, `1e30`,
        `2026-01-31T00:00:00`); `datasets` has `1`, `nan`, `1e+30`, `2026-01-31 00:00:00.000000`. Struct fields are
        matched by name, and missing ones are NULL. Bytes and paths become images and other media.

        Raises:
            ColumnNotFoundError: a feature names a column that is not in the dataset.
            SettingError: the argument is none of these, or there is no conversion to the new type.

        Example:
            >>> from datasets import ClassLabel
            >>> sorted(set(ds.cast({"licence_id": ClassLabel(names=["mit", "bsd"])}).features["licence_id"].names))
            ['bsd', 'mit']
            >>> ds.cast({"size": "float32"}).features["size"]
            Value('float32')
        """
        schema, described = self.schema, to_json(features)
        self._native.select_columns(check_names("features", list(described)))
        query = cast_query(schema, described)
        try:
            native = self._native if query is None else self._native.sql(query, {}, {}, [])
        except QueryError as error:
            raise SettingError(f"features: {error}") from error
        cast = self._of(native.with_features(json.dumps(described)))
        check_features(cast.schema, described)
        return cast

    def cast_column(self, column: str, feature: Any) -> Dataset:
        """Changes the feature of one column; see `cast`.

        Raises:
            ColumnNotFoundError: the column is not in the dataset.
            SettingError: the feature is none, or there is no conversion to its type.
        """
        return self.cast({check_text("column", column): feature})

    def decode(self, enable: bool = True) -> Dataset:
        """Decodes rows as `datasets` does: images to `PIL.Image`, audio to decoders, JSON to objects, ...

        Needs `datasets` and its libraries for the media. Without `decode`, rows hold what the files hold: dicts of
        bytes and path. For torch and other formats, use `with_format(..., compat="datasets")`; for `to_torch`, its
        arguments `decode` or `compat`.

        Raises:
            SettingError: `datasets` is not installed, or the dataset has a format.
        """
        check_flag("enable", enable)
        if self._format is not None and repr(self._format) != "decode()":
            raise SettingError(f"decode: the dataset has the format {self._format}; use `compat='datasets'` there")
        return Dataset(self._native, self._shuffle, DatasetsFormat(None) if enable else None, self._num_passes)

    def selection(self) -> Selection:
        """Returns which rows are kept, as a `Selection`. Evaluates the filters if that has not been done.

        Raises:
            QueryError: a filter or query fails on a value.
            StoreError: the store fails.

        Example:
            >>> ds.filter("language = 'rust'").selection()
            Selection(334 of 1,000 rows)
        """
        self._evaluate()
        return Selection(self._native.selection())

    def select(self, rows: Selection | Iterable[int]) -> Dataset:
        """Keeps the rows of a selection, in the dataset's order, or the rows with these numbers, in the given order.

        Row numbers count the rows kept so far; negative ones count from the end. A state of the result is valid for the
        same rows only.

        Raises:
            SelectionError: the selection is of other objects, of another version of them, or only a part.
            RowIndexError: a row number is out of range.
            SettingError: a row number is given twice, or the dataset is shuffled and row numbers are given.

        Example:
            >>> train, validation = ds.selection().split([0.9, 0.1], seed=7)
            >>> ds.select(train).num_rows
            900
            >>> ds.select([7, 3, 5]).select_columns("path")[:]
            {'path': ['src/7.rs', 'src/3.rs', 'src/5.rs']}
        """
        if isinstance(rows, Selection):
            return self._of(self._native.select(rows._native))
        return self._of(self._native.select_rows(self._row_numbers(rows, "rows")))

    def take(self, n: int) -> Dataset:
        """Keeps the first `n` of the current rows, in the dataset's order; all rows if there are fewer.

        Evaluates filters only as far as needed to find `n` rows. To look at rows, see `head`.

        Raises:
            SettingError: the dataset is shuffled, and so has other first rows in each epoch, or is repeated.

        Example:
            >>> [row["path"] for row in ds.take(2)]
            ['src/0.rs', 'src/1.rs']
        """
        n = check_count("n", n, least=0)
        return self._between("take", 0, n, "draw some by `selection().sample(n, seed)`, or look at `head(n)`")

    def skip(self, n: int) -> Dataset:
        """Leaves out the first `n` of the current rows, in the dataset's order; all rows if there are fewer.

        Evaluates the filters if that has not been done.

        Raises:
            SettingError: the dataset is shuffled, and so has other first rows in each epoch, or is repeated.

        Example:
            >>> list(ds.skip(990).select_columns("path").take(1))
            [{'path': 'src/990.rs'}]
            >>> len(ds.filter("language = 'rust'").skip(300))
            34
        """
        return self._between("skip", check_count("n", n, least=0), None, "skip before `shuffle`")

    def _between(self, method: str, start: int, stop: int | None, instead: str) -> Dataset:
        """Keeps a range of the current rows."""
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
            return self._of(beginning.select_slice(start, stop))
        num_rows = self._evaluate()
        stop = num_rows if stop is None else min(stop, num_rows)
        return self if (start, stop) == (0, num_rows) else self._of(native.select_slice(start, stop))

    def _beginning(self, n: int) -> _lib.Dataset | None:
        """Returns a dataset of at least the first `n` kept rows, if filters can find these without reading the others.

        Returns None if the kept rows are known already, or if there are no others.
        """
        if self._shuffle is not None or self._native.num_rows_known is not None:
            return None
        beginning = with_progress("selecting", lambda tick: self._native.beginning(n, tick))
        _warn_of_note(beginning or self._native)
        return beginning

    def repeat(self, num_times: int | None = None) -> Dataset:
        """Makes an epoch pass over the rows several times, or endlessly; each pass is shuffled anew.

        Each pass is an epoch of the dataset without `repeat`, with its own last batch and remainder: no batch holds
        rows of two passes. Epoch `e` of `ds.repeat(k)` has the orders of epochs `e * k` to `e * k + k - 1` of `ds`; an
        endless epoch `e` has the orders of all epochs from `e` on. A state names its pass, and so is valid for any
        number of passes. Whatever counts rows (`len`, `ds[i]`, SQL) counts each row once.

        Args:
            num_times: Passes per epoch; endless by default. Multiplies the passes of a dataset that is repeated
                already.

        Raises:
            SettingError: `num_times` is below 1, or there are more than 2^31 - 1 passes in total.

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
        """Keeps shard `index` of `num_shards`: consecutive row groups, with rows divided as evenly as these allow.

        Row groups stay whole, so of more shards than row groups some are empty, with a `PerformanceWarning`; rows are
        divided by `selection().split` and `to_hf().shard`.
        `filter`, `take` and `select` do not change the shards, so a shard may have no kept rows. Only the shard's bytes
        are read, so several machines can evaluate a filter in parts: each takes the `selection` of its shard, and
        `Selection.merge` combines them. Ranks of a training run need no shards; see `to_torch`.

        Raises:
            SettingError: `index` is not below `num_shards`, the dataset is a shard already, or `sql` chose its rows by
                more than a `WHERE`: call `shard` before.

        Example:
            >>> [ds.shard(i, 4).num_rows for i in range(4)]
            [300, 200, 300, 200]
        """
        # None at all is refused below, where the order of the arguments is told: `datasets` has the other one.
        num_shards = check_count("num_shards", num_shards, least=0, most=(1 << 31) - 1)
        index = check_count("index", index, least=0, most=(1 << 31) - 1)
        native = self._native.shard(index, num_shards)
        is_of_files = not self._native.filters and not self._native.restrictions
        if is_of_files and self._native.num_rows_total and not native.num_rows_known:
            warnings.warn(
                f"shard {index} of {num_shards} has no rows, because row groups are not divided; "
                "`selection().split` and `to_hf().shard` divide rows",
                PerformanceWarning,
                stacklevel=2,
            )
        return self._of(native)

    def gather(self, indices: Any, *, memory_limit: int | str = DEFAULT_MEMORY_LIMIT) -> _lib.Batch:
        """Returns the rows with these numbers as one Arrow batch, in the given order; a number may be repeated.

        Reads only the pages that hold the rows, all at once.

        Args:
            indices: What `ds[...]` takes: row numbers, a slice, an array of row numbers or of Booleans.
            memory_limit: Bytes held while reading, in addition to the batch; a number, or text such as `"2 GiB"`.

        Raises:
            RowIndexError: a row number is out of range.
            SettingError: the dataset is shuffled, or `indices` are not row numbers.

        Example:
            >>> ds.select_columns(["path", "size"]).gather([7, -1, 7])
            Batch(3 rows, 2 columns)
              path  Utf8   'src/7.rs', 'src/999.rs', 'src/7.rs'
              size  Int64  21, 2997, 21
        """
        memory_limit = check_bytes("memory_limit", memory_limit)
        return self._native.gather(self._row_numbers(indices), memory_limit)

    def __getitem__(self, key: Any) -> Any:
        """Returns one or several rows by number, in the dataset's [format](#with_format); without one, dicts.

        Takes row numbers (negative ones count from the end), slices with steps, lists and arrays of row numbers, and
        arrays with a Boolean per row. Numbers count the kept rows, in the dataset's order. The name of a column gives
        that [Column](#forebay.Column), which reads nothing yet.

        Raises:
            RowIndexError: a row number is out of range.
            SettingError: the dataset is shuffled, or the key has none of these forms.
            ColumnNotFoundError: the key is a text, and not the name of a column.
            TensorError: a column has no form in the format.
            DataError: bytes cannot be decoded.
            StoreError: the store fails.

        Example:
            >>> small = ds.select_columns(["path", "size"])
            >>> small[-1]
            {'path': 'src/999.rs', 'size': 2997}
            >>> small[4:0:-2]
            {'path': ['src/4.rs', 'src/2.rs'], 'size': [12, 6]}
            >>> small["size"][:3]
            [0, 3, 6]
        """
        if isinstance(key, str):
            return Column(self, key)
        batch = self.gather(key)
        try:
            if is_number(key):
                return self._rows(batch)[0]
            form = self._prepared()
            if form is not None:
                return form(batch)
        except DataError as error:
            locate(error, self._row_numbers(key))
            raise
        return to_python(batch, "to_pydict")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Returns rows by number, read together; called by torch's `DataLoader`."""
        return self._rows(self.gather(indices))

    def _row_numbers(self, key: Any, name: str = "row") -> list[int]:
        if self._shuffle is not None:
            raise SettingError(
                f"{name}: a shuffled dataset has another order in each epoch, in which `to_torch` and `batches` "
                "deliver it, and `to_hf` for a `Trainer`; rows by number are those of the dataset before `shuffle`, of "
                "which `ds.select(ds.selection().sample(n, seed))` keeps some at random"
            )
        return row_numbers(key, self._evaluate(), name)

    def _rows(self, batch: _lib.Batch) -> list[Any]:
        form = self._prepared()
        if form is not None:
            return list(form.rows(batch))
        rows: list[Any] = to_python(batch, "to_pylist")
        return rows

    def _prepared(self) -> Format | None:
        """Returns the format, prepared once for the columns of all kept rows."""
        if self._format is not None and self._prepared_format is None:
            self._prepared_format = self._format.prepare(self._make_reader(ReadOptions()))
        return self._prepared_format

    @familiar.explained(familiar.OF_SHUFFLE)
    def shuffle(
        self,
        seed: int = 0,
        *,
        shuffle_bytes: int | str = DEFAULT_SHUFFLE_BYTES,
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
            shuffle_bytes: Decoded bytes of the shuffle windows of all lanes together; each of `N` ranks holds `1/N` of
                them. A number, or text such as `"2 GiB"`.
            num_lanes: Lanes that an epoch is dealt into; derived by default, 192 where that fits.
            window_rows: Rows in the window of a lane; derived by default.
            weights: SQL expression for the weight of a row: an epoch is drawn with replacement, in proportion to it. It
                may use window functions over the kept rows: `1.0 / count(*) OVER (PARTITION BY label)` balances
                classes. Computed once, when rows are first needed; takes 8 bytes of memory per row.
            num_samples: Rows that an epoch draws by `weights`; by default as many as are kept. `len` of the dataset
                stays the number of kept rows.

        Raises:
            SettingError: a setting cannot work; `weights` for rows in an order of their own, by `ORDER BY` or `select`
                of row numbers (as soon as the rows have been found): draw from `ds.select(ordered.selection())`; when
                rows are needed: a weight is NULL, negative or not finite.
            QueryError: `weights` does not parse or type-check, or is not one value per row.

        Example:
            >>> balanced = ds.shuffle(seed=1, weights="1.0 / count(*) OVER (PARTITION BY language)", num_samples=64)
            >>> [batch.num_rows for batch in balanced.batches(32)]
            [32, 32]
        """
        options = ShuffleOptions(
            seed=seed,
            shuffle_bytes=check_bytes("shuffle_bytes", shuffle_bytes),
            num_lanes=num_lanes,
            window_rows=window_rows,
            weights=weights,
            num_samples=num_samples,
            weighed=None if weights is None else self._native,
        )
        if weights is not None:
            weighing(self._native, weights)
            refuse_own_order(self._native)
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
        """Applies a function to every batch on its way to the loop, in worker processes or threads if wanted.

        Nothing is computed now, and nothing is kept: `to_torch` and `batches` of the result run the function on their
        batches in every epoch. Workers read no files. Order, steps, `len` and states are the same as without `map`, for
        any number of workers; a state does not count batches still in workers. [More](../howto/transforms.md).

        Args:
            function: Takes what the stream would yield: a dict of tensors and lists (`to_torch`) or a batch in the
                dataset's [format](#with_format) (`batches`; without a format, a dict of lists). Returns a dict of
                columns with as many rows, which are added to the batch or replace its columns. None changes nothing. A
                function on tables returns a table.
            batched: Pass batches to the function instead of single rows. Results for single rows are stacked if they
                share one shape and type.
            with_indices: Also pass the positions of the rows in the order of the epoch; in a dataset that is not
                shuffled, these are the row numbers.
            with_seeds: Then also pass 64-bit random seeds, one per row, as a NumPy array (an integer for a single row).
                They depend on the seed of `shuffle`, the epoch and the row's position, not on workers, batches or
                ranks.
            input_columns: Pass only these columns, as positional arguments.
            remove_columns: Columns to remove from the batch after the call.
            fn_kwargs: Further keyword arguments of the function.
            num_proc: Processes that run the function; None or 0 for none. They are kept for all epochs of a stream.
            num_threads: Threads that run it instead, for functions that release the GIL.
            pool: Further settings of the workers: batches held, a time limit.

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
        """Sets what `batches`, `iter`, `ds[...]` and loops over the dataset return.

        | format | a batch | a row |
        |---|---|---|
        | `None` | `Batch`: Arrow, for every Arrow library | dict of Python values |
        | `"torch"`, `"jax"`, `"tensorflow"` | dict of tensors | dict of tensors of one row |
        | `"numpy"` | dict of arrays; dates and times as `datetime64`, `timedelta64` | dict of scalars and arrays |
        | `"arrow"` | `pyarrow.Table` | table of one row |
        | `"pandas"` | `pandas.DataFrame` | frame of one row |
        | `"polars"` | `polars.DataFrame` | frame of one row |

        Tensors and arrays share the batch's memory through DLPack; Arrow and Polars share it, too. pandas copies what
        it cannot hold. `to_torch` yields tensors in any format; it uses the `forms` and `compat` of `"torch"` unless it
        is given its own.

        Args:
            type: The format. The short names of `datasets` (`"np"`, `"pt"`, `"pd"`, ...) work, too.
            forms: Forms of single columns, as in `to_torch`; for tensors and arrays.
            compat: `"datasets"` for exactly the rows and batches of `datasets` in this format; see `to_torch`.

        Raises:
            SettingError: the format is unknown or its library not installed, or `decode` was called and this format
                would hold the media as bytes.

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
        """Whether `decode` was called."""
        return isinstance(self._format, DatasetsFormat) and self._format.library is None

    @familiar.explained(familiar.OF_STREAM | familiar.OF_TENSORS)
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
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        num_threads: int | None = None,
        on_error: OnError = "raise",
        max_skipped: float = DEFAULT_MAX_SKIPPED,
        steps_per_epoch: int | None = None,
        read_once: bool = False,
    ) -> Stream[Any]:
        """Streams batches in the dataset's [format](#with_format); without one, Arrow batches for any Arrow library.

        Order, state and arguments are as in `to_torch`, without the arguments that shape tensors. torch is not needed.

        Raises:
            TensorError: a column has no form in the chosen format. Raised here; while iterating, only if lists
                [seemed to have one length](../howto/tensors.md#lists-of-different-lengths).
            ForebayError: all else as in `to_torch`, except what is about torch.

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
        share = _share(
            batch_size,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            drop_last=drop_last,
            mesh=mesh,
            replicate=replicate,
            steps_per_epoch=steps_per_epoch,
            read_once=read_once,
        )
        read = _read_options(memory_limit, num_threads, on_error, max_skipped)
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
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
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
        """Streams batches as dicts of tensors and lists by column: a `torch.utils.data.IterableDataset`.

        Tensors share the batch's memory: nothing is copied after the shuffle. Iterate it as it is; torch's `DataLoader`
        takes it with `batch_size=None`, because its items are batches. What each type becomes:

        | column | form |
        |---|---|
        | numbers, dates, times, durations | `(n,)`, natural dtype; times are integers in their [unit](#units) |
        | Boolean | `(n,)` bool (one copy) |
        | fixed-size lists, fixed-shape tensors, lists that all have one length | `(n, k, ...)` |
        | fixed-size binary | `(n, bytes)` uint8 |
        | other lists, maps | `Ragged`: values, offsets |
        | structs | dict of their fields |
        | strings, binary, decimals, and lists of them | list of `str`, `bytes`, `decimal.Decimal`, lists |
        | dictionaries | like their values |
        | numbers, lists and structs that may be NULL | `Masked`: values, mask |

        Whether lists have one length and columns may be NULL is decided by the footers of the kept row groups and the
        filters, so all batches of a stream have the same forms.

        Args:
            batch_size: Rows per batch.
            drop_last: Leave out a last batch with fewer rows.
            remainder: What to do with the last rows if the world size does not divide the number of rows: `"drop"`
                leaves them out (fewer than `world_size`; `num_dropped` counts them), `"pad"` repeats rows from the
                start of the epoch, `"keep"` lets ranks differ by one row and thus by one batch (DDP would hang).
            rank: Rank of this process; by default from the initialised `torch.distributed`, else from the environment
                variables `RANK` and `WORLD_SIZE`.
            world_size: Number of ranks; default as for `rank`.
            memory_limit: Bytes in flight, decoded and ready, in total; a number, or text such as `"2 GiB"`. Never
                changes the order.
            num_threads: Threads that decode and gather; one per core by default.
            on_error: What to do with rows that cannot be read because an object is damaged, gone, or out of reach for
                longer than the store's `retry_for`: `"raise"` ends the stream with the error, `"skip"` leaves them out
                (not with `padding`, `pack`, `decode`, `mesh` or `replicate`).
                Their positions stay [empty](../howto/errors.md#rows-that-cannot-be-read), so other rows keep their
                order and rank. `Stream.holes` and the state list what was left out.
            max_skipped: How many rows of an epoch `on_error="skip"` may leave out, counting those of `Stream.holes`: a
                number, or a fraction (a float below 1).
            forms: Other forms for single columns (struct fields with a dot): `"tensor"` (lists: one length, checked in
                each batch), `"ragged"` (strings and binary: their bytes), `"nested"` (a jagged `torch.nested` tensor),
                `"list"` (Python objects), `"dictionary"` (`DictionaryEncoded`), or a dtype: `"bfloat16"`,
                `"float32"`, `"int16"`, ... reinterpret the bytes of binary and of unsigned integers of that width;
                for decimals, `"float64"` rounds and `"int64"` gives the unscaled integer.
            compat: `"datasets"` for exactly the batches of `datasets`' torch format: int64 and float32, lists stacked
                if those of a batch have one length, media decoded. [Slower](../howto/features.md#formats). If neither
                `compat` nor `forms` is given, those of `with_format("torch", ...)` are used.
            mesh: The `DeviceMesh` of data-parallel ranks, such as `mesh["dp"]`. Ranks that hold parts of the same model
                replica get the same batches.
            replicate: Without a mesh: how many consecutive ranks get the same batches.
            read_once: Let one rank of each replica read for the others on its host and pass them the batches through
                shared memory. [More](../howto/gpus.md#models-that-are-split).
            pin_memory: Deliver tensors in pinned memory, so that copies to a GPU can overlap with its computation.
                Without a GPU, batches stay as they are.
            device: A GPU, such as `"cuda"`, to copy batches to while the loop computes, two batches ahead. With
                `drop_last`, all tensors of a column have one shape. Refused in workers of a torch `DataLoader`.
                [More](../howto/dataloader.md#gpus).
            padding: `True`, or [`Pad`](#forebay.Pad): lists of numbers become `(n, length)`, with an `attention_mask`.
            pack: [`Pack`](#forebay.Pack): lists of tokens become [sequences of one length](../howto/packing.md),
                `batch_size` of them per batch. Each rank then has its own state.
            decode: [`Image`](#forebay.Image) by column: encoded images become [pixels](../howto/images.md).
            steps_per_epoch: Batches per epoch, on every rank. Epoch `e` begins where epoch `e - 1` ended, with batch
                `e * steps_per_epoch` of as many passes over the dataset as it takes; see [`repeat`](#repeat). A batch
                of which `on_error="skip"` leaves nothing is a step, too, which a reader that is alone passes over.

        Raises:
            TensorError: a column has no form, or not the requested one. Raised here; while iterating, only if lists
                [seemed to have one length](../howto/tensors.md#lists-of-different-lengths).
            ColumnNotFoundError: `forms` names a column that is not in the dataset.
            SettingError: an argument cannot work, or two of them exclude each other.
            VersionError: torch is not installed.
            QueryError: when rows are first needed, here or while iterating: a filter or query fails on a value.
            StoreError: likewise: the store fails, or an object has changed.
            DataError: likewise: bytes cannot be decoded.
            MemoryLimitError: likewise: `memory_limit` cannot hold what is needed at once.
            AgreementError: while iterating, ranks are about to read different epochs.
            SkipLimitError: while iterating, more than `max_skipped` rows could not be read.

        Example:
            >>> batch = next(iter(ds.select_columns(["tokens", "text"]).to_torch(32)))
            >>> batch["tokens"].shape, len(batch["text"])
            (torch.Size([32, 4]), 32)
        """
        import_for("`to_torch`", "torch")
        from forebay.devices import make_stages
        from forebay.torch import TorchStream

        share = _share(
            batch_size,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            drop_last=drop_last,
            mesh=mesh,
            replicate=replicate,
            steps_per_epoch=steps_per_epoch,
            read_once=read_once,
        )
        read = _read_options(memory_limit, num_threads, on_error, max_skipped)
        form = chosen(self._torch_format(forms, compat), padding, pack, decode, read)
        if self._is_decoded and compat is None:
            refuse_media(self.features, decode or {})
        # Features that are read from types are no media, and reading them imports `datasets`.
        declared = json.loads(self._native.features or "{}") if decode else {}
        check_are_images({name: declared.get(name) for name in decode or {}})
        return TorchStream(self, share, read, form, make_stages(device, pin_memory=pin_memory))

    def _torch_format(self, forms: Mapping[str, str] | None, compat: Compat | None) -> Format:
        """Returns the requested format; if none is requested, the dataset's own if that is torch's."""
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
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        num_threads: int | None = None,
    ) -> IterableDataset:
        """Returns a real `datasets.IterableDataset` (Hugging Face) over Forebay's stream.

        It works with `Trainer`, `accelerate`, TRL, `interleave_datasets`, `DataLoader`, and all else that takes one.
        Nothing is read until it is iterated. A single process yields the dataset's order, after `set_epoch` that of the
        epoch; `split_dataset_by_node`, `shard` and DataLoader workers divide it so that every row is delivered once.
        States are small, and exact under `shuffle`. Its `len` is known.

        Args:
            split: The name of its `split`; by default that of the opened split.
            num_shards: The most processes that can divide it; by default the lanes of the order, at least 192.
            memory_limit: Bytes in flight, decoded and ready, of all shards together; a number, or text such as
                `"2 GiB"`. A shard has at least 256 MiB of them, if the limit allows.
            num_threads: Threads that decode and gather, in each process; one per core by default.

        Raises:
            VersionError: `datasets` or torch is not installed, or `datasets` has an unsupported version.
            SchemaError: a column has a type that `datasets` does not support.

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
        read = _read_options(memory_limit, num_threads)
        from forebay.hf.versions import import_datasets

        import_datasets("`to_hf`")
        from forebay.hf.iterable import make

        made: IterableDataset = make(self, read, split=split, num_shards=num_shards)
        return made

    def iter(self, batch_size: int | None = None, drop_last_batch: bool = False) -> Iterator[Any]:
        """Yields all rows in the dataset's order, or batches of them, in the dataset's [format](#with_format).

        Without a format, rows are dicts of Python values and batches are dicts of lists. Times and other
        types without a counterpart in Python need pyarrow.

        Raises:
            SettingError: `batch_size` is below 1.
            TensorError: a column has no form in the format.
            ForebayError: while iterating, as in any loop over a [stream](../howto/errors.md#when-they-come).

        Example:
            >>> next(ds.select_columns(["path", "size"]).iter())
            {'path': 'src/0.rs', 'size': 0}
        """
        chosen = None if self._format is None else self._format.prepare(self._make_reader(ReadOptions()))
        if batch_size is not None:
            batch_size = check_count("batch_size", batch_size, most=MOST_BATCH_ROWS)
        batches = self._all_rows(batch_size, drop_last=drop_last_batch and batch_size is not None)
        if chosen is not None:
            return Iteration(_formatted(chosen, batches, by_rows=batch_size is None), ANEW)
        if batch_size is None:
            return Iteration(chain.from_iterable(_python_rows(batches)), ANEW)
        return Iteration((to_python(batch, "to_pydict") for batch in batches), ANEW)

    def _all_rows(self, batch_size: int | None, *, drop_last: bool) -> Iterator[_lib.Batch]:
        """Yields all rows as Arrow batches, whatever the format; without a `batch_size`, of any size.

        The first rows that filters find come before all are found, so a look at a few rows is fast.
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
        """Streams the rows from `position` on; weights are computed once for all loops."""
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
            SettingError: `n` is negative, or more rows than a batch can have.
            ForebayError: as in `iter`.

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
        return import_for("`schema`", "pyarrow").schema(self._native)

    @property
    def units(self) -> dict[str, str]:
        """The units of dates, times and durations as integers, by column: `"D"`, `"s"`, `"ms"`, `"us"` or `"ns"`.

        Dates and timestamps count from 1970-01-01 (in UTC if the column has a time zone), times of day from midnight.
        Struct fields are named by path: `"meta.created"`.

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

        `reads_all` says that one reader is about to read all rows: the first ones are then fetched meanwhile.
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
        """Writes the list of the dataset's objects and their footers to one object, so that opening reads no footers.

        `load_dataset(uri, split=...)` opens it in one request, on any machine that can reach the objects. An object
        that has changed since is an `ObjectChangedError`. Filters, columns, credentials, and the rows chosen by `take`,
        `skip`, `select` or a slice of a split are not saved.

        Args:
            uri: A path, or a URI in any writable store; ends in `.forebay`.
            storage_options: Options of that store; by default those the dataset was opened with, if it is the same.

        Raises:
            SettingError: the name has another ending, an object is a URL with a query, or there are more objects than a
                manifest can list.
            StoreError: the store cannot be written to.

        Example:
            >>> path = corpus / "corpus.forebay"
            >>> ds.save_manifest(path)
            >>> forebay.load_dataset(path, split="train").num_rows
            1000
        """
        save_manifest([(None, self._native)], uri, storage_options)

    def explain(self, analyze: bool = False) -> Explanation:
        """Evaluates the filters; returns row groups, rows, bytes, requests, time and order of a pass over the dataset.

        Args:
            analyze: Also read all rows once, in the dataset's order, and report what that took under `measured`.

        Raises:
            QueryError: a filter or query fails on a value.
            StoreError: the store fails.

        Example:
            >>> facts = ds.filter("size < 150").explain(analyze=True)
            >>> facts["rows_kept"], facts["measured"]["rows"]
            (50, 50)
        """
        check_flag("analyze", analyze)
        num_rows = self.num_rows
        measured = {"measured": self._measure()} if analyze else {}
        of_query = self._shuffle is None and self._native.has_own_order
        facts = self._native.explain() | {"rows_kept": num_rows, "order": self._order(), "order_of_query": of_query}
        return Explanation(facts | measured)

    def _measure(self) -> dict[str, float]:
        """Reads all kept rows once and returns what that took."""
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
        """Rows of an epoch: the kept rows, or the number drawn from them."""
        num_rows = self.num_rows
        if self._shuffle is None:
            return num_rows
        if self._shuffle.weights is not None:
            refuse_own_order(self._native)
        return self._shuffle.epoch_rows(num_rows)

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
            refuse_own_order(self._native)
            self._weights = make_weights(self._native, shuffle, num_rows)
        skippable = read.skippable(num_rows if shuffle is None else shuffle.epoch_rows(num_rows))
        return self._native.reader(settings, read.memory_limit, read.num_threads, skippable, self._weights)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Streams all rows to an Arrow consumer, in the dataset's order (epoch 0 of a shuffled one).

        Batches have up to 65,536 rows, and fewer if these take more than 16 MiB. If the dataset is not shuffled, no
        batch spans two large row groups, and batches are handed over as decoded, without a copy.

        Raises:
            SettingError: the dataset is repeated.
            ForebayError: a filter fails on a value, or the store fails; while the consumer reads, an
                [exception of its own](../howto/errors.md#through-arrow).
        """
        batch_rows = self._make_reader(ReadOptions(), reads_all=True).fitting_batch_rows
        return self.batches(batch_rows, rank=0, world_size=1).hand_over(requested_schema, follows_parts=True)

    def __datafusion_table_provider__(self, session: Any = None) -> object:
        """Exports the dataset to `datafusion` as a table; a query reads only what it needs.

        Columns, limits and filters on the dataset's own columns are pushed down. Rows come in the dataset's order, even
        if it is shuffled.

        Raises:
            VersionError: the major version of `datafusion` is not that of the DataFusion Forebay is built with.

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
    """Warns of what a user should know about how the selection was made."""
    note = native.selection_note
    if note is not None:
        warnings.warn(note, PerformanceWarning, stacklevel=level_of_loop())


def _formatted(form: Format, batches: Iterable[_lib.Batch], *, by_rows: bool) -> Iterator[Any]:
    """Yields the batches in a format, or the rows of them, of which the first is the first row of the dataset."""
    first = 0
    for batch in batches:
        try:
            if by_rows:
                yield from form.rows(batch)
            else:
                yield form(batch)
        except Exception as error:
            locate(error, range(first, first + len(batch)))
            raise
        first += len(batch)


def _python_rows(batches: Iterable[_lib.Batch]) -> Iterator[list[Any]]:
    """Yields the rows of batches as dicts, some at a time."""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_PER_CONVERSION):
            yield to_python(batch.slice(start, _ROWS_PER_CONVERSION), "to_pylist")


def _read_options(
    memory_limit: int | str,
    num_threads: int | None,
    on_error: OnError = "raise",
    max_skipped: float = DEFAULT_MAX_SKIPPED,
) -> ReadOptions:
    return ReadOptions(
        memory_limit=check_bytes("memory_limit", memory_limit),
        num_threads=num_threads,
        on_error=on_error,
        max_skipped=max_skipped,
    )


def _share(
    batch_size: int,
    *,
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
