"""One column of every feature of `datasets`, as its own writer stores it, and the same files by its own reader."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Features, LargeList, List, Value

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 12
UTC = dt.UTC


def _image(row: int) -> dict[str, Any]:
    body = io.BytesIO()
    pixels = np.full((3, 4 + row % 2, 3), row * 20, dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(body, "png")
    return {"bytes": body.getvalue(), "path": f"{row}.png"}


def _times(row: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, 3, 4, 5, 1000 * row)


NUMBERS: dict[str, tuple[Any, Any]] = {
    name: (Value(name), lambda row: row + 1)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
} | {name: (Value(name), lambda row: row / 8) for name in ("float16", "float32", "float64")}

PLAIN: dict[str, tuple[Any, Any]] = NUMBERS | {
    "null": (Value("null"), lambda _: None),
    "bool": (Value("bool"), lambda row: row % 3 == 0),
    "string": (Value("string"), lambda row: f"row {row}"),
    "large_string": (Value("large_string"), lambda row: f"row {row}"),
    "binary": (Value("binary"), lambda row: bytes([row])),
    "large_binary": (Value("large_binary"), lambda row: bytes([row])),
    "decimal128": (Value("decimal128(7, 2)"), lambda row: Decimal(row) / 4),
    "decimal256": (Value("decimal256(50, 2)"), lambda row: Decimal(row) / 4),
    "label": (ClassLabel(names=["cat", "dog", "it's a bird"]), lambda row: row % 3),
    "list": (List(Value("int32")), lambda row: [row] * (row % 4)),
    "equal_list": (List(Value("int32")), lambda row: [row, row + 1, row + 2]),
    "floats": (List(Value("float64")), lambda row: [row / 3, 0.1]),
    "fixed_list": (List(Value("float64"), length=2), lambda row: [row, row / 3]),
    "large_list": (LargeList(Value("int16")), lambda row: list(range(row % 3 + 1))),
    "nested_list": (List(List(Value("int64"))), lambda row: [[row], [row, 2]]),
    "list_of_labels": (List(ClassLabel(names=["x", "y"])), lambda row: [row % 2]),
    "list_of_strings": (List(Value("string")), lambda row: [str(row)] * (row % 3)),
    "struct": ({"b": Value("int32"), "a": Value("string")}, lambda row: {"b": row, "a": f"a{row}"}),
    "struct_in_struct": ({"s": {"x": List(Value("int8"))}}, lambda row: {"s": {"x": [row, 1]}}),
    "list_of_structs": ([{"x": Value("int64"), "l": ClassLabel(names=["p"])}], lambda row: [{"x": row, "l": 0}]),
    "sequence": (datasets.Sequence({"x": Value("int64")}), lambda row: {"x": [row, row]}),
    "array2d": (datasets.Array2D((2, 3), "int32"), lambda row: [[row, 1, 2], [3, 4, 5]]),
    "array2d_floats": (datasets.Array2D((2, 2), "float64"), lambda row: [[row / 3, 1], [3, 4]]),
    "dynamic_array2d": (datasets.Array2D((None, 2), "int16"), lambda row: [[row, 1]] * (row % 2 + 1)),
    "array3d": (datasets.Array3D((1, 2, 2), "float32"), lambda row: [[[row, 1], [2, 3]]]),
    "array4d": (datasets.Array4D((1, 1, 2, 2), "uint8"), lambda row: [[[[row, 1], [2, 3]]]]),
    "array5d": (datasets.Array5D((1, 1, 1, 1, 2), "int64"), lambda row: [[[[[row, 1]]]]]),
    "translation": (datasets.Translation(["fr", "en"]), lambda row: {"en": f"e{row}", "fr": f"f{row}"}),
    "translations": (
        datasets.TranslationVariableLanguages(["de", "en", "fr"]),
        lambda row: {"language": ["en", "fr"], "translation": [f"e{row}", "f"]},
    ),
}
"""Column name to feature and the value of a row: what torch's format has a form for."""

TIMES: dict[str, tuple[Any, Any]] = {
    "timestamp": (Value("timestamp[us]"), _times),
    "timestamp_utc": (Value("timestamp[ms, tz=UTC]"), lambda row: _times(row).replace(tzinfo=UTC)),
    "date32": (Value("date32"), lambda row: dt.date(2026, 1, row + 1)),
    "time32": (Value("time32[ms]"), lambda row: dt.time(3, 4, row)),
    "time64": (Value("time64[us]"), lambda row: dt.time(3, 4, row)),
    "duration": (Value("duration[us]"), lambda row: dt.timedelta(seconds=row)),
}

DECODED: dict[str, tuple[Any, Any]] = {
    "image": (datasets.Image(), _image),
    "images": (List(datasets.Image()), lambda row: [_image(row), _image(0)]),
    "same_image": (datasets.Image(), lambda _: _image(3)),
    "json": (datasets.Json(), lambda row: {"a": [row, None], "b": "x"} if row % 2 else [row]),
}
"""Features whose values are decoded."""

BYTES: dict[str, tuple[Any, Any]] = {
    "undecoded_image": (datasets.Image(decode=False), _image),
    "video": (datasets.Video(decode=False), lambda row: {"bytes": bytes([row]), "path": None}),
    "pdf": (datasets.Pdf(decode=False), lambda row: {"bytes": bytes([row]), "path": "x.pdf"}),
    "nifti": (datasets.Nifti(decode=False), lambda row: {"bytes": bytes([row]), "path": None}),
}
"""Features of media that stay bytes."""

ALL = PLAIN | TIMES | DECODED | BYTES

NO_NULLS = ("null",)


def table_of(columns: dict[str, tuple[Any, Any]], nulls: bool = False, num_rows: int = NUM_ROWS) -> datasets.Dataset:
    """Returns rows of these columns; with `nulls`, every third row of each has no value."""
    features = Features({name: feature for name, (feature, _) in columns.items()})
    encoded = {
        name: [None if nulls and row % 3 == 1 else value(row) for row in range(num_rows)]
        for name, (_, value) in columns.items()
    }
    return datasets.Dataset.from_dict(encoded, features=features)


def write(folder: Path, dataset: datasets.Dataset, name: str = "train.parquet", row_group_size: int = 5) -> Path:
    """Writes rows as `Dataset.to_parquet` stores them, into row groups of a few rows each."""
    table = dataset.with_format("arrow")[:]
    pq.write_table(table, folder / name, row_group_size=row_group_size)
    return folder / name


def streamed(path: Any, **options: Any) -> datasets.IterableDataset:
    """Returns what `datasets` makes of the same files."""
    files = [str(file) for file in path] if isinstance(path, list) else str(path)
    read = datasets.load_dataset("parquet", data_files={"train": files}, split="train", streaming=True, **options)
    assert isinstance(read, datasets.IterableDataset)
    return read


def same(ours: Any, theirs: Any) -> bool:
    """Returns whether two values are equal in type, dtype, shape and content, nested ones too."""
    import torch

    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours.nan_to_num(-99), theirs.nan_to_num(-99))
    if isinstance(ours, np.ndarray):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return False
        return same(ours.tolist(), theirs.tolist()) if ours.dtype == object else ours.tobytes() == theirs.tobytes()
    if isinstance(ours, PIL.Image.Image):
        return ours.mode == theirs.mode and ours.tobytes() == theirs.tobytes()
    # NaN and NaT differ from themselves.
    return bool(ours == theirs or (ours != ours and theirs != theirs))


def schema_of(dataset: Any) -> pa.Schema:
    """Returns the schema that a dataset hands to Arrow."""
    return pa.schema(dataset)
