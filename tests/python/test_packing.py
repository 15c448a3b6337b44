"""Packed sequences: those of the model, on any rank, from any state."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import packing_model as model
import pyarrow as pa
import pytest
import torch
from data import write_fragments
from hypothesis import given
from hypothesis import strategies as st
from programs import is_raised_in_a_fork
from torch.utils.data import DataLoader

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_DOCUMENTS = 400


def tokens_of(document: int, length: int) -> list[int]:
    """Tokens that tell whose they are and where they stand."""
    return [document * 1000 + place for place in range(length)]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """Documents of 0 to 150 tokens, with labels and weights, of several row groups."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 150, NUM_DOCUMENTS)
    ids = [tokens_of(document, length) for document, length in enumerate(lengths)]
    table = pa.table(
        {
            "id": range(NUM_DOCUMENTS),
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "labels": pa.array([[token + 1 for token in row] for row in ids], pa.large_list(pa.int64())),
            "weight": pa.array([[token / 2 for token in row] for row in ids], pa.list_(pa.float32())),
            "is_answer": pa.array([[token % 2 == 0 for token in row] for row in ids], pa.list_(pa.bool_())),
        }
    )
    folder = tmp_path_factory.mktemp("documents")
    write_fragments(folder, table, num_fragments=2, row_group_rows=70)
    return fb.load_dataset(folder, split="train")


def expected(rows: list[list[int]], pack: fb.Pack) -> list[model.Pieces]:
    if pack.mode == "concat":
        return model.concat(rows, pack.length)
    return model.best_fit(rows, pack.length, pack.window)


def order(ds: fb.Dataset, epoch: int = 0, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    """The documents of a rank, as it reads them."""
    stream = ds.select_columns(["input_ids"]).batches(64, rank=rank, world_size=world_size)
    stream.set_epoch(epoch)
    return [row for batch in stream for row in pa.record_batch(batch)["input_ids"].to_pylist()]


def stream_of(ds: fb.Dataset, pack: fb.Pack, batch_size: int = 3, **options: Any) -> Any:
    return ds.to_torch(batch_size, pack=pack, **({"rank": 0, "world_size": 1} | options))


def rows_of(batches: Any, name: str = "input_ids") -> list[list[int]]:
    return [row for batch in batches for row in batch[name].tolist()]


PACKS = [
    fb.Pack(length=64, columns=["input_ids"]),
    fb.Pack(length=200, columns=["input_ids"], values={"input_ids": -1}),
    fb.Pack(length=64, columns=["input_ids"], mode="best_fit", window=50),
    fb.Pack(length=256, columns=["input_ids"], mode="best_fit", window=7),
    fb.Pack(length=200, columns=["input_ids"], mode="best_fit"),
]


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: f"{pack.mode}-{pack.length}-{pack.window}")
def test_sequences_are_those_of_the_model_and_resume_at_every_batch(documents: fb.Dataset, pack: fb.Pack) -> None:
    ds = documents.shuffle(seed=3)
    sequences = expected(order(ds, epoch=1), pack)
    pad = int(pack.values.get("input_ids", 0))
    rows = [model.row(sequence, pack.length, pad) for sequence in sequences]
    stream = stream_of(ds, pack, 1)
    stream.set_epoch(1)
    states = [stream.state_dict()]
    seen = []
    for batch in stream:
        seen += batch["input_ids"].tolist()
        states.append(json.loads(json.dumps(stream.state_dict())))
    assert seen == rows
    resumed = stream_of(ds, pack, 4)
    for at, state in enumerate(states):
        # Every sequence is a state; a few batches behind each tell whether it holds, all of them behind some.
        resumed.load_state_dict(state)
        batches = resumed if at % 25 == 0 else itertools.islice(resumed, 2)
        found = rows_of(batches)
        assert found == rows[at : at + len(found)], at
        assert len(found) == min(8, len(rows) - at) or (at % 25 == 0 and len(found) == len(rows) - at)
    assert len(json.dumps(states[-1])) < 1000


@given(
    lengths=st.lists(st.integers(0, 70), max_size=60),
    length=st.integers(1, 64),
    window=st.integers(1, 20),
    is_best_fit=st.booleans(),
    batch_size=st.integers(1, 7),
    cut=st.floats(0, 1),
)
def test_any_lengths_are_packed_as_the_model_says_and_resume_anywhere(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    window: int,
    is_best_fit: bool,
    batch_size: int,
    cut: float,
) -> None:
    documents = [tokens_of(document, length) for document, length in enumerate(lengths)]
    folder = tmp_path_factory.mktemp("given")
    write_fragments(folder, pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))}), row_group_rows=17)
    ds = fb.load_dataset(folder, split="train")
    pack = fb.Pack(length=length, mode="best_fit" if is_best_fit else "concat", window=window)
    sequences = expected(documents, pack)
    stream = stream_of(ds, pack, batch_size)
    batches, states = [], [stream.state_dict()]
    for batch in stream:
        batches.append(batch)
        states.append(stream.state_dict())
    rows = [model.row(sequence, length, 0) for sequence in sequences]
    assert rows_of(batches) == rows
    at = round(cut * len(batches))
    resumed = stream_of(ds, pack, batch_size)
    resumed.load_state_dict(states[at])
    assert rows_of(resumed) == rows[at * batch_size :]
    for number, batch in enumerate(batches):
        of_batch = sequences[number * batch_size : (number + 1) * batch_size]
        pieces = [piece for sequence in of_batch for piece in model.segments(sequence, length)]
        assert batch["cu_seqlens"].tolist() == [0, *itertools.accumulate(pieces)]
        assert batch["cu_seqlens"].dtype == torch.int32
        assert batch["max_seqlen"] == max(pieces)
        positions = [place for piece in pieces for place in range(piece)]
        assert batch["position_ids"].flatten().tolist() == positions
        assert batch["position_ids"].shape == batch["input_ids"].shape == (len(of_batch), length)


@pytest.mark.parametrize("mode", ["concat", "best_fit"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_pack_their_own_documents_and_resume(documents: fb.Dataset, mode: Any, world_size: int) -> None:
    pack = fb.Pack(length=100, mode=mode, columns=["input_ids"], window=32)
    ds = documents.shuffle(seed=1)
    for rank in range(world_size):
        share = {"rank": rank, "world_size": world_size}
        rows = [model.row(sequence, 100, 0) for sequence in expected(order(ds, **share), pack)]
        stream = stream_of(ds, pack, **share)
        first = rows_of(itertools.islice(stream, 9))
        state = stream.state_dict()
        resumed = stream_of(ds, pack, **share)
        resumed.load_state_dict(state)
        assert first + rows_of(resumed) == rows
        assert rows_of(resumed) == rows, "the loop behind a resumed one begins at 0"


def test_columns_are_packed_alike_in_their_types(documents: fb.Dataset) -> None:
    names = ["labels", "input_ids", "weight", "is_answer"]
    batches = list(stream_of(documents, fb.Pack(length=96, mode="best_fit", columns=names)))
    dtypes = {name: batches[0][name].dtype for name in names}
    assert dtypes == {
        "labels": torch.int64,
        "input_ids": torch.int64,
        "weight": torch.float32,
        "is_answer": torch.bool,
    }
    num_padding = 0
    for batch in batches:
        tokens = batch["input_ids"]
        is_padding = batch["labels"] == -100
        num_padding += int(is_padding.sum())
        assert torch.equal(batch["labels"][~is_padding], tokens[~is_padding] + 1)
        assert torch.equal(batch["weight"], tokens / 2)
        assert torch.equal(batch["is_answer"], (tokens % 2 == 0) & ~is_padding)
        assert not tokens[is_padding].any()
    assert num_padding > 0


def test_other_dtypes_are_had_on_request(documents: fb.Dataset) -> None:
    names = ["labels", "input_ids"]
    batch = next(iter(stream_of(documents, fb.Pack(length=8, columns=names, dtype=None))))
    assert (batch["input_ids"].dtype, batch["labels"].dtype) == (torch.int32, torch.int64)
    batch = next(iter(stream_of(documents, fb.Pack(length=8, columns=names, dtype="int32"))))
    assert (batch["input_ids"].dtype, batch["labels"].dtype) == (torch.int32, torch.int32)


def test_flat_batches_are_those_of_transformers_collator(documents: fb.Dataset) -> None:
    from transformers import DataCollatorWithFlattening

    pack = fb.Pack(length=256, columns=["input_ids"], labels=True, flatten=True)
    sequences = expected(order(documents), pack)
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batches = list(stream_of(documents, pack, 2))
    for number, batch in enumerate(batches[:-1]):
        pieces = [piece for sequence in sequences[2 * number : 2 * number + 2] for piece in sequence]
        made = collate([{"input_ids": piece} for piece in pieces])
        assert batch.keys() == made.keys()
        for name, value in made.items():
            assert torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(value)), (number, name)
    # The collator has no padding; ours is a piece of its own that nothing is learnt from.
    last = batches[-1]
    num_padding = 256 - sum(map(len, sequences[-1]))
    assert last["cu_seq_lens_q"].diff()[-1] == num_padding > 0
    assert set(last["labels"][0, -num_padding:].tolist()) == {-100}


@pytest.mark.parametrize("columns", [["input_ids"], ["input_ids", "labels"]], ids=len)
def test_labels_have_the_value_that_is_asked_for_where_nothing_is_to_be_learnt(
    documents: fb.Dataset, columns: list[str]
) -> None:
    pack = {"length": 96, "mode": "best_fit", "columns": columns, "labels": True}
    plain = list(stream_of(documents, fb.Pack(**pack)))
    for batch, usual in zip(stream_of(documents, fb.Pack(**pack, values={"labels": -1})), plain, strict=True):
        assert torch.equal(batch["labels"], torch.where(usual["labels"] == -100, -1, usual["labels"]))
        assert torch.equal(batch["input_ids"], usual["input_ids"])


def test_best_fit_fills_nearly_all_of_what_documents_usually_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6, 1, 8192), 16, 20_000).astype(int)
    table = pa.table({"input_ids": pa.array([np.ones(n, np.int32) for n in lengths], pa.list_(pa.int32()))})
    write_fragments(tmp_path, table)
    stream = stream_of(fb.load_dataset(tmp_path, split="train"), fb.Pack(length=2048, mode="best_fit"), 16)
    num_tokens = sum(int(batch["input_ids"].sum()) for batch in stream)
    stats = stream.stats()
    assert stats["tokens_packed"] == num_tokens == lengths.sum()
    assert stats["tokens_packed"] / (stats["tokens_packed"] + stats["tokens_padding"]) > 0.97


def test_drop_last_leaves_out_what_is_not_full(documents: fb.Dataset) -> None:
    pack = fb.Pack(length=128, columns=["input_ids"])
    all_rows = rows_of(stream_of(documents, pack, 5))
    num_whole = sum(map(len, order(documents))) // 128
    kept = stream_of(documents, pack, 5, drop_last=True)
    assert rows_of(kept) == all_rows[: num_whole // 5 * 5]
    kept.load_state_dict(kept.state_dict())
    assert rows_of(kept) == []


def test_an_event_loop_gets_the_same_batches(documents: fb.Dataset) -> None:
    pack = fb.Pack(length=64, mode="best_fit", columns=["input_ids"], window=20)

    async def collect() -> list[list[int]]:
        return [row async for batch in stream_of(documents, pack) for row in batch["input_ids"].tolist()]

    assert asyncio.run(collect()) == rows_of(stream_of(documents, pack))


def test_a_data_loader_without_workers_passes_batches_on(documents: fb.Dataset) -> None:
    pack = fb.Pack(length=64, columns=["input_ids"])
    stream = stream_of(documents, pack)
    assert rows_of(DataLoader(stream, batch_size=None)) == rows_of(stream)
    with pytest.raises(fb.SettingError, match="num_workers"):
        next(iter(DataLoader(stream, batch_size=None, num_workers=1)))


def test_states_of_other_streams_are_refused(documents: fb.Dataset) -> None:
    pack = fb.Pack(length=64, columns=["input_ids"], mode="best_fit", window=10)
    state = stream_of(documents, pack).state_dict()
    for other, options, said in [
        (fb.Pack(length=65, columns=["input_ids"], mode="best_fit", window=10), {}, "length: expected `65`, got `64`"),
        (fb.Pack(length=64, columns=["input_ids"], mode="best_fit", window=11), {}, "window: expected `11`, got `10`"),
        (fb.Pack(length=64, columns=["input_ids"]), {}, "mode: expected `concat`, got `best_fit`"),
        (pack, {"rank": 0, "world_size": 2}, "world_size: expected `2`, got `1`"),
    ]:
        with pytest.raises(fb.StateError, match=said):
            stream_of(documents, other, **options).load_state_dict(state)
    plain = documents.to_torch(8, rank=0, world_size=1)
    with pytest.raises(fb.StateError, match="from a stream that packs"):
        plain.load_state_dict(state)
    with pytest.raises(fb.StateError, match="from a stream that does not pack"):
        stream_of(documents, pack).load_state_dict(plain.state_dict())
    for done in (-1, 1 << 70, True, None):
        with pytest.raises(fb.StateError, match="done"):
            stream_of(documents, pack).load_state_dict(state | {"pack": state["pack"] | {"done": done}})
    for at, done in ((0, 10_000), (NUM_DOCUMENTS, 1)):
        stream = stream_of(documents, pack)
        stream.load_state_dict(state | {"position": at, "pack": state["pack"] | {"done": done}})
        with pytest.raises(fb.StateError, match=rf"pack.done: {done} sequences were delivered, of which there are \d"):
            list(stream)
    of_two = stream_of(documents, pack, rank=1, world_size=2)
    here = of_two.state_dict()
    with pytest.raises(fb.StateError, match="between the documents"):
        of_two.load_state_dict(here | {"position": 3})
    assert of_two.state_dict() == here, "what is refused changes nothing"
    with pytest.raises(fb.StateError, match="left out rows"):
        stream_of(documents, pack).load_state_dict(state | {"holes": [{"span": 0}]})
    with pytest.raises(fb.StateError):
        stream_of(documents, pack).load_state_dict([])
    # Columns and batch size are free.
    both = fb.Pack(length=64, columns=["labels", "input_ids"], mode="best_fit", window=10)
    stream_of(documents, both, 17).load_state_dict(state)


@pytest.mark.parametrize("mode", ["concat", "best_fit"])
def test_without_an_end_a_state_behind_the_last_batch_of_a_pass_goes_on_with_the_next(
    tmp_path: Path, mode: Any
) -> None:
    # The first document is needed to the last batch, behind which there are tokens that fill none.
    write_fragments(tmp_path, pa.table({"input_ids": [tokens_of(0, 950), tokens_of(1, 20)]}))
    pack = fb.Pack(length=100, mode=mode)

    def make() -> Any:
        return stream_of(fb.load_dataset(tmp_path, split="train").repeat(), pack, drop_last=True)

    stream, states = make(), []
    batches = []
    for batch in itertools.islice(stream, 9):
        batches.append(batch["input_ids"].tolist())
        states.append(json.loads(json.dumps(stream.state_dict())))
    for at, state in enumerate(states[:6]):
        later = make()
        later.load_state_dict(state)
        assert [batch["input_ids"].tolist() for batch in itertools.islice(later, 2)] == batches[at + 1 : at + 3]


def test_a_pass_that_fills_no_batch_is_no_end(tmp_path: Path) -> None:
    lengths = [400 if document % 2 else 10 for document in range(40)]
    table = pa.table({"input_ids": [tokens_of(document, length) for document, length in enumerate(lengths)]})
    write_fragments(tmp_path, table)
    documents = fb.load_dataset(tmp_path, split="train")
    ds, pack = documents.shuffle(1), fb.Pack(length=512)
    for rank in range(4):
        settings: dict[str, Any] = {"pack": pack, "rank": rank, "world_size": 4, "drop_last": True}
        some = [batch["input_ids"].tolist() for batch in ds.repeat(12).to_torch(4, **settings)]
        endless = itertools.islice(ds.repeat().to_torch(4, **settings), len(some))
        assert [batch["input_ids"].tolist() for batch in endless] == some
        assert 0 < len(some) < 12, "some passes fill none"
    with pytest.raises(fb.SettingError, match="no batch for this rank"):
        next(iter(documents.select([0]).repeat().to_torch(4, pack=pack, rank=0, world_size=1, drop_last=True)))


def test_another_epoch_begins_at_its_beginning(documents: fb.Dataset) -> None:
    pack = fb.Pack(length=64, columns=["input_ids"])
    stream = stream_of(documents.shuffle(seed=2), pack)
    for _ in zip(range(3), stream, strict=False):
        pass
    stream.load_state_dict(stream.state_dict())
    stream.set_epoch(1)
    assert stream.state_dict()["pack"]["done"] == stream.state_dict()["position"] == 0
    assert rows_of(stream) == [
        model.row(sequence, 64, 0) for sequence in expected(order(documents.shuffle(seed=2), epoch=1), pack)
    ]


def test_the_number_of_batches_is_not_known(documents: fb.Dataset) -> None:
    with pytest.raises(TypeError, match="known only when"):
        len(stream_of(documents, fb.Pack(length=64, columns=["input_ids"])))


def test_what_cannot_be_packed_is_refused(documents: fb.Dataset, tmp_path: Path) -> None:
    with pytest.raises(fb.TensorError, match="`id` of type `Int64`.*only lists of numbers are packed"):
        stream_of(documents, fb.Pack(length=64))
    with pytest.raises(fb.ColumnNotFoundError):
        stream_of(documents, fb.Pack(length=64, columns=["nothing"]))
    with pytest.raises(fb.SettingError, match="cannot be padded with 0.5"):
        stream_of(documents, fb.Pack(length=64, columns=["input_ids"], values={"input_ids": 0.5}))
    with pytest.raises(fb.SettingError, match="leave `padding`"):
        stream_of(documents, fb.Pack(length=64, columns=["input_ids"]), padding=True)
    with pytest.raises(fb.SettingError, match="32 bits"):
        stream_of(documents, fb.Pack(length=1 << 20, columns=["input_ids"]), 1 << 12)
    with pytest.raises(fb.MemoryLimitError, match="of 1000000000 tokens takes up to 16000000000"):
        stream_of(documents, fb.Pack(length=10**9, columns=["input_ids"]), 1)
    with pytest.raises(fb.SettingError, match="values: `input_id` is not a column that is packed"):
        stream_of(documents, fb.Pack(length=64, columns=["input_ids"], values={"input_id": 2}))
    with pytest.raises(fb.SettingError, match="labels are made of .*, and column `weight` is `Float32`"):
        stream_of(documents, fb.Pack(length=8, columns=["weight"], labels=True))
    unsigned = documents.sql("SELECT arrow_cast(make_array(id), 'List(UInt16)') AS input_ids FROM dataset")
    with pytest.raises(fb.SettingError, match='column `input_ids` is `UInt16`; pass `dtype="int64"`'):
        stream_of(unsigned, fb.Pack(length=8, labels=True, dtype=None))
    for columns in (["input_ids"], ["input_ids", "labels"]):
        pack = fb.Pack(length=8, columns=columns, labels=True, values={"labels": 1 << 40}, dtype="int32")
        with pytest.raises(fb.SettingError, match="column `labels` of `Int32` cannot be padded with 1099511627776"):
            stream_of(documents, pack)
    table = pa.table({"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3, 4]]})
    write_fragments(tmp_path, table)
    with pytest.raises(fb.DataError, match=r"column `labels`, row 1 of row group 0 of `.*part-0.parquet`: expected 1"):
        list(stream_of(fb.load_dataset(tmp_path, split="train"), fb.Pack(length=4)))


def test_columns_may_be_one_name_or_what_names_are_taken_from(documents: fb.Dataset) -> None:
    for columns in ("input_ids", (name for name in ["input_ids"])):
        pack = fb.Pack(length=64, columns=columns)
        assert list(next(iter(stream_of(documents, pack))))[:1] == ["input_ids"]
        assert next(iter(stream_of(documents, pack)))["input_ids"].shape == (3, 64)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 0}, "length"),
        ({"mode": "first_fit"}, "mode: expected 'concat' or 'best_fit', got 'first_fit'"),
        ({"columns": []}, "columns"),
        ({"window": 0}, "window"),
        ({"values": {"a": "b"}}, "values"),
        ({"values": {"a": float("nan")}}, "values"),
        ({"values": {"a": 10**400}}, "values"),
        ({"values": [1]}, "values"),
        ({"labels": 1}, "labels"),
        ({"flatten": None}, "flatten"),
        ({"dtype": "float32"}, "dtype"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(fb.SettingError, match=said):
        fb.Pack(**({"length": 8} | options))


@pytest.mark.parametrize("mode", ["concat", "best_fit"])
def test_a_forked_child_gets_nothing_of_what_its_parent_has_packed(documents: fb.Dataset, mode: Any) -> None:
    batches = iter(stream_of(documents, fb.Pack(length=64, columns=["input_ids"], mode=mode)))
    whole = [
        batch["input_ids"].tolist()
        for batch in stream_of(documents, fb.Pack(length=64, columns=["input_ids"], mode=mode))
    ]
    got = [next(batches)["input_ids"].tolist()]
    assert is_raised_in_a_fork(fb.ClosedError, lambda: next(batches))
    assert got + [batch["input_ids"].tolist() for batch in batches] == whole


def test_the_length_needs_no_name() -> None:
    assert fb.Pack(64, mode="best_fit") == fb.Pack(length=64, mode="best_fit")
    with pytest.raises(TypeError):
        fb.Pack(64, "best_fit")


def test_the_state_of_another_rank_is_refused(documents: fb.Dataset) -> None:
    pack = fb.Pack(length=64, columns=["input_ids"])
    state = stream_of(documents, pack, rank=0, world_size=2).state_dict()
    with pytest.raises(fb.StateError, match="rank: expected `1`, got `0`"):
        stream_of(documents, pack, rank=1, world_size=2).load_state_dict(state)


def test_documents_that_are_large_are_packed_with_little_memory(tmp_path: Path) -> None:
    lengths = [20_000] * 300
    table = pa.table(
        {"input_ids": pa.array([np.full(n, i, np.int32) for i, n in enumerate(lengths)], pa.list_(pa.int32()))}
    )
    write_fragments(tmp_path, table, row_group_rows=20)
    ds = fb.load_dataset(tmp_path, split="train")
    stream = stream_of(ds, fb.Pack(length=4096), 4, memory_limit=16 << 20)
    assert sum(batch["input_ids"].numel() for batch in stream) >= 300 * 20_000
    assert stream.stats()["tokens_packed"] == 300 * 20_000


def test_a_window_that_takes_more_than_the_limit_is_refused_with_what_would_do(tmp_path: Path) -> None:
    # 64 bits a token in memory, 16 in storage: 7.3 MiB in all, and 1.8 MiB.
    column = pa.array([np.full(4000, i, np.uint16) for i in range(240)], pa.list_(pa.uint16()))
    write_fragments(tmp_path, pa.table({"input_ids": column}), row_group_rows=20)
    ds = fb.load_dataset(tmp_path, split="train")
    stream = stream_of(ds, fb.Pack(length=4096, mode="best_fit"), 2, memory_limit="4 MiB")
    said = r"memory_limit of 4194304 bytes .*: 1\d\d documents for a window of 4096 take 4\d{6} bytes; raise"
    with pytest.raises(fb.MemoryLimitError, match=said):
        next(iter(stream))
    wide = stream_of(ds, fb.Pack(length=4096, mode="best_fit", window=60), 2, memory_limit="8 MiB")
    narrow = stream_of(ds, fb.Pack(length=4096, mode="best_fit", window=60), 2, memory_limit="4 MiB")
    narrow.load_state_dict(wide.state_dict())
    assert rows_of(narrow) == rows_of(wide)
    views = stream_of(ds, fb.Pack(length=4096, mode="best_fit", dtype=None), 2, memory_limit="4 MiB")
    assert len(rows_of(views)) == 240


@pytest.mark.parametrize(
    "name",
    ["position_ids", "cu_seqlens", "max_seqlen", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"],
)
def test_a_column_that_is_called_as_what_packing_makes_is_refused(documents: fb.Dataset, name: str) -> None:
    with pytest.raises(fb.SettingError, match=f"columns: packed batches have a `{name}` of their own; rename"):
        stream_of(documents.rename_column("labels", name), fb.Pack(length=8, columns=["input_ids", name]))


def test_labels_are_not_made_of_labels(documents: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="columns: packed batches have a `labels` of their own; rename"):
        stream_of(documents, fb.Pack(length=8, columns=["labels"], labels=True))


def test_the_window_is_nothing_to_documents_that_are_cut(documents: fb.Dataset) -> None:
    stream = stream_of(documents, fb.Pack(length=64, columns=["input_ids"]))
    whole = rows_of(stream)
    rest = iter(stream)
    before = rows_of(islice(rest, 5))
    later = stream_of(documents, fb.Pack(length=64, columns=["input_ids"], window=7))
    later.load_state_dict(stream.state_dict())
    assert before + rows_of(later) == whole


def test_a_state_behind_the_last_full_batch_gives_way_to_the_epoch_that_was_set(tmp_path: Path) -> None:
    # What is left of the second document fills no batch.
    write_fragments(tmp_path, pa.table({"input_ids": [tokens_of(0, 50), tokens_of(1, 920)]}))
    pack = fb.Pack(length=100)
    dataset = fb.load_dataset(tmp_path, split="train")
    stream = stream_of(dataset, pack, drop_last=True)
    whole = rows_of(stream)
    assert len(whole) == 9
    state = json.loads(json.dumps(stream.state_dict()))
    assert state["position"] == 1
    later = stream_of(dataset, pack, drop_last=True)
    later.set_epoch(1)
    later.load_state_dict(state)
    assert rows_of(later) == whole
    assert later.epoch == 1
    # Without such an epoch there is nothing more of this one.
    later.load_state_dict(state)
    assert rows_of(later) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("mode", ["concat", "best_fit"])
@pytest.mark.parametrize("num_empty", [1, 3, 600])
def test_a_state_behind_the_last_batch_is_over_though_empty_documents_follow(
    tmp_path: Path, num_empty: int, mode: Any, drop_last: bool
) -> None:
    documents = [tokens_of(document, 4) for document in range(10)] + [[]] * num_empty
    write_fragments(tmp_path, pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))}), row_group_rows=10)

    def make() -> Any:
        pack = fb.Pack(length=4, mode=mode, window=5)
        return stream_of(fb.load_dataset(tmp_path, split="train"), pack, 2, drop_last=drop_last)

    stream = make()
    states = [json.loads(json.dumps(stream.state_dict())) for _ in stream]
    assert [state["position"] for state in states[-2:]] == [5 if mode == "best_fit" else 8, 10 + num_empty]
    for state, epoch, num_batches in ((states[-1], 1, 5), (states[-2], 0, 1)):
        later = make()
        later.set_epoch(1)
        later.load_state_dict(state)
        assert len(list(later)) == num_batches
        assert later.epoch == epoch


@pytest.mark.parametrize(
    ("mode", "lengths", "num_rows"),
    [
        ("best_fit", [50, 920], 9),
        # More documents than a batch has tokens.
        ("best_fit", [60] * 301, 300),
        ("concat", [970], 9),
    ],
)
def test_a_state_behind_the_last_full_batch_is_over_though_the_first_document_is_needed(
    tmp_path: Path, mode: Any, lengths: list[int], num_rows: int
) -> None:
    write_fragments(tmp_path, pa.table({"input_ids": [tokens_of(*which) for which in enumerate(lengths)]}))
    pack = fb.Pack(length=100, mode=mode)
    dataset = fb.load_dataset(tmp_path, split="train")
    batch_size = 3 if num_rows == 9 else 2
    stream = stream_of(dataset, pack, batch_size, drop_last=True)
    whole, states = [], []
    for batch in stream:
        whole += rows_of([batch])
        states.append(json.loads(json.dumps(stream.state_dict())))
    assert len(whole) == num_rows
    assert states[-1]["position"] == 0
    for state, expected_rows, epoch in ((states[-1], whole, 1), (states[-2], whole[-batch_size:], 0)):
        later = stream_of(dataset, pack, batch_size, drop_last=True)
        later.set_epoch(1)
        later.load_state_dict(state)
        assert rows_of(later) == expected_rows
        assert later.epoch == epoch


def test_states_that_another_thread_takes_are_of_ends_of_batches(tmp_path: Path) -> None:
    table = pa.table({"ids": pa.array([[n] * (1 + n % 3) for n in range(30_000)], pa.list_(pa.int32()))})
    write_fragments(tmp_path, table, num_fragments=1, row_group_rows=[10_000])
    dataset = fb.load_dataset(tmp_path, split="train")
    stream = dataset.to_torch(4, pack=fb.Pack(length=5))

    def place() -> tuple[int, int]:
        state = stream.state_dict()
        return state["position"], state["pack"]["done"]

    ends = {place()} | {place() for _ in stream}

    def read() -> None:
        for _ in range(4):
            for _ in stream:
                pass

    reading = threading.Thread(target=read)
    reading.start()
    seen = set()
    while reading.is_alive():
        seen.add(place())
    assert seen <= ends
    assert len(seen) > 1
