"""Builds the demo's corpus: the source files of the Rust crates that the build has fetched, as ordinary Parquet.

Each row is a piece of one file, at most 256 tokens long. Rows are ordered by crate, file and piece, so the same
`Cargo.lock` gives the same corpus on every machine.

    crate     string        name and version
    path      string        path in the crate, `#` and the number of the piece
    language  string        from the file name
    size      int64         bytes of the whole file
    licence   string        as declared by the crate, null if the crate names a licence file instead
    text      string        the piece
    tokens    list<int32>   one id for each word or punctuation mark, padded with 0 to 256

An id is a hash of the word, so the tokeniser needs no vocabulary; different words may share an id, and white space has
none. That is enough to demonstrate a loader, not to train a useful model.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

NUM_TOKENS = 256
VOCABULARY = 4096
# Some crates contain generated bindings of many megabytes; a few files must not make up a third of the corpus.
MAX_PIECES = 64
ROW_GROUP_ROWS = 1000
OBJECT_ROWS = 20 * ROW_GROUP_ROWS

LANGUAGES = {
    ".S": "assembly",
    ".asm": "assembly",
    ".c": "c",
    ".h": "c",
    ".json": "json",
    ".md": "markdown",
    ".pl": "perl",
    ".py": "python",
    ".rs": "rust",
    ".sh": "shell",
    ".toml": "toml",
    ".txt": "text",
    ".yaml": "yaml",
    ".yml": "yaml",
}

WORD = re.compile(r"\w+|[^\w\s]")
# Possessive, so that matching takes linear time. Each piece keeps the white space that follows it.
PIECE = re.compile(rf"(?:\s*+(?:\w++|[^\w\s])){{1,{NUM_TOKENS}}}+\s*+")

SCHEMA = pa.schema(
    {
        "crate": pa.string(),
        "path": pa.string(),
        "language": pa.string(),
        "size": pa.int64(),
        "licence": pa.string(),
        "text": pa.string(),
        "tokens": pa.list_(pa.int32()),
    }
)


def crates() -> list[dict[str, Any]]:
    """Returns the crates needed for a build on this machine, as described by `cargo metadata`."""
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = next(line.removeprefix("host: ") for line in version.splitlines() if line.startswith("host: "))
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    needed = {node["id"] for node in metadata["resolve"]["nodes"]}
    packages = [package for package in metadata["packages"] if package["source"] and package["id"] in needed]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def rows(packages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows of the corpus in order."""
    ids: dict[str, int] = {}
    for package in packages:
        folder = Path(package["manifest_path"]).parent
        for relative, text, size in texts(folder):
            for number, piece in enumerate(PIECE.findall(text)[:MAX_PIECES]):
                yield {
                    "crate": f"{package['name']}-{package['version']}",
                    "path": f"{relative}#{number}",
                    "language": LANGUAGES.get(Path(relative).suffix, "other"),
                    "size": size,
                    "licence": package["license"],
                    "text": piece,
                    "tokens": tokens(piece, ids),
                }


def texts(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yields path, content and size in bytes of each text file of a crate."""
    # Files that cargo itself adds differ between machines; their names begin with `.cargo`.
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".cargo")]
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        body = path.read_bytes()
        try:
            text = body.decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            yield path.relative_to(folder).as_posix(), text, len(body)


def tokens(piece: str, ids: dict[str, int]) -> list[int]:
    """Turns a piece into ids from 1 on, padded with zeros. `ids` caches the hashes."""
    found = []
    for word in WORD.findall(piece):
        token = ids.get(word)
        if token is None:
            token = ids[word] = 1 + zlib.crc32(word.encode()) % (VOCABULARY - 1)
        found.append(token)
    return found + [0] * (NUM_TOKENS - len(found))


def write(folder: Path, found: Iterator[dict[str, Any]]) -> tuple[int, int]:
    """Writes rows as Parquet objects and returns the number of rows and of objects."""
    num_rows = 0
    num_objects = 0
    writer: pq.ParquetWriter | None = None
    group: list[dict[str, Any]] = []

    def flush() -> None:
        nonlocal num_rows, num_objects, writer
        if not group:
            return
        if writer is None:
            path = folder / f"train-{num_objects:05}.parquet"
            writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", write_page_index=True)
            num_objects += 1
        writer.write_table(pa.Table.from_pylist(group, SCHEMA))
        num_rows += len(group)
        group.clear()
        if num_rows % OBJECT_ROWS == 0:
            writer.close()
            writer = None

    for row in found:
        group.append(row)
        if len(group) == ROW_GROUP_ROWS:
            flush()
    flush()
    if writer is not None:
        writer.close()
    return num_rows, num_objects


def main() -> None:
    """Writes the corpus into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write; its content is replaced")
    folder: Path = parser.parse_args().folder
    started = time.monotonic()
    packages = crates()
    # Under another name until it is complete.
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    num_rows, num_objects = write(unfinished, rows(packages))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(
        f"{num_rows:,} rows of {len(packages)} crates in {num_objects} objects, {num_bytes / 1e6:.0f} MB, "
        f"in {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
