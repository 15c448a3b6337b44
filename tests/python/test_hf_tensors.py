"""Rows of tensors: made of whole tables where that changes nothing, and always those of `datasets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hf_data import shown
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay as fb
from forebay.hf.tensors import NUMBERS, TorchRows

if TYPE_CHECKING:
    from pathlib import Path

KINDS = (
    *NUMBERS,
    pa.string(),
    *(pa.list_(kind) for kind in (pa.int32(), pa.float64(), pa.bool_(), pa.string())),
    pa.list_(pa.int64(), 3),
    pa.list_(pa.list_(pa.int16())),
    pa.struct({"a": pa.int32(), "b": pa.string()}),
    pa.binary(),
)


def value_of(kind: pa.DataType, rng: np.random.Generator, length: int) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: value_of(field.type, rng, length) for field in kind}
    if pa.types.is_nested(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else length
        return [value_of(kind.value_type, rng, length) for _ in range(size)]
    number = int(rng.integers(0, 100))
    if pa.types.is_floating(kind):
        return float("nan") if number < 5 else number / 8
    if pa.types.is_integer(kind):
        return number
    return {"bool": number % 2 == 0, "string": f"w{number}"}.get(str(kind), b"x" * (number % 3))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of some columns; lists of one length or of several, empty ones too; with and without NULLs."""
    num_rows = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    columns = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        kind = draw(st.sampled_from(KINDS))
        lengths = draw(st.sampled_from([(2, 2), (1, 3), (0, 2)]))
        null_fraction = draw(st.sampled_from([0.0, 0.0, 0.3]))
        values = [value_of(kind, rng, int(rng.integers(lengths[0], lengths[1] + 1))) for _ in range(num_rows)]
        columns[name] = pa.array([None if rng.random() < null_fraction else value for value in values], kind)
    return pa.table(columns)


def outcome(rows: Any) -> Any:
    """What a loop yields, or how it fails: there are values of which torch makes no tensor."""
    try:
        return shown(list(rows))
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables())
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_rows_of_tensors_are_those_of_datasets(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(table, path)
    ours = fb.load_dataset(path, split="train").to_hf()
    theirs = datasets.Dataset(table).to_iterable_dataset()
    assert outcome(ours.with_format("torch")) == outcome(theirs.with_format("torch"))


@pytest.mark.parametrize(
    ("column", "is_whole"),
    [
        (pa.array([1, 2, 3]), True),
        (pa.array([[1, 2], [3, 4], [5, 6]]), True),
        (pa.array([[1], [2, 3], [4]]), True),
        (pa.array(["a", "b", "c"]), True),
        (pa.array([1, None, 3]), False),
        (pa.array([[1, None], [3, 4], [5, 6]]), False),
        (pa.array([[], [3, 4], [5, 6]], pa.list_(pa.int64())), False),
        (pa.array([{"a": 1}, {"a": 2}, {"a": 3}]), False),
    ],
    ids=str,
)
def test_tables_are_made_tensors_at_once_where_rows_do_not_depend_on_each_other(
    tmp_path: Path, column: pa.Array, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "rows.parquet")
    ds = fb.load_dataset(tmp_path, split="train").to_hf().with_format("torch")
    sizes = []
    make = TorchRows.__init__

    def noting(self: TorchRows, *arguments: Any) -> None:
        make(self, *arguments)
        batch, row = self._formatter.format_batch, self._formatter.format_row
        self._formatter.format_batch = lambda table: (sizes.append(len(table)), batch(table))[1]
        self._formatter.format_row = lambda table: (sizes.append(len(table)), row(table))[1]

    monkeypatch.setattr(TorchRows, "__init__", noting)
    assert len(list(ds)) == 3
    assert sizes == ([3] if is_whole else [1, 1, 1])
