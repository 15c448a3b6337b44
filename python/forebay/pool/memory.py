"""Blocks of memory shared by two processes: anonymous files, of which nothing is left however the processes end.

Each process owns the blocks that it writes. It sends a block's file once, and after that only offsets into the block.
It writes to a block again when the other process has reported that it is unused. That is known exactly: everything that
is read in place, such as a tensor or a slice of it, refers to one object whose end is noticed. A program that keeps
batches gets copies after a few. A fork of a process reads in place for as long as it runs, which nobody notices, so a
block that was in use at the fork is never written again: another one replaces it.

Values that a function returns unchanged go back as offsets into the block in which they came.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay import _lib
from forebay.pool.pickling import bytes_of, put_together
from forebay.workers import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_BLOCK_BYTES = 1 << 16
ALIGNMENT = 64


class Part(NamedTuple):
    """The location of a buffer of an object."""

    offset: int
    num_bytes: int
    came_in: int | None = None
    """The receiver's block that holds it, if it is not in the parcel's block."""


class Parcel(NamedTuple):
    """The location of an object."""

    block: int
    num_bytes: int
    """The size of the block."""
    parts: Sequence[tuple[int, int, int | None]]
    """As `Part`."""


Lent = dict[int, None]
"""The numbers of blocks whose memory is still used by objects."""


class Block:
    """A mapped file."""

    def __init__(self, number: int, file: int, num_bytes: int, lent: Lent) -> None:
        self.number = number
        self.num_bytes = num_bytes
        self._lent = lent
        self._map = mmap.mmap(file, num_bytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._reader: weakref.ref[Any] | None = None

    def lend(self) -> memoryview:
        """Returns the memory; objects made from it keep the block in use."""
        # An object that memory views keep alive and that supports weak references.
        holder = None if self._reader is None else self._reader()
        if holder is None:
            holder = bytes_of(self.num_bytes).from_buffer(self._map)
            # `pop` gets the reference as its default. It is not Python code, so no other thread can interrupt it.
            self._reader = weakref.ref(holder, partial(self._lent.pop, self.number))
            self._lent[self.number] = None
        return memoryview(holder).cast("B")

    def write(self, offset: int, buffer: memoryview) -> None:
        """Copies a buffer into the block."""
        self._map[offset : offset + buffer.nbytes] = buffer

    def find(self, buffer: memoryview) -> Part | None:
        """Returns the location of a buffer in the block; None if it is elsewhere."""
        offset = _lib.address_of(buffer) - self._address
        is_inside = 0 <= offset <= self.num_bytes - buffer.nbytes
        return Part(offset, buffer.nbytes, self.number) if is_inside else None


class Box:
    """Blocks that this process writes, or those that it reads."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._lent: Lent = {}
        # Blocks that forks, here or in the other process, may read as long as they run.
        self._forked: set[int] = set()
        _BOXES[id(self)] = self

    def note_fork(self) -> None:
        """Notes that a fork will have the objects in these blocks, too."""
        self._forked.update(self._lent)


# By `id`: other threads may make boxes while this one goes through a copy of it, unlike through a set.
_BOXES: weakref.WeakValueDictionary[int, Box] = weakref.WeakValueDictionary()


def _note_fork() -> None:
    for found in _BOXES.valuerefs():
        if (box := found()) is not None:
            box.note_fork()


os.register_at_fork(before=_note_fork)


class Outbox(Box):
    """The blocks that this process writes."""

    def __init__(self) -> None:
        super().__init__()
        self._free: set[int] = set()
        self._num_made = 0
        self.given_up: list[int] = []
        """Blocks that will not be written again, for the other process to forget."""

    def pack(self, sources: Sequence[memoryview | Part]) -> tuple[Parcel, int | None]:
        """Writes buffers of an object into a free block, except those that the other process already has.

        Returns:
            The location of the object, and the block's file if the block is new.
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
        """Returns a free block that is large enough. A new one replaces one that is too small."""
        for number in self._free & self._forked:
            self._give_up(number)
        fitting = smallest = None
        for number in self._free:
            if number in self._lent:
                continue
            block = self._blocks[number]
            if block.num_bytes >= num_bytes:
                if fitting is None or block.num_bytes < fitting.num_bytes:
                    fitting = block
            elif smallest is None or block.num_bytes < smallest.num_bytes:
                smallest = block
        if fitting is not None:
            self._free.remove(fitting.number)
            return fitting, None
        if smallest is not None:
            self._give_up(smallest.number)
        size = max(LEAST_BLOCK_BYTES, 1 << (num_bytes - 1).bit_length())
        file = anonymous_file()
        try:
            os.ftruncate(file, size)
            block = Block(self._num_made, file, size, self._lent)
        except BaseException:
            os.close(file)
            raise
        self._num_made += 1
        self._blocks[block.number] = block
        return block, file

    def _give_up(self, number: int) -> None:
        """Forgets a free block, and has the other process forget it. What is lent of it stays."""
        self._free.remove(number)
        self._forked.discard(number)
        del self._blocks[number]
        self.given_up.append(number)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Notes that the other process no longer uses these blocks; `~number` stands for one that a fork of it may."""
        for number in numbers:
            if number < 0:
                self._forked.add(~number)
            self._free.add(max(number, ~number))

    def lend(self, number: int, offset: int, num_bytes: int) -> memoryview:
        """Returns memory that came back in this process's own block, which is not written while it is in use."""
        return self._blocks[number].lend()[offset : offset + num_bytes]

    @property
    def num_lent(self) -> int:
        """The number of blocks in use by values that came back in them."""
        return len(self._lent)


class Inbox(Box):
    """The blocks of the other process, mapped here."""

    def __init__(self, most_in_use: int) -> None:
        super().__init__()
        self._in_use: set[int] = set()
        self._most_in_use = most_in_use

    def add(self, parcel: Parcel, file: int) -> None:
        """Maps a new block and closes its file."""
        try:
            self._blocks[parcel.block] = Block(parcel.block, file, parcel.num_bytes, self._lent)
        finally:
            os.close(file)

    def open(self, parcel: Parcel, outbox: Outbox | None = None) -> Any:
        """Returns an object, in the memory of the block or, if many blocks are in use, as a copy.

        Args:
            parcel: The location of the object.
            outbox: The blocks in which parts of it may have come back.
        """
        num_lent = len(self._lent) + (0 if outbox is None else outbox.num_lent)
        self._in_use.add(parcel.block)
        memory = self._blocks[parcel.block].lend()
        buffers = [
            memory[offset : offset + num_bytes]
            if outbox is None or came_in is None
            else outbox.lend(came_in, offset, num_bytes)
            for offset, num_bytes, came_in in parcel.parts
        ]
        if num_lent >= self._most_in_use:
            buffers = [memoryview(bytearray(buffer)) for buffer in buffers]
        return put_together(buffers)

    def leave(self, buffers: list[memoryview]) -> list[memoryview | Part]:
        """Replaces buffers of an object that are in these blocks by their locations, to send only these back.

        The other process must not overwrite a block that is still used here, for example by a function that keeps its
        arguments, so parts of such a block are sent as buffers.

        Args:
            buffers: All buffers of the object, with no other references to them. They are removed from the list.
        """
        left: list[memoryview | Part] = []
        while buffers:
            left.append(self._found(buffers[0]))
            del buffers[0]
        return [self._again(one) if isinstance(one, Part) else one for one in left]

    def _found(self, buffer: memoryview) -> memoryview | Part:
        """Returns the location of a buffer, or the buffer itself if it is in none of the blocks."""
        places = (self._blocks[number].find(buffer) for number in self._in_use)
        return next((place for place in places if place is not None), buffer)

    def _again(self, part: Part) -> memoryview | Part:
        """Returns a location, or the buffer there if its block is in use."""
        assert part.came_in is not None, "a part of a block here"  # noqa: S101
        if part.came_in not in self._lent:
            return part
        return self._blocks[part.came_in].lend()[part.offset : part.offset + part.num_bytes]

    def skip(self, parcel: Parcel) -> None:
        """Ignores an object."""
        self._in_use.add(parcel.block)

    def return_unused(self) -> list[int]:
        """Returns the numbers of the blocks that have become free, each once, for `take_back` in the other process."""
        free = [number for number in self._in_use if number not in self._lent]
        self._in_use.difference_update(free)
        return [~number if number in self._forked else number for number in free]

    def forget(self, numbers: Iterable[int]) -> None:
        """Unmaps blocks that will not be used again."""
        for number in numbers:
            self._forked.discard(number)
            del self._blocks[number]
