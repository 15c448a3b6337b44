"""Translates filters of `datasets` to SQL that keeps the same rows as pyarrow.

`Dataset.filter` treats NULL in `not in`, and `NaN`, as SQL does. Filters from `datasets` must keep their rows, so they
are translated from the expression that `datasets` would make of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError
from forebay.filters import Values, alternatives, is_expression
from forebay.substrait import translate

if TYPE_CHECKING:
    from collections.abc import Collection

HINT = "load it without `filters`, and filter what `fb.from_hf` returns"


def to_exact_sql(filters: Any, schema: Any, mixed: Collection[str] = ()) -> tuple[str, dict[str, Any]]:
    """Returns filters of `datasets` as SQL text and the values of its parameters.

    `mixed` are the columns that some file stores in a type other than that of `schema`.

    Raises:
        SettingError: the filters are invalid, or Forebay cannot be sure to keep the same rows.
    """
    values = Values()
    if is_expression(filters):
        return translate(filters, schema, values=values, is_exact=True, mixed=mixed, hint=HINT)
    text = " OR ".join(
        " AND ".join(_condition(condition, schema, values, mixed) for condition in conditions)
        for conditions in alternatives(filters)
    )
    return text, values.named


def _condition(condition: Any, schema: Any, values: Values, mixed: Collection[str]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        expression = pq.filters_to_expression([tuple(condition)])
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise SettingError(f"filters: `{condition!r}` is not a pyarrow expression: {error}; {HINT}") from error
    # pyarrow compares integers with a float as floats. No other numbers of this condition would be rounded.
    integers = ("float64",) if isinstance(condition[2], float) else ("uint64", "int64")
    return translate(expression, schema, values=values, integers=integers, is_exact=True, mixed=mixed, hint=HINT)[0]
