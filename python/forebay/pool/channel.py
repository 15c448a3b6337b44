"""Short messages between two processes, with the files of new blocks."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from typing import Any, Literal, NamedTuple

from forebay.pool.memory import Parcel, Part

_LENGTH = struct.Struct("I")


class Message(NamedTuple):
    """What one process tells the other. Objects are in blocks; a message is a few hundred bytes."""

    kind: Literal["job", "task", "ready", "result", "failure"]
    number: int = 0
    """Of the task."""
    parcel: Parcel | None = None
    about: Any = None
    """Which rows they are: plain tuples and numbers."""
    returned: tuple[int, ...] = ()
    """Blocks of the receiver that the sender uses no more."""
    given_up: tuple[int, ...] = ()
    """Blocks of the sender that come no more."""


class Channel:
    """One end of a connection."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def fileno(self) -> int:
        """Returns what `select` waits for."""
        return self.end.fileno()

    def send(self, message: Message, file: int | None = None) -> None:
        """Sends a message and closes the file that goes with it.

        Raises:
            OSError: the other process is gone.
        """
        body = pickle.dumps(_plain(message), protocol=5)
        data = _LENGTH.pack(len(body)) + body
        if file is None:
            self.end.sendall(data)
            return
        try:
            sent = socket.send_fds(self.end, [data], [file])
        finally:
            os.close(file)
        if sent < len(data):
            self.end.sendall(data[sent:])

    def receive(self) -> tuple[Message, int | None] | None:
        """Waits for a message and the file with it, which the caller closes; None once the other process is gone."""
        try:
            data, files, _, _ = socket.recv_fds(self.end, _LENGTH.size, 1)
            file = files[0] if files else None
            data += self._receive(_LENGTH.size - len(data)) if data else b""
            body = self._receive(_LENGTH.unpack(data)[0]) if len(data) == _LENGTH.size else b""
        except ConnectionError:
            return None
        if not body:
            if file is not None:
                os.close(file)
            return None
        return _message(pickle.loads(body)), file  # noqa: S301 - from a process of our own

    def _receive(self, num_bytes: int) -> bytes:
        """Waits for so many bytes; none if the other process ends before."""
        parts = bytearray()
        while len(parts) < num_bytes:
            part = self.end.recv(num_bytes - len(parts))
            if not part:
                return b""
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Closes this end, which the other process notices."""
        self.end.close()


def _plain(message: Message) -> tuple[Any, ...]:
    """Returns a message as tuples, which are pickled in a tenth of the time of classes."""
    kind, number, parcel, *rest = message
    if parcel is not None:
        block, num_bytes, parts = parcel
        return kind, number, (block, num_bytes, tuple(map(tuple, parts))), *rest
    return tuple(message)


def _message(plain: tuple[Any, ...]) -> Message:
    """Returns the message that was made plain."""
    kind, number, parcel, *rest = plain
    if parcel is not None:
        block, num_bytes, parts = parcel
        parcel = Parcel(block, num_bytes, tuple(map(Part._make, parts)))
    return Message(kind, number, parcel, *rest)
