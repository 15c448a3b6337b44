"""A store that knows who may read, and repeats to everybody what it was told."""

from __future__ import annotations

import http.server
import json
import re
import threading
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from types import TracebackType

LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>lake</Name><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents><Key>{key}</Key>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag><Size>{size}</Size></Contents></ListBucketResult>"""


class Gossip:
    """Serves one object as S3 does, to those who send `token`; all others get `status` and all that they sent.

    Below `/credentials` it is a service for `credentials`.
    """

    def __init__(self, key: str, body: bytes, token: str) -> None:
        self.key, self.body, self.token = key, body, token
        self.credentials: dict[str, str] = {}
        self.status, self.location = 403, ""
        self.refused: list[str] = []
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Gossip:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Gossip

    def do_GET(self) -> None:
        if self.path.startswith("/credentials"):
            self.answer(200, json.dumps(self.store.credentials).encode(), {"Content-Type": "application/json"})
        elif self.headers.get("x-amz-security-token") != self.store.token:
            path = f"{self.path} {unquote(self.path)}"
            said = f"<Error><Code>No</Code><Message>{path} {self.headers}</Message></Error>"
            self.store.refused.append(said)
            headers = {"Location": self.store.location} if self.store.location else {}
            self.answer(self.store.status, said.encode(), headers)
        elif "list-type=2" in self.path:
            text = LISTING.format(key=self.store.key, size=len(self.store.body))
            self.answer(200, text.encode(), {"Content-Type": "application/xml"})
        else:
            self.send_part(self.store.body, re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "bytes=0-")))

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - http.server's names

    def send_part(self, body: bytes, asked: re.Match[str] | None) -> None:
        assert asked is not None
        size = len(body)
        first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        headers = {"Content-Range": f"bytes {first}-{last}/{size}", "ETag": '"1"'}
        headers["Last-Modified"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        self.answer(206, body[first : last + 1], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""
