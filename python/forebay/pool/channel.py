"""Short messages between two processes, with the files of new blocks."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections import deque
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
    """One end of a connection, which waits to send and to receive."""

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
        data = _packed(message)
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
        return _message(body), file

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


class LoopChannel(Channel):
    """The loop's end of the connection to a worker, which never waits.

    The worker waits until the loop has room for what it sends. Were the loop to wait for the worker, too, neither would
    receive. What does not fit is kept, until `flush`.
    """

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        end.setblocking(False)
        self._unsent: deque[tuple[bytes | memoryview, int | None]] = deque()
        self._begun = bytearray()
        self._file: int | None = None
        self._num_bytes = _LENGTH.size
        self.is_at_end = False
        """Whether the other process is gone, and all that it had sent received."""

    @property
    def has_unsent(self) -> bool:
        """Whether something is kept for `flush`."""
        return bool(self._unsent)

    def send(self, message: Message, file: int | None = None) -> None:
        """Sends a message, or keeps what does not fit of it; closes the file that goes with it once it is sent.

        Raises:
            OSError: the other process is gone.
        """
        self._unsent.append((_packed(message), file))
        self.flush()

    def flush(self) -> None:
        """Sends what was kept, as far as it fits.

        Raises:
            OSError: the other process is gone.
        """
        while self._unsent:
            data, file = self._unsent[0]
            try:
                num_sent = self.end.send(data) if file is None else socket.send_fds(self.end, [data], [file])
            except BlockingIOError:
                return
            except OSError:
                self._drop_unsent()
                raise
            if file is not None:
                # It went with the first byte.
                os.close(file)
            if num_sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = memoryview(data)[num_sent:], None

    def receive(self) -> tuple[Message, int | None] | None:
        """Returns a message and the file with it, which the caller closes; None where no whole message is there."""
        while not self.is_at_end:
            num_missing = self._num_bytes - len(self._begun)
            try:
                if self._begun:
                    data = self.end.recv(num_missing)
                else:
                    data, files, _, _ = socket.recv_fds(self.end, num_missing, 1)
                    self._file = files[0] if files else None
            except BlockingIOError:
                return None
            except ConnectionError:
                data = b""
            self.is_at_end = not data
            self._begun += data
            if len(data) < num_missing:
                continue
            if self._num_bytes == _LENGTH.size:
                self._num_bytes += _LENGTH.unpack(self._begun)[0]
                continue
            message, file = _message(memoryview(self._begun)[_LENGTH.size :]), self._file
            self._begun, self._file, self._num_bytes = bytearray(), None, _LENGTH.size
            return message, file
        return None

    def close(self) -> None:
        """Closes this end, which the other process notices, and the files that were not sent or taken."""
        self._drop_unsent()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()

    def _drop_unsent(self) -> None:
        while self._unsent:
            _, file = self._unsent.popleft()
            if file is not None:
                os.close(file)


def _packed(message: Message) -> bytes:
    """Returns a message as it is sent."""
    body = pickle.dumps(_plain(message), protocol=5)
    return _LENGTH.pack(len(body)) + body


def _plain(message: Message) -> tuple[Any, ...]:
    """Returns a message as tuples, which are pickled in a tenth of the time of classes."""
    kind, number, parcel, *rest = message
    if parcel is not None:
        block, num_bytes, parts = parcel
        return kind, number, (block, num_bytes, tuple(map(tuple, parts))), *rest
    return tuple(message)


def _message(body: bytes | memoryview) -> Message:
    """Returns the message that was made plain and pickled."""
    kind, number, parcel, *rest = pickle.loads(body)  # noqa: S301 - from a process of our own
    if parcel is not None:
        block, num_bytes, parts = parcel
        parcel = Parcel(block, num_bytes, tuple(map(Part._make, parts)))
    return Message(kind, number, parcel, *rest)
