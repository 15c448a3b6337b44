"""Padded lists: what Hugging Face's collators make of the same rows."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data import write_fragments
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 300


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    rng = np.random.default_rng(11)
    ids = [rng.integers(1, 60_000, n).tolist() for n in rng.integers(0, 40, NUM_ROWS)]
    table = pa.table(
        {
            "id": range(NUM_ROWS),
            "input_ids": pa.array(ids, pa.list_(pa.uint16())),
            "labels": pa.array(ids, pa.large_list(pa.int32())),
            "loss_weight": pa.array([[token / 7 for token in row] for row in ids], pa.list_(pa.float32())),
            "is_answer": pa.array([[token % 2 == 0 for token in row] for row in ids], pa.list_(pa.bool_())),
            "embedding": pa.array([[i, i + 1, i + 2] for i in range(NUM_ROWS)], pa.list_(pa.float32(), 3)),
        }
    )
    folder = tmp_path_factory.mktemp("ragged")
    write_fragments(folder, table, row_group_rows=64)
    return fb.load_dataset(folder, split="train")


def batches_of(ds: fb.Dataset, padding: Any, **options: Any) -> Any:
    return ds.to_torch(17, padding=padding, rank=0, world_size=1, **options)


def rows_of(ds: fb.Dataset) -> list[dict[str, Any]]:
    return list(ds.shuffle(seed=5))


def test_batches_are_those_of_transformers_collator(ds: fb.Dataset) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"[PAD]": 0})), pad_token="[PAD]")
    rows = rows_of(ds)
    for side in ("right", "left"):
        tokenizer.padding_side = side
        collate = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8)
        padding = fb.Pad(columns=["input_ids", "labels"], multiple_of=8, side=side)  # type: ignore[arg-type]
        stream = batches_of(ds.shuffle(seed=5), padding)
        for number, batch in enumerate(stream):
            made = collate(
                [{name: row[name] for name in ("input_ids", "labels")} for row in rows[number * 17 : number * 17 + 17]]
            )
            for name in ("input_ids", "attention_mask", "labels"):
                assert torch.equal(batch[name], made[name]), (side, number, name)


def padded(row: list[int], length: int, padding: fb.Pad, value: int) -> list[int]:
    """Returns a row cut and padded, as the settings say."""
    if padding.max_length is not None:
        row = row[: padding.max_length] if padding.truncation_side == "right" else row[-padding.max_length :]
    filling = [value] * (length - len(row))
    return row + filling if padding.side == "right" else filling + row


@given(
    multiple_of=st.integers(1, 12),
    max_length=st.none() | st.integers(1, 50),
    is_whole=st.booleans(),
    side=st.sampled_from(["left", "right"]),
    truncation_side=st.sampled_from(["left", "right"]),
    world_size=st.integers(1, 3),
    cut=st.integers(0, 5),
)
def test_any_rows_are_padded_as_the_settings_say(ds: fb.Dataset, cut: int, world_size: int, **settings: Any) -> None:
    settings["to"] = "max_length" if settings.pop("is_whole") and settings["max_length"] else "longest"
    padding = fb.Pad(columns=["input_ids"], **settings)
    shuffled = ds.shuffle(seed=5)
    for rank in range(world_size):
        share = {"rank": rank, "world_size": world_size}
        rows = [row for batch in shuffled.with_format("arrow").batches(17, **share) for row in batch.to_pylist()]
        stopped, stream = (shuffled.to_torch(17, padding=padding, **share) for _ in range(2))
        for _ in zip(range(cut), stopped, strict=False):
            pass
        stream.load_state_dict(stopped.state_dict())
        for number, batch in enumerate(stream, cut):
            of_batch = [row["input_ids"] for row in rows[number * 17 : number * 17 + 17]]
            longest = max(min(len(row), padding.max_length or len(row)) for row in of_batch)
            wanted = longest if padding.to == "longest" else padding.max_length or 0
            length = -(-wanted // padding.multiple_of) * padding.multiple_of
            assert batch["input_ids"].tolist() == [padded(row, length, padding, 0) for row in of_batch]
            mask = [padded([1] * len(row), length, padding, 0) for row in of_batch]
            assert batch["attention_mask"].tolist() == mask


def test_all_lists_of_numbers_are_padded_and_others_stay(ds: fb.Dataset) -> None:
    batch = next(iter(batches_of(ds, True)))
    rows = [ds[i] for i in range(17)]
    length = max(len(row["input_ids"]) for row in rows)
    expected = {"input_ids": 0, "labels": -100, "loss_weight": 0, "is_answer": False}
    for name, pad in expected.items():
        made = torch.tensor([row[name] + [pad] * (length - len(row[name])) for row in rows])
        assert torch.equal(batch[name], made), name
        assert batch[name].dtype == made.dtype
    assert batch["embedding"].shape == (17, 3), "lists of one length have nothing to be padded with"
    assert batch["id"].tolist() == list(range(17))
    assert batch["attention_mask"].sum(1).tolist() == [len(row["input_ids"]) for row in rows]


def test_lists_are_cut_and_batches_have_one_shape(ds: fb.Dataset) -> None:
    padding = fb.Pad(columns=["labels"], to="max_length", max_length=10, truncation_side="left", values={"labels": -1})
    batches = list(batches_of(ds.select_columns(["id", "labels"]), padding, drop_last=True))
    assert {batch["labels"].shape for batch in batches} == {(17, 10)}
    row = batches[0]["labels"][3].tolist()
    whole = ds[3]["labels"]
    assert row == whole[-10:] + [-1] * (10 - len(whole[-10:]))


def test_integers_stay_what_they_are_on_request(ds: fb.Dataset) -> None:
    padding = fb.Pad(dtype=None, columns=["input_ids"], mask=None)
    batch = next(iter(batches_of(ds.select_columns("input_ids"), padding)))
    assert batch.keys() == {"input_ids"}
    assert batch["input_ids"].dtype == torch.uint16


def test_padding_goes_on_from_a_state_and_in_workers(ds: fb.Dataset) -> None:
    whole = [batch["input_ids"] for batch in batches_of(ds, True)]
    stream = batches_of(ds, True)
    for _ in zip(range(4), stream, strict=False):
        pass
    resumed = batches_of(ds, True)
    resumed.load_state_dict(stream.state_dict())
    rest = [batch["input_ids"] for batch in resumed]
    assert len(rest) == len(whole) - 4
    assert all(map(torch.equal, rest, whole[4:]))
    in_workers = [batch["input_ids"] for batch in DataLoader(batches_of(ds, True), batch_size=None, num_workers=2)]
    assert all(map(torch.equal, in_workers, whole))
    again = pickle.loads(pickle.dumps(batches_of(ds, True)))
    assert all(torch.equal(batch["input_ids"], expected) for batch, expected in zip(again, whole, strict=True))


def test_a_batch_of_empty_lists_is_as_narrow_as_it_can_be(tmp_path: Path) -> None:
    write_fragments(tmp_path, pa.table({"input_ids": pa.array([[], []], pa.list_(pa.int32()))}))
    empty = fb.load_dataset(tmp_path, split="train")
    batch = next(iter(batches_of(empty, True)))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 0)
    assert next(iter(batches_of(empty, fb.Pad(multiple_of=8))))["input_ids"].shape == (2, 0)


def test_a_null_is_an_error_that_says_where_it_is(tmp_path: Path) -> None:
    rows = [[1], [2, 3], None, [4]]
    write_fragments(tmp_path, pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), row_group_rows=2)
    nulls = fb.load_dataset(tmp_path, split="train")
    said = r"column `tokens`, row 0 of row group 1 of `.*part-0.parquet`: the list is NULL; filter with `tokens IS NOT"
    with pytest.raises(fb.DataError, match=said):
        list(batches_of(nulls, True))
    kept = list(batches_of(nulls.filter("tokens IS NOT NULL"), True))
    assert kept[0]["tokens"].tolist() == [[1, 0], [2, 3], [4, 0]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_items_that_are_cut_need_not_fit_the_type(side: str, tmp_path: Path) -> None:
    kept, cut = [1, 2], [2**40, None]
    rows = [kept + cut if side == "right" else cut + kept, [3]]
    write_fragments(tmp_path, pa.table({"tokens": pa.array(rows, pa.list_(pa.int64()))}))
    ds = fb.load_dataset(tmp_path, split="train")
    pad = fb.Pad(dtype="int32", max_length=2, truncation_side=side)
    assert next(iter(batches_of(ds, pad)))["tokens"].tolist() == [[1, 2], [3, 0]]
    for length, said in ((3, "does not fit into `Int32`" if side == "right" else "is NULL"), (4, "is NULL")):
        pad = fb.Pad(dtype="int32", max_length=length, truncation_side=side)
        with pytest.raises(fb.DataError, match=f"row 0 of row group 0 .*an item of the list {said}"):
            next(iter(batches_of(ds, pad)))


def test_a_value_may_be_as_large_as_its_type_allows(tmp_path: Path) -> None:
    kinds = {"a": pa.uint64(), "b": pa.float64(), "c": pa.int64()}
    table = pa.table({name: pa.array([[2**52], []], pa.list_(kind)) for name, kind in kinds.items()})
    write_fragments(tmp_path, table)
    ds = fb.load_dataset(tmp_path, split="train")
    large = 2**63 + 9
    batch = next(iter(batches_of(ds, fb.Pad(dtype=None, values={"a": large, "b": large}))))
    assert batch["a"].tolist() == [[2**52], [large]]
    assert batch["b"].tolist() == [[2.0**52], [2.0**63]]
    with pytest.raises(fb.SettingError, match=f"column `c` of `Int64` cannot be padded with {large}"):
        batches_of(ds, fb.Pad(dtype=None, values={"c": large}))


def test_what_contradicts_padding_is_refused(ds: fb.Dataset) -> None:
    with pytest.raises(fb.SettingError, match="forms: column `input_ids` is padded"):
        batches_of(ds, True, forms={"input_ids": "ragged"})
    dotted = ds.rename_column("input_ids", "input.ids")
    with pytest.raises(fb.SettingError, match="forms: column `input.ids` is padded"):
        batches_of(dotted, True, forms={"input.ids": "ragged"})
    with pytest.raises(fb.SettingError, match="compat"):
        batches_of(ds, True, compat="datasets")
    with pytest.raises(fb.SettingError, match="on_error: rows that cannot be read"):
        batches_of(ds, True, on_error="skip")
    with pytest.raises(fb.SettingError, match="expected True or fb.Pad"):
        batches_of(ds, "longest")
    for padding in (True, fb.Pad(mask=None), fb.Pad(columns=[])):
        with pytest.raises(fb.SettingError, match="no column is a list of numbers"):
            batches_of(ds.select_columns("id"), padding)
    with pytest.raises(fb.ColumnNotFoundError, match="no column `input_idz`; did you mean `input_ids`"):
        batches_of(ds, fb.Pad(columns=["input_idz"]))
    with pytest.raises(fb.TensorError, match="only lists of numbers are padded"):
        batches_of(ds, fb.Pad(columns=["id"]))
    with pytest.raises(fb.ColumnNotFoundError, match="nothing"):
        batches_of(ds, fb.Pad(columns=["nothing"]))
    for number in (1e300, -(10**40)):
        with pytest.raises(fb.SettingError, match="column `loss_weight` of `Float32` cannot be padded with"):
            batches_of(ds, fb.Pad(values={"loss_weight": number}))
    assert isinstance(next(iter(batches_of(ds, False)))["input_ids"], fb.Ragged)


def test_lists_of_one_length_are_padded_only_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    says = r"may differ in length; leave `padding` out, or name columns of one length in `fb.Pad\(columns=\.\.\.\)`"
    with pytest.raises(fb.SettingError, match=says):
        ds.to_torch(2, padding=True)
    (batch,) = ds.to_torch(2, padding=fb.Pad(columns=["v"]))
    assert batch["v"].tolist() == [[1, 2], [3, 4]]


def test_a_query_gives_a_field_of_a_struct_a_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "s": [{"v": [1]}, {"v": [1, 2]}]}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path / "x.parquet", split="train")
    says = "no column `s.v`; the dataset has `id`, `s`; `ds.sql(\"SELECT x['y'] AS y FROM dataset\")` makes a column of"
    with pytest.raises(fb.ColumnNotFoundError, match=re.escape(says)):
        ds.to_torch(2, padding=fb.Pad(columns=["s.v"]))
    (batch,) = ds.sql("SELECT s['v'] AS w FROM dataset").to_torch(2, padding=fb.Pad(columns=["w"]))
    assert batch["w"].tolist() == [[1, 0], [1, 2]]


@pytest.mark.parametrize("dtype", [torch.int32, np.int32, np.dtype("int32")])
def test_the_type_of_integers_may_be_given_as_such(dtype: Any) -> None:
    assert fb.Pad(dtype=dtype) == fb.Pad(dtype="int32")
    assert fb.Pack(length=8, dtype=dtype) == fb.Pack(length=8, dtype="int32")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "longer"}, "to: expected 'longest' or 'max_length', got 'longer'"),
        ({"to": "max_length"}, "max_length"),
        ({"max_length": 0}, "max_length"),
        ({"multiple_of": 0}, "multiple_of"),
        ({"side": "both"}, "side"),
        ({"truncation_side": None}, "truncation_side"),
        ({"values": {"a": None}}, "values"),
        ({"dtype": "uint8"}, "dtype"),
        ({"dtype": torch.float32}, "dtype: expected .*, got 'float32'"),
        ({"dtype": int}, "dtype: expected .*, got 'int'"),
        ({"mask": 1}, "mask"),
        ({"columns": [1]}, "columns"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(fb.SettingError, match=said):
        fb.Pad(**options)


def test_a_function_may_name_the_mask_that_padding_adds(ds: fb.Dataset) -> None:
    expected = list(batches_of(ds, True))
    rows = ds.map(lambda mask: {"num": mask.sum(1)}, batched=True, input_columns="attention_mask")
    assert [batch["num"].tolist() for batch in batches_of(rows, True)] == [
        batch["attention_mask"].sum(1).tolist() for batch in expected
    ]
    bare = ds.map(lambda _: None, batched=True, remove_columns=["attention_mask", "labels"])
    assert next(iter(batches_of(bare, True))).keys() == expected[0].keys() - {"attention_mask", "labels"}


def test_rows_too_long_for_the_memory_are_an_error(tmp_path: Path) -> None:
    rows = [[1, 2, 3]] * 4095 + [list(range(1_000_000))]
    pa.parquet.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "x.parquet")
    ds = fb.load_dataset(tmp_path, split="train")
    longest: list[Any] = [True, fb.Pad(to="max_length", max_length=2**31 - 1)]
    for padding in longest:
        with pytest.raises(fb.MemoryLimitError, match="a batch of 4096 rows needs .* smaller batch_size"):
            next(iter(ds.to_torch(4096, padding=padding)))
    batch = next(iter(ds.to_torch(4096, padding=fb.Pad(max_length=8))))
    assert batch["input_ids"].shape == (4096, 8)
