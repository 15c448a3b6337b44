"""Lets one rank of a replica read for the others on its host, and hand them its batches.

Batches go through shared memory, as between the processes of `map`. Nothing depends on it: what comes next follows from
the position, so a rank that gets no more batches, because the reading rank is gone, has left its loop or waits for
something, goes on reading by itself; and a rank that takes no more batches is sent none.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from forebay.distributed import gather
from forebay.passes import Cursor
from forebay.stages import Alone, Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.passes import Run
    from forebay.pool.channel import Channel
    from forebay.stages import Batches, Reading

SECONDS_TO_WAIT_FOR_RANK = 60.0
"""How long a rank waits for another rank of its replica before it goes on without it."""

MOST_UNDER_WAY = 4
"""The most batches that a rank was given and has not taken; beyond that the reading rank waits for it."""

MOST_IN_USE = 4
"""The most batches that a loop may keep in shared memory before it gets copies."""


class Party(Alone):
    """The ranks of a replica on one host, for one iteration."""

    def __init__(self, read: Reading, share: int, distributed: Any) -> None:
        super().__init__(read)
        self._share = share
        self._distributed = distributed
        self._has_met = False
        self._takers: list[Taker] = []
        self._giver: Giver | None = None

    def meeting(self, agreeing: Iterator[float], start: Cursor, *, takes_part: bool = True) -> Iterator[float]:
        """Yields pauses until the ranks agree and know each other. All must call this, even those that read alone."""
        yield from agreeing
        if self._has_met:
            return
        self._has_met = True
        host = number = 0
        with ExitStack() as stack:
            if takes_part:
                try:
                    host = _host()
                    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                    # An abstract name, which is in no folder and disappears with the socket.
                    number = int.from_bytes(os.urandom(7), "little")
                    listener.bind(_address(number))
                    listener.listen()
                except OSError:
                    # This rank reads by itself. The others wait to be told so.
                    takes_part = False
            # Packed streams of one share may have different positions.
            mine = [int(takes_part), host, self._share, *start]
            table = yield from gather(self._distributed, [*mine, number])
            if not takes_part:
                return
            rank = int(self._distributed.get_rank())
            together = [other for other, row in enumerate(table) if row[:-1] == mine]
            if together[0] == rank:
                self._takers = [Taker(end) for end in _accepted(listener, len(together) - 1)]
            else:
                with suppress(OSError):
                    self._giver = Giver(_connected(table[together[0]][-1]))

    @contextmanager
    def reading(self, run: Run) -> Iterator[Batches]:
        """Begins a pass, with the batches of the reading rank if there is one."""
        if self._giver is not None and self._giver.is_there:
            with ExitStack() as stack:
                yield Given(self._giver, run, lambda rest: stack.enter_context(self._read(rest)))
        else:
            with self._read(run) as batches:
                yield Giving(batches, self._takers) if self._takers else batches

    def close(self) -> None:
        """Closes the connections to the other ranks."""
        for taker in self._takers:
            taker.close()
        if self._giver is not None:
            self._giver.close()


class Taker:
    """A rank that is given batches, as seen by the reading rank."""

    def __init__(self, end: socket.socket) -> None:
        from forebay.pool.channel import Channel
        from forebay.pool.memory import Outbox

        self._channel = Channel(end)
        self._outbox = Outbox()
        self._num_under_way = 0
        self._is_there = True

    def has_room(self, seconds: float = 0) -> bool:
        """Whether a batch can be given; waits up to `seconds` for it."""
        while self._is_there:
            is_full = self._num_under_way >= MOST_UNDER_WAY
            if not _is_readable(self._channel, seconds if is_full else 0):
                return not is_full
            try:
                received = self._channel.receive()
            except OSError:
                received = None
            if received is None:
                self.close()
            else:
                self._num_under_way -= 1
                self._outbox.take_back(received[0].returned)
        return True

    def give(self, value: object, about: Any) -> None:
        """Hands over a batch; if too many are under way, waits first, up to `SECONDS_TO_WAIT_FOR_RANK`."""
        from forebay.pool.channel import Message

        if not self.has_room(SECONDS_TO_WAIT_FOR_RANK):
            self.close()
        if not self._is_there:
            return
        try:
            parcel, file = self._outbox.pack(value)
            given_up = self._outbox.take_given_up()
            self._num_under_way += 1
            self._channel.send(Message("task", parcel=parcel, about=about, given_up=given_up), file)
        except OSError:
            # It is gone, or there is no memory or descriptor left to share.
            self.close()

    def close(self) -> None:
        """Stops giving batches."""
        self._is_there = False
        self._channel.close()


class Giver:
    """The reading rank, as seen by a rank that is given batches."""

    def __init__(self, end: socket.socket) -> None:
        from forebay.pool.channel import Channel
        from forebay.pool.memory import Inbox

        self._channel = Channel(end)
        self._inbox = Inbox(MOST_IN_USE)
        self.is_there = True

    def is_ready(self) -> bool:
        """Whether there is something to take."""
        return _is_readable(self._channel, 0)

    def take(self) -> tuple[Any, Any]:
        """Waits for a batch, up to `SECONDS_TO_WAIT_FOR_RANK`; returns it and the `about` of its message.

        Raises:
            OSError: no batch came.
        """
        from forebay.pool.channel import Message

        received = self._channel.receive() if _is_readable(self._channel, SECONDS_TO_WAIT_FOR_RANK) else None
        if received is None:
            raise ConnectionResetError("the rank that reads is gone, or waits for something")
        message, file = received
        assert message.parcel is not None, "a batch is in a parcel"  # noqa: S101
        self._inbox.forget(message.given_up)
        if file is not None:
            self._inbox.add(message.parcel, file)
        value = self._inbox.open(message.parcel)
        with suppress(OSError):
            # If the reading rank is gone, the next wait for a batch notices.
            self._channel.send(Message("ready", returned=tuple(self._inbox.return_unused())))
        return value, message.about

    def close(self) -> None:
        """Stops taking batches."""
        self.is_there = False
        self._channel.close()


class Giving:
    """Batches that are also handed to other ranks."""

    stream = None

    def __init__(self, batches: Batches, takers: list[Taker]) -> None:
        self._batches = batches
        self._takers = takers

    def is_ready(self) -> bool:
        """Whether all takers have room, and a batch is ready or none will come."""
        return all(taker.has_room() for taker in self._takers) and self._batches.is_ready()

    def __next__(self) -> Item:
        item = next(self._batches, None)
        for taker in self._takers:
            taker.give(None, None) if item is None else taker.give(item.value, (item.num_rows, item.first, *item.after))
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """Closes the stage before."""
        self._batches.close()


class Given:
    """Batches of the reading rank for as long as it reads; then those that this rank reads."""

    stream = None

    def __init__(self, giver: Giver, run: Run, read: Callable[[Run], Batches]) -> None:
        self._giver = giver
        self._run = run
        self._read = read
        self._own: Batches | None = None

    def is_ready(self) -> bool:
        """Whether a batch is ready, or an end, or the reading rank is gone."""
        return self._giver.is_ready() if self._own is None else self._own.is_ready()

    def __next__(self) -> Item:
        if self._own is None:
            try:
                value, about = self._giver.take()
            except OSError:
                self._giver.close()
                self._own = self._read(self._run)
            else:
                if about is None:
                    raise StopIteration
                num_rows, first, *after = about
                item = Item(value, num_rows, first, Cursor(*after))
                self._run = self._run.behind(item.after)
                return item
        return next(self._own)

    def close(self) -> None:
        """Closes this rank's own read."""
        if self._own is not None:
            self._own.close()


def _host() -> int:
    """Returns a number for kernel, network and user, equal for processes that can use each other's sockets."""
    import hashlib  # loads OpenSSL, so not when Forebay is imported

    with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123 - of the kernel
        boot = file.read()
    network = os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116
    digest = hashlib.blake2b(boot + f"{network} {os.geteuid()}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def _address(number: int) -> bytes:
    return b"\0forebay-%x" % number


def _accepted(listener: socket.socket, num_ranks: int) -> Iterator[socket.socket]:
    """Yields connections to up to `num_ranks` ranks, those that come in time."""
    deadline = time.monotonic() + SECONDS_TO_WAIT_FOR_RANK
    while num_ranks:
        listener.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            end, _ = listener.accept()
        except OSError:
            # They did not come in time, or there is no descriptor left for them. Those that are left out notice.
            return
        if not _is_of_this_user(end):
            end.close()
            continue
        num_ranks -= 1
        end.settimeout(SECONDS_TO_WAIT_FOR_RANK)
        yield end


def _connected(number: int) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    try:
        end.settimeout(SECONDS_TO_WAIT_FOR_RANK)
        end.connect(_address(number))
    except BaseException:
        end.close()
        raise
    if not _is_of_this_user(end):
        end.close()
        raise ConnectionRefusedError("another user listens there")
    return end


def _is_of_this_user(end: socket.socket) -> bool:
    """Whether the other end is a process of this user: what it sends is unpickled."""
    _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())


def _is_readable(channel: Channel, seconds: float) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
