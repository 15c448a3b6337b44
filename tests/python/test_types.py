"""Every type, alone and nested, as every writer writes it: the batches hold what pyarrow reads."""

from __future__ import annotations

import datetime as dt

import arrow_types
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from equality import NUM_ROWS, as_forebay_has_them, check_equal, check_reads, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay as fb

ROW_GROUPS = (40, 1, 64, 55)  # of the rows of `table_of`


def write(path: object, table: pa.Table, **options: object) -> None:
    """Writes row groups of several lengths, in pages of about eight rows."""
    settings = {"data_page_size": 64, "write_batch_size": 8, "write_page_index": True} | options
    with pq.ParquetWriter(path, table.schema, **settings) as writer:
        first = 0
        for length in ROW_GROUPS:
            writer.write_table(table.slice(first, length))
            first += length


def check_round_trip(path: object, table: pa.Table, **options: object) -> None:
    write(path, table, **options)
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
    read = pq.read_table(path, columns=[field.name for field in table.schema if is_readable(field.type)])
    for name in schema.names:
        if name not in read.column_names:
            read = read.append_column(table.schema.field(name), table[name])
    check_reads(path, read.select(schema.names), as_forebay_has_them(schema, table.schema))


def is_readable(kind: pa.DataType, in_list: bool = False) -> bool:
    """Whether pyarrow reads it: it fails on row groups in which lists of dictionaries hold nothing.

    Where it does, what was written is expected instead.
    """
    if pa.types.is_dictionary(kind):
        return not in_list
    is_list = not pa.types.is_struct(kind)
    return all(is_readable(kind.field(i).type, in_list or is_list) for i in range(kind.num_fields))


NULLS = pytest.mark.parametrize("nulls", arrow_types.NULL_FRACTIONS)


@NULLS
def test_every_type_is_what_pyarrow_reads(tmp_path, nulls):
    table = table_of(arrow_types.nested(), arrow_types.NULL_FRACTIONS[nulls])
    check_round_trip(tmp_path / "a.parquet", table)


@NULLS
@pytest.mark.parametrize("container", arrow_types.CONTAINERS)
def test_every_type_in_every_container_is_what_pyarrow_reads(tmp_path, container, nulls):
    kinds = arrow_types.nested([container])
    check_round_trip(tmp_path / "a.parquet", table_of(kinds, arrow_types.NULL_FRACTIONS[nulls]))


@NULLS
@pytest.mark.parametrize("outer", arrow_types.CONTAINERS)
def test_containers_in_containers_are_what_pyarrow_reads(tmp_path, outer, nulls):
    kinds = arrow_types.nested([outer], arrow_types.CONTAINERS)
    check_round_trip(tmp_path / "a.parquet", table_of(kinds, arrow_types.NULL_FRACTIONS[nulls]))


@pytest.mark.parametrize("outer", arrow_types.CONTAINERS)
def test_containers_three_deep_are_what_pyarrow_reads(tmp_path, outer):
    kinds = arrow_types.nested([outer], arrow_types.CONTAINERS, arrow_types.CONTAINERS)
    check_round_trip(tmp_path / "a.parquet", table_of(kinds, 0.2))


LEAVES = [name for name in arrow_types.LEAVES if "view" not in name and name != "null"]


def kinds() -> st.SearchStrategy[pa.DataType]:
    """Types up to five deep: structs of several fields, maps with keys of several types."""
    keys = st.sampled_from(["int32", "string", "date32[day]", "fixed_size_binary[5]"]).map(arrow_types.LEAVES.get)
    leaves = st.sampled_from(LEAVES).map(arrow_types.LEAVES.get)

    def containers(item: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        fields = st.lists(st.tuples(item, st.booleans()), min_size=1, max_size=3)
        return st.one_of(
            item.map(pa.list_),
            item.map(pa.large_list),
            st.tuples(item, st.integers(1, 3)).map(lambda pair: pa.list_(*pair)),
            st.tuples(keys, item).map(lambda pair: pa.map_(*pair)),
            fields.map(lambda pairs: pa.struct([pa.field(f"f{i}", kind) for i, (kind, _) in enumerate(pairs)])),
        )

    return st.recursive(leaves, containers, max_leaves=5)


@settings(max_examples=25)
@given(kind=kinds(), null_fraction=st.sampled_from([0.0, 0.1, 0.6]), seed=st.integers(0, 10**6))
def test_any_type_is_what_was_written(tmp_path_factory, kind, null_fraction, seed):
    path = tmp_path_factory.mktemp("any") / "a.parquet"
    table = table_of({"x": kind}, null_fraction, seed)
    write(path, table)
    read = pq.read_schema(path)
    check_reads(path, table, as_forebay_has_them(read, table.schema))


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int16()], ids=str)
def test_the_dictionaries_of_all_row_groups_fit_one_batch(tmp_path, index):
    """Each has few values, all together more than the index numbers that was written."""
    groups = [pa.array([f"{group} {i}" for i in range(100)]).dictionary_encode() for group in range(8)]
    groups = [pa.DictionaryArray.from_arrays(group.indices.cast(index), group.dictionary) for group in groups]
    lists = [pa.ListArray.from_arrays(pa.array(range(101), pa.int32()), group) for group in groups]
    with pq.ParquetWriter(
        tmp_path / "a.parquet", pa.schema([("x", groups[0].type), ("y", lists[0].type)]), use_dictionary=True
    ) as writer:
        for group, items in zip(groups, lists, strict=True):
            writer.write_table(pa.table({"x": group, "y": items}, schema=writer.schema))
    ds = fb.load_dataset(tmp_path, split="train")
    expected = [f"{group} {i}" for group in range(8) for i in range(100)]
    assert pa.table(ds)["x"].to_pylist() == expected
    batch = pa.record_batch(next(iter(ds.shuffle(1).batches(800))))
    assert sorted(batch["x"].to_pylist()) == sorted(expected)
    assert batch["y"].to_pylist() == [[value] for value in batch["x"].to_pylist()]
    assert pa.table(ds.filter("x = '7 99'"))["y"].to_pylist() == [["7 99"]]


DIFFERING = {
    "maps": (
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        pa.array([[("b", 2**40), ("c", None)], []], pa.map_(pa.large_string(), pa.int64())),
        pa.map_(pa.large_string(), pa.int64()),
    ),
    "maps of structs": (
        pa.array([[("a", {"x": 1})]], pa.map_(pa.string(), pa.struct({"x": pa.int8()}))),
        pa.array([[("b", {"x": 300, "y": "z"})]], pa.map_(pa.string(), pa.struct({"x": pa.int16(), "y": pa.string()}))),
        pa.map_(pa.string(), pa.struct({"x": pa.int16(), "y": pa.string()})),
    ),
    "dictionaries and strings": (
        pa.array(["a", None]).dictionary_encode(),
        pa.array(["b"], pa.large_string()),
        pa.large_string(),
    ),
    "indices of dictionaries": (
        pa.array(["a", None]).cast(pa.dictionary(pa.int8(), pa.string())),
        pa.array(["b"]).cast(pa.dictionary(pa.int16(), pa.string())),
        pa.dictionary(pa.int32(), pa.string()),
    ),
    "values of dictionaries": (
        pa.array([1, None], pa.int32()).dictionary_encode(),
        pa.array([2**40]).dictionary_encode(),
        pa.int64(),
    ),
    "lists of dictionaries": (
        pa.array([["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.array([["b", None]], pa.list_(pa.string())),
        pa.list_(pa.string()),
    ),
    "views and large strings": (
        pa.array(["a"], pa.string_view()),
        pa.array(["b"], pa.large_string()),
        pa.large_string(),
    ),
    "views and large lists": (
        pa.array([[1]], pa.list_view(pa.int32())),
        pa.array([[2**40]], pa.large_list(pa.int64())),
        pa.large_list(pa.int64()),
    ),
    "lists of nothing": (pa.array([[], [None]], pa.list_(pa.null())), pa.array([[1]]), pa.list_(pa.int64())),
}


@pytest.mark.parametrize("is_reversed", [False, True], ids=["one first", "the other first"])
@pytest.mark.parametrize("case", DIFFERING)
def test_columns_that_differ_between_files_become_one(tmp_path, case, is_reversed):
    first, second, expected = DIFFERING[case]
    columns = [second, first] if is_reversed else [first, second]
    for number, column in enumerate(columns):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert ds.schema.field("x").type == expected
    values = [value for column in columns for value in column.to_pylist()]
    got = pa.table(ds)["x"].to_pylist()
    assert [_without_nulls(value) for value in got] == [_without_nulls(value) for value in values]
    assert len(pa.table(ds.shuffle(1))) == len(values)


def _without_nulls(value: object) -> object:
    """A value without the fields of structs that its own file does not have."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("ms", "Europe/Berlin")])
def test_int96_has_the_unit_and_zone_of_the_arrow_schema_else_nanoseconds(tmp_path, kind):
    for stored, year in ((True, 9999), (False, 2262)):
        table = pa.table({"at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5), None, dt.datetime(year, 1, 1)], kind)})
        path = tmp_path / f"{stored}.parquet"
        pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=stored)
        got = pa.table(fb.load_dataset(path, split="train"))
        assert got["at"].equals(table["at"] if stored else table["at"].cast(pa.timestamp("ns")))


def test_strings_of_all_lengths_and_bytes_of_none(tmp_path):
    texts = ["", "x" * 70_000, "é" * 3, None] * (NUM_ROWS // 4)
    table = pa.table(
        {
            "id": pa.array(np.arange(NUM_ROWS)),
            "text": texts,
            "lists": pa.array([[text, text] for text in texts]),
            "empty": pa.array([b""] * NUM_ROWS),
            "no items": pa.array([[]] * NUM_ROWS, pa.list_(pa.string())),
        }
    )
    write(tmp_path / "a.parquet", table)
    check_reads(tmp_path / "a.parquet", table, pq.read_schema(tmp_path / "a.parquet"))
    check_equal(pa.table(fb.load_dataset(tmp_path, split="train")), table)


def joined(folder: object, table: object) -> fb.Dataset:
    """A hundred rows with the column `label` of a table beside them."""
    pq.write_table(pa.table({"id": range(100), "text": [f"row {i}" for i in range(100)]}), f"{folder}/rows.parquet")
    ds = fb.load_dataset(f"{folder}/rows.parquet", split="train")
    return ds.sql("SELECT d.id, l.label FROM dataset d JOIN l USING (id)", tables={"l": table})


TEXTS = [("ham", "spam", None)[i % 3] for i in range(100)]
FOREIGN = {
    "string views": (pa.array(TEXTS, pa.string_view()), pa.string()),
    "binary views": (pa.array([text and text.encode() for text in TEXTS], pa.binary_view()), pa.binary()),
    "categories of views": (
        pa.DictionaryArray.from_arrays(pa.array([i % 2 for i in range(100)], pa.uint32()), pa.array(["ham", "spam"])),
        pa.dictionary(pa.uint32(), pa.string()),
    ),
    "views in a struct": (
        pa.array([{"text": text} for text in TEXTS], pa.struct({"text": pa.string_view()})),
        pa.struct({"text": pa.string()}),
    ),
    "short numbers of categories": (
        pa.array(TEXTS).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
        None,
    ),
}


@pytest.mark.parametrize(("label", "kind"), FOREIGN.values(), ids=FOREIGN)
def test_columns_of_other_tables_have_the_types_of_those_of_files(tmp_path, label, kind):
    ds = joined(tmp_path, pa.table({"id": range(100), "label": label}))
    assert ds.schema.field("label").type == (kind or pa.dictionary(pa.int32(), pa.string()))
    assert pa.table(ds)["label"].to_pylist() == label.to_pylist()
    next(iter(ds.to_torch(2)))


def test_categories_of_polars_become_rows_and_tensors(tmp_path):
    table = pl.DataFrame({"id": range(100), "label": TEXTS}, schema_overrides={"label": pl.Categorical})
    ds = joined(tmp_path, table)
    assert [row["label"] for row in ds.to_hf()] == TEXTS
    assert next(iter(ds.filter("label IS NOT NULL").to_torch(2, forms={"label": "list"})))["label"] == TEXTS[:2]


def test_short_numbers_of_categories_do_not_run_out(tmp_path):
    numbers = pa.array(range(10), pa.int8())
    tables = [[f"{part}-{number}" for number in range(30)] for part in range(10)]
    labels = pa.chunked_array([pa.DictionaryArray.from_arrays(numbers, pa.array(values)) for values in tables])
    ds = joined(tmp_path, pa.table({"id": range(100), "label": labels}))
    assert pa.table(ds)["label"].to_pylist() == labels.to_pylist()


@pytest.mark.parametrize("text", ["md5(text)", "upper(md5(text))", "arrow_cast(text, 'Utf8View')"])
def test_computed_text_is_plain(tmp_path, text):
    pq.write_table(pa.table({"id": range(9), "text": [f"row {i}" for i in range(9)]}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train").sql(f"SELECT id, {text} AS label FROM dataset")
    assert ds.schema.field("label").type == pa.string()
    labels = pa.table(ds)["label"].to_pylist()
    assert next(iter(ds.to_torch(9)))["label"] == labels
    # What a query computed is computed with, compared and joined as what files have.
    assert ds.filter(f"label = '{labels[3]}'").num_rows == 1
    again = ds.sql("SELECT d.id, reverse(d.label) AS back FROM dataset d JOIN s ON s.label = d.label", tables={"s": ds})
    assert pa.table(again)["back"].to_pylist() == [label[::-1] for label in labels]
