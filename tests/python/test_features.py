"""`Dataset.features`: those of `datasets` for the same files, and what becomes of them on the way to other columns."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import re
import warnings
from typing import TYPE_CHECKING, Any

import datasets
import feature_data
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, LargeList, List, Value
from feature_data import ALL, BYTES, PLAIN
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay import compat, features
from forebay.feature_types import infer_feature, storage_type
from forebay.features import features_from_card, read_features, to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LABEL = ClassLabel(names=["cat", "dog", "it's a bird"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a column of every feature."""
    return feature_data.write(tmp_path_factory.mktemp("features"), feature_data.table_of(ALL))


@pytest.fixture(scope="module")
def ds(path: Path) -> fb.Dataset:
    return fb.load_dataset(path, split="train")


def test_features_are_those_of_datasets(ds: fb.Dataset, path: Path) -> None:
    theirs = feature_data.streamed(path).features
    assert type(ds.features) is Features
    assert ds.features == theirs
    assert list(ds.features) == list(theirs)
    assert ds.features["label"].int2str([2, 0]) == ["it's a bird", "cat"]


def test_features_follow_from_arrow_types_where_no_metadata_tells_them(tmp_path: Path, path: Path) -> None:
    table = pq.read_table(path).replace_schema_metadata(None)
    table = table.append_column("dictionary", pa.array(["a", "b"] * 6).dictionary_encode())
    table = table.append_column("fixed_bytes", pa.array([b"ab"] * 12, pa.binary(2)))
    table = table.append_column(pa.field("required", pa.int64(), nullable=False), pa.array(range(12)))
    pq.write_table(table, tmp_path / "x.parquet")
    ours = fb.load_dataset(tmp_path / "x.parquet", split="train").features
    assert ours == feature_data.streamed(tmp_path / "x.parquet").features


def test_a_told_feature_of_another_type_does_not_hold(tmp_path: Path) -> None:
    told = Features(label=LABEL, text=Value("string"), other=LABEL).arrow_schema.metadata
    table = pa.table({"label": pa.array([0, 1], pa.int32()), "text": ["a", "b"], "other": [0, 1]})
    required = pa.schema([*[*table.schema][:2], pa.field("other", pa.int64(), nullable=False)], told)
    pq.write_table(table.cast(required), tmp_path / "x.parquet")
    ours = fb.load_dataset(tmp_path / "x.parquet", split="train").features
    assert ours == feature_data.streamed(tmp_path / "x.parquet").features
    assert ours == Features(label=Value("int32"), text=Value("string"), other=Value("int64"))


@pytest.mark.parametrize(
    "told",
    [
        "{",
        "[]",
        '{"info": null}',
        '{"info": {"features": {"label": {"_type": "Unheard"}}}}',
        '{"info": {"features": {"label": 3}}}',
    ],
)
def test_a_told_feature_that_is_none_is_passed_over(told: str, tmp_path: Path) -> None:
    table = pa.table({"label": [0, 1]}).replace_schema_metadata({"huggingface": told})
    pq.write_table(table, tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    assert ds.features == Features(label=Value("int64"))
    assert ds.select_columns("label").features == Features(label=Value("int64"))
    assert list(ds.filter("label = 1").take(2)) == [{"label": 1}]


@pytest.mark.parametrize("told", ["{", "{}", '{"info": {"features": null}}', '{"info": {"features": {}}}'])
def test_metadata_without_features_is_pickled_like_any(told: str, tmp_path: Path) -> None:
    table = pa.table({"a": [0, 1], "b": [2, 3]}).replace_schema_metadata({"huggingface": told})
    pq.write_table(table, tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    for dataset in [ds, ds.select_columns("b"), ds.sql("SELECT b FROM dataset ORDER BY b DESC"), ds.cast({"b": LABEL})]:
        assert pickle.loads(pickle.dumps(dataset)).features == dataset.features


def test_a_type_that_has_no_feature_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    with pytest.raises(fb.SchemaError, match="column `m` of type `map<string, int64"):
        ds.features  # noqa: B018
    assert list(ds.take(1)) == [{"m": [("a", 1)]}]


def test_features_stay_with_columns_that_are_selected_or_renamed(ds: fb.Dataset) -> None:
    names = ["label", "image", "translation", "array2d", "list_of_labels"]
    theirs = ds.features
    assert ds.select_columns(names).features == Features({name: theirs[name] for name in names})
    assert ds.remove_columns([name for name in ALL if name not in names]).features.keys() == set(names)
    renamed = ds.select_columns(names).rename_columns({"label": "l", "image": 'a "quoted" name'})
    assert renamed.features["l"] == LABEL
    assert list(renamed.features) == ["l", 'a "quoted" name', *names[2:]]
    assert renamed.features['a "quoted" name'] == datasets.Image()
    assert renamed.rename_column("l", "label").features["label"] == LABEL


def test_features_stay_with_columns_that_a_query_hands_on(ds: fb.Dataset) -> None:
    query = """
        SELECT d.label AS l, upper(string) AS loud, label + 1 AS next, image, array2d
        FROM dataset d WHERE int32 > 3 ORDER BY int32 DESC LIMIT 3
    """
    found = ds.sql(query)
    assert found.features == Features(
        l=LABEL, loud=Value("string"), next=Value("int64"), image=datasets.Image(), array2d=ds.features["array2d"]
    )
    assert found.filter("l = 'dog'").features["l"] == LABEL
    assert [row["l"] for row in found.select_columns("l").take(9)] == [2, 1, 0]


def test_features_come_along_with_the_columns_of_joined_tables(ds: fb.Dataset) -> None:
    side = ds.select_columns(["int32", "label"]).rename_columns({"label": "theirs", "int32": "key"})
    found = ds.sql("SELECT int32, theirs FROM dataset JOIN side ON int32 = key", tables={"side": side})
    assert found.features == Features(int32=Value("int32"), theirs=LABEL)
    assert list(found.take(2)) == [{"int32": 1, "theirs": 0}, {"int32": 2, "theirs": 1}]


def test_groups_keep_the_features_of_what_they_are_grouped_by(ds: fb.Dataset) -> None:
    counted = pa.table(ds.query("SELECT label, count(*) AS n FROM dataset GROUP BY label ORDER BY label"))
    assert Features.from_arrow_schema(counted.schema) == Features(label=LABEL, n=Value("int64"))
    assert counted.to_pydict() == {"label": [0, 1, 2], "n": [4, 4, 4]}
    assert all(not field.metadata for field in counted.schema)


def test_features_survive_pickling(ds: fb.Dataset) -> None:
    recast = ds.select_columns(["label", "int64"]).cast({"int64": ClassLabel(num_classes=99)})
    for dataset in [
        ds,
        recast,
        recast.filter("label = 'cat'"),
        recast.sql("SELECT label AS l, int64 FROM dataset WHERE label = 'cat'"),
        recast.rename_column("label", "l").filter("l = $name", params={"name": "cat"}),
        recast.filter("label = $name", params={"name": "cat"}).cast({"label": Value("int64")}),
    ]:
        copied = pickle.loads(pickle.dumps(dataset))
        assert copied.features == dataset.features
        assert copied.column_names == dataset.column_names
        assert copied.select_columns(copied.column_names[:2])[:] == dataset.select_columns(copied.column_names[:2])[:]


def test_a_filter_that_names_a_class_means_it_after_a_cast_and_a_pickle(tmp_path: Path) -> None:
    schema = Features({"label": LABEL, "row": Value("int64")}).arrow_schema
    rows = [{"label": row % 3, "row": row} for row in range(30)]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "x.parquet")
    whole = fb.load_dataset(tmp_path, split="train")
    expected = [row["row"] for row in rows if row["label"] == 1]
    for names in (["dog", "cat", "bird"], ["a", "b", "c"]):
        for then in (lambda ds: ds, lambda ds: ds.filter("row >= 0").select_columns("row")):
            dogs = then(whole.filter("label = 'dog'").cast_column("label", ClassLabel(names=names)))
            again = pickle.loads(pickle.dumps(dogs))
            assert again.select_columns("row")[:] == {"row": expected}
            assert again.features == dogs.features
            state = dogs.batches(4).state_dict()
            again.batches(4).load_state_dict(state)


def test_arrow_consumers_get_the_features(ds: fb.Dataset) -> None:
    names = [name for name in ALL if name not in ("video", "pdf", "nifti")]
    taken = datasets.Dataset(pa.table(ds.select_columns(names)))
    assert taken.features == Features({name: ds.features[name] for name in names})
    batch = next(iter(ds.select_columns(["label", "array3d", "json"]).batches(4)))
    assert Features.from_arrow_schema(pa.schema(batch)) == ds.select_columns(["label", "array3d", "json"]).features
    renamed = ds.select_columns(["label"]).rename_column("label", "l")
    assert datasets.Dataset(pa.table(renamed)).features == Features(l=LABEL)
    assert "forebay" not in str(pa.schema(renamed)) + str(pa.table(renamed).schema.field("l").metadata)


def test_other_metadata_of_a_schema_stays(tmp_path: Path) -> None:
    told = '{"info": {"features": {"a": {"dtype": "int64", "_type": "Value"}}}}'
    table = pa.table({"a": [1], "b": [2]}).replace_schema_metadata({"huggingface": told, "mine": "kept"})
    pq.write_table(table, tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    assert pa.schema(ds.select_columns("b")).metadata == {b"mine": b"kept"}


def test_cast_gives_features_without_reading(ds: fb.Dataset) -> None:
    small = ds.select_columns(["int64", "string", "struct"])
    cast = small.cast(Features({**small.features, "int64": ClassLabel(num_classes=100)}))
    assert cast.features["int64"].num_classes == 100
    assert cast.filter("string = 'row 3'").take(1)[0]["int64"] == 4
    assert cast.filter("int64 = '7'").num_rows == 1
    assert cast.shuffle(3).select_columns("int64").features == Features(int64=ClassLabel(num_classes=100))


@pytest.mark.parametrize(
    ("written", "feature"),
    [
        ("float", Value("float32")),
        (pa.float64(), Value("float64")),
        (pa.timestamp("ms", "UTC"), Value("timestamp[ms, tz=UTC]")),
        (["int16"], List(Value("int16"))),
        (pa.large_list(pa.string()), datasets.LargeList(Value("string"))),
        ({"a": pa.int8(), "b": "binary", "c": LABEL}, {"a": Value("int8"), "b": Value("binary"), "c": LABEL}),
    ],
    ids=str,
)
def test_types_stand_for_the_features_that_they_have(written: Any, feature: Any) -> None:
    assert to_json({"x": written}) == Features({"x": feature}).to_dict()


def test_cast_takes_types_and_schemas(ds: fb.Dataset) -> None:
    numbers = ds.select_columns(["int8", "int16"])
    of_types = numbers.cast({"int8": "int32", "int16": pa.float64()})
    assert of_types.schema.types == [pa.int32(), pa.float64()]
    assert pa.table(numbers.cast(of_types.schema)) == pa.table(of_types)
    assert numbers.cast_column("int8", "int32").features["int8"] == Value("int32")


@pytest.mark.parametrize(
    ("column", "feature"),
    [
        ("int32", Value("int64")),
        ("int8", Value("float32")),
        ("uint64", Value("int16")),
        ("int64", Value("string")),
        ("int16", ClassLabel(num_classes=40)),
        ("string", Value("large_string")),
        ("float64", Value("float32")),
        ("timestamp", Value("timestamp[ns]")),
        ("date32", Value("timestamp[us]")),
        ("list", List(Value("int64"))),
        ("list", datasets.LargeList(Value("float64"))),
        ("fixed_list", List(Value("float64"))),
        ("equal_list", List(Value("int32"), length=3)),
        ("large_list", List(Value("int8"))),
        ("decimal128", Value("decimal128(20, 4)")),
        ("array2d", datasets.Array2D((None, 3), "int32")),
        ("array2d", List(List(Value("int32")))),
        ("array2d", List(List(Value("int64")))),
    ],
)
def test_cast_converts_values_as_datasets_does(column: str, feature: Any, ds: fb.Dataset, path: Path) -> None:
    theirs = feature_data.streamed(path, columns=[column]).cast_column(column, feature)
    ours = ds.select_columns(column).cast_column(column, feature)
    assert ours.features == theirs.features == Features({column: feature})
    assert list(ours.take(99)) == list(theirs)


def file_of(folder: Path, values: Any) -> Path:
    """A file with the column `x`."""
    pq.write_table(pa.table({"x": values}), folder / "x.parquet")
    return folder / "x.parquet"


STARS = ClassLabel(names=["1", "2", "3", "4", "5"])
QUOTED = ClassLabel(names=["it's", 'a "c"', "back\\slash", " z ", "é"])


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        (STARS, ["1", "5", None, " 3\n", "0", "-1"]),
        (LABEL, ["cat", "dog ", "it's a bird", None, "2", " 1"]),
        (QUOTED, ["it's", 'a "c"', "back\\slash", " z ", "é", "1"]),
        (ClassLabel(num_classes=3), ["2", "1", "0"]),
        (List(LABEL), [["dog", None], None, [], ["cat"]]),
        (List(List(STARS)), [[["1"], ["2", "3"]], [None, []]]),
    ],
)
def test_text_becomes_the_classes_that_datasets_makes_of_it(tmp_path: Path, feature: Any, values: Any) -> None:
    path = file_of(tmp_path, pa.array(values))
    theirs = list(feature_data.streamed(path).cast_column("x", feature))
    for ours in [
        fb.load_dataset(path, split="train").cast_column("x", feature),
        fb.load_dataset(path, split="train", features=Features({"x": feature})),
    ]:
        assert list(ours.take(99)) == theirs
        assert ours.features == Features({"x": feature})


@pytest.mark.parametrize("encoded", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_classes_of_text_are_selected_shuffled_and_made_tensors(tmp_path: Path, encoded: pa.DataType) -> None:
    text = pa.array(["1", "5", "3", "1"]).cast(encoded)
    ds = fb.load_dataset(file_of(tmp_path, text), split="train").cast_column("x", STARS)
    assert next(iter(ds.to_torch(4)))["x"].tolist() == [0, 4, 2, 0]
    assert [row["x"] for row in ds.filter("x = '5'")] == [4]
    assert len(ds.filter("x IN ('1', '3')")) == 3
    assert sorted(row["x"] for row in ds.shuffle(3)) == [0, 0, 2, 4]
    assert pa.table(ds.query("SELECT max(x) AS most FROM dataset"))["most"].to_pylist() == [4]
    assert list(pickle.loads(pickle.dumps(ds)).take(9)) == list(ds.take(9))
    assert "1 of 4 kept" in str(ds.filter("x = '5'").explain())


@pytest.mark.parametrize("feature", [LABEL, List(LABEL)])
def test_text_that_is_no_class_is_an_error(tmp_path: Path, feature: Any) -> None:
    for text, words in [("bird", "it has `cat`, `dog`"), ("3", "it has `cat`"), ("doge", "did you mean `dog`")]:
        path = file_of(tmp_path, pa.array([["cat"], [text]] if isinstance(feature, List) else ["cat", text]))
        ds = fb.load_dataset(path, split="train").cast_column("x", feature)
        with pytest.raises(fb.QueryError, match=f"no class `{text}` in column `x`.*{words}"):
            list(ds.take(2))


def test_features_of_a_card_make_classes_of_text(tmp_path: Path) -> None:
    path = file_of(tmp_path, pa.array(["2", "1", None, "0"]))
    names = "        names:\n          '0': '1'\n          '1': '2'\n"
    card = f"---\ndataset_info:\n  features:\n  - name: x\n    dtype:\n      class_label:\n{names}---\n"
    (tmp_path / "README.md").write_text(card)
    ours = fb.load_dataset(tmp_path, split="train")
    assert list(ours.take(9)) == list(feature_data.streamed(path).cast_column("x", ClassLabel(names=["1", "2"])))
    assert ours.features["x"].names == ["1", "2"]


LOSSES: dict[str, tuple[Any, pa.DataType, str]] = {
    "a fraction": ([1.0, 2.5], pa.float64(), "int32"),
    "a fraction of few bits": ([2.5], pa.float32(), "int64"),
    "NaN": ([float("nan")], pa.float64(), "int32"),
    "microseconds to seconds": ([dt.datetime(2020, 1, 1, 0, 0, 0, 5)], pa.timestamp("us"), "timestamp[s]"),
    "microseconds before 1970": ([dt.datetime(1960, 1, 1, 0, 0, 0, 5)], pa.timestamp("us"), "timestamp[ms]"),
    "an instant": ([5], pa.timestamp("us", "Europe/Berlin"), "timestamp[s, tz=Europe/Berlin]"),
    "a time of day": ([dt.time(1, 1, 1, 5)], pa.time64("us"), "time32[s]"),
    "the time of a timestamp": ([dt.datetime(2020, 1, 1, 0, 0, 0, 5)], pa.timestamp("us"), "time32[s]"),
    "a duration": ([dt.timedelta(microseconds=5)], pa.duration("us"), "duration[s]"),
    "digits of a decimal": ([decimal.Decimal("1.55")], pa.decimal128(10, 2), "decimal128(10, 1)"),
    "the fraction of a decimal": ([decimal.Decimal("1.55")], pa.decimal128(10, 2), "int32"),
    "an integer to float32": ([2**24 + 1], pa.int64(), "float32"),
    "an integer to float64": ([2**53 + 1], pa.int64(), "float64"),
    "the largest integer": ([2**63 - 1], pa.int64(), "float64"),
    "digits of text": (["1.555"], pa.string(), "decimal128(10, 2)"),
    "the time of text": (["2020-01-01T05:00:00"], pa.string(), "date32"),
    "the fraction of a second": (["2020-01-01T05:00:00.5"], pa.string(), "timestamp[s]"),
    "no integer": (["2.5"], pa.string(), "int64"),
    "too large": ([2**63], pa.uint64(), "int64"),
    "no number": (["x"], pa.string(), "float32"),
    "no text": ([b"\xff\xfe"], pa.binary(), "string"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_cast_that_datasets_refuses_is_an_error(tmp_path: Path, case: str) -> None:
    values, data_type, dtype = LOSSES[case]
    path = file_of(tmp_path, pa.array(values, data_type))
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        list(feature_data.streamed(path).cast_column("x", Value(dtype)))
    ds = fb.load_dataset(path, split="train").cast_column("x", Value(dtype))
    for use in (lambda: list(ds), lambda: list(ds.filter("x IS NOT NULL")), lambda: list(ds.shuffle(1).batches(9))):
        with pytest.raises(fb.QueryError):
            use()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (pa.array([1.0, None, -0.0, 3e9]), "int64"),
        (pa.array([2**53, -(2**53), None]), "float64"),
        (pa.array([0.1, 1e300, float("nan")]), "float16"),
        (pa.array(["0.1", "+7", "1e400"]), "float32"),
        (pa.array([0.1, 2.345]), "decimal128(10, 1)"),
        (pa.array(["1.550", "-7", None]), "decimal128(10, 2)"),
        (pa.array([decimal.Decimal("1.50"), None]), "decimal128(10, 1)"),
        (pa.array([decimal.Decimal("3.00")]), "int8"),
        (pa.array([5, 0]), "bool"),
        (pa.array(["2020-01-01", None]), "date32"),
        (pa.array(["2020-01-01T05:00:00", "0001-01-01"]), "timestamp[s]"),
        (pa.array([3_000_000, None], pa.timestamp("us")), "timestamp[s]"),
        (pa.array([3_000_000], pa.timestamp("us", "UTC")), "timestamp[s, tz=Europe/Berlin]"),
        (pa.array([3_000_000], pa.timestamp("us")), "time32[s]"),
        (pa.array([3_000_000], pa.time64("us")), "time32[s]"),
    ],
)
def test_a_cast_that_loses_nothing_or_rounds_is_that_of_datasets(tmp_path: Path, values: pa.Array, dtype: str) -> None:
    path = file_of(tmp_path, values)
    ours = list(fb.load_dataset(path, split="train").cast_column("x", Value(dtype)))
    assert str(ours) == str(list(feature_data.streamed(path).cast_column("x", Value(dtype))))


ZONED = ["2024-07-01T12:00:00Z", "2024-07-01 12:00:00+02:00", "0001-01-01T00:00:00-05:30"]
LOCAL = ["2024-07-01T12:00:00", "2024-07-01", "0001-01-01 00:00:00"]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:30", None], ids=str)
@pytest.mark.parametrize("unit", ["s", "us"])
def test_text_becomes_a_timestamp_with_a_zone_where_it_names_one(tmp_path: Path, zone: str | None, unit: str) -> None:
    dtype = f"timestamp[{unit}{'' if zone is None else f', tz={zone}'}]"
    fitting, others = (LOCAL, ZONED) if zone is None else (ZONED, LOCAL)
    path = file_of(tmp_path, pa.array([*fitting, None]))
    ours = fb.load_dataset(path, split="train").cast_column("x", Value(dtype))
    assert pa.table(ours)["x"].to_pylist() == [*pa.array(fitting).cast(ours.schema.field("x").type).to_pylist(), None]
    for text in others:
        path = file_of(tmp_path, pa.array([None, text]))
        with pytest.raises(ValueError, match="zone offset"):
            list(feature_data.streamed(path).cast_column("x", Value(dtype)))
        words = f"column `x`: `{re.escape(text)}` names {'a' if zone is None else 'no'} time zone"
        with pytest.raises(fb.QueryError, match=words):
            list(fb.load_dataset(path, split="train").cast_column("x", Value(dtype)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("stored", [pa.float32(), pa.float64(), pa.list_(pa.float64()), pa.string()], ids=str)
def test_a_cast_keeps_the_sign_of_zero(tmp_path: Path, stored: pa.DataType, dtype: str) -> None:
    is_list = pa.types.is_list(stored)
    values = [-0.0, 0.0, -1.5]
    path = file_of(tmp_path, pa.array([[value] for value in values] if is_list else values).cast(stored))
    feature = List(Value(dtype)) if is_list else Value(dtype)
    ds = fb.load_dataset(path, split="train").cast_column("x", feature)
    assert str(list(ds)) == str(list(feature_data.streamed(path).cast_column("x", feature)))
    if not is_list:
        assert len(ds.filter("x = 0")) == len(ds.filter("x >= 0")) == 2


def test_a_cast_to_text_knows_one_zero(tmp_path: Path) -> None:
    path = file_of(tmp_path, pa.array([-0.0, 0.0, 1.0]))
    ds = fb.load_dataset(path, split="train").cast_column("x", Value("string"))
    assert [row["x"] for row in ds] == ["0.0", "0.0", "1.0"]
    assert len(ds.filter("x = '0.0'")) == 2


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_zones_are_those_of_datasets_where_files_have_another_unit(tmp_path: Path, unit: str) -> None:
    day = dt.datetime(2024, 7, 1, 23, 30)
    zoned = pa.array([day, None], pa.timestamp("ns", "Europe/Berlin"))
    columns = {"x": zoned, "l": pa.array([[day], []], pa.list_(pa.timestamp("s", "Asia/Tokyo"))), "n": [0, 1]}
    columns |= {"s": pa.StructArray.from_arrays([zoned], ["at"]), "z": pa.array([day, day], pa.timestamp("s"))}
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path, coerce_timestamps=unit)
    ds = fb.load_dataset(path, split="train")
    assert ds.features == feature_data.streamed(path).features
    assert str(list(ds)) == str(list(feature_data.streamed(path)))
    assert len(ds.filter("date_part('hour', x) = 1")) == 1


def test_the_error_of_a_cast_names_column_and_value(tmp_path: Path) -> None:
    day = dt.datetime(2020, 1, 1, 5)
    columns = {"x": pa.array([1.0, 2.5]), "l": pa.array([[1.0], [2.5]]), "t": pa.array([day, day]), "s": ["1", "one"]}
    columns |= {"n": [1, 1000], "pair": [[1, 2], [3]]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    for column, feature, words in [
        ("x", Value("int32"), r"column `x`: `2\.5` has no exact equivalent in `Int32`"),
        ("l", List(Value("int8")), r"column `l`: `2\.5` has no exact equivalent in `Int8`"),
        ("t", Value("date32"), r"column `t`: `2020-01-01T05:00:00` has no exact equivalent in `Date32`"),
        ("s", Value("int16"), r"column `s`: .*'one'"),
        ("s", Value("float32"), r"column `s`: .*'one'"),
        ("s", Value("bool"), r"column `s`: .*'one'"),
        ("n", Value("int8"), r"column `n`: .*1000"),
        ("pair", List(Value("int8"), length=2), r"column `pair`: .*length 1"),
    ]:
        with pytest.raises(fb.QueryError, match=f"^cannot compute values of row group 0 of `.*`: {words}"):
            list(ds.select_columns(column).cast_column(column, feature))


def test_features_within_lists_and_structs_stay_where_a_cast_names_them_again(tmp_path: Path) -> None:
    array = datasets.Array2D((1, 2), "int32")
    told = Features({"l": List(datasets.Json()), "s": {"a": array, "j": datasets.Json()}, "i": Value("int64")})
    rows = {"l": [[{"a": 1}, 3], []], "s": [{"a": [[1, 2]], "j": [1]}, None], "i": [0, 1]}
    table = datasets.Dataset.from_dict(rows, features=told).with_format("arrow")[:]
    pq.write_table(table, tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train", features=told)
    again = ds.cast({**ds.features, "i": LABEL})
    assert again.features == Features({**told, "i": LABEL})
    assert list(again.decode()) == list(ds.decode()) == list(feature_data.streamed(tmp_path / "x.parquet"))
    assert ds.cast_column("l", List(Value("string")))[0]["l"] == ['{"a":1}', "3"]


@pytest.mark.parametrize("where", ["list", "struct"])
def test_json_within_lists_and_structs_is_refused_where_files_have_text(tmp_path: Path, where: str) -> None:
    values, json_ = [['{"a": 1}'], None], datasets.Json()
    feature = List(json_) if where == "list" else {"j": json_}
    path = file_of(tmp_path, pa.array(values if where == "list" else [{"j": "3"}]))
    with pytest.raises(fb.SettingError, match="column `x` cannot have `Json` within lists or structs"):
        fb.load_dataset(path, split="train", features=Features({"x": feature}))


def test_columns_that_are_never_null_take_features(tmp_path: Path) -> None:
    required = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"x": [0, 1]}, schema=required), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train", features=Features({"x": LABEL}))
    assert ds.features == pickle.loads(pickle.dumps(ds)).features == Features({"x": LABEL})
    assert len(ds.filter("x = 'dog'")) == 1
    assert pa.table(ds)["x"].to_pylist() == [0, 1]
    assert next(iter(ds.shuffle(1).to_torch(2)))["x"].tolist() in ([0, 1], [1, 0])
    assert list(ds.to_hf()) == list(feature_data.streamed(tmp_path / "x.parquet", features=Features({"x": LABEL})))


STRUCT = pa.struct([("a", pa.int64()), ("it's", pa.struct([("b", pa.list_(pa.string()))]))])


@pytest.mark.parametrize(
    ("stored", "wrap"),
    [
        (pa.large_list(STRUCT), List),
        (pa.list_(STRUCT), LargeList),
        (pa.list_(STRUCT, 2), LargeList),
        (pa.large_list(STRUCT), lambda struct: List(struct, length=2)),
        (pa.list_(pa.struct([pa.field("a", pa.int64(), nullable=False), STRUCT.field(1)])), LargeList),
    ],
    ids=["large", "to large", "of one length", "to one length", "never NULL"],
)
def test_lists_of_structs_become_other_lists(tmp_path: Path, stored: pa.DataType, wrap: Any) -> None:
    rows = [[{"a": 1, "it's": {"b": ["x", None]}}, {"a": 2, "it's": None}], None, [{"a": 3, "it's": {"b": None}}] * 2]
    path = file_of(tmp_path, pa.array(rows, stored))
    features = Features(x=wrap({"a": datasets.ClassLabel(num_classes=4), "it's": {"b": List(Value("string"))}}))
    ds = fb.load_dataset(path, split="train").cast(features)
    assert ds.features == features
    assert list(ds) == [{"x": row} for row in rows]
    # `datasets` loses the last row where lists of one length are NULL.
    assert (
        list(feature_data.streamed(path).cast(features))
        == list(ds)[: 2 if getattr(features["x"], "length", -1) == 2 else 3]
    )
    assert ds[1]["x"] is None
    assert list(ds.filter("x IS NOT NULL").to_hf()) == [{"x": rows[0]}, {"x": rows[2]}]


BODY: bytes = feature_data.ALL["image"][1](0)["bytes"]
NESTED_CASTS: dict[str, tuple[pa.Array, Any]] = {
    "narrower": (
        pa.array([{"text": ["a"], "start": [1, 2]}, None, {"text": None, "start": []}]),
        {"text": List(Value("string")), "start": List(Value("int32"))},
    ),
    "in another order": (
        pa.array([{"b": 1, "a": "x"}, {"b": None, "a": "y"}], pa.struct([("b", pa.int8()), ("a", pa.large_string())])),
        {"a": Value("string"), "b": Value("int64")},
    ),
    "fields that are not there": (
        pa.array([[{"role": "user"}], None, [], [None]], pa.large_list(pa.struct([("role", pa.string())]))),
        List({"role": Value("string"), "name": Value("string"), "parts": List({"n": Value("int8")})}),
    ),
    "nothing but NULL": (
        pa.array([{"a": None, "b": 1}], pa.struct([("a", pa.null()), ("b", pa.int64())])),
        {"a": {"c": Value("string")}, "b": Value("float64")},
    ),
    "times without a zone": (
        pa.array([{"at": 1}, {"at": None}], pa.struct([("at", pa.timestamp("ms"))])),
        {"at": Value("timestamp[us, tz=Europe/Berlin]")},
    ),
    "floats that round": (
        pa.array([[{"x": 0.1}, {"x": -0.0}]], pa.list_(pa.struct([("x", pa.float64())]))),
        List({"x": Value("float32")}),
    ),
    "an image in another order": (
        pa.array([{"path": "x.png", "bytes": BODY}, None], pa.struct([("path", pa.string()), ("bytes", pa.binary())])),
        datasets.Image(),
    ),
    "a large image": (
        pa.array([{"bytes": BODY}, None], pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())])),
        datasets.Image(),
    ),
    "an image with more": (
        pa.array([[{"bytes": BODY, "width": 4}]], pa.list_(pa.struct([("bytes", pa.binary()), ("width", pa.int64())]))),
        List(datasets.Image()),
    ),
    "an image's bytes": (pa.array([BODY, None]), datasets.Image()),
    "images' bytes": (pa.array([[BODY, None], None], pa.large_list(pa.large_binary())), List(datasets.Image())),
    "a path": (pa.array([{"audio": "x.wav"}, {"audio": None}]), {"audio": datasets.Audio(decode=False)}),
    "a translation": (pa.array([{"fr": "x", "en": "y"}]), datasets.Translation(["en", "fr"])),
}


@pytest.mark.parametrize("case", NESTED_CASTS)
def test_structs_become_those_that_datasets_makes_of_them(tmp_path: Path, case: str) -> None:
    values, feature = NESTED_CASTS[case]
    path, features = file_of(tmp_path, values), Features(x=feature)
    theirs = feature_data.streamed(path, features=features)
    for ds in (
        fb.load_dataset(path, split="train", features=features),
        fb.load_dataset(path, split="train").cast(features),
    ):
        assert ds.features == features
        assert feature_data.same(list(ds.decode()), list(theirs))
        assert ds.select(range(len(values))[::-1]).decode()[0]["x"] == ds.decode()[-1]["x"]
        assert sorted(map(str, pa.table(ds.shuffle(1))["x"].to_pylist())) == sorted(map(str, [row["x"] for row in ds]))


@pytest.mark.parametrize("where", ["alone", "in lists", "in structs"])
@pytest.mark.parametrize("field", ["bytes", "path"])
def test_dictionaries_of_bytes_or_paths_become_media(tmp_path: Path, field: str, where: str) -> None:
    plain = [BODY, None, BODY] if field == "bytes" else ["x.png", None, "x.png"]
    values, image = pa.array(plain).dictionary_encode(), datasets.Image(decode=False)
    media = [None if value is None else {"bytes": None, "path": None, field: value} for value in plain]
    stored, feature, expected = {
        "alone": (values, image, media),
        "in lists": (pa.ListArray.from_arrays([0, 2, 2, 3], values), List(image), [media[:2], [], media[2:]]),
        "in structs": (pa.StructArray.from_arrays([values], ["a"]), {"a": image}, [{"a": medium} for medium in media]),
    }[where]
    ds = fb.load_dataset(file_of(tmp_path, stored), split="train").cast_column("x", feature)
    assert ds.features["x"] == feature
    assert [row["x"] for row in ds] == expected


def test_a_card_makes_images_of_what_other_writers_stored(tmp_path: Path) -> None:
    stored = pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())])
    pq.write_table(pa.table({"image": pa.array([{"bytes": BODY, "path": None}], stored)}), tmp_path / "train.parquet")
    (tmp_path / "README.md").write_text("---\ndataset_info:\n  features:\n  - name: image\n    dtype: image\n---\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = fb.load_dataset(tmp_path, split="train")
    assert ds.features == Features(image=datasets.Image())
    assert ds.decode()[0]["image"].size == (4, 3)


CHOOSING: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "filter": lambda ds: ds.filter("n > 0"),
    "a filter of the column": lambda ds: ds.filter("image IS NOT NULL AND label = 'dog'"),
    "two filters": lambda ds: ds.filter("label = 'dog'").filter("label != 'cat'"),
    "conditions": lambda ds: ds.filter([("n", ">", 0)]),
    "rename": lambda ds: ds.rename_column("n", "m"),
    "another cast": lambda ds: ds.cast_column("n", Value("int8")),
    "all columns": lambda ds: ds.sql("SELECT * FROM dataset WHERE n > 0"),
    "an order": lambda ds: ds.sql("SELECT *, n + 1 AS m FROM dataset ORDER BY n DESC"),
    "a pickle": lambda ds: pickle.loads(pickle.dumps(ds.filter("label = 'dog'"))).filter("label = 'dog'"),
    "take": lambda ds: ds.filter("n > 0").select([0]),
}


@pytest.mark.parametrize("choose", CHOOSING.values(), ids=list(CHOOSING))
def test_features_stay_with_columns_that_were_cast(tmp_path: Path, choose: Callable[[fb.Dataset], fb.Dataset]) -> None:
    columns = {"image": [BODY, BODY], "label": ["cat", "dog"], "n": [0, 1]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    features = Features(image=datasets.Image(), label=LABEL, n=Value("int64"))
    chosen = choose(fb.load_dataset(tmp_path / "x.parquet", split="train", features=features))
    assert {name: chosen.features[name] for name in ("image", "label")} == {
        "image": features["image"],
        "label": features["label"],
    }
    assert chosen.decode()[0]["image"].size == (4, 3)
    # What is computed of a column is none of its classes.
    assert chosen.sql("SELECT label + 0 AS x, CAST(label AS INT) AS y FROM dataset").features == Features(
        x=Value("int64"), y=Value("int32")
    )


def test_a_value_of_a_field_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    ds = fb.load_dataset(file_of(tmp_path, pa.array([{"a": [1, 300]}])), split="train")
    with pytest.raises(fb.QueryError, match="column `x`: .*300.*Int8"):
        list(ds.cast({"x": {"a": List(Value("int8"))}}))


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        (pa.array([[{"a": 1, "b": 2}]]), LargeList({"a": Value("int64")})),
        (pa.array([[{"a": 1}]]), LargeList({"b": Value("int64")})),
        (pa.array([{"a": 1}]), {"a": Value("binary")}),
        (pa.array([{"a": [1]}]), {"a": Value("int64")}),
        (pa.array([{"a": "cat"}]), {"a": LABEL}),
        (pa.array([{"a": 1}]), datasets.Image()),
        (pa.array([1]), datasets.Image()),
        (pa.array([{"a": 1}]), Value("string")),
        (pa.array([[1]]), Value("string")),
        (pa.array([[{'a"': 1}]]), LargeList({'a"': Value("int64")})),
        (pa.array([[{"a\\": 1}]]), LargeList({"a\\": Value("int64")})),
        (pa.array([[1.0] * 8], pa.list_(pa.float32(), 8)), List(Value("float32"), length=7)),
        (pa.array([[1] * 8], pa.list_(pa.int8(), 8)), List(LABEL, length=9)),
        (pa.array([[[1] * 2]], pa.list_(pa.list_(pa.int8(), 2))), List(List(Value("int8"), length=3))),
    ],
    ids=lambda it: str(getattr(it, "type", it)),
)
def test_structs_and_lists_that_become_nothing_are_refused(tmp_path: Path, values: pa.Array, feature: Any) -> None:
    ds = fb.load_dataset(file_of(tmp_path, values), split="train")
    with pytest.raises(fb.SettingError, match="column `x` cannot be cast to `"):
        ds.cast({"x": feature})


@pytest.mark.parametrize(
    "read",
    [
        lambda ds: list(ds.decode()),
        lambda ds: list(ds.decode().batches(2)),
        lambda ds: list(ds.to_hf()),
        lambda ds: next(iter(ds.to_torch(2, compat="datasets"))),
    ],
)
@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (None, 2)], ids=str)
def test_lists_of_another_shape_are_no_arrays(tmp_path: Path, shape: Any, read: Callable[[fb.Dataset], Any]) -> None:
    path = file_of(tmp_path, pa.array([[[1, 2, 3], [4, 5, 6]], None]))
    fitting = fb.load_dataset(path, split="train").cast_column("x", datasets.Array2D((None, 3), "int64"))
    assert [row["x"] for row in fitting.decode()] == [[[1, 2, 3], [4, 5, 6]], None]
    ds = fitting.cast_column("x", datasets.Array2D(shape, "int64"))
    with pytest.raises(
        (fb.DataError, fb.TensorError), match=r"column `x` (holds a value that is no array|has no form)"
    ):
        read(ds.take(1))


SAMPLES = pa.struct([("array", pa.list_(pa.float32())), ("path", pa.string()), ("sampling_rate", pa.int64())])


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        (pa.array([{"array": [0.5], "path": "x.wav", "sampling_rate": 8000}], SAMPLES), datasets.Audio()),
        (pa.array([{"array": [0.5], "path": None, "sampling_rate": 8000}], SAMPLES), datasets.Audio(decode=False)),
        (pa.array([{"array": [0.5], "sampling_rate": 8000}]), datasets.Audio()),
        (pa.array([[{"array": [0.5], "path": None}]]), List(datasets.Audio())),
        (pa.array([[[[1, 2, 3]]]]), datasets.Image()),
        (pa.array([[[[[1, 2, 3]]]]]), List(datasets.Image())),
    ],
    ids=lambda it: str(getattr(it, "type", it)),
)
def test_pixels_and_samples_are_not_lost_but_left_to_datasets(tmp_path: Path, values: pa.Array, feature: Any) -> None:
    path = file_of(tmp_path, values)
    ds = fb.load_dataset(path, split="train")
    with pytest.raises(fb.SettingError, match=r"`x` holds pixels or samples.*`ds.to_hf\(\).cast_column\('x', ...\)`"):
        ds.cast_column("x", feature)
    if feature == datasets.Image():
        with pytest.warns(UserWarning, match="Downcasting array dtype int64 to uint8"):
            assert next(iter(ds.to_hf().cast_column("x", feature)))["x"].size == (1, 1)


def test_samples_in_a_field_of_a_struct_are_not_lost(tmp_path: Path) -> None:
    ds = fb.load_dataset(file_of(tmp_path, pa.array([{"a": {"array": [0.5], "path": "x.wav"}}])), split="train")
    with pytest.raises(fb.SettingError, match="column `x` cannot be cast to `struct<a: struct<bytes"):
        ds.cast_column("x", {"a": datasets.Audio()})


def test_what_no_cast_converts_is_refused_at_the_call(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [2.5], "l": [[2.5]], "s": [{"a": 1}], "b": [b"1"]}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    for column, feature in [("x", List(Value("int32"))), ("l", Value("int32")), ("s", Value("int32"))]:
        with pytest.raises(fb.SettingError, match=f"column `{column}` cannot be cast to "):
            ds.cast_column(column, feature)
    with pytest.raises(fb.SettingError, match="column `b` is `Binary` and cannot be cast to `Int64`"):
        ds.cast_column("b", LABEL)
    with pytest.raises(fb.SettingError, match="column `x` cannot be cast to `binary`"):
        ds.cast_column("x", Value("binary"))


@pytest.mark.parametrize("wrap", [lambda it: it, List], ids=["alone", "in lists"])
@pytest.mark.parametrize(
    ("values", "feature"),
    [
        (pa.array([1], pa.int64()), Value("binary")),
        (pa.array([1], pa.uint8()), Value("large_binary")),
        (pa.array([1], pa.int64()), Value("date32")),
        (pa.array([1], pa.date32()), Value("int64")),
        (pa.array([1], pa.date32()), LABEL),
        (pa.array([1], pa.int8()), Value("timestamp[s]")),
        (pa.array([1], pa.uint8()), Value("duration[ms]")),
        (pa.array([1], pa.timestamp("us")), Value("float64")),
    ],
    ids=lambda it: str(getattr(it, "type", it)),
)
def test_types_that_datasets_does_not_cast_are_refused(
    tmp_path: Path, wrap: Any, values: pa.Array, feature: Any
) -> None:
    path = file_of(tmp_path, values if wrap is not List else pa.array([values.to_pylist()], pa.list_(values.type)))
    with pytest.raises(pa.ArrowNotImplementedError):
        list(feature_data.streamed(path).cast_column("x", wrap(feature)))
    with pytest.raises(fb.SettingError, match="column `x` cannot be cast to `"):
        fb.load_dataset(path, split="train").cast_column("x", wrap(feature))


@pytest.mark.parametrize("in_lists", [False, True], ids=["alone", "in lists"])
@pytest.mark.parametrize(
    "data_type", [pa.int8(), pa.int32(), pa.uint8(), pa.uint64(), pa.dictionary(pa.int8(), pa.int16())]
)
def test_numbers_of_other_widths_are_classes_or_an_error(tmp_path: Path, data_type: Any, in_lists: bool) -> None:
    # Their names are the numbers of others.
    feature = ClassLabel(names=["1", "0", "7"])
    feature = List(feature) if in_lists else feature
    for last, is_class in [(2, True), (3, False), (7, False), (100, False)]:
        values = pa.array([0, None, last, 1]).cast(getattr(data_type, "value_type", data_type))
        if pa.types.is_dictionary(data_type):
            values = values.dictionary_encode()
        if in_lists:
            values = pa.ListArray.from_arrays([0, 2, 4], values)
        path = file_of(tmp_path, values)
        ds = fb.load_dataset(path, split="train").cast_column("x", feature)
        if is_class:
            assert list(ds) == list(feature_data.streamed(path).cast_column("x", feature))
            continue
        with pytest.raises(ValueError, match=f"Class label {last} greater than configured num_classes 3"):
            list(feature_data.streamed(path).cast_column("x", feature))
        with pytest.raises(fb.QueryError, match=f"no class `{last}` in column `x`; it has `0`, `1`, `2`"):
            list(ds)


def test_classes_of_numbers_are_selected_by_their_names(tmp_path: Path) -> None:
    ds = fb.load_dataset(file_of(tmp_path, pa.array([0, 1, -1, None, 2], pa.int8())), split="train")
    cast = ds.cast_column("x", LABEL)
    assert [row["x"] for row in cast] == [0, 1, -1, None, 2]
    assert len(cast.filter("x = 'dog'")) == 1
    assert len(cast.filter("x = 'dog' OR x = 'cat'").shuffle(1)) == 2


@pytest.mark.parametrize("values", [pa.array([1.0, 3.0]), pa.array([decimal.Decimal(3)]), pa.array([1.5])])
def test_other_numbers_are_classes_only_where_they_are_whole_and_known(tmp_path: Path, values: pa.Array) -> None:
    ds = fb.load_dataset(file_of(tmp_path, values), split="train").cast_column("x", LABEL)
    with pytest.raises(fb.QueryError, match="no class `3` in column `x`|`1.5` has no exact equivalent"):
        list(ds)


SKIPPED = dt.datetime(2024, 3, 31, 2, 30)
"""An hour that the clocks of Berlin leave out."""


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (pa.array([SKIPPED, None, dt.datetime(1960, 1, 1)], pa.timestamp("us")), "timestamp[us, tz=Europe/Berlin]"),
        (pa.array([SKIPPED], pa.timestamp("s")), "timestamp[ns, tz=America/New_York]"),
        (pa.array([SKIPPED], pa.timestamp("ns")), "timestamp[s, tz=+05:30]"),
        (pa.array([SKIPPED], pa.timestamp("ms")), "timestamp[ms, tz=UTC]"),
        (pa.array([SKIPPED.date(), None]), "timestamp[us, tz=Europe/Berlin]"),
        (pa.array([SKIPPED.date()], pa.date64()), "timestamp[s, tz=Europe/Berlin]"),
        (pa.array([[SKIPPED, None], None, []], pa.list_(pa.timestamp("us"))), "timestamp[us, tz=Europe/Berlin]"),
        (pa.array([[SKIPPED.date()]], pa.large_list(pa.date32())), "timestamp[us, tz=Europe/Berlin]"),
    ],
    ids=lambda it: str(getattr(it, "type", it)),
)
def test_times_without_a_zone_are_taken_for_utc_as_in_datasets(tmp_path: Path, values: pa.Array, dtype: str) -> None:
    path, feature = file_of(tmp_path, values), Value(dtype)
    if pa.types.is_list(values.type):
        feature = List(feature)
    elif pa.types.is_large_list(values.type):
        feature = datasets.LargeList(feature)
    theirs = list(feature_data.streamed(path).cast_column("x", feature))
    cast = fb.load_dataset(path, split="train").cast_column("x", feature)
    assert repr(list(cast)) == repr(theirs)
    given = fb.load_dataset(path, split="train", features=Features({"x": feature}))
    assert repr(list(given)) == repr(theirs)


def test_a_filter_on_an_instant_finds_it(tmp_path: Path) -> None:
    times = pa.array([SKIPPED + dt.timedelta(hours=hour) for hour in range(-24, 24)], pa.timestamp("us"))
    pq.write_table(pa.table({"x": times}), tmp_path / "x.parquet", row_group_size=4)
    cast = fb.load_dataset(tmp_path, split="train").cast_column("x", Value("timestamp[us, tz=Europe/Berlin]"))
    found = list(cast.filter("x = TIMESTAMP '2024-03-31T02:30:00Z'"))
    assert [row["x"].astimezone(dt.UTC).replace(tzinfo=None) for row in found] == [SKIPPED]


def test_a_feature_of_a_card_that_a_column_cannot_have_is_warned_of(tmp_path: Path) -> None:
    file_of(tmp_path, pa.array([b"1"]))
    (tmp_path / "README.md").write_text("---\ndataset_info:\n  features:\n  - name: x\n    dtype: int64\n---\n")
    with pytest.warns(UserWarning, match="features that are not those of its files: `x`"):
        assert fb.load_dataset(tmp_path, split="train").features == Features({"x": Value("binary")})


def test_cast_refuses_what_cannot_be(ds: fb.Dataset) -> None:
    with pytest.raises(fb.ColumnNotFoundError, match="did you mean `label`"):
        ds.cast({"labell": LABEL})
    with pytest.raises(fb.SettingError, match="features: expected"):
        ds.cast(7)
    with pytest.raises(fb.SettingError, match="features: 'int33' is no type"):
        ds.cast({"label": "int33"})
    with pytest.raises(fb.SettingError, match="features: "):
        ds.cast({"label": {"_type": "Unheard"}})
    with pytest.raises(fb.SettingError, match="column `label` cannot be cast to `struct"):
        ds.cast({"label": {"a": Value("int8")}})
    with pytest.raises(fb.QueryError, match=r"Cannot cast string 'row \d+' to value of Int8"):
        list(ds.select_columns("string").cast({"string": Value("int8")}))


def test_renaming_refuses_what_cannot_be(ds: fb.Dataset) -> None:
    with pytest.raises(fb.ColumnNotFoundError, match="did you mean `label`"):
        ds.rename_column("labell", "l")
    with pytest.raises(fb.SettingError, match="`int8` would be the name of two columns"):
        ds.rename_column("label", "int8")
    with pytest.raises(fb.SettingError, match="column_mapping: expected a dict"):
        ds.rename_columns(["label"])
    with pytest.raises(fb.SettingError, match="cannot be the name of a column: Arrow's C interface"):
        ds.rename_column("label", "l\0")
    with pytest.raises(fb.QueryError, match="no column can be named"):
        ds.sql('SELECT label AS "l\0" FROM dataset')
    swapped = ds.select_columns(["int8", "int16"]).rename_columns({"int8": "int16", "int16": "int8"})
    assert swapped.column_names == ["int16", "int8"]


def test_a_renamed_dataset_is_the_same_one_otherwise(ds: fb.Dataset) -> None:
    small = ds.filter("int64 > 4").select_columns(["int64", "label"])
    renamed = small.shuffle(7, window_rows=4, num_lanes=2).rename_column("int64", "n")
    expected = [row["int64"] for row in small.shuffle(7, window_rows=4, num_lanes=2).iter()]
    assert [row["n"] for row in renamed.iter()] == expected
    assert renamed.filter("n > 6").num_rows == 6


def test_rows_of_a_renamed_query_are_those_of_the_query(ds: fb.Dataset) -> None:
    query = """
        SELECT int64, label, int64 + 1 AS next, row_number() OVER (ORDER BY int64 DESC) AS place
        FROM dataset WHERE int64 > 4 ORDER BY int64 DESC
    """
    names = {"int64": "next", "next": "int64", "place": "p", "label": "l"}
    before = ds.sql(query)
    renamed = before.rename_columns(names)
    expected = pa.table(before).rename_columns([names[name] for name in before.column_names])
    assert pa.table(renamed).equals(expected)
    assert renamed.features["l"] == LABEL
    for dataset in (renamed, pickle.loads(pickle.dumps(renamed))):
        few = dataset.filter("next < 8").select_columns(["l", "p", "int64"])
        assert pa.table(few).equals(expected.filter(pa.compute.less(expected["next"], 8)).select(["l", "p", "int64"]))


def test_a_filter_means_the_columns_that_have_its_names(ds: fb.Dataset) -> None:
    swaps = {"int8": "int16", "int16": "int8"}
    small = ds.select_columns(["int8", "int16"])
    swapped = small.rename_columns(swaps)
    back = swapped.rename_columns(swaps)
    filtered = {name: dataset.filter("int8 > 3") for name, dataset in (("swapped", swapped), ("back", back))}
    assert pa.table(filtered["back"]).equals(pa.table(small.filter("int8 > 3")))
    # A state is of what was filtered by, whatever it was called.
    state = filtered["back"].batches(2).state_dict()
    small.filter("int8 > 3").batches(2).load_state_dict(state)
    with pytest.raises(fb.StateError, match="query"):
        filtered["swapped"].batches(2).load_state_dict(state)


# Without `datasets`.


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forebay as if `datasets` were not installed."""
    for module in (features, compat):
        monkeypatch.setattr(module, "datasets_module", lambda: None)


@pytest.mark.usefixtures("alone")
def test_without_datasets_features_are_its_json(ds: fb.Dataset, path: Path) -> None:
    theirs = feature_data.streamed(path).features
    ours = ds.features
    assert type(ours) is dict
    assert json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs.to_dict()))
    bare = read_features(pa.schema(ds).remove_metadata())
    assert Features.from_dict(bare) == Features.from_arrow_schema(pa.schema(ds).remove_metadata())
    assert ds.cast({"int64": {"names": ["a"], "_type": "ClassLabel"}}).features["int64"]["names"] == ["a"]
    assert ds.cast({"int8": "int32", "int16": pa.float64()}).select_columns(["int8", "int16"]).features == {
        "int8": {"dtype": "int32", "_type": "Value"},
        "int16": {"dtype": "float64", "_type": "Value"},
    }
    with pytest.raises(fb.SettingError, match=r"`decode\(\)` and compat=.* need .* `pip install datasets`"):
        ds.with_format("torch", compat="datasets")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", list(ALL))
def test_without_datasets_every_feature_has_its_type(name: str) -> None:
    features = Features({name: ALL[name][0]})
    found = features.arrow_schema.field(name).type
    assert storage_type(features.to_dict()[name]) == getattr(found, "storage_type", found)
    assert to_json(features.to_dict()) == features.to_dict()


LEAVES = st.sampled_from([feature for feature, _ in (PLAIN | BYTES).values()])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(List),
        inner.map(datasets.LargeList),
        st.builds(List, inner, length=st.integers(1, 4)),
        st.dictionaries(st.sampled_from(["a", "b c", "dtype", "list"]), inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["x", "y", "a b"]), NESTED, min_size=1))
def test_cards_tell_what_datasets_reads_in_them(columns: dict[str, Any]) -> None:
    features = Features(columns)
    entries = features._to_yaml_list()
    assert features_from_card(entries) == Features._from_yaml_list(entries)
    assert entries == features._to_yaml_list(), "what is passed is not changed"


@given(st.dictionaries(st.sampled_from(["x", "y"]), NESTED, min_size=1))
def test_types_without_datasets_are_those_with_it(columns: dict[str, Any]) -> None:
    features = Features(columns)
    for name, described in features.to_dict().items():
        wanted = features.arrow_schema.field(name)
        assert storage_type(described).equals(_stored(wanted.type))
        inferred = Features.from_arrow_schema(pa.schema([wanted]))
        assert Features.from_dict({name: infer_feature(wanted)}) == inferred


def _stored(found: pa.DataType) -> pa.DataType:
    """Returns a type with what lies below its extension types."""
    if isinstance(found, pa.BaseExtensionType):
        return _stored(found.storage_type)
    if pa.types.is_struct(found):
        return pa.struct([(field.name, _stored(field.type)) for field in found])
    if pa.types.is_fixed_size_list(found):
        return pa.list_(_stored(found.value_type), found.list_size)
    if pa.types.is_list(found):
        return pa.list_(_stored(found.value_type))
    return pa.large_list(_stored(found.value_type)) if pa.types.is_large_list(found) else found


LEGACY = [
    {"name": "a", "sequence": "int32"},
    {"name": "b", "sequence": [{"name": "x", "dtype": "int64"}, {"name": "y", "sequence": "string"}]},
    {"name": "c", "struct": [{"name": "x", "dtype": "float"}]},
    {"name": "d", "list": [{"name": "x", "dtype": "image"}]},
    {"name": "e", "dtype": {"class_label": {"names": {"0": "no", "1": "yes"}}}},
    {"name": "f", "dtype": {"audio": {"sampling_rate": 16000}}},
    {"name": "g", "dtype": {"array2_d": {"shape": [2, 3], "dtype": "float32"}}},
    {"name": "h", "sequence": {"class_label": {"names": ["x", "y"]}}, "length": 4},
    {"name": "i", "list": {"list": "double"}},
]


def test_cards_of_old_tell_what_datasets_reads_in_them() -> None:
    assert features_from_card(LEGACY) == Features._from_yaml_list(LEGACY)


@pytest.mark.parametrize(
    "entries",
    [
        [{"dtype": "int32"}],
        [{"name": "a", "dtype": {"class_label": {"names": {"0": "x", "2": "y"}}}}],
        [{"name": "a", "dtype": "unheard"}],
        ["a"],
    ],
)
def test_a_card_that_tells_no_features_is_refused(entries: Any) -> None:
    with pytest.raises(fb.SchemaError, match=r"the dataset card's `dataset_info\.features` are not valid features"):
        features_from_card(entries)


# At the opening.


def test_opening_takes_features_filters_and_columns(path: Path) -> None:
    label = ClassLabel(names=["a", "b", "c"])
    ds = fb.load_dataset(path, split="train", columns=["int64"], filters="label = 'b'", features={"label": label})
    assert [row["int64"] for row in ds] == [2, 5, 8, 11]
    conditions = fb.load_dataset(path, columns=["int64"], filters=[("label", "==", "dog"), ("int8", ">", 5)])
    assert list(conditions["train"]) == [{"int64": 8}, {"int64": 11}]
    expression = fb.load_dataset(path, split="train", filters=pa.compute.field("label") == 1, columns=["int64"])
    assert list(expression) == list(ds)


def test_features_at_the_opening_are_those_of_datasets(path: Path) -> None:
    columns = ["int8", "string", "list", "label"]
    theirs = feature_data.streamed(path).select_columns(columns).features
    wanted = Features({**theirs, "int8": Value("int64"), "list": List(Value("float64")), "label": Value("int32")})
    read = feature_data.streamed(path, columns=columns, features=wanted)
    ours = fb.load_dataset(path, split="train", columns=columns, features=wanted)
    assert ours.features == read.features
    assert list(ours) == list(read)
