"""Weights of rows, for epochs that are drawn with replacement."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay import _lib
from forebay.exceptions import QueryError, SettingError
from forebay.sql import in_words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.options import ShuffleOptions

ROWS_PER_READ = 1 << 16

PASSED = re.compile(r"pass it as `params=\{[^`]*\}`")
"""The advice in errors about parameters without a value, which weights cannot have."""

BY_ZERO = re.compile(r"; divide by `nullif\(x, 0\)`.*")
"""The advice in errors about divisions by zero, after which there would be no weight."""

NUMBERS = re.compile(r"(U?Int|Float|Decimal)\d|Boolean|Null|Dictionary")
"""Beginnings of the types that weights may have; users must cast text that holds numbers."""


def refuse_own_order(native: _lib.Dataset) -> None:
    """Refuses rows in an order of their own, if they have been found: whether a query changes it shows only then."""
    if native.has_own_order:
        raise SettingError(
            "weights: the rows have an order of their own, by `ORDER BY` or `select` of row numbers; draw from rows in "
            "the dataset's order: leave `ORDER BY` out, or keep the same rows by `ds.select(ordered.selection())`"
        )


def weighing(native: _lib.Dataset, expression: str) -> _lib.Dataset:
    """Returns the weights of rows as a dataset with one column, float64.

    Raises:
        QueryError: the expression is not one number per row.
    """
    # On separate lines, because the expression may end in a comment.
    value = f"(\n{expression}\n)"
    plain = f"SELECT {value} AS weight FROM dataset"  # noqa: S608 - it is SQL
    query = f"SELECT CAST({value} AS DOUBLE) AS weight FROM dataset"  # noqa: S608 - it is SQL
    with _in_its_words(plain, expression):
        weighed = native.sql(plain, {}, {}, [])
    kinds = weighed.column_types
    if kinds == ["Float64"]:
        return weighed
    # An expression that closes the bracket may make several columns, which the cast refuses.
    if len(kinds) == 1 and NUMBERS.match(kinds[0]) is None:
        raise QueryError(f"weights: `{expression}` is `{kinds[0]}`, expected a number for each row")
    with _in_its_words(query, expression):
        return native.sql(query, {}, {}, [])


@contextmanager
def _in_its_words(query: str, expression: str) -> Iterator[None]:
    """Makes errors about generated SQL quote the expression, and not advise parameters."""
    try:
        with in_words_of(query, "weights", expression):
            yield
    except QueryError as error:
        raise QueryError(PASSED.sub("write its value out", str(error))) from error.__cause__


def make_weights(native: _lib.Dataset, options: ShuffleOptions, num_rows: int) -> _lib.Weights:
    """Computes the weights of the kept rows of `native`, in one pass over the columns that the expression uses.

    `native` itself may lack these columns; they are taken from the dataset on which `shuffle` was called.
    """
    from forebay.dataset import Dataset

    if num_rows == 0:
        raise SettingError("weights: the dataset has no rows to draw from")
    num_draws = options.epoch_rows(num_rows)
    if num_draws >= 1 << 32:
        raise SettingError(f"num_samples: expected at most {(1 << 32) - 1}, got {num_draws}, the number of rows")
    assert options.weights is not None, "asked for where there are weights"  # noqa: S101
    assert options.weighed is not None, "set beside them"  # noqa: S101
    weighed = options.weighed if options.weighed is native else options.weighed.select_rows_of(native)
    batches = Dataset(weighing(weighed, options.weights)).batches(ROWS_PER_READ, rank=0, world_size=1)
    try:
        return _lib.Weights(list(batches), num_draws)
    except QueryError as error:
        said = BY_ZERO.sub("; `coalesce(1.0 / nullif(x, 0), 0)` gives such rows the weight 0", str(error))
        raise QueryError(f"weights: {said}") from error.__cause__
