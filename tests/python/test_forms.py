"""The forms of columns that are not one tensor: nulls, lists, text, dictionaries, structs; what is asked for, or not.

Every form is compared with what pyarrow reads of the same rows, and its memory with that of the Arrow batch.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import itertools
import pickle
from typing import TYPE_CHECKING, Any

import data
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import forebay as fb
from forebay.options import ReadOptions

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 64
NUM_ROWS = 300


def opened(folder: Path, columns: dict[str, pa.Array] | pa.Table, **options: object) -> fb.Dataset:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, folder / "rows.parquet", row_group_size=120, **options)
    return fb.load_dataset(folder, split="train")


def values_of(column: Any) -> list[Any]:
    """The rows of a column in any form, as pyarrow would say them."""
    if isinstance(column, fb.Masked):
        if column.mask.ndim > 1:
            pairs = zip(column.values.tolist(), column.mask.tolist(), strict=True)
            return [masked_items(row, present) for row, present in pairs]
        values = values_of(column.values)
        return [value if present else None for value, present in zip(values, column.mask.tolist(), strict=True)]
    if isinstance(column, fb.Ragged):
        items, offsets = values_of(column.values), column.offsets.tolist()
        return [items[start:stop] for start, stop in itertools.pairwise(offsets)]
    if isinstance(column, fb.DictionaryEncoded):
        values = values_of(column.values)
        return [values[index] for index in column.indices.tolist()]
    if isinstance(column, dict):
        fields = {name: values_of(child) for name, child in column.items()}
        return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
    return column.tolist() if isinstance(column, torch.Tensor | np.ndarray) else column


def masked_items(row: Any, present: Any) -> Any:
    return [
        masked_items(*pair) if isinstance(pair[0], list) else (pair[0] if pair[1] else None)
        for pair in zip(row, present, strict=True)
    ]


def some(values: list[Any], every: int = 3) -> list[Any]:
    """Each `every`-th value is None."""
    return [None if row % every == 1 else value for row, value in enumerate(values)]


ROWS = range(NUM_ROWS)
RAGGED = [list(range(row, row + row % 5)) for row in ROWS]
WORDS = [["", "a", "日本語 🦀", "null"][row % 4] for row in ROWS]
PAIR = pa.list_(pa.int32(), 2)
STRUCT = pa.struct({"source": pa.string(), "rank": pa.int32()})

COLUMNS = {
    "numbers with nulls": (pa.array(some(list(ROWS)), pa.int16()), "Masked(int16)"),
    "floats with nulls": (pa.array(some([row / 2 for row in ROWS]), pa.float32()), "Masked(float32)"),
    "Booleans with nulls": (pa.array(some([row % 2 == 0 for row in ROWS])), "Masked(bool)"),
    "ragged lists": (pa.array(RAGGED, pa.list_(pa.int32())), "Ragged(int32)"),
    "large ragged lists": (pa.array(RAGGED, pa.large_list(pa.float64())), "Ragged(float64)"),
    "ragged lists with nulls": (pa.array(some(RAGGED), pa.list_(pa.int64())), "Masked(Ragged(int64))"),
    "ragged lists of nulls": (
        pa.array([some(row, 2) for row in RAGGED], pa.list_(pa.int64())),
        "Ragged(Masked(int64))",
    ),
    "lists of lists": (
        pa.array([[RAGGED[row]] * (row % 3) for row in ROWS], pa.list_(pa.list_(pa.int16()))),
        "Ragged(Ragged(int16))",
    ),
    "lists of fixed lists": (
        pa.array([[[row, 1]] * (row % 3) for row in ROWS], pa.list_(pa.list_(pa.int32(), 2))),
        "Ragged(int32 x 2)",
    ),
    "fixed lists with null items": (pa.array([[row, None] for row in ROWS], PAIR), "Masked(int32 x 2)"),
    "fixed lists with nulls": (pa.array(some([[row, row] for row in ROWS]), PAIR), "Masked(int32 x 2)"),
    "fixed lists of fixed lists of lists, with nulls": (
        pa.array(some([[[row, []], [row, row]] for row in RAGGED]), pa.list_(pa.list_(pa.list_(pa.int32()), 2), 2)),
        "Masked(Ragged(Ragged(Ragged(int32))))",
    ),
    "fixed lists of fixed lists with nulls, of structs": (
        pa.array([some([[{"source": "x", "rank": row}] * 3] * 2, 2) for row in ROWS], pa.list_(pa.list_(STRUCT, 3), 2)),
        "Ragged(Masked(Ragged({source: list, rank: int32})))",
    ),
    "fixed lists of text": (pa.array([[word, None] for word in WORDS], pa.list_(pa.string(), 2)), "list"),
    "text": (pa.array(some(WORDS)), "list"),
    "bytes": (pa.array(some([word.encode() for word in WORDS]), pa.large_binary()), "list"),
    "lists of text": (pa.array(some([WORDS[: row % 4] for row in ROWS]), pa.list_(pa.string())), "list"),
    "lists of lists of text": (
        pa.array([[WORDS[: row % 4], None] for row in ROWS], pa.list_(pa.large_list(pa.string()))),
        "list",
    ),
    "decimals": (pa.array(some([decimal.Decimal(row).scaleb(-2) for row in ROWS]), pa.decimal128(30, 2)), "list"),
    "structs": (
        pa.array([{"source": word, "rank": row} for row, word in enumerate(WORDS)], STRUCT),
        "{source: list, rank: int32}",
    ),
    "structs with nulls": (
        pa.array(some([{"source": word, "rank": row} for row, word in enumerate(WORDS)]), STRUCT),
        "Masked({source: list, rank: int32})",
    ),
    "structs of nulls": (
        pa.array([{"source": None, "rank": rank} for rank in some(list(ROWS))], STRUCT),
        "{source: list, rank: Masked(int32)}",
    ),
    "lists of structs": (
        pa.array([[{"source": "x", "rank": row}] * (row % 3) for row in ROWS], pa.list_(STRUCT)),
        "Ragged({source: list, rank: int32})",
    ),
    "structs of structs": (
        pa.array([{"meta": {"source": "x", "rank": r} if r % 7 else None} for r in ROWS], pa.struct({"meta": STRUCT})),
        "{meta: Masked({source: list, rank: int32})}",
    ),
    "maps": (
        pa.array([[(f"k{n}", n) for n in range(row % 3)] for row in ROWS], pa.map_(pa.string(), pa.int32())),
        "Ragged({key: list, value: int32})",
    ),
    "dictionaries of text": (pa.array(some(WORDS)).dictionary_encode(), "list"),
    "dictionaries of numbers": (pa.array([row % 5 for row in ROWS], pa.int64()).dictionary_encode(), "int64"),
    "nothing but nulls": (pa.nulls(NUM_ROWS), "list"),
    "dates with nulls": (pa.array(some(list(ROWS)), pa.int32()).cast(pa.date32()), "Masked(int32)"),
}  # fmt: skip


def shape_of(column: Any) -> str:
    """The form of a column in short."""
    if isinstance(column, fb.Masked):
        return f"Masked({shape_of(column.values)})"
    if isinstance(column, fb.Ragged):
        assert column.offsets.dtype == torch.int64
        return f"Ragged({shape_of(column.values)})"
    if isinstance(column, fb.DictionaryEncoded):
        return f"DictionaryEncoded({shape_of(column.indices)}, {shape_of(column.values)})"
    if isinstance(column, dict):
        return "{" + ", ".join(f"{name}: {shape_of(child)}" for name, child in column.items()) + "}"
    if isinstance(column, list):
        return "list"
    extents = "".join(f" x {extent}" for extent in column.shape[1:])
    return str(column.dtype).removeprefix("torch.") + extents


def expected_values(column: pa.Array) -> list[Any]:
    """What pyarrow says, with maps as lists of dicts and dates as days."""
    if pa.types.is_map(column.type):
        return [[{"key": key, "value": value} for key, value in row] for row in column.to_pylist()]
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).to_pylist()
    return column.to_pylist()


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize(("column", "form"), COLUMNS.values(), ids=COLUMNS)
def test_every_type_has_a_form_that_holds_its_values(tmp_path, column, form, shuffled):
    ds = opened(tmp_path, {"x": column, "id": pa.array(ROWS)})
    expected = expected_values(column)
    seen = []
    for batch in (ds.shuffle(5) if shuffled else ds).to_torch(BATCH):
        assert shape_of(batch["x"]) == form
        ids = batch["id"].tolist()
        assert values_of(batch["x"]) == [expected[row] for row in ids]
        seen += ids
    assert sorted(seen) == list(ROWS)


@pytest.mark.parametrize(("column", "form"), COLUMNS.values(), ids=COLUMNS)
def test_files_without_statistics_have_masks_in_place_of_proofs(tmp_path, column, form):
    ds = opened(tmp_path, {"x": column}, write_statistics=False)
    for batch in ds.to_torch(NUM_ROWS):
        assert shape_of(batch["x"]).replace("Masked(", "").replace(")", "") == form.replace("Masked(", "").replace(
            ")", ""
        )
        assert values_of(batch["x"]) == expected_values(column)


def test_newer_footers_tell_empty_lists_from_null_ones(tmp_path):
    ds = opened(tmp_path, {"x": pa.array(RAGGED, pa.list_(pa.int32()))})  # some are empty
    assert pq.read_metadata(tmp_path / "rows.parquet").row_group(0).column(0).statistics.null_count > 0
    assert shape_of(next(iter(ds.to_torch(8)))["x"]) == "Ragged(int32)"


@pytest.mark.parametrize("rows", [[[1], [], [2]] * 5, [[], [1, 2, 3]] * 5, [[]] * 9 + [[7]]])
@pytest.mark.parametrize("is_nullable", [True, False])
def test_empty_lists_are_no_items_to_footers_that_tell(tmp_path, rows, is_nullable):
    item = pa.field("item", pa.int32(), nullable=is_nullable)
    schema = pa.schema([pa.field("x", pa.list_(item), nullable=is_nullable)])
    ds = opened(tmp_path, pa.table({"x": rows}, schema))
    for size in (1, len(rows)):
        batches = list(ds.to_torch(size))
        assert {shape_of(batch["x"]) for batch in batches} == {"Ragged(int32)"}
        assert [row for batch in batches for row in values_of(batch["x"])] == rows


def test_a_dictionary_below_null_structs_has_a_mask(tmp_path):
    # The writer counts no NULL value of the dictionary, but one by level.
    names = pa.array(["a", "b"]).dictionary_encode()
    column = pa.StructArray.from_arrays([names], names=["a"], mask=pa.array([True, False]))
    batch = next(iter(opened(tmp_path, {"x": column}).to_torch(2)))
    assert batch["x"].mask.tolist() == [False, True]
    assert batch["x"].values["a"][1] == "b"


@pytest.mark.parametrize("is_large", [False, True])
def test_null_among_lists_of_one_length_is_one_among_lists_of_any(tmp_path, is_large):
    kind = pa.large_list if is_large else pa.list_
    rows = [[1, 2], [3]], [[1, 2], None, [5, 6]]
    pq.write_table(pa.table({"x": pa.array(rows[0], kind(pa.int64()))}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": pa.array(rows[1], pa.list_(pa.int64(), 2))}), tmp_path / "1.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for batches in (ds.to_torch(2), ds.to_torch(10), ds.with_format("numpy").batches(3)):
        assert [row for batch in batches for row in values_of(batch["x"])] == rows[0] + rows[1]
    shuffled = [row for batch in ds.shuffle(1).to_torch(10) for row in values_of(batch["x"])]
    assert sorted(shuffled, key=str) == sorted(rows[0] + rows[1], key=str)


@pytest.mark.parametrize("width", [5, 1 << 16])
def test_a_mask_of_fixed_size_binary_in_lists_has_the_shape_of_its_values(tmp_path, width):
    item = b"v" * width
    rows = [[item, None], [None, item], [item, item]]
    batch = next(iter(opened(tmp_path, {"x": pa.array(rows, pa.list_(pa.binary(width), 2))}).to_torch(3)))
    values, mask = batch["x"]
    assert values.shape == mask.shape == (3, 2, width)
    assert mask.all(dim=2).tolist() == mask.any(dim=2).tolist() == [[True, False], [False, True], [True, True]]
    assert (values[mask] == ord("v")).all()


def test_a_name_that_no_interface_carries_is_refused_at_opening(tmp_path):
    for column in (pa.array([1]), pa.array([{"b\0c": 1}])):
        pq.write_table(pa.table({"a" if pa.types.is_struct(column.type) else "a\0b": column}), tmp_path / "x.parquet")
        with pytest.raises(fb.DataError, match=r"x\.parquet.*\\0.*NUL"):
            fb.load_dataset(tmp_path, split="train")


def test_older_footers_do_not_and_have_masks(tmp_path):
    # Polars writes null counts, but no histograms of levels.
    pl.DataFrame({"x": RAGGED}).write_parquet(tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert shape_of(next(iter(ds.to_torch(8)))["x"]) == "Masked(Ragged(Masked(int64)))"
    assert [row for batch in ds.to_torch(8) for row in values_of(batch["x"])] == RAGGED


def converted(ds: fb.Dataset, batch: Any, forms: dict[str, str] | None = None) -> dict[str, Any]:
    chosen = ds._make_reader(ReadOptions()).forms(forms or {}, "torch")
    return batch.convert(chosen, torch.utils.dlpack.from_dlpack)


def first_of(column: Any) -> torch.Tensor:
    """The values of a form that stand in Arrow's buffer."""
    while isinstance(column, fb.Masked | fb.Ragged):
        column = column.values
    return column.indices if isinstance(column, fb.DictionaryEncoded) else column


ZERO_COPY = {
    "int8": (pa.array(range(100), pa.int8()), None),
    "uint64": (pa.array(range(100), pa.uint64()), None),
    "float16": (pa.array(np.arange(100, dtype=np.float16)), None),
    "timestamps": (pa.array(range(100), pa.timestamp("us")), None),
    "dates": (pa.array(range(100), pa.int32()).cast(pa.date32()), None),
    "durations": (pa.array(range(100), pa.duration("ms")), None),
    "nulls": (pa.array(some(list(range(100))), pa.int64()), None),
    "fixed-size lists": (pa.array([[n, n] for n in range(100)], pa.list_(pa.float32(), 2)), None),
    "fixed-size binary": (pa.array([bytes([n] * 8) for n in range(100)], pa.binary(8)), None),
    "lists of one length": (pa.array([[n, n] for n in range(100)], pa.list_(pa.int32())), None),
    "ragged lists": (pa.array([[n] * (n % 3) for n in range(100)], pa.list_(pa.int32())), None),
    "lists of lists": (pa.array([[[n]] * (n % 3) for n in range(100)], pa.list_(pa.list_(pa.int32()))), None),
    "text as bytes": (pa.array([str(n) for n in range(100)]), "ragged"),
    "binary as numbers": (pa.array([bytes([n] * 8) for n in range(100)], pa.binary()), "float32"),
    "fixed-size binary as numbers": (pa.array([bytes([n] * 8) for n in range(100)], pa.binary(8)), "int16"),
    "numbers as others": (pa.array(range(100), pa.uint16()), "bfloat16"),
    "dictionaries": (pa.array([str(n % 3) for n in range(100)]).dictionary_encode(), "dictionary"),
}


@pytest.mark.parametrize(("column", "form"), ZERO_COPY.values(), ids=ZERO_COPY)
def test_values_are_those_of_the_batch_at_its_address(tmp_path, column, form):
    ds = opened(tmp_path, {"x": column})
    batch = next(iter(ds.batches(BATCH)))
    buffers = [buffer.address for buffer in pa.record_batch(batch).column(0).buffers() if buffer is not None]
    if pa.types.is_dictionary(column.type):
        buffers = [pa.record_batch(batch).column(0).indices.buffers()[1].address]
    got = first_of(converted(ds, batch, {"x": form} if form else None)["x"])
    assert got.data_ptr() in buffers


def test_bfloat16_is_known_by_its_extension_type_and_by_request(tmp_path):
    values = torch.tensor([0.5, -2.0, 1e30], dtype=torch.bfloat16)
    raw = [value.tobytes() for value in values.view(torch.uint16).numpy()]
    field = pa.field("x", pa.binary(2), metadata={"ARROW:extension:name": "lance.bfloat16"})
    table = pa.table(
        [pa.array(raw, pa.binary(2)), pa.array(raw, pa.binary(2))], pa.schema([field, ("y", pa.binary(2))])
    )
    ds = opened(tmp_path, table)
    batch = next(iter(ds.to_torch(3, forms={"y": "bfloat16"})))
    assert torch.equal(batch["x"], values)
    assert torch.equal(batch["y"], values)
    with pytest.raises(fb.TensorError, match=r"`x`.*NumPy has no bfloat16"):
        ds.with_format("numpy").batches(3)
    assert next(iter(ds.with_format("numpy", forms={"x": "uint16"}).batches(3)))["x"].dtype == np.uint16


def test_bool8_and_fixed_shape_tensors_are_known_by_their_extension_types(tmp_path):
    bools = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 2, None], pa.int8()))
    images = np.arange(4 * 2 * 3 * 5, dtype=np.int32).reshape(4, 2, 3, 5)
    plain = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    # As the specification has it: the dimensions of the tensor are those in memory in the order of the permutation.
    # pyarrow writes and reads the inverse, so it is not asked here.
    permuted = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2, 3, 5], permutation=[2, 0, 1]), plain.storage
    )
    ds = opened(tmp_path, {"flag": bools, "image": plain, "permuted": permuted})
    batch = next(iter(ds.to_torch(4)))
    assert values_of(batch["flag"]) == [False, True, True, None]
    assert np.array_equal(batch["image"].numpy(), images)
    assert np.array_equal(batch["permuted"].numpy(), images.transpose(0, 3, 1, 2))


def test_nested_tensors_are_jagged_and_share_the_values(tmp_path):
    ds = opened(tmp_path, {"x": pa.array(some(RAGGED), pa.list_(pa.float32()))})
    values, mask = next(iter(ds.to_torch(BATCH, forms={"x": "nested"})))["x"]
    assert values.is_nested
    assert values.layout == torch.jagged
    got = [row.tolist() if there else None for row, there in zip(values.unbind(), mask.tolist(), strict=True)]
    assert got == some(RAGGED)[:BATCH]


TENTH = decimal.Decimal("0.1")
REQUESTED = {
    "text as bytes": (pa.array(some(WORDS)), "ragged", "Masked(Ragged(uint8))"),
    "lists as Python lists": (pa.array(some(RAGGED), pa.list_(pa.int32())), "list", "list"),
    "structs as Python dicts": (pa.array(some([{"a": row} for row in ROWS])), "list", "list"),
    "times as Python times": (pa.array([dt.datetime(2026, 1, 1)] * NUM_ROWS, pa.timestamp("us")), "list", "list"),
    "lists of one length as ragged ones": (pa.array([[1, 2]] * NUM_ROWS), "ragged", "Ragged(int64)"),
    "dictionaries as they are": (
        pa.array(WORDS).dictionary_encode(),
        "dictionary",
        "DictionaryEncoded(int32, list)",
    ),
    "dictionaries with nulls": (
        pa.array(some(WORDS)).dictionary_encode(),
        "dictionary",
        "Masked(DictionaryEncoded(int32, list))",
    ),
    "decimals as floats": (pa.array(some([TENTH * row for row in ROWS])), "float64", "Masked(float64)"),
    "decimals in units": (pa.array([10 * TENTH * row for row in ROWS], pa.decimal128(5, 0)), "int64", "int64"),
}  # fmt: skip


@pytest.mark.parametrize(("column", "request_", "form"), REQUESTED.values(), ids=REQUESTED)
def test_a_form_can_be_asked_for(tmp_path, column, request_, form):
    ds = opened(tmp_path, {"x": column, "id": pa.array(ROWS)}).shuffle(2)
    for batch in ds.to_torch(BATCH, forms={"x": request_}):
        assert shape_of(batch["x"]) == form
        rows = batch["id"].tolist()
        expected = column.take(pa.array(rows)).to_pylist()
        if request_ == "ragged" and pa.types.is_string(column.type):
            expected = [None if word is None else list(word.encode()) for word in expected]
        if pa.types.is_decimal(column.type):
            expected = [None if value is None else float(value) for value in expected]
        assert values_of(batch["x"]) == expected


def test_forms_of_fields_of_structs_are_asked_for_by_path(tmp_path):
    rows = [{"text": word, "inner": {"tokens": RAGGED[row]}} for row, word in enumerate(WORDS)]
    ds = opened(tmp_path, {"meta": pa.array(rows), "meta.text": pa.array(WORDS)})
    forms = {"meta.inner.tokens": "nested"}
    batch = next(iter(ds.to_torch(8, forms=forms)))
    assert batch["meta"]["inner"]["tokens"].is_nested
    assert batch["meta"]["text"] == WORDS[:8]


REFUSED = {
    "another form than there is": ({"x": "tensr"}, fb.SettingError, "expected 'tensor', 'ragged'.*got 'tensr'"),
    "a column that is not there": ({"y": "ragged"}, fb.ColumnNotFoundError, "`y`.*`x`"),
    "a field that is not there": ({"x.a": "ragged"}, fb.ColumnNotFoundError, "`x.a`"),
    "something that is no text": ({"x": 3}, fb.SettingError, "forms: expected names"),
    "something that is no dict": ("ragged", fb.SettingError, "forms: expected a dict"),
    "Booleans of bytes": ({"x": "bool"}, fb.SettingError, "got 'bool'"),
    "a list as a dictionary": ({"x": "dictionary"}, fb.TensorError, "`x`.*List"),
    "a list as bytes": ({"x": "float32"}, fb.TensorError, "`x`.*cannot be taken as float32"),
    "one length where there are many": ({"x": "tensor"}, fb.TensorError, "`x`.*'ragged'"),
}


@pytest.mark.parametrize(("forms", "kind", "says"), REFUSED.values(), ids=REFUSED)
def test_a_form_that_cannot_be_is_refused_at_the_call(tmp_path, forms, kind, says):
    ds = opened(tmp_path, {"x": pa.array(RAGGED, pa.list_(pa.int32()))})
    with pytest.raises(kind, match=f"(?s){says}"):
        ds.to_torch(8, forms=forms)


UNFIT = {
    "nulls in numbers of bytes": (pa.array([b"abcd", None]), "float32", "`x IS NOT NULL`"),
    "bytes of no whole number": (pa.array([b"abc"], pa.binary(3)), "int16", "3 bytes a row.*int16"),
    "decimals as bytes": (pa.array([decimal.Decimal(1)]), "int32", "'float64'"),
    "null items in nested tensors": (pa.array([[1, None], [2]]), "nested", "null"),
    "text as a tensor": (pa.array(["a"]), "tensor", "`Utf8`"),
    "numbers as ragged": (pa.array([1]), "ragged", "'ragged' for lists"),
    "floats of another width": (pa.array([1.5]), "float32", r"\.to\(torch\.float32\)"),
    "integers as floats": (pa.array([1], pa.int32()), "float32", r"\.to\(torch\.float32\)"),
    "text as numbers": (pa.array(["abcd"]), "float32", "text cannot be read as"),
}


@pytest.mark.parametrize(("column", "form", "says"), UNFIT.values(), ids=UNFIT)
def test_a_form_that_the_type_does_not_have_is_refused_at_the_call(tmp_path, column, form, says):
    ds = opened(tmp_path, {"x": column})
    with pytest.raises(fb.TensorError, match=f"(?s)`x`.*{says}"):
        ds.to_torch(8, forms={"x": form})


def test_lists_that_turn_out_ragged_say_what_to_ask_for(tmp_path):
    rows = [[1], [2, 3, 4]] * 60  # two items on average, as far as footers say
    ds = opened(tmp_path, {"x": pa.array(rows, pa.list_(pa.int32()))})
    with pytest.raises(fb.TensorError, match=r"`x`.*`List.*differ in length.*\"ragged\""):
        list(ds.to_torch(8))
    assert values_of(next(iter(ds.to_torch(120, forms={"x": "ragged"})))["x"]) == rows


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_rows_of_lists_that_turn_out_ragged_have_lengths_of_their_own(tmp_path, kind):
    lists = [[1], [2, 3, 4]] * 60
    table = data.mixed_table(120, seed=5).append_column("x", pa.array(lists, pa.list_(pa.int32())))
    ds = opened(tmp_path, table).with_format(kind)
    rows = list(ds)
    assert [row["x"].tolist() for row in rows] == lists
    assert repr(rows) == repr([ds[i] for i in range(120)]) == repr(ds.__getitems__(list(range(120))))
    loader = fb.DataLoader(ds, batch_size=40, collate_fn=list)
    assert repr([row for batch in loader for row in batch]) == repr(rows)
    with pytest.raises(fb.TensorError, match="`x`.*differ in length"):
        ds[:2]


def test_a_row_whose_own_lists_differ_in_length_is_an_error(tmp_path):
    ds = opened(tmp_path, {"x": [[[1, 2], [3, 4]], [[1], [2, 3, 4]]] * 4})
    with pytest.raises(fb.TensorError, match="`x`.*differ in length"):
        list(ds.with_format("torch", forms={"x": "tensor"}))


@pytest.mark.parametrize(
    ("column", "form"),
    [("x", [[[1], [2, 3]]] * 4), ("x.y", [{"y": [[1], [2, 3]]}] * 4), ("x.y", [[{"y": [[1], [2, 3]]}] * 3] * 4)],
    ids=["a list", "a field", "a field of items"],
)
def test_lists_that_turn_out_ragged_within_others_are_named_as_forms_takes_them(tmp_path, column, form):
    ds = opened(tmp_path, {"x": pa.array(form)})
    with pytest.raises(
        fb.TensorError, match=rf"column `{column}` of .* differ in length .*\"ragged\" of it in `forms`"
    ):
        next(iter(ds.to_torch(4, forms={column: "tensor"})))
    assert next(iter(ds.to_torch(4, forms={column: "ragged"})))


@pytest.mark.parametrize(
    ("column", "form", "says"),
    [
        ([1, None], None, "`Masked` .* pair: .*`column.values.column.mask.`"),
        ([[1], [2, 3]], "ragged", r"`Ragged` .* pair: .*`column.row\(i\)`"),
        (pa.array(["a", "b"]).dictionary_encode(), "dictionary", "`DictionaryEncoded` .* pair: `indices` into"),
    ],
    ids=["masked", "ragged", "dictionary"],
)
def test_what_is_taken_for_a_tensor_says_that_it_is_a_pair(tmp_path, column, form, says):
    """Of a tuple, twice as much would be the tuple twice."""
    ds = opened(tmp_path, {"x": column})
    x = next(iter(ds.to_torch(2, forms={"x": form} if form else None)))["x"]
    for call in (
        *(lambda: x * 2, lambda: 2 * x, lambda: torch.ones(2) * x, lambda: np.ones(2) * x),
        *(lambda: x + x, lambda: 1 + x, lambda: np.ones(2) + x, lambda: x - 1, lambda: x / 2, lambda: x**2, lambda: -x),
        *(lambda: x == 0, lambda: x != 0, lambda: x == x[0], lambda: x < 1, lambda: x >= x, lambda: x & x, lambda: ~x),
    ):
        with pytest.raises(TypeError, match=says):
            call()
    # Code that walks nested batches may compare tuples.
    assert x == tuple(x)
    assert x not in ((), None)
    with pytest.raises(AttributeError, match=says):
        x.mean  # noqa: B018 - looked up
    assert not hasattr(x, "__array__")
    assert copy.deepcopy(x)._fields == x._fields


def test_binary_that_turns_out_uneven_is_an_error_in_its_batch(tmp_path):
    ds = opened(tmp_path, {"x": pa.array([b"12345678", b"1234"])})
    with pytest.raises(fb.TensorError, match="`x`.*differ in length"):
        list(ds.to_torch(2, forms={"x": "float32"}))
    ds = opened(tmp_path, {"x": pa.array([b"123", b"456"])})
    with pytest.raises(fb.TensorError, match="`x`.*3 bytes"):
        list(ds.to_torch(2, forms={"x": "float32"}))


def test_decimals_beyond_int64_are_an_error_that_names_the_value(tmp_path):
    ds = opened(tmp_path, {"x": pa.array([decimal.Decimal(10**30)], pa.decimal128(38, 0))})
    with pytest.raises(fb.TensorError, match=f"`x`.*{10**30}.*int64"):
        list(ds.to_torch(1, forms={"x": "int64"}))


def test_a_filter_may_leave_lists_of_one_length_and_no_nulls(tmp_path):
    rows = [[i] * (2 if i % 2 else 3) for i in range(240)]
    ds = opened(tmp_path, {"x": pa.array(rows), "length": [len(row) for row in rows], "y": some(list(range(240)))})
    kept = ds.filter("length = 2")
    assert shape_of(next(iter(kept.to_torch(8)))["x"]) == "Ragged(int64)"
    assert shape_of(next(iter(kept.to_torch(8, forms={"x": "tensor"})))["x"]) == "int64 x 2"
    for sql in ("y IS NOT NULL", "y > 0", "y IS NOT NULL AND length = 2", "y BETWEEN 0 AND 900"):
        assert shape_of(next(iter(ds.filter(sql).to_torch(8)))["y"]) == "int64", sql
    for sql in ("length = 2", "y IS NOT NULL OR length > 1", "y IS NULL"):
        assert shape_of(next(iter(ds.filter(sql).to_torch(8)))["y"]) == "Masked(int64)", sql


def test_nulls_in_row_groups_that_are_left_out_need_no_mask(tmp_path):
    values = [None] * 120 + list(range(120))
    ds = opened(tmp_path, {"x": pa.array(values, pa.int64()), "id": range(240)})
    assert shape_of(next(iter(ds.filter("id >= 120").to_torch(8)))["x"]) == "int64"
    assert shape_of(next(iter(ds.to_torch(8)))["x"]) == "Masked(int64)"


def test_all_batches_of_a_stream_have_the_same_form(tmp_path):
    rows = [[1, 2]] * 120 + [[1, 2, 3]] * 120
    ds = opened(tmp_path, {"x": pa.array(rows), "y": pa.array([1] * 239 + [None])})
    forms = {(shape_of(batch["x"]), shape_of(batch["y"])) for batch in ds.to_torch(8)}
    assert forms == {("Ragged(int64)", "Masked(int64)")}


def test_columns_that_an_object_lacks_are_null_there(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "x": [5, 6], "s": [{"a": 1}, {"a": 2}]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [3], "s": pa.array([{"b": "x"}])}), tmp_path / "b.parquet")
    batch = next(iter(fb.load_dataset(tmp_path, split="train").to_torch(3)))
    assert values_of(batch["x"]) == [5, 6, None]
    assert values_of(batch["s"]) == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": None, "b": "x"}]


def test_units_of_times_are_known_by_path(tmp_path):
    at = dt.datetime(2026, 1, 1)
    inner = pa.struct({"took": pa.duration("ns"), "when": pa.list_(pa.timestamp("ms"))})
    columns = {
        "day": pa.array([at.date()]),
        "at": pa.array([at], pa.timestamp("us", tz="Europe/Berlin")),
        "clock": pa.array([at.time()], pa.time64("us")),
        "meta": pa.array([{"took": 5, "when": [at]}], inner),
        "id": pa.array([1]),
    }
    ds = opened(tmp_path, columns)
    assert ds.units == {"day": "D", "at": "us", "clock": "us", "meta.took": "ns", "meta.when": "ms"}
    assert ds.select_columns("id").units == {}


def test_forms_pass_through_pickle_copies_and_workers(tmp_path):
    ds = opened(tmp_path, {"x": pa.array(some(RAGGED), pa.list_(pa.int32())), "id": pa.array(ROWS)})
    stream = ds.to_torch(BATCH, forms={"x": "ragged"})
    expected = [values_of(batch["x"]) for batch in stream]
    for other in (pickle.loads(pickle.dumps(stream)), copy.deepcopy(stream)):
        assert [values_of(batch["x"]) for batch in other] == expected
    loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [values_of(batch["x"]) for batch in loader] == expected


def test_a_footer_that_denies_its_nulls_is_found_out(tmp_path):
    # A required column, by a footer that does not know of its nulls: a page cannot hold them, so none come out.
    table = pa.table(
        {"x": pa.array([1, 2, 3], pa.int64())}, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)])
    )
    assert shape_of(next(iter(opened(tmp_path, table, write_statistics=False).to_torch(3)))["x"]) == "int64"


def test_a_dictionary_without_values_is_all_null(tmp_path: Path) -> None:
    kinds = pa.array(["a"] * 10 + [None] * 10).dictionary_encode()
    pq.write_table(pa.table({"kind": kinds}), tmp_path / "x.parquet", row_group_size=10)
    dataset = fb.load_dataset(tmp_path, split="train")
    batches = [batch["kind"] for batch in dataset.with_format("numpy").batches(10)]
    assert [list(batch) for batch in batches] == [["a"] * 10, [None] * 10]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_rows_of_a_column_are_counted_from_both_ends(tmp_path: Path, kind: str) -> None:
    rows = [[1], [2, 3], [], [4, 5, 6]]
    columns = {
        "lists": pa.array(rows),
        "maybe": pa.array([None, *rows[1:]]),
        "nested": pa.array([[row] for row in rows]),
    }
    batch = next(iter(opened(tmp_path, columns).with_format(kind).batches(4)))
    assert isinstance(batch["lists"], fb.Ragged)
    for index in range(-4, 4):
        assert batch["lists"].row(index).tolist() == rows[index]
        assert batch["nested"].row(index).row(-1).tolist() == rows[index]
        value = batch["maybe"].row(index)
        assert (value is None) if index in (0, -4) else value.tolist() == rows[index]
    for column, index in itertools.product(("lists", "maybe"), (-6, -5, 4, 5)):
        with pytest.raises(IndexError):
            batch[column].row(index)
    with pytest.raises(fb.RowIndexError, match="row 4: the column has 4 rows, from 0 to 3"):
        batch["lists"].row(4)
    with pytest.raises(fb.RowIndexError, match="row 0: the column has no rows"):
        batch["lists"].rows(0, 0).row(0)
    for start, stop in itertools.product(range(-6, 7), repeat=2):
        assert values_of(batch["lists"].rows(start, stop)) == rows[start:stop]
        assert values_of(batch["maybe"].rows(start, stop)) == [None, *rows[1:]][start:stop]


@pytest.mark.parametrize(
    ("column", "form"),
    [
        ("lists", None),
        ("lists", "ragged"),
        ("whole", "nested"),
        ("fixed", None),
        ("text", "ragged"),
        ("maps", None),
        ("maps", "ragged"),
    ],
)
def test_rows_that_a_query_made_null_have_no_items(tmp_path: Path, column: str, form: str | None) -> None:
    columns = {
        "id": pa.array(ROWS),
        "lists": pa.array(RAGGED, pa.list_(pa.int64())),
        "whole": pa.array(RAGGED, pa.list_(pa.field("element", pa.int64(), nullable=False))),
        "fixed": pa.array([[row, row] for row in RAGGED], pa.list_(pa.list_(pa.int64()), 2)),
        "text": pa.array(WORDS),
        "maps": pa.array([[(word, 1)] for word in WORDS], pa.map_(pa.string(), pa.int32())),
    }
    # DataFusion masks what there is, and leaves it where it is.
    query = f"SELECT id, nullif({column}, {column}) AS x, CASE WHEN id % 3 = 0 THEN {column} END AS y FROM dataset"
    forms = {} if form is None else {"x": form, "y": form}
    for batch in opened(tmp_path, columns).sql(query).to_torch(BATCH, forms=forms):
        for values, mask in (batch["x"], batch["y"]):
            offsets = values.offsets() if isinstance(values, torch.Tensor) else values.offsets
            assert not mask.all()
            assert not offsets.diff()[~mask].any()


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_what_is_written_into_a_dictionary_is_in_no_later_batch(tmp_path: Path, kind: str) -> None:
    numbers = pa.array([row % 7 for row in ROWS], pa.int64()).dictionary_encode()
    for ds in (dataset := opened(tmp_path, {"x": numbers}), dataset.shuffle(1)):
        stream = ds.with_format(kind, forms={"x": "dictionary"}).batches(10)
        expected = [values_of(batch["x"]) for batch in stream]
        for batch, before in zip(stream, expected, strict=True):
            assert values_of(batch["x"]) == before
            batch["x"].values[:] = -1


NO_OBJECTS = {
    "dates": (pa.array([0, None, 10**7], pa.int32()).cast(pa.date32()), r"row 2 of the batch.*`\+29349-01-26`"),
    "dates in lists": (
        pa.array([[0], [1, 10**7]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        r"row 1 of the batch.*29349-01-26",
    ),
    "times": (pa.array([0, 1 << 62], pa.int64()).cast(pa.timestamp("us")), "row 1 of the batch"),
    "zones": (pa.array([None, 0], pa.timestamp("us", "Nowhere/At_all")), "row 1 of the batch.*its value"),
}


@pytest.mark.parametrize(("column", "says"), NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_a_value_that_python_has_no_object_for_is_named(tmp_path: Path, column: pa.Array, says: str) -> None:
    ds = opened(tmp_path, {"x": column})
    for kind in ("torch", "numpy"):
        with pytest.raises(fb.DataError, match=f"column `x` of type.*{says}") as raised:
            list(ds.with_format(kind, forms={"x": "list"}).batches(8))
        assert raised.value.__cause__ is not None


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    duckdb.sql(f"COPY (SELECT INTERVAL 1 DAY AS x) TO '{tmp_path / 'rows.parquet'}'")
    ds = fb.load_dataset(tmp_path, split="train")
    to_lists = ds.to_torch(1, forms={"x": "list"})
    with pytest.raises(fb.TensorError, match="a tensor: it cannot be read; leave it out with `remove_columns`$"):
        ds.to_torch(1)
    for read in (lambda: list(ds.take(1)), lambda: ds[0], lambda: list(ds.iter(2)), lambda: next(iter(to_lists))):
        with pytest.raises(fb.DataError, match=r"column `x` in row group 0 of `.*rows\.parquet`"):
            read()


def test_a_file_with_a_type_that_only_its_writer_knows_is_not_only_called_corrupt(tmp_path: Path) -> None:
    pl.DataFrame({"x": pl.Series([1, 2, 3], dtype=pl.Int128)}).write_parquet(tmp_path / "rows.parquet")
    says = r"`.*rows\.parquet` is not a readable Parquet file: .* cannot be read, .* 128-bit integers: .*width of 128"
    with pytest.raises(fb.DataError, match=says):
        fb.load_dataset(tmp_path, split="train")
