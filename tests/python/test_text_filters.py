"""Filters of text keep the rows that they say, whether its pages hold values or their numbers in a dictionary."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = ["", "a", "ab", "b", "zz", "größe", "日本", "%", "_", "A"]

PREDICATES: dict[str, Callable[[str | None], bool | None]] = {
    "t = 'ab'": lambda t: t and t == "ab",
    "t <> 'ab'": lambda t: None if t is None else t != "ab",
    "NOT (t = 'ab')": lambda t: None if t is None else t != "ab",
    "t IN ('a', 'zz', 'never')": lambda t: t in ("a", "zz"),
    "t NOT IN ('a', 'zz')": lambda t: None if t is None else t not in ("a", "zz"),
    "t NOT IN ('a', NULL)": lambda _: None,
    "t LIKE '%ö%'": lambda t: None if t is None else "ö" in t,
    "t NOT LIKE 'a%'": lambda t: None if t is None else not t.startswith("a"),
    "t >= 'b' AND t < 'zzz'": lambda t: None if t is None else b"b" <= t.encode() < b"zzz",
    "t IS NULL": lambda t: t is None,
    "t IS NOT NULL": lambda t: t is not None,
    "t IS DISTINCT FROM 'a'": lambda t: t != "a",
    "(t = 'a') IS NOT TRUE": lambda t: t != "a",
    "t = '' OR t IS NULL": lambda t: not t,
    "coalesce(t, 'a') = 'a'": lambda t: t in (None, "a"),
    "length(t) = 2": lambda t: None if t is None else len(t) == 2,
    "CASE WHEN t IS NULL THEN TRUE WHEN t = 'b' THEN NULL ELSE lower(t) = 'a' END": lambda t: (
        t is None or t in ("a", "A")
    ),
}


def texts(num_rows: int, nulls: float, longest_run: int, rng: random.Random) -> list[str | None]:
    """Returns words in runs, and NULLs."""
    column: list[str | None] = []
    while len(column) < num_rows:
        word = None if rng.random() < nulls else rng.choice(WORDS)
        column += [word] * rng.randint(1, longest_run)
    return column[:num_rows]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("nulls", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dictionary_bytes", [1, 30, 1 << 20], ids=["plain", "a few numbers", "numbers"])
@pytest.mark.parametrize("longest_run", [1, 700])
def test_text_is_kept_by_what_it_says(
    version: str, nulls: float, dictionary_bytes: int, longest_run: int, tmp_path: Path
) -> None:
    rng = random.Random(f"{nulls} {longest_run}")
    column = texts(9000, nulls, longest_run, rng)
    numbers = [rng.randrange(10) for _ in column]
    table = pa.table({"id": range(len(column)), "n": numbers, "t": pa.array(column, pa.string())})
    pq.write_table(
        table,
        tmp_path / "x.parquet",
        row_group_size=5000,
        data_page_size=200,
        write_batch_size=100,
        dictionary_pagesize_limit=dictionary_bytes,
        data_page_version=version,
        write_page_index=longest_run > 1,
    )
    ds = fb.load_dataset(str(tmp_path), split="train")
    for sql, holds in PREDICATES.items():
        kept = [row for row, text in enumerate(column) if holds(text)]
        assert pa.table(ds.filter(sql).select_columns("id"))["id"].to_pylist() == kept, sql
        # Rows that lie anywhere are asked for.
        some = [row for row in kept if numbers[row] < 3]
        assert pa.table(ds.filter(f"n < 3 AND ({sql})").select_columns("id"))["id"].to_pylist() == some, sql


def test_a_value_that_no_row_has_that_is_asked_fails_nothing(tmp_path: Path) -> None:
    column = ["12", "34", "x"] * 1000
    numbers = [place % 3 for place in range(3000)]
    pq.write_table(pa.table({"n": numbers, "t": column}), tmp_path / "x.parquet", data_page_size=100)
    ds = fb.load_dataset(str(tmp_path), split="train")
    assert ds.filter("n < 2 AND CAST(t AS INT) > 20").num_rows == 1000
    with pytest.raises(fb.QueryError, match=r"(?s)row group 0.*'x'"):
        _ = ds.filter("n < 3 AND CAST(t AS INT) > 20").num_rows


def test_each_value_of_a_dictionary_is_evaluated_once(tmp_path: Path) -> None:
    column = [None if row % 7 == 0 else WORDS[row % len(WORDS)] for row in range(20_000)]
    pq.write_table(pa.table({"id": range(20_000), "t": column}), tmp_path / "x.parquet")
    seen: list[str | None] = []

    def is_short(texts: pa.Array) -> pa.Array:
        seen.extend(texts.to_pylist())
        return pc.less(pc.utf8_length(texts), 2)

    ds = fb.load_dataset(str(tmp_path), split="train")
    function = fb.Function(call=is_short, arguments=[pa.string()], returns=pa.bool_())
    kept = ds.sql("SELECT id FROM dataset WHERE is_short(t)", functions={"is_short": function})
    assert pa.table(kept)["id"].to_pylist() == [
        row for row, text in enumerate(column) if text is not None and len(text) < 2
    ]
    assert sorted(text for text in seen if text is not None) == sorted(WORDS)


@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("nulls", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("share", [2, 100, 500, 990])
def test_columns_of_rows_that_lie_anywhere_are_those_of_the_table(
    encoding: str, nulls: float, share: int, tmp_path: Path
) -> None:
    rng = random.Random(share)

    def column(kind: pa.DataType, values: list[object]) -> pa.Array:
        return pa.array([None if rng.random() < nulls else rng.choice(values) for _ in range(9000)], kind)

    table = pa.table(
        {
            "n": [rng.randrange(1000) for _ in range(9000)],
            "i": column(pa.int64(), list(range(300))),
            "h": column(pa.int16(), [-1, 5]),
            "f": column(pa.float32(), [0.5, -1.0, 7.25]),
            "b": column(pa.bool_(), [True, False]),
            "t": column(pa.string(), WORDS),
            "y": column(pa.large_binary(), [b"", b"\xff" * 40, b"x"]),
            "s": column(pa.struct({"x": pa.int32()}), [{"x": 1}, {"x": None}]),
        }
    )
    how = {"use_dictionary": True} if encoding == "dictionary" else {"use_dictionary": False}
    if encoding != "dictionary":
        how["column_encoding"] = {"t": encoding, "y": encoding}
    pq.write_table(table, tmp_path / "x.parquet", data_page_size=700, write_batch_size=100, **how)
    kept = pa.table(fb.load_dataset(str(tmp_path), split="train").filter(f"n < {share}"))
    assert kept.cast(table.schema).equals(table.filter(pc.less(table["n"], share)))
