"""Files of every writer, codec and encoding: the batches hold what pyarrow reads, or the file is refused by name."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import arro3.io
import arrow_types
import datafusion
import datasets
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion.dataframe import ParquetWriterOptions
from equality import as_forebay_has_them, check_equal, check_reads, table_of

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
LEVELS = {"gzip": 1, "brotli": 1}  # quick ones
ROW_GROUP_ROWS = 50

# Encoding, and the types that it is for.
INTEGERS = ("int8", "int32", "int64", "uint16", "uint64", "date32[day]", "timestamp[us]", "time32[ms]")
FLOATS = ("float", "double")
FIXED = ("halffloat", "decimal128(15, 2)", "fixed_size_binary[5]", "uuid", "decimal256(76, 20)")
STRINGS = ("string", "large_string", "binary", "json")
ENCODINGS = {
    "PLAIN": (*INTEGERS, *FLOATS, *FIXED, *STRINGS, "bool"),
    "RLE": ("bool",),
    "DELTA_BINARY_PACKED": INTEGERS,
    "DELTA_LENGTH_BYTE_ARRAY": STRINGS,
    "DELTA_BYTE_ARRAY": (*STRINGS, *FIXED),
    "BYTE_STREAM_SPLIT": (*INTEGERS, *FLOATS, *FIXED),
    "dictionary": (*INTEGERS, *FLOATS, *FIXED, *STRINGS, "bool"),
    "dictionary, then PLAIN": (*INTEGERS, *FLOATS, *FIXED, *STRINGS, "bool"),
}


def encoded_table(leaves: tuple[str, ...]) -> pa.Table:
    """Columns of the types alone and in lists, with and without nulls."""
    kinds = {leaf: arrow_types.LEAVES[leaf] for leaf in leaves}
    kinds |= {f"list of {name}": pa.list_(kind) for name, kind in kinds.items()}
    required, optional = table_of(kinds, 0.0), table_of(kinds, 0.2)
    for name in kinds:
        optional = optional.append_column(f"{name} without nulls", required[name])
    return optional


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_what_pyarrow_reads_whatever_the_codec(tmp_path, encoding, page_version):
    table = encoded_table(ENCODINGS[encoding])
    leaves = [".list.element" if "list of" in name else "" for name in table.column_names]
    paths = [name + leaf for name, leaf in zip(table.column_names, leaves, strict=True) if name != "id"]
    options: dict[str, object]
    if encoding.startswith("dictionary"):
        options = {"use_dictionary": True, "dictionary_pagesize_limit": 1 << 20 if encoding == "dictionary" else 16}
    else:
        options = {"use_dictionary": False, "column_encoding": dict.fromkeys(paths, encoding)}
    for turn, codec in enumerate(CODECS):
        path = tmp_path / f"{codec}.parquet"
        pq.write_table(
            table,
            path,
            compression=codec,
            compression_level=LEVELS.get(codec),
            row_group_size=ROW_GROUP_ROWS,
            data_page_size=64,
            write_batch_size=8,
            data_page_version=page_version,
            write_page_index=turn % 2 == 0,
            write_page_checksum=turn % 3 == 0,
            **options,
        )
        used = set(pq.read_metadata(path).row_group(0).column(1).encodings)
        assert encoding in used or {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & used
        whole = pa.table(fb.load_dataset(path, split="train"))
        check_equal(whole, pq.read_table(path))
    check_reads(path, whole, as_forebay_has_them(pq.read_schema(path), table.schema))


# What the writer refuses, not the reader.
POLARS_REFUSES = re.compile(r"decimal(32|64|256)|list_view|json|null|bool8|opaque|uuid|fixed_shape_tensor")
DUCKDB_REFUSES = re.compile(r"halffloat|duration|decimal256|map|list_view|fixed_shape_tensor|opaque|null")
PARQUET_RS_REFUSES = re.compile(r"dictionary<int32, (fixed|timestamp|date32|decimal)")
DATAFUSION_REFUSES = re.compile(
    r"dictionary<(int32, (fixed|timestamp|date32|decimal|double)|u?int(8|16), int)|list_view"
)

# Parquet has no type for them: pyarrow reads the integers, and Forebay what was written.
NOT_IN_PARQUET = re.compile(r"date64|time32\[s\]|timestamp\[s\]|duration")


def without(refused: re.Pattern[str], *containers: str) -> pa.Table:
    kinds = arrow_types.nested(*([name] for name in containers))
    return table_of({name: kind for name, kind in kinds.items() if not refused.search(name)}, 0.2)


def check_index(path: Path, *, columns: bool, offsets: bool) -> None:
    """Checks which parts of the page index the columns of a file have."""
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        chunks = [metadata.row_group(number).column(leaf) for leaf in range(metadata.num_columns)]
        assert {chunk.has_offset_index for chunk in chunks} == {offsets}
        # Some columns have no bounds.
        assert any(chunk.has_column_index for chunk in chunks) == columns


def check_file(path: Path, written: pa.Schema | None = None) -> None:
    """Checks a file of a writer whose types may be its own. All of the file's metadata is that of the schema."""
    read = pq.read_table(path)
    schema = as_forebay_has_them(read.schema, written or read.schema)
    metadata = pq.read_metadata(path).metadata or {}
    metadata.pop(b"ARROW:schema", None)
    check_reads(path, read, schema.with_metadata(metadata or None))


POLARS = list(itertools.product(["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"], [False], [True, False]))
POLARS += [("zstd", True, True), ("zstd", True, False)]


@pytest.mark.parametrize(("codec", "use_pyarrow", "has_index"), POLARS)
def test_files_of_polars(tmp_path, codec, use_pyarrow, has_index):
    path = tmp_path / "a.parquet"
    frame = pl.from_arrow(without(POLARS_REFUSES))
    for container in ("list", "struct") if codec == "zstd" else ():
        nested = pl.from_arrow(without(POLARS_REFUSES, container).drop(["id"]))
        frame = frame.hstack(nested.get_columns())
    frame.write_parquet(
        path,
        compression=codec,
        compression_level=LEVELS.get(codec),
        # Polars alone has offsets in every file, and the rest of the index with statistics.
        statistics="full" if has_index and not use_pyarrow else has_index,
        row_group_size=ROW_GROUP_ROWS,
        data_page_size=256,
        use_pyarrow=use_pyarrow,
        pyarrow_options={"write_page_index": has_index} if use_pyarrow else None,
    )
    check_index(path, columns=has_index, offsets=has_index or not use_pyarrow)
    check_file(path, large_dictionaries(pq.read_schema(path)))


def large_dictionaries(schema: pa.Schema) -> pa.Schema:
    """What Polars writes of categories: pyarrow reads `string` for the `large_string` of dictionaries."""

    def large(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return pa.dictionary(kind.index_type, pa.large_string(), kind.ordered)
        if pa.types.is_large_list(kind):
            return pa.large_list(kind.value_field.with_type(large(kind.value_type)))
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(large(field.type)) for field in kind])
        return kind

    return pa.schema([field.with_type(large(field.type)) for field in schema], schema.metadata)


DUCKDB_VERSIONS = {
    "V1": ("ROW_GROUP_SIZE 2048", DUCKDB_REFUSES),
    # It writes deltas of 33 bits, which pyarrow does not read.
    "V2": ("DICTIONARY_SIZE_LIMIT 3", re.compile(rf"{DUCKDB_REFUSES.pattern}|\bu?int32$|int32>")),
}


def duckdb_writes(table: pa.Table, path: Path, options: str) -> None:
    with duckdb.connect() as connection:
        connection.register("written", table)
        connection.sql(f"COPY (FROM written) TO '{path}' (FORMAT parquet, {options})")


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "brotli", "lz4_raw", "zstd"])
@pytest.mark.parametrize("version", DUCKDB_VERSIONS)
def test_files_of_duckdb(tmp_path, version, codec):
    more, refused = DUCKDB_VERSIONS[version]
    path = tmp_path / "a.parquet"
    table = without(refused)
    for container in ("list", "struct") if codec == "zstd" else ():
        other = without(refused, container)
        for name in other.column_names[1:]:
            table = table.append_column(name, other[name])
    duckdb_writes(table, path, f"PARQUET_VERSION '{version}', COMPRESSION {codec}, {more}")
    check_index(path, columns=False, offsets=False)  # it writes none
    check_file(path)


def test_arrays_of_duckdb_hold_what_was_written(tmp_path):
    # Pyarrow does not read them where they are null: "Length spanned by list offsets".
    # It forgets the zone of an instant, and mistakes dictionaries in arrays.
    changed = re.compile(rf"{DUCKDB_REFUSES.pattern}|timestamp\[.*,|dictionary")
    table = without(changed, "fixed_size_list")
    duckdb_writes(table, tmp_path / "a.parquet", "COMPRESSION zstd")
    check_equal(pa.table(fb.load_dataset(tmp_path / "a.parquet", split="train")), table)


@pytest.mark.parametrize("has_nulls", [False, True])
def test_deltas_of_33_bits_are_those_that_were_written(tmp_path, has_nulls):
    signed = [0, 2**31 - 1, -(2**31), 2**31 - 1, -5, None if has_nulls else 7, 1] * 1000 + [9] * 3000
    unsigned = [value if value is None else value % 2**32 for value in signed]
    table = pa.table(
        {
            "signed": pa.array(signed, pa.int32()),
            "unsigned": pa.array(unsigned, pa.uint32()),
            "list": pa.array([[value, 2**31 - 1] for value in signed], pa.list_(pa.int32())),
            "struct": pa.array([{"x": value} for value in signed], pa.struct([("x", pa.int32())])),
        }
    )
    duckdb_writes(table, tmp_path / "a.parquet", "PARQUET_VERSION 'V2', DICTIONARY_SIZE_LIMIT 1, ROW_GROUP_SIZE 2048")
    ds = fb.load_dataset(tmp_path / "a.parquet", split="train")
    check_equal(pa.table(ds), table)
    for condition, is_kept in (
        ("signed >= 2147483647", [value == 2**31 - 1 for value in signed]),
        ("signed < -5", [value == -(2**31) for value in signed]),
        ("unsigned > 4000000000", [value == -5 for value in signed]),
        ("signed = 9", [value == 9 for value in signed]),
    ):
        check_equal(pa.table(ds.filter(condition)), table.filter(pa.array(is_kept)))


def test_intervals_with_months_are_refused_and_the_other_columns_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    duckdb.sql(f"COPY (SELECT 7 AS id, INTERVAL 14 MONTH AS i, [INTERVAL 1 DAY] AS list) TO '{path}' (FORMAT parquet)")
    ds = fb.load_dataset(path, split="train")
    assert pa.table(ds.select_columns("id"))["id"].to_pylist() == [7]
    for name in ("i", "list"):
        says = rf"cannot decode column `{name}` in row group 0 of `.*a\.parquet`: an INTERVAL .* by `select_columns`$"
        with pytest.raises(fb.DataError, match=says):
            list(ds.select_columns(name))


def test_row_groups_and_types_of_duckdb(tmp_path):
    path = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        connection.sql(
            f"""
            COPY (
                SELECT id, id % 7 = 0 AS flag, (id * id)::HUGEINT AS huge, id::UTINYINT AS tiny, uuid() AS uuid,
                    DATE '2020-01-01' + id::INTEGER AS day, TIMESTAMP '1999-12-31 23:59:59' + INTERVAL (id) HOUR AS at,
                    (TIMESTAMP '1999-12-31' + INTERVAL (id) SECOND)::TIMESTAMPTZ AS zoned, TIME '12:00:00' AS noon,
                    (id / 7)::DECIMAL(18, 4) AS price, ('x' || id)::BLOB AS blob, '{{"a": ' || id || '}}' AS text,
                    ('{{"a": ' || id || '}}')::JSON AS json, if(id % 3 = 0, 'a', 'b')::kind AS kind,
                    MAP {{'k' || id: [id, NULL]}} AS map, [{{'a': id, 'b': [NULL, 'é']}}] AS list,
                    NULL::INTEGER AS nothing
                FROM range(250) AS numbers(id)
            ) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)
            """.replace("COPY", "CREATE TYPE kind AS ENUM ('a', 'b', 'c'); COPY", 1)
        )
    check_file(path)


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip(6)", "brotli(3)", "lz4_raw", "zstd(3)"])
@pytest.mark.parametrize("version", ["parquet_1_0", "parquet_2_0"])
def test_files_of_parquet_rs(tmp_path, version, codec):
    path = tmp_path / "a.parquet"
    table = without(PARQUET_RS_REFUSES)
    for container in ("list", "struct", "map", "fixed_size_list") if codec in ("snappy", "zstd(3)") else ():
        other = without(PARQUET_RS_REFUSES, container)
        for name in other.column_names[1:]:
            table = table.append_column(name, other[name])
    arro3.io.write_parquet(
        table,
        path,
        compression=codec,
        writer_version=version,
        max_row_group_size=ROW_GROUP_ROWS,
        data_page_size_limit=128,
        write_batch_size=16,
        dictionary_enabled=codec != "snappy",
    )
    check_index(path, columns=True, offsets=True)  # as this binding always has it; see the tests in Rust
    ds = fb.load_dataset(path, split="train")
    check_equal(pa.table(ds), table)
    # Pyarrow decodes no DELTA_BYTE_ARRAY into a dictionary.
    unread = re.compile(f"{NOT_IN_PARQUET.pattern}|dictionary") if codec == "snappy" else NOT_IN_PARQUET
    comparable = [name for name in table.column_names if not unread.search(name)]
    check_equal(pa.table(ds.select_columns(comparable)), pq.read_table(path, columns=comparable))


@pytest.mark.parametrize("statistics", ["page", "chunk", "none"])
def test_files_of_datafusion(tmp_path, statistics):
    path, table = tmp_path / "a.parquet", without(DATAFUSION_REFUSES)
    options = ParquetWriterOptions(statistics_enabled=statistics, data_page_row_count_limit=16, write_batch_size=16)
    datafusion.SessionContext().from_arrow(table).write_parquet_with_options(path, options)
    check_index(path, columns=statistics == "page", offsets=True)
    check_equal(pa.table(fb.load_dataset(path, split="train")), table)


@pytest.mark.parametrize("has_index", [True, False])
def test_files_of_datasets(tmp_path, has_index):
    path = tmp_path / "a.parquet"
    rows = [{"id": i, "text": f"row {i}", "label": i % 3, "tokens": list(range(i % 5))} for i in range(160)]
    features = datasets.Features(
        id=datasets.Value("int64"),
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["a", "b", "c"]),
        tokens=datasets.List(datasets.Value("int32")),
    )
    datasets.Dataset.from_list(rows, features=features).to_parquet(path, batch_size=50, write_page_index=has_index)
    check_index(path, columns=has_index, offsets=has_index)
    check_file(path)
    assert pa.table(fb.load_dataset(path, split="train")).to_pylist() == rows


def test_an_index_that_cannot_be_parsed_is_none(tmp_path):
    table = table_of(arrow_types.nested(), 0.2)
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, write_page_index=True, data_page_size=64, row_group_size=ROW_GROUP_ROWS)
    pq.write_table(table, tmp_path / "sound.parquet", data_page_size=64, row_group_size=ROW_GROUP_ROWS)
    expected = pa.table(fb.load_dataset(tmp_path / "sound.parquet", split="train"))
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    # The index lies right before the footer.
    content[-footer - 400 : -footer] = b"\xff" * 400
    path.write_bytes(content)
    check_equal(pa.table(fb.load_dataset(path, split="train")), expected)
