"""Parquet that no writer writes: footers and page headers taken apart, changed and put together again.

Thrift's compact protocol, as far as Parquet uses it. A `Struct` maps field numbers to values, so
`footer[ROW_GROUPS][0][NUM_ROWS] = -1` is what it looks like.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12

# Of the footer, of a row group, of a column chunk, of its metadata and their statistics, of an element of the schema,
# of a page's header.
SCHEMA, FILE_ROWS, ROW_GROUPS, CREATED_BY = 2, 3, 4, 6
COLUMNS, NUM_ROWS = 1, 3
METADATA, OFFSET_INDEX_OFFSET, OFFSET_INDEX_LENGTH = 3, 4, 5
PHYSICAL_TYPE, ENCODINGS, PATH, CODEC, NUM_VALUES, COMPRESSED_SIZE, DATA_OFFSET, DICTIONARY_OFFSET, STATISTICS = (
    1,
    2,
    3,
    4,
    5,
    7,
    9,
    11,
    12,
)
MAX_VALUE, MIN_VALUE = 5, 6
ELEMENT_TYPE, TYPE_LENGTH, REPETITION, NAME, NUM_CHILDREN, CONVERTED_TYPE, LOGICAL_TYPE = 1, 2, 3, 4, 5, 6, 10
PAGE_TYPE, PAGE_UNCOMPRESSED, PAGE_COMPRESSED, PAGE_CRC, PAGE_DATA, PAGE_DICTIONARY = 1, 2, 3, 4, 5, 7

REQUIRED, OPTIONAL, REPEATED = 0, 1, 2


class Struct(dict[int, Any]):
    """Values by field number; `kinds` holds their types."""

    def __init__(self, fields: dict[int, tuple[int, Any]] | None = None) -> None:
        super().__init__({number: value for number, (_, value) in (fields or {}).items()})
        self.kinds = {number: kind for number, (kind, _) in (fields or {}).items()}

    def put(self, number: int, kind: int, value: Any) -> None:
        """Sets a field that may not be there yet."""
        self[number], self.kinds[number] = value, kind


class Items(list[Any]):
    """A list and the type of its items."""

    def __init__(self, kind: int, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self.kind = kind


class Raw(bytes):
    """A value that is written as it is."""


def _read_varint(source: BinaryIO) -> int:
    value = shift = 0
    while True:
        byte = source.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value


def _read(source: BinaryIO, kind: int) -> Any:
    if kind in (I16, I32, I64):
        value = _read_varint(source)
        return (value >> 1) ^ -(value & 1)
    if kind == BINARY:
        return source.read(_read_varint(source))
    if kind == LIST:
        head = source.read(1)[0]
        size = head >> 4 if head >> 4 < 15 else _read_varint(source)
        return Items(head & 15, [_read(source, head & 15) for _ in range(size)])
    if kind == STRUCT:
        struct, number = Struct(), 0
        while head := source.read(1)[0]:
            number = number + (head >> 4) if head >> 4 else _read(source, I16)
            field = head & 15
            struct.put(number, field, field == TRUE if field in (TRUE, FALSE) else _read(source, field))
        return struct
    return source.read({BYTE: 1, TRUE: 1, FALSE: 1, DOUBLE: 8}[kind])


def varint(value: int) -> bytes:
    """Returns a number in base 128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(kind: int, value: Any) -> bytes:
    """Returns a value in the compact protocol."""
    if isinstance(value, Raw):
        return bytes(value)
    if kind in (I16, I32, I64):
        return varint((value << 1 ^ value >> 63) & (2**64 - 1))
    if kind == BINARY:
        return varint(len(value)) + value
    if kind == LIST:
        size = len(value)
        head = bytes([size << 4 | value.kind]) if size < 15 else bytes([0xF0 | value.kind]) + varint(size)
        return head + b"".join(encode(value.kind, item) for item in value)
    if kind == STRUCT:
        out, last = bytearray(), 0
        for number, item in sorted(value.items()):
            field = value.kinds[number]
            if field in (TRUE, FALSE):
                field = TRUE if item else FALSE
            short = 0 < number - last < 16
            out += bytes([(number - last) << 4 | field]) if short else bytes([field]) + encode(I16, number)
            out += b"" if field in (TRUE, FALSE) else encode(field, item)
            last = number
        return bytes(out) + b"\0"
    return bytes(value)


def decode(body: bytes) -> Struct:
    """Returns a struct that was written in the compact protocol."""
    return _read(io.BytesIO(body), STRUCT)


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Returns a table as pyarrow writes it."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def split(body: bytes) -> tuple[bytes, Struct]:
    """Returns what lies before the footer, and the footer."""
    start = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    return body[:start], decode(body[start:])


def join(pages: bytes, footer: Struct | bytes) -> bytes:
    """Puts a file together: what lies before the footer, the footer or its bytes, its length and the magic."""
    tail = footer if isinstance(footer, bytes) else encode(STRUCT, footer)
    return pages + tail + len(tail).to_bytes(4, "little") + b"PAR1"


def with_footer(body: bytes, change: Callable[[Struct], object]) -> bytes:
    """Returns a file whose footer was changed in place by `change`."""
    pages, footer = split(body)
    change(footer)
    return join(pages, footer)


def with_page(body: bytes, change: Callable[[Struct], object], *, column: int = -1) -> bytes:
    """Returns a file of one row group where `change` changed the header of a column's first page.

    Later columns would move: take the last, or a change that keeps the header's length.
    """
    pages, footer = split(body)
    chunk = footer[ROW_GROUPS][0][COLUMNS][column][METADATA]
    start = chunk.get(DICTIONARY_OFFSET, chunk[DATA_OFFSET])
    source = io.BytesIO(pages[start:])
    header = _read(source, STRUCT)
    end = start + source.tell()
    change(header)
    written = encode(STRUCT, header)
    grown = start + len(written) - end
    chunk[COMPRESSED_SIZE] += grown
    if chunk[DATA_OFFSET] > start:
        chunk[DATA_OFFSET] += grown
    return join(pages[:start] + written + pages[end:], footer)


def page_headers(body: bytes, num_pages: int) -> list[range]:
    """Returns where the headers of the first pages of a file of one row group and column are."""
    pages, footer = split(body)
    chunk = footer[ROW_GROUPS][0][COLUMNS][0][METADATA]
    source = io.BytesIO(pages)
    source.seek(chunk.get(DICTIONARY_OFFSET, chunk[DATA_OFFSET]))
    headers = []
    while source.tell() < len(pages) and len(headers) < num_pages:
        start = source.tell()
        header = _read(source, STRUCT)
        headers.append(range(start, source.tell()))
        source.seek(header[PAGE_COMPRESSED], io.SEEK_CUR)
    return headers


def element(name: bytes, **fields: int) -> Struct:
    """Returns an element of a schema; `fields` are `type`, `repetition`, `children`, `converted`."""
    made = Struct({NAME: (BINARY, name)})
    numbers = {
        "type": ELEMENT_TYPE,
        "repetition": REPETITION,
        "children": NUM_CHILDREN,
        "converted": CONVERTED_TYPE,
        "length": TYPE_LENGTH,
    }
    for field, value in fields.items():
        made.put(numbers[field], I32, value)
    return made


def footer_of(elements: Iterable[Struct], num_rows: int = 0, row_groups: Iterable[Struct] = ()) -> Struct:
    """Returns a footer: the root and the elements of its schema, flattened as Parquet does, and row groups."""
    return Struct(
        {
            1: (I32, 2),
            SCHEMA: (LIST, Items(STRUCT, elements)),
            FILE_ROWS: (I64, num_rows),
            ROW_GROUPS: (LIST, Items(STRUCT, row_groups)),
            CREATED_BY: (BINARY, b"by hand"),
        }
    )


def without_columns(num_rows: int) -> bytes:
    """Returns a file of rows that have no columns."""
    group = Struct({COLUMNS: (LIST, Items(STRUCT)), 2: (I64, 0), NUM_ROWS: (I64, num_rows)})
    return join(b"PAR1", footer_of([element(b"schema", children=0)], num_rows, [group]))


def nested(depth: int) -> bytes:
    """Returns a file without rows whose one column is `depth` structs deep."""
    groups = [element(b"schema", children=1)]
    groups += [element(b"g", repetition=OPTIONAL, children=1) for _ in range(depth)]
    return join(b"PAR1", footer_of([*groups, element(b"leaf", type=1, repetition=OPTIONAL)]))


def many_row_groups(body: bytes, count: int) -> bytes:
    """Returns a file whose one row group is listed `count` times, each time with the same pages."""
    pages, footer = split(body)
    (group,) = footer[ROW_GROUPS]
    rows = group[NUM_ROWS]
    footer[ROW_GROUPS] = Items(STRUCT, [Raw(encode(STRUCT, group))] * count)
    footer[FILE_ROWS] = rows * count
    return join(pages, footer)
