"""Short messages between two processes, with the files of new blocks."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections import deque
from typing import Any, Literal, NamedTuple

from forebay.pool.memory import Parcel

_HEADER = struct.Struct("=I?")
"""Before each message: its length, and whether a file goes with it."""
_FILE_BYTES = socket.CMSG_LEN(struct.calcsize("i"))
_READ_BYTES = 8192
"""Bytes read at a time, nearly always whole messages."""
_TRUNCATED = int(socket.MSG_CTRUNC)


class Message(NamedTuple):
    """A message between processes, of a few hundred bytes, since large parts of objects are in blocks."""

    kind: Literal["job", "task", "ready", "result", "failure", "end"]
    number: int = 0
    """The number of the task."""
    parcel: Parcel | None = None
    about: Any = None
    """The rows of the batch, or why a worker ends: plain tuples, numbers and text."""
    returned: tuple[int, ...] = ()
    """Blocks of the receiver that the sender no longer uses, as `Inbox.return_unused` returns them."""
    given_up: tuple[int, ...] = ()
    """Blocks of the sender that it will not use again."""


class Channel:
    """One end of a connection; sending and receiving block."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def fileno(self) -> int:
        """Returns the file descriptor, for `select`."""
        return self.end.fileno()

    def send(self, message: Message, file: int | None = None) -> None:
        """Sends a message and closes the file that goes with it.

        Raises:
            OSError: the other process is gone.
        """
        data = _packed(message, has_file=file is not None)
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
        """Waits for a message and its file, which the caller closes; None once the other process is gone.

        Raises:
            OSError: the file could not be received, or there was no message within the time limit of the socket.
        """
        file: int | None = None
        body = b""
        try:
            data, files, flags, _ = socket.recv_fds(self.end, _HEADER.size, 1)
            _check_files(flags)
            file = files[0] if files else None
            data += self._receive(_HEADER.size - len(data)) if data else b""
            body = self._receive(_HEADER.unpack(data)[0]) if len(data) == _HEADER.size else b""
        except ConnectionError:
            return None
        finally:
            # Nobody takes the file of a message that did not arrive as a whole.
            if file is not None and not body:
                os.close(file)
        return (_message(body), file) if body else None

    def _receive(self, num_bytes: int) -> bytes:
        """Waits for `num_bytes` bytes; returns none if the other process ends before."""
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


class BufferedChannel(Channel):
    """One end of a connection that reads several messages at once.

    `select` does not report messages that were read with another one, so a caller must take all of them.
    """

    def __init__(self, end: socket.socket, *, waits: bool = True) -> None:
        super().__init__(end)
        self._waits = waits
        # Read but not taken yet. Files come with the first bytes of their messages, or before.
        self._read = b""
        self._files: deque[int] = deque()
        self.is_at_end = False
        """Whether the other process is gone and everything that it sent was received."""
        # Whether the socket was empty after the last read, as far as that tells, and whether a message was in it.
        self._is_empty = self._has_had_one = False

    def receive(self) -> tuple[Message, int | None] | None:
        """Returns a message and its file, which the caller closes.

        Returns None once the other process is gone, and, on an end that does not wait, if there is no complete message
        or, after one, probably none: `select` then reports what else there is.
        """
        while True:
            end = _HEADER.size
            if len(self._read) >= end:
                num_bytes, has_file = _HEADER.unpack_from(self._read)
                end += num_bytes
                if len(self._read) >= end:
                    body, self._read = self._read[_HEADER.size : end], self._read[end:]
                    self._has_had_one = True
                    return _message(body), self._files.popleft() if has_file else None
            if self.is_at_end:
                return None
            if self._is_empty and self._has_had_one:
                self._is_empty = False
                return None
            size = max(_READ_BYTES, end - len(self._read))
            try:
                data, ancillary, flags, _ = self.end.recvmsg(size, _FILE_BYTES)
            except BlockingIOError:
                return None
            except ConnectionError:
                data, ancillary, flags = b"", [], 0
            _check_files(flags)
            if ancillary:
                self._files.extend(struct.unpack("i", file)[0] for _, _, file in ancillary)
            self.is_at_end = not data
            self._is_empty, self._has_had_one = not self._waits and 0 < len(data) < size, False
            self._read += data

    def close(self) -> None:
        """Closes this end, which the other process notices, and the files that were not taken."""
        while self._files:
            os.close(self._files.popleft())
        super().close()


class LoopChannel(BufferedChannel):
    """The loop's end of the connection to a worker, which never blocks.

    The worker blocks until the loop has room for what it sends. If the loop blocked, too, neither would receive. What
    does not fit is kept until `flush`.
    """

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, waits=False)
        end.setblocking(False)
        self._unsent: deque[tuple[bytes | memoryview, int | None]] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether something is kept for `flush`."""
        return bool(self._unsent)

    def send(self, message: Message, file: int | None = None) -> None:
        """Sends a message, or keeps the part that does not fit; closes the message's file once it is sent.

        Raises:
            OSError: the other process is gone.
        """
        self._unsent.append((_packed(message, has_file=file is not None), file))
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
            # The file was sent with the first byte. It is forgotten before it is closed: after a Ctrl-C in between, its
            # number would be closed again, which may be that of another file by then.
            if num_sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = memoryview(data)[num_sent:], None
            if file is not None:
                os.close(file)

    def close(self) -> None:
        """Closes this end, which the other process notices, and the files that were not sent or taken."""
        self._drop_unsent()
        super().close()

    def _drop_unsent(self) -> None:
        while self._unsent:
            _, file = self._unsent.popleft()
            if file is not None:
                os.close(file)


def _check_files(flags: int) -> None:
    """Raises an error if the kernel dropped a file because this process has too many open."""
    if flags & _TRUNCATED:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _packed(message: Message, *, has_file: bool) -> bytes:
    """Returns the bytes of a message."""
    body = pickle.dumps(_plain(message), protocol=5)
    return _HEADER.pack(len(body), has_file) + body


def _plain(message: Message) -> tuple[Any, ...]:
    """Returns a message as tuples, which take a tenth of the time to pickle that classes take."""
    kind, number, parcel, *rest = message
    return (kind, number, parcel and tuple(parcel), *rest)


def _message(body: bytes) -> Message:
    """Returns the message from its bytes."""
    kind, number, parcel, about, returned, given_up = pickle.loads(body)  # noqa: S301 - from a process of our own
    return Message(kind, number, None if parcel is None else Parcel(*parcel), about, returned, given_up)
