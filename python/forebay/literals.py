"""Reads Substrait messages and the values of their literals.

Only a few messages matter, so no Protocol Buffers library is needed.
"""

from __future__ import annotations

import struct
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Message = dict[int, list[Any]]
"""A message: values by the number of their field, in order."""

EPOCH = datetime(1970, 1, 1)

MILLIS_OF_A_DAY = 86_400_000

OWN = 33
"""The field of literals whose types are specific to Arrow."""


class UnknownError(Exception):
    """An expression has no equivalent in SQL."""


def read_message(body: bytes) -> Message:
    """Returns the fields of a Protocol Buffers message: numbers, and the bytes of longer fields."""
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


def read_number(message: Message, field: int) -> int:
    """Returns a number field, which is omitted from messages if 0."""
    value: int = message.get(field, [0])[0]
    return value


def read_literal(body: bytes, types: Mapping[int, str]) -> Any:
    """Returns the value of a literal; `types` are the names of types specific to Arrow.

    Raises:
        UnknownError: the literal is NULL, or of an unsupported type.
    """
    literal = read_message(body)
    for kind, values in literal.items():
        if kind in _READERS:
            return _READERS[kind](values[0])
    if OWN not in literal:
        raise UnknownError("it compares with NULL, or with a value of a type that has no parameter")
    own = read_message(literal[OWN][0])
    name = types[read_number(own, 1)]
    if name not in _OWN_READERS:
        raise UnknownError(f"it compares with a value of type `{name}`")
    # A number, text or bytes in its own message within an `Any`; 0 and empty values are omitted.
    wrapped = read_message(read_message(own[2][0]).get(2, [b""])[0])
    return _OWN_READERS[name](wrapped.get(1, [None])[0])


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _decimal(body: bytes) -> Decimal:
    message = read_message(body)
    digits = int.from_bytes(message[1][0], "little", signed=True)
    return Decimal(digits).scaleb(-read_number(message, 3))


def _instant(value: int, zone: str | None = None) -> Any:
    """Returns microseconds since 1970 as a pyarrow scalar, because Python has no year 10000."""
    import pyarrow as pa

    return pa.scalar(_signed(value), pa.timestamp("us", zone))


def _day(days: int) -> Any:
    import pyarrow as pa

    return pa.scalar(days, pa.date32())


def _unsigned(value: int | None) -> Any:
    import pyarrow as pa

    return pa.scalar(value or 0, pa.uint64())


def _time(value: int | None, unit: str) -> Any:
    import pyarrow as pa

    kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    return pa.scalar(value or 0, kind)


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
    16: lambda days: _day(_signed(days)),
    17: lambda micros: (EPOCH + timedelta(microseconds=micros)).time() if micros else time(),
    23: bytes,
    24: _decimal,
    27: lambda micros: _instant(micros, "UTC"),
}
"""Readers of literals, by field number."""

_OWN_READERS: dict[str, Any] = {
    **dict.fromkeys(("u8", "u16", "u32", "u64"), _unsigned),
    "large_string": lambda value: (value or b"").decode(),
    "large_binary": lambda value: bytes(value or b""),
    "date_millis": lambda value: _day(_signed(value or 0) // MILLIS_OF_A_DAY),
    "time_seconds": lambda value: _time(value, "s"),
    "time_millis": lambda value: _time(value, "ms"),
    "time_nanos": lambda value: _time(value, "ns"),
}
"""Readers of literals of types specific to Arrow, by type name."""
