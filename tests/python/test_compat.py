"""`compat="datasets"` and `decode`: what `datasets` yields for the same files, bit for bit."""

from __future__ import annotations

import datetime as dt
import errno
import os
import pickle
import re
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
import feature_data
import functions
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Features, Value
from feature_data import ALL, BYTES, DECODED, PLAIN, same
from hypothesis import given, settings
from hypothesis import strategies as st
from image_data import encoded

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = {"full": False, "nulls": True}


@pytest.fixture(scope="module", params=list(FILES))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a column of every feature, without NULLs and with them."""
    table = feature_data.table_of(ALL, nulls=FILES[request.param])
    # `datasets` types the fields of structs by the NULLs in each part of a row group that a batch has.
    size = feature_data.NUM_ROWS if FILES[request.param] else 5
    return feature_data.write(tmp_path_factory.mktemp(request.param), table, row_group_size=size)


@pytest.fixture(scope="module")
def ds(path: Path) -> fb.Dataset:
    return fb.load_dataset(path, split="train")


def outcome(read: Any) -> Any:
    """What is read, or that there is no form for it."""
    try:
        return list(read())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return "refused"


@pytest.mark.parametrize("column", list(ALL))
def test_rows_are_those_of_datasets(column: str, ds: fb.Dataset, path: Path) -> None:
    theirs = list(feature_data.streamed(path, columns=[column]))
    # Where an array of any length is NULL, `datasets` has NaN for a row, and an AttributeError for several.
    theirs = [row if row[column] == row[column] else {column: None} for row in theirs]
    alone = ds.select_columns(column)
    assert same(list(alone.decode()), theirs)
    assert same(list(alone.decode().take(99)), theirs)
    assert same([alone.decode()[row] for row in range(len(theirs))], theirs)
    assert same(alone.decode()[2:5][column], [row[column] for row in theirs[2:5]])
    if column not in DECODED:
        assert same(list(alone), theirs), "without decoding, too"


@pytest.mark.parametrize("column", list(ALL))
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_formats_are_those_of_datasets(library: Any, column: str, ds: fb.Dataset, path: Path) -> None:
    theirs = feature_data.streamed(path, columns=[column]).with_format(library)
    ours = ds.select_columns(column).with_format(library, compat="datasets")
    rows = outcome(lambda: theirs)
    assert same(outcome(lambda: ours), rows)
    for size in (3, 12):
        batches = outcome(lambda size=size: theirs.iter(size))
        assert same(outcome(lambda size=size: ours.iter(size)), batches), size
        assert same(outcome(lambda size=size: ours.batches(size)), batches), size


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_other_formats_are_those_of_datasets(library: Any, ds: fb.Dataset, path: Path) -> None:
    columns = ["int16", "float64", "string", "label", "list", "struct"]
    theirs = next(iter(feature_data.streamed(path, columns=columns).with_format(library).iter(5)))
    ours = next(ds.select_columns(columns).with_format(library, compat="datasets").iter(5))
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("library", ["torch", "numpy", None])
def test_functions_and_collate_fn_are_given_the_rows_of_datasets(
    library: Any, num_workers: int, ds: fb.Dataset
) -> None:
    ours = ds.select_columns(["int16", "string", "label", "image"])
    ours = ours.decode() if library is None else ours.with_format(library, compat="datasets")
    rows = list(ours)
    loader = fb.DataLoader(ours, 5, collate_fn=list, num_workers=num_workers)
    assert same([row for batch in loader for row in batch], rows)
    mapped = ours.map(functions.nothing, batched=True, num_threads=num_workers)
    assert same(list(mapped.batches(5)), list(ours.batches(5)))


def test_to_torch_yields_the_batches_of_datasets(ds: fb.Dataset, path: Path) -> None:
    refused = ("null", "json", "decimal128", "decimal256", "dynamic_array2d")
    columns = [name for name in PLAIN | DECODED | BYTES if name not in refused]
    if ds[1]["int8"] is None:
        columns = ["int8", "float64", "label", "string"]
    theirs = list(feature_data.streamed(path, columns=columns).with_format("torch").iter(4))
    order = list(theirs[0])
    stream = ds.select_columns(order).to_torch(4, compat="datasets")
    assert same(list(stream), theirs)
    loader = torch.utils.data.DataLoader(pickle.loads(pickle.dumps(stream)), batch_size=None)
    assert same(list(loader), theirs)


def test_the_table_of_forms(tmp_path: Path) -> None:
    """The table of the page on features, row by row."""
    columns = {
        "n": (Value("int8"), lambda row: row),
        "x": (Value("float64"), lambda row: row / 3),
        "ragged": (datasets.List(Value("int32")), lambda row: [1] * (row + 1)),
        "equal": (datasets.List(Value("int32")), lambda row: [row, 1]),
        "struct": ({"a": Value("int16")}, lambda row: {"a": row}),
        "gap": (Value("int64"), lambda row: None if row == 1 else row),
        "text": (Value("string"), str),
        "image": DECODED["same_image"],
    }
    feature_data.write(tmp_path, feature_data.table_of(columns, num_rows=3))
    batch = next(iter(fb.load_dataset(tmp_path, split="train").to_torch(3, compat="datasets")))
    assert same(batch["n"], torch.tensor([0, 1, 2]))
    assert same(batch["x"], torch.tensor([0, 1 / 3, 2 / 3]))
    assert same(batch["ragged"], [torch.tensor([1] * size) for size in (1, 2, 3)])
    assert same(batch["equal"], torch.tensor([[0, 1], [1, 1], [2, 1]]))
    assert same(batch["struct"], [{"a": torch.tensor(row)} for row in range(3)])
    assert same(batch["gap"], torch.tensor([0, float("nan"), 2]))
    assert batch["text"] == ["0", "1", "2"]
    assert batch["image"].shape == (3, 3, 3, 5)
    assert batch["image"].dtype == torch.uint8


def test_times_have_no_tensor(ds: fb.Dataset) -> None:
    with pytest.raises(fb.TensorError, match="column `timestamp` has no form of `datasets`"):
        next(iter(ds.select_columns(["int8", "timestamp"]).to_torch(4, compat="datasets")))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, -(1 << 62)], pa.timestamp("us", "UTC")),
        pa.array([0, (1 << 31) - 1], pa.int32()).cast(pa.date32()),
        pa.array([0, 1 << 62], pa.duration("s")),
    ],
    ids=lambda values: str(values.type),
)
def test_values_that_python_has_no_object_for_are_errors_that_name_the_column(values: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2], "at": values}), tmp_path / "train.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    with pytest.raises(fb.TensorError, match="column `at` has no form of `datasets`"):
        next(iter(ds.to_torch(2, compat="datasets")))
    with pytest.raises(fb.TensorError, match="column `at` has no form of `datasets`"):
        next(iter(ds.to_hf().with_format("torch")))
    message = "column `at` of type `.*` holds a value that Python has no object for"
    for rows in (ds.decode(), ds.to_hf(), ds.to_hf().iter(2)):
        with pytest.raises(fb.DataError, match=message) as raised:
            list(rows)
        assert isinstance(raised.value.__cause__, OverflowError)


def test_images_are_decoded_where_that_is_asked_for(ds: fb.Dataset) -> None:
    alone = ds.select_columns(["image", "images"])
    assert set(alone[0]["image"]) == {"bytes", "path"}
    row = alone.decode()[0]
    assert isinstance(row["image"], PIL.Image.Image)
    assert isinstance(row["images"][0], PIL.Image.Image)
    assert set(alone.decode().decode(False)[0]["image"]) == {"bytes", "path"}
    assert type(alone.decode().with_format(None)[0]["image"]) is type(row["image"])
    assert ds.select_columns("bool").decode().with_format("numpy")[0].keys() == {"bool"}
    renamed = ds.decode().sql("SELECT image AS picture FROM dataset")
    assert isinstance(renamed[0]["picture"], PIL.Image.Image)


def test_a_decoded_dataset_hands_no_bytes_to_torch(ds: fb.Dataset) -> None:
    decoded = ds.select_columns(["image", "images"]).decode()
    for ask in (
        decoded.to_torch,
        decoded.map(dict, batched=True).to_torch,
        partial(decoded.to_torch, forms={"image.path": "list"}),
        partial(fb.DataLoader, decoded),
    ):
        with pytest.raises(fb.SettingError, match=r"decode: `batches`, .* what `decode\(\)` makes of `image`"):
            ask(2)
    size = {"image": fb.Image(size=8, on_error="skip")}
    with pytest.raises(fb.SettingError, match="`decode\\(\\)` makes of `images`"):
        decoded.to_torch(2, decode=size)
    assert next(iter(decoded.select_columns("image").to_torch(1, decode=size)))["image"].shape == (1, 3, 8, 8)
    assert "image" in next(iter(decoded.to_torch(1, compat="datasets")))
    assert next(iter(ds.select_columns("bool").decode().to_torch(2))).keys() == {"bool"}
    kinds = decoded.map(lambda row: {"kind": isinstance(row["image"], PIL.Image.Image)}).batches(1)
    assert next(iter(kinds))["kind"] == [True]


@pytest.mark.parametrize(
    "read",
    [
        lambda ds: list(ds.decode()),
        lambda ds: list(ds.decode().iter(4)),
        lambda ds: ds.decode()[17],
        lambda ds: ds.decode()[[3, 17, 4]],
        lambda ds: list(ds.decode().batches(4)),
        lambda ds: list(ds.to_torch(4, compat="datasets", rank=1, world_size=2)),
        lambda ds: list(ds.to_hf()),
        lambda ds: list(ds.to_hf().with_format("torch")),
        lambda ds: list(ds.to_hf().shard(2, 1)),
        lambda ds: list(fb.DataLoader(ds.decode(), 4, collate_fn=list)),
    ],
)
def test_bytes_that_are_no_image_are_an_error_that_names_the_row(
    read: Callable[[fb.Dataset], Any], tmp_path: Path
) -> None:
    schema = Features(row=Value("int64"), image=datasets.Image()).arrow_schema
    bodies = [b"no image" if row == 17 else encoded(PIL.Image.new("RGB", (2, 2)), "PNG") for row in range(20)]
    rows = [{"row": row, "image": {"bytes": body, "path": None}} for row, body in enumerate(bodies)]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "train.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    where = "column `image` holds a value that cannot be decoded, in the row at position 17:"
    with pytest.raises(fb.ForebayError, match=f"{where} cannot identify image file;"):
        read(ds)


WAYS_TO_DECODE: list[Callable[[fb.Dataset], Any]] = [
    lambda ds: list(ds.decode()),
    lambda ds: list(ds.decode().batches(4)),
    lambda ds: list(ds.to_torch(4, compat="datasets")),
    lambda ds: list(ds.to_hf()),
    lambda ds: list(ds.to_hf().with_format("torch")),
]


def images_of(tmp_path: Path, values: list[dict[str, Any]]) -> fb.Dataset:
    schema = Features(row=Value("int64"), image=datasets.Image()).arrow_schema
    rows = [{"row": row, "image": value} for row, value in enumerate(values)]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "train.parquet")
    return fb.load_dataset(tmp_path, split="train")


@pytest.mark.parametrize("read", [lambda ds: ds[0], lambda ds: ds[0:1]], ids=["row", "batch"])
def test_a_frame_names_the_column_that_it_has_no_form_for(tmp_path: Path, read: Callable[[fb.Dataset], Any]) -> None:
    pytest.importorskip("polars")
    ds = images_of(tmp_path, [{"bytes": encoded(PIL.Image.new("RGB", (2, 2)), "PNG"), "path": None}])
    with pytest.raises(fb.TensorError, match="column `image` has no form of `datasets`"):
        read(ds.with_format("polars", compat="datasets"))


@pytest.mark.parametrize("library", ["torch", "pandas"])
def test_a_decoder_that_is_missing_is_named_in_every_format(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ImportError("To support decoding images, please install 'Pillow'.")

    ds = images_of(tmp_path, [{"bytes": b"x", "path": None}])
    monkeypatch.setattr(datasets.Image, "decode_example", fails)
    with pytest.raises(fb.SettingError, match="column `image` cannot be decoded: .*'Pillow'; or read"):
        ds.with_format(library, compat="datasets")[0]


@pytest.mark.parametrize("read", WAYS_TO_DECODE)
@pytest.mark.parametrize("kind", ["missing", "offline", "broken", "truncated"])
def test_a_file_that_a_row_names_is_told_from_a_broken_value(
    kind: str, read: Callable[[fb.Dataset], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = encoded(PIL.Image.effect_noise((90, 90), 9), "PNG"), tmp_path / "x.png"
    if kind == "broken":
        path.write_bytes(b"no image")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    named = "hf://datasets/org/name@main/x.png" if kind == "offline" else str(path)
    body = whole[:2000] if kind == "truncated" else None
    ds = images_of(tmp_path, [{"bytes": whole, "path": None}, {"bytes": body, "path": named}])
    means = {
        "missing": f"names a file that cannot be read, in the row at position 1: .*No such file.*{re.escape(named)}'$",
        "offline": f"names a file that cannot be read, in the row at position 1: `{re.escape(named)}`: .*offline",
        "broken": "holds a value that cannot be decoded, in the row at position 1: cannot identify .*; leave that row",
        "truncated": "holds a value that cannot be decoded, in the row at position 1: .*truncated; leave that row out",
    }
    with pytest.raises(fb.DataError, match=f"column `image` {means[kind]}") as caught:
        read(ds)
    assert ("leave that row out" in str(caught.value)) == (kind in ("broken", "truncated"))


@pytest.mark.parametrize("read", WAYS_TO_DECODE)
def test_what_the_system_lacks_is_no_broken_value(
    read: Callable[[fb.Dataset], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    ds = images_of(tmp_path, [{"bytes": encoded(PIL.Image.new("RGB", (2, 2)), "PNG"), "path": None}])
    monkeypatch.setattr(datasets.Image, "decode_example", fails)
    with pytest.raises(
        fb.DataError, match=r"column `image` cannot be decoded, in .* 0: \[Errno 24\] Too many open files$"
    ):
        read(ds)


@pytest.mark.parametrize("read", WAYS_TO_DECODE)
def test_a_decoder_without_its_libraries_is_like_one_that_is_not_installed(
    read: Callable[[fb.Dataset], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("Could not load libtorchcodec. Likely causes:\n  1. FFmpeg is not properly installed ...")

    ds = images_of(tmp_path, [{"bytes": b"x", "path": None}])
    monkeypatch.setattr(datasets.Image, "decode_example", fails)
    with pytest.raises((fb.SettingError, ImportError), match="`torchcodec` cannot load FFmpeg; install one") as caught:
        read(ds)
    if isinstance(caught.value, fb.SettingError):
        assert "column `image` cannot be decoded: " in str(caught.value)


def test_a_decoder_that_is_not_installed_is_named(tmp_path: Path) -> None:
    if datasets.config.TORCHCODEC_AVAILABLE:
        pytest.skip("it is installed")
    schema = Features(row=Value("int64"), audio=datasets.Audio()).arrow_schema
    rows = [{"row": 0, "audio": {"bytes": b"RIFF", "path": None}}]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "train.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert ds.features["audio"] == datasets.Audio()
    with pytest.raises(fb.SettingError, match="column `audio` cannot be decoded: .*torchcodec'; or read"):
        list(ds.decode().take(1))
    assert list(ds.take(1)) == rows


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda ds: ds.to_torch(4, compat="mosaic"), "compat: expected 'datasets' or None, got 'mosaic'"),
        (lambda ds: ds.with_format("torch", compat="datasets", forms={"n": "list"}), "leave one of the two out"),
        (lambda ds: ds.with_format("tourch", compat="datasets"), "format: expected one of"),
        (lambda ds: ds.with_format("torch").decode(), "use `compat='datasets'` there"),
        (lambda ds: ds.decode().with_format("torch"), "all that `datasets` makes by `compat='datasets'`"),
        (lambda ds: ds.decode("yes"), "enable: expected True or False"),
    ],
)
def test_what_cannot_be_is_refused(ask: Any, message: str, ds: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match=message):
        ask(ds)


def test_a_compatible_stream_is_resumed_like_any(ds: fb.Dataset) -> None:
    shuffled = ds.select_columns(["int32", "string"]).shuffle(5)
    whole = list(shuffled.to_torch(3, compat="datasets"))
    stream = shuffled.to_torch(3, compat="datasets")
    iterator = iter(stream)
    first = [next(iterator), next(iterator)]
    again = shuffled.to_torch(3, compat="datasets")
    again.load_state_dict(stream.state_dict())
    assert same(first + list(again), whole)
    assert repr(shuffled.with_format("numpy", compat="datasets")._format) == "with_format('numpy', compat='datasets')"


LEAVES = st.sampled_from(
    [
        (Value("int32"), st.integers(-9, 9)),
        (Value("uint16"), st.integers(0, 9)),
        (Value("float64"), st.floats(width=32)),
        (Value("string"), st.text("aé", max_size=3)),
        (Value("bool"), st.booleans()),
        (datasets.ClassLabel(names=["x", "y"]), st.integers(0, 1)),
    ]
)


def _listed(made: tuple[Any, Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    feature, values = made
    return st.sampled_from(
        [
            (datasets.List(feature), st.lists(values, max_size=3)),
            (datasets.LargeList(feature), st.lists(values, max_size=2)),
            (datasets.List(feature, length=2), st.lists(values, min_size=2, max_size=2)),
        ]
    )


def _grouped(parts: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    values = st.fixed_dictionaries({name: values for name, (_, values) in parts.items()})
    return {name: feature for name, (feature, _) in parts.items()}, values


COLUMNS = st.recursive(
    LEAVES,
    lambda made: st.one_of(
        made.flatmap(_listed), st.dictionaries(st.sampled_from("bac"), made, min_size=1, max_size=3).map(_grouped)
    ),
    max_leaves=4,
)


@settings(max_examples=25)
@given(st.data(), COLUMNS, st.booleans())
def test_any_column_is_that_of_datasets(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, column: tuple[Any, Any], has_nulls: bool
) -> None:
    feature, values = column
    rows = data.draw(st.lists(st.none() | values if has_nulls else values, min_size=1, max_size=6))
    table = datasets.Dataset.from_dict({"c": rows}, features=Features(c=feature))
    path = feature_data.write(tmp_path_factory.mktemp("any"), table)
    ds, theirs = fb.load_dataset(path, split="train"), feature_data.streamed(path)
    assert ds.features == theirs.features
    assert same(list(ds), list(theirs))
    assert same(ds.decode()[:]["c"], [row["c"] for row in theirs])
    theirs = theirs.with_format("torch")
    ours = ds.with_format("torch", compat="datasets")
    assert same(outcome(lambda: ours), outcome(lambda: theirs))
    # One part of a row group, by which `datasets` types what is within structs.
    assert same(outcome(lambda: ours.iter(5)), outcome(lambda: theirs.iter(5)))


# Files that are not alike.

DRIFTS: dict[str, tuple[list[pa.Array], bool]] = {
    "wider integers": ([pa.array([1, 2], pa.int64()), pa.array([3, 4], pa.int32())], True),
    "wider integers, later": ([pa.array([1, 2], pa.int32()), pa.array([3, 4], pa.int64())], False),
    "large text": ([pa.array(["a"]), pa.array(["b"], pa.large_string())], False),
    "large text, first": ([pa.array(["a"], pa.large_string()), pa.array(["b"])], True),
    "dictionaries": ([pa.array(["a"]), pa.array(["b"]).dictionary_encode()], True),
    "a list of fixed length, later": ([pa.array([[1], [2, 3]]), pa.array([[4, 5]], pa.list_(pa.int64(), 2))], True),
    "a list of fixed length, first": ([pa.array([[4, 5]], pa.list_(pa.int64(), 2)), pa.array([[1, 2]])], False),
    "a large list": ([pa.array([[4.0]], pa.large_list(pa.float64())), pa.array([[1.0, 2.0]])], True),
    "wider items": ([pa.array([[1]], pa.list_(pa.int64())), pa.array([[2]], pa.list_(pa.int8()))], True),
    "nothing but NULL": ([pa.array([1]), pa.nulls(2)], True),
    "fields in another order": (
        [pa.array([{"a": 1, "b": "x"}]), pa.StructArray.from_arrays([pa.array(["y"]), pa.array([2])], ["b", "a"])],
        True,
    ),
    "a field that is missing": ([pa.array([{"a": 1, "b": "x"}]), pa.array([{"a": 2}])], True),
    "structs in lists": (
        [pa.array([[{"a": 1, "b": 2}]]), pa.array([[{"b": 3, "a": 4}, {"b": 5, "a": None}]])],
        True,
    ),
    "floats": ([pa.array([0.5]), pa.array([0.25], pa.float32())], True),
}
"""The column of two files, and whether the first has the wider type: `datasets` takes the first file's."""


@pytest.mark.parametrize("drift", list(DRIFTS))
def test_rows_of_files_that_differ_are_those_of_datasets(drift: str, tmp_path: Path) -> None:
    arrays, is_first_wider = DRIFTS[drift]
    files = [tmp_path / f"{number}.parquet" for number in range(len(arrays))]
    for number, (file, array) in enumerate(zip(files, arrays, strict=True)):
        pq.write_table(pa.table({"c": array, "file": [number] * len(array)}), file)
    ds = fb.load_dataset(files, split="train")
    theirs = feature_data.streamed(files)
    assert same(list(ds), list(theirs))
    assert (ds.features == theirs.features) == is_first_wider
    cast = ds.cast(theirs.features)
    assert cast.features == theirs.features
    assert same(list(cast), list(theirs))


TIME = dt.datetime(2024, 3, 31, 2, 30, 0, 5000)
UTC_TIME = TIME.replace(tzinfo=dt.UTC)
PAIRS: dict[str, tuple[pa.DataType, list[Any], pa.DataType, list[Any]]] = {
    "timestamps of another unit": (pa.timestamp("us"), [TIME], pa.timestamp("ms"), [TIME]),
    "timestamps in nanoseconds": (pa.timestamp("us"), [TIME], pa.timestamp("ns"), [TIME]),
    "zones": (pa.timestamp("us", "Asia/Tokyo"), [UTC_TIME], pa.timestamp("ms", "Europe/Berlin"), [UTC_TIME]),
    "UTC and no zone": (pa.timestamp("us"), [TIME], pa.timestamp("ms", "UTC"), [UTC_TIME]),
    "times": (pa.time32("ms"), [TIME.time()], pa.time64("us"), [TIME.time()]),
    "times in nanoseconds": (pa.time64("ns"), [TIME.time()], pa.time64("us"), [TIME.time()]),
    "durations": (pa.duration("ms"), [dt.timedelta(7)], pa.duration("us"), [dt.timedelta(9)]),
    "long durations": (pa.duration("s"), [dt.timedelta(7)], pa.duration("ns"), [dt.timedelta(9)]),
    "bytes and text": (pa.binary(), [b"\xc3\xbc"], pa.string(), ["a"]),
    "bytes and large text": (pa.binary(), [b"a"], pa.large_string(), ["ü"]),
    "large bytes and text": (pa.large_binary(), [b"a"], pa.string(), ["b"]),
    "large text and text": (pa.large_string(), ["a"], pa.string(), ["b"]),
    "decimals": (pa.decimal128(10, 2), [Decimal("1.25")], pa.decimal128(14, 4), [Decimal("2.5")]),
    "large decimals": (pa.decimal128(38, 2), [Decimal("1.25")], pa.decimal256(40, 3), [Decimal("2.5")]),
    "dates": (pa.date32(), [TIME.date()], pa.date64(), [TIME.date()]),
    "integers": (pa.int16(), [3], pa.uint8(), [7]),
    "floats": (pa.float32(), [0.5], pa.float64(), [0.25]),
}
"""Types of one column in two files, and values of which none is another one in the other type."""

ONE_WAY: dict[str, tuple[pa.DataType, list[Any], pa.DataType, list[Any]]] = {
    "a date after a timestamp": (pa.timestamp("us"), [TIME], pa.date32(), [TIME.date()]),
    "a date after an instant": (pa.timestamp("ns", "UTC"), [UTC_TIME], pa.date64(), [TIME.date()]),
    "bytes of one length after bytes": (pa.binary(), [b"abc"], pa.binary(2), [b"de"]),
}

WITHIN: dict[str, Callable[[pa.Array], pa.Array]] = {
    "a column": lambda made: made,
    "a struct": lambda made: pa.StructArray.from_arrays([pa.array(range(len(made))), made], ["n", "x"]),
    "a list": lambda made: pa.ListArray.from_arrays([0, len(made), len(made)], made),
    "a large list": lambda made: pa.LargeListArray.from_arrays([0, 1, len(made)], made),
    "a list of structs": lambda made: WITHIN["a list"](WITHIN["a struct"](made)),
    "a struct of a list": lambda made: WITHIN["a struct"](WITHIN["a list"](made)),
    "a dictionary": lambda made: made.dictionary_encode(),
}
"""What holds the values."""


HELD = [(drift, holder) for drift in (*PAIRS, *ONE_WAY) for holder in WITHIN]
# pyarrow reads dictionaries of durations as numbers.
HELD = [held for held in HELD if held not in (("durations", "a dictionary"), ("long durations", "a dictionary"))]


@pytest.mark.parametrize("has_nulls", [False, True], ids=["full", "with NULLs"])
@pytest.mark.parametrize(("drift", "holder"), HELD)
def test_types_that_differ_are_cast_as_by_datasets(drift: str, holder: str, has_nulls: bool, tmp_path: Path) -> None:
    kind, values, other, of_other = (PAIRS | ONE_WAY)[drift]
    nulls = [None] * has_nulls
    arrays = [pa.array([*values, *nulls], kind), pa.array([*nulls, *of_other, *of_other], other)]
    arrays = [WITHIN[holder](array) for array in arrays]
    for number, array in enumerate(arrays):
        field = pa.field("c", array.type, nullable=has_nulls or number == 0)
        pq.write_table(pa.table([array], pa.schema([field])), tmp_path / f"{number}.parquet", row_group_size=2)
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for order in (files, files[::-1]) if drift in PAIRS else (files,):
        ds = fb.load_dataset(order, split="train")
        theirs = list(feature_data.streamed(order))
        assert list(ds) == theirs
        assert list(ds.filter("c IS NOT NULL")) == [row for row in theirs if row["c"] is not None]
        assert list(ds.to_hf()) == theirs
        if holder == "a column":
            cast = ds.cast(feature_data.streamed(order).features)
            assert same(list(cast), theirs)


@pytest.mark.parametrize(
    ("kind", "values", "other", "of_other"),
    [
        (pa.date32(), [TIME.date()], pa.timestamp("us"), [TIME]),
        (pa.timestamp("us"), [TIME], pa.timestamp("us", "Europe/Berlin"), [UTC_TIME]),
        (pa.timestamp("us", "Europe/Berlin"), [UTC_TIME], pa.timestamp("us"), [TIME]),
        (pa.timestamp("us", "Europe/Berlin"), [UTC_TIME], pa.date32(), [TIME.date()]),
    ],
    ids=["a date's time", "a zone", "no zone", "a date in a zone"],
)
def test_what_datasets_loses_or_guesses_is_refused(
    kind: pa.DataType, values: list[Any], other: pa.DataType, of_other: list[Any], tmp_path: Path
) -> None:
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for file, array in zip(files, (pa.array(values, kind), pa.array(of_other, other)), strict=True):
        pq.write_table(pa.table({"s": pa.StructArray.from_arrays([array], ["x"])}), file)
    assert len(list(feature_data.streamed(files))) == 2
    with pytest.raises(fb.SchemaError, match=r"column `s\.x` is .*0\.parquet` but .*1\.parquet`; open .*, `cast`"):
        fb.load_dataset(files, split="train")


def test_columns_that_a_file_lacks_are_null(tmp_path: Path) -> None:
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), files[0])
    pq.write_table(pa.table({"a": [3]}), files[1])
    ds = fb.load_dataset(files, split="train")
    assert list(ds) == list(feature_data.streamed(files))
    assert ds.features == feature_data.streamed(files).features


def test_columns_of_later_files_are_kept(tmp_path: Path) -> None:
    """`datasets` refuses them."""
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    pq.write_table(pa.table({"a": [3]}), files[0])
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), files[1])
    with pytest.raises(Exception, match="column names don't match"):
        list(feature_data.streamed(files))
    assert list(fb.load_dataset(files, split="train"))[1] == {"a": 1, "b": "x"}


def test_classes_stay_where_later_files_say_nothing(tmp_path: Path) -> None:
    label = datasets.ClassLabel(names=["cat", "dog"])
    pq.write_table(pa.Table.from_pydict({"l": [0, 1]}, schema=Features(l=label).arrow_schema), tmp_path / "0.parquet")
    pq.write_table(pa.table({"l": pa.array([1], pa.int32())}), tmp_path / "1.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert ds.features == Features(l=label)
    assert ds.filter("l = 'dog'").num_rows == 2


def test_arrays_share_nothing_with_the_next_batch(ds: fb.Dataset) -> None:
    batches = list(ds.select_columns("int64").with_format("numpy", compat="datasets").batches(4))
    kept = [batch["int64"].copy() for batch in batches]
    assert all(np.array_equal(a, b["int64"], equal_nan=True) for a, b in zip(kept, batches, strict=True))
