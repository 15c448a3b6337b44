"""Translates pyarrow expressions to SQL by way of Substrait, the form in which pyarrow exports them.

Only what means the same in SQL is translated; everything else is refused by name.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from math import isnan
from typing import TYPE_CHECKING, Any

from forebay.exceptions import ColumnNotFoundError, SettingError
from forebay.filters import Values, field_text
from forebay.literals import UnknownError, read_literal, read_message, read_number

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forebay.literals import Message

COMPARISONS = {"equal": "=", "not_equal": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}

CONNECTIVES = {"and": " AND ", "or": " OR "}

TESTS = {"is_null": "{} IS NULL", "is_not_null": "{} IS NOT NULL", "is_nan": "isnan({})", "not": "NOT {}"}

HINT = "write the filter in SQL, or as a list of conditions"

LAYOUT = "where there is NaN or -0.0, what pyarrow keeps depends on the row groups"
"""pyarrow skips row groups by bounds that do not cover `NaN`, and so loses rows with it in some row groups."""

WIDE = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16", "uint32"), "int64"),
    "float": "float64",
    **dict.fromkeys(("string", "string_view"), "large_string"),
    **dict.fromkeys(("binary", "binary_view"), "large_binary"),
    **dict.fromkeys(("time32[s]", "time32[ms]", "time64[us]"), "time64[ns]"),
}
"""Types that are declared for columns of narrower types. pyarrow casts columns that are narrower than a value, with
casts that Substrait does not support; if the value is narrower, it casts the value."""


def translate(
    expression: Any,
    schema: Any,
    *,
    values: Values | None = None,
    integers: Sequence[str] = ("uint64", "int64"),
    is_exact: bool = False,
    mixed: Collection[str] = (),
    hint: str = HINT,
) -> tuple[str, dict[str, Any]]:
    """Returns a pyarrow expression as SQL text and the values of its parameters.

    Args:
        expression: A `pyarrow.compute.Expression`.
        schema: A pyarrow schema of the columns that may be named.
        values: Values that other texts already use.
        integers: Types to declare for `uint64`, tried in turn until one works; `float64` is declared for all integers.
        is_exact: Whether to compare `NaN` as in pyarrow, not as in SQL. Expressions are refused if the rows that
            pyarrow keeps depend on the row groups.
        mixed: Columns that some file stores in another type, in which pyarrow then looks them up in lists.
        hint: What to do instead of a refused expression.

    Raises:
        SettingError: the expression cannot be expressed in Substrait or SQL.
        ColumnNotFoundError: the expression names a column that is not in the schema.
    """
    import pyarrow as pa

    reason = ""
    for wide in integers:
        known = _known_columns(schema, wide)
        if len(known) < len(schema) and "FieldPath(" in str(expression):
            raise SettingError(
                f"filters: `{expression}` names columns by their places, and Substrait does not have the types of all "
                "of them; use their names"
            )
        try:
            plan = bytes(expression.to_substrait(known))
        except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
            _check_column(str(error), expression, schema)
            reason = reason or _reason(str(error).partition("\n")[0], expression, schema, known)
            continue
        translation = _Translation(plan, schema, known, values or Values(), mixed, is_exact=is_exact)
        try:
            return translation.text(), translation.values.named
        except UnknownError as unknown:
            reason = str(unknown)
            break
    raise SettingError(f"filters: `{expression}` cannot be translated: {reason}; {hint}")


def _check_column(said: str, expression: Any, schema: Any) -> None:
    """Refuses an expression with a column that pyarrow does not find, if the schema does not have it either."""
    found = re.match(r"No match for FieldRef\.(?:Nested\(FieldRef\.)?Name\((.+?)\)(?: FieldRef.*)? in ", said)
    if found is None or found[1] in schema.names:
        return
    near = get_close_matches(found[1], schema.names, 3)
    hint = f"did you mean `{'`, `'.join(near)}`?" if near else "if it was one, filter before you select columns"
    raise ColumnNotFoundError(f"filters: no column `{found[1]}` in `{expression}`; {hint}")


def _reason(said: str, expression: Any, schema: Any, known: Any) -> str:
    """Returns why pyarrow cannot convert an expression to Substrait, with the unsupported type."""
    for field in schema:
        if field.name not in known.names and f"Name({field.name})" in said:
            return f"column `{field.name}` is `{field.type}`, a type that Substrait does not have"
    if "unsafe casts" in said:
        if re.search(r"[\d-]+ [\d:]+\.\d{9}Z?\b", str(expression)):
            return (
                "pyarrow converts a value of `timestamp[ns]` only if it is of whole microseconds and not before 1970; "
                "compare with one of `timestamp[us]`"
            )
        return "it compares with a value that is of another type than the column, or of one that Substrait lacks"
    if said.startswith(("Function", "Array type")) and "int64" in said and "string" in said and _has_labels(schema):
        return f"{said}; a ClassLabel is a number in expressions, while SQL takes the names of its classes"
    _, is_literal, value = said.partition("Expression::Literal from ")
    if is_literal:
        is_fine = re.fullmatch(r"[\d-]+ [\d:]+\.\d{9}Z?", value)
        kind = "`timestamp[ns]`, but of `timestamp[us]`" if is_fine else f"the type of `{value}`"
        return f"Substrait has no values of {kind}"
    return said


def _has_labels(schema: Any) -> bool:
    """Whether the features in the metadata of a schema have a ClassLabel."""
    return b'"ClassLabel"' in (schema.metadata or {}).get(b"huggingface", b"")


def _known_columns(schema: Any, integers: str) -> Any:
    """Returns the columns whose types Substrait supports, with dictionaries as their values and wide numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def widen(kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            return widen(kind.value_type)
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(widen(field.type)) for field in kind])
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        if pa.types.is_decimal(kind) and kind.precision <= 38:
            return pa.decimal128(kind.precision, kind.scale)
        if kind == pa.uint64() or (integers == "float64" and pa.types.is_integer(kind)):
            return pa.type_for_alias(integers)
        return pa.type_for_alias(WIDE[str(kind)]) if str(kind) in WIDE else kind

    def is_known(field: Any) -> bool:
        try:
            pc.field(field.name).is_valid().to_substrait(pa.schema([field]))
        except (pa.ArrowException, ValueError, TypeError):
            return False
        return True

    wide = [field.with_type(widen(field.type)) for field in schema]
    return pa.schema([field for field in wide if is_known(field)])


class _Translation:
    """The translation of one expression."""

    def __init__(
        self, plan: bytes, schema: Any, known: Any, values: Values, mixed: Collection[str], *, is_exact: bool
    ) -> None:
        self.values = values
        self._message = read_message(plan)
        self._schema = schema
        self._known = known
        self._mixed = mixed
        self._is_exact = is_exact
        self._functions: dict[int, str] = {}
        self._types: dict[int, str] = {}
        for extension in self._message.get(2, []):
            declared = read_message(extension)
            for field, names in ((1, self._types), (3, self._functions)):
                for body in declared.get(field, []):
                    fields = read_message(body)
                    names[read_number(fields, 2)] = fields[3][0].decode().split(":")[0]

    def text(self) -> str:
        """Returns the SQL."""
        referred = read_message(self._message[3][0])
        return self._expression(referred[1][0], is_kept=True)

    def _expression(self, body: bytes, *, is_kept: bool = False) -> str:
        """Returns the SQL of an expression; `is_kept` says that rows are kept only if it is true."""
        message = read_message(body)
        if 1 in message:
            return self.values.add(self._literal(message))
        if 2 in message:
            return self._reference(message)[0]
        if 3 in message:
            return self._call(read_message(message[3][0]), is_kept)
        if 8 in message:
            return self._membership(read_message(message[8][0]), is_kept)
        raise UnknownError("it has casts or conditions in it")

    def _reference(self, message: Message) -> tuple[str, Any, str]:
        """Returns the SQL of a referenced column or struct field, its type, and the column's name."""
        place = read_message(read_message(read_message(message[2][0])[1][0])[2][0])
        names, fields = [], self._known
        while True:
            field = fields.field(read_number(place, 1))
            names.append(field.name)
            if 2 not in place:
                break
            fields, place = field.type, read_message(read_message(place[2][0])[2][0])
        kind = self._schema.field(names[0]).type
        for name in names[1:]:
            kind = kind.field(name).type
        kind = kind.value_type if str(kind).startswith("dictionary<") else kind
        return field_text(names[0], names[1:]), kind, names[0]

    def _literal(self, message: Message) -> Any:
        return read_literal(message[1][0], self._types)

    def _call(self, message: Message, is_kept: bool) -> str:
        name = self._functions[read_number(message, 1)]
        if 5 in message or (name not in COMPARISONS and name not in CONNECTIVES and name not in TESTS):
            raise UnknownError(f"the function `{name}` has no exact equivalent here")
        bodies = [read_message(argument)[3][0] for argument in message.get(4, [])]
        operands = [self._expression(body, is_kept=is_kept and name in CONNECTIVES) for body in bodies]
        if name in TESTS:
            if self._is_exact and name == "is_nan":
                raise UnknownError(LAYOUT)
            return "(" + TESTS[name].format(*operands) + ")"
        text = "(" + CONNECTIVES.get(name, f" {COMPARISONS.get(name)} ").join(operands) + ")"
        if self._is_exact and name in COMPARISONS:
            return self._without_nan(text, name, [read_message(body) for body in bodies], operands, is_kept)
        return text

    def _without_nan(self, text: str, name: str, sides: list[Message], operands: list[str], is_kept: bool) -> str:
        """Returns a comparison that is false for `NaN`, as in pyarrow; in SQL, `NaN` is the largest number."""
        are_floats = [2 in side and self._is_float(side) for side in sides]
        is_nan = any(1 in side and _is_nan(self._literal(side)) for side in sides)
        if not any(are_floats) and not is_nan:
            return text
        if not is_kept or is_nan or name == "not_equal":
            raise UnknownError(LAYOUT)
        greater = 1 if name in ("lt", "lte") else 0
        if not are_floats[greater] or (name == "equal" and not all(are_floats)):
            return text
        return f"({text} AND NOT isnan({operands[greater]}))"

    def _is_float(self, side: Message) -> bool:
        import pyarrow as pa

        return bool(pa.types.is_floating(self._reference(side)[1]))

    def _membership(self, message: Message, is_kept: bool) -> str:
        """Returns the SQL of `is_in`, which is never NULL in pyarrow: a NULL is in no list."""
        import pyarrow as pa

        operand = read_message(message[1][0])
        if 2 not in operand:
            raise UnknownError("something other than a column is looked up in a list")
        column, kind, root = self._reference(operand)
        members = [self._member(self._literal(read_message(option)), kind) for option in message.get(2, [])]
        if not members:
            raise UnknownError("the list of values is empty")
        if root in self._mixed and (pa.types.is_floating(kind) or pa.types.is_timestamp(kind)):
            raise UnknownError(f"files have column `{root}` in several types, to each of which pyarrow rounds the list")
        if self._is_exact and pa.types.is_floating(kind) and not (is_kept and all(map(_is_ordinary, members))):
            raise UnknownError(LAYOUT)
        names = ", ".join(map(self.values.add, members))
        return f"({column} IS NOT NULL AND {column} IN ({names}))"

    def _member(self, value: Any, kind: Any) -> Any:
        """Returns a value as pyarrow looks it up in a column: in the column's type, if that can hold it."""
        import pyarrow as pa

        given = pa.scalar(value) if not isinstance(value, pa.Scalar) else value
        if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            try:
                member = given.cast(kind).as_py()
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                member = value
            # pyarrow compares the bounds of row groups with the original value, and so skips some that have it.
            is_same = member == given.as_py() or _is_nan(member)
        else:
            member, is_same = value, _family(given.type) == _family(kind)
        if self._is_exact and not is_same:
            raise UnknownError(
                f"it looks for `{value}` in a column of type `{kind}`, but it is not a value of that type"
            )
        return member


def _family(kind: Any) -> str:
    """Returns a name that types share if their values are the same in pyarrow and in SQL."""
    name = str(kind).replace("large_", "").replace("_view", "")
    return name.partition("[")[0] + ("UTC" if "tz=" in name else "")


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _is_ordinary(value: float) -> bool:
    """Whether membership of a value is plain equality: pyarrow distinguishes `0.0` from `-0.0` in lists."""
    return value != 0 and not isnan(value)
