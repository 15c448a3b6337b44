"""Forebay: training data straight from Parquet in object storage.

    import forebay as fb

    ds = fb.load_dataset("s3://lake/fineweb/", split="train")
    ds = ds.filter("lang = 'de' AND score > 0.8").select_columns(["text", "score"])
    for batch in ds.shuffle(seed=42).to_torch(batch_size=256):
        ...

`load_dataset` opens, `Dataset` selects, `Dataset.to_torch` delivers. Nothing is read, and no thread started, at import.
"""

from forebay._lib import Batch, __version__
from forebay.dataset import Dataset, DatasetDict, load_dataset
from forebay.exceptions import (
    AccessDeniedError,
    ClosedError,
    ColumnNotFoundError,
    DataError,
    ForebayError,
    MemoryLimitError,
    NotFoundError,
    ObjectChangedError,
    PerformanceWarning,
    QueryError,
    SchemaError,
    SettingError,
    StateError,
    StoreError,
    TensorError,
)
from forebay.loader import Stream, cursor
from forebay.options import ReadOptions, ShuffleOptions

__all__ = [
    "AccessDeniedError",
    "Batch",
    "ClosedError",
    "ColumnNotFoundError",
    "DataError",
    "Dataset",
    "DatasetDict",
    "ForebayError",
    "MemoryLimitError",
    "NotFoundError",
    "ObjectChangedError",
    "PerformanceWarning",
    "QueryError",
    "ReadOptions",
    "SchemaError",
    "SettingError",
    "ShuffleOptions",
    "StateError",
    "StoreError",
    "Stream",
    "TensorError",
    "__version__",
    "cursor",
    "load_dataset",
]
