"""The cases of the throughput benchmarks: data set, columns, batch size and form of the batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Form = Literal["tensor", "strings", "bytes", "masked"]
"""The form of a batch.

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
    """Items per row of a tensor; 1 for other forms."""
    row_bytes: int
    """Approximate bytes of a row in memory."""
    repeats: int
    """How often a pass reads the objects. A pass takes Forebay some seconds, a tenth of it to fill shuffle windows."""
    rivals: tuple[str, ...]
    by_hand_bar: float
    """Required speed of Forebay relative to the best reader written by hand."""
    by_hand: tuple[str, ...] = BY_HAND
    """The readers that count for `by_hand_bar`."""
    loader_bar: float | None = None
    """Required speed relative to `datasets` through DataLoader."""


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
    """The data that one process reads."""

    case: Case
    folder: Path
    """The objects of a whole pass."""
    source: Path
    """The objects once: the input of conversions, whose names begin with its name."""
    num_cores: int
    num_workers: int = 0

    @property
    def batch_size(self) -> int:
        """Rows per batch."""
        return self.case.batch_size

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.case.columns)

    @property
    def paths(self) -> list[str]:
        """The objects in their order."""
        return [str(path) for path in sorted(self.folder.glob("*.parquet"))]
