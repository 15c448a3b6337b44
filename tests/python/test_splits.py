"""Splits as `datasets` cuts them: by numbers and percentages, several of them, in the order of their rows."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hub_data import ids_file
from hypothesis import example, given
from hypothesis import strategies as st

import forebay as fb
from forebay import splits

datasets = pytest.importorskip("datasets")

NUM_ROWS = {"train": 1234, "test": 77}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    start = 0
    for name, num_rows in NUM_ROWS.items():
        (folder / f"{name}.parquet").write_bytes(ids_file(start, start + num_rows, row_group_rows=100))
        start += num_rows
    return folder


def rows(folder, split):
    return [row["id"] for row in fb.load_dataset(folder, split=split).iter()]


BOUNDARIES = st.one_of(st.none(), st.integers(-130, 130), st.integers(-2000, 2000))


@given(
    BOUNDARIES,
    BOUNDARIES,
    st.sampled_from(["", "%"]),
    st.sampled_from(["", "(closest)", "(pct1_dropremainder)"]),
    st.integers(0, 300),
)
@example(None, 10, "%", "(pct1_dropremainder)", 99)
@example(None, 10, "%", "(pct1_dropremainder)", 100)
def test_a_slice_has_the_rows_of_datasets(start, stop, unit, rounding, num_rows):
    text = f"train[{'' if start is None else f'{start}{unit}'}:{'' if stop is None else f'{stop}{unit}'}]{rounding}"
    try:
        (expected,) = datasets.ReadInstruction.from_spec(text).to_absolute({"train": num_rows})
    except (ValueError, AssertionError):
        expected = None
    try:
        (part,) = splits.parse(text)
        found = part.rows(num_rows)
    except fb.SettingError:
        found = None
    if expected is None or found is None:
        assert found is expected
    else:
        assert found == (expected.from_, max(expected.from_, expected.to))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[:10%]", range(123)),
        ("train[100:200]", range(100, 200)),
        ("train[-1000:]", range(234, 1234)),
        ("train[20%:80%](pct1_dropremainder)", range(240, 960)),
        ("test+train", [*range(1234, 1311), *range(1234)]),
        (" train + test ", range(1311)),
        ("all", range(1311)),
        ("train[:5]+train[5:7]+test[-2:]", [*range(7), 1309, 1310]),
        ("train[:3]+train[1000:1002]", [0, 1, 2, 1000, 1001]),
        ("test[-1:]+train[:1]", [1310, 0]),
        ("train[5:5]", []),
        ("train[9:2]", []),
    ],
)
def test_rows_of_splits_are_read_in_their_order(folder, split, expected):
    assert rows(folder, split) == list(expected)


def test_a_file_that_several_patterns_fit_is_there_once(folder):
    found = sorted(str(path) for path in folder.rglob("*.parquet"))
    files = [f"{folder}/**/*.parquet", found[0], found[0].replace("/", "/./", 1)]
    once = fb.load_dataset("parquet", data_files=files, split="train")
    assert once._native.num_objects == len(found)
    assert len(once) == sum(NUM_ROWS.values())


def test_what_datasets_has_for_a_split_is_taken(folder):
    assert rows(folder, datasets.Split.TEST) == list(range(1234, 1311))
    assert rows(folder, datasets.ReadInstruction("train", to=10, unit="%")) == list(range(123))
    assert rows(folder, datasets.Split.TRAIN + datasets.Split.TEST) == rows(folder, "train+test")
    three = datasets.Split.TRAIN + (datasets.Split.TEST + datasets.NamedSplit("validation"))
    assert splits.text_of(three) == "train+test+validation"
    with pytest.raises(fb.SettingError, match="cannot understand"):
        rows(folder, datasets.Split.TRAIN.subsplit(datasets.percent[:10]) + datasets.Split.TEST)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("train[", "cannot understand `train[`"),
        ("train[a:b]", "cannot understand"),
        ("train[1__0:]", "`1__0` is not a number"),
        ("tr/ain", "cannot understand"),
        ("train+", "cannot understand"),
        ("train[:101%]", "expected -100% to 100%"),
        ("train[:10](closest)", "only percentages are rounded"),
        ("train[:10%](up)", "only percentages are rounded"),
        ("train[:10%](closest)+test[:10%](pct1_dropremainder)", "rounds in two ways"),
        ("train+train", "names a split twice"),
        ("train[:10]+train[5:20]", "overlap, or are not in the order"),
        ("train[50:]+train[:10]", "overlap, or are not in the order"),
        ("test[:10%](pct1_dropremainder)", "`test` has 77 rows"),
        ("all[:10%]", "name the splits: `train[:10%]+test[:10%]`"),
        ("dev", "no split `dev`"),
        ("train+dev", "no split `train+dev`"),
        (3, "got 3"),
        (["train", "test"], "several datasets take a call each"),
    ],
)
def test_a_split_that_means_nothing_is_refused(folder, split, words):
    with pytest.raises(fb.SettingError) as caught:
        rows(folder, split)
    assert words in str(caught.value)


def test_a_slice_is_shuffled_resumed_and_pickled_like_any_other(folder):
    dataset = fb.load_dataset(folder, split="train[500:600]+test[:7]").shuffle(3)
    stream = dataset.batches(10, remainder="keep")
    whole = [row for batch in stream for row in pa.record_batch(batch)["id"].to_pylist()]
    assert sorted(whole) == [*range(500, 600), *range(1234, 1241)]
    again = pickle.loads(pickle.dumps(dataset)).batches(10, remainder="keep")
    batches = iter(again)
    first = [row for _ in range(4) for row in pa.record_batch(next(batches))["id"].to_pylist()]
    resumed = dataset.batches(10, remainder="keep")
    resumed.load_state_dict(again.state_dict())
    rest = [row for batch in resumed for row in pa.record_batch(batch)["id"].to_pylist()]
    assert first + rest == whole
    with pytest.raises(fb.StateError, match="query"):
        fb.load_dataset(folder, split="train[500:601]+test[:7]").shuffle(3).batches(10).load_state_dict(
            stream.state_dict()
        )


def test_files_in_a_bucket_are_chosen_by_patterns_and_cut(bucket, folder):
    url = bucket.upload(folder, "d/")
    options = bucket.storage_options

    def ids(path, **arguments):
        return [row["id"] for row in fb.load_dataset(path, storage_options=options, **arguments).iter()]

    assert ids(url, split="train[:3]+test[:1]") == [0, 1, 2, 1234]
    assert ids(url, data_files={"a": "tes*.parquet", "b": "train.parquet"}, split="a[-1:]+b[:1]") == [1310, 0]
    assert ids(bucket.url, data_dir="d", split="test[:1]") == [1234]
    assert ids("parquet", data_files=[f"{url}test.parquet"], split="train[:1]") == [1234]
    with pytest.raises(fb.NotFoundError, match=r"d/no\*"):
        ids(url, data_files="no*", split="train")
    with pytest.raises(fb.SettingError, match="no split `c`"):
        ids(url, data_files={"a": "tes*.parquet"}, split="c")


def test_a_manifest_of_several_splits_is_opened_by_their_names_together(folder, tmp_path):
    both = fb.load_dataset(folder, split="train+test")
    both.save_manifest(tmp_path / "both.forebay")
    assert list(fb.load_dataset(tmp_path / "both.forebay")) == ["train+test"]
    assert fb.load_dataset(tmp_path / "both.forebay", split="train+test").num_rows == 1311
    with pytest.raises(fb.SettingError, match="no split `train`"):
        fb.load_dataset(tmp_path / "both.forebay", split="train[:5]+test")
    # Of a slice, the objects that it is of.
    fb.load_dataset(folder, split="test[:5]").save_manifest(tmp_path / "test.forebay")
    assert fb.load_dataset(tmp_path / "test.forebay", split="test").num_rows == 77
