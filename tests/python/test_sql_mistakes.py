"""SQL that looks right and is not: refused in words that say what to write, or read as what is meant."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

ROWS = {
    "id": [0, 1, 2],
    "cat": ["a", "b", "c"],
    "tags": [[], ["a"], ["a", "b"]],
    "few": pa.array([None, ["a"], []], pa.list_(pa.string())),
    "flag": [True, None, False],
    "a": [None, 6, 1],
    "f": [1.5, None, float("nan")],
    "name": ["x", None, ""],
    "meta": [{"source": "web", "geo": {"lat": 1.5}}] * 3,
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "emb": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
    "messages": [[{"role": "user"}]] * 3,
    "bytes": [b"a"] * 3,
    "at": pa.array([dt.datetime(2024, 7, 1, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "Europe/Berlin")),
}


@pytest.fixture
def ds(tmp_path: Path) -> fb.Dataset:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
    return fb.load_dataset(tmp_path, split="train")


@pytest.fixture
def labelled(tmp_path: Path) -> fb.Dataset:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"id": datasets.Value("int64"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    rows = pa.table({"id": [0, 1, 2], "label": [0, 1, 0]}, schema=features.arrow_schema)
    pq.write_table(rows, tmp_path / "labels.parquet")
    return fb.load_dataset(tmp_path, split="train")


def values(ds: fb.Dataset, expression: str, **named: Any) -> list[Any]:
    rows = pa.table(ds.query(f"SELECT {expression} AS x FROM dataset", **named)).to_pylist()
    return [row["x"] for row in rows]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("length(tags) > 1", [2]),
        ("length(tags) = 0", [0]),
        ("char_length(tags) = 1", [1]),
        ("length(few) = 0", [2]),
        ("length(few) IS NULL", [0]),
        ("length(few) <> 1", [2]),
        ("length(make_array(id, id)) = 2", [0, 1, 2]),
        ("length(cat) = 1", [0, 1, 2]),
    ],
)
def test_the_length_of_a_list_is_the_number_of_its_items(ds: fb.Dataset, condition: str, kept: list[int]) -> None:
    assert [row["id"] for row in ds.filter(condition)] == kept
    assert [row["id"] for row in ds.sql(f"SELECT * FROM dataset WHERE {condition}")] == kept


def test_the_length_of_a_list_is_the_number_of_its_items_in_whole_queries(ds: fb.Dataset) -> None:
    assert values(ds, "length(tags) - 1") == [-1, 0, 1]
    assert values(ds, "sum(length(tags))") == [3]
    assert [row["x"] for row in ds.sql("SELECT length(few) AS x FROM dataset")] == [None, 1, 0]
    grouped = ds.query("SELECT length(tags) AS n, count(*) AS c FROM dataset GROUP BY length(tags) ORDER BY 1 DESC")
    assert pa.table(grouped).to_pylist() == [{"n": 2, "c": 1}, {"n": 1, "c": 1}, {"n": 0, "c": 1}]
    both = "SELECT length(tags) AS x FROM dataset UNION ALL SELECT length(cat) FROM dataset"
    assert sorted(row["x"] for row in pa.table(ds.query(both)).to_pylist()) == [0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        ("reverse(tags)", "`array_reverse(tags)`"),
        ("concat(tags, 'x')", "`array_to_string(tags, ',')`"),
        ("concat_ws(',', 'x', tags)", "`array_to_string(tags, ',')`"),
        ("left(tags, 1)", "`array_length(tags)`"),
        ("right(tags, 1)", "`array_length(tags)`"),
        ("lpad(tags, 3)", "`array_length(tags)`"),
        ("rpad(tags, 3)", "`array_length(tags)`"),
        ("translate(tags, 'a', 'b')", "`array_has(tags, ...)`"),
        ("overlay(tags PLACING 'x' FROM 1)", "`array_has(tags, ...)`"),
        ("find_in_set('a', tags)", "`array_has(tags, ...)`"),
        ("substr_index(tags, 'a', 1)", "`array_has(tags, ...)`"),
        ("regexp_count(tags, 'a')", "`array_has(tags, ...)`"),
        ("regexp_instr(tags, 'a')", "`array_has(tags, ...)`"),
        ("regexp_match(tags, 'a')", "`array_has(tags, ...)`"),
        ("regexp_replace(tags, 'a', 'b')", "`array_has(tags, ...)`"),
        ("nvl(tags, 'x')", "`coalesce(tags, make_array('a'))`"),
        ("length(emb)", "`array_length(emb)`"),
        ("concat(meta, 'x')", "take a field of it"),
        ("upper(tags)", "`array_to_string(x, ',')`"),
    ],
)
def test_functions_of_text_refuse_lists_and_structs(ds: fb.Dataset, call: str, instead: str) -> None:
    with pytest.raises(fb.QueryError) as refused:
        ds.query(f"SELECT {call} AS x FROM dataset")
    assert instead in str(refused.value)
    with pytest.raises(fb.QueryError) as refused:
        ds.filter(f"{call} IS NULL")
    assert instead in str(refused.value)


def test_values_without_a_common_type_are_refused_with_the_way_out(tmp_path: Path) -> None:
    times, letters = [dt.time(1), dt.time(2)], [b"abc", b"xyz"]
    columns = {"ms": pa.array(times, pa.time32("ms")), "us": pa.array(times, pa.time64("us")), "id": [0, 1]}
    columns |= {"b": pa.array(letters), "large": pa.array(letters, pa.large_binary())}
    columns |= {"fixed": pa.array(letters, pa.binary(3)), "at": pa.array([0, 1 << 60], pa.timestamp("us"))}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    ds, side = fb.load_dataset(tmp_path, split="train"), {"day": [dt.date(1970, 1, 1), dt.date(9999, 1, 1)]}
    for condition, said in {
        "coalesce(ms, us) = us": r"`coalesce\(Time32\(ms\), Time64\(µs\)\)` has values without a common type; cast",
        "greatest(ms, us) = us": r"`greatest\(Time32\(ms\), Time64\(µs\)\)` has values without a common type; cast",
        "coalesce(b, large) = b": r"`coalesce\(Binary, LargeBinary\)` has values without a common type; cast",
        "large = fixed": "cast one of the two",
        "ms IN (SELECT us FROM dataset)": "cast one of the two",
        "at IN (SELECT day FROM s)": "write `CAST\\(x AS TIMESTAMP\\(6\\)\\)`",
    }.items():
        with pytest.raises(fb.QueryError, match=said):
            len(ds.sql(f"SELECT id FROM dataset WHERE {condition}", tables={"s": side}))
    for condition in (
        "coalesce(arrow_cast(ms, 'Time64(Microsecond)'), us) = us",
        "arrow_cast(fixed, 'LargeBinary') = large",
        "arrow_cast(ms, 'Time64(Microsecond)') IN (SELECT us FROM dataset)",
    ):
        assert len(ds.sql(f"SELECT id FROM dataset WHERE {condition}")) == 2, condition
    near = "SELECT id FROM dataset WHERE at IN (SELECT CAST(day AS TIMESTAMP(6)) FROM s)"
    assert list(ds.sql(near, tables={"s": side})) == [{"id": 0}]


def test_an_aggregate_of_text_refuses_lists(ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match="`string_agg` is for text, and `tags` is a list"):
        ds.query("SELECT string_agg(tags, ',') FROM dataset")


def test_a_list_is_printed_where_that_is_asked_for(ds: fb.Dataset) -> None:
    assert values(ds, "tags::text") == ["[]", "[a]", "[a, b]"]
    assert values(ds, "concat(array_to_string(tags, '+'), '!')") == ["!", "a!", "a+b!"]
    assert values(ds, "tags || 'x'") == [["x"], ["a", "x"], ["a", "b", "x"]]


@pytest.mark.parametrize(
    ("query", "clause", "instead"),
    [
        ("SELECT cat FROM dataset WHERE row_number() OVER (ORDER BY id) = 1", "WHERE", "QUALIFY"),
        ("SELECT cat FROM dataset WHERE id IN (SELECT id FROM dataset WHERE rank() OVER () = 1)", "WHERE", "QUALIFY"),
        ("SELECT cat, rank() OVER (ORDER BY cat) AS n FROM dataset GROUP BY cat HAVING n = 1", "HAVING", "QUALIFY"),
        ("SELECT d.cat FROM dataset d JOIN dataset e ON rank() OVER (ORDER BY d.id) = e.id", "ON", "subquery"),
        ("SELECT count(*) FROM dataset GROUP BY rank() OVER (ORDER BY id)", "GROUP BY", "subquery"),
    ],
)
def test_a_window_function_is_refused_where_there_are_no_windows_yet(
    ds: fb.Dataset, query: str, clause: str, instead: str
) -> None:
    for run in (ds.query, ds.sql):
        with pytest.raises(fb.QueryError, match=f": {clause} cannot hold a window function; .*{instead}"):
            run(query)


def test_a_window_function_is_where_windows_are(ds: fb.Dataset) -> None:
    last = "QUALIFY row_number() OVER (ORDER BY id DESC) = 1"
    assert list(ds.sql(f"SELECT cat FROM dataset {last}")) == [{"cat": "c"}]
    assert list(ds.sql(f"SELECT cat FROM dataset WHERE id IN (SELECT id FROM dataset {last})")) == [{"cat": "c"}]
    grouped = "SELECT cat FROM dataset GROUP BY cat QUALIFY row_number() OVER (ORDER BY cat) = 1"
    assert pa.table(ds.query(grouped)).to_pylist() == [{"cat": "a"}]
    by_number = "SELECT cat FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM dataset) WHERE n = 2"
    assert list(ds.sql(by_number)) == [{"cat": "b"}]


AS = "; WHERE and the list after SELECT do not see names given by AS: repeat the expression, or use a subquery"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT cat WHERE id > 3", "`id` at line 1, column 18 of `{}`; there is no FROM: write `FROM dataset`"),
        ("SELECT id FROM (SELECT cat FROM dataset)", "`id` at line 1, column 8 of `{}`; the table there has `cat`"),
        ("WITH a AS (SELECT cat FROM dataset) SELECT id FROM a", "`id` at line 1, column 44 of `{}`; the table there"),
        ("SELECT cats FROM (SELECT cat FROM dataset)", "`cats` at line 1, column 8 of `{}`; did you mean `cat`"),
        ("SELECT id FROM side", "`id` at line 1, column 8 of `{}`; the table there has `key`"),
        ("SELECT s.kee FROM dataset JOIN side s ON s.key = id", "`s.kee` at line 1, column 8 of `{}`; did you mean `k"),
        ("SELECT qqq FROM dataset", "`qqq` at line 1, column 8 of `{}`; the dataset has `id`, `cat`"),
        ("SELECT id * 2 AS s2 FROM dataset WHERE s2 > 3", "`s2` at line 1, column 40 of `{}`" + AS),
        ("SELECT id * 2 s2 FROM dataset WHERE s2 > 3", "`s2` at line 1, column 37 of `{}`" + AS),
        ("SELECT id AS s2, s2 + 1 AS s3 FROM dataset", "`s2` at line 1, column 18 of `{}`" + AS),
        ("SELECT cats AS cats FROM dataset", "`cats` at line 1, column 8 of `{}`; did you mean `cat`"),
        ("WITH a AS (SELECT id AS s2 FROM dataset) SELECT s2 FROM dataset", "`s2` at line 1, column 49 of `{}`; the "),
        ("SELECT cat FROM dataset GROUP BY cats", "`cats` at line 1, column 34 of `{}`; did you mean `cat`"),
        (
            "SELECT * FROM dataset d JOIN dataset e USING (cats)",
            "`cats` at line 1, column 47 of `{}`; did you mean `ca",
        ),
    ],
)
def test_a_column_that_is_not_there_is_told_with_what_is(ds: fb.Dataset, query: str, says: str) -> None:
    with pytest.raises(fb.ColumnNotFoundError) as refused:
        ds.query(query, tables={"side": {"key": [1]}})
    assert f"no column {says.format(query)}" in str(refused.value)


def test_a_name_with_a_space_is_to_be_quoted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"first name": [1, 2], "id": [3, 4]}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    says = 'a name with a space is written in double quotes: `"first name"`'
    for condition in ("first name = 1", "id = 3 AND first name > 1", "first name IS NULL"):
        for refused in (ds.filter, lambda where: ds.sql(f"SELECT id FROM dataset WHERE {where}")):
            with pytest.raises(fb.QueryError, match=says):
                refused(condition)
    with pytest.raises(
        fb.ColumnNotFoundError, match=r"did you mean `first name`\?; write a name with a space in double"
    ):
        ds.sql("SELECT first name FROM dataset")
    assert list(ds.filter('"first name" = 2')) == [{"first name": 2, "id": 4}]
    with pytest.raises(fb.QueryError, match="a filter is a condition and nothing else"):
        ds.filter("first names = 1")


def test_a_division_by_zero_is_answered_for_filters_and_columns_alike(ds: fb.Dataset) -> None:
    says = r"zero.*; divide by `nullif\(x, 0\)`: that makes it NULL, and a filter leaves such rows out$"
    for divided in (ds.filter("1 / id > 0"), ds.sql("SELECT 1 / id AS x FROM dataset")):
        with pytest.raises(fb.QueryError, match=says):
            list(divided)


@pytest.mark.parametrize(
    ("expression", "instead"),
    [
        ("CASE WHEN id % 2 = 0 THEN label ELSE 'neg' END", "write `0` instead"),
        ("CASE id WHEN 0 THEN 'pos' ELSE label END", "write `1` instead"),
        ("CASE WHEN id = 0 THEN label ELSE id::text END", "write the number of a class instead"),
        ("coalesce(label, 'neg')", "write `0` instead"),
        ("nullif(label, 'neg')", "write `0` instead"),
        ("nvl(label, 'other')", "write the number of a class instead"),
    ],
)
def test_class_labels_are_not_mixed_with_text(labelled: fb.Dataset, expression: str, instead: str) -> None:
    with pytest.raises(fb.QueryError) as refused:
        labelled.sql(f"SELECT {expression} AS x FROM dataset")
    assert "`label` is a `ClassLabel`" in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("CASE WHEN id = 1 THEN label END", [None, 1, None]),
        ("CASE WHEN id = 0 THEN label ELSE 7 END", [0, 7, 7]),
        ("CASE WHEN label = 'pos' THEN 'x' ELSE 'neg' END", ["neg", "x", "neg"]),
        ("CASE label WHEN 'pos' THEN 5 ELSE 6 END", [6, 5, 6]),
        ("CASE WHEN id = 0 THEN label::text ELSE 'none' END", ["0", "none", "none"]),
        ("concat('y_', label)", ["y_0", "y_1", "y_0"]),
    ],
)
def test_class_labels_are_numbers(labelled: fb.Dataset, expression: str, expected: list[Any]) -> None:
    assert values(labelled, expression) == expected
    assert [row["x"] for row in labelled.sql(f"SELECT {expression} AS x FROM dataset")] == expected


def count(lists: pa.Array) -> pa.Array:
    return pa.array([None if items is None else len(items) for items in lists.to_pylist()], pa.int64())


@pytest.mark.parametrize(
    ("taken", "column", "expected"),
    [
        (pa.list_(pa.float32(), 2), "emb", [2, 2, 2]),
        (pa.list_(pa.field("other", pa.float32()), 2), "emb", [2, 2, 2]),
        (pa.list_(pa.string()), "few", [None, 1, 0]),
        (pa.map_(pa.string(), pa.int64()), "map", [1, 0, None]),
        (pa.list_(pa.list_(pa.float32(), 2)), "make_array(emb)", [1, 1, 1]),
        (pa.list_(pa.list_(pa.float32(), 2)), "NULL", [None, None, None]),
    ],
)
def test_a_function_takes_lists_whatever_their_items_are_called(
    ds: fb.Dataset, taken: Any, column: str, expected: list[Any]
) -> None:
    functions = {"f": fb.Function(call=count, arguments=[taken], returns=pa.int64())}
    assert values(ds, f"f({column})", functions=functions) == expected


def test_a_function_refuses_other_types_by_what_it_takes(ds: fb.Dataset) -> None:
    functions = {"f": fb.Function(call=count, arguments=[pa.list_(pa.float32(), 3)], returns=pa.int64())}
    for given in ["emb", "id", "emb, emb"]:
        with pytest.raises(fb.QueryError, match=r"`f` takes \(FixedSizeList\(3 x Float32\)\), got \("):
            ds.query(f"SELECT f({given}) AS x FROM dataset", functions=functions)
    numbers = {"f": fb.Function(call=lambda x: x, arguments=[pa.float64()], returns=pa.float64())}
    assert values(ds, "f(id)", functions=numbers) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "given",
    [
        {"call": 3},
        {"arguments": ["int32"]},
        {"arguments": [int]},
        {"arguments": [pa.int32]},
        {"arguments": pa.int32()},
        {"arguments": "int32"},
        {"returns": "int32"},
        {"returns": None},
    ],
)
def test_a_function_is_checked_when_it_is_made(given: dict[str, Any]) -> None:
    whole = {"call": count, "arguments": [pa.int64()], "returns": pa.int64()} | given
    with pytest.raises(fb.SettingError, match=f"^{next(iter(given))}: expected "):
        fb.Function(**whole)


NULLS = {
    "coalesce(a, -1)": ([-1, 6, 1], False),
    "coalesce(flag, false)": ([True, False, False], False),
    "coalesce(a > 5, false)": ([False, True, False], False),
    "coalesce(flag, id > 5)": ([True, False, False], False),
    "coalesce(flag, a > 7)": ([True, False, False], True),
    "coalesce(a, f)": ([1.5, 6.0, 1.0], True),
    "NOT coalesce(flag, true)": ([False, False, True], False),
    "CASE WHEN a IS NULL THEN 0 ELSE a END": ([0, 6, 1], False),
    "CASE WHEN a IS NULL THEN a ELSE 0 END": ([None, 0, 0], True),
    "CASE WHEN a IS NOT NULL THEN a ELSE 0 END": ([0, 6, 1], False),
    "CASE WHEN NOT (a IS NULL) THEN a ELSE 0 END": ([0, 6, 1], False),
    "CASE WHEN a > 5 THEN a ELSE 0 END": ([0, 6, 0], False),
    "CASE WHEN a > 5 THEN 0 ELSE a END": ([None, 0, 1], True),
    "CASE WHEN a > 5 OR f > 1 THEN a ELSE 0 END": ([None, 6, 1], True),
    "CASE WHEN a > 5 AND id > 0 THEN a ELSE 0 END": ([0, 6, 0], False),
    "CASE WHEN a IS NULL OR flag IS NULL THEN 0 WHEN flag THEN 7 ELSE a END": ([0, 0, 1], False),
    "CASE WHEN a IS NULL AND flag IS NULL THEN 0 WHEN flag THEN a ELSE 1 END": ([None, 1, 1], True),
    "CASE WHEN a IS NULL THEN 0 ELSE a + 1 END": ([0, 7, 2], False),
    "CASE WHEN a IS NULL THEN 0 ELSE a + f END": ([0.0, None, float("nan")], True),
    "CASE WHEN f IS NULL THEN 0 ELSE f * 2 END": ([3.0, 0.0, float("nan")], False),
    "CASE a WHEN 6 THEN 0 ELSE a END": ([None, 0, 1], True),
    "CASE id WHEN 1 THEN a ELSE 0 END": ([0, 6, 0], True),
    "CASE WHEN id = 1 THEN 1 END": ([None, 1, None], True),
    "greatest(a, 0)": ([0, 6, 1], False),
    "least(a, NULL)": ([None, 6, 1], True),
    "abs(id)": ([0, 1, 2], False),
    "abs(a)": ([None, 6, 1], True),
    "abs(coalesce(f, 0))": ([1.5, 0.0, float("nan")], False),
    "length(cat)": ([1, 1, 1], False),
    "length(name)": ([1, None, 0], True),
    "length(coalesce(name, ''))": ([1, 0, 0], False),
    "length(tags)": ([0, 1, 2], False),
    "length(few)": ([None, 1, 0], True),
    "array_length(tags, 2)": ([None, None, None], True),
    "flag IS NOT NULL AND flag": ([True, False, False], False),
    "flag OR flag IS NULL": ([True, True, False], False),
    "flag IS NOT NULL OR flag": ([True, None, True], True),
    "flag IS NULL AND flag": ([False, None, False], True),
    "nullif(id, 2)": ([0, 1, None], True),
    "TRY_CAST(cat AS BIGINT)": ([None, None, None], True),
    "coalesce(TRY_CAST(cat AS BIGINT), id)": ([0, 1, 2], False),
}


@pytest.mark.parametrize("expression", NULLS)
def test_a_column_is_masked_only_if_it_may_be_null(ds: fb.Dataset, expression: str) -> None:
    pytest.importorskip("torch")
    expected, may_be_null = NULLS[expression]
    made = ds.sql(f"SELECT {expression} AS x FROM dataset")
    assert repr([row["x"] for row in made]) == repr(expected)
    column = next(iter(made.to_torch(3)))["x"]
    assert isinstance(column, fb.Masked) == may_be_null
    if not may_be_null:
        assert repr(column.tolist()) == repr(expected)


FILTERS = [
    ("1 < a < 5", "`a > 1 AND a < 5`"),
    ("5 >= id >= 1", "`id <= 5 AND id >= 1`"),
    ("a == None", "`x IS NULL`"),
    ("cat.startswith('a')", "`starts_with(cat, 'a')`"),
    ("cat.str.contains('a')", "`contains(cat, 'a')`"),
    ("cat.lower() = 'a'", "`lower(cat)`"),
    ("cat.isna()", "`cat IS NULL`"),
    ("date(cat) = '2026-01-01'", "`CAST(cat AS DATE)`"),
    ("any(tags) = 't1'", "`'a' = ANY(tags)`"),
    ("any(tags = 't1')", "`'t1' = ANY(tags)`"),
    ("any('t1' == tags)", "`'t1' = ANY(tags)`"),
    ("all(tags = 't1')", "`'t1' = ALL(tags)`"),
    ("a.between(1, 2)", "write `a BETWEEN 1 AND 2`"),
    ("cat.like('a%')", "write `cat LIKE 'a%'`"),
    ("cat.str.ilike('a%')", "write `cat ILIKE 'a%'`"),
    ("a.gt(2)", "write `>`"),
    ("at.year() = 2024", "`date_part('year', x)`"),
    ("meta.Geo.abs() > 1", "as in `abs(meta.Geo)`"),
    ("a > 1 & a < 3", "join conditions with `AND`"),
    ("a > 1 | cat = 'a'", "join conditions with `OR`"),
    ("(a > 1) & (a < 3)", "join conditions with `AND`"),
    ("(a > 1) | (a < 3)", "join conditions with `OR`"),
    ("(a > 1) ^ (a < 3)", "join conditions with `<>`"),
    ("flag = 1 AND a & 1 = 1", "a Boolean is a condition of its own"),
    ("~(a > 1)", "`~` does not negate a condition; write `NOT`"),
    ("cat =~ 'a'", "text matches a regular expression where `x ~ 'a'`"),
    ("substr(cat) = 'a'", "`substr(cat, 1, 3)`"),
    ("CAST(a AS int32) = 1", "`Int32` is no type of SQL; write `INT`"),
    ("a::long = 1", "`long` is no type of SQL; write `BIGINT`"),
    ("CAST(a AS uint8) = 1", "write `TINYINT UNSIGNED`"),
    ("CAST(cat AS utf8) = 'a'", "write `VARCHAR`"),
    ("CAST(cat AS datetime) > now()", "write `TIMESTAMP`"),
    ("CAST(a AS float16) = 1", "write `DOUBLE` or the like, or a type of Arrow: `arrow_cast(x, 'Float16')`"),
    ("datetime(cat) > now()", "`CAST(cat AS TIMESTAMP)`"),
    ("lenght(cat) = 1", "Did you mean 'length'"),
    ("cat contains 'a'", "`x LIKE '%a%'`"),
    ("a mod 2 = 0", "`x % 2`"),
    ("a > 5)", "one closing parenthesis too many"),
    ("a => 5", "write `>=`"),
    ("a =< 5", "write `<=`"),
    ("a eq 5", "write `=`"),
    ("cat = f'{x}'", "write `$x`, and pass its value as `params="),
    ("a > {least}", 'write `$least`, and pass its value as `params={"least": ...}`'),
    ("substr(id, 1, 1) = '1'", "`substr(CAST(id AS VARCHAR), 1, 1)`"),
    ("trim(a) = '1'", "`trim(CAST(a AS VARCHAR))`"),
    ("md5(id) < '8'", "`md5(CAST(id AS VARCHAR))`"),
    ("trim(a) = '1'", "`trim` takes text, and got Int64; write `trim("),
    ("split_part(cat, 1, 1) = '1'", "write `CAST(x AS VARCHAR)`"),
    ("cat IN ['a', 'b']", "`x IN ('a', 'b')`"),
    ("starts_with(a, '1')", "`starts_with(CAST(a AS VARCHAR), '1')`"),
    ("a LIKE '1%'", "`CAST(x AS VARCHAR) LIKE ...`"),
    ("'t1' IN tags", "`array_has(tags, 't1')`"),
    ("cat IN 'a'", "`IN ('a')`"),
    ("tags = 't1'", "`array_has(tags, 't1')`, or `'t1' = ANY(tags)`"),
    ("emb = 3", "`array_has(emb, 3)`"),
    ("meta['sorce'] = 'web'", "`meta` has no field `sorce`; did you mean `source`?"),
    ("meta.geo.lot > 1", "`meta.geo` has no field `lot`; did you mean `lat`?"),
    ("meta.geo.height > 1", "`meta.geo` has no field `height`; it has `lat`"),
    ("messages[1]['roll'] = 'user'", "`messages[1]` has no field `roll`; did you mean `role`?"),
    ("f.x > 1", "`f` is Float64, and has no field `x`"),
    ("octet_length(bytes) > 1", "`octet_length` takes text, and got binary; `length(encode(bytes, 'hex')) / 2` counts"),
    ("upper(bytes) = 'A'", "`upper` takes text, and got binary; `CAST(x AS VARCHAR)` makes text of it"),
    ("substr(bytes, 1, 2) = 'A'", "`substr` takes text, and got binary; `CAST(x AS VARCHAR)` makes text of it"),
    ("round(at) > 1", '`round` takes numbers, and got Timestamp(µs, "Europe/Berlin")'),
    ("at < '2024-03-31 02:30:00'", "skips, or has twice, as clocks are put forward or back there; write its offset"),
    ("at = '2024-10-27 02:30:00'", "as in '2024-10-27 02:30:00+01:00'"),
    ("at < '2024-03-31 02:30:00 Europe/Berlin'", "as in '2024-03-31 02:30:00+01:00'"),
    ("TIMESTAMP '2024-03-31 02:30:00' AT TIME ZONE 'Europe/Berlin' < at", "`x AT TIME ZONE '+01:00'`"),
    ("meta['geo'].lat > 1", "`meta['geo']['lat']`"),
    ("messages[1].role = 'user'", "`messages[1]['role']`"),
    ("cat = 'a", "; a quote within text is written twice, `'it''s'`"),
    ("cat == b'a'", "text is `'a'`, bytes are `X'61'`"),
    ("a > 5 # c", "a comment begins with `--`"),
    ("a >= 5 && a < 9", "write `AND`"),
    ("cat = \u2018a\u2019", "straight quotes"),
]


@pytest.mark.parametrize(("written", "instead"), FILTERS)
def test_a_refusal_says_what_to_write(ds: fb.Dataset, written: str, instead: str) -> None:
    for make in (lambda: ds.filter(written), lambda: ds.sql(f"SELECT * FROM dataset WHERE {written}")):
        with pytest.raises((fb.QueryError, fb.ColumnNotFoundError)) as refused:
            make()
        said = str(refused.value)
        assert instead in said
        assert not any(noise in said for noise in ["Ident {", "TokenizerError", "leave out", "Hint:", "get_field("])


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        ("avg(at)", "`to_timestamp(avg(date_part('epoch', at)))`"),
        ("median(at)", "`to_timestamp(median(date_part('epoch', at)))`"),
        ("sum(DISTINCT cat)", "`sum(CAST(cat AS DOUBLE))`"),
        ("avg(flag)", "`avg(CAST(flag AS DOUBLE))`"),
        ("sum(bytes)", "got Binary"),
        ("avg(tags)", "got List(String)"),
    ],
)
def test_aggregates_of_numbers_refuse_others(ds: fb.Dataset, call: str, instead: str) -> None:
    with pytest.raises(fb.QueryError) as refused:
        ds.query(f"SELECT {call} AS x FROM dataset")
    said = str(refused.value)
    assert f"`{call.split('(')[0]}` takes numbers, and got" in said
    assert instead in said
    assert "planning" not in said


def test_what_is_advised_instead_of_an_average_of_times_runs(ds: fb.Dataset) -> None:
    assert values(ds, "to_timestamp(avg(date_part('epoch', at)))") == [dt.datetime(2024, 7, 1)]
    assert values(ds, "avg(CAST(flag AS DOUBLE))") == [0.5]
    assert [row["id"] for row in ds.filter("at < '2024-03-31 02:30:00+01:00'")] == []
    with pytest.raises(pa.ArrowInvalid, match="skips, or has twice"):
        values(ds, "CAST('2024-03-31 02:30:0' || id AS TIMESTAMP) AT TIME ZONE 'Europe/Berlin'")
    there = values(ds, "CAST('2024-03-31 02:30:0' || id AS TIMESTAMP) AT TIME ZONE '+01:00'")
    assert there[0] == dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)


SHADOWED = [
    "SELECT f.id FROM dataset f WHERE EXISTS (SELECT 1 FROM dataset e WHERE e.cat = f.cat AND e.id < f.id)",
    "SELECT id, (SELECT count(*) FROM dataset e WHERE e.cat = f.cat) AS n FROM dataset AS f",
    "SELECT id FROM f WHERE EXISTS (SELECT 1 FROM dataset e WHERE e.id = f.id)",
    "SELECT id FROM dataset meta WHERE EXISTS (SELECT 1 FROM dataset e WHERE e.id = meta.id)",
]


@pytest.mark.parametrize("written", SHADOWED)
def test_a_table_that_is_named_as_a_column_is_to_be_named_otherwise(ds: fb.Dataset, written: str) -> None:
    tables = {"f": {"id": [1]}} if " FROM f " in written else {}
    with pytest.raises(fb.QueryError, match="give the table another name, as in `FROM dataset t1`"):
        ds.query(written, tables=tables)


def test_a_side_table_of_values_without_a_size_is_refused(ds: fb.Dataset) -> None:
    empty = pa.array([[], [], []], pa.list_(pa.int32(), 0))
    for column in (empty, pa.StructArray.from_arrays([empty], ["items"]), pa.array([b""] * 3, pa.binary(0))):
        tables = {"t": pa.table({"id": [0, 1, 2], "column": column}).slice(1)}
        with pytest.raises(fb.SettingError, match="`t`: its column `column` has values of the fixed size 0"):
            ds.query("SELECT * FROM t ORDER BY id", tables=tables)


def test_fields_of_side_tables_are_named(ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match="`pair` has no field `lift`; did you mean `left`?"):
        ds.query("SELECT t.pair.lift FROM t", tables={"t": pa.table({"pair": [{"left": 1, "right": 2}]})})


@pytest.mark.parametrize("written", ["cat.foo('a')", "cat.title() = 'A'", "a.equals(1)"])
def test_a_method_that_is_no_function_is_not_advised_as_one(ds: fb.Dataset, written: str) -> None:
    with pytest.raises(fb.QueryError) as refused:
        ds.filter(written)
    assert str(refused.value).endswith(f"Invalid function '{written.split('(')[0]}'")


@pytest.mark.parametrize(
    ("condition", "instead", "kept"),
    [
        ("length(b) = 3", "length(TRY_CAST(b AS VARCHAR)) = 3", [1]),
        ("b LIKE 'a%'", "TRY_CAST(b AS VARCHAR) LIKE 'a%'", [1, 2]),
        ("b LIKE 'a%'", "encode(b, 'hex') LIKE '61%'", [1, 2]),
        ("b LIKE 'a'", "b = X'61'", [2]),
    ],
)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_that_are_no_text_are_named_with_what_to_write(
    tmp_path: Path, kind: pa.DataType, condition: str, instead: str, kept: list[int]
) -> None:
    columns = {"id": [0, 1, 2], "b": pa.array([b"\xff\xfe\xfd", b"abc", b"a"], kind)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    with pytest.raises(fb.QueryError, match=r"TRY_CAST\(x AS VARCHAR\)`.*`b` is binary"):
        len(ds.filter(condition))
    with pytest.raises(fb.QueryError, match=r"TRY_CAST\(x AS VARCHAR\)`"):
        len(ds.sql(f"SELECT id FROM dataset WHERE {condition}"))
    assert [row["id"] for row in ds.filter(instead)] == kept


@pytest.mark.parametrize("written", ["a > 1 LIMIT 3", "a > 1;", "WHERE a > 1", "a > 1 ORDER BY a"])
def test_what_belongs_to_a_query_is_left_out_of_a_filter(ds: fb.Dataset, written: str) -> None:
    with pytest.raises(fb.QueryError, match="leave out `WHERE`, `LIMIT` or `;`"):
        ds.filter(written)


def test_a_list_of_conditions_is_refused_alike(ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError, match="`array_has.x, 'a'.`"):
        ds.filter([("tags", "==", "t1")])


@pytest.mark.parametrize("written", ["any(cat) = 1", "farm_fingerprint(cat) = 1", "datetime(cat) = 1"])
def test_no_name_is_suggested_that_is_far_off(ds: fb.Dataset, written: str) -> None:
    with pytest.raises(fb.QueryError) as refused:
        ds.filter(written)
    assert "Did you mean" not in str(refused.value)


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
def test_a_join_says_which_side_it_keeps(ds: fb.Dataset, kind: str) -> None:
    with pytest.raises(fb.QueryError, match=f"write `LEFT {kind} JOIN`"):
        ds.sql(f"SELECT * FROM dataset d {kind} JOIN m ON d.id = m.id", tables={"m": pa.table({"id": [1]})})


@pytest.mark.parametrize("written", ["cat = 1", [("cat", "==", 3)]])
def test_text_beside_a_number_is_named_when_it_fails(ds: fb.Dataset, written: Any) -> None:
    with pytest.raises(fb.ForebayError, match="`cat` is text: compare it with text, as in `cat = '1'`"):
        len(ds.filter(written))
