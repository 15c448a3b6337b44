"""Forebay: training data straight from Parquet in object storage.

    import forebay as fb

    ds = fb.load_dataset("s3://lake/fineweb/", split="train")
    ds = ds.filter("lang = 'de' AND score > 0.8").select_columns(["text", "score"])
    for batch in ds.shuffle(seed=42).to_torch(batch_size=256):
        ...

`load_dataset` opens, `Dataset` selects, `Dataset.to_torch` delivers. Nothing is read, and no thread started, at import.
"""

from forebay import hf
from forebay._lib import Batch, __version__
from forebay.columns import DictionaryEncoded, Masked, Ragged
from forebay.dataset import Dataset, DatasetDict, load_dataset
from forebay.exceptions import (
    AccessDeniedError,
    AgreementError,
    ClosedError,
    ColumnNotFoundError,
    DataError,
    DatasetNotFoundError,
    ForebayError,
    GatedDatasetError,
    HubUnreachableError,
    MemoryLimitError,
    NotFoundError,
    ObjectChangedError,
    PerformanceWarning,
    QueryError,
    RowIndexError,
    SchemaError,
    SelectionError,
    SettingError,
    StateError,
    StoreError,
    StoreTimeoutError,
    TensorError,
    VersionError,
)
from forebay.hf.taken import from_hf
from forebay.loader import Stream, cursor
from forebay.options import ReadOptions, ShuffleOptions
from forebay.selection import Selection
from forebay.sql import Function, QueryResult, list_queries, read_query

__all__ = [
    "AccessDeniedError",
    "AgreementError",
    "Batch",
    "ClosedError",
    "ColumnNotFoundError",
    "DataError",
    "Dataset",
    "DatasetDict",
    "DatasetNotFoundError",
    "DictionaryEncoded",
    "ForebayError",
    "Function",
    "GatedDatasetError",
    "HubUnreachableError",
    "Masked",
    "MemoryLimitError",
    "NotFoundError",
    "ObjectChangedError",
    "PerformanceWarning",
    "QueryError",
    "QueryResult",
    "Ragged",
    "ReadOptions",
    "RowIndexError",
    "SchemaError",
    "Selection",
    "SelectionError",
    "SettingError",
    "ShuffleOptions",
    "StateError",
    "StoreError",
    "StoreTimeoutError",
    "Stream",
    "TensorError",
    "VersionError",
    "__version__",
    "cursor",
    "from_hf",
    "hf",
    "list_queries",
    "load_dataset",
    "read_query",
]
