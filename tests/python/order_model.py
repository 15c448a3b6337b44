"""The order contract (`docs/order.md`) in slow, obvious Python: what the product must equal, for every input.

Nothing here is shared with the product, the random numbers included. A span is the sequence of its kept rows, whatever
they are; a position is a place in the list that `epoch` returns.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")


def chacha8(key: bytes, stream: int, num_blocks: int) -> np.ndarray:
    """Returns the first 32-bit words of a ChaCha8 key stream, 16 a block; the columns below are the blocks."""
    counter = np.arange(num_blocks, dtype=np.uint64)
    words = [*np.frombuffer(b"expand 32-byte k" + key, "<u4"), 0, 0, stream & 0xFFFFFFFF, stream >> 32]
    start = np.empty((16, num_blocks), dtype=np.uint32)
    start[:] = np.array(words, dtype=np.uint32)[:, None]
    start[12], start[13] = counter & 0xFFFFFFFF, counter >> 32

    def rotate(x: np.ndarray, bits: int) -> np.ndarray:
        return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))

    def quarters(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, ...]:
        for first, second in ((16, 12), (8, 7)):
            a = a + b
            d = rotate(d ^ a, first)
            c = c + d
            b = rotate(b ^ c, second)
        return a, b, c, d

    # The four quarter rounds of a round at once: rows of the square, rolled so that diagonals stand as columns.
    a, b, c, d = start.reshape(4, 4, num_blocks)
    for _ in range(4):
        a, b, c, d = quarters(a, b, c, d)
        b, c, d = np.roll(b, -1, 0), np.roll(c, -2, 0), np.roll(d, -3, 0)
        a, b, c, d = quarters(a, b, c, d)
        b, c, d = np.roll(b, 1, 0), np.roll(c, 2, 0), np.roll(d, 3, 0)
    return (np.concatenate([a, b, c, d]) + start).T.reshape(-1)


def uniforms(seed: int, number: int, purpose: str, stream: int, count: int) -> list[float]:
    """Returns the first numbers in [0, 1) that epoch `number` draws for a purpose; 53 bits each."""
    text = b"forebay" + seed.to_bytes(8, "little") + number.to_bytes(8, "little") + purpose.encode()
    words = chacha8(hashlib.sha256(text).digest(), stream, -(-count // 8)).astype(np.uint64)
    numbers = (words[0::2] | words[1::2] << np.uint64(32)) >> np.uint64(11)
    return [int(number) / 2**53 for number in numbers[:count]]


def epoch(
    spans: Sequence[Sequence[T]], number: int, *, seed: int | None, num_lanes: int = 1, window_rows: int = 1
) -> list[T]:
    """Returns the rows of an epoch by position; in dataset order where `seed` is None."""
    rows = list(itertools.chain(*spans))
    if seed is None:
        return rows
    if len(rows) <= num_lanes * window_rows:
        keys = uniforms(seed, number, "all", 0, len(rows))
        return [rows[x] for x in sorted(range(len(rows)), key=lambda x: (keys[x], x))]
    keys = uniforms(seed, number, "spans", 0, len(spans))
    dealt = [row for s in sorted(range(len(spans)), key=lambda s: (keys[s], s)) for row in spans[s]]
    by_lane = []
    for lane in range(num_lanes):
        start, end = (at * (len(dealt) // num_lanes) + min(at, len(dealt) % num_lanes) for at in (lane, lane + 1))
        jitter = uniforms(seed, number, "place", lane, end - start)
        places = sorted(range(end - start), key=lambda x: (x + (jitter[x] - 0.5) * window_rows, x))
        by_lane.append([dealt[start + x] for x in places])
    return [by_lane[g % num_lanes][g // num_lanes] for g in range(len(dealt))]


def rank_batches(
    order: Sequence[T], cursor: int, rank: int, world_size: int, batch_size: int, remainder: str, drop_last: bool
) -> list[list[T]]:
    """Returns the batches of one rank from the cursor on."""
    left = len(order) - cursor
    end = len(order) - left % world_size if remainder == "drop" else len(order)
    mine = [order[g] for g in range(cursor + rank, end, world_size)]
    if remainder == "pad" and left % world_size and rank >= left % world_size:
        mine.append(order[rank % len(order)])
    batches = [mine[k : k + batch_size] for k in range(0, len(mine), batch_size)]
    return [batch for batch in batches if len(batch) == batch_size] if drop_last else batches


def in_turn(held: Iterable[Iterable[T]]) -> list[T]:
    """Returns what takers hold when they give one thing each in turn: rows of ranks, batches of workers."""
    nothing = object()
    return [thing for turn in itertools.zip_longest(*held, fillvalue=nothing) for thing in turn if thing is not nothing]
