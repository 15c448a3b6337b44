"""Servers that answer nothing themselves: one that stalls, and a proxy."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, ClassVar

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class StallingServer:
    """Serves the footer and the page index of one Parquet object, and never answers requests of its data."""

    def __init__(self, path: Path) -> None:
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
        # Pages follow the dictionary, and the indexes follow the last page.
        end = max(column.data_page_offset for column in columns)
        self.is_stalled = threading.Event()
        self._let_go = threading.Event()
        settings = {"body": path.read_bytes(), "data_end": end, "is_stalled": self.is_stalled, "let_go": self._let_go}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), settings))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/{path.name}"

    def __enter__(self) -> StallingServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    body: ClassVar[bytes]
    data_end: ClassVar[int]
    is_stalled: ClassVar[threading.Event]
    let_go: ClassVar[threading.Event]

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"])
        size = len(self.body)
        first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        if 0 < first <= self.data_end or last < self.data_end:
            self.is_stalled.set()
            self.let_go.wait()
            self.close_connection = True
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(self.body[first : last + 1])

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


class Tunnel(socketserver.ThreadingTCPServer):
    """A proxy that leads whoever asks by CONNECT to one port of this machine, and keeps what they asked for."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnelled)
        self.port = port
        self.names: list[str] = []
        self.credentials: set[str] = set()
        self.is_open = True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Tunnel:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


class _Tunnelled(socketserver.StreamRequestHandler):
    server: Tunnel
    # What follows the request is for the other side.
    rbufsize = 0

    def handle(self) -> None:
        self.server.names.append(self.rfile.readline().decode().split()[1])
        while header := self.rfile.readline().strip():
            if header.lower().startswith(b"proxy-authorization:"):
                self.server.credentials.add(header.decode().partition(":")[2].strip())
        if not self.server.is_open:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server.port)) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=(there, self.connection), daemon=True)
            back.start()
            _pass_on(self.connection, there)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
