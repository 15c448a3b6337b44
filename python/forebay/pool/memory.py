"""Blocks of memory that two processes share: anonymous files, of which nothing is left whatever ends the processes.

Each process owns the blocks that it writes. It sends a block's file once, then only where in the block something lies,
and writes there again when the other process has told that nobody uses it any more. That is known exactly: whatever is
read in place, a tensor, a slice of it, holds on to one object, whose end is noticed. Who keeps batches gets copies
after a few.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.pool.pickling import bytes_of, put_together, take_apart
from forebay.workers import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_BLOCK_BYTES = 1 << 16
ALIGNMENT = 64


class Parcel(NamedTuple):
    """Where an object lies."""

    block: int
    num_bytes: int
    """Of the block."""
    parts: tuple[tuple[int, int], ...]
    """Offset and length of each buffer."""


class Block:
    """A mapped file."""

    def __init__(self, number: int, file: int, num_bytes: int) -> None:
        self.number = number
        self.num_bytes = num_bytes
        self._map = mmap.mmap(file, num_bytes)
        self._reader: weakref.ref[Any] | None = None

    def lend(self) -> memoryview:
        """Returns the memory; what is made of it keeps the block in use."""
        # A thing that can be referred to weakly, which memory views hold on to.
        holder = bytes_of(self.num_bytes).from_buffer(self._map)
        self._reader = weakref.ref(holder)
        return memoryview(holder).cast("B")

    @property
    def is_lent(self) -> bool:
        """Whether anything is left of what was made of the memory."""
        return self._reader is not None and self._reader() is not None

    def write(self, offset: int, buffer: memoryview) -> None:
        """Copies a buffer into the block."""
        self._map[offset : offset + buffer.nbytes] = buffer


class Outbox:
    """The blocks that this process writes."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._free: set[int] = set()
        self._num_made = 0
        self.given_up: list[int] = []
        """Blocks that were too small, for the other process to forget."""

    def pack(self, value: object) -> tuple[Parcel, int | None]:
        """Writes an object into a free block; returns where it lies, and the block's file if it is a new one."""
        buffers = take_apart(value)
        parts = []
        end = 0
        for buffer in buffers:
            parts.append((end, buffer.nbytes))
            end += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        block, file = self._block_of(end)
        for (offset, _), buffer in zip(parts, buffers, strict=True):
            block.write(offset, buffer)
        return Parcel(block.number, block.num_bytes, tuple(parts)), file

    def _block_of(self, num_bytes: int) -> tuple[Block, int | None]:
        """Returns a block that is free and large enough. A new one takes the place of one that is too small."""
        by_size = sorted((self._blocks[number].num_bytes, number) for number in self._free)
        fitting = [number for size, number in by_size if size >= num_bytes]
        if fitting:
            self._free.remove(fitting[0])
            return self._blocks[fitting[0]], None
        if by_size:
            smallest = by_size[0][1]
            self._free.remove(smallest)
            del self._blocks[smallest]
            self.given_up.append(smallest)
        size = max(LEAST_BLOCK_BYTES, 1 << (num_bytes - 1).bit_length())
        file = anonymous_file()
        try:
            os.ftruncate(file, size)
            block = Block(self._num_made, file, size)
        except BaseException:
            os.close(file)
            raise
        self._num_made += 1
        self._blocks[block.number] = block
        return block, file

    def take_back(self, numbers: Iterable[int]) -> None:
        """Notes that the other process uses these blocks no more."""
        self._free.update(numbers)


class Inbox:
    """The blocks of the other process, mapped here."""

    def __init__(self, most_in_use: int) -> None:
        self._blocks: dict[int, Block] = {}
        self._in_use: set[int] = set()
        self._most_in_use = most_in_use

    def add(self, parcel: Parcel, file: int) -> None:
        """Maps a new block."""
        self._blocks[parcel.block] = Block(parcel.block, file, parcel.num_bytes)

    def open(self, parcel: Parcel) -> Any:
        """Returns an object, in the memory of the block or, where many blocks are in use, as a copy."""
        block = self._blocks[parcel.block]
        num_lent = sum(self._blocks[number].is_lent for number in self._in_use)
        self._in_use.add(parcel.block)
        memory = block.lend()
        parts = [memory[offset : offset + length] for offset, length in parcel.parts]
        if num_lent >= self._most_in_use:
            parts = [memoryview(bytearray(part)) for part in parts]
        return put_together(parts)

    def skip(self, parcel: Parcel) -> None:
        """Leaves an object where it is."""
        self._in_use.add(parcel.block)

    def return_unused(self) -> list[int]:
        """Returns the numbers of the blocks that are free again; each once."""
        free = [number for number in self._in_use if not self._blocks[number].is_lent]
        self._in_use.difference_update(free)
        return free

    def forget(self, numbers: Iterable[int]) -> None:
        """Unmaps blocks that are not used again."""
        for number in numbers:
            del self._blocks[number]
