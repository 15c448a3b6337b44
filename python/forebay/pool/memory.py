"""Blocks of memory that two processes share: anonymous files, of which nothing is left whatever ends the processes.

Each process owns the blocks that it writes. It sends a block's file once, then only where in the block something lies,
and writes there again when the other process has told that nobody uses it any more. That is known exactly: whatever is
read in place, a tensor, a slice of it, holds on to one object, whose end is noticed. Who keeps batches gets copies
after a few.

What a function returns as it was given it goes back as a place in the block in which it came.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.pool.pickling import bytes_of, put_together
from forebay.workers import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_BLOCK_BYTES = 1 << 16
ALIGNMENT = 64


class Part(NamedTuple):
    """Where a buffer of an object lies."""

    offset: int
    num_bytes: int
    came_in: int | None = None
    """The block of the receiver that it is in, if not in the parcel's."""


class Parcel(NamedTuple):
    """Where an object lies."""

    block: int
    num_bytes: int
    """Of the block."""
    parts: tuple[Part, ...]


class Block:
    """A mapped file."""

    def __init__(self, number: int, file: int, num_bytes: int) -> None:
        self.number = number
        self.num_bytes = num_bytes
        self._map = mmap.mmap(file, num_bytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._reader: weakref.ref[Any] | None = None

    def lend(self) -> memoryview:
        """Returns the memory; what is made of it keeps the block in use."""
        # A thing that can be referred to weakly, which memory views hold on to.
        holder = None if self._reader is None else self._reader()
        if holder is None:
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

    def find(self, buffer: memoryview) -> Part | None:
        """Returns where in the block a buffer lies, if it does."""
        # Nothing that is made of the block is read-only.
        if buffer.readonly:
            return None
        offset = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) - self._address
        is_inside = 0 <= offset <= self.num_bytes - buffer.nbytes
        return Part(offset, buffer.nbytes, self.number) if is_inside else None


class Outbox:
    """The blocks that this process writes."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._free: set[int] = set()
        self._num_made = 0
        self.given_up: list[int] = []
        """Blocks that were too small, for the other process to forget."""

    def pack(self, sources: Sequence[memoryview | Part]) -> tuple[Parcel, int | None]:
        """Writes buffers of an object into a free block, but for those that are with the other process already.

        Returns:
            Where the object lies, and the block's file if it is a new one.
        """
        parts = []
        end = 0
        for source in sources:
            if isinstance(source, Part):
                parts.append(source)
            else:
                parts.append(Part(end, source.nbytes))
                end += -(-source.nbytes // ALIGNMENT) * ALIGNMENT
        block, file = self._block_of(end)
        for part, source in zip(parts, sources, strict=True):
            if not isinstance(source, Part):
                block.write(part.offset, source)
        return Parcel(block.number, block.num_bytes, tuple(parts)), file

    def _block_of(self, num_bytes: int) -> tuple[Block, int | None]:
        """Returns a block that is free and large enough. A new one takes the place of one that is too small."""
        free = [(number, self._blocks[number]) for number in self._free]
        by_size = sorted((block.num_bytes, number) for number, block in free if not block.is_lent)
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

    def lend(self, part: Part) -> memoryview:
        """Returns what came back where it had been sent; the block is not written again as long as it is used."""
        assert part.came_in is not None, "a part that came back"  # noqa: S101
        return self._blocks[part.came_in].lend()[part.offset : part.offset + part.num_bytes]

    @property
    def num_lent(self) -> int:
        """How many blocks are in use for what came back in them."""
        return sum(block.is_lent for block in self._blocks.values())


class Inbox:
    """The blocks of the other process, mapped here."""

    def __init__(self, most_in_use: int) -> None:
        self._blocks: dict[int, Block] = {}
        self._in_use: set[int] = set()
        self._most_in_use = most_in_use

    def add(self, parcel: Parcel, file: int) -> None:
        """Maps a new block."""
        self._blocks[parcel.block] = Block(parcel.block, file, parcel.num_bytes)

    def open(self, parcel: Parcel, outbox: Outbox | None = None) -> Any:
        """Returns an object, in the memory of the block or, where many blocks are in use, as a copy.

        Args:
            parcel: Where it lies.
            outbox: The blocks in which parts of it may have come back.
        """
        block = self._blocks[parcel.block]
        num_lent = sum(self._blocks[number].is_lent for number in self._in_use)
        if outbox is not None:
            num_lent += outbox.num_lent
        self._in_use.add(parcel.block)
        memory = block.lend()
        buffers = [
            memory[part.offset : part.offset + part.num_bytes]
            if outbox is None or part.came_in is None
            else outbox.lend(part)
            for part in parcel.parts
        ]
        if num_lent >= self._most_in_use:
            buffers = [memoryview(bytearray(buffer)) for buffer in buffers]
        return put_together(buffers)

    def leave(self, buffers: list[memoryview]) -> list[memoryview | Part]:
        """Lets go of those buffers of an object that lie in these blocks, to be sent back as places.

        A block that something else here uses, a function that keeps what it is given, is not for the other process to
        change: what lies there is sent as buffers.

        Args:
            buffers: All buffers of the object, which nobody else may hold on to. They are taken out of the list.
        """
        left: list[memoryview | Part] = []
        while buffers:
            left.append(self._found(buffers[0]))
            del buffers[0]
        return [self._again(one) if isinstance(one, Part) else one for one in left]

    def _found(self, buffer: memoryview) -> memoryview | Part:
        """Returns where a buffer lies, or the buffer if that is in none of the blocks."""
        places = (self._blocks[number].find(buffer) for number in self._in_use)
        return next((place for place in places if place is not None), buffer)

    def _again(self, part: Part) -> memoryview | Part:
        """Returns a place, or the buffer there if its block is in use."""
        assert part.came_in is not None, "a part of a block here"  # noqa: S101
        block = self._blocks[part.came_in]
        return block.lend()[part.offset : part.offset + part.num_bytes] if block.is_lent else part

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
