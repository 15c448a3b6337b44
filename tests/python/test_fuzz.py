"""Whatever a caller passes, the answer is a result or one of our errors: no panic, no error of another kind."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import data
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_ROWS = 200


@pytest.fixture(scope="module")
def ds(tmp_path_factory) -> fb.Dataset:
    folder = tmp_path_factory.mktemp("mixed")
    table = data.mixed_table(NUM_ROWS, seed=11)
    table = table.append_column("ragged", pa.array([list(range(row % 4)) for row in range(NUM_ROWS)]))
    table = table.append_column("kind", pa.array([f"k{row % 3}" for row in range(NUM_ROWS)]).dictionary_encode())
    pq.write_table(table, folder / "rows.parquet", row_group_size=60)
    return fb.load_dataset(folder, split="train")


COLUMNS = ["id", "flag", "score", "lang", "blob", "day", "price", "tokens", "tags", "meta", "ragged", "kind"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64])
    | st.floats()
    | st.text(max_size=12)
    | st.text(st.characters(categories=["Cs", "Cc", "Lu"]), max_size=4)  # lone surrogates and controls, too
    | st.binary(max_size=8)
    | st.complex_numbers()
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3)
)
columns = st.sampled_from(COLUMNS) | st.text(max_size=8)
mostly = lambda good: good | good | good | anything  # noqa: E731 - three of four arguments make sense

FORMS = st.sampled_from(
    ["tensor", "ragged", "nested", "list", "dictionary", "float32", "int16", "bfloat16", "float64", "x"]
)
FORMATS = st.sampled_from([None, "torch", "numpy", "arrow", "pandas", "polars", "csv"])
READING = st.fixed_dictionaries(
    {},
    optional={
        "drop_last": mostly(st.booleans()),
        "remainder": mostly(st.sampled_from(["drop", "pad", "keep"])),
        "rank": mostly(st.integers(0, 3)),
        "world_size": mostly(st.integers(1, 4)),
        "memory_limit": mostly(st.integers(1 << 20, 1 << 28)),
        "num_threads": mostly(st.integers(1, 3)),
    },
)
SHUFFLING = st.fixed_dictionaries(
    {},
    optional={
        "seed": mostly(st.integers(0, 2**64 - 1)),
        "shuffle_bytes": mostly(st.integers(1, 1 << 40)),
        "num_lanes": mostly(st.integers(1, 1 << 20)),
        "window_rows": mostly(st.integers(1, 1 << 40)),
    },
)

WORDS = """= < >= <> AND OR NOT ( ) IN BETWEEN LIKE IS NULL + - * / % 1 0 -9223372036854775808 1e308 'de' '' TRUE
    CAST AS INT DATE CASE WHEN THEN END ELSE lower length abs [ ] . , interval '1_day' :: array_length -- ;"""
words = st.sampled_from([*COLUMNS, *WORDS.split()])
filters = st.lists(words, max_size=9).map(" ".join)
comparisons = st.builds(
    lambda column, operator, value, more: f"{column} {operator} {value} {more}",
    st.sampled_from(COLUMNS),
    st.sampled_from(
        ["=", "<>", "<", ">", "+ 1 >", "/ 0 =", "% 0 =", "* 9223372036854775807 >", "IS NOT DISTINCT FROM"]
    ),
    st.sampled_from(
        ["1", "0", "'de'", "NULL", "-1", "1e400", "true", "'2020-01-01'", "id", "score", "price", "meta.rank"]
    ),
    st.sampled_from(["", "OR TRUE", "AND id > 5", "IS TRUE", "AND tags IS NULL", "OR lang LIKE '%a_'"]),
)

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def answer(call: Callable[[], Any]) -> Any:
    """The result of a call, or None where it was refused as calls are refused."""
    try:
        return call()
    except fb.ForebayError as error:
        text = str(error)
        assert text
        assert "internal error" not in text, text
        assert "panicked" not in text, text
        return None


def drained(stream: Any) -> int:
    """The batches of a stream, up to some: a batch of one row makes many."""
    return sum(1 for _ in itertools.islice(stream, 300))


@quiet
@given(batch_size=mostly(st.integers(1, 500)), reading=READING, shuffling=SHUFFLING | st.none())
@example(batch_size=2**31 - 1, reading={}, shuffling={"num_lanes": 1 << 20})
@example(batch_size=1, reading={"rank": 3, "world_size": 4, "remainder": "pad"}, shuffling={"window_rows": 1 << 40})
def test_streams_deliver_or_refuse(ds, batch_size, reading, shuffling):
    shuffled = ds if shuffling is None else answer(lambda: ds.shuffle(**shuffling))
    if shuffled is None:
        return
    stream = answer(lambda: shuffled.batches(batch_size, **reading))
    if stream is not None:
        answer(lambda: drained(stream))
        answer(lambda: len(stream))


@quiet
@given(forms=mostly(st.dictionaries(columns, mostly(FORMS), max_size=4)), batch_size=st.integers(1, 300))
def test_forms_are_had_or_refused(ds, forms, batch_size):
    stream = answer(lambda: ds.shuffle(1).to_torch(batch_size, forms=forms))
    if stream is not None:
        answer(lambda: drained(stream))


@quiet
@given(
    name=mostly(FORMATS),
    forms=st.none() | st.dictionaries(columns, mostly(FORMS), max_size=3),
    rows=mostly(st.integers(0, 90)),
)
def test_formats_are_had_or_refused(ds, name, forms, rows):
    formatted = answer(lambda: ds.with_format(name, forms=forms))
    if formatted is not None:
        answer(lambda: list(formatted.take(rows)))
        answer(lambda: drained(formatted.iter(batch_size=rows)))


@quiet
@given(sql=filters | comparisons | mostly(comparisons))
def test_filters_are_evaluated_or_refused(ds, sql):
    kept = answer(lambda: ds.filter(sql))
    if kept is not None:
        count = answer(lambda: len(kept))
        if count is not None:
            assert sum(batch.num_rows for batch in kept.batches(64)) == count
            repr(kept)
            kept._repr_html_()


@quiet
@given(names=mostly(st.lists(columns, max_size=4)), removed=mostly(columns))
def test_columns_are_selected_or_refused(ds, names, removed):
    answer(lambda: drained(ds.remove_columns(removed).batches(64)))
    selected = answer(lambda: ds.select_columns(names))
    if selected is not None:
        assert answer(lambda: drained(selected.batches(64))) == 4
        assert len(selected.head()) == 5


@quiet
@given(
    state=anything,
    epoch=anything,
    change=st.dictionaries(
        st.sampled_from(["version", "fingerprint", "query", "order", "epoch", "position", "worker"]),
        anything,
        min_size=1,
        max_size=2,
    ),
)
@example(state=None, epoch=None, change={"epoch": 2**63})
def test_states_and_epochs_are_taken_or_refused(ds, state, epoch, change):
    for stream in (ds.shuffle(3).batches(32), ds.shuffle(3).to_torch(32)):
        own = stream.state_dict()
        answer(lambda stream=stream: stream.load_state_dict(state))
        answer(lambda stream=stream, own=own: stream.load_state_dict(own | change))
        answer(lambda stream=stream: stream.set_epoch(epoch))
        answer(lambda stream=stream: drained(stream))
        answer(lambda: fb.cursor(state))


@quiet
@given(
    source=anything,
    split=mostly(st.none() | st.sampled_from(["train", "test"])),
    options=st.none() | anything,
    names=anything,
)
@example(source="\ud800", split="train", options=None, names=None)
@example(source="a\0b", split="train", options=None, names=None)
@example(source="\0", split=None, options=None, names=None)
def test_sources_are_opened_or_refused(source, split, options, names):
    if isinstance(source, str) and "://" in source:
        return  # a host of somebody
    assert answer(
        lambda: fb.load_dataset(source, split=split, storage_options=options, columns=names)
    ) is None or source in (
        "",
        ".",
        "/",
    )
