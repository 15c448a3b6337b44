"""Filters in forms other than SQL: lists of conditions as in pandas and `datasets`, and pyarrow expressions.

Both become SQL text in which each value is a parameter.
"""

from __future__ import annotations

from ctypes import c_float
from math import isnan
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError
from forebay.python_values import is_null, without_loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OPERATORS = {
    "=": "=",
    "==": "=",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "in": "IN",
    "not in": "NOT IN",
}

FORM = 'expected `("column", "==", value)` with one of the operators ' + ", ".join(OPERATORS)


def is_expression(filters: Any) -> bool:
    """Whether an object is a `pyarrow.compute.Expression`, without importing pyarrow."""
    kind = type(filters)
    return kind.__module__.startswith("pyarrow") and kind.__name__ == "Expression"


def to_sql(filters: Any, schema: Any) -> tuple[str, dict[str, Any]]:
    """Returns a filter as SQL text and the values of its parameters.

    Args:
        filters: `[(column, operator, value), ...]`, which must all hold; a list of such lists, of which one must hold;
            or a `pyarrow.compute.Expression`.
        schema: A pyarrow schema of the columns that may be named.

    Raises:
        SettingError: the filter is none of these, or cannot be expressed in SQL.
        ColumnNotFoundError: an expression names a column that is not in the schema.
    """
    if is_expression(filters):
        from forebay.substrait import translate

        return translate(filters, schema)
    values = Values()
    text = " OR ".join(
        " AND ".join(_condition(condition, schema, values) for condition in conditions)
        for conditions in alternatives(filters)
    )
    return text, values.named


class Values:
    """Values of parameters, in the order of the text."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def add(self, value: Any) -> str:
        """Returns the parameter that stands for `value`."""
        name = f"value_{len(self.named)}"
        self.named[name] = value
        return f"${name}"


def alternatives(filters: Any) -> list[list[Any]]:
    """Returns the lists of conditions of which one must hold; refuses other forms."""
    if not isinstance(filters, list | tuple) or not filters:
        raise SettingError(f"filters: expected SQL text, a list of conditions or a pyarrow expression, got {filters!r}")
    if isinstance(filters, tuple) and isinstance(filters[0], str):
        filters = [filters]
    lists = (list, tuple)
    is_nested = [isinstance(item, lists) and isinstance(next(iter(item), None), lists) for item in filters]
    if all(is_nested):
        return [list(conditions) for conditions in filters]
    if any(is_nested):
        raise SettingError(f"filters: conditions, or lists of conditions, not both: {filters!r}")
    return [list(filters)]


def _condition(condition: Any, schema: Any, values: Values) -> str:
    if not isinstance(condition, list | tuple) or len(condition) != 3:
        raise SettingError(f"filters: {FORM}, got {condition!r}")
    column, operator, value = condition
    if not isinstance(column, str) or not isinstance(operator, str) or operator not in OPERATORS:
        raise SettingError(f"filters: {FORM}, got {condition!r}")
    said, names = OPERATORS[operator], schema.names
    if not said.endswith("IN"):
        _check_value(condition, [value])
        return f"{column_text(column, names)} {said} {values.add(value)}"
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise SettingError(f"filters: expected a list of values after `{operator}`, got {condition!r}")
    members = list(without_loss(value))
    _check_value(condition, members)
    if not members:
        raise SettingError(f"filters: the list of values is empty in {condition!r}")
    if any(_to_float32(member) != member for member in members) and _is_float32(column, schema):
        members = [_to_float32(member) for member in members]
    return f"{column_text(column, names)} {said} ({', '.join(values.add(member) for member in members)})"


def _is_float32(column: str, schema: Any) -> bool:
    """Whether a column, or a struct field named with dots, holds 32-bit floats."""
    name, *path = [column] if column in schema.names else column.split(".")
    if name not in schema.names:
        raise SettingError(
            f"filters: `{column}` is not among the selected columns, and how it compares with fractions depends on "
            "whether it has 32 or 64 bits; filter before you select columns"
        )
    kind = schema.field(name).type
    for part in path:
        fields = {field.name: field.type for field in kind} if str(kind).startswith("struct<") else {}
        kind = fields.get(part)
    return str(kind) == "float"


def _to_float32(value: Any) -> Any:
    """Returns the 32-bit float that pyarrow looks for in a list; `==` compares in 64 bits, there and here."""
    return c_float(value).value if isinstance(value, float) and not isnan(value) else value


def _check_value(condition: Any, values: Iterable[Any]) -> None:
    """Refuses NULL, which equals nothing in SQL: the condition would hold for no row."""
    if any(map(is_null, values)):
        raise SettingError(
            f"filters: nothing equals None, in {condition!r}; write `column IS NULL` or `column IS NOT NULL` in SQL"
        )


def column_text(name: str, names: Sequence[str]) -> str:
    """Returns the SQL for a column, or for a struct field named with dots.

    A column that is not among `names` may exist but not be selected; SQL then raises the error.
    """
    column, *path = name.split(".")
    return field_text(column, path) if column in names and name not in names else identifier(name)


def field_text(column: str, path: Sequence[str]) -> str:
    """Returns the SQL for the field at `path` in the structs of a column."""
    return identifier(column) + "".join("['" + part.replace("'", "''") + "']" for part in path)


def identifier(name: str) -> str:
    """Returns a name as SQL takes it, whatever its characters and case."""
    return '"' + name.replace('"', '""') + '"'
