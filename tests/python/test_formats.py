"""What rows and batches become: the formats of other libraries, ways to iterate, and what is shown of it all."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib.util
import pickle
import re
import time
from decimal import Decimal
from typing import TYPE_CHECKING

import data
import datasets
import datasets.formatting
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from programs import run_python

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 100


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rows = range(NUM_ROWS)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "score": pa.array([None if row % 4 == 1 else row / 2 for row in rows], pa.float32()),
            "text": [f"row {row}" for row in rows],
            "tokens": pa.array([[row] * (row % 3) for row in rows], pa.list_(pa.int32())),
            "pair": pa.array([[row, -row] for row in rows], pa.list_(pa.int16(), 2)),
            "day": pa.array([dt.date(2026, 1, 1) + dt.timedelta(row) for row in rows]),
            "at": pa.array([dt.datetime(2026, 1, 1) + dt.timedelta(hours=row) for row in rows], pa.timestamp("us")),
            "took": pa.array(rows, pa.duration("ms")),
            "meta": pa.array([{"lang": "de", "rank": row} for row in rows]),
        }
    )


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    pq.write_table(table, folder / "rows.parquet", row_group_size=30)
    return folder


@pytest.fixture
def ds(folder) -> fb.Dataset:
    return fb.load_dataset(folder, split="train")


def test_torch_batches_and_rows(ds, table):
    torch_ds = ds.with_format("torch")
    batches = list(torch_ds.batches(32))
    assert [len(batch["id"]) for batch in batches] == [32, 32, 32, 4]
    assert isinstance(batches[0]["pair"], torch.Tensor)
    rows = list(torch_ds)
    assert len(rows) == NUM_ROWS
    assert set(rows[0]) == set(table.column_names)
    assert rows[1]["score"] is None
    assert rows[2]["score"].item() == 1.0
    assert rows[5]["tokens"].tolist() == [5, 5]
    assert rows[5]["meta"] == {"lang": "de", "rank": torch.tensor(5)}
    assert rows[7]["text"] == "row 7"


def test_numpy_batches_have_numpys_own_dates_and_times(ds, table):
    batch = next(iter(ds.with_format("numpy").batches(NUM_ROWS)))
    for name in ("id", "day", "at", "took"):
        assert np.array_equal(batch[name], table[name].to_numpy()), name
    assert (batch["day"].dtype, batch["at"].dtype, batch["took"].dtype) == ("M8[D]", "M8[us]", "m8[ms]")
    values, mask = batch["score"]
    assert np.array_equal(np.where(mask, values, -1), table["score"].fill_null(-1).to_numpy())
    assert batch["pair"].shape == (NUM_ROWS, 2)
    batch["id"] += 1  # a batch belongs to who has it


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("ms"), pa.duration("s")], ids=str)
@pytest.mark.parametrize("lists", ["ragged", "even", "fixed"])
def test_numpy_batches_have_dates_and_times_in_lists_too(tmp_path, kind, lists):
    numbers = [[1], [2, 3]] if lists == "ragged" else [[1, 2], [3, 4]]
    column = pa.array(numbers, pa.list_(pa.int32() if kind == pa.date32() else pa.int64()))
    column = column.cast(pa.list_(kind)).cast(pa.list_(kind, 2) if lists == "fixed" else pa.list_(kind))
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    batch = next(iter(fb.load_dataset(tmp_path, split="train").with_format("numpy").batches(2)))
    values = batch["x"].values if lists == "ragged" else batch["x"]
    assert values.dtype == column.values.to_numpy(zero_copy_only=False).dtype
    assert np.array_equal(np.ravel(values), column.values.to_numpy(zero_copy_only=False))


def test_a_numpy_array_is_the_batch_at_its_address(ds):
    batch = next(iter(ds.select_columns("id").batches(NUM_ROWS)))
    fmt = (
        ds.select_columns("id")
        .with_format("numpy")
        ._format.prepare(ds.select_columns("id")._make_reader(fb.options.ReadOptions()))
    )
    assert fmt(batch)["id"].ctypes.data == pa.record_batch(batch).column(0).buffers()[1].address


FRAMES = {"arrow": pa.Table, "pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize(("name", "kind"), FRAMES.items(), ids=FRAMES)
def test_frames_are_those_of_the_library(ds, table, name, kind):
    framed = ds.with_format(name)
    batches = list(framed.batches(32))
    assert all(isinstance(batch, kind) for batch in batches)
    assert [len(batch) for batch in batches] == [32, 32, 32, 4]
    assert list(
        batches[0]["id"].tolist()
        if name == "pandas"
        else batches[0]["id"].to_pylist()
        if name == "arrow"
        else batches[0]["id"]
    ) == list(range(32))
    rows = list(framed.take(3))
    assert all(isinstance(row, kind) and len(row) == 1 for row in rows)
    if name == "arrow":
        assert pa.concat_tables(batches).equals(table)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("pandas", pa.array([0, 10**7], pa.date32())),
        ("polars", pa.array([Decimal(1), None], pa.decimal256(50, 0))),
        ("polars", pa.array([1, 2], pa.timestamp("us", "+05:30"))),
    ],
    ids=["year", "decimal", "zone"],
)
def test_a_column_that_a_library_has_no_form_for_is_named(tmp_path, name, column):
    pq.write_table(pa.table({"id": [1, 2], "odd": column}), tmp_path / "x.parquet")
    framed = fb.load_dataset(tmp_path, split="train").with_format(name)
    for read in (lambda: next(iter(framed.batches(2))), lambda: framed[[1, 0]], lambda: list(framed)):
        with pytest.raises(fb.DataError, match=r"column `odd` of type `.*` has no form in `\w+`: [^$]*; leave it out"):
            read()
    assert len(framed.select_columns("id")[:]) == 2


def test_no_format_is_arrow_batches_and_python_rows(ds, table):
    plain = ds.with_format("torch").with_format(None)
    assert isinstance(next(iter(plain.batches(8))), fb.Batch)
    assert list(plain) == table.to_pylist()


def test_batches_of_iter_are_dicts_of_lists_or_the_formats(ds, table):
    batches = list(ds.iter(batch_size=30))
    assert [len(batch["id"]) for batch in batches] == [30, 30, 30, 10]
    assert batches[0] == table.slice(0, 30).to_pydict()
    assert len(list(ds.iter(batch_size=30, drop_last_batch=True))) == 3
    assert isinstance(next(ds.with_format("torch").iter(batch_size=30))["id"], torch.Tensor)


def test_rows_are_read_as_many_at_a_time_as_memory_holds(tmp_path):
    table = pa.table({"id": range(20), "blob": [bytes(3 << 20)] * 20})
    options = {"use_dictionary": False, "compression": "zstd"}
    with pq.ParquetWriter(tmp_path / "large.parquet", table.schema, **options) as writer:
        for _ in range(40):
            writer.write_table(table)
    large = fb.load_dataset(tmp_path, split="train")
    assert [row["id"] for row in large.take(2)] == [0, 1]
    assert len(next(large.with_format("numpy").iter())["blob"]) == 3 << 20


def test_no_row_is_left_out_where_there_are_no_batches(ds):
    assert len(list(ds.iter(drop_last_batch=True))) == len(ds)


def test_a_format_is_kept_by_every_method_and_changes_no_rows(ds):
    formatted = ds.with_format("numpy").filter("id % 2 = 0").select_columns(["id"]).shuffle(3)
    ids = np.concatenate([batch["id"] for batch in formatted.batches(16)])
    plain = ds.filter("id % 2 = 0").shuffle(3)
    assert ids.tolist() == [row for batch in plain.batches(16) for row in pa.record_batch(batch)["id"].to_pylist()]


def test_streams_of_tensors_take_over_what_a_format_of_torch_says(ds):
    columns = ds.select_columns(["id", "score", "tokens"])
    nested = columns.with_format("torch", forms={"tokens": "nested"})
    native = columns.with_format("torch", compat="datasets")
    for make in (lambda ds: ds.to_torch(8), lambda ds: fb.DataLoader(ds, batch_size=8)):
        assert next(iter(make(nested)))["tokens"].is_nested
        batch = next(iter(make(native)))
        assert batch["score"].dtype == torch.float32
        assert batch["score"].isnan().sum() == 2
        mapped = native.map(lambda batch: {"twice": batch["score"] * 2}, batched=True)
        assert next(iter(make(mapped)))["twice"].dtype == torch.float32
    assert isinstance(next(iter(nested.to_torch(8, forms={"tokens": "list"})))["tokens"], list)
    assert isinstance(next(iter(nested.to_torch(8, compat="datasets")))["tokens"], list)
    assert isinstance(next(iter(native.to_torch(8, forms={})))["score"], fb.Masked)
    for other in (
        columns.with_format("numpy", forms={"tokens": "list"}),
        columns.with_format("pandas"),
        columns.decode(),
    ):
        batch = next(iter(other.to_torch(8)))
        assert isinstance(batch["id"], torch.Tensor)
        assert isinstance(batch["tokens"], fb.Ragged)


@pytest.mark.parametrize("name", ["torch", "numpy", "arrow", "pandas", "polars", None])
def test_streams_of_every_format_can_be_pickled_and_resumed(ds, name):
    stream = ds.with_format(name).batches(16)
    taken = iter(stream)
    next(taken)
    state = stream.state_dict()
    other = pickle.loads(pickle.dumps(ds.with_format(name).batches(16)))
    other.load_state_dict(state)
    assert sum(1 for _ in other) == sum(1 for _ in taken) == 6


def test_formats_have_the_short_names_of_datasets(ds):
    aliases = datasets.formatting._FORMAT_TYPES_ALIASES
    importable = ("torch", "numpy", "arrow", "pandas", "polars", None)
    short = {name: full for name, full in aliases.items() if full in importable and name is not None}
    assert {"np", "pt", "pd", "pl", "pa", "python"} <= set(short)
    for name, full in short.items():
        batch, same = (next(iter(ds.with_format(each).batches(8))) for each in (name, full))
        assert type(batch) is type(same), name


REFUSED = {
    "no such format": (("csv",), {}, "expected one of torch, numpy.*got 'csv'"),
    "a class": ((dict,), {}, "expected one of torch"),
    "forms of tables": (("arrow",), {"forms": {"x": "list"}}, "forms: only formats of tensors have them"),
    "forms of nothing": ((), {"forms": {"x": "list"}}, "forms"),
}


@pytest.mark.parametrize(("arguments", "settings", "says"), REFUSED.values(), ids=REFUSED)
def test_a_format_that_cannot_be_is_refused(ds, arguments, settings, says):
    with pytest.raises(fb.SettingError, match=says):
        ds.with_format(*arguments, **settings)


@pytest.mark.parametrize("library", ["polars", "torch", "jax"])
def test_a_format_whose_library_is_missing_says_so(folder, library):
    code = f"""
    import sys
    import forebay as fb
    sys.modules["{library}"] = None
    try:
        next(iter(fb.load_dataset(sys.argv[1], split="train").with_format("{library}").iter(2)))
    except fb.SettingError as error:
        print(error)
    """
    assert f"'{library}' needs the package `{library}`" in run_python(code, folder)


NEEDS = {
    "rows": ("pyarrow", "next(iter(ds))"),
    "a row": ("pyarrow", "ds[0]"),
    "schema": ("pyarrow", "ds.schema"),
    "features": ("pyarrow", "ds.features"),
    "cast": ("pyarrow", "ds.cast({'id': {'_type': 'Value', 'dtype': 'int32'}})"),
    "parameters": ("pyarrow", "ds.filter('id > $least', params={'least': 3})"),
    "conditions": ("pyarrow", "ds.filter([('id', '>', 3)])"),
    "to_torch": ("torch", "ds.to_torch(2)"),
    "DataLoader": ("torch", "fb.DataLoader(ds, batch_size=2)"),
}


@pytest.mark.parametrize(("package", "call"), NEEDS.values(), ids=NEEDS)
def test_a_package_that_is_missing_is_named(folder, package, call):
    code = f"""
    import sys
    import forebay as fb
    sys.modules["{package}"] = None
    ds = fb.load_dataset(sys.argv[1], split="train")
    try:
        {call}
    except fb.VersionError as error:
        print(error)
    """
    extra = {"pyarrow": "arrow"}.get(package, package)
    said = run_python(code, folder)
    assert re.search(rf"needs the package `{package}`: .*; install it with `pip install 'forebay\[{extra}\]'`", said)


def test_rows_without_times_need_no_package(folder):
    code = """
    import sys
    import forebay as fb
    sys.modules["pyarrow"] = None
    ds = fb.load_dataset(sys.argv[1], split="train").select_columns(["id", "text", "tokens"])
    print(list(ds) == [ds[row] for row in range(len(ds))], ds[:2].keys(), ds.head(2).to_pydict() == ds[:2])
    """
    assert run_python(code, folder).strip() == "True dict_keys(['id', 'text', 'tokens']) True"


ARRAYS = """
import sys
import numpy as np
import forebay as fb

library, folder = sys.argv[1:]
numbers = fb.load_dataset(folder, split="train").select_columns(["id", "score", "pair", "text", "tokens"])
if library == "jax":
    import jax

    try:
        numbers.with_format(library).batches(32)
    except fb.TensorError as error:
        print(error)
    jax.config.update("jax_enable_x64", True)
batch = next(iter(numbers.with_format(library).batches(32)))
assert np.asarray(batch["id"]).tolist() == list(range(32))
assert np.asarray(batch["pair"]).shape == (32, 2)
assert np.asarray(batch["score"].mask).tolist() == [row % 4 != 1 for row in range(32)]
assert np.asarray(batch["tokens"].row(5)).tolist() == [5, 5]
assert batch["text"][3] == "row 3"
print(type(batch["id"]).__name__)
"""


@pytest.mark.parametrize(("library", "kind"), [("jax", "ArrayImpl"), ("tensorflow", "EagerTensor")])
def test_jax_and_tensorflow_take_tensors_through_dlpack(folder, library, kind):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: it is large, and nothing else here needs it")
    # In a process of its own: both start threads, which the tests that fork cannot have.
    *refused, name = run_python(ARRAYS, library, folder).splitlines()
    assert name == kind
    assert len(refused) == (library == "jax")
    assert all("`id`" in line and "jax_enable_x64" in line for line in refused)


def test_take_and_head_are_the_first_rows(ds, table):
    assert list(ds.take(3)) == table.slice(0, 3).to_pylist()
    assert list(ds.take(0)) == []
    assert pa.table(pa.record_batch(ds.head(0))).equals(table.slice(0, 0))
    assert pa.table(pa.record_batch(ds.head())).equals(table.slice(0, 5))
    assert ds.head(10**6).num_rows == NUM_ROWS
    assert ds.filter("id < 0").head(3).num_rows == 0
    for wrong in (-1, "3", 1.5, True):
        with pytest.raises(fb.SettingError, match="n: expected"):
            ds.take(wrong)
        with pytest.raises(fb.SettingError, match="n: expected"):
            ds.head(wrong)
    with pytest.raises(fb.SettingError, match="n: expected 0 to 2147483647, got 10000000000"):
        ds.head(10**10)


async def collect(stream: fb.Stream) -> list[int]:
    return [row async for batch in stream for row in pa.record_batch(batch)["id"].to_pylist()]


def test_an_event_loop_iterates_in_the_same_order(ds):
    shuffled = ds.shuffle(5)
    expected = [row for batch in shuffled.batches(16) for row in pa.record_batch(batch)["id"].to_pylist()]
    assert asyncio.run(collect(shuffled.batches(16))) == expected


def test_an_event_loop_runs_on_while_it_waits_and_several_streams_share_it(tmp_path):
    data.write_fragments(tmp_path, data.ids_table(40_000), num_fragments=4, row_group_rows=500)
    ds = fb.load_dataset(tmp_path, split="train")

    async def both() -> tuple[list[int], list[int], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        one, two = await asyncio.gather(collect(ds.shuffle(1).batches(512)), collect(ds.shuffle(2).batches(512)))
        ticking.cancel()
        return one, two, ticks

    one, two, ticks = asyncio.run(both())
    assert sorted(one) == sorted(two) == list(range(40_000))
    assert one != two
    assert ticks > 0


def test_a_cancelled_wait_loses_no_batch(ds):
    stream = ds.batches(7)

    async def interrupted() -> list[int]:
        seen: list[int] = []
        while len(seen) < NUM_ROWS:
            batches = stream.__aiter__()
            try:
                async with asyncio.timeout(0.002):
                    async for batch in batches:
                        seen += pa.record_batch(batch)["id"].to_pylist()
            except TimeoutError:
                pass  # the next round goes on where this one was cut off
            finally:
                await batches.aclose()
            stream.load_state_dict(stream.state_dict())
        return seen

    assert asyncio.run(interrupted()) == list(range(NUM_ROWS))


def slow(_: dict[str, list]) -> None:
    time.sleep(0.05)


def test_after_a_cancelled_wait_an_iterator_is_at_no_end(ds):
    stream = ds.map(slow, batched=True, num_threads=1).batches(40)

    async def interrupted() -> list[int]:
        batches = aiter(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await anext(batches)
        for _ in range(2):
            with pytest.raises(fb.ClosedError, match="the iteration was ended by `CancelledError`; load what `state_d"):
                await anext(batches)
        stream.load_state_dict(stream.state_dict())
        return [row async for batch in stream for row in batch["id"]]

    assert asyncio.run(interrupted()) == list(range(NUM_ROWS))


def test_torch_streams_can_be_awaited_too(ds):
    async def count() -> int:
        return sum([len(batch["id"]) async for batch in ds.to_torch(16)])

    assert asyncio.run(count()) == NUM_ROWS


def test_leaving_an_async_loop_early_closes_the_stream(ds):
    stream = ds.batches(10)

    async def first() -> None:
        batches = stream.__aiter__()
        async for _ in batches:
            break
        await batches.aclose()

    asyncio.run(first())
    assert stream._active is None
    assert stream.state_dict()["position"] == 10


def test_an_error_reaches_the_async_loop(tmp_path):
    data.write_fragments(tmp_path, data.ids_table(5000), num_fragments=2)
    stream = fb.load_dataset(tmp_path, split="train").batches(100)
    (tmp_path / "part-1.parquet").unlink()

    async def read() -> None:
        batches = aiter(stream)
        with pytest.raises(fb.NotFoundError, match=r"part-1\.parquet"):
            _ = [batch async for batch in batches]
        with pytest.raises(fb.ClosedError, match="the iteration was ended by `NotFoundError`"):
            await anext(batches)

    asyncio.run(read())


def test_two_tasks_that_ask_one_iterator_end_nothing(ds):
    async def both() -> list[int]:
        batches = aiter(ds.map(slow, batched=True, num_threads=1).batches(40))

        async def take() -> list[int]:
            return (await anext(batches))["id"]

        first, second = await asyncio.gather(take(), take(), return_exceptions=True)
        assert isinstance(second, RuntimeError)
        return first + [row async for batch in batches for row in batch["id"]]

    assert asyncio.run(both()) == list(range(NUM_ROWS))


def test_a_dataset_shows_rows_columns_and_query(ds):
    shown = repr(ds.filter("id > 10").shuffle(4).with_format("torch"))
    assert shown.splitlines()[0] == "Dataset(? of 100 rows, 9 columns, 1 object)"
    assert "  tokens  List(Int32" in shown
    assert "filter('id > 10')" in shown
    assert "shuffle(seed=4)" in shown
    assert "with_format('torch')" in shown
    drawn = ds.shuffle(4, weights="id + 1", num_samples=7)
    assert "shuffle(seed=4, weights='id + 1', num_samples=7)" in repr(drawn)
    kept = ds.filter("id > 10")
    assert len(kept) == 89
    assert repr(kept).startswith("Dataset(89 of 100 rows, 9 columns, 1 object)")
    assert repr(ds).startswith("Dataset(100 rows, 9 columns, 1 object)\n  id      Int64\n")


def test_many_columns_are_shown_in_part(tmp_path):
    pq.write_table(pa.table({f"c{n}": [n] for n in range(500)}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    assert len(repr(ds).splitlines()) == 22
    assert "480 more columns" in repr(ds)
    assert "460 more columns" in repr(ds.head())


def test_notebooks_get_tables(ds):
    for shown in (ds, ds.batches(8), ds.to_torch(8), ds.head()):
        html = shown._repr_html_()
        assert html.count("<table>") == html.count("</table>") == 1
        assert "tokens" in html


def test_what_is_shown_is_escaped(tmp_path):
    pq.write_table(pa.table({"<script>": ["<img src=x>"]}), tmp_path / "a.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    for shown in (ds.filter("\"<script>\" <> '<b>'"), ds.head(), ds.batches(1)):
        assert "<script>" not in shown._repr_html_()
        assert "<img" not in shown._repr_html_()


def test_a_batch_glimpse_has_the_first_values(ds):
    lines = repr(ds.select_columns(["id", "text"]).head()).splitlines()
    assert lines == [
        "Batch(5 rows, 2 columns)",
        "  id    Int64  0, 1, 2, …",
        "  text  Utf8   'row 0', 'row 1', 'row 2', …",
    ]


def test_rows_of_arrays_come_in_frames(tmp_path: Path) -> None:
    features = datasets.Features({"id": datasets.Value("int64"), "a": datasets.Array2D(shape=(2, 2), dtype="float32")})
    arrays = [[[n, 2], [3, 4]] for n in range(5)]
    datasets.Dataset.from_dict({"id": range(5), "a": arrays}, features=features).to_parquet(tmp_path / "x.parquet")
    frames = list(fb.load_dataset(tmp_path, split="train").with_format("pandas"))
    assert [frame.shape for frame in frames] == [(1, 2)] * 5
    assert [frame["id"].iloc[0] for frame in frames] == list(range(5))
    assert [np.asarray(frame["a"].iloc[0]).tolist() for frame in frames] == arrays
