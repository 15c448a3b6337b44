"""Columns of our own decoders, as pyarrow writes them: rows that go on in the next page, all cuts and encodings."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import hostile
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from equality import check_reads

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 300


def columns(share_of_nulls: float) -> pa.Table:
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 400, NUM_ROWS)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    ids = rng.integers(0, 5000, int(offsets[-1].as_py()))
    nulls = rng.random(NUM_ROWS) < share_of_nulls
    fixed = pa.FixedSizeListArray.from_arrays(rng.random(NUM_ROWS * 48, np.float32), 48)
    lists = pa.ListArray.from_arrays(offsets, pa.array(ids.astype(np.int32)))
    ids_of_rows = np.arange(NUM_ROWS * 500) % 3001
    return pa.table(
        {
            "id": np.arange(NUM_ROWS),
            "tokens": pa.ListArray.from_arrays(pa.array(np.arange(NUM_ROWS + 1) * 500, pa.int32()), ids_of_rows),
            "lists": pa.array([None if null else row for null, row in zip(nulls, lists.to_pylist(), strict=True)]),
            "fixed": fixed,
            "score": pa.array(rng.random(NUM_ROWS), mask=nulls),
            "text": pa.array([f"Zeile {row} ¶ " * (row % 40) for row in range(NUM_ROWS)], mask=nulls),
        }
    )


def write(path: Path, table: pa.Table, **settings: object) -> None:
    pq.write_table(table, path, row_group_size=NUM_ROWS, **settings)


WAYS = list(itertools.product(["1.0", "2.0"], [True, False], [True, False], ["none", "zstd", "lz4"]))
"""Version of pages, whether they have an index, whether there is a dictionary, and the codec."""


@pytest.mark.parametrize("share_of_nulls", [0.0, 0.3])
@pytest.mark.parametrize(("page_version", "index", "use_dictionary", "codec"), WAYS)
def test_rows_of_many_pages_are_what_pyarrow_reads(
    tmp_path, page_version, index, use_dictionary, codec, share_of_nulls
):
    table = columns(share_of_nulls)
    path = tmp_path / "a.parquet"
    write(
        path,
        table,
        data_page_version=page_version,
        write_page_index=index,
        use_dictionary=use_dictionary,
        compression=codec,
        # Pages of fewer values than rows have, and a dictionary that ends midway.
        data_page_size=600,
        write_batch_size=100,
        dictionary_pagesize_limit=4000,
        write_page_checksum=page_version == "1.0",
    )
    ds = fb.load_dataset(path, split="train")
    assert pa.table(ds).equals(table)
    few = pa.table(ds.filter("id % 7 = 3 OR id BETWEEN 100 AND 180"))
    kept = [row for row in range(NUM_ROWS) if row % 7 == 3 or 100 <= row <= 180]
    assert few.equals(table.take(kept))
    shuffled = pa.concat_tables(pa.table(batch) for batch in ds.shuffle(1).batches(64))
    assert shuffled.sort_by("id").equals(table)


def test_every_way_to_read_gives_the_same(tmp_path):
    table = columns(0.2)
    path = tmp_path / "a.parquet"
    write(path, table, data_page_size=2000, compression="snappy")
    read = pq.read_table(path)
    check_reads(path, read, read.schema)


def test_a_damaged_page_is_an_error_that_names_the_column(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, columns(0.0).select(["id", "tokens"]), compression="zstd")
    chunk = pq.read_metadata(path).row_group(0).column(1)
    body = bytearray(path.read_bytes())
    start = chunk.data_page_offset + 60
    body[start : start + 8] = bytes(8)
    path.write_bytes(body)
    with pytest.raises(fb.DataError, match="column `tokens` in row group 0 of"):
        list(fb.load_dataset(path, split="train").batches(64))


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("settings", [{"compression": "zstd"}, {"compression": "none", "use_dictionary": False}])
@pytest.mark.parametrize("odd_row", [None, 3, 700, 999])
def test_shuffled_lists_are_those_that_were_written_though_one_is_shorter(tmp_path, has_index, settings, odd_row):
    # Lists that are all as long are put in their order as they are decoded; the shorter one shows that they are not.
    rng = np.random.default_rng(1)
    lists = [rng.integers(0, 50_000, 77 if row == odd_row else 200, dtype=np.int32) for row in range(1000)]
    table = pa.table({"id": np.arange(1000), "tokens": pa.array(lists, pa.list_(pa.int32()))})
    small_pages = {"data_page_size": 1 << 14, "write_batch_size": 10, "write_page_index": has_index}
    pq.write_table(table, tmp_path / "x.parquet", **small_pages, **settings)
    shuffled = fb.load_dataset(tmp_path / "x.parquet", split="train").shuffle(3)
    read = pa.Table.from_batches([pa.record_batch(batch) for batch in shuffled.batches(64)])
    assert read["id"].to_pylist() != table["id"].to_pylist()
    assert read.sort_by("id").to_pydict() == table.to_pydict()


READS = {
    "all": lambda ds: list(ds.batches(64)),
    "shuffled": lambda ds: list(ds.shuffle(1).batches(64)),
    "the first": lambda ds: list(ds.filter("id < 500").batches(64)),
    "the last": lambda ds: list(ds.filter("id >= 990").batches(64)),
    "some": lambda ds: list(ds.filter("id % 100 = 99").batches(64)),
    "one": lambda ds: ds.gather([1]),
    "another": lambda ds: ds.gather([999]),
}


def write_lists(path: Path, length: int, **settings: object) -> bytearray:
    items = np.random.default_rng(0).integers(0, 50_000, 1000 * length, dtype=np.int32)
    tokens = pa.ListArray.from_arrays(pa.array(np.arange(1001, dtype=np.int32) * length), pa.array(items))
    pq.write_table(pa.table({"id": np.arange(1000), "tokens": tokens}), path, compression="none", **settings)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_dictionary": False}, {"use_dictionary": False, "column_encoding": {"tokens": "DELTA_BINARY_PACKED"}}],
    ids=["dictionary", "plain", "delta"],
)
@pytest.mark.parametrize("read", READS)
def test_levels_that_end_early_are_an_error_whichever_rows_are_read(tmp_path, settings, read):
    path = tmp_path / "x.parquet"
    body = write_lists(path, 512, **settings)
    # The levels of a row: eight packed ones, and a run of 504, which becomes one of 248.
    levels = b"\x03\xfe\xf0\x07\x01"
    start = body.index(2 * levels, pq.read_metadata(path).row_group(0).column(1).data_page_offset)
    body[start + 3] ^= 4
    path.write_bytes(body)
    with pytest.raises(fb.DataError, match="column `tokens` in row group 0 of"):
        READS[read](fb.load_dataset(path, split="train"))


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("length", [2, 512])
@pytest.mark.parametrize("read", ["all", "shuffled", "the last", "another"])
def test_a_list_that_became_two_is_never_another_row(tmp_path, length, index, read):
    path = tmp_path / "x.parquet"
    page_rows = {2: 100, 512: 4}[length]
    settings = {"write_page_index": index, "data_page_size": 1, "write_batch_size": page_rows * length}
    body = write_lists(path, length, use_dictionary=False, **settings)
    written = pq.read_table(path)
    # Levels of the first page, eight of them packed into a byte: of one more it is said that a row begins.
    levels = {2: b"\xaa\xaa\xaa\xaa\xaa", 512: b"\x03\xfe\xf0\x07\x01"}[length]
    start = body.index(levels, pq.read_metadata(path).row_group(0).column(1).data_page_offset)
    body[start + (length == 512)] ^= 2
    path.write_bytes(body)
    ds = fb.load_dataset(path, split="train")
    if not index or read in ("all", "shuffled"):
        with pytest.raises(fb.DataError, match="column `tokens` in row group 0 of"):
            READS[read](ds)
        return
    batches = READS[read](ds)
    for batch in batches if isinstance(batches, list) else [batches]:
        found = pa.table(batch)
        assert found.equals(written.take(found["id"]))


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize(
    ("version", "place", "bit"),
    [("1.0", 18, 5), ("2.0", 18, 5), ("2.0", 29, 1)],
    ids=["fewer values", "fewer values of version 2", "longer levels"],
)
@pytest.mark.parametrize("read", READS)
def test_a_header_that_counts_otherwise_is_never_another_row(tmp_path, version, place, bit, index, read):
    path = tmp_path / "x.parquet"
    settings = {"data_page_version": version, "write_page_checksum": True, "write_page_index": index}
    body = write_lists(path, 63, use_dictionary=False, **settings)
    written = pq.read_table(path)
    body[pq.read_metadata(path).row_group(0).column(1).data_page_offset + place] ^= 1 << bit
    path.write_bytes(body)
    try:
        batches = READS[read](fb.load_dataset(path, split="train"))
    except fb.DataError:
        return
    for batch in batches if isinstance(batches, list) else [batches]:
        found = pa.table(batch)
        assert found.equals(written.take(found["id"]))


OF_ONE_VALUE = {"data_page_size": 1, "write_batch_size": 1}
V1, V2 = {"data_page_version": "1.0"}, {"data_page_version": "2.0"}
TEXTS = ["s3", "s7", None, "s1000"]
FEW = pa.array([4, None, 4, 4], pa.int16())
RAGGED = pa.array([[1], None, [2, None, 3], [], [4, 5]], pa.list_(pa.int32()))
PAIRS = pa.array([[("a", 1)], [("b", None), ("c", 3)], []], pa.map_(pa.string(), pa.int32()))
FLOATS = pa.array([1.5, -2.0, 1e9, 0.25])
IN_STRUCTS = pa.array([{"x": 1}, None, {"x": None}, {"x": 4}])
# Columns, and how they are written: plain where nothing else is said.
SMALL_FILES = {
    "texts by prefixes": (pa.array(TEXTS), {"column_encoding": "DELTA_BYTE_ARRAY"} | OF_ONE_VALUE | V1),
    "texts after lengths": (pa.array(TEXTS), {"column_encoding": "DELTA_LENGTH_BYTE_ARRAY"} | V2),
    "texts of a dictionary": (pa.array(TEXTS), {"use_dictionary": True} | V2),
    "texts": (pa.array(TEXTS), {"compression": "none"} | V1),
    "bytes of a dictionary": (
        pa.array([b"abc", b"def", None] * 2, pa.binary(3)),
        {"use_dictionary": True, "compression": "snappy"} | OF_ONE_VALUE | V1,
    ),
    "bytes of one dictionary": (pa.array([b"abc"] * 3, pa.binary(3)), {"use_dictionary": True} | V1),
    "pairs": (PAIRS, V2),
    "pairs, plain": (PAIRS, {"compression": "none"} | V2),
    "numbers": (FEW, {"compression": "lz4"} | OF_ONE_VALUE | V2),
    "numbers, all together": (FEW, {"compression": "none"} | V2),
    "numbers by differences": (FEW, {"column_encoding": "DELTA_BINARY_PACKED"} | V2),
    "floats by bytes": (FLOATS, {"column_encoding": "BYTE_STREAM_SPLIT"} | OF_ONE_VALUE | V2),
    "floats by bytes, together": (FLOATS, {"column_encoding": "BYTE_STREAM_SPLIT", "compression": "gzip"} | V1),
    "lists": (RAGGED, V2),
    "lists of a dictionary": (RAGGED, {"use_dictionary": True, "compression": "snappy"} | V2),
    "lists, version 1": (RAGGED, {"compression": "none"} | V1),
    "lists of lists": (pa.array([[[1], []], None, [[2, 3], None]]), {"compression": "brotli"} | V2),
    "numbers in structs": (IN_STRUCTS, {"compression": "none"} | V2),
    "one number in structs": (IN_STRUCTS, OF_ONE_VALUE | V2),
    "truths": (pa.array([True, None, False]), {"column_encoding": "RLE"} | V2),
    "decimals": (pa.array([1, None, -7], pa.decimal128(20)), V2),
}


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_flipped_bit_of_a_header_is_never_another_row(tmp_path, name):
    values, settings = SMALL_FILES[name]
    settings = {"compression": "zstd", "use_dictionary": False, "store_schema": False} | settings
    encoding = settings.pop("column_encoding", None)
    if encoding:
        settings["column_encoding"] = {"c": encoding}
    body = hostile.parquet(pa.table({"c": values}), write_page_checksum=True, write_statistics=False, **settings)
    path = tmp_path / "a.parquet"
    path.write_bytes(body)
    [written] = fb.load_dataset(path, split="train").batches(64)
    assert pa.table(written)["c"].to_pylist() == values.to_pylist()
    for place, bit in itertools.product(itertools.chain(*hostile.page_headers(body, 3)), range(8)):
        flipped = bytearray(body)
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            [read] = fb.load_dataset(path, split="train").batches(64)
        except fb.DataError:
            continue
        assert pa.table(read).equals(pa.table(written)), (place, bit)


PAGE_HEADERS = {"1.0": hostile.PAGE_DATA, "2.0": 8}
VALUES, ROWS, DEFINITION_BYTES, REPETITION_BYTES = 1, 3, 5, 6
"""What a data page claims, the last three in version 2."""

NUMBERS = pa.array(range(1000))
REQUIRED = [pa.field("id", pa.int64(), nullable=False), pa.field("c", pa.int64(), nullable=False)]
STRUCTS = pa.array([{"a": row % 50} for row in range(1000)])
LISTS = pa.array([[{"a": row % 50, "b": row}] for row in range(1000)])
MAPS = pa.array([[("k", row % 50)] for row in range(1000)], pa.map_(pa.string(), pa.int32()))


def write_pages(values: pa.Array, version: str, *, is_required: bool = False, **settings: object) -> bytes:
    """Writes columns `id` and `c`, in pages of 50 rows."""
    table = pa.table([NUMBERS, values], pa.schema(REQUIRED) if is_required else ["id", "c"])
    settings = {"compression": "none", "use_dictionary": False, "write_page_checksum": True} | settings
    small_pages = {"data_page_version": version, "data_page_size": 1, "write_batch_size": 50}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **small_pages, **settings)
    return sink.getvalue().to_pybytes()


def claiming(body: bytes, version: str, field: int, change: int) -> bytes:
    """Adds to what the first page of the last column claims."""

    def change_page(header: hostile.Struct) -> None:
        header[PAGE_HEADERS[version]][field] += change

    return hostile.with_page(body, change_page)


SELECTIONS = {
    "late": lambda ds: list(ds.filter("id < 3 OR id >= 500").batches(64)),
    "sparse": lambda ds: list(ds.filter("id % 200 = 40").batches(64)),
    "taken": lambda ds: ds.gather([999, 0, 500]),
}
REFUSED = "column `c` in row group 0 of"


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "brotli"])
@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize(
    ("version", "field", "change"),
    [("1.0", VALUES, 2), ("2.0", VALUES, 2), ("2.0", ROWS, 4), ("2.0", ROWS, -4)],
    ids=["values", "values of version 2", "more rows", "fewer rows"],
)
@pytest.mark.parametrize("read", SELECTIONS)
def test_a_page_of_other_rows_than_it_claims_is_refused(tmp_path, version, field, change, index, codec, read):
    path = tmp_path / "x.parquet"
    body = write_pages(NUMBERS, version, is_required=True, compression=codec, write_page_index=index)
    path.write_bytes(claiming(body, version, field, change))
    with pytest.raises(fb.DataError, match=REFUSED):
        SELECTIONS[read](fb.load_dataset(path, split="train"))


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize(("version", "field"), [("1.0", VALUES), ("2.0", VALUES), ("2.0", ROWS)])
@pytest.mark.parametrize("values", [LISTS, STRUCTS, MAPS], ids=["lists", "structs", "maps"])
@pytest.mark.parametrize("read", SELECTIONS)
def test_a_nested_page_of_other_rows_than_it_claims_is_refused(tmp_path, read, values, version, field, index):
    path = tmp_path / "x.parquet"
    path.write_bytes(claiming(write_pages(values, version, write_page_index=index), version, field, -4))
    with pytest.raises(fb.DataError, match=REFUSED):
        SELECTIONS[read](fb.load_dataset(path, split="train"))


LISTS_OF_ONE_LEAF = {
    "numbers": pa.array([[row, -row] for row in range(1000)], pa.list_(pa.int32())),
    "structs": pa.array([[{"a": row}, {"a": None}] for row in range(1000)]),
    "lists": pa.array([[[row], [], [1, None]] for row in range(1000)]),
}


@pytest.mark.parametrize("lists", LISTS_OF_ONE_LEAF.values(), ids=LISTS_OF_ONE_LEAF)
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("change", [50, -4])
@pytest.mark.parametrize("read", [*SELECTIONS, "all"])
def test_lists_are_read_though_their_pages_claim_other_rows(tmp_path, read, change, codec, lists):
    # Before version 12, pyarrow claimed as many rows as values.
    path = tmp_path / "x.parquet"
    path.write_bytes(claiming(write_pages(lists, "2.0", compression=codec), "2.0", ROWS, change))
    batches = (SELECTIONS | READS)[read](fb.load_dataset(path, split="train"))
    for batch in map(pa.table, batches if isinstance(batches, list) else [batches]):
        assert batch["c"].to_pylist() == lists.take(batch["id"].combine_chunks()).to_pylist()


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("field", [DEFINITION_BYTES, REPETITION_BYTES])
@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize("encoding", ["BYTE_STREAM_SPLIT", "PLAIN", "DELTA_BINARY_PACKED"])
def test_levels_that_a_column_has_not_are_refused(tmp_path, encoding, is_required, field, codec):
    path = tmp_path / "x.parquet"
    ways = {"compression": codec, "column_encoding": {"c": encoding, "id": "PLAIN"}}
    body = write_pages(NUMBERS, "2.0", is_required=is_required, **ways)
    path.write_bytes(claiming(body, "2.0", field, 2))
    with pytest.raises(fb.DataError, match=REFUSED):
        list(fb.load_dataset(path, split="train").batches(64))


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_values_split_by_bytes_are_those_that_were_written(tmp_path, version, codec):
    values = pa.array([None if row % 7 == 0 or 300 <= row < 400 else row for row in range(1000)])
    ways = {"compression": codec, "column_encoding": {"c": "BYTE_STREAM_SPLIT", "id": "PLAIN"}}
    (tmp_path / "x.parquet").write_bytes(write_pages(values, version, **ways))
    found = pa.table(fb.load_dataset(tmp_path / "x.parquet", split="train"))
    assert found["c"].combine_chunks().equals(values)


@pytest.mark.parametrize("read", ["all", "some", "the first"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(
    ("values", "column"),
    [
        (STRUCTS, 1),
        (LISTS, 1),
        (pa.array([[True]] * 1000, pa.list_(pa.bool_())), 1),
        (MAPS, 1),
        (MAPS, 2),
        (pa.array([row % 3 == 0 for row in range(1000)]), 1),
        (NUMBERS.cast(pa.decimal128(22, 2)), 1),
    ],
    ids=["structs", "lists of structs", "lists", "keys", "values", "Booleans", "decimals"],
)
def test_levels_higher_than_their_column_are_refused(tmp_path, values, column, version, read):
    path = tmp_path / "x.parquet"
    body = bytearray(write_pages(values, version, write_page_checksum=False, write_page_index=True))
    with pq.ParquetFile(pa.BufferReader(bytes(body))) as file:
        highest = file.schema.column(column).max_definition_level
        chunk = file.metadata.row_group(0).column(column)
    # Of nearly all pages: those that have one run of 50 levels.
    start = chunk.data_page_offset
    end = start + chunk.total_compressed_size
    run, higher = (bytes([50 << 1, level]) for level in (highest, highest ^ 8))
    assert body.count(run, start, end) >= 18
    body[start:end] = body[start:end].replace(run, higher)
    path.write_bytes(body)
    with pytest.raises(fb.DataError, match=f"{REFUSED}.*a level is higher than its column's"):
        READS[read](fb.load_dataset(path, split="train"))


COUNTED = pa.table({"id": range(100), "n": range(100, 200), "x": [row / 4 for row in range(100)]})


def exchange(footer: hostile.Struct, other: int) -> None:
    """The second row group has the chunks of two columns in each other's place."""
    chunks = footer[hostile.ROW_GROUPS][1][hostile.COLUMNS]
    chunks[0], chunks[other] = chunks[other], chunks[0]


def of_first_chunk(field: int, value: int) -> Callable[[hostile.Struct], None]:
    """A field of the first chunk of the second row group."""

    def change(footer: hostile.Struct) -> None:
        footer[hostile.ROW_GROUPS][1][hostile.COLUMNS][0][hostile.METADATA][field] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda footer: exchange(footer, 1), "the chunk of column `id` of row group 1 is that of `n`"),
        (lambda footer: exchange(footer, 2), "the chunk of column `id` of row group 1 is of DOUBLE instead of INT64"),
        (of_first_chunk(hostile.PHYSICAL_TYPE, 5), "the chunk of column `id` of row group 1 is of DOUBLE"),
        (of_first_chunk(hostile.NUM_VALUES, 2**32), "column `id` of row group 1 claims 4294967296 values for 50 rows"),
        (of_first_chunk(hostile.DATA_OFFSET, 2**31), "column `id` of row group 1 claims bytes outside of the object"),
    ],
    ids=["another column", "a column of another type", "another type", "more values than rows", "outside"],
)
@pytest.mark.parametrize("index", [True, False])
def test_a_chunk_that_is_not_its_columns_is_refused(tmp_path, change, says, index):
    body = hostile.parquet(COUNTED, row_group_size=50, write_page_index=index)
    (tmp_path / "a.parquet").write_bytes(hostile.with_footer(body, change))
    with pytest.raises(fb.DataError, match=re.escape(says)):
        fb.load_dataset(tmp_path, split="train")


def test_a_chunk_whose_path_is_no_columns_is_that_of_its_place(tmp_path):
    """Some writers have other names in paths than in the schema, and readers go by places."""

    def change(footer: hostile.Struct) -> None:
        for group in footer[hostile.ROW_GROUPS]:
            group[hostile.COLUMNS][1][hostile.METADATA][hostile.PATH][:] = [b"list", b"array"]

    body = hostile.with_footer(hostile.parquet(COUNTED, row_group_size=50), change)
    (tmp_path / "a.parquet").write_bytes(body)
    assert pa.table(fb.load_dataset(tmp_path, split="train")).equals(COUNTED)
