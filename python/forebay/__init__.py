"""Forebay: training data straight from Parquet in object storage.

    import forebay as fb

    ds = fb.load_dataset("s3://lake/fineweb/", split="train")
    ds = ds.filter("lang = 'de' AND score > 0.8").select_columns(["text", "score"])
    for batch in ds.shuffle(seed=42).to_torch(batch_size=256):
        ...

`load_dataset` opens, `Dataset` selects, `Dataset.to_torch` delivers. Nothing is read, and no thread started, at import.
"""

from typing import TYPE_CHECKING, Never

from forebay import familiar, hf
from forebay._lib import Batch, __version__
from forebay.column import Column
from forebay.columns import DictionaryEncoded, Masked, Ragged
from forebay.dataloader import DataLoader
from forebay.dataset import Dataset
from forebay.dicts import DatasetDict
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
    SkipLimitError,
    SkippedRowsWarning,
    StateError,
    StoreError,
    StoreTimeoutError,
    StoreWarning,
    TensorError,
    TransformError,
    TransformTimeoutError,
    VersionError,
    WorkerDiedError,
)
from forebay.hf.taken import from_hf
from forebay.loader import Stream
from forebay.loading import load_dataset
from forebay.options import PoolOptions
from forebay.secrets import pickle_with_secrets, unpickle_with
from forebay.selection import Selection
from forebay.shaping import Image, Pack, Pad
from forebay.sql import Function, QueryResult, list_queries, read_query
from forebay.states import cursor

__all__ = [
    "AccessDeniedError",
    "AgreementError",
    "Batch",
    "ClosedError",
    "Column",
    "ColumnNotFoundError",
    "DataError",
    "DataLoader",
    "Dataset",
    "DatasetDict",
    "DatasetNotFoundError",
    "DictionaryEncoded",
    "ForebayError",
    "Function",
    "GatedDatasetError",
    "HubUnreachableError",
    "Image",
    "Masked",
    "MemoryLimitError",
    "NotFoundError",
    "ObjectChangedError",
    "Pack",
    "Pad",
    "PerformanceWarning",
    "PoolOptions",
    "QueryError",
    "QueryResult",
    "Ragged",
    "RowIndexError",
    "SchemaError",
    "Selection",
    "SelectionError",
    "SettingError",
    "SkipLimitError",
    "SkippedRowsWarning",
    "StateError",
    "StoreError",
    "StoreTimeoutError",
    "StoreWarning",
    "Stream",
    "TensorError",
    "TransformError",
    "TransformTimeoutError",
    "VersionError",
    "WorkerDiedError",
    "__version__",
    "cursor",
    "from_hf",
    "hf",
    "list_queries",
    "load_dataset",
    "pickle_with_secrets",
    "read_query",
    "unpickle_with",
]


def __dir__() -> list[str]:
    """Leaves out the modules and names that are imported for the package's own use."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Never:
        raise familiar.missing(None, f"module {__name__!r}", name, familiar.OF_MODULE)
