"""Blocks of memory shared by two processes: anonymous files, of which nothing is left however the processes end.

Each process owns the blocks that it writes. It sends a block's file once, and after that only offsets into the block.
It writes to a block again when the other process has reported that it is unused. That is known exactly: everything that
is read in place, such as a tensor or a slice of it, refers to one object whose end is noticed. A program that keeps
batches gets copies after a few. A fork of a process reads in place for as long as it runs, which nobody notices, so a
block that was in use at the fork is never written again: another one replaces it.

Batches are gathered straight into free blocks, which the stream is given ahead of time. Values that a function returns
unchanged go back as offsets into the block in which they came.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from bisect import bisect, insort
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay import _lib
from forebay.pool.pickling import bytes_of, put_together, take_apart
from forebay.stages import MOST_TAKEN
from forebay.workers import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_BLOCK_BYTES = 1 << 16
ALIGNMENT = 64


MOST_BYTES_OF_A_HEAD = 4096
"""Larger pickles travel in a block, smaller ones in the message."""
BATCH = b""
"""What stands for the pickle of a `Batch`, all of which is in its only part."""
MOST_BYTES_SUPPLIED = 16 << 20
"""The most bytes of blocks that wait for a stream to gather batches into them; there are always two."""

Part = tuple[int, int, int | None]
"""The location of a buffer: its offset, its size, and, if it is not in the parcel's block, the receiver's block."""


class Parcel(NamedTuple):
    """An object: its pickle, and the locations of the buffers outside it."""

    head: bytes | None
    """The pickle, or `BATCH`; None if it is the first part."""
    block: int | None
    """The block of the parts; None if all of them are in the receiver's."""
    num_bytes: int
    """The size of the block."""
    parts: list[Part]


Lent = dict[int, None]
"""The numbers of blocks whose memory is still used by objects."""


class Block:
    """A mapped file."""

    def __init__(self, number: int, file: int, num_bytes: int, lent: Lent) -> None:
        self.number = number
        self.num_bytes = num_bytes
        self._lent = lent
        mapped = _mapped(file, num_bytes)
        self.address = ctypes.addressof(mapped)
        self.memory = memoryview(mapped).cast("B")
        self._holder: weakref.ref[Any] | None = None

    def hold(self) -> Any:
        """Returns an object that has the memory; the block is in use as long as that exists."""
        # Memory views keep it alive, and it supports weak references.
        holder = None if self._holder is None else self._holder()
        if holder is None:
            holder = bytes_of(self.num_bytes).from_buffer(self.memory)
            # `pop` gets the reference as its default. It is not Python code, so no other thread can interrupt it.
            self._holder = weakref.ref(holder, partial(self._lent.pop, self.number))
            self._lent[self.number] = None
        return holder

    def lend(self) -> memoryview:
        """Returns the memory; objects made from it keep the block in use."""
        return memoryview(self.hold()).cast("B")

    def write(self, offset: int, buffer: memoryview) -> None:
        """Copies a buffer into the block."""
        self.memory[offset : offset + buffer.nbytes] = buffer

    def find(self, buffer: memoryview) -> Part | None:
        """Returns the location of a buffer in the block; None if it is elsewhere."""
        offset = _lib.address_of(buffer) - self.address
        is_inside = 0 <= offset <= self.num_bytes - buffer.nbytes
        return (offset, buffer.nbytes, self.number) if is_inside else None


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _mapped(file: int, num_bytes: int) -> Any:
    """Returns the memory of a file as an array of ctypes. Python's `mmap` would keep a descriptor for each block.

    Raises:
        OSError: the system refused.
    """
    address = _LIBC.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = bytes_of(num_bytes).from_address(address)
    # Threads of streams may still write to it when Python ends.
    weakref.finalize(memory, _LIBC.munmap, address, num_bytes).atexit = False
    return memory


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
    """The blocks that this process writes, for one or several others to read."""

    def __init__(self, num_readers: int = 1) -> None:
        super().__init__()
        self._free: set[int] = set()
        self._num_made = 0
        self._files = Files(num_readers)
        self._given_up: list[list[int]] = [[] for _ in range(num_readers)]
        # Blocks that a stream was given and of which no batch has come yet: in the order of their addresses, and those.
        self._addresses: list[tuple[int, int]] = []
        self._supplied: dict[int, Block] = {}
        self._supplied_bytes = self._most_bytes = 0

    def supply(self, stream: _lib.Stream) -> None:
        """Gives a stream free blocks for as many batches as it may gather before the next call."""
        num_waiting, num_bytes = stream.slabs()
        if num_bytes == 0:
            return
        # Of what the stream gathers, and of what else belongs to a batch.
        num_bytes = max(num_bytes, self._most_bytes)
        if num_bytes > self._supplied_bytes:
            # Waiting ones are too small; the stream drops them when a larger one is supplied.
            self._supplied_bytes, num_waiting = num_bytes, 0
        for _ in range(num_waiting, min(MOST_TAKEN, max(2, MOST_BYTES_SUPPLIED // num_bytes))):
            block = self._block_of(num_bytes)
            self._supplied[block.number] = block
            insort(self._addresses, (block.address, block.number))
            stream.supply(block.address, block.num_bytes, block.hold())

    def pack(self, value: object, reader: int = 0) -> tuple[Parcel, int | None]:
        """Writes an object into a free block, except what is already in one.

        Returns:
            The parcel, and the block's file, which the caller closes, if the reader does not have it yet.
        """
        parts = value.take_apart() if isinstance(value, _lib.Batch) else None
        if parts is None:
            return self.write(*take_apart(value), reader)
        self._most_bytes = max(self._most_bytes, parts.num_bytes)
        block = self._gathered(parts.address)
        num_bytes = None if block is None else parts.write(block.memory)
        if block is None or num_bytes is None:
            block = self._block_of(parts.num_bytes)
            num_bytes = parts.write(block.memory)
            assert num_bytes is not None, "the block is large enough"  # noqa: S101
        else:
            self._take_from_stream(block)
        return Parcel(BATCH, block.number, block.num_bytes, [(0, num_bytes, None)]), self._files.of(block, reader)

    def _gathered(self, address: int) -> Block | None:
        """Returns the block that a stream was given in which a batch has a buffer at `address`."""
        index = bisect(self._addresses, (address + 1,))
        if not index:
            return None
        block = self._supplied[self._addresses[index - 1][1]]
        return block if address < block.address + block.num_bytes else None

    def _take_from_stream(self, block: Block) -> None:
        """Notes that a stream no longer has a block."""
        del self._supplied[block.number]
        del self._addresses[bisect(self._addresses, (block.address,))]

    def write(
        self, head: memoryview, sources: Sequence[memoryview | Part], reader: int = 0
    ) -> tuple[Parcel, int | None]:
        """Writes an object's pickle and buffers, except those that the reader already has; returns as `pack`."""
        kept = None
        if head.nbytes <= MOST_BYTES_OF_A_HEAD:
            kept = head.tobytes()
        else:
            sources = [head, *sources]
        parts: list[Part] = []
        end = 0
        for source in sources:
            if isinstance(source, tuple):
                parts.append(source)
            else:
                parts.append((end, source.nbytes, None))
                end += -(-source.nbytes // ALIGNMENT) * ALIGNMENT
        if not end:
            return Parcel(kept, None, 0, parts), None
        block = self._block_of(end)
        for part, source in zip(parts, sources, strict=True):
            if not isinstance(source, tuple):
                block.write(part[0], source)
        return Parcel(kept, block.number, block.num_bytes, parts), self._files.of(block, reader)

    def _block_of(self, num_bytes: int) -> Block:
        """Takes a free block that is large enough. A new one replaces one that is too small."""
        fitting, smallest = self._find_free(num_bytes)
        if fitting is None and self._supplied:
            self._take_dropped()
            fitting, smallest = self._find_free(num_bytes)
        if fitting is not None:
            self._free.remove(fitting.number)
            return fitting
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
        self._files.add(block, file)
        return block

    def _find_free(self, num_bytes: int) -> tuple[Block | None, Block | None]:
        """Returns the smallest free block that is large enough, and the smallest of those that are not."""
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
        return fitting, smallest

    def _take_dropped(self) -> None:
        """Takes back the blocks that streams have dropped."""
        for block in [block for block in self._supplied.values() if block.number not in self._lent]:
            self._take_from_stream(block)
            self._free.add(block.number)

    def _give_up(self, number: int) -> None:
        """Forgets a free block, and has those who read it forget it. What is lent of it stays."""
        self._free.remove(number)
        self._forked.discard(number)
        del self._blocks[number]
        for reader in self._files.drop(number):
            self._given_up[reader].append(number)

    def take_given_up(self, reader: int = 0) -> tuple[int, ...]:
        """Returns the blocks that a reader is to forget, each once."""
        if not self._given_up[reader]:
            return ()
        given_up, self._given_up[reader] = tuple(self._given_up[reader]), []
        return given_up

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
        return len(self._lent.keys() - self._supplied.keys())

    def close(self) -> None:
        """Closes the files that not all readers have got."""
        self._files.close()

    def clear(self) -> None:
        """Forgets all blocks, once there is no reader left. What is lent of them stays."""
        self._blocks.clear()
        self._free.clear()
        self._supplied.clear()
        self._addresses.clear()


class Files:
    """The files of blocks, as long as there is someone who does not have them."""

    def __init__(self, num_readers: int) -> None:
        self._readers = frozenset(range(num_readers))
        # By block: its file, and those who do not have it.
        self._files: dict[int, tuple[int, set[int]]] = {}

    def add(self, block: Block, file: int) -> None:
        """Keeps the file of a new block."""
        self._files[block.number] = file, set(self._readers)

    def of(self, block: Block, reader: int) -> int | None:
        """Returns a block's file, which the caller closes; None if the reader has it."""
        if (found := self._files.get(block.number)) is None or reader not in found[1]:
            return None
        file, without = found
        if len(without) > 1:
            file = os.dup(file)
        else:
            del self._files[block.number]
        without.remove(reader)
        return file

    def drop(self, number: int) -> Iterable[int]:
        """Closes the file of a block; returns those who have it."""
        file, without = self._files.pop(number, (None, set[int]()))
        if file is not None:
            os.close(file)
        return self._readers - without

    def close(self) -> None:
        """Closes all files."""
        while self._files:
            _, (file, _) = self._files.popitem()
            os.close(file)


class Inbox(Box):
    """The blocks of the other process, mapped here."""

    def __init__(self, most_in_use: int) -> None:
        super().__init__()
        self._in_use: set[int] = set()
        self._most_in_use = most_in_use

    def add(self, parcel: Parcel, file: int) -> None:
        """Maps a new block and closes its file."""
        assert parcel.block is not None, "a file is that of a block"  # noqa: S101
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
        memory = memoryview(b"")
        if parcel.block is not None:
            self._in_use.add(parcel.block)
            memory = self._blocks[parcel.block].lend()
        buffers = [
            memory[offset : offset + num_bytes]
            if outbox is None or came_in is None
            else outbox.lend(came_in, offset, num_bytes)
            for offset, num_bytes, came_in in parcel.parts
        ]
        head = buffers.pop(0) if parcel.head is None else parcel.head
        if num_lent >= self._most_in_use:
            buffers = [memoryview(bytearray(buffer)) for buffer in buffers]
        return put_together(head, buffers)

    def leave(self, buffers: list[memoryview]) -> list[memoryview | Part]:
        """Replaces buffers of an object that are in these blocks by their locations, to send only these back.

        The other process must not overwrite a block that is still used here, for example by a function that keeps its
        arguments, so parts of such a block are sent as buffers.

        Args:
            buffers: Those of the object beside its pickle, with no other references to them. They are removed from the
                list.
        """
        left: list[memoryview | Part] = []
        while buffers:
            left.append(self._found(buffers[0]))
            del buffers[0]
        return [self._again(one) if isinstance(one, tuple) else one for one in left]

    def _found(self, buffer: memoryview) -> memoryview | Part:
        """Returns the location of a buffer, or the buffer itself if it is in none of the blocks."""
        places = (self._blocks[number].find(buffer) for number in self._in_use)
        return next((place for place in places if place is not None), buffer)

    def _again(self, part: Part) -> memoryview | Part:
        """Returns a location, or the buffer there if its block is in use."""
        offset, num_bytes, came_in = part
        assert came_in is not None, "a part of a block here"  # noqa: S101
        return part if came_in not in self._lent else self._blocks[came_in].lend()[offset : offset + num_bytes]

    def skip(self, parcel: Parcel) -> None:
        """Ignores an object."""
        if parcel.block is not None:
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
