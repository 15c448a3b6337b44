"""Who answers the requests that a `FaultProxy` passes on: another server, or a dict of objects in memory."""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import MutableMapping

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "server", "date"}


@dataclass
class Asked:
    """A request: what the log has of it, and what upstreams are asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    started: float = 0.0
    ended: float = 0.0
    status: int = 0
    """0 where no answer was sent."""
    num_bytes: int = 0
    """Of the body, as far as it was sent."""
    hidden: tuple[str, ...] = ()
    """Headers that the last server does not see."""

    @property
    def shown(self) -> dict[str, str]:
        """The headers that the last server sees: those before it, which check signatures, see all."""
        return {name: value for name, value in self.headers.items() if name not in self.hidden}

    @property
    def range(self) -> tuple[int, int] | None:
        """The first byte asked for and the one after the last; `None` for suffixes and whole objects."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(found[1]), int(found[2]) + 1) if found else None


@dataclass
class Answer:
    """What an upstream says. Names of headers are small; without a length the body ends with the connection."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class Upstream(Protocol):
    """Whoever answers."""

    def ask(self, asked: Asked) -> Answer: ...

    def close(self) -> None: ...


class Remote:
    """Another server, with the connections to it that are idle."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._place = (parts.hostname or "", parts.port or 80)
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Closes the connections."""
        while self._idle:
            self._idle.pop().close()

    def ask(self, asked: Asked) -> Answer:
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            answer = self._ask(connection, asked)
        except (http.client.HTTPException, OSError):
            # A connection that was kept may have been closed meanwhile: nothing has been answered then.
            connection.close()
            connection = self._connect()
            answer = self._ask(connection, asked)
        self._idle.append(connection)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self._place, timeout=60)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _ask(self, connection: http.client.HTTPConnection, asked: Asked) -> Answer:
        connection.putrequest(asked.method, asked.path, skip_host=True, skip_accept_encoding=True)
        for name, value in asked.shown.items():
            if name not in HOP_BY_HOP and name != "content-length":
                connection.putheader(name, value)
        if asked.body or asked.method in ("PUT", "POST"):
            connection.putheader("content-length", str(len(asked.body)))
        connection.endheaders(asked.body or None)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        body = response.read()
        kept = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
        if asked.method != "HEAD":
            kept["content-length"] = str(len(body))
        return Answer(response.status, kept, body)


class Objects:
    """Objects in memory, as a web server has them: ranges, preconditions, an e-tag of the content."""

    def __init__(self, objects: MutableMapping[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects

    def close(self) -> None:
        """Holds nothing."""

    def ask(self, asked: Asked) -> Answer:
        body = self.objects.get(unquote(urlsplit(asked.path).path).lstrip("/"))
        if body is None:
            return refusal(404)
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        if asked.shown.get("if-match", tag) != tag:
            return refusal(412)
        answer = Answer(200, {"etag": tag, "accept-ranges": "bytes", "content-length": str(len(body))}, body)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.shown.get("range", ""))
        if wanted is not None:
            first = int(wanted[1]) if wanted[1] else max(len(body) - int(wanted[2]), 0)
            end = min(int(wanted[2]) + 1, len(body)) if wanted[1] and wanted[2] else len(body)
            if first >= end:
                return Answer(416, {"content-range": f"bytes */{len(body)}", "content-length": "0"})
            answer.status, answer.body = 206, body[first:end]
            answer.headers["content-range"] = f"bytes {first}-{end - 1}/{len(body)}"
            answer.headers["content-length"] = str(end - first)
        return answer


def refusal(status: int, body: bytes = b"") -> Answer:
    """Returns an answer with nothing but a status."""
    return Answer(status, {"content-length": str(len(body))}, body)
