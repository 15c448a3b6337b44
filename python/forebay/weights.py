"""What rows weigh, where an epoch is drawn from them with replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay import _lib
from forebay.exceptions import SettingError
from forebay.sql import in_words_of

if TYPE_CHECKING:
    from forebay.options import ShuffleOptions

ROWS_PER_READ = 1 << 16


def weighing(native: _lib.Dataset, expression: str) -> _lib.Dataset:
    """Returns what rows weigh as a dataset of one column, float64.

    Raises:
        QueryError: it is not one number for each row.
    """
    # On lines of its own, because the expression may end in a comment.
    query = f"SELECT CAST((\n{expression}\n) AS DOUBLE) AS weight FROM dataset"  # noqa: S608 - it is SQL
    with in_words_of(query, "weights", expression):
        return native.sql(query, {}, {}, [])


def make_weights(native: _lib.Dataset, options: ShuffleOptions, num_rows: int) -> _lib.Weights:
    """Computes what the kept rows of `native` weigh: one pass over the columns that the weights are made of.

    These may be gone from `native` itself: they are those of the dataset that was shuffled.
    """
    from forebay.dataset import Dataset

    if num_rows == 0:
        raise SettingError("weights: the dataset has no rows to draw from")
    num_draws = num_rows if options.num_samples is None else options.num_samples
    if num_draws >= 1 << 32:
        raise SettingError(f"num_samples: expected at most {(1 << 32) - 1}, got {num_draws}, the number of rows")
    assert options.weights is not None, "asked for where there are weights"  # noqa: S101
    assert options.weighed is not None, "set beside them"  # noqa: S101
    weighed = options.weighed if options.weighed is native else options.weighed.select_rows_of(native)
    batches = Dataset(weighing(weighed, options.weights)).batches(ROWS_PER_READ, rank=0, world_size=1)
    return _lib.Weights(list(batches), num_draws)
