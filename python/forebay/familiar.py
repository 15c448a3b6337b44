"""Names that users know from `datasets` and other libraries, and their equivalents in Forebay."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
T = TypeVar("T")

_FRAME = "`pyarrow.table(ds)`, `polars.DataFrame(ds)` or `duckdb.sql('FROM ds')`, and their methods"
_PARQUET, _CSV, _JSON = (
    f"`duckdb.sql(\"COPY (FROM ds) TO 'rows.{kind}'\")`; or {_FRAME}" for kind in ("parquet", "csv", "json")
)
_SHARDS = "`ds.to_hf()` has them"
_STREAM = "what `ds.to_torch(n)` and `ds.batches(n)` return has one"

OF_DATASET = {
    # Read by `split_dataset_by_node`.
    "_distributed": "`ds.to_hf()`, or `ds.to_torch(n)`, which finds its rank",
    "align_labels_with_mapping": "`ds.sql('SELECT * REPLACE (1 - name AS name) FROM dataset')`, then "
    "`ds.cast_column(name, datasets.ClassLabel(names=names))`",
    "add_column": "`ds.sql('SELECT *, x * 2 AS y FROM dataset')`",
    "batch": "`ds.batches(n)` or `ds.to_torch(n)`",
    "columns": "`ds.column_names`",
    "class_encode_column": "`ds.cast_column(name, datasets.ClassLabel(names=names))`",
    "collect": _FRAME,
    "count": "`len(ds)`, or `ds.filter('score > 0.8').num_rows`",
    "describe": "`duckdb.sql('SUMMARIZE ds')`",
    "drop": "`ds.remove_columns(['score'])`",
    "drop_duplicates": "`ds.sql('SELECT DISTINCT ON (lang) * FROM dataset')`",
    "drop_nulls": "`ds.filter('score IS NOT NULL')`",
    "dropna": "`ds.filter('score IS NOT NULL')`",
    "dtypes": "`ds.schema` and `ds.features`",
    "flatten_indices": "nothing: the rows of `ds.select([3, 1])` are read where they are",
    "format": "`repr(ds)` shows it",
    "flatten": "`ds.sql(\"SELECT a['b'] AS b FROM dataset\")`",
    "group_by": "`ds.query('SELECT lang, count(*) FROM dataset GROUP BY lang')`",
    "groupby": "`ds.query('SELECT lang, count(*) FROM dataset GROUP BY lang')`",
    "info": "`ds.features` and `len(ds)`",
    "join": "`ds.sql('SELECT * FROM dataset JOIN side USING (lang)', tables={'side': side})`",
    "limit": "`ds.sql('SELECT * FROM dataset LIMIT 10')`",
    "load_state_dict": _STREAM,
    "n_shards": _SHARDS,
    "num_columns": "`len(ds.column_names)`",
    "num_shards": _SHARDS,
    "push_to_hub": "`ds.to_hf()` has one",
    "random_split": "`ds.selection().split([0.9, 0.1], seed)`, then `ds.select` of each part",
    "iterrows": "`ds.iter()`",
    "itertuples": "`ds.iter()`",
    "reset_format": "`ds.with_format(None)`",
    "reshard": _SHARDS,
    "rename": "`ds.rename_columns({'score': 'value'})`",
    "sample": "`ds.select(ds.selection().sample(n, seed))`",
    "save_to_disk": _FRAME,
    "set_epoch": _STREAM,
    "set_format": "`ds.with_format('torch')`, which returns another dataset",
    "set_transform": "`ds.map(function, batched=True)`",
    "shape": "`len(ds)` and `len(ds.column_names)`",
    "sort": "`ds.sql('SELECT * FROM dataset ORDER BY score DESC')`",
    "sort_values": "`ds.sql('SELECT * FROM dataset ORDER BY score DESC')`",
    "split": "`ds.selection().split([0.9, 0.1], seed)`, then `ds.select` of each part; the name of the split is "
    "`ds.to_hf().split`",
    "state_dict": _STREAM,
    "tail": "`ds.skip(len(ds) - 5).head(5)`",
    "to_arrow": _FRAME,
    "to_csv": _CSV,
    "to_dict": _FRAME,
    "to_iterable_dataset": "`ds.to_hf()`",
    "to_json": _JSON,
    "to_list": _FRAME,
    "to_pandas": _FRAME,
    "to_parquet": _PARQUET,
    "to_polars": _FRAME,
    "train_test_split": "`test = ds.selection().sample(n, seed)`, then `ds.select(test)` and "
    "`ds.select(ds.selection() - test)`",
    "unique": "`ds.query('SELECT DISTINCT lang FROM dataset')`",
    "value_counts": "`ds.query('SELECT lang, count(*) FROM dataset GROUP BY lang')`",
    "where": "`ds.filter('score > 0.8')`",
    "with_columns": "`ds.sql('SELECT *, x * 2 AS y FROM dataset')`",
    "with_transform": "`ds.map(function, batched=True)`",
    "write_parquet": _PARQUET,
}
"""Attributes of `datasets` and data frames that `Dataset` does not have."""

_ROWS = (
    "`pyarrow.table(result)`, `polars.DataFrame(result)` or `pandas.DataFrame.from_arrow(result)`, and their methods"
)

OF_QUERY_RESULT = dict.fromkeys(
    (
        *("arrow", "collect", "df", "fetch_arrow_table", "fetchall", "fetchdf", "fetchone", "head", "num_rows", "pl"),
        *("read_all", "show", "to_arrow", "to_arrow_table", "to_dict", "to_list", "to_pandas", "to_polars"),
        *("to_pydict", "to_pylist", "write_parquet"),
    ),
    _ROWS,
)
"""Attributes of data frames and of results of DuckDB and DataFusion that `QueryResult` does not have."""

_ANYWHERE = {"batch", "load_state_dict", "set_epoch", "set_transform", "state_dict", "with_transform"}

_EXPORT = "a loop over `batches(n)` that writes what comes, or `ds.to_hf().map(function)`, a dataset of `datasets`"

BEHIND_FUNCTIONS = {
    name: _EXPORT
    if _FRAME in instead or name in ("push_to_hub", "to_iterable_dataset")
    else instead
    if name in _ANYWHERE
    else f"before `map`, {instead}"
    for name, instead in OF_DATASET.items()
}
"""Attributes of `datasets` and data frames that a dataset with functions does not have."""

_DOWNLOADED = "nothing is downloaded: leave it out"

OF_LOAD = {
    "batch_size": "`to_torch(batch_size)` and `batches(batch_size)` take it",
    "cache_dir": "nothing but footers and selections is kept, in the folder that `FOREBAY_CACHE` names: leave it out",
    "download_config": _DOWNLOADED,
    "download_mode": _DOWNLOADED,
    "keep_in_memory": _DOWNLOADED,
    "num_proc": "threads read: leave it out",
    "on_bad_files": "`to_torch` and `batches` take `on_error='skip'`, for rows that cannot be read",
    "save_infos": _DOWNLOADED,
    "use_auth_token": "it is called `token`",
    "trust_remote_code": "nothing but Parquet is read: leave it out",
    "verification_mode": _DOWNLOADED,
}
"""Arguments of `load_dataset` in `datasets` that do not exist here."""

_BATCH = "functions get the batches of the loop, whose size `to_torch` and `batches` take"
_KEPT = "nothing is computed before the loop asks for it, and nothing is kept: leave it out"

OF_MAP = {
    "batch_size": _BATCH,
    "cache_file_name": _KEPT,
    "desc": _KEPT,
    "drop_last_batch": _BATCH,
    "features": "columns have the types that the function returns: leave it out",
    "keep_in_memory": _KEPT,
    "load_from_cache_file": _KEPT,
    "new_fingerprint": _KEPT,
    "with_rank": "`worker_init_fn` of `PoolOptions` is told the number of its process, and `with_seeds=True` gives "
    "random numbers that depend on none",
    "writer_batch_size": _KEPT,
}
"""Arguments of `map` in `datasets` that do not exist here."""

OF_MAP_OF_ROWS = {
    "num_proc": "`ds.map(function, num_proc=...)` runs it in processes, for `to_torch` and `batches`, and workers of a "
    "`DataLoader` do for this dataset",
}
"""Arguments of `map` in `datasets` that neither its streams nor those of `to_hf` have."""

OF_FORMAT = {
    "columns": "`select_columns(columns)` before it",
    "device": "`to_torch(batch_size, device=...)` takes it",
    "output_all_columns": "every column comes in the format: leave it out",
}
"""Arguments of `with_format` in `datasets` that do not exist here."""

_PYTHON = "it takes SQL, or conditions; `ds.to_hf().filter(function)` calls Python for each row"

OF_FILTER = {
    "batch_size": _PYTHON,
    "batched": _PYTHON,
    "cache_file_name": _KEPT,
    "desc": _KEPT,
    "fn_kwargs": _PYTHON,
    "function": _PYTHON,
    "input_columns": _PYTHON,
    "keep_in_memory": _KEPT,
    "load_from_cache_file": _KEPT,
    "new_fingerprint": _KEPT,
    "num_proc": "threads evaluate it: leave it out",
    "with_indices": _PYTHON,
    "writer_batch_size": _KEPT,
}
"""Arguments of `filter` in `datasets` that do not exist here."""

OF_SHUFFLE = {
    "buffer_size": "rows are shuffled in windows, in `shuffle_bytes` of memory: leave it out",
    "generator": "the order follows from `seed`",
    "keep_in_memory": _KEPT,
    "load_from_cache_file": _KEPT,
}
"""Arguments of `shuffle` in `datasets` that do not exist here."""

_ORDER = (
    "the order is the dataset's: `set_epoch(epoch)` sets its epoch, and `load_state_dict` continues in it, and "
    "replaces `skip_first_batches`"
)

OF_LOADER = {
    "batch_sampler": _ORDER,
    "generator": "`ds.shuffle(seed=...)`",
    "sampler": _ORDER,
}
"""Attributes of torch's `DataLoader` that `DataLoader` does not have."""

_SHUFFLED = "`shuffle(seed=...)` before it"
_WORKERS = (
    "its threads read: `num_threads`; `map(function, num_proc=...)` and `DataLoader` have processes for functions"
)

OF_STREAM = {
    "batch_sampler": _ORDER,
    "collate_fn": "`DataLoader` takes it, or `map(function, batched=True)` before it",
    "columns": "`select_columns(columns)` before it",
    "filters": "`filter(filters)` before it",
    "generator": _SHUFFLED,
    "num_workers": _WORKERS,
    "prefetch_factor": "as much is read ahead as `memory_limit` allows",
    "sampler": _ORDER,
    "seed": _SHUFFLED,
    "shuffle": _SHUFFLED,
    "transform": "`map(function, batched=True)` before it",
}
"""Arguments of other loaders that `to_torch` and `batches` do not have."""

_TENSORS = "`to_torch` takes it"

OF_TENSORS = {
    "compat": f"{_TENSORS}, and so does `with_format` before this",
    "decode": _TENSORS,
    "device": _TENSORS,
    "forms": f"{_TENSORS}, and so does `with_format` before this",
    "pack": _TENSORS,
    "padding": _TENSORS,
    "pin_memory": _TENSORS,
}
"""Arguments of `to_torch` that `batches` does not have."""

_FOOTERS = "`forebay.load_dataset(path)`, which reads footers only, and `features` and `num_rows` of its splits"
_THEIRS = "which `cast`, `cast_column`, and `features` of `load_dataset` take"

OF_MODULE = {
    "ClassLabel": f"`datasets.ClassLabel`, {_THEIRS}",
    "Features": f"`datasets.Features`, {_THEIRS}",
    "Value": f"`datasets.Value`, {_THEIRS}",
    "get_dataset_config_names": "`datasets.get_dataset_config_names`; a wrong `name` in `load_dataset` lists them, too",
    "get_dataset_infos": _FOOTERS,
    "load_dataset_builder": _FOOTERS,
    "concatenate_datasets": "`datasets.concatenate_datasets([a.to_hf(), b.to_hf()])`",
    "get_dataset_split_names": "`list(forebay.load_dataset(path))`",
    "interleave_datasets": "`datasets.interleave_datasets([a.to_hf(), b.to_hf()])`",
    "load_from_disk": "`datasets.load_from_disk(folder).to_parquet(file)` once, then `forebay.load_dataset(file)`",
    "read_parquet": "`forebay.load_dataset(path)`",
    "scan_parquet": "`forebay.load_dataset(path)`",
    "split_dataset_by_node": "`ds.to_torch(n)` asks `torch.distributed`, or takes `rank` and `world_size`",
}
"""Functions of `datasets` and data frame libraries that this package does not have."""

OTHER_FORMATS = frozenset({"arrow", "audiofolder", "csv", "imagefolder", "json", "pandas", "text", "webdataset"})
"""Names of formats that `datasets.load_dataset` takes as a path."""


def missing(owner: Any, what: str, name: str, known: Mapping[str, str]) -> AttributeError:
    """Returns the error for an attribute that `owner`, named `what` in the message, does not have."""
    instead = f"; instead: {known[name]}" if name in known else ""
    return AttributeError(f"{what} has no `{name}`{instead}", name=name, obj=owner)


def explained(known: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a method raise a `TypeError` for known foreign arguments that says what to use instead."""

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name in known:
                    raise TypeError(f"{method.__name__}() has no argument `{name}`; {known[name]}")
            return method(*args, **kwargs)

        return called

    return decorate
