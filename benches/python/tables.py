"""Generates the content of the benchmarks' data sets: seeded tables, one for each object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 20_260_701

NUM_TOKENS = 2048
VOCABULARY = 50_000
EMBEDDING_WIDTH = 768
LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt")
NUM_WORDS = 20_000

NUMBER_TYPES = ("float64", "float32", "int64", "int32")
"""Types of the columns of `tabular`, in turn."""
NUM_NUMBERS = 100
NULL_SHARE = 0.05

ROWS_PER_LABEL = 1_000


def tokens(num_rows: int, num_objects: int) -> Iterator[pa.Table]:
    """Yields lists of ids with the frequencies of words."""
    ids = np.random.default_rng(SEED).permutation(VOCABULARY).astype(np.int32)
    rows = num_rows // num_objects
    offsets = np.arange(rows + 1, dtype=np.int32) * NUM_TOKENS
    for index in range(num_objects):
        uniform = np.random.default_rng((SEED, index)).random(rows * NUM_TOKENS, dtype=np.float32)
        values = ids[_zipf(uniform, VOCABULARY)]
        yield pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})


def embeddings(num_rows: int, num_objects: int) -> Iterator[pa.Table]:
    """Yields unit vectors."""
    rows = num_rows // num_objects
    for index in range(num_objects):
        random = np.random.default_rng((SEED, 3, index))
        values = random.standard_normal((rows, EMBEDDING_WIDTH), dtype=np.float32)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        yield pa.table({"embedding": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), EMBEDDING_WIDTH)})


def text(num_rows: int, num_objects: int) -> Iterator[pa.Table]:
    """Yields text of made-up words, a language, a score and an id."""
    rows = num_rows // num_objects
    words = pa.array(_words())
    for index in range(num_objects):
        random = np.random.default_rng((SEED, 1, index))
        lengths = random.integers(50, 350, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ranks = _zipf(random.random(int(offsets[-1]), dtype=np.float32), NUM_WORDS)
        lists = pa.ListArray.from_arrays(pa.array(offsets), words.take(pa.array(ranks)))
        yield pa.table(
            {
                "id": pa.array(np.arange(rows) + index * rows),
                "lang": pa.array(random.choice(LANGUAGES, rows)),
                "score": pa.array(random.random(rows)),
                "text": pc.binary_join(lists, " "),
            }
        )


def tabular(num_rows: int, num_objects: int) -> Iterator[pa.Table]:
    """Yields numbers of four types, some of them NULL: floats with full precision, integers in the thousands."""
    rows = num_rows // num_objects
    for index in range(num_objects):
        columns = {}
        for number in range(NUM_NUMBERS):
            random = np.random.default_rng((SEED, 4, index, number))
            dtype: Any = NUMBER_TYPES[number % len(NUMBER_TYPES)]
            if dtype.startswith("float"):
                values = random.standard_normal(rows, dtype=dtype)
            else:
                values = random.integers(-(10 << number % 10), 10 << number % 10, rows, dtype=dtype)
            columns[f"number_{number:02}"] = pa.array(values, mask=random.random(rows) < NULL_SHARE)
        yield pa.table(columns)


def labels(num_rows: int, num_objects: int) -> Iterator[pa.Table]:
    """Yields row numbers and sorted labels."""
    for rows in np.split(np.arange(num_rows), num_objects):
        yield pa.table({"row": pa.array(rows), "label": pa.array((rows // ROWS_PER_LABEL).astype(np.int32))})


def _zipf(uniform: Any, count: int) -> Any:
    """Returns ranks below `count`; the k-th occurs in proportion to 1/k."""
    # The rank of a word is log-uniform.
    ranks = np.exp(uniform * np.float32(np.log(count))).astype(np.int32) - 1
    return np.clip(ranks, 0, count - 1)


def _words() -> list[str]:
    """Returns made-up words of 2 to 11 letters."""
    random = np.random.default_rng((SEED, 2))
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    return ["".join(random.choice(letters, length)) for length in random.integers(2, 12, NUM_WORDS)]
