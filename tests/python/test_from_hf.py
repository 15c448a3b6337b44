"""`from_hf`: what `datasets` would stream from Parquet becomes a dataset of ours, or the step that cannot is named."""

from __future__ import annotations

import datetime as dt
import math
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import datasets
import PIL.Image
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from datasets.distributed import split_dataset_by_node
from hf_data import open_rows, rows_table, shown, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from image_data import encoded

import forebay as fb
from forebay.hf.filters import to_exact_sql
from forebay.hf.taken import _store_options, _uri

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("from-hf")
    write_rows(made)
    return made


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.parquet")))


def streamed(files: Any, **settings: Any) -> Any:
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, **settings)


ROWS: dict[str, Callable[[datasets.IterableDataset], datasets.IterableDataset]] = {
    "all": lambda ds: ds,
    "selected columns": lambda ds: ds.select_columns(["text", "id"]),
    "selected twice": lambda ds: ds.select_columns(["text", "id", "score"]).select_columns(["score", "id"]),
    "removed columns": lambda ds: ds.remove_columns(["text", "at"]).remove_columns("id"),
    "removed of selected": lambda ds: ds.select_columns(["text", "id", "at"]).remove_columns("id"),
    "selected of others": lambda ds: ds.remove_columns("at").select_columns(["text", "id"]),
    "a shard": lambda ds: ds.shard(3, 1),
}


@pytest.mark.parametrize("rows", ROWS)
def test_the_rows_are_those_that_datasets_streams(paths: list[str], rows: str) -> None:
    theirs = ROWS[rows](streamed(paths))
    ours = fb.from_hf(theirs)
    assert isinstance(ours, fb.Dataset)
    assert shown(list(ours)) == shown(list(theirs))


@pytest.mark.parametrize(
    "load",
    {
        "a folder": lambda folder, _: datasets.load_dataset(str(folder), split="train", streaming=True),
        "a glob": lambda folder, _: streamed(str(folder / "*.parquet")),
        "files in another order": lambda _, paths: streamed(paths[::-1]),
        "from_parquet": lambda _, paths: datasets.IterableDataset.from_parquet(paths),
        "columns": lambda _, paths: streamed(paths, columns=["score", "id"]),
        "a batch size": lambda _, paths: streamed(paths, batch_size=5),
    }.items(),
    ids=lambda load: load[0],
)
def test_the_files_are_those_that_were_loaded(folder: Path, paths: list[str], load: Any) -> None:
    theirs = load[1](folder, paths)
    assert shown(list(fb.from_hf(theirs))) == shown(list(theirs))


def test_names_that_say_no_split_or_another_are_read_all_the_same(tmp_path: Path) -> None:
    for name in ("test-1.parquet", "test-2.parquet"):
        pq.write_table(rows_table(10), tmp_path / name)
    theirs = streamed(str(tmp_path / "*.parquet"))
    assert fb.from_hf(theirs).num_rows == 20
    pq.write_table(rows_table(10), tmp_path / "train-1.parquet")
    pq.write_table(rows_table(5), tmp_path / "extra.parquet")
    theirs = streamed(str(tmp_path / "*.parquet"))
    assert fb.from_hf(theirs).num_rows == 35
    assert shown(list(fb.from_hf(theirs))) == shown(list(theirs))


def test_a_file_that_is_in_a_split_twice_is_refused(paths: list[str]) -> None:
    with pytest.raises(fb.SettingError, match="is in a split twice"):
        fb.from_hf(streamed([paths[0], paths[0]]))


def test_what_to_hf_was_cast_to_comes_back_or_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "label": [0, 1]}), tmp_path / "a.parquet")
    label = datasets.ClassLabel(names=["cat", "dog"])
    plain = fb.load_dataset(tmp_path, split="train").to_hf()
    assert fb.from_hf(plain.cast_column("label", label)).features["label"] == label
    with pytest.raises(fb.SettingError, match="column `id` is `int64` in the files, expected `string`"):
        fb.from_hf(plain.cast_column("id", datasets.Value("string")))


def test_classes_of_features_come_along(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "label": [0, 1]}), tmp_path / "a.parquet")
    features = datasets.Features({"id": datasets.Value("int64"), "label": datasets.ClassLabel(names=["cat", "dog"])})
    theirs = streamed(str(tmp_path / "a.parquet"), features=features)
    assert fb.from_hf(theirs).features == features


def test_a_dict_of_splits_becomes_one(paths: list[str]) -> None:
    files = {"train": paths[:2], "validation": paths[2:]}
    taken = fb.from_hf(datasets.load_dataset("parquet", data_files=files, streaming=True))
    assert isinstance(taken, fb.DatasetDict)
    assert {name: ds.num_rows for name, ds in taken.items()} == {"train": 80, "validation": 40}


def test_the_format_comes_along(paths: list[str]) -> None:
    theirs = streamed(paths).select_columns(["id", "score"]).with_format("numpy")
    assert type(fb.from_hf(theirs)[:]["id"]).__module__ == "numpy"


def test_what_to_hf_made_comes_back(paths: list[str]) -> None:
    ours = open_rows(paths).filter("id > 7").shuffle(3)
    taken = fb.from_hf(ours.to_hf().select_columns("id"))
    assert [row["id"] for row in taken] == [row["id"] for row in ours]


STEPS: dict[str, Callable[[datasets.IterableDataset], Any]] = {
    "map": lambda ds: ds.map(lambda row: row),
    "filter": lambda ds: ds.filter(lambda row: bool(row)),
    "shuffle": lambda ds: ds.shuffle(1),
    "batch": lambda ds: ds.batch(3),
    "rename_columns": lambda ds: ds.rename_column("id", "number").remove_columns("text"),
    "add_column": lambda ds: ds.add_column("extra", list(range(1000))),
    "take": lambda ds: ds.take(3),
    "skip": lambda ds: ds.skip(3),
    "repeat": lambda ds: ds.repeat(2),
    "reshard": lambda ds: ds.reshard(),
    "interleave_datasets": lambda ds: datasets.interleave_datasets([ds, ds]),
    "concatenate_datasets": lambda ds: datasets.concatenate_datasets([ds, ds]),
    "split_dataset_by_node": lambda ds: split_dataset_by_node(ds, 0, 2),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_cannot_be_taken_over_is_named(paths: list[str], step: str) -> None:
    with pytest.raises(fb.SettingError, match=f"dataset: `{step}` was called on it.*pass the dataset before that step"):
        fb.from_hf(STEPS[step](streamed(paths)))


@pytest.mark.parametrize("step", ["batch", "repeat", "concatenate_datasets", "interleave_datasets"])
def test_what_to_do_about_a_step_works(paths: list[str], step: str) -> None:
    theirs = streamed(paths)
    with pytest.raises(fb.SettingError) as refused:
        fb.from_hf(STEPS[step](theirs))
    (code,) = re.findall(r"`(fb\.[^`]+)`", str(refused.value))
    assert eval(code, {"fb": fb, "ds": theirs, "n": 2}) is not None


def test_features_that_are_refused_can_be_cast_to_afterwards(paths: list[str]) -> None:
    features = datasets.Features({"id": datasets.Value("string")})
    with pytest.raises(fb.SettingError, match=r"was cast, then cast it: `fb.from_hf\(ds\).cast\(features\)`$"):
        fb.from_hf(streamed(paths).cast_column("id", features["id"]))
    assert fb.from_hf(streamed(paths)).cast(features).features["id"] == features["id"]


def test_steps_on_what_to_hf_made_are_named(paths: list[str]) -> None:
    ours = open_rows(paths).to_hf()
    for step in ("take", "skip"):
        with pytest.raises(fb.SettingError, match=f"dataset: `{step}` was called.*`fb.from_hf\\(ds\\).{step}\\(n\\)`"):
            fb.from_hf(STEPS[step](ours))
    with pytest.raises(fb.SettingError, match="dataset: `shard` was called"):
        fb.from_hf(ours.shard(2, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: datasets.Dataset.from_dict({"a": [1]}), "expected a `datasets.IterableDataset`, got Dataset"),
        (lambda _: 3, "got int; load it with `streaming=True`"),
        (lambda paths: fb.load_dataset(paths, split="train"), "got Dataset of Forebay; use it as it is$"),
        (lambda _: datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset(), "expected one of Parquet files"),
        (lambda paths: streamed(paths, on_bad_files="skip"), "on_bad_files: expected 'error', got 'skip'"),
        (
            lambda paths: streamed(paths).cast_column("id", datasets.Value("string")),
            "column `id` is `int64` in the files, expected `string`",
        ),
    ],
)
def test_what_is_not_a_stream_of_parquet_is_refused(paths: list[str], make: Any, message: str) -> None:
    with pytest.raises(fb.SettingError, match=message):
        fb.from_hf(make(paths))


def test_files_are_cast_to_the_features_that_they_are_read_with(paths: list[str]) -> None:
    features = datasets.Features({"id": datasets.Value("string"), "text": datasets.Value("string")})
    theirs = streamed(paths, columns=["id", "text"], features=features)
    assert fb.from_hf(theirs).features == features
    assert list(fb.from_hf(theirs)) == list(theirs)
    with pytest.raises(fb.SettingError, match="column `id` is `int64` in the files, expected `int32`.*cast"):
        fb.from_hf(theirs.cast_column("id", datasets.Value("int32")))


@pytest.mark.parametrize("is_enabled", [False, True])
def test_files_are_cast_to_the_features_of_a_card(tmp_path: Path, is_enabled: bool) -> None:
    body = encoded(PIL.Image.new("RGB", (4, 3)), "PNG")
    pq.write_table(pa.table({"image": [body], "label": pa.array([1], pa.int8())}), tmp_path / "train.parquet")
    label = "{name: label, dtype: {class_label: {names: {'0': cat, '1': dog}}}}"
    card = f"---\ndataset_info:\n  features:\n  - {{name: image, dtype: image}}\n  - {label}\n---\n"
    (tmp_path / "README.md").write_text(card)
    with fb.hf.enable() if is_enabled else nullcontext():
        theirs = datasets.load_dataset(str(tmp_path), split="train", streaming=True)
    ours = fb.from_hf(theirs)
    assert ours.features == theirs.features == fb.load_dataset(tmp_path, split="train").features
    assert [(row["image"].size, row["label"]) for row in ours.decode()] == [((4, 3), 1)]
    assert fb.from_hf(theirs.select_columns("label")).features == datasets.Features(label=theirs.features["label"])


def test_required_items_and_fields_are_those_of_the_features(tmp_path: Path) -> None:
    number = pa.field("number", pa.int64(), nullable=False)
    columns = {
        "list": pa.array([[1], [2, 3]], pa.list_(number)),
        "struct": pa.array([{"number": 1}, {"number": 2}], pa.struct([number])),
        "deep": pa.array([[{"number": 1}], []], pa.list_(pa.field("item", pa.struct([number]), nullable=False))),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    theirs = streamed(str(tmp_path / "a.parquet"))
    ours = fb.from_hf(theirs)
    assert ours.features == theirs.features
    assert list(ours) == list(theirs)


@pytest.mark.parametrize("columns", [["id", "nothing"], "id", ("id",), ["id", "id"]], ids=str)
def test_columns_that_datasets_refuses_are_refused(paths: list[str], columns: Any) -> None:
    theirs = streamed(paths, columns=columns)
    with pytest.raises((ValueError, KeyError)):
        list(theirs)
    with pytest.raises(fb.SettingError, match="columns: .*(expected a list|no column 'nothing'|'id' is named twice)"):
        fb.from_hf(theirs)


def test_files_in_files_are_refused() -> None:
    with pytest.raises(fb.SettingError, match="lies in another file"):
        _uri("zip://rows.parquet::https://example.org/rows.zip")


def test_schemes_of_fsspec_are_those_of_our_stores() -> None:
    for theirs, ours in (("gcs", "gs"), ("abfs", "az"), ("s3a", "s3"), ("s3", "s3"), ("gs", "gs"), ("https", "https")):
        assert _uri(f"{theirs}://bucket/d/rows.parquet") == f"{ours}://bucket/d/rows.parquet"


def test_options_of_fsspec_are_translated_or_refused() -> None:
    given = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": "http://localhost"}, "token": None}
    expected = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_endpoint": "http://localhost"}
    of_hub = {"endpoint": datasets.config.HF_ENDPOINT, "token": "t"}
    for options in (given, {"s3": given}, {"s3": given, "key": "c", "https": {"headers": {}}}, given | {"hf": of_hub}):
        assert _store_options(options, "s3://bucket/a.parquet") == expected
    assert _store_options({"s3a": given}, "s3a://bucket/a.parquet") == expected
    assert _store_options({"s3": given}, "gs://bucket/a.parquet") == {}
    anonymous = _store_options({"anon": True, "token": "t"}, "s3://bucket/a.parquet")
    assert anonymous == {"aws_skip_signature": "True", "aws_session_token": "t"}
    assert _store_options({"account_name": "n"}, "abfs://box/a.parquet") == {"azure_storage_account_name": "n"}
    assert _store_options({"headers": {}, "hf": of_hub}, "/data/a.parquet") == {}, "as `datasets` opens local files"


def test_the_endpoint_of_the_hub_comes_along() -> None:
    usual = datasets.config.HF_ENDPOINT
    options = {"hf": {"endpoint": "https://hub.example.org", "token": "t"}}
    for file in ("hf://datasets/a/b@main/c.parquet", f"{usual}/datasets/a/b/resolve/main/c.parquet"):
        assert _store_options(options, file) == {"hf_endpoint": "https://hub.example.org"}
        assert _store_options({"hf": {"endpoint": usual, "token": None}}, file) == {}


@pytest.mark.parametrize(
    ("options", "file", "unknown"),
    [
        ({"key": "a", "requester_pays": True}, "s3://bucket/a.parquet", "requester_pays"),
        ({"key": "a", "s3_additional_kwargs": {"a": 1}}, "s3://bucket/a.parquet", "s3_additional_kwargs"),
        ({"client_kwargs": {"verify": False}}, "s3://bucket/a.parquet", "verify"),
        ({"headers": {"Authorization": "x"}}, "https://example.org/a.parquet", "headers"),
        ({"https": {"headers": {"Authorization": "x"}}}, "https://example.org/a.parquet", "headers"),
        ({"gs": {"token": "cloud"}}, "gs://bucket/a.parquet", "token"),
        ({"s3a": {"key": "a", "use_ssl": False}}, "s3a://bucket/a.parquet", "use_ssl"),
        ({"abfs": {"connection_string": "x"}}, "abfs://box/a.parquet", "connection_string"),
        ({"hf": {"block_size": 1}}, "hf://datasets/a/b@main/c.parquet", "block_size"),
    ],
)
def test_options_of_fsspec_that_forebay_has_not_are_refused(options: dict[str, Any], file: str, unknown: str) -> None:
    with pytest.raises(fb.SettingError, match=f"does not know {unknown} of `fsspec`; pass `storage_options`"):
        _store_options(options, file)
    assert _store_options(options, file, may_leave_out=True).keys() <= {"aws_access_key_id"}


def test_filters_that_are_none_are_refused_not_forgotten(paths: list[str]) -> None:
    with pytest.raises(fb.SettingError, match="filter"):
        fb.from_hf(streamed(paths, filters=[("id", "~", 10)]))


def test_filters_are_taken_over_where_they_can_be_translated(paths: list[str]) -> None:
    pytest.importorskip("forebay.filters")
    theirs = streamed(paths, filters=[("id", "<", 10), ("group", "!=", 1)])
    assert shown(list(fb.from_hf(theirs))) == shown(list(theirs))


# Every row group of two has a NULL or a NaN beside a value.
ODD = pa.table(
    {
        "id": range(12),
        "lang": ["de", None, "en", None, "fr", "de"] * 2,
        "s": [1.0, math.nan, 5.0, None, math.nan, 7.0, 0.0, -0.0, 5.0, 5.0, None, math.nan],
        "f": pa.array([0.1, None, 0.5, math.nan, 2.0, 0.1] * 2, pa.float32()),
        "n": pa.array([0, 1, None, 3] * 3, pa.int32()),
        "u": pa.array([0, 1, None, 200, 4, 5] * 2, pa.uint64()),
        "b": [True, None, False] * 4,
        "at": pa.array([dt.datetime(2026, 1, 1), None, dt.datetime(2026, 1, 2)] * 4, pa.timestamp("ns")),
    }
)
MEMBERS: dict[str, list[Any]] = {
    "lang": ["de", "en", ""],
    "s": [-0.0, 0.0, 1, 4.0, 5.0, math.nan],
    "f": [0.1, 0.5, 1, math.nan],
    "n": [0, 1, 3, 2.5],
    "u": [0, 5, 200],
    "b": [True, False],
    "at": [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)],
}


def write_odd(folder: Path) -> str:
    pq.write_table(ODD, folder / "odd.parquet", row_group_size=2)
    return str(folder / "odd.parquet")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, fb.Dataset]:
    path = write_odd(tmp_path_factory.mktemp("odd"))
    return path, fb.load_dataset(path, split="train")


def conditions() -> st.SearchStrategy[tuple[str, str, Any]]:
    def of(column: str) -> st.SearchStrategy[tuple[str, str, Any]]:
        value = st.sampled_from(MEMBERS[column])
        compared = st.tuples(st.just(column), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), value)
        members = st.lists(value, min_size=1, max_size=3)
        return compared | st.tuples(st.just(column), st.sampled_from(["in", "not in"]), members)

    return st.sampled_from(sorted(MEMBERS)).flatmap(of)


def expressions() -> st.SearchStrategy[pc.Expression]:
    one = conditions().map(lambda condition: pq.filters_to_expression([condition]))
    tests = st.sampled_from([pc.field(name).is_null() for name in MEMBERS] + [pc.field("b"), pc.field("s").is_nan()])
    columns = st.sampled_from(
        [pc.field("f") > pc.field("s"), pc.field("s") <= pc.field("f"), pc.field("s") == pc.field("f")]
    )
    return st.recursive(
        one | tests | columns,
        lambda some: (
            st.tuples(some, some).map(lambda two: two[0] & two[1])
            | st.tuples(some, some).map(lambda two: two[0] | two[1])
            | some.map(lambda it: ~it)
        ),
        max_leaves=4,
    )


@given(st.lists(st.lists(conditions(), min_size=1, max_size=2), min_size=1, max_size=2) | expressions())
@settings(deadline=None)
def test_any_filters_are_those_of_datasets_or_refused(odd: tuple[str, fb.Dataset], filters: Any) -> None:
    path, ds = odd
    try:
        text, params = to_exact_sql(filters, ds.schema)
    except fb.SettingError:
        return
    theirs = pq.read_table(path, filters=filters)["id"].to_pylist()
    assert [row["id"] for row in ds.filter(text, params=params)] == theirs


F = pc.field
SAME = [
    [("lang", "not in", ["de"])],
    [("lang", "not in", ["de", "en"]), ("n", "!=", 1)],
    [("s", ">", 4.0)],
    [("s", ">", 0), ("s", "<=", 5.0)],
    [("f", "in", [0.5, 2])],
    [("f", ">", 0.1)],
    [("n", ">", 0.5)],
    [("u", "==", 200)],
    [("at", ">", dt.datetime(2026, 1, 1))],
    F("s") > 4.0,
    F("s") < F("f"),
    ~(F("n") > 1) | F("s").is_null(),
    ~F("lang").isin(["de"]),
]


@pytest.mark.parametrize("filters", SAME, ids=str)
def test_filters_keep_the_rows_that_datasets_keeps(odd: tuple[str, fb.Dataset], filters: Any) -> None:
    theirs = streamed(odd[0], filters=filters)
    assert [row["id"] for row in fb.from_hf(theirs)] == [row["id"] for row in theirs] != []


UNSURE = [
    [("s", "not in", [5.0])],
    [("s", "!=", 5.0)],
    [("s", "in", [0.0])],
    [("s", "==", math.nan)],
    ~(F("s") > 4.0),
    F("s").is_nan(),
    (F("s") > 4.0) == F("b"),
]


@pytest.mark.parametrize("filters", UNSURE, ids=str)
def test_filters_whose_rows_depend_on_row_groups_are_refused(odd: tuple[str, fb.Dataset], filters: Any) -> None:
    with pytest.raises(
        fb.SettingError, match=r"(?s)NaN or -0\.0, what pyarrow keeps depends.*load it without `filters`"
    ):
        fb.from_hf(streamed(odd[0], filters=filters))


def test_fractions_that_a_column_of_32_bits_has_not_are_refused(odd: tuple[str, fb.Dataset]) -> None:
    """pyarrow finds 0.1 in a row group, unless its bounds, which are not quite 0.1, say that it is not there."""
    with pytest.raises(fb.SettingError, match=r"(?s)looks for `0\.1` in a column of type `float`, but it is not a"):
        fb.from_hf(streamed(odd[0], filters=[("f", "in", [0.1])]))


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        (pa.array([0.1, 0.5]), pa.array([0.1, 0.5], pa.float32()), 0.1),
        (
            pa.array([dt.datetime(2024, 1, 1, 5)], pa.timestamp("us")),
            pa.array([dt.date(2024, 1, 1)]),
            dt.datetime(2024, 1, 1, 5),
        ),
    ],
    ids=["fractions of 32 bits", "dates"],
)
def test_lists_that_pyarrow_rounds_to_the_type_of_each_file_are_refused(
    tmp_path: Path, first: pa.Array, second: pa.Array, value: Any
) -> None:
    for number, array in enumerate((first, second)):
        pq.write_table(
            pa.table({"x": array, "s": pa.StructArray.from_arrays([array], ["x"])}), tmp_path / f"{number}.parquet"
        )
    files = [str(tmp_path / f"{number}.parquet") for number in (0, 1)]
    with pytest.raises(fb.SettingError, match=r"(?s)files have column `x` in several types.*load it without"):
        fb.from_hf(streamed(files, filters=[("x", "in", [value, value])]))
    for column in (F("x"), F("s", "x")):
        with pytest.raises(fb.SettingError, match=r"(?s)files have column `[xs]` in several types.*load it without"):
            fb.from_hf(streamed(files, filters=column.isin([value, value])))
        same = streamed(files, filters=column <= value)
        assert list(fb.from_hf(same)) == list(same)
    assert fb.from_hf(streamed(files[:1], filters=F("x").isin([value]))).num_rows == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1], pa.int8()), pa.array([3, None])),
        (pa.array([0.5], pa.float32()), pa.array([0.1])),
        (pa.array(["a"]), pa.array(["b"], pa.large_string())),
        (pa.array([[0.5]], pa.list_(pa.float32())), pa.array([[0.1], None])),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.array([[3, 4]])),
        (pa.array([[{"a": 1}]]), pa.array([[{"a": 2}], None], pa.large_list(pa.struct([("a", pa.int64())])))),
        (pa.array([{"a": 1, "b": 2}]), pa.array([{"b": 3}])),
        (pa.array([5], pa.timestamp("ms")), pa.array([7000], pa.timestamp("us"))),
        (pa.array([b"a"]), pa.array(["b"])),
    ],
    ids=lambda array: str(array.type),
)
def test_files_that_differ_have_the_types_of_the_first(tmp_path: Path, first: pa.Array, second: pa.Array) -> None:
    for number, array in enumerate((first, second)):
        pq.write_table(pa.table({"x": array, "id": range(len(array))}), tmp_path / f"{number}.parquet")
    files = [str(tmp_path / f"{number}.parquet") for number in (0, 1)]
    for theirs in (streamed(files), streamed(files, filters=[("id", "<", 1)]), streamed(files).select_columns("x")):
        taken = fb.from_hf(theirs)
        assert taken.features == theirs.features
        assert list(taken) == list(theirs)


def test_a_value_that_the_type_of_the_first_file_has_not_is_an_error(tmp_path: Path) -> None:
    for number, array in enumerate((pa.array([1], pa.int8()), pa.array([300]))):
        pq.write_table(pa.table({"x": array}), tmp_path / f"{number}.parquet")
    theirs = streamed([str(tmp_path / f"{number}.parquet") for number in (0, 1)])
    with pytest.raises(pa.ArrowInvalid, match="300 not in range"):
        list(theirs)
    with pytest.raises(fb.QueryError, match="column `x`.*300"):
        list(fb.from_hf(theirs))


def test_files_that_are_gone_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    theirs = streamed(str(tmp_path / "rows.parquet"))
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(fb.NotFoundError, match="rows.parquet"):
        fb.from_hf(theirs)


def test_options_of_the_call_are_over_those_of_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    theirs = streamed(str(tmp_path / "a.parquet"))
    builder = theirs._ex_iterable.generate_tables_fn.__self__
    builder.storage_options = {"key": "of the dataset", "secret": "s", "requester_pays": True}
    theirs._ex_iterable.kwargs["files"] = ["s3://bucket/a.parquet"]
    seen = {}

    def load(*_: Any, storage_options: Any, **__: Any) -> Any:
        seen.update(storage_options)
        return fb.load_dataset(tmp_path, split="train")

    monkeypatch.setattr("forebay.hf.taken.load_dataset", load)
    fb.from_hf(theirs, storage_options={"aws_access_key_id": "of the call"})
    assert seen == {"aws_access_key_id": "of the call", "aws_secret_access_key": "s"}


def test_options_for_rows_that_are_ours_already_are_refused(paths: list[str]) -> None:
    ours = fb.from_hf(streamed(paths)).to_hf()
    assert len(fb.from_hf(ours, storage_options={})) == len(ours)
    with pytest.raises(fb.SettingError, match="storage_options: .* already"):
        fb.from_hf(ours, storage_options={"aws_region": "eu-central-1"})
