"""Names that users of `datasets` know: what they are told instead, and that it works."""

from __future__ import annotations

import inspect
import re

import datasets
import datasets.distributed
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.utils.data

import forebay as fb
from forebay import familiar


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("familiar") / "train.parquet"
    columns = {"lang": ["de", "en"] * 50, "score": [i / 7 for i in range(100)], "x": list(range(100))}
    pq.write_table(pa.table(columns | {"a": [{"b": i} for i in range(100)], "name": [i % 2 for i in range(100)]}), path)
    return path


@pytest.fixture(scope="module")
def ds(path):
    return fb.load_dataset(path, split="train")


def _code(advice: str) -> list[str]:
    """Returns what an advice has in backticks, except names alone."""
    return [code for code in re.findall(r"`([^`]+)`", advice) if not code.replace(".", "").isidentifier()]


@pytest.mark.parametrize("name", familiar.OF_DATASET)
def test_what_a_dataset_does_not_have_has_another_name_that_works(name, ds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError, match=f"a dataset has no `{name}`; instead: ") as refused:
        getattr(ds, name)
    known = {"ds": ds, "n": 10, "seed": 1, "function": dict, "name": "name", "names": ["no", "yes"]}
    known |= {"datasets": datasets, "pyarrow": pa, "polars": pl, "duckdb": duckdb}
    known["side"] = pa.table({"lang": ["de"], "country": ["DE"]})
    for code in _code(str(refused.value).partition("instead: ")[2]):
        exec(code, known)
    for written in tmp_path.iterdir():
        kind = written.suffix.removeprefix(".")
        assert name.endswith(kind)
        assert duckdb.sql(f"SELECT x FROM read_{kind}('{written}')").fetchall() == [(x,) for x in range(100)]
    if name == "train_test_split":
        parts = [len(ds.select(known["test"])), len(ds.select(ds.selection() - known["test"]))]
        assert parts == [10, 90]


@pytest.mark.parametrize("name", familiar.OF_QUERY_RESULT)
def test_what_the_result_of_a_query_does_not_have_has_another_name_that_works(name, ds):
    result = ds.query("SELECT lang, count(*) AS n FROM dataset GROUP BY lang")
    with pytest.raises(AttributeError, match=f"the result of a query has no `{name}`; instead: ") as refused:
        getattr(result, name)
    for code in _code(str(refused.value).partition("instead: ")[2]):
        counts = ds.query("SELECT lang, count(*) AS n FROM dataset GROUP BY lang")
        assert len(eval(code, {"result": counts, "pyarrow": pa, "polars": pl, "pandas": pd})) == 2
    assert "`pyarrow.table(result)`" in repr(result)
    with pytest.raises(AttributeError, match="^the result of a query has no `no_such_name`$"):
        result.no_such_name  # noqa: B018 - looked up


@pytest.mark.parametrize("name", familiar.OF_MODULE)
def test_what_the_module_does_not_have_has_another_name_that_works(name, ds, path, tmp_path):
    assert any(hasattr(library, name) for library in (datasets, datasets.distributed, pl))
    with pytest.raises(AttributeError, match=f"no `{name}`; instead: ") as refused:
        getattr(fb, name)
    known = {"a": ds, "b": ds, "ds": ds, "n": 10, "path": path, "datasets": datasets, "forebay": fb}
    known |= {"folder": tmp_path / "saved", "file": str(tmp_path / "train.parquet")}
    datasets.Dataset.from_dict({"n": [1]}).save_to_disk(known["folder"])
    for code in _code(str(refused.value).partition("instead: ")[2]):
        exec(code, known)


def test_other_names_are_missing_as_everywhere(ds):
    assert not hasattr(ds, "no_such_name")
    assert not hasattr(fb, "no_such_name")
    with pytest.raises(AttributeError, match="^a dataset has no `no_such_name`$"):
        ds.no_such_name  # noqa: B018 - looked up
    with pytest.raises(ImportError, match="no_such_name"):
        from forebay import no_such_name  # noqa: F401


@pytest.mark.parametrize("name", familiar.BEHIND_FUNCTIONS)
def test_what_a_dataset_with_functions_does_not_have_has_another_name_that_works(name, ds):
    mapped = ds.map(dict, batched=True)
    with pytest.raises(AttributeError, match=f"a dataset with functions has no `{name}`; instead: ") as refused:
        getattr(mapped, name)
    is_before = "instead: before `map`, " in str(refused.value)
    assert is_before or "batches(n)" in str(refused.value) or ".map(function" in str(refused.value)
    advice = str(refused.value).partition("before `map`, " if is_before else "instead: ")[2]
    known = {"ds": ds, "n": 10, "function": dict, "name": "name", "names": ["no", "yes"], "datasets": datasets}
    known |= {"pyarrow": pa, "polars": pl, "duckdb": duckdb, "seed": 1}
    known["side"] = pa.table({"lang": ["de"], "country": ["DE"]})
    for code in _code(advice):
        exec(code if code != "batches(n)" else "ds.map(dict, batched=True).batches(n)", known)


@pytest.mark.parametrize(
    ("method", "known", "behind"),
    [
        ("filter", familiar.OF_FILTER, False),
        ("map", familiar.OF_MAP, False),
        ("map", familiar.OF_MAP, True),
        ("shuffle", familiar.OF_SHUFFLE, False),
        ("shuffle", familiar.OF_SHUFFLE, True),
    ],
)
def test_arguments_of_datasets_that_are_not_here_are_told_apart_from_misspelt_ones(method, known, behind, ds):
    owner = ds.map(dict, batched=True) if behind else ds
    theirs = {*inspect.signature(getattr(datasets.Dataset, method)).parameters}
    theirs |= {*inspect.signature(getattr(datasets.IterableDataset, method)).parameters}
    assert theirs >= set(known)
    given = {"map": {"function": dict}, "filter": {"condition": "true"}, "shuffle": {}}[method]
    for name, instead in known.items():
        with pytest.raises(TypeError, match=re.escape(f"{method}() has no argument `{name}`; {instead}")):
            getattr(owner, method)(**given, **{name: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_name'"):
        getattr(owner, method)(**given, no_such_name=1)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("method", ["batches", "to_torch"])
def test_arguments_of_other_loaders_are_told_apart_from_misspelt_ones(method, behind, ds):
    owner = ds.map(dict, batched=True) if behind else ds
    stream = getattr(owner, method)
    for name, instead in familiar.OF_STREAM.items():
        assert name not in inspect.signature(getattr(ds, method)).parameters
        with pytest.raises(TypeError, match=re.escape(f"{method}() has no argument `{name}`; {instead}")):
            stream(4, **{name: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_name'"):
        stream(4, no_such_name=1)


@pytest.mark.parametrize("behind", [False, True])
def test_arguments_that_shape_tensors_are_those_of_to_torch(behind, ds):
    of_torch, of_batches = (inspect.signature(method).parameters for method in (ds.to_torch, ds.batches))
    assert familiar.OF_TENSORS.keys() == of_torch.keys() - of_batches.keys()
    stream = (ds.map(dict, batched=True) if behind else ds).batches
    for name in familiar.OF_TENSORS:
        with pytest.raises(TypeError, match=f"^batches\\(\\) has no argument `{name}`; `to_torch` takes it"):
            stream(4, **{name: None})


@pytest.mark.parametrize("name", familiar.OF_FORMAT)
def test_arguments_of_formats_of_datasets_are_told_apart_from_misspelt_ones(name, ds):
    with pytest.raises(TypeError, match=re.escape(f"with_format() has no argument `{name}`; ")):
        ds.with_format("torch", **{name: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_name'"):
        ds.with_format("torch", no_such_name=1)


def test_arguments_of_load_dataset_of_datasets_are_told_apart_from_misspelt_ones(path):
    theirs = {*inspect.signature(datasets.load_dataset).parameters}
    theirs |= {"batch_size", "on_bad_files"}  # of its Parquet reader
    theirs |= {"trust_remote_code", "use_auth_token"}  # which it had
    assert theirs >= set(familiar.OF_LOAD)
    assert not set(familiar.OF_LOAD) & set(inspect.signature(fb.load_dataset).parameters)
    for name, instead in familiar.OF_LOAD.items():
        with pytest.raises(TypeError, match=re.escape(f"load_dataset() has no argument `{name}`; {instead}")):
            fb.load_dataset(path, split="train", **{name: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_name'"):
        fb.load_dataset(path, split="train", no_such_name=1)


def test_what_is_in_memory_is_no_list_of_paths(tmp_path, monkeypatch):
    """A loop over a frame gives the names of its columns, and over a file its lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lang").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "lang" / "x.parquet")
    table = pa.table({"lang": ["de"]})
    for rows in (table.to_pandas(), pl.DataFrame(table), table):
        with pytest.raises(fb.SettingError, match="^source: expected a path, .*, got a (Data)?[FT].* in memory; write"):
            fb.load_dataset(rows, split="train")
    rows = datasets.Dataset.from_dict({"lang": ["de"]})
    for theirs in (rows, rows.to_iterable_dataset()):
        with pytest.raises(fb.SettingError, match=r"got a `.*Dataset` of `datasets`; `from_hf\(dataset\)` takes over"):
            fb.load_dataset(theirs, split="train")
    (tmp_path / "paths.txt").write_text("lang")
    with (tmp_path / "paths.txt").open() as file, pytest.raises(fb.SettingError, match="got an open file .*its path"):
        fb.load_dataset(file, split="train")
    for paths in (pd.Series(["lang"]), pl.Series(["lang"]), iter(["lang"])):
        assert fb.load_dataset(paths, split="train")[:] == {"x": [1, 2]}


def test_names_of_columns_for_rows_say_how_columns_are_chosen(ds):
    for names in ("lang", ["lang", "x"], ("lang", 0)):
        with pytest.raises(fb.SettingError, match="got 'lang'; columns are chosen by `select_columns`$"):
            ds.select(names)
    with pytest.raises(fb.SettingError, match="^row: expected .*, got 'lang'; columns are chosen by `select_columns`$"):
        ds[["lang", "x"]]
    with pytest.raises(fb.SettingError, match="^rows: expected a row number"):
        ds.select("lang")


def test_the_module_lists_what_is_public():
    listed = dir(fb)
    assert listed == sorted(listed)
    assert {name for name in listed if not name.startswith("__")} == set(fb.__all__) - {"__version__"}
    assert {"__all__", "__doc__", "__file__", "__path__", "__version__"} <= set(listed)


def test_sizes_are_numbers_or_text_with_a_unit(ds):
    assert ds.shuffle(seed=1, shuffle_bytes=" 64 kib")._shuffle.shuffle_bytes == 64 << 10
    streams = (ds.batches(4, memory_limit="2 MiB"), ds.to_torch(4, memory_limit="2097152"))
    assert [stream._read.memory_limit for stream in (streams[0], streams[1]._stream)] == [2 << 20] * 2
    assert ds.gather([3], memory_limit="1 GB").num_rows == 1
    assert pa.table(ds.query("SELECT count(*) AS n FROM dataset", memory_limit="1GiB"))["n"].to_pylist() == [100]
    assert next(iter(fb.DataLoader(ds, batch_size=4, memory_limit="1 GiB")))["x"].tolist() == [0, 1, 2, 3]
    assert len(ds.to_hf(memory_limit="1 GiB")) == 100
    for wrong in ("2 G", "1.5 GiB", "", "-1", "much"):
        for call in (
            lambda size: ds.batches(4, memory_limit=size),
            lambda size: ds.shuffle(shuffle_bytes=size),
            lambda size: ds.gather([3], memory_limit=size),
        ):
            with pytest.raises(
                fb.SettingError, match=f"(memory_limit|shuffle_bytes): expected a number of .*'{wrong}'$"
            ):
                call(wrong)
    with pytest.raises(fb.SettingError, match="memory_limit: expected 1048576 to .*, got 1024"):
        ds.query("SELECT 1", memory_limit="1 KiB")
    with pytest.raises(fb.SettingError, match="memory_limit: expected an integer, got 1.5"):
        ds.batches(4, memory_limit=1.5)


def test_of_shards_the_number_comes_first(ds):
    with pytest.raises(fb.SettingError, match="number of shards `2`, got `4`; the index comes first: `shard"):
        ds.shard(4, 2)
    with pytest.raises(fb.SettingError, match="number of shards `0`, got `4`; the index comes first: `shard"):
        ds.shard(4, 0)


def test_several_splits_are_listed_and_one_of_them_is_to_be_chosen(path):
    splits = fb.load_dataset(path)
    assert repr(splits).startswith("DatasetDict(1 split)\n  train: Dataset(100 rows, 5 columns, 1 object)\n    lang ")
    assert repr(fb.DatasetDict()) == "DatasetDict(0 splits)"
    with pytest.raises(fb.SettingError, match=r"^dataset: these are several splits; choose one, as in ds\['train'\]$"):
        fb.DataLoader(splits, batch_size=4)


def test_no_processes_are_none_as_in_datasets(ds):
    mapped = ds.map(lambda row: {"y": row["x"] + 1}, num_proc=None, remove_columns=None, fn_kwargs=None)
    assert next(iter(mapped.map(lambda row: {"z": row["y"]}, num_proc=None).batches(3)))["z"] == [1, 2, 3]


def test_only_streaming_will_do(path):
    assert len(fb.load_dataset(path, split="train", streaming=True)) == 100
    with pytest.raises(fb.SettingError, match="streaming: nothing is downloaded first"):
        fb.load_dataset(path, split="train", streaming=False)


def test_other_formats_are_told_apart_from_folders(tmp_path, monkeypatch):
    with pytest.raises(fb.SettingError, match="`json` files are not read, only Parquet"):
        fb.load_dataset("json", data_files="x.jsonl", split="train")
    with pytest.raises(fb.SettingError, match="`imagefolder` files are not read, only Parquet"):
        fb.load_dataset("imagefolder", data_dir="pictures", split="train")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json").mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "json" / "x.parquet")
    assert len(fb.load_dataset("json", data_files="x.parquet", split="train")) == 2


def test_what_is_no_feature_is_refused_with_one_that_is(ds):
    with pytest.raises(fb.SettingError, match=r"column `x`: 32 is not a feature; expected one such as"):
        ds.cast_column("x", 32)


def test_what_a_dict_of_splits_does_not_have_has_another_name(path):
    splits = fb.load_dataset(path)
    with pytest.raises(AttributeError, match="^these are several splits; choose one first: ds\\['train'\\].sql$"):
        splits.sql  # noqa: B018 - looked up
    with pytest.raises(AttributeError, match=r"choose one first: ds\['train'\].with_format$"):
        splits.map(dict).with_format  # noqa: B018 - looked up
    with pytest.raises(AttributeError, match="no `push_to_hub`; instead: `ds.to_hf\\(\\)` has one$"):
        splits.push_to_hub  # noqa: B018 - looked up
    with pytest.raises(AttributeError, match="^a dict of splits has no `no_such_name`$"):
        splits.no_such_name  # noqa: B018 - looked up
    assert not hasattr(splits, "__no_such_name__")


def test_methods_of_a_dict_of_splits_are_those_of_every_split(tmp_path):
    for name, stop in (("train", 10), ("test", 4)):
        columns = {"x": range(stop), "y": range(stop), "text": map(str, range(stop))}
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), tmp_path / f"{name}.parquet")
    splits = fb.load_dataset(tmp_path)
    theirs = datasets.load_dataset(str(tmp_path), streaming=True)
    calls = {
        "cast": ({name: datasets.Value("float32") for name in ("x", "y", "text")},),
        "cast_column": ("x", datasets.Value("float32")),
        "remove_columns": (["text"],),
        "rename_column": ("x", "z"),
        "rename_columns": ({"x": "z"},),
        "select_columns": (["y", "x"],),
    }
    for method, arguments in calls.items():
        made = getattr(splits, method)(*arguments)
        assert isinstance(made, fb.DatasetDict)
        given = (datasets.Features(arguments[0]),) if method == "cast" else arguments
        expected = getattr(theirs, method)(*given)
        assert {name: list(split) for name, split in made.items()} == {
            name: list(split) for name, split in expected.items()
        }, method
        assert splits.column_names == {name: ["x", "y", "text"] for name in splits}
    few = splits.filter("x < $n", params={"n": 3}).with_format("numpy").shuffle(seed=1)
    assert few.num_rows == {"train": 3, "test": 3}
    for name, split in few.items():
        expected = splits[name].filter("x < $n", params={"n": 3}).with_format("numpy").shuffle(seed=1)
        assert (len(expected), repr(expected)) == (3, repr(split))
    with pytest.raises(TypeError, match=r"shuffle\(\) has no argument `buffer_size`"):
        splits.shuffle(buffer_size=3)


def test_every_split_is_mapped(tmp_path):
    for name, stop in (("train", 10), ("test", 4)):
        pq.write_table(pa.table({"x": range(stop), "y": range(stop)}), tmp_path / f"{name}.parquet")

    def mapped(splits):
        doubled = splits.map(lambda batch: {"z": [x * 2 for x in batch["x"]]}, batched=True)
        made = doubled.remove_columns("y").rename_column("x", "v").map(lambda row: {"w": row["v"] + row["z"]})
        return made.select_columns(["w", "z"])

    ours, theirs = mapped(fb.load_dataset(tmp_path)), mapped(datasets.load_dataset(str(tmp_path), streaming=True))
    assert {name: list(split) for name, split in ours.items()} == {name: list(split) for name, split in theirs.items()}
    assert ours.num_rows == {"train": 10, "test": 4}
    assert sorted(row["z"] for row in ours.shuffle(seed=1)["test"]) == [0, 2, 4, 6]
    assert repr(ours).startswith("MappedDatasetDict(2 splits)\n  ")
    with pytest.raises(KeyError, match="no split 'dev'; there are train, test"):
        ours["dev"]
    with pytest.raises(TypeError, match=r"map\(\) has no argument `load_from_cache_file`"):
        ours.map(dict, load_from_cache_file=False)


def test_mapping_in_processes_says_where_that_is(ds):
    with pytest.raises(
        TypeError, match=r"^map\(\) has no argument `num_proc`; `ds.map\(function, num_proc=...\)` runs"
    ):
        ds.to_hf().map(dict, num_proc=2)
    with pytest.raises(TypeError, match=r"map\(\) got an unexpected keyword argument 'no_such_name'$"):
        ds.to_hf().map(dict, no_such_name=2)


def test_a_stream_has_no_batches_by_number(ds):
    with pytest.raises(TypeError, match=r"no batches by number, but in a loop; rows by number are `ds\[i\]`"):
        ds.to_torch(2)[0]


def test_names_that_are_no_text_are_those_of_the_argument(ds):
    for mapping in ({"x": 5}, {5: "x"}):
        with pytest.raises(fb.SettingError, match="^column_mapping: expected text, got 5$"):
            ds.rename_columns(mapping)
    with pytest.raises(fb.SettingError, match="^new_column_name: expected text, got 5$"):
        ds.rename_column("x", 5)


def test_a_function_is_no_filter_and_says_where_it_is_one(ds):
    with pytest.raises(fb.SettingError, match=r"got function; `ds.to_hf\(\).filter\(function\)` calls Python"):
        ds.filter(lambda row: row["x"] > 5)
    assert sum(1 for _ in ds.to_hf().filter(lambda row: row["x"] > 5)) == 94
    with pytest.raises(fb.SettingError, match="or conditions, got int$"):
        ds.filter(5)


def test_a_short_name_of_the_hub_says_that_the_owner_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (("squad",), ("squad", "plain_text")):
        with pytest.raises(fb.ForebayError, match="of the Hub is named with its owner, as in `owner/squad`$"):
            fb.load_dataset(*arguments, split="train")
    with pytest.raises(fb.NotFoundError, match="^no such object or folder: `./squad`$"):
        fb.load_dataset("./squad", split="train")


def test_a_folder_that_is_not_there_is_not_only_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        fb.HubUnreachableError, match="^there is no local folder `data/train`; as a dataset of the Hub: `d"
    ):
        fb.load_dataset("data/train", split="train")
    for source, revision in (("hf://datasets/data/train", None), ("data/train", "main"), ("data/train@main", None)):
        with pytest.raises(fb.HubUnreachableError, match="^`data/train` at `main` is not among the downloaded|^`data"):
            fb.load_dataset(source, split="train", revision=revision)


def test_a_table_of_datasets_says_how_it_becomes_one_of_arrow(ds):
    side = datasets.Dataset.from_dict({"lang": ["de"]})
    query = "SELECT x FROM dataset JOIN side USING (lang)"
    with pytest.raises(fb.SettingError, match="`side` is of type datasets.Dataset; expected a Dataset of") as refused:
        ds.sql(query, tables={"side": side})
    assert "; `table.with_format('arrow')[:]` is one" in str(refused.value)
    assert len(ds.sql(query, tables={"side": side.with_format("arrow")[:]})) == 50


def test_torchs_loader_on_a_shuffled_dataset_says_what_delivers_it(ds):
    with pytest.raises(
        fb.SettingError, match="in which `to_torch` and `batches` deliver it, and `to_hf` for a `Trainer`"
    ):
        next(iter(torch.utils.data.DataLoader(ds.shuffle(1), batch_size=4)))


def test_a_dataset_made_of_a_path_says_what_opens_one(path):
    with pytest.raises(TypeError, match=r"`forebay\.load_dataset\(path, split=\.\.\.\)`"):
        fb.Dataset(path)
