"""A proxy that does to answers what networks and stores do to them: scriptable, seeded, with a log of all requests.

A `FaultProxy` asks an upstream, which is a server (`Remote`) or a dict of objects in memory (`Objects`), and sends what
comes back, unless a `Fault` takes the request: then it is late, refused, cut, stalled, changed or never sent.
Faults are taken in their order, each as often as it says. `Host` passes through, so signatures stay valid.

    with FaultProxy(Objects({"a.parquet": body})) as proxy:
        proxy.faults = [Fault(status=503, times=2), Fault(cut_after=100, ending="reset", skip=3)]
        ...
        assert proxy.count(status=503) == 2

It is a program, too, for those who must not share its interpreter:
`fault_proxy.py UPSTREAM '[{"status": 503, "chance": 0.1, "times": null}]'` prints its URL and serves until
its input ends. Only the standard library is used. Bodies are held in memory, so objects should be small. Who answers
is in `upstreams.py`, what may be changed of an answer in `fault_edits.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import random
import re
import select
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from fault_edits import EDITS
from upstreams import Answer, Asked, Remote, refusal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from fault_edits import Edit
    from upstreams import Upstream

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST, and what was not sent is dropped."""
STEPS_PER_SECOND = 50


@dataclass(kw_only=True)
class Fault:
    """What goes wrong, with which requests, and how often."""

    times: int | None = 1
    """Of the requests that fit, this many; `None` for all."""
    skip: int = 0
    """Requests that fit and pass before the first one is taken."""
    seconds: float | None = None
    """Requests are taken for so long after the first one."""
    chance: float = 1.0
    """With which a request that fits is taken, by the proxy's seed."""
    method: str = "GET"
    where: str = ".parquet"
    """Of requests whose paths hold this."""
    covering: int | None = None
    """Of requests whose range holds this byte."""

    latency: float = 0.0
    """Seconds before the request is passed on."""
    jitter: float = 0.0
    """Seconds at most that are added to the latency."""
    status: int | None = None
    """Answered instead of what the upstream would say, with `headers` and `body`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    bytes_per_second: float | None = None
    """Of all bodies together that the fault has taken: a link."""
    cut_after: int | None = None
    """Bytes of the body after which comes the `ending`; none at all, if negative, not even the headers."""
    ending: Literal["reset", "close", "stall"] = "close"
    hide: tuple[str, ...] = ()
    """Headers of the request that the last server does not see."""
    edit: Edit | None = None
    """Changes the answer of the upstream."""
    before: Callable[[], object] | None = None
    """Called before the request is passed on."""
    outage: float | None = None
    """Seconds for which every connection is reset and none accepted."""

    num_taken: int = 0
    _link_free: float = 0.0
    _since: float | None = None

    def takes(self, asked: Asked, generator: random.Random) -> bool:
        """Counts a request that fits; returns whether it goes wrong."""
        if asked.method != self.method or self.where not in unquote(asked.path):
            return False
        if self.covering is not None:
            first, end = asked.range or (0, 0)
            if not first <= self.covering < end:
                return False
        if self.times is not None and self.num_taken >= self.times:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.chance < 1 and generator.random() >= self.chance:
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if self.seconds is not None and now - self._since > self.seconds:
            return False
        self.num_taken += 1
        return True


class FaultProxy:
    """The server: one thread for each connection."""

    def __init__(self, upstream: Upstream, seed: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self.faults: list[Fault] = []
        self.log: list[Asked] = []
        self.seed(seed)
        self._context = context
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._under_way = 0
        self.most_under_way = 0
        self._let_go = threading.Event()
        self._outage: threading.Timer | None = None
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}"
        self._is_open = True

    def __enter__(self) -> FaultProxy:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._let_go.set()
        self._close_listener()
        self._reset_all()
        self._thread.join()
        self.upstream.close()

    def seed(self, seed: int) -> None:
        """Makes the faults' chances those of this seed."""
        self._generator = random.Random(seed)

    def clear(self) -> None:
        """Forgets what was asked and what was to go wrong, and ends all stalls and outages."""
        if self._outage is not None:
            self._outage.cancel()
            self._end_outage()
            self._outage = None
        self.faults = []
        self.log = []
        self.most_under_way = 0
        self._let_go.set()
        self._let_go = threading.Event()

    def count(self, *, where: str = "", method: str | None = None, status: int | None = None) -> int:
        """Returns how many requests there were."""
        return sum(
            where in unquote(asked.path) and method in (None, asked.method) and status in (None, asked.status)
            for asked in list(self.log)
        )

    def num_bytes(self) -> int:
        """Returns the bytes of all bodies."""
        return sum(asked.num_bytes for asked in list(self.log))

    def num_taken(self) -> int:
        """Returns how many requests went wrong."""
        return sum(fault.num_taken for fault in self.faults)

    # What follows is called by threads of the proxy.

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
        return listener

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection, address = self._listener.accept()
            except OSError:
                # Closed, by the end or by an outage, which opens another.
                time.sleep(0.005)
                continue
            threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: object) -> None:
        # Clients that go away are what tests are about.
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            with self._lock:
                self._connections.add(connection)
            try:
                _Handler(connection, address, self)  # type: ignore[arg-type]
            finally:
                with self._lock:
                    self._connections.discard(connection)
                connection.close()

    def _close_listener(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _reset_all(self) -> None:
        with self._lock:
            for connection in self._connections:
                reset(connection)

    def begin_outage(self, seconds: float) -> None:
        with self._lock:
            if self._listener.fileno() == -1:
                return
            self._close_listener()
        self._reset_all()
        self._outage = threading.Timer(seconds, self._end_outage)
        self._outage.daemon = True
        self._outage.start()

    def _end_outage(self) -> None:
        with self._lock:
            if self._is_open and self._listener.fileno() == -1:
                self._listener = self._listen(self.port)

    @contextlib.contextmanager
    def noted(self, asked: Asked) -> Iterator[Fault | None]:
        """Logs a request while it is under way; gives the fault that takes it."""
        with self._lock:
            self.log.append(asked)
            taken = next((fault for fault in self.faults if fault.takes(asked, self._generator)), None)
            asked.hidden = taken.hide if taken is not None else ()
            self._under_way += 1
            self.most_under_way = max(self.most_under_way, self._under_way)
        asked.started = time.monotonic()
        try:
            yield taken
        finally:
            asked.ended = time.monotonic()
            with self._lock:
                self._under_way -= 1

    def pause(self, fault: Fault) -> None:
        """Waits as long as a fault makes an answer late."""
        with self._lock:
            seconds = fault.latency + fault.jitter * self._generator.random()
        if seconds:
            self._let_go.wait(seconds)

    def transmit(self, fault: Fault, num_bytes: int) -> None:
        """Waits until bytes have passed the link of a fault."""
        rate = fault.bytes_per_second or 1.0
        with self._lock:
            fault._link_free = max(fault._link_free, time.monotonic()) + num_bytes / rate
            free = fault._link_free
        self._let_go.wait(max(free - time.monotonic(), 0))

    def stall(self, connection: socket.socket) -> None:
        """Waits until the client goes away, or the faults are cleared."""
        let_go = self._let_go
        # `select` refuses descriptors from 1,024 on.
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        while not let_go.is_set() and not poll.poll(50):
            pass


def reset(connection: socket.socket) -> None:
    """Makes whoever reads from a connection end it, by RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.shutdown(socket.SHUT_RD)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    server: FaultProxy  # type: ignore[assignment]

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        # To a proxy that it was told of, a client names the server, too.
        path = re.sub("^http://[^/]+", "", self.path)
        asked = Asked(self.command, path, headers, self.rfile.read(int(headers.get("content-length") or 0)))
        with self.server.noted(asked) as fault:
            self._answer(asked, fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - named by the library

    def _answer(self, asked: Asked, fault: Fault | None) -> None:
        if fault is None:
            self._send(asked, self._ask(asked), None)
            return
        self.server.pause(fault)
        if fault.before is not None:
            fault.before()
        if fault.outage is not None:
            self.server.begin_outage(fault.outage)
            self._end("reset")
        elif fault.cut_after is not None and fault.cut_after < 0:
            self._end(fault.ending)
        elif fault.status is not None:
            headers = {name.lower(): value for name, value in fault.headers.items()}
            answer = Answer(fault.status, {"content-length": str(len(fault.body))} | headers, fault.body)
            self._send(asked, answer, fault)
        else:
            answer = self._ask(asked)
            if fault.edit is not None:
                fault.edit(answer)
            self._send(asked, answer, fault)

    def _ask(self, asked: Asked) -> Answer:
        try:
            return self.server.upstream.ask(asked)
        except (http.client.HTTPException, OSError) as error:
            return refusal(502, str(error).encode())

    def _send(self, asked: Asked, answer: Answer, fault: Fault | None) -> None:
        asked.status = answer.status
        self.send_response_only(answer.status, _phrase(answer.status))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "content-length" not in answer.headers:
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        body = memoryview(answer.body)
        is_cut = fault is not None and fault.cut_after is not None
        if fault is not None and is_cut:
            body = body[: fault.cut_after]
        for piece in self._pieces(body, fault):
            self.wfile.write(piece)
            asked.num_bytes += len(piece)
            if fault is not None and fault.bytes_per_second:
                self.wfile.flush()
        if fault is not None and is_cut:
            self.wfile.flush()
            self._end(fault.ending)
        elif "content-length" in answer.headers and int(answer.headers["content-length"]) != len(answer.body):
            self.close_connection = True

    def _pieces(self, body: memoryview, fault: Fault | None) -> Iterator[memoryview]:
        if fault is None or not fault.bytes_per_second:
            yield body
            return
        step = max(int(fault.bytes_per_second / STEPS_PER_SECOND), 1)
        for start in range(0, len(body), step):
            piece = body[start : start + step]
            self.server.transmit(fault, len(piece))
            yield piece

    def _end(self, ending: str) -> None:
        self.close_connection = True
        if ending == "stall":
            self.server.stall(self.connection)
        elif ending == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def finish(self) -> None:
        # By a reset the last bytes may have nowhere to go.
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def main() -> None:
    """Serves an upstream with the faults of the command line until the input ends."""
    upstream, faults, *seed = sys.argv[1:]
    with FaultProxy(Remote(upstream), int(seed[0]) if seed else 0) as proxy:
        proxy.faults = [fault_of(given) for given in json.loads(faults)]
        sys.stdout.write(f"{proxy.url}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            given = json.loads(line)
            said = {"requests": len(proxy.log), "faults": proxy.num_taken(), "bytes": proxy.num_bytes()}
            proxy.clear()
            proxy.faults = [fault_of(each) for each in given]
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


def fault_of(given: dict[str, object]) -> Fault:
    """Makes a fault of JSON, in which a body is text and an edit its name."""
    values = dict(given)
    values["body"] = str(values.get("body", "")).encode()
    if "edit" in values:
        values["edit"] = EDITS[str(values["edit"])]()
    if "hide" in values:
        values["hide"] = tuple(values["hide"])  # type: ignore[arg-type]
    return Fault(**values)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
