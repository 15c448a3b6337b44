"""Names that users of `datasets` know, and what they are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FRAME = "`pyarrow.table(ds)`, `polars.DataFrame(ds)` or `duckdb.sql('FROM ds')`, and what they offer"
_STREAM = "what `ds.to_torch(n)` and `ds.batches(n)` return has one"

OF_DATASET = {
    "add_column": "`ds.sql('SELECT *, x * 2 AS y FROM dataset')`",
    "batch": "`ds.batches(n)` or `ds.to_torch(n)`",
    "class_encode_column": "`ds.cast_column(name, datasets.ClassLabel(names=names))`",
    "flatten": "`ds.sql(\"SELECT a['b'] AS b FROM dataset\")`",
    "group_by": "`ds.query('SELECT lang, count(*) FROM dataset GROUP BY lang')`",
    "join": "`ds.sql('SELECT * FROM dataset JOIN side USING (lang)', tables={'side': side})`",
    "limit": "`ds.sql('SELECT * FROM dataset LIMIT 10')`",
    "load_state_dict": _STREAM,
    "push_to_hub": "`ds.to_hf()` has one",
    "save_to_disk": _FRAME,
    "set_epoch": _STREAM,
    "set_format": "`ds.with_format('torch')`, which returns another dataset",
    "set_transform": "`ds.map(function, batched=True)`",
    "shape": "`len(ds)` and `len(ds.column_names)`",
    "sort": "`ds.sql('SELECT * FROM dataset ORDER BY score DESC')`",
    "state_dict": _STREAM,
    "to_csv": _FRAME,
    "to_dict": _FRAME,
    "to_iterable_dataset": "`ds.to_hf()`",
    "to_json": _FRAME,
    "to_list": _FRAME,
    "to_pandas": _FRAME,
    "to_parquet": _FRAME,
    "to_polars": _FRAME,
    "train_test_split": "`test = ds.selection().sample(n, seed)`, then `ds.select(test)` and "
    "`ds.select(ds.selection() - test)`",
    "unique": "`ds.query('SELECT DISTINCT lang FROM dataset')`",
    "with_transform": "`ds.map(function, batched=True)`",
}
"""What `datasets` and data frames have, and `Dataset` has not."""

OF_MODULE = {
    "concatenate_datasets": "`datasets.concatenate_datasets([a.to_hf(), b.to_hf()])`",
    "get_dataset_split_names": "`list(forebay.load_dataset(path))`",
    "interleave_datasets": "`datasets.interleave_datasets([a.to_hf(), b.to_hf()])`",
    "split_dataset_by_node": "`ds.to_torch(n)` asks `torch.distributed`, or takes `rank` and `world_size`",
}
"""Functions that `datasets` has, and the module has not."""

OTHER_FORMATS = frozenset({"arrow", "audiofolder", "csv", "imagefolder", "json", "pandas", "text", "webdataset"})
"""What `datasets.load_dataset` takes for a path and is the name of a format."""


def missing(owner: Any, what: str, name: str, known: Mapping[str, str]) -> AttributeError:
    """Returns the error for an attribute that `owner`, which is called `what`, does not have."""
    instead = f"; instead: {known[name]}" if name in known else ""
    return AttributeError(f"{what} has no `{name}`{instead}", name=name, obj=owner)
