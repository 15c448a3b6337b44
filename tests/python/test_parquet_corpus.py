"""The files of apache/parquet-testing: they hold what pyarrow reads, or are refused by name, and none ends a process.

They are looked for in `PARQUET_TEST_DATA`, else beside this repository in `shared/parquet-testing`.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from equality import as_forebay_has_them, check_equal

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
PARQUET_TESTING = Path(os.environ.get("PARQUET_TEST_DATA", ROOT.parent / "shared" / "parquet-testing"))
SECONDS_FOR_A_FILE = 60

# Refused, and how.
REFUSED = {
    "datapage_v1-corrupt-checksum.parquet": (fb.DataError, "CRC checksum mismatch"),
    "rle-dict-uncompressed-corrupt-checksum.parquet": (fb.DataError, "CRC checksum mismatch"),
    # A string of 2 GiB.
    "large_string_map.brotli.parquet": (fb.MemoryLimitError, "raise the limit"),
    # A dictionary page that breaks off, and statistics that are none: pyarrow does not look.
    "nation.dict-malformed.parquet": (fb.DataError, "a page claims 28 bytes of 13"),
    "dict-page-offset-zero.parquet": (fb.DataError, "not a readable Parquet file"),
    "encrypt_columns_plaintext_footer.parquet.encrypted": (fb.DataError, "cannot decode"),
}
ENCRYPTED = (fb.DataError, "encrypted, which is not supported")
# Read, and how it differs from what pyarrow reads.
DIFFERENT = {
    "incorrect_map_schema.parquet": "pyarrow refuses nullable keys",
    "int96_from_spark.parquet": "instants beyond the range of nanoseconds",
}

# Reads the files that are named on its input, one after another, and answers with what they hold or what was raised.
READER = """
import pickle, struct, sys, warnings
import pyarrow as pa

warnings.simplefilter("ignore")

def forebay(path):
    import forebay as fb
    ds = fb.load_dataset(path, split="train")
    table = pa.Table.from_batches([pa.record_batch(batch) for batch in ds.batches(1000)], ds.schema)
    names = [name for name in table.column_names if table.column_names.count(name) == 1]
    kept = {name: len(ds.filter('"' + name.replace('"', '""') + '" IS NOT NULL')) for name in names}
    return table, kept

def pyarrow(path):
    import pyarrow.parquet as pq
    return pq.read_table(path), {}

read = {"forebay": forebay, "pyarrow": pyarrow}[sys.argv[1]]
answers = sys.stdout.buffer
for line in sys.stdin:
    try:
        table, kept = read(line.rstrip("\\n"))
        answer = ("read", table, kept)
    except Exception as error:
        answer = ("raised", error, str(error))
    body = pickle.dumps(answer)
    answers.write(struct.pack("<q", len(body)) + body)
    answers.flush()
"""


@dataclass(frozen=True)
class Read:
    """What a file holds, and how many rows have a value in each column by a filter."""

    table: pa.Table
    kept: dict[str, int]


class Reader:
    """A process that reads files, so that one that crashes or does not end is a failed test, and starts anew."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path) -> Read:
        """Reads a file, or raises what reading it raised."""
        process = self._running()
        assert process.stdin
        process.stdin.write(f"{path}\n".encode())
        process.stdin.flush()
        length = self._answer(process, path, 8)
        kind, found, more = pickle.loads(self._answer(process, path, int.from_bytes(length, "little")))
        if kind == "raised":
            raise found
        return Read(found, more)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, "-c", READER, self._name]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], path: Path, length: int) -> bytes:
        assert process.stdout
        # `select` refuses descriptors from 1,024 on.
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        answer = b""
        while len(answer) < length:
            is_ready = poll.poll(SECONDS_FOR_A_FILE * 1000)
            part = os.read(process.stdout.fileno(), length - len(answer)) if is_ready else b""
            if not part:
                status = process.poll() if is_ready else f"nothing within {SECONDS_FOR_A_FILE} seconds"
                self.stop()
                pytest.fail(f"{self._name} ended while it read {path.name}: {status}")
            answer += part
        return answer


@pytest.fixture(scope="module")
def ours() -> Iterator[Reader]:
    reader = Reader("forebay")
    yield reader
    reader.stop()


@pytest.fixture(scope="module")
def theirs() -> Iterator[Reader]:
    reader = Reader("pyarrow")
    yield reader
    reader.stop()


def files(*folders: str) -> list[Any]:
    """The files of some folders, or one skipped case that says where they are looked for."""
    found = [path for folder in folders for path in sorted((PARQUET_TESTING / folder).glob("*"))]
    found = [path for path in found if path.suffix in (".parquet", ".encrypted")]
    if found:
        return [pytest.param(path, id=path.name) for path in found]
    reason = f"no files in {PARQUET_TESTING}; check out apache/parquet-testing and set PARQUET_TEST_DATA to it"
    return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="parquet-testing")]


@pytest.mark.parametrize("path", files("data", "data/aes256", "data/geospatial"))
def test_files_are_what_pyarrow_reads_or_refused(path, ours, theirs):
    if path.name in REFUSED or path.name.endswith(".encrypted"):
        refused, message = REFUSED.get(path.name, ENCRYPTED)
        with pytest.raises(refused, match=message) as caught:
            ours.read(path)
        assert path.name in str(caught.value)
        return
    read = ours.read(path)
    got = read.table
    got.validate(full=True)
    if path.name not in DIFFERENT:
        expected = theirs.read(path).table
        assert got.equals(expected) or got.schema.equals(as_forebay_has_them(expected.schema, expected.schema))
        check_equal(got, expected)
    assert read.kept == {name: got.num_rows - got[name].null_count for name in read.kept}


@pytest.mark.parametrize("path", files("bad_data"))
def test_bad_files_are_refused_or_what_pyarrow_reads(path, ours, theirs):
    try:
        got = ours.read(path).table
    except fb.ForebayError as error:
        assert path.name in str(error)  # noqa: PT017  (some are read)
        assert "internal error" not in str(error)  # noqa: PT017
    else:
        check_equal(got, theirs.read(path).table)


def test_a_reader_that_ends_or_hangs_is_a_failed_test(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "READER", "import sys, time; sys.stdin.readline(); time.sleep(float(sys.argv[1]))")
    monkeypatch.setitem(globals(), "SECONDS_FOR_A_FILE", 0.5)
    for name, says in (("0", "ended while it read a.parquet: "), ("60", "nothing within")):
        reader = Reader(name)
        with pytest.raises(pytest.fail.Exception, match=says):
            reader.read(tmp_path / "a.parquet")
        assert reader._process is None
