"""Fields of structs: only theirs are read, their statistics decide, and their values are those of other engines."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 6_000
ROW_GROUP_ROWS = 500
LARGE = 1_000
"""Bytes of the field that nobody asks for."""


def rows_of(rng: random.Random) -> list[dict[str, Any]]:
    """Rows of structs with NULLs at every depth; `line` ascends."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    return [
        {
            "id": number,
            "meta": maybe(
                {
                    "body": rng.randbytes(LARGE),
                    "line": maybe(number),
                    "name": maybe(f"n{rng.randrange(30)}"),
                    "tags": maybe([f"t{rng.randrange(5)}" for _ in range(rng.randrange(3))]),
                    "at": maybe({"x": maybe(rng.randrange(100)), "y": maybe(rng.random()), "flag": rng.random() < 0.5}),
                }
            ),
            "more": maybe({"score": maybe(rng.random() * 10)}),
        }
        for number in range(NUM_ROWS)
    ]


@pytest.fixture(scope="module", params=["index", "no index", "version 2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two objects; the second has the fields in another order, one of another type, and one more."""
    folder = tmp_path_factory.mktemp("structs")
    rows = rows_of(random.Random(3))
    half = NUM_ROWS // 2
    tables = [pa.Table.from_pylist(rows[:half]), pa.Table.from_pylist(rows[half:])]
    meta = {field.name: field for field in tables[1].schema.field("meta").type}
    meta["line"] = meta["line"].with_type(pa.int32())
    fields = [meta[name] for name in ("at", "line", "tags", "name", "body")]
    other = pa.struct([*fields, pa.field("extra", pa.int16())])
    added = [row["meta"] and row["meta"] | {"extra": row["id"] % 7} for row in rows[half:]]
    tables[1] = tables[1].set_column(1, "meta", pa.array(added, other))
    for number, table in enumerate(tables):
        pq.write_table(
            table,
            folder / f"{number}.parquet",
            row_group_size=ROW_GROUP_ROWS,
            compression="none",
            write_page_index=request.param == "index",
            max_rows_per_page=100,
            data_page_version="2.0" if request.param == "version 2" else "1.0",
        )
    return folder


@pytest.fixture
def ds(folder: Path) -> fb.Dataset:
    return fb.load_dataset(folder, split="train")


def of_duckdb(folder: Path, query: str) -> pa.Table:
    files = [str(path) for path in sorted(folder.iterdir())]
    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = true; SET threads = 1")
        connection.read_parquet(files, union_by_name=True).create_view("dataset")
        return connection.sql(query).to_arrow_table()


CONDITIONS = [
    "meta['line'] < 700",
    "meta['line'] BETWEEN 2900 AND 3100",
    "meta['line'] = 4242",
    "meta['line'] IS NULL",
    "meta['line'] IS NOT NULL",
    "NOT (meta['line'] > 50)",
    "meta['name'] = 'n7'",
    "meta['name'] IN ('n1', 'n2') AND meta['line'] > 5000",
    "meta['name'] LIKE 'n1%' OR meta['at']['x'] = 3",
    "meta['at']['x'] + meta['line'] > 5990",
    "meta['at']['flag']",
    "NOT meta['at']['flag']",
    "meta['at']['y'] > 0.99",
    "meta['at'] IS NULL AND meta['line'] < 100",
    "meta['at'] IS NOT NULL AND meta IS NOT NULL",
    "(meta IS NULL) = (id % 3 = 0)",
    "meta['extra'] = 3",
    "meta['extra'] IS NULL",
    "meta IS NULL",
    "meta IS NULL AND id < 900",
    "meta IS NOT NULL AND meta['line'] IS NULL",
    "more['score'] > 9.9 OR more IS NULL",
    "coalesce(meta['line'], -1) = -1",
    "length(meta['tags']) = 2 AND meta['tags'][1] = 't1'",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_keep_what_other_engines_keep(ds: fb.Dataset, folder: Path, condition: str) -> None:
    expected = of_duckdb(folder, f"SELECT id FROM dataset WHERE {condition}")["id"].to_pylist()
    assert ds.filter(condition).select_columns("id")[:]["id"] == expected
    assert pa.table(ds.sql(f"SELECT id FROM dataset WHERE {condition}"))["id"].to_pylist() == expected


COLUMNS = [
    "meta['line'] AS line",
    "meta['name'] AS name, id",
    "meta['tags'] AS tags",
    "meta['at']['x'] AS x, meta['at']['y'] AS y, more['score'] AS score",
    "meta['at'] AS at",
    "meta['at'] AS at, meta['at']['x'] AS x",
    "meta['line'] AS line, meta",
    "meta['line'] * 2 + coalesce(meta['at']['x'], 0) AS sum, meta['extra'] AS extra",
    "upper(meta['name']) AS upper, meta['line'] IS NULL AS missing",
    "meta['at']['flag'] AS flag, meta['body'] AS body",
]


@pytest.mark.parametrize("columns", COLUMNS)
def test_columns_are_those_of_other_engines(ds: fb.Dataset, folder: Path, columns: str) -> None:
    ours = pa.table(ds.sql(f"SELECT {columns} FROM dataset"))
    assert ours.to_pylist() == of_duckdb(folder, f"SELECT {columns} FROM dataset").to_pylist()
    some = ds.sql(f"SELECT {columns} FROM dataset WHERE meta['line'] % 11 = 3")
    wanted = of_duckdb(folder, f"SELECT {columns} FROM dataset WHERE meta['line'] % 11 = 3").to_pylist()
    assert pa.table(some).to_pylist() == wanted
    numbers = [5, 0, 17, 5]
    assert pa.table(some.gather(numbers)).to_pylist() == [wanted[number] for number in numbers]


def test_only_the_fields_that_are_needed_are_read(ds: fb.Dataset) -> None:
    whole = ds.explain()["payload_bytes"]
    assert whole > NUM_ROWS * LARGE * 0.8
    for condition in CONDITIONS:
        facts = ds.filter(condition).select_columns("id").explain()
        assert facts["selection_bytes"] < whole / 20, (condition, facts)
    for columns in COLUMNS[:4] + COLUMNS[7:9]:
        made = ds.sql(f"SELECT {columns} FROM dataset")
        assert made.explain()["payload_bytes"] < whole / 20, columns
        stream = made.batches(1000)
        assert sum(map(len, stream)) == NUM_ROWS
        assert stream.stats()["bytes_fetched"] < whole / 20, columns


def test_statistics_of_fields_decide(ds: fb.Dataset, folder: Path) -> None:
    facts = ds.filter("meta['line'] < 700").explain()
    assert facts["row_groups_pruned"] == NUM_ROWS // ROW_GROUP_ROWS - 2
    assert ds.filter("meta['line'] > 1000000").explain()["selection_bytes"] == 0
    # The first object does not have it.
    assert ds.filter("meta['extra'] >= 0").explain()["row_groups_pruned"] >= NUM_ROWS // ROW_GROUP_ROWS // 2
    has_index = pq.ParquetFile(next(folder.iterdir())).metadata.row_group(0).column(0).has_offset_index
    pages = ds.filter("meta['line'] BETWEEN 110 AND 120").explain()
    assert (pages["pages_pruned"] >= 3) == has_index, pages


def test_statistics_tell_whether_structs_are_null(tmp_path: Path) -> None:
    meta = [None if 1000 <= row < 1100 else {"body": bytes(100), "at": {"x": row}} for row in range(NUM_ROWS)]
    pq.write_table(pa.table({"meta": meta}), tmp_path / "a.parquet", row_group_size=ROW_GROUP_ROWS)
    ds = fb.load_dataset(tmp_path, split="train")
    for condition, num_rows in (("meta IS NULL", 100), ("meta IS NOT NULL", NUM_ROWS - 100)):
        kept = ds.filter(condition)
        assert len(kept) == num_rows
        assert kept.explain()["row_groups_read"] == 1


def test_objects_that_lack_a_struct_or_its_cheapest_field(tmp_path: Path) -> None:
    tables = [
        pa.table({"id": [0, 1, 2], "meta": [{"name": "a", "line": 1}, None, {"name": None, "line": None}]}),
        pa.table({"id": [3, 4, 5], "meta": [{"name": "b"}, {"name": None}, None]}),
        pa.table({"id": [6, 7]}),
        pa.table({"id": [8, 9], "meta": pa.nulls(2)}),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert ds.filter("meta IS NULL")[:]["id"] == [1, 5, 6, 7, 8, 9]
    assert ds.filter("meta IS NOT NULL")[:]["id"] == [0, 2, 3, 4]
    assert ds.filter("meta IS NOT NULL AND meta['line'] IS NULL")[:]["id"] == [2, 3, 4]
    assert ds.filter("meta['name'] IS NULL")[:]["id"] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert pa.table(ds.sql("SELECT meta['line'] AS line, meta IS NULL AS no FROM dataset")).to_pydict() == {
        "line": [1, *[None] * 9],
        "no": [False, True, False, False, False, True, True, True, True, True],
    }


def test_fields_without_names_are_read_with_their_struct(tmp_path: Path) -> None:
    inner = pa.struct([("path", pa.int64())])
    meta = pa.array(
        [{"": {"path": 1}, "path": 2}, None, {"": None, "path": 3}], pa.struct([("", inner), ("path", pa.int64())])
    )
    pq.write_table(pa.table({"meta": meta}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert ds.filter("meta IS NULL")[:]["meta"] == [None]
    assert ds.sql("SELECT meta['path'] AS x FROM dataset")[:]["x"] == [2, None, 3]
    assert ds[0]["meta"] == {"": {"path": 1}, "path": 2}


def test_bloom_filters_of_fields_decide(tmp_path: Path) -> None:
    rng = random.Random(4)
    keys = [f"{rng.getrandbits(128):032x}" for _ in range(NUM_ROWS)]
    table = pa.table({"meta": [{"key": key, "line": number} for number, key in enumerate(keys)]})
    options = {"meta.key": {"ndv": ROW_GROUP_ROWS, "fpp": 0.001}}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=ROW_GROUP_ROWS, bloom_filter_options=options)
    kept = fb.load_dataset(tmp_path, split="train").filter(f"meta['key'] = '{keys[4321]}'")
    assert kept[:]["meta"] == [{"key": keys[4321], "line": 4321}]
    facts = kept.explain()
    assert facts["row_groups_pruned_by_bloom"] >= NUM_ROWS // ROW_GROUP_ROWS - 2, facts


def test_nulls_that_a_writer_does_not_count_keep_no_row(tmp_path: Path) -> None:
    """Some writers do not count values of dictionaries below NULL structs."""
    names = pa.array(["a", "a", None, "a"] * 50).dictionary_encode()
    is_null = pa.array([False, True, False, False] * 50)
    meta = pa.StructArray.from_arrays([names, pa.array(range(200))], ["name", "line"], mask=is_null)
    pq.write_table(pa.table({"id": range(200), "meta": meta}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    kept = [row for row in range(200) if row % 4 in (0, 3)]
    assert ds.filter("meta['name'] = 'a'")[:]["id"] == kept
    assert ds.filter("meta['name'] IS NOT NULL")[:]["id"] == kept
    assert ds.filter("meta['name'] IS NULL")[:]["id"] == [row for row in range(200) if row % 4 in (1, 2)]
    assert ds.filter("meta['line'] >= 0")[:]["id"] == [row for row in range(200) if row % 4 != 1]
    batch = next(iter(ds.sql("SELECT meta['line'] AS line FROM dataset").to_torch(200)))
    assert batch["line"].mask.tolist() == [row % 4 != 1 for row in range(200)]


def test_fields_become_the_tensors_that_columns_become(tmp_path: Path) -> None:
    rows = [{"tokens": list(range(row, row + 8)), "name": f"n{row}"} for row in range(100)]
    table = pa.table({"meta": rows, "tokens": [row["tokens"] for row in rows]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    ds = fb.load_dataset(tmp_path, split="train")
    both = ds.sql("SELECT meta['tokens'] AS field, tokens FROM dataset WHERE meta['name'] <> 'n3'")
    for batch in both.shuffle(seed=1).to_torch(10):
        assert batch["field"].shape[1:] == (8,)
        assert batch["field"].equal(batch["tokens"])


QUERIES = [
    "SELECT count(*) AS n, max(meta['line']) AS most FROM dataset",
    "SELECT meta['name'] AS name, count(*) AS n, sum(meta['at']['x']) AS x FROM dataset GROUP BY 1 ORDER BY 1",
    "SELECT id, meta['at']['y'] AS y FROM dataset WHERE meta['line'] > 5000 ORDER BY 2 DESC NULLS LAST, id LIMIT 9",
    "SELECT a.id, b.meta['line'] AS line FROM dataset a JOIN dataset b ON a.id = b.meta['line'] WHERE a.id < 40 "
    "ORDER BY 1",
    "SELECT a.id, b.id AS other FROM dataset a JOIN dataset b ON b.id = a.meta['line'] + 1 WHERE a.id < 40 ORDER BY 1",
    "SELECT a.id, b.id AS other FROM dataset a LEFT JOIN dataset b "
    "ON a.meta['at']['x'] * 60 = b.meta['line'] - b.id % 2 WHERE a.id < 90 ORDER BY 1, 2",
    "SELECT a.id FROM dataset a WHERE a.meta['line'] + 1 IN (SELECT meta['at']['x'] * 50 FROM dataset) ORDER BY 1",
    "SELECT a.id FROM dataset a WHERE a.id < 99 AND NOT EXISTS (SELECT 1 FROM dataset b WHERE "
    "b.meta['at']['x'] * 50 = a.meta['line'] + 1) ORDER BY 1",
    "SELECT a.id, (SELECT count(*) FROM dataset b WHERE b.meta['at']['x'] = a.meta['line']) AS n, "
    "(SELECT max(b.meta['line']) FROM dataset b WHERE b.meta['at']['x'] * 2 = a.meta['at']['x'] AND b.id > 50) AS most "
    "FROM dataset a WHERE a.id < 200 ORDER BY 1",
    "SELECT id, lag(meta['line']) OVER (ORDER BY id) AS before FROM dataset ORDER BY id LIMIT 30",
]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_answer_as_other_engines_do(ds: fb.Dataset, folder: Path, query: str) -> None:
    assert pa.table(ds.query(query)).to_pylist() == of_duckdb(folder, query).to_pylist()


def test_queries_read_only_the_fields_that_they_need(tmp_path: Path) -> None:
    meta = [{"body": bytes(2000), "line": number, "name": f"n{number % 7}"} for number in range(2000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"meta": meta}), path, use_dictionary=False, compression="none")
    whole = path.read_bytes()
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.path_in_schema == "meta.body"
    # What is read of it fails.
    damaged = bytearray(whole)
    damaged[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = bytes(
        column.total_compressed_size
    )
    path.write_bytes(damaged)
    ds = fb.load_dataset(path, split="train")
    query = "SELECT meta['name'] AS name, max(meta['line']) AS most FROM dataset GROUP BY 1 ORDER BY 1"
    expected = [{"name": f"n{name}", "most": max(range(name, 2000, 7))} for name in range(7)]
    assert pa.table(ds.query(query)).to_pylist() == expected
    with pytest.raises(fb.DataError, match=r"`meta\.body`"):
        list(ds.query("SELECT max(length(encode(meta['body'], 'hex'))) AS n FROM dataset"))


def test_shuffled_tensors_and_resume_of_fields(ds: fb.Dataset) -> None:
    made = ds.sql("SELECT id, meta['line'] AS line, meta['at']['y'] AS y FROM dataset WHERE meta['line'] IS NOT NULL")
    stream = made.shuffle(seed=5, shuffle_bytes="1 MiB").to_torch(64, rank=0, world_size=1)
    batches = iter(stream)
    got = [next(batches) for _ in range(20)]
    state = stream.state_dict()
    got += list(batches)
    # The filter says that there is no NULL.
    assert all(batch["line"].equal(batch["id"]) for batch in got)
    other = made.shuffle(seed=5, shuffle_bytes="1 MiB").to_torch(64, rank=0, world_size=1)
    other.load_state_dict(state)
    rest = [batch["id"].tolist() for batch in other]
    assert rest == [batch["id"].tolist() for batch in got[20:]]


def test_a_damaged_page_of_a_field_is_named(tmp_path: Path) -> None:
    meta = [{"name": f"n{number}", "line": number} for number in range(1000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"meta": meta}), path, use_dictionary=False, write_page_checksum=True, compression="none")
    body = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    assert column.path_in_schema == "meta.line"
    body[column.data_page_offset + column.total_compressed_size - 5] ^= 0xFF
    path.write_bytes(body)
    ds = fb.load_dataset(path, split="train")
    with pytest.raises(fb.DataError, match=r"`meta\.line` in row group 0 of .*a\.parquet"):
        len(ds.filter("meta['line'] % 2 = 0"))
    with pytest.raises(fb.DataError, match=r"`meta\.line` in row group 0 of .*a\.parquet"):
        list(ds.sql("SELECT meta['line'] AS line FROM dataset").batches(10))
    assert len(ds.filter("meta['name'] LIKE '%7'")) == 100


DEEP = pa.struct([pa.field("box", pa.struct([pa.field("label", pa.int64(), nullable=False), ("score", pa.float64())]))])
BESIDE = pa.struct([pa.field("label", pa.int64(), nullable=False), ("price", pa.decimal128(20, 2))])


@pytest.mark.parametrize("uses_dictionary", [True, False])
@pytest.mark.parametrize(("data_type", "path"), [(DEEP, "s['box']"), (BESIDE, "s")], ids=["deep", "decimal beside"])
def test_a_required_field_of_a_null_struct_is_null_beside_the_whole(
    tmp_path: Path, data_type: pa.DataType, path: str, uses_dictionary: bool
) -> None:
    parts = [{"label": 3 + row % 2} if row % 3 else None for row in range(60)]
    structs = parts if path == "s" else [None if row % 10 == 0 else {"box": part} for row, part in enumerate(parts)]
    labels = [None if row % 3 == 0 or (path != "s" and row % 10 == 0) else 3 + row % 2 for row in range(60)]
    table = pa.table({"id": range(60), "s": pa.array(structs, data_type)})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=uses_dictionary, row_group_size=25)
    ds = fb.load_dataset(tmp_path, split="train")
    select = f"SELECT id, {path} AS part, {path}['label'] AS label FROM dataset"
    for made in (ds.sql(select), ds.query(select)):
        assert pa.table(made)["label"].to_pylist() == labels
    num_labels = sum(label is not None for label in labels)
    counted = ds.query(f"SELECT count({path}['label']) AS n, count({path}) AS parts FROM dataset")
    assert pa.table(counted).to_pylist() == [{"n": num_labels, "parts": num_labels}]
    assert ds.filter(f"{path} IS NULL AND {path}['label'] = 3").num_rows == 0
    is_null = [row for row, label in enumerate(labels) if label is None]
    assert ds.sql(select).filter("label IS NULL")[:]["id"] == is_null
    values = next(iter(ds.sql(select).select_columns("label").to_torch(60)))["label"]
    assert values.mask.tolist() == [label is not None for label in labels]
    shuffled = [row for batch in ds.sql(select).shuffle(seed=2).batches(7) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in shuffled if row["label"] is None) == is_null


REQUIRED = pa.field("box", pa.struct([("w", pa.int64()), pa.field("h", pa.int64(), nullable=False)]), nullable=False)
WITHIN = pa.field("part", pa.struct([REQUIRED]), nullable=False)


@pytest.mark.parametrize(("field", "path"), [(REQUIRED, ["box"]), (WITHIN, ["part", "box"])], ids=["one", "two"])
@pytest.mark.parametrize("beside", [[], [("tag", pa.string())], [("price", pa.decimal128(9, 2))]], ids=str)
def test_a_required_struct_in_a_null_struct_is_null(
    tmp_path: Path, beside: list[Any], field: pa.Field, path: list[str]
) -> None:
    box: dict[str, Any] = {"w": 1, "h": 2}
    whole = {"part": {"box": box}} if len(path) == 2 else {"box": box}
    structs = pa.array([whole if row % 2 else None for row in range(6)], pa.struct([*beside, field]))
    pq.write_table(pa.table({"id": range(6), "s": structs}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    taken = "s" + "".join(f"['{name}']" for name in path)
    select = f"SELECT id, s, {taken} AS box, {taken} IS NULL AS n FROM dataset"
    found = pa.table(ds.sql(select))
    assert found["box"].to_pylist() == [box if row % 2 else None for row in range(6)]
    assert found["n"].to_pylist() == [row % 2 == 0 for row in range(6)]
    assert ds.filter(f"s IS NULL AND {taken} IS NULL")[:]["id"] == [0, 2, 4]
    assert ds.filter(f"s IS NULL AND {taken} IS NOT NULL").num_rows == 0
    counted = ds.query(f"SELECT count({taken}) AS n, count(s) AS parts FROM dataset")
    assert pa.table(counted).to_pylist() == [{"n": 3, "parts": 3}]
    assert len(next(iter(ds.sql(select).select_columns(["id", "box"]).to_torch(6)))["id"]) == 6


def test_a_required_field_of_a_null_struct_of_a_table_is_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    field = pa.field("x", pa.int64(), nullable=False)
    structs = pa.StructArray.from_arrays([pa.array([1, 2, 3])], fields=[field], mask=pa.array([True, False, False]))
    ds = fb.load_dataset(tmp_path, split="train")
    side = {"side": pa.table({"s": structs})}
    assert pa.table(ds.query("SELECT sum(s['x']) AS n FROM side", tables=side))["n"].to_pylist() == [5]
    assert pa.table(ds.query("SELECT s FROM side WHERE s['x'] IS NULL", tables=side))["s"].to_pylist() == [None]
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["k"] * 3), structs)
    side = {"side": pa.table({"m": maps})}
    found = pa.table(ds.query("SELECT m['k']['x'] AS x FROM side", tables=side))
    assert found["x"].to_pylist() == [None, 2, 3]


def test_a_field_of_a_struct_that_is_computed_is_null_where_that_is(tmp_path: Path) -> None:
    structs = [{"x": 1, "in": {"y": 1}}, {"x": 2, "in": {"y": 2}}, None, {"x": 4, "in": None}]
    pq.write_table(pa.table({"id": range(4), "s": structs}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    made = "nullif(s, {'x': 1, 'in': {'y': 1}})"
    found = pa.table(ds.query(f"SELECT {made}['x'] AS x, {made}['in']['y'] AS y FROM dataset ORDER BY id"))
    assert found.to_pydict() == {"x": [None, 2, None, 4], "y": [None, 2, None, None]}
    assert pa.table(ds.query(f"SELECT id FROM dataset WHERE {made}['in']['y'] IS NULL"))["id"].to_pylist() == [0, 2, 3]

    def masked(numbers: pa.Array) -> pa.Array:
        odd = pc.equal(pc.bit_wise_and(numbers, 1), 1)
        return pa.StructArray.from_arrays([numbers], names=["n"], mask=odd)

    function = fb.Function(call=masked, arguments=[pa.int64()], returns=pa.struct({"n": pa.int64()}))
    found = pa.table(ds.query("SELECT masked(id)['n'] AS n FROM dataset ORDER BY id", functions={"masked": function}))
    assert found["n"].to_pylist() == [0, None, 2, None]
