"""Expressions of pyarrow as SQL, by way of Substrait: the form in which pyarrow hands them to other engines.

Only what means the same in SQL is translated; everything else is refused by name. Messages are read here, since the
few that matter do not need a library of Protocol Buffers.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError
from forebay.filters import Values, field_text

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[int, list[Any]]
"""A message: values by the number of their field, in order."""

COMPARISONS = {"equal": "=", "not_equal": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}

CONNECTIVES = {"and": " AND ", "or": " OR "}

TESTS = {"is_null": "{} IS NULL", "is_not_null": "{} IS NOT NULL", "is_nan": "isnan({})", "not": "NOT {}"}

EPOCH = datetime(1970, 1, 1)

HINT = "write the filter in SQL, or as a list of conditions"


def translate(expression: Any, schema: Any) -> tuple[str, dict[str, Any]]:
    """Returns an expression of pyarrow as SQL text and the values of its parameters.

    Raises:
        SettingError: it says what Substrait or SQL does not say, or names a column that is not there.
    """
    import pyarrow as pa

    known = _known_columns(schema)
    try:
        plan = bytes(expression.to_substrait(known))
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        said = str(error).partition("\n")[0]
        raise SettingError(f"filters: `{expression}` cannot be translated: {said}; {HINT}") from error
    return _Translation(plan, known).of(expression)


def _known_columns(schema: Any) -> Any:
    """Returns the columns that Substrait has types for; dictionaries are their values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def is_known(field: Any) -> bool:
        try:
            pc.field(field.name).is_valid().to_substrait(pa.schema([field]))
        except (pa.ArrowException, ValueError, TypeError):
            return False
        return True

    decoded = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema([field for field in decoded if is_known(field)])


class _Translation:
    """One expression on its way to SQL."""

    def __init__(self, plan: bytes, schema: Any) -> None:
        self._message = read_message(plan)
        self._schema = schema
        self._values = Values()
        self._functions: dict[int, str] = {}
        for extension in self._message.get(2, []):
            for function in read_message(extension).get(3, []):
                fields = read_message(function)
                self._functions[_number(fields, 2)] = fields[3][0].decode().split(":")[0]

    def of(self, expression: Any) -> tuple[str, dict[str, Any]]:
        """Returns the text and its values."""
        try:
            referred = read_message(self._message[3][0])
            return self._expression(referred[1][0]), self._values.named
        except _UnknownError as unknown:
            raise SettingError(f"filters: `{expression}` cannot be translated: {unknown}; {HINT}") from None

    def _expression(self, body: bytes) -> str:
        message = read_message(body)
        if 1 in message:
            return self._values.add(_literal(read_message(message[1][0])))
        if 2 in message:
            return self._reference(read_message(message[2][0]))
        if 3 in message:
            return self._call(read_message(message[3][0]))
        if 8 in message:
            return self._membership(read_message(message[8][0]))
        raise _UnknownError("it has casts or conditions in it")

    def _reference(self, message: Message) -> str:
        """Returns a column, or a field of structs, by their places."""
        place = read_message(read_message(message[1][0])[2][0])
        names, fields = [], self._schema
        while True:
            field = fields.field(_number(place, 1))
            names.append(field.name)
            if 2 not in place:
                break
            fields, place = field.type, read_message(read_message(place[2][0])[2][0])
        return field_text(names[0], names[1:])

    def _call(self, message: Message) -> str:
        name = self._functions[_number(message, 1)]
        if 5 in message or (name not in COMPARISONS and name not in CONNECTIVES and name not in TESTS):
            raise _UnknownError(f"the function `{name}` has no equal here")
        operands = [self._expression(read_message(argument)[3][0]) for argument in message.get(4, [])]
        if name in TESTS:
            return "(" + TESTS[name].format(*operands) + ")"
        return "(" + CONNECTIVES.get(name, f" {COMPARISONS.get(name)} ").join(operands) + ")"

    def _membership(self, message: Message) -> str:
        """Returns `is_in`, which is never NULL in pyarrow: a row without a value is in no list."""
        operand = self._expression(message[1][0])
        members = [self._expression(option) for option in message.get(2, [])]
        if not members:
            raise _UnknownError("the list of values is empty")
        return f"({operand} IS NOT NULL AND {operand} IN ({', '.join(members)}))"


class _UnknownError(Exception):
    """What has no SQL."""


def read_message(body: bytes) -> Message:
    """Returns the fields of a message of Protocol Buffers: numbers, and the bytes of what is longer."""
    message: Message = {}
    place = 0
    while place < len(body):
        tag, place = _varint(body, place)
        field, wire = tag >> 3, tag & 7
        found = message.setdefault(field, [])
        if wire == 0:
            value, place = _varint(body, place)
            found.append(value)
        else:
            length, place = _varint(body, place) if wire == 2 else ({1: 8, 5: 4}[wire], place)
            found.append(body[place : place + length])
            place += length
    return message


def _varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def _number(message: Message, field: int) -> int:
    """Returns a number, which is not written where it is 0."""
    value: int = message.get(field, [0])[0]
    return value


def _literal(message: Message) -> Any:
    """Returns the value of a literal."""
    for kind, value in _values(message):
        if kind in _READERS:
            return _READERS[kind](value)
    raise _UnknownError("it compares with NULL, or with a value of a type that has no parameter")


def _values(message: Message) -> Iterator[tuple[int, Any]]:
    """Yields the fields of a literal but those that say what type it is."""
    return ((kind, values[0]) for kind, values in message.items() if kind not in (50, 51))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _decimal(body: bytes) -> Decimal:
    message = read_message(body)
    digits = int.from_bytes(message[1][0], "little", signed=True)
    return Decimal(digits).scaleb(-_number(message, 3))


def _instant(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=_signed(value))


_READERS: dict[int, Any] = {
    1: bool,
    2: _signed,
    3: _signed,
    5: _signed,
    7: _signed,
    10: lambda body: struct.unpack("<f", body)[0],
    11: lambda body: struct.unpack("<d", body)[0],
    12: bytes.decode,
    13: bytes,
    14: _instant,
    16: lambda days: date(1970, 1, 1) + timedelta(days=_signed(days)),
    17: lambda micros: (EPOCH + timedelta(microseconds=micros)).time() if micros else time(),
    23: bytes,
    24: _decimal,
    27: lambda micros: _instant(micros).replace(tzinfo=UTC),
}
"""How the kinds of literals are read, by their field."""
