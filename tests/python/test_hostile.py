"""Objects that were made to do harm cost memory within bounds, and end in an error that names them, or in rows.

They are read in another process, so that one that ends it is a failed test and not the end of all, and so that the most
memory that it ever took is its own.
"""

from __future__ import annotations

import base64
import decimal
import gzip
import itertools
import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import data
import hostile
import pyarrow as pa
import pytest
from hostile import BINARY, COLUMNS, I32, I64, LIST, METADATA, ROW_GROUPS, STRUCT, Items, Raw, Struct

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
MEMORY_LIMIT = 64 * MIB
# Beside the limit of streams: a page for each thread, and the interpreter's own.
SPARE = 192 * MIB
BOMB_BYTES = 1 << 29

UNCOMPRESSED, SNAPPY, GZIP, BROTLI, LZ4, ZSTD, LZ4_RAW = 0, 1, 2, 4, 5, 6, 7
PLAIN, RLE, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 3, 6, 7, 8

READER = f"""
import gc, json, sys
import forebay as fb

def peak():
    with open("/proc/self/status") as status:
        found = {{line.split(":")[0]: line.split()[1] for line in status if line.startswith("Vm")}}
    return int(found["VmHWM"]) * 1024, int(found["VmRSS"]) * 1024

def rows(ds):
    num_rows = 0
    for number, batch in enumerate(ds.batches(100, memory_limit={MEMORY_LIMIT})):
        num_rows += len(batch)
        if number == 50:
            break
    return num_rows

def attempt(act):
    try:
        return act()
    except fb.ForebayError as error:
        return f"{{type(error).__name__}}: {{error}}"

for path in sys.stdin:
    gc.collect()
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = peak()[1]
    found = {{}}
    try:
        ds = fb.load_dataset(path.strip(), split="train")
    except fb.ForebayError as error:
        found["open"] = f"{{type(error).__name__}}: {{error}}"
    else:
        found["rows"] = attempt(lambda: rows(ds))
        found["shuffled"] = attempt(lambda: rows(ds.shuffle(seed=1)))
        kept = ds.filter(f'"{{ds.column_names[0]}}" IS NOT NULL')
        found["kept"] = attempt(lambda: len(kept.batches(100, memory_limit={MEMORY_LIMIT})))
        found["explained"] = attempt(lambda: len(str(ds.explain())))
    print(json.dumps({{"found": found, "taken": peak()[0] - before}}), flush=True)
"""


class Reader:
    """A process that reads what it is told to, and says what came of it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, path: Path) -> tuple[dict[str, Any], int]:
        """Returns what each attempt gave, an error's text or a number, and the bytes that were taken at most."""
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-W", "ignore", "-c", READER]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, text=True, **pipes)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            pytest.fail(f"reading {path.name} ended the process: {self._process.wait()}")
        told = json.loads(answer)
        return told["found"], told["taken"]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def page(num_values: int, unpacked: int, body: bytes, *, encoding: int = PLAIN, more: Raw | None = None) -> bytes:
    """Returns a page of data with its header; `more` is a list among its fields."""
    of_kind = Struct({1: (I32, num_values), 2: (I32, encoding), 3: (I32, RLE), 4: (I32, RLE)})
    header = Struct({1: (I32, 0), 2: (I32, unpacked), 3: (I32, len(body)), 5: (STRUCT, of_kind)})
    if more is not None:
        header.put(9, LIST, more)
    return hostile.encode(STRUCT, header) + body


def dictionary_page(num_values: int, unpacked: int, body: bytes) -> bytes:
    """Returns a dictionary with its header."""
    of_kind = Struct({1: (I32, num_values), 2: (I32, PLAIN)})
    header = Struct({1: (I32, 2), 2: (I32, unpacked), 3: (I32, len(body)), 7: (STRUCT, of_kind)})
    return hostile.encode(STRUCT, header) + body


def of_pages(table: pa.Table, pages: bytes, num_rows: int, num_values: int, *, codec: int) -> bytes:
    """Returns a file of one column whose only chunk is `pages`."""
    _, footer = hostile.split(hostile.parquet(table, compression="none"))
    group = footer[ROW_GROUPS][0]
    group[hostile.NUM_ROWS] = footer[hostile.FILE_ROWS] = num_rows
    column = group[COLUMNS][0]
    for field in (4, 5, 6, 7):
        column.pop(field, None)
    # Path, type and encodings stay; sizes lie as far as that helps the attack.
    meta = column[METADATA]
    meta = Struct({number: (meta.kinds[number], meta[number]) for number in (1, 2, 3)})
    meta.put(hostile.CODEC, I32, codec)
    meta.put(hostile.NUM_VALUES, I64, num_values)
    meta.put(6, I64, len(pages))
    meta.put(hostile.COMPRESSED_SIZE, I64, len(pages))
    meta.put(hostile.DATA_OFFSET, I64, 4)
    column[METADATA] = meta
    return hostile.join(b"PAR1" + pages, footer)


def packed(codec: str, num_bytes: int) -> bytes:
    """Returns zeros, compressed."""
    if codec == "gzip":
        # Members one after another are one stream.
        times, rest = divmod(num_bytes, 16 * MIB)
        members = [gzip.compress(bytes(size), 9, mtime=0) for size in (16 * MIB, rest)]
        return members[0] * times + members[1] * (rest > 0)
    return pa.compress(bytes(num_bytes), codec=codec, asbytes=True)


LISTS = pa.table({"n": pa.array([[1], None], pa.list_(pa.int32()))})
# A list of structs is for the `parquet` crate.
TEXTS = pa.struct([pa.field("x", pa.string(), nullable=False)])
LISTS_OF_TEXTS = pa.table(
    {"n": [[{"x": ""}]]}, pa.schema([pa.field("n", pa.list_(pa.field("item", TEXTS, nullable=False)), nullable=False)])
)
NULLS = pa.table({"n": pa.array([1, None], pa.int32())})
# What pyarrow compresses as `lz4` are frames, which the old codec may be, too.
CODECS = {"zstd": ZSTD, "gzip": GZIP, "brotli": BROTLI, "snappy": SNAPPY, "lz4": LZ4, "lz4_raw": LZ4_RAW}
# Codecs of which a page of little may unpack to much.
DENSE = ("zstd", "gzip", "brotli", "lz4")
# Of a list that takes no byte for each.
BOOLEANS = Raw(b"\xf1\xff\xff\xff\xff\x07")


def required(kind: pa.DataType, *, is_nested: bool) -> pa.Table:
    """Returns a row of one column without NULL: ours to decode or, nested, for the `parquet` crate."""
    value = 0 if pa.types.is_integer(kind) else ""
    if is_nested:
        kind, value = pa.struct([pa.field("x", kind, nullable=False)]), {"x": value}
    return pa.table({"n": [value]}, pa.schema([pa.field("n", kind, nullable=False)]))


def bomb(table: pa.Table, codec: str, claimed: int, real: int) -> bytes:
    """Returns a page of 100 numbers that claims to unpack to `claimed` bytes, and unpacks to `real`."""
    return of_pages(table, page(100, claimed, packed(codec, real)), 100, 100, codec=CODECS[codec])


def long_text(table: pa.Table, num_rows: int, num_bytes: int) -> bytes:
    """Returns rows of one text, which is stored once."""
    text = pa.compress(num_bytes.to_bytes(4, "little") + b"x" * num_bytes, codec="zstd", asbytes=True)
    # Numbers of no bits: all are 0.
    numbers = b"\0" + hostile.varint(num_rows << 1)
    dictionary = dictionary_page(1, num_bytes + 4, text)
    packed_numbers = pa.compress(numbers, codec="zstd", asbytes=True)
    data_page = page(num_rows, len(numbers), packed_numbers, encoding=RLE_DICTIONARY)
    return of_pages(table, dictionary + data_page, num_rows, num_rows, codec=ZSTD)


def differences(numbers: list[int], *, claimed: int | None = None) -> bytes:
    """Returns numbers as their differences, of 32 bits each, in blocks of 128 and parts of 32."""
    encoded = (
        hostile.varint(128)
        + hostile.varint(4)
        + hostile.varint(claimed or len(numbers))
        + hostile.encode(I64, numbers[0])
    )
    deltas = [after - before for before, after in itertools.pairwise(numbers)]
    for start in range(0, len(deltas), 128):
        block = deltas[start : start + 128]
        least = min(block)
        encoded += hostile.encode(I64, least) + bytes([32] * 4)
        encoded += b"".join((delta - least).to_bytes(4, "little") for delta in block + [least] * (-len(block) % 32))
    return encoded


def repeated_text(table: pa.Table, num_rows: int, num_bytes: int) -> bytes:
    """Returns rows of one text, each of which is all of the one before."""
    prefixes, suffixes = [0] + [num_bytes] * (num_rows - 1), [num_bytes] + [0] * (num_rows - 1)
    values = differences(prefixes) + differences(suffixes) + b"x" * num_bytes
    stored = pa.compress(values, codec="zstd", asbytes=True)
    return of_pages(
        table, page(num_rows, len(values), stored, encoding=DELTA_BYTE_ARRAY), num_rows, num_rows, codec=ZSTD
    )


def many_lengths(table: pa.Table, encoding: int, codec: str, *, is_second: bool = False) -> bytes:
    """Returns a page of a hundred texts that claims to have 2^40 lengths."""
    values = differences([0] * 100) * is_second + differences([0] * 100, claimed=2**40)
    stored = values if codec == "none" else pa.compress(values, codec=codec, asbytes=True)
    pages = page(100, len(values), stored, encoding=encoding)
    return of_pages(table, pages, 100, 100, codec=CODECS.get(codec, UNCOMPRESSED))


def of_columns(*, is_nested: bool) -> dict[str, Callable[[], bytes]]:
    """Returns files whose one column is ours to decode or, nested, for the `parquet` crate."""
    numbers, texts = (required(kind, is_nested=is_nested) for kind in (pa.int64(), pa.string()))
    plain = page(100, 800, bytes(800))
    listing = page(100, 800, bytes(800), more=BOOLEANS)
    crowded = dictionary_page(2**31 - 1, 8, bytes(8)) + plain
    return {
        **{f"a hidden bomb of {codec}": partial(bomb, numbers, codec, 800, BOMB_BYTES) for codec in DENSE},
        **{f"a bomb of {codec}": partial(bomb, numbers, codec, BOMB_BYTES, BOMB_BYTES) for codec in DENSE},
        **{f"a bomb of {codec} that is none": partial(bomb, numbers, codec, 2**31 - 1, 800) for codec in CODECS},
        "a page header of 2^31 - 1 Booleans": partial(of_pages, numbers, listing, 100, 100, codec=UNCOMPRESSED),
        "a dictionary of 2^31 - 1 values in eight bytes": partial(
            of_pages, numbers, crowded, 100, 100, codec=UNCOMPRESSED
        ),
        "a thousand times a text of 8 MiB": partial(long_text, texts, 1000, 8 * MIB),
        "a thousand times a text of 8 MiB, each of the one before": partial(repeated_text, texts, 1000, 8 * MIB),
        **{
            f"2^40 lengths of {codec}": partial(many_lengths, texts, DELTA_LENGTH_BYTE_ARRAY, codec)
            for codec in ("none", "zstd", "gzip", "brotli", "lz4")
        },
        "2^40 lengths of prefixes": partial(many_lengths, texts, DELTA_BYTE_ARRAY, "none"),
        "2^40 lengths behind those of prefixes": partial(many_lengths, texts, DELTA_BYTE_ARRAY, "none", is_second=True),
    }


def row_of_texts(num_texts: int, num_bytes: int, *, of_dictionary: bool) -> bytes:
    """Returns a row that is a list of one text, again and again, and 999 rows of one that is empty."""
    num_rows, num_values = 1000, num_texts + 999
    # The last row is the long one. A list that is not empty has the level 1.
    reps = hostile.varint(num_rows << 1) + b"\0" + hostile.varint((num_texts - 1) << 1) + b"\1"
    defs = hostile.varint(num_values << 1) + b"\1"
    levels = b"".join(len(runs).to_bytes(4, "little") + runs for runs in (reps, defs))
    if of_dictionary:
        values = b"\1" + hostile.varint(999 << 1) + b"\0" + hostile.varint(num_texts << 1) + b"\1"
        texts = bytes(4) + num_bytes.to_bytes(4, "little") + b"x" * num_bytes
        dictionary = dictionary_page(2, len(texts), pa.compress(texts, codec="zstd", asbytes=True))
    else:
        prefixes, suffixes = [0] * 1000 + [num_bytes] * (num_texts - 1), [0] * 999 + [num_bytes] + [0] * (num_texts - 1)
        values = differences(prefixes) + differences(suffixes) + b"x" * num_bytes
        dictionary = b""
    body = levels + values
    encoding = RLE_DICTIONARY if of_dictionary else DELTA_BYTE_ARRAY
    stored = pa.compress(body, codec="zstd", asbytes=True)
    pages = dictionary + page(num_values, len(body), stored, encoding=encoding)
    return of_pages(LISTS_OF_TEXTS, pages, num_rows, num_values, codec=ZSTD)


def null_bomb(num_values: int, claimed: int) -> bytes:
    """Returns one row: a list of `num_values` NULLs, in a few bytes of levels; the footer claims `claimed` of them."""
    # The first level begins the row, all others go on with it; 2 of 3 is a NULL in a list.
    reps = hostile.varint(1 << 1) + b"\0" + hostile.varint((num_values - 1) << 1) + b"\1"
    defs = hostile.varint(num_values << 1) + b"\2"
    body = len(reps).to_bytes(4, "little") + reps + len(defs).to_bytes(4, "little") + defs
    return of_pages(LISTS, page(num_values, len(body), body), 1, claimed, codec=UNCOMPRESSED)


def null_rows(num_values: int, num_rows: int) -> bytes:
    """Returns `num_values` NULLs in a run of levels, for `num_rows` rows."""
    levels = hostile.varint(num_values << 1) + b"\0"
    body = len(levels).to_bytes(4, "little") + levels
    return of_pages(NULLS, page(num_values, len(body), body), num_rows, num_rows, codec=UNCOMPRESSED)


def too_high(*, is_list: bool) -> bytes:
    """Returns a hundred rows, whose definition levels are higher than any of their column."""
    levels = hostile.varint(100 << 1) + b"\x8e"
    reps = hostile.varint(100 << 1) + b"\0"
    body = b"".join(len(runs).to_bytes(4, "little") + runs for runs in ([reps, levels] if is_list else [levels]))
    body += bytes(800)
    return of_pages(LISTS if is_list else NULLS, page(100, len(body), body), 100, 100, codec=UNCOMPRESSED)


def with_metadata(key: bytes, value: bytes, body: bytes | None = None) -> bytes:
    """Returns a sound file, or `body`, with a value in its footer's metadata."""

    def change(footer: Struct) -> None:
        pairs = [pair for pair in footer.get(5, []) if pair[1] != key]
        pairs.append(Struct({1: (BINARY, key), 2: (BINARY, value)}))
        footer.put(5, LIST, Items(STRUCT, pairs))

    return hostile.with_footer(body or hostile.parquet(data.ids_table(100)), change)


def moved(change: Callable[[Struct, int], object]) -> bytes:
    """Returns a file of two columns and two row groups whose footer was changed, knowing the pages' size."""
    table = pa.table({"n": range(200), "m": [f"t{row % 7}" for row in range(200)]})
    pages, footer = hostile.split(hostile.parquet(table, row_group_size=100, write_page_index=True, compression="none"))
    more = change(footer, len(pages))
    return hostile.join(pages + (more if isinstance(more, bytes) else b""), footer)


def column(footer: Struct, group: int, number: int) -> Struct:
    found: Struct = footer[ROW_GROUPS][group][COLUMNS][number]
    return found


PLACE = (hostile.DATA_OFFSET, hostile.DICTIONARY_OFFSET, hostile.COMPRESSED_SIZE, hostile.NUM_VALUES)


def share_chunks(footer: Struct, _: int) -> None:
    """All columns of one type lie where the first does."""
    for field in PLACE:
        column(footer, 1, 0)[METADATA][field] = column(footer, 0, 0)[METADATA][field]


def overlap_chunks(footer: Struct, size: int) -> None:
    """Every chunk is all of the file."""
    for group in (0, 1):
        for number in (0, 1):
            meta = column(footer, group, number)[METADATA]
            meta[hostile.DATA_OFFSET] = meta[hostile.DICTIONARY_OFFSET] = 4
            meta[hostile.COMPRESSED_SIZE] = size - 4


def swap_dictionary(footer: Struct, _: int) -> None:
    """Data come before their dictionary."""
    meta = column(footer, 0, 0)[METADATA]
    fields = (hostile.DATA_OFFSET, hostile.DICTIONARY_OFFSET)
    meta[fields[0]], meta[fields[1]] = meta[fields[1]], meta[fields[0]]


def index_itself(footer: Struct, _: int) -> None:
    """The index of a column is its pages, and the other way round."""
    chunk = column(footer, 0, 0)
    meta = chunk[METADATA]
    index = chunk[hostile.OFFSET_INDEX_OFFSET], chunk[hostile.OFFSET_INDEX_LENGTH]
    chunk[hostile.OFFSET_INDEX_OFFSET] = meta[hostile.DICTIONARY_OFFSET]
    chunk[hostile.OFFSET_INDEX_LENGTH] = meta[hostile.COMPRESSED_SIZE]
    meta[hostile.DICTIONARY_OFFSET], meta[hostile.COMPRESSED_SIZE] = index
    meta[hostile.DATA_OFFSET] = index[0]


def index_another(footer: Struct, _: int) -> None:
    """Two columns have each other's index."""
    one, two = column(footer, 0, 0), column(footer, 0, 1)
    for field in (hostile.OFFSET_INDEX_OFFSET, hostile.OFFSET_INDEX_LENGTH):
        one[field], two[field] = two[field], one[field]


def index_whole_file(footer: Struct, size: int) -> None:
    """The index is the whole file."""
    chunk = column(footer, 0, 0)
    chunk[hostile.OFFSET_INDEX_OFFSET], chunk[hostile.OFFSET_INDEX_LENGTH] = 0, size


def index_within_pages(footer: Struct, size: int) -> bytes:
    """The index lists a page that begins within one; returns it, to lie after the pages."""
    chunk = column(footer, 0, 0)
    meta = chunk[METADATA]
    start = meta[hostile.DATA_OFFSET] + 1
    end = meta[hostile.DICTIONARY_OFFSET] + meta[hostile.COMPRESSED_SIZE]
    place = Struct({1: (I64, start), 2: (I32, end - start), 3: (I64, 0)})
    index = hostile.encode(STRUCT, Struct({1: (LIST, Items(STRUCT, [place]))}))
    chunk[hostile.OFFSET_INDEX_OFFSET], chunk[hostile.OFFSET_INDEX_LENGTH] = size, len(index)
    return index


def bloom_whole_file(footer: Struct, size: int) -> None:
    """The bloom filter is the whole file, and longer."""
    meta = column(footer, 0, 0)[METADATA]
    meta.put(14, I64, 0)
    meta.put(15, I32, 2**31 - 1 if size else 0)


def nested_thrift(kind: int, depth: int) -> bytes:
    """Returns a page whose header holds `depth` lists or structs within one another."""
    inner = b"\x19" * depth if kind == LIST else b"\x1c" * depth
    return of_pages(required(pa.int64(), is_nested=False), b"\x15\x00" + inner, 100, 100, codec=UNCOMPRESSED)


def arrow_schema(depth: int) -> bytes:
    """Returns Arrow's own schema of a list in lists, as writers put it beside Parquet's."""
    kind: pa.DataType = pa.int32()
    for _ in range(depth):
        kind = pa.list_(kind)
    return base64.b64encode(pa.schema([("id", kind)]).serialize().to_pybytes())


HARMLESS = {"MemoryLimitError", "DataError"}
CASES: dict[str, Callable[[], bytes]] = {
    **of_columns(is_nested=False),
    **{f"{name}, nested": made for name, made in of_columns(is_nested=True).items()},
    "a row of 4,096 times a text of 1 MiB": lambda: row_of_texts(4096, MIB, of_dictionary=True),
    "a row of 4,096 times the text before": lambda: row_of_texts(4096, MIB, of_dictionary=False),
    "a list of 2^30 NULLs": lambda: null_bomb(2**30, 2**30),
    "a list of 2^24 NULLs that claims to be short": lambda: null_bomb(2**24, 1),
    "2^30 NULLs that are not there": lambda: null_rows(1000, 2**30),
    "2^31 - 1 levels for a hundred rows": lambda: null_rows(2**31 - 1, 100),
    "chunks that share their bytes": lambda: moved(share_chunks),
    "chunks that are the whole file": lambda: moved(overlap_chunks),
    "a dictionary after its data": lambda: moved(swap_dictionary),
    "an index that is its pages": lambda: moved(index_itself),
    "an index of pages within pages": lambda: moved(index_within_pages),
    "indexes of each other": lambda: moved(index_another),
    "an index that is the whole file": lambda: moved(index_whole_file),
    "a bloom filter of 2 GiB": lambda: moved(bloom_whole_file),
    "a page header of lists in lists": lambda: nested_thrift(LIST, 100_000),
    "a page header of structs in structs": lambda: nested_thrift(STRUCT, 100_000),
    "an Arrow schema that is noise": lambda: with_metadata(b"ARROW:schema", base64.b64encode(b"\xff" * 4000)),
    "an Arrow schema that is no base64": lambda: with_metadata(b"ARROW:schema", b"!" * 4000),
    "an Arrow schema of 500 lists in lists": lambda: with_metadata(b"ARROW:schema", arrow_schema(500)),
    "features of 100,000 lists in lists": lambda: with_metadata(
        b"huggingface", b'{"info": {"features": ' + b'{"x": [' * 100_000 + b"]}" * 100_000 + b"}}"
    ),
    "features that claim a class of 2^62 names": lambda: with_metadata(
        b"huggingface",
        json.dumps({"info": {"features": {"id": {"_type": "ClassLabel", "num_classes": 2**62}}}}).encode(),
    ),
    "metadata of 8 MiB": lambda: with_metadata(b"pandas", b"x" * (8 * MIB)),
}

# What is nothing worse than odd, or says nothing that anybody uses.
READABLE = {
    "chunks that share their bytes",
    "a dictionary after its data",
    "indexes of each other",
    "an index that is the whole file",
    "a bloom filter of 2 GiB",
    "an Arrow schema that is noise",
    "an Arrow schema that is no base64",
    "an Arrow schema of 500 lists in lists",
    "features of 100,000 lists in lists",
    "features that claim a class of 2^62 names",
    "metadata of 8 MiB",
}


def test_a_type_that_makes_a_library_panic_is_refused_without_the_panics_words(tmp_path: Path):
    body = hostile.parquet(pa.table({"n": pa.array([1], pa.decimal128(30, 2))}))
    key = b"ARROW:schema"
    [schema] = [base64.b64decode(pair[2]) for pair in hostile.split(body)[1][5] if pair[1] == key]
    negative = schema.replace((30).to_bytes(4, "little"), (-30).to_bytes(4, "little", signed=True))
    assert negative != schema
    (tmp_path / "a.parquet").write_bytes(with_metadata(key, base64.b64encode(negative), body))
    with pytest.raises(fb.DataError, match="its schema is corrupt, .* such as Polars' 128-bit integers$"):
        fb.load_dataset(tmp_path / "a.parquet", split="train")


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_object_costs_memory_within_bounds_and_ends_in_an_error(name: str, reader: Reader, tmp_path: Path):
    path = tmp_path / f"{name}.parquet"
    path.write_bytes(CASES[name]())
    assert path.stat().st_size < 10 * MIB, "it is small beside what it asks for"
    found, taken = reader.read(path)
    errors = [told for told in found.values() if isinstance(told, str)]
    assert taken < MEMORY_LIMIT + SPARE, f"{taken / MIB:.0f} MiB: {found}"
    assert {told.split(":")[0] for told in errors} <= HARMLESS, found
    # A batch that is too large is of no object.
    assert all(f"{name}.parquet" in told or "a batch of" in told for told in errors), found
    if name not in READABLE:
        assert "open" in found or isinstance(found["rows"], str), found


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("offset", [-1, 0, 1 << 40])
def test_a_dictionary_that_is_not_before_its_data_is_none(offset: int, has_index: bool, tmp_path: Path):
    """Some writers put 0 where there is none."""

    def claim(footer: Struct) -> None:
        for chunk in footer[ROW_GROUPS][0][COLUMNS]:
            chunk[METADATA].put(hostile.DICTIONARY_OFFSET, I64, offset)

    table = pa.table({"n": range(100), "text": [str(n) for n in range(100)], "list": [[n] for n in range(100)]})
    options: dict[str, Any] = {"use_dictionary": False, "write_page_index": has_index, "data_page_size": 100}
    (tmp_path / "x.parquet").write_bytes(hostile.with_footer(hostile.parquet(table, **options), claim))
    ds = fb.load_dataset(tmp_path, split="train")
    assert pa.table(ds).to_pylist() == table.to_pylist()
    assert ds[97] == table.slice(97, 1).to_pylist()[0]
    assert len(ds.filter("text LIKE '%7'")) == 10


@pytest.mark.parametrize("bound", [hostile.MIN_VALUE, hostile.MAX_VALUE])
@pytest.mark.parametrize("num_bytes", [0, 17, 1000])
def test_a_bound_that_is_no_decimal_decides_nothing(num_bytes: int, bound: int, tmp_path: Path):
    def claim(footer: Struct) -> None:
        footer[ROW_GROUPS][1][COLUMNS][0][METADATA][hostile.STATISTICS][bound] = bytes(num_bytes)

    table = pa.table({"d": pa.array(range(100), pa.decimal128(20, 2))})
    (tmp_path / "x.parquet").write_bytes(hostile.with_footer(hostile.parquet(table, row_group_size=50), claim))
    ds = fb.load_dataset(tmp_path, split="train")
    assert len(ds.filter("d > 95")) == 4
    assert len(ds.filter("d BETWEEN 20 AND 70")) == 51


@pytest.mark.parametrize("condition", ["n IS NOT NULL", "array_length(n) > 1"])
def test_a_filter_on_a_list_that_is_longer_than_its_footer_says_is_an_error(condition: str, tmp_path: Path):
    (tmp_path / "short.parquet").write_bytes(null_bomb(1000, 1))
    ds = fb.load_dataset(str(tmp_path), split="train")
    with pytest.raises(fb.DataError, match="column `n`.*its pages claim 1000 values, its footer 1"):
        len(ds.filter(condition))


@pytest.mark.parametrize("is_list", [True, False])
def test_levels_that_mean_nothing_are_an_error_and_not_the_values_of_other_rows(is_list: bool, tmp_path: Path):
    (tmp_path / "high.parquet").write_bytes(too_high(is_list=is_list))
    ds = fb.load_dataset(str(tmp_path), split="train")
    with pytest.raises(fb.DataError, match="column `n`.*high.parquet.*a level is higher than its column's"):
        list(ds.batches(10))


def test_a_filter_without_a_limit_refuses_what_takes_half_of_the_machine(tmp_path: Path):
    def claim(footer: Struct) -> None:
        column(footer, 0, 0)[METADATA][6] = 2**50

    body = hostile.parquet(pa.table({"text": ["a", "bc"] * 50}), use_dictionary=False)
    (tmp_path / "large.parquet").write_bytes(hostile.with_footer(body, claim))
    kept = fb.load_dataset(str(tmp_path), split="train").filter("length(text) > 1")
    with pytest.raises(fb.MemoryLimitError, match=r"row group 0 of `.*large.parquet`"):
        len(kept)


@pytest.mark.parametrize("of_dictionary", [True, False])
def test_a_row_of_one_text_many_times_is_read_where_there_is_memory(of_dictionary: bool, tmp_path: Path):
    (tmp_path / "repeated.parquet").write_bytes(row_of_texts(40, MIB, of_dictionary=of_dictionary))
    ds = fb.load_dataset(str(tmp_path), split="train")
    batches = [pa.record_batch(batch) for batch in ds.batches(100, memory_limit=4 * MEMORY_LIMIT)]
    lengths = [[len(text["x"]) for text in row] for batch in batches for row in batch["n"].to_pylist()]
    assert lengths == [[0]] * 999 + [[MIB] * 40]


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_text_that_claims_to_end_behind_its_page_is_an_error_for_who_passes_over_it(is_nested: bool, tmp_path: Path):
    """The `parquet` crate goes on there, and asks for memory that no machine has."""
    texts = [f"text {n:02}" for n in range(40)]
    column = pa.array([{"n": n, "of": text} for n, text in enumerate(texts)]) if is_nested else pa.array(texts)
    body = hostile.parquet(pa.table({"id": range(40), "text": column}), use_dictionary=False, compression="none")
    length, text = (7).to_bytes(4, "little"), b"text 05"
    assert body.count(length + text) == 1
    (tmp_path / "texts.parquet").write_bytes(body.replace(length + text, b"\xff\xff\xff\x7f" + text))
    ds = fb.load_dataset(str(tmp_path), split="train")
    assert [ds[row]["id"] for row in range(5)] == list(range(5))
    for row in range(5, 40):
        with pytest.raises(fb.DataError, match=r"column `text`.*texts\.parquet"):
            ds[row]
    for num_rows in (1, 2, 9):
        with pytest.raises(fb.DataError, match=r"column `text`.*texts\.parquet"):
            list(ds.filter(f"id >= 30 AND id < {30 + num_rows}").batches(10))


@pytest.mark.parametrize(
    "read",
    [lambda ds: ds[5], lambda ds: list(ds.batches(9)), lambda ds: list(ds.shuffle(1).batches(9))],
    ids=["one", "all", "shuffled"],
)
@pytest.mark.parametrize("codec", [UNCOMPRESSED, ZSTD])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.bool_(), pa.float32()], ids=str)
def test_a_page_without_some_of_its_values_has_none(
    kind: pa.DataType, codec: int, read: Callable[[fb.Dataset], object], tmp_path: Path
):
    """Those that are there may be those of other rows."""
    table = pa.table({"n": pa.array([0], pa.int32()).cast(kind)}, pa.schema([pa.field("n", kind, nullable=False)]))
    values = bytes(100 * kind.bit_width // 8 - 1)
    stored = values if codec == UNCOMPRESSED else pa.compress(values, codec="zstd", asbytes=True)
    body = of_pages(table, page(100, len(values), stored), 100, 100, codec=codec)
    (tmp_path / "short.parquet").write_bytes(body)
    with pytest.raises(fb.DataError, match=r"column `n`.*short\.parquet.*fewer values"):
        read(fb.load_dataset(tmp_path / "short.parquet", split="train"))


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("prefixes", [[0, 4, 0], [0, -1, 0], [1, 0, 0], [0, 3, 5]], ids=str)
def test_a_text_that_repeats_more_of_the_one_before_than_that_has_is_an_error(
    prefixes: list[int], is_nested: bool, tmp_path: Path
):
    """Else the whole of the text before would be its beginning."""
    values = differences(prefixes) + differences([3, 1, 1]) + b"abcde"
    pages = page(3, len(values), values, encoding=DELTA_BYTE_ARRAY)
    body = of_pages(required(pa.string(), is_nested=is_nested), pages, 3, 3, codec=UNCOMPRESSED)
    (tmp_path / "texts.parquet").write_bytes(body)
    ds = fb.load_dataset(tmp_path / "texts.parquet", split="train")
    with pytest.raises(fb.DataError, match=r"column `n`.*texts\.parquet.*repeats more of the previous text than"):
        list(ds.batches(2))


ROWS_OF_LISTS = {
    "numbers": pa.array([[n] * (n % 4) for n in range(50)], pa.list_(pa.int32())),
    "lists of one length": pa.array([[n, n] for n in range(50)], pa.list_(pa.int32())),
    "lists of texts": pa.array([[[str(n)] * (n % 3)] * (n % 4) for n in range(50)], pa.list_(pa.list_(pa.string()))),
    "structs": pa.array([[{"x": n, "y": "z"}] * (n % 4) for n in range(50)]),
    "decimals": pa.array([[decimal.Decimal(n)] * 2 for n in range(50)], pa.list_(pa.decimal256(40, 0))),
}


@pytest.mark.parametrize(("page_bytes", "has_index"), [(1, False), (MIB, False), (MIB, True)])
@pytest.mark.parametrize("name", ROWS_OF_LISTS)
def test_more_rows_of_lists_than_the_row_group_has_are_an_error(
    name: str, page_bytes: int, has_index: bool, tmp_path: Path
):
    """Of a changed level a list becomes two, and all that follow are those of other rows."""

    def leave_one_out(footer: Struct) -> None:
        footer[hostile.FILE_ROWS] = footer[ROW_GROUPS][0][hostile.NUM_ROWS] = 49

    options = {"data_page_size": page_bytes, "write_batch_size": 5, "write_page_index": has_index}
    body = hostile.parquet(pa.table({"n": ROWS_OF_LISTS[name]}), **options)
    (tmp_path / "sound.parquet").write_bytes(body)
    assert sum(map(len, fb.load_dataset(str(tmp_path), split="train").batches(7))) == 50
    (tmp_path / "sound.parquet").rename(tmp_path / "more.parquet").write_bytes(hostile.with_footer(body, leave_one_out))
    ds = fb.load_dataset(str(tmp_path), split="train")
    for stream in (ds.batches(7), ds.shuffle(seed=1).batches(7), ds.to_torch(49)):
        with pytest.raises(fb.DataError, match=r"column `n`.*more\.parquet"):
            list(stream)
