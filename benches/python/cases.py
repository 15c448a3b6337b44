"""What the readers of the throughput benchmarks have to deliver: data set, columns, batches and their form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Form = Literal["tensor", "strings", "bytes", "masked"]
"""How a batch is handed over.

`tensor`   {column: torch tensor `(n, width)`}
`strings`  {"text": list of `str`, "score": torch tensor `(n,)`}
`bytes`    {"text": (values uint8, offsets `(n + 1,)`) as torch tensors, "score": torch tensor `(n,)`}
`masked`   {column: (values `(n,)`, Boolean mask `(n,)`: true where there is a value) as torch tensors}
"""

BY_HAND = ("pyarrow", "polars", "duckdb", "datafusion", "datasets, arrow mode")
"""Readers of plain Parquet, unshuffled."""
LOADERS = ("datasets, shuffled", "litdata, Parquet")
"""Loaders that shuffle plain Parquet."""
CONVERTED = (
    "lance (converted)",
    "lancedb.streaming (converted)",
    "litdata (converted)",
    "mosaicml (converted)",
    "webdataset (converted)",
    "deeplake (converted)",
)
OURS = ("forebay, shuffled", "forebay", "forebay, shuffled, one core")


@dataclass(frozen=True)
class Case:
    """One comparison."""

    name: str
    title: str
    data_set: str
    columns: tuple[str, ...]
    form: Form
    batch_size: int
    width: int
    """Items of a row of a tensor; 1 elsewhere."""
    row_bytes: int
    """Bytes of a row in memory, about."""
    repeats: int
    """Times that the objects are delivered in a pass, which takes us some seconds: filling windows is a tenth of it."""
    rivals: tuple[str, ...]
    by_hand_bar: float
    """How many times as fast as the best reader by hand Forebay has to be."""
    by_hand: tuple[str, ...] = BY_HAND
    """The readers that count for `by_hand_bar`."""
    loader_bar: float | None = None
    """How many times as fast as `datasets` through DataLoader."""


ALL_RIVALS = (*BY_HAND, *LOADERS, *CONVERTED)
NUMBERS = tuple(f"number_{number:02}" for number in range(100))

CASES = {
    case.name: case
    for case in (
        Case("tokens", "Tokens, zstd", "tokens", ("tokens",), "tensor", 256, 2048, 8192, 8, ALL_RIVALS, 2.2,
             loader_bar=100),
        Case("tokens-plain", "Tokens, uncompressed", "tokens-plain", ("tokens",), "tensor", 256, 2048, 8192, 8,
             (*BY_HAND, "datasets, shuffled", "litdata, Parquet", "lance (converted)"), 3, loader_bar=100),
        Case("embeddings", "Embeddings", "embeddings", ("embedding",), "tensor", 1024, 768, 3072, 8, ALL_RIVALS, 3,
             loader_bar=100),
        Case("text", "Text to strings", "text", ("text", "score"), "strings", 256, 1, 1200, 6, ALL_RIVALS, 1.5),
        Case("text-bytes", "Text to offsets and bytes", "text", ("text", "score"), "bytes", 256, 1, 1200, 6,
             (*BY_HAND, "lance (converted)"), 3),
        Case("tabular", "Numbers with NULLs", "tabular", NUMBERS, "masked", 4096, 1, 600, 6,
             (*BY_HAND, "lance (converted)"), 1.2, by_hand=("polars", "duckdb")),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What one process reads."""

    case: Case
    folder: Path
    """The objects of a whole pass."""
    source: Path
    """The objects once: what is converted, and the stem of the names of the conversions."""
    num_cores: int
    num_workers: int = 0

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self.case.batch_size

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.case.columns)

    @property
    def paths(self) -> list[str]:
        """The objects in their order."""
        return [str(path) for path in sorted(self.folder.glob("*.parquet"))]
