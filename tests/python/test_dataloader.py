"""`fb.DataLoader`: the arguments of torch's, its batches, and a place in the epoch."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import data
import functions
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.utils.data
from programs import torchrun
from rows import batches_of, ids_of, write_uneven
from torch.utils.data import get_worker_info

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUM_ROWS = 500


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("dataloader"), NUM_ROWS)


def test_it_takes_all_arguments_of_torchs_in_their_places() -> None:
    ours = list(inspect.signature(fb.DataLoader).parameters.values())
    theirs = list(inspect.signature(torch.utils.data.DataLoader).parameters.values())
    positional = [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    assert {p.name for p in theirs} <= {p.name for p in ours}


def test_batches_are_those_of_torchs_loader_over_the_rows(rows: fb.Dataset) -> None:
    ours = fb.DataLoader(rows, 32, drop_last=True)
    theirs = torch.utils.data.DataLoader(rows, 32, drop_last=True)
    assert len(ours) == len(theirs)
    for got, expected in zip(ours, theirs, strict=True):
        assert got.keys() == expected.keys()
        assert got["id"].equal(expected["id"])
        assert got["label"] == expected["label"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_fn_is_given_the_rows_that_torch_gives(rows: fb.Dataset, num_workers: int) -> None:
    expected = list(torch.utils.data.DataLoader(rows, 32, collate_fn=functions.pairs))
    loader = fb.DataLoader(rows, 32, collate_fn=functions.pairs, num_workers=num_workers)
    assert list(loader) == expected
    assert list(loader) == expected, "another loop starts other workers"


def test_rows_are_those_of_the_format_and_of_functions(rows: fb.Dataset) -> None:
    def collate(found: list[Any]) -> list[Any]:
        assert all(isinstance(row["id"], np.integer) for row in found)
        return [(row["id"] + row["more"], row["label"]) for row in found]

    ds = rows.with_format("numpy").map(lambda batch: {"more": batch["id"] * 2}, batched=True)
    loader = fb.DataLoader(ds, 50, collate_fn=collate)
    assert [pair for batch in loader for pair in batch] == [(3 * i, f"row {i}") for i in range(NUM_ROWS)]


def test_every_loop_is_another_epoch_and_shuffled_anew(rows: fb.Dataset) -> None:
    loader = fb.DataLoader(rows, 32, shuffle=True)
    stream = rows.shuffle().to_torch(32)
    orders = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        assert loader.epoch == max(0, epoch - 1)
        orders.append(ids_of(loader))
        assert orders[-1] == ids_of(stream)
    assert len(set(map(str, orders))) == 3
    for _ in loader:
        break
    assert loader.epoch == 3
    for _ in range(2):
        loader.set_epoch(1)
        assert ids_of(loader) == orders[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_goes_on_in_its_epoch_and_the_next_loop_is_the_next(rows: fb.Dataset, num_workers: int) -> None:
    def make() -> fb.DataLoader:
        settings = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        return fb.DataLoader(rows.shuffle(3), 32, collate_fn=functions.pairs, **settings)

    loader = make()
    epochs = [list(loader) for _ in range(3)]
    stopped = make()
    list(stopped)
    batches: Iterator[Any] = iter(stopped)
    before = [next(batches) for _ in range(5)]
    state = json.loads(json.dumps(stopped.state_dict()))
    later = make()
    later.load_state_dict(state)
    assert later.epoch == 1
    assert len(later) == len(epochs[1]) - 5
    assert before + list(later) == epochs[1]
    assert list(later) == epochs[2]


@pytest.mark.parametrize("settings", [{}, {"steps_per_epoch": 5}], ids=str)
def test_an_iterator_that_is_asked_for_nothing_is_no_epoch(rows: fb.Dataset, settings: dict[str, int]) -> None:
    def make() -> fb.DataLoader:
        return fb.DataLoader(rows, 32, shuffle=True, **settings)

    loader = make()
    epochs = [batches_of(loader) for _ in range(4)]
    loader = make()
    for epoch, expected in enumerate(epochs[:3]):
        iter(loader)
        seen = []
        for batch in loader:
            # Not even in the middle of a loop.
            iter(loader)
            assert loader.epoch == epoch
            seen.append(batch["id"].tolist())
            later = make()
            later.load_state_dict(loader.state_dict())
            iter(later)
            assert len(later) == len(expected)
            # Behind the last batch there is nothing that could be lost.
            assert batches_of(later) == (expected[len(seen) :] or epochs[epoch + 1])
        assert seen == expected


def test_it_tells_what_streams_tell(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"id": range(1000)})
    pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(3).column(0)
    body = bytearray(path.read_bytes())
    body[column.data_page_offset : column.data_page_offset + 8] = b"\xff" * 8
    path.write_bytes(body)
    dataset = fb.load_dataset(path, split="train")
    settings = {"on_error": "skip", "max_skipped": 0.5, "rank": 0, "world_size": 3}
    for stream in (dataset.to_torch(50, **settings), fb.DataLoader(dataset, 50, **settings)):
        assert stream.num_dropped == 1
        with pytest.warns(fb.SkippedRowsWarning, match="of row group 3 of `[^`]*x.parquet`; `holes` of the stream has"):
            list(stream)
        assert [hole["row_group"] for hole in stream.holes] == [3]
        assert stream.holes == stream.state_dict()["holes"]
        assert isinstance(stream.bottleneck(), str)


def children() -> int:
    return sum(child.name.startswith("forebay-") for child in multiprocessing.active_children())


def test_workers_end_with_their_loop_unless_they_persist(rows: fb.Dataset) -> None:
    gc.collect()
    before = children()
    for persists in (False, True):
        loader = fb.DataLoader(
            rows, 32, collate_fn=functions.pairs, num_workers=1, persistent_workers=persists, timeout=60
        )
        assert len(list(loader)) == 16
        assert children() == before + persists
    del loader
    gc.collect()
    assert children() == before


@pytest.mark.parametrize("how", ["repeat", "steps_per_epoch", "async"])
def test_workers_serve_all_passes_of_a_loop(rows: fb.Dataset, how: str) -> None:
    def pid(_: Any) -> int:
        return os.getpid()

    gc.collect()
    before = children()
    ds, settings = (rows, {"steps_per_epoch": 12}) if how == "steps_per_epoch" else (rows.repeat(3), {})
    loader = fb.DataLoader(ds, 100, collate_fn=pid, num_workers=1, timeout=60, **settings)

    async def taken() -> list[int]:
        return [batch async for batch in loader._stream]

    pids = asyncio.run(taken()) if how == "async" else list(loader)
    assert len(pids) == len(loader)
    assert len({*pids}) == 1
    assert children() == before


def test_without_functions_no_worker_is_started(rows: fb.Dataset) -> None:
    before = children()
    batches = iter(fb.DataLoader(rows, 32, num_workers=4))
    next(batches)
    assert children() == before


def test_workers_of_map_are_taken_where_no_others_are_named(rows: fb.Dataset) -> None:
    ds = rows.map(functions.who, batched=True, num_proc=1)
    settings = {"collate_fn": functions.unchanged}
    [pid] = {row["pid"] for batch in fb.DataLoader(ds, 100, **settings) for row in batch}
    loader = fb.DataLoader(ds, 10, num_workers=2, worker_init_fn=functions.init, prefetch_factor=1, **settings)
    assert len({row["pid"] for batch in loader for row in batch} - {pid}) == 2


def test_workers_know_of_themselves_what_torchs_do(rows: fb.Dataset, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(6)}), tmp_path / "other.parquet")

    def check(worker: int) -> None:
        assert get_worker_info().id == worker

    def collate(_: list[Any]) -> Any:
        # Read whole by each worker: it is not what they share.
        other = fb.load_dataset(tmp_path / "other.parquet", split="train")
        info = get_worker_info()
        return info.id, info.num_workers, info.seed, len(list(other.to_torch(1)))

    loaders = [fb.DataLoader(rows, 32, collate_fn=collate, num_workers=2, worker_init_fn=check) for _ in range(2)]
    found, again = ({*loader} for loader in loaders)
    assert {what[:2] + what[3:] for what in found} == {(0, 2, 6), (1, 2, 6)}
    assert len({seed for _, _, seed, _ in found}) == 2
    assert found == again
    mapped = rows.map(lambda batch: {"told": [get_worker_info() is None] * len(batch["id"])}, batched=True, num_proc=1)
    assert all(all(batch["told"]) for batch in mapped.batches(100)), "workers of `map` are no DataLoader's"


def test_it_has_the_attributes_of_torchs_loader_that_mean_the_same(rows: fb.Dataset) -> None:
    settings = {
        "num_workers": 1,
        "collate_fn": functions.pairs,
        "timeout": 60,
        "worker_init_fn": functions.init,
        "multiprocessing_context": "spawn",
        "prefetch_factor": 2,
        "persistent_workers": True,
    }
    ours = fb.DataLoader(rows, 32, **settings)
    theirs = torch.utils.data.DataLoader(rows, 32, **settings)
    for name in ("sampler", "batch_sampler"):
        with pytest.raises(AttributeError, match="replaces `skip_first_batches`"):
            getattr(ours, name)
    missing = {name for name in vars(theirs) if not name.startswith("_") and not hasattr(ours, name)}
    assert missing == {"sampler", "batch_sampler", "generator"}, "the order is not theirs"
    for name in (*settings, "batch_size", "drop_last", "pin_memory", "pin_memory_device", "in_order"):
        if name != "multiprocessing_context":
            assert getattr(ours, name) == getattr(theirs, name), name


def test_ranks_take_their_share(rows: fb.Dataset) -> None:
    loaders = [fb.DataLoader(rows, 10, rank=rank, world_size=2) for rank in range(2)]
    assert [ids_of(loader) for loader in loaders] == [list(range(rank, NUM_ROWS, 2)) for rank in range(2)]
    assert "rank 1 of 2" in repr(loaders[1])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sampler": [1, 2]}, "sampler: the order is that of the dataset"),
    ({"batch_sampler": [[1, 2]]}, "batch_sampler: batches are consecutive rows"),
    ({"generator": torch.Generator()}, "generator: the order follows from the seed of `ds.shuffle(seed=...)`"),
    ({"batch_size": None}, "batch_size: expected a number of rows"),
    ({"in_order": False}, "in_order: batches always come in their order"),
    ({"num_workers": -1}, "num_workers: expected 0 to 1024, got -1"),
    ({"timeout": -1}, "timeout: expected seconds above 0"),
    ({"multiprocessing_context": "fork"}, "multiprocessing_context: expected 'spawn'"),
    ({"multiprocessing_context": multiprocessing.get_context("fork")}, "this process has threads"),
    ({"prefetch_factor": 0}, "prefetch_factor: expected 1 to 1024, got 0"),
    ({"shuffle": 1}, "shuffle: expected True or False, got 1"),
    ({"persistent_workers": 1}, "persistent_workers: expected True or False, got 1"),
    ({"persistent_workers": True}, "persistent_workers: it applies to workers, and `num_workers=0` starts none"),
    ({"timeout": 5}, "timeout: it applies to workers, and `num_workers=0` starts none"),
    ({"prefetch_factor": 2}, "prefetch_factor: it applies to workers, and `num_workers=0` starts none"),
    ({"multiprocessing_context": "spawn"}, "multiprocessing_context: it applies to workers"),
    ({"multiprocessing_context": 3}, "multiprocessing_context: expected 'spawn', 'forkserver' or a context"),
    ({"pin_memory": True, "device": "nowhere"}, "device: expected a device of torch"),
    ({"pin_memory_device": "nowhere"}, "device: expected a device of torch"),
    ({"pin_memory_device": "cpu", "device": "cpu"}, "the device of the batches is `device` already; pass one of them"),
    ({"collate_fn": 5}, "collate_fn: expected a function, got 5"),
    ({"collate_fn": list, "forms": {"id": "list"}}, "forms: `collate_fn` is given rows of the dataset's format"),
    ({"collate_fn": list, "compat": "datasets"}, "`ds.with_format('torch', compat='datasets')` sets it for the rows"),
    ({"collate_fn": list, "padding": True}, "padding: `collate_fn` is given rows"),
    ({"collate_fn": list, "pack": fb.Pack(length=8)}, "pack: `collate_fn` is given rows"),
    ({"collate_fn": list, "decode": {"image": fb.Image(size=8)}}, "decode: `collate_fn` is given rows"),
    ({"collate_fn": list, "on_error": "skip"}, "a `collate_fn` are seeded by the positions of their rows"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_arguments_that_cannot_work_are_refused_with_the_reason(
    rows: fb.Dataset, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(fb.SettingError) as raised:
        fb.DataLoader(rows, **{"batch_size": 8} | settings)
    assert words in str(raised.value)


def test_what_is_about_workers_goes_with_those_of_map_where_it_holds(rows: fb.Dataset) -> None:
    ds = rows.map(functions.doubled, batched=True, num_threads=1)
    assert len(list(fb.DataLoader(ds, 100, persistent_workers=True))) == 5
    with pytest.raises(fb.SettingError, match=r"prefetch_factor: .*for the workers of `map`, pass it to `map`"):
        fb.DataLoader(ds, 100, prefetch_factor=2)
    for settings in ({"timeout": 5}, {"worker_init_fn": functions.init}):
        with pytest.raises(fb.SettingError, match="for the workers of `map`, pass it to `map`"):
            fb.DataLoader(ds, 100, **settings)
    assert len(list(fb.DataLoader(rows, 100, worker_init_fn=functions.init))) == 5, "as in torch"


def test_arguments_of_to_torch_that_ask_for_nothing_go_with_collate_fn(rows: fb.Dataset) -> None:
    nothing = dict.fromkeys(("forms", "compat", "padding", "pack", "decode"))
    for settings in (nothing, {"forms": {}, "padding": False, "decode": {}}):
        assert len(list(fb.DataLoader(rows, 100, collate_fn=list, **settings))) == 5


def test_rows_without_columns_are_as_many(rows: fb.Dataset) -> None:
    def nothing(_: Any) -> None:
        return None

    ds = rows.select_columns("id")
    for empty in (ds.select_columns([]), ds.map(nothing, batched=True, remove_columns="id")):
        assert list(fb.DataLoader(empty, 200, collate_fn=len)) == [200, 200, 100]
        assert list(fb.DataLoader(empty, 400, collate_fn=list)) == [[{}] * 400, [{}] * 100]


@pytest.mark.parametrize("compat", [None, "datasets"])
def test_rows_of_tables_are_not_collated_behind_a_function(rows: fb.Dataset, compat: Any) -> None:
    for name in ("arrow", "pandas", "polars"):
        ds = rows.with_format(name, compat=compat)
        assert list(fb.DataLoader(ds, 200, collate_fn=len)) == [200, 200, 100]
        with pytest.raises(fb.SettingError, match="collate_fn: rows of a table format cannot be collated after `map`"):
            fb.DataLoader(ds.map(functions.unchanged, batched=True), 200, collate_fn=len)


@pytest.mark.parametrize("collate_fn", [None, list])
def test_arguments_that_do_not_exist_are_the_loaders(rows: fb.Dataset, collate_fn: Any) -> None:
    with pytest.raises(TypeError, match=r"^DataLoader\(\) got an unexpected keyword argument 'foo'$"):
        fb.DataLoader(rows, 2, collate_fn=collate_fn, foo=1)
    with pytest.raises(TypeError, match=r"argument 'columns'; `select_columns\(columns\)` before it$"):
        fb.DataLoader(rows, 2, collate_fn=collate_fn, columns=["x"])


def test_a_loader_has_no_sampler_and_says_how_epochs_are_set(rows: fb.Dataset) -> None:
    loader = fb.DataLoader(rows, 2)
    for name in ("sampler", "batch_sampler"):
        with pytest.raises(AttributeError, match=rf"no `{name}`; instead: .*`set_epoch\(epoch\)` sets its epoch"):
            getattr(loader, name)


def test_what_is_no_dataset_of_ours_is_refused(rows: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="torch's DataLoader takes others"):
        fb.DataLoader([1, 2, 3], 2)
    for stream in (rows.to_torch(2), rows.batches(2)):
        with pytest.raises(
            fb.SettingError, match="torch's DataLoader takes it with `batch_size=None`; this one takes the"
        ):
            fb.DataLoader(stream, 2)
    with pytest.raises(fb.SettingError, match="`ds.shuffle` shuffles this dataset"):
        fb.DataLoader(rows.shuffle(3), 2, shuffle=False)
    assert batches_of(fb.DataLoader(rows.shuffle(3), 2, shuffle=True)) == batches_of(rows.shuffle(3).to_torch(2))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    data.write_fragments(folder, data.corpus_table(1500), num_fragments=2)
    return folder


# The trainers warn of this machine (no GPU, few cores) and of their own calls; none of it is about the rows.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["lightning_loader.py", "accelerate_loader.py"])
def test_the_examples_train_and_resume_exactly(
    name: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(corpus)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    out = capsys.readouterr().out
    assert "the same rows in the same order" in out
    assert "FAILED" not in out


@pytest.mark.parametrize("name", ["accelerate_loader.py", "trainer.py"])
def test_examples_run_on_several_ranks(name: str, corpus: Path, tmp_path: Path) -> None:
    code = """
    import runpy, sys
    from contextlib import redirect_stdout
    from io import StringIO
    from unittest.mock import patch

    with redirect_stdout(StringIO()) as out, patch.object(sys, "argv", sys.argv[1:]):
        runpy.run_path(sys.argv[0], run_name="__main__")
    report(out.getvalue().splitlines()[-1])
    """
    told = torchrun(code, 2, tmp_path, EXAMPLES / name, corpus)
    assert told == ["the same rows in the same order"] * 2


def test_functions_that_import_torch_themselves_know_of_their_worker_from_the_first_batch_on(rows: fb.Dataset) -> None:
    def collate(_: list[Any]) -> int | None:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return None if info is None else info.id

    assert set(fb.DataLoader(rows, 32, collate_fn=collate, num_workers=2)) == {0, 1}
