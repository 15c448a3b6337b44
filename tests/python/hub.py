"""A Hugging Face Hub for tests: repositories, buckets, signed URLs on another origin, faults on request, and a log.

It has the routes that clients read by, and the headers that they rely on; `datasets` and `huggingface_hub` work on it.
Files that end in `.parquet` are large ones, which the Hub resolves to signed URLs; it sends all others itself.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.server
import json
import os
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    import pytest

TOKEN = "hf_s3cr3tOfTheTests"
"""A token that sees everything."""

STRANGER = "hf_someb0dyElse"
"""A token that is known, and sees what is public."""

PAGE_SIZE = 1000

ANY_HUB = r"https://huggingface\.co|http://127\.0\.0\.1:\d+"
"""The Hub that clients ask by default, or that of the test that imported them."""


@dataclass
class Request:
    """One request and its answer."""

    kind: str
    """`api`, `resolve` or `cdn`."""
    method: str
    path: str
    range: str | None
    has_token: bool
    started: float
    ended: float = 0.0
    status: int = 0
    num_bytes: int = 0
    referer: str | None = None
    """The URL that led to it."""


@dataclass
class Fault:
    """What goes wrong with the next requests of a kind."""

    kind: str
    times: int
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    """Bytes of the body after which the connection ends."""
    bytes_per_second: float | None = None
    where: str = ""
    """Of requests whose paths hold this."""


@dataclass
class Repo:
    """A dataset's repository, or a bucket."""

    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], ref: str = "main") -> str:
        """Makes a commit of these files, and moves a branch to it; returns its name."""
        names = "".join(f"{name}:{hashlib.sha1(body).hexdigest()}" for name, body in sorted(files.items()))
        sha = hashlib.sha1(f"{self.id}{len(self.commits)}{names}".encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha

    @property
    def sha(self) -> str:
        """The commit of the main branch."""
        return self.refs["main"]


class Hub:
    """The server: in this process, on two ports."""

    def __init__(self, context: ssl.SSLContext | None = None, cdn_context: ssl.SSLContext | None = None) -> None:
        self.repos: dict[str, Repo] = {}
        self.buckets: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.uploads: dict[str, bytes] = {}
        self.revoked: set[str] = set()
        self.page_size = PAGE_SIZE
        self.tells_sizes = True
        self.url_lifetime = 3600.0
        self.clock = 0.0
        """Seconds by which the Hub's clock is ahead of that of this machine."""
        self.has_resolve_cache = False
        """Whether it sends small files from elsewhere on its own origin, as the real one does."""
        self.latency = 0.0
        self.log: list[Request] = []
        self._generation = 0
        self._lock = threading.Lock()
        self._servers = [_Server(("127.0.0.1", 0), _handler(self, role)) for role in ("hub", "cdn")]
        self._threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in self._servers]
        self.url, self.cdn_url = (
            _secured(server, secure)
            for server, secure in zip(self._servers, (context, cdn_context or context), strict=True)
        )

    def __enter__(self) -> Hub:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def create(self, name: str, files: Mapping[str, bytes], *, private: bool = False, gated: bool = False) -> Repo:
        """Makes a repository with one commit."""
        repo = self.repos[name] = Repo(name, private, gated)
        repo.commit(files)
        return repo

    def create_bucket(self, name: str, files: Mapping[str, bytes], *, private: bool = False) -> Repo:
        """Makes a bucket."""
        bucket = self.buckets[name] = Repo(name, private)
        bucket.commit(files)
        return bucket

    def fail(self, kind: str, times: int = 1, **what: Any) -> None:
        """Makes the next requests of a kind go wrong; see `Fault`."""
        self.faults.append(Fault(kind, times, **what))

    def expire_urls(self) -> None:
        """Makes all signed URLs useless."""
        self._generation += 1

    def clear(self) -> None:
        """Forgets what was asked, and what was to go wrong."""
        self.log.clear()
        self.faults.clear()
        self.revoked.clear()

    def count(self, kind: str, path: str = "") -> int:
        """Returns how many requests of a kind there were."""
        return sum(request.kind == kind and path in request.path for request in list(self.log))

    def num_bytes(self) -> int:
        """Returns the bytes of all bodies."""
        return sum(request.num_bytes for request in list(self.log))

    def depth(self) -> int:
        """Returns the length of the longest chain of requests, each begun after the one before had ended."""
        depths: list[int] = []
        requests = sorted(self.log, key=lambda request: request.started)
        for place, request in enumerate(requests):
            before = [depths[n] for n in range(place) if requests[n].ended <= request.started]
            depths.append(1 + max(before, default=0))
        return max(depths, default=0)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Hub]:
        """Forgets what was asked before."""
        self.log.clear()
        yield self

    def environment(self, home: Path) -> dict[str, str]:
        """Returns the variables that point clients in another process to this Hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        }

    def point(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        """Points this process's clients to the Hub, with no token and empty caches."""
        for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING_FACE_HUB_"))]:
            monkeypatch.delenv(name)
        for name, value in self.environment(home).items():
            monkeypatch.setenv(name, value)
        # They read the environment when they are imported, and make other names of what they find.
        places = {"HF_HOME": home, "HF_HUB_CACHE": home / "hub", "HF_DATASETS_CACHE": home / "datasets"}
        settings = {
            **{name: str(path) for name, path in places.items()},
            "HF_TOKEN_PATH": str(home / "token"),
            "HF_HUB_DISABLE_XET": True,
            "HF_UPDATE_DOWNLOAD_COUNTS": False,
            # The viewer is another server, whose name would take long not to be found.
            "USE_PARQUET_EXPORT": False,
        }
        for module in [
            module for name, module in sys.modules.items() if name.startswith(("huggingface_hub", "datasets"))
        ]:
            for name, value in list(vars(module).items()):
                if name in settings and not callable(value):
                    monkeypatch.setattr(module, name, settings[name])
                elif isinstance(value, str) and name.isupper() and re.match(ANY_HUB, value):
                    monkeypatch.setattr(module, name, re.sub(ANY_HUB, self.url, value, count=1))

    # What follows is called by the handlers.

    def take_fault(self, kind: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.kind == kind and fault.where in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def signed(self, repo: Repo, body: bytes) -> str:
        digest = sha256_of(body)
        expires = int(self.now() + self.url_lifetime)
        return f"{self.cdn_url}/{quote(repo.id, '')}/{digest}?Expires={expires}&Signature={self._generation}"

    def is_valid(self, query: str) -> bool:
        fields = parse_qs(query)
        is_current = fields.get("Signature") == [str(self._generation)]
        return is_current and self.now() < float(fields["Expires"][0])

    def now(self) -> float:
        return time.time() + self.clock

    def body_of(self, digest: str) -> bytes | None:
        every = [*self.repos.values(), *self.buckets.values()]
        bodies = (body for repo in every for files in repo.commits.values() for body in files.values())
        return next((body for body in bodies if sha256_of(body) == digest), None)


@functools.lru_cache(64)
def sha256_of(body: bytes) -> str:
    """Returns the name that the Hub gives to a large file."""
    return hashlib.sha256(body).hexdigest()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, *_arguments: object) -> None:
        """Says nothing: clients that go away are what tests are about."""


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def _secured(server: _Server, context: ssl.SSLContext | None) -> str:
    """Has a server speak TLS, if there is a context; returns its URL."""
    if context is None:
        return f"http://127.0.0.1:{server.server_port}"
    # Whoever is not trusted goes away in the handshake, which is the handler's to do.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return f"https://localhost:{server.server_port}"


def _handler(hub: Hub, role: str) -> type[_Handler]:
    return type("Handler", (_Handler,), {"hub": hub, "role": role})


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    hub: ClassVar[Hub]
    role: ClassVar[str]
    request_log: Request
    fault: Fault | None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - named by the library

    def _answer(self) -> None:
        self.form = self._read_form()
        kind = "cdn" if self.role == "cdn" else "resolve" if re.search("/resolve(-cache)?/", self.path) else "api"
        has_token = "Authorization" in self.headers
        asked = self.headers.get("Range")
        self.request_log = Request(kind, self.command, self.path, asked, has_token, time.monotonic())
        self.request_log.referer = self.headers.get("Referer")
        self.fault = self.hub.take_fault(kind, self.path)
        time.sleep(self.hub.latency)
        self.hub.log.append(self.request_log)
        try:
            if self.fault is not None and self.fault.status is not None:
                self._send(self.fault.status, dict(self.fault.headers), self.fault.body)
            elif kind == "cdn":
                self._cdn()
            else:
                self._route(urlsplit(self.path))
        except _RefusedError as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)}
            self._send(refusal.status, headers, json.dumps({"error": str(refusal)}).encode())
        finally:
            self.request_log.ended = time.monotonic()

    def _read_form(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        form = b""
        while size := int(self.rfile.readline(), 16):
            form += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return form

    def _cdn(self) -> None:
        # The test of all tests: a token is for the Hub alone.
        if self.request_log.has_token:
            self._send(400, {}, b"a token came here")
            return
        url = urlsplit(self.path)
        body = self.hub.body_of(url.path.rsplit("/", 1)[-1])
        if body is None or not self.hub.is_valid(url.query):
            self._send(404 if body is None else 403, {}, b"")
            return
        self._send_range(body, {"ETag": '"of-the-cdn"'})

    def _send_range(self, body: bytes, headers: dict[str, str]) -> None:
        size = len(body)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            self._send(200, headers | {"Accept-Ranges": "bytes"}, body)
            return
        first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        if first >= size:
            self._send(416, {"Content-Range": f"bytes */{size}"}, b"")
            return
        self._send(206, headers | {"Content-Range": f"bytes {first}-{last}/{size}"}, body[first : last + 1])

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.request_log.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        fault = self.fault
        if fault is not None and fault.cut_after is not None and len(body) > fault.cut_after:
            self.request_log.num_bytes = fault.cut_after
            self.wfile.write(body[: fault.cut_after])
            self.wfile.flush()
            self.close_connection = True
            return
        self.request_log.num_bytes = len(body)
        if fault is not None and fault.bytes_per_second is not None:
            step = max(len(body) // 8, 1)
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(step / fault.bytes_per_second)
            return
        self.wfile.write(body)

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())

    def _route(self, url: Any) -> None:
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        for pattern, route in _ROUTES:
            found = re.fullmatch(pattern, url.path)
            if found:
                route(self, query, *(unquote(part) if part else "" for part in found.groups()))
                return
        self._send(404, {}, b"no such route")

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _repo(self, name: str, *, for_files: bool = True, is_bucket: bool = False) -> Repo:
        repo = (self.hub.buckets if is_bucket else self.hub.repos).get(name)
        token = self._token()
        if token not in (None, TOKEN, STRANGER) or token in self.hub.revoked:
            raise _RefusedError(401, "", "Invalid credentials in Authorization header")
        if repo is None or (repo.private and token != TOKEN):
            raise _RefusedError(401 if token is None else 404, "RepoNotFound", "Repository not found")
        if repo.gated and for_files and token != TOKEN:
            raise _RefusedError(401 if token is None else 403, "GatedRepo", f"Access to dataset {name} is restricted")
        return repo

    def _files(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes]]:
        names = (revision, f"refs/tags/{revision}")
        sha = next((repo.refs[name] for name in names if name in repo.refs), revision)
        if sha not in repo.commits:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repo.commits[sha]

    def info(self, query: dict[str, str], name: str, revision: str = "main") -> None:
        repo = self._repo(name, for_files=False)
        sha, files = self._files(repo, revision or "main")
        has_blobs = query.get("blobs", "").lower() == "true" and self.hub.tells_sizes
        facts = {
            "_id": "1",
            "id": name,
            "author": name.split("/")[0],
            "sha": sha,
            "lastModified": "2025-01-01T00:00:00.000Z",
            "createdAt": "2025-01-01T00:00:00.000Z",
            "private": repo.private,
            "gated": "auto" if repo.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [_sibling(path, body) if has_blobs else {"rfilename": path} for path, body in files.items()],
        }
        self._json(facts)

    def refs(self, _query: dict[str, str], name: str) -> None:
        repo = self._repo(name)
        found: dict[str, list[dict[str, str]]] = {"branches": [], "converts": [], "tags": []}
        for ref, sha in repo.refs.items():
            if ref.startswith("refs/pr/"):
                continue
            kind = (
                "converts"
                if ref.startswith("refs/convert/")
                else "tags"
                if ref.startswith("refs/tags/")
                else "branches"
            )
            full = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
            found[kind].append({"name": ref.rsplit("/", 1)[-1], "ref": full, "targetCommit": sha})
        self._json(found)

    def tree(self, query: dict[str, str], name: str, revision: str, folder: str = "") -> None:
        _, files = self._files(self._repo(name), revision)
        self._page(query, _entries(files, folder.strip("/"), query.get("recursive", "").lower() == "true", _repo_entry))

    def bucket_tree(self, query: dict[str, str], name: str, folder: str = "") -> None:
        repo = self._repo(name, is_bucket=True)
        files = repo.commits[repo.sha]
        if query.get("recursive", "").lower() == "true":
            # What begins so, by its letters, without folders.
            self._page(
                query, [_bucket_entry(path, body) for path, body in sorted(files.items()) if path.startswith(folder)]
            )
        elif folder in files:
            self._page(query, [_bucket_entry(folder, files[folder])])
        else:
            self._page(query, _entries(files, folder.strip("/"), False, _bucket_entry) or [])

    def _page(self, query: dict[str, str], entries: list[dict[str, Any]] | None) -> None:
        if entries is None:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        first = int(query.get("cursor", "0"))
        headers = {}
        if first + self.hub.page_size < len(entries):
            others = "&".join(f"{key}={value}" for key, value in query.items() if key != "cursor")
            path = urlsplit(self.path).path
            headers = {"Link": f'<{self.hub.url}{path}?{others}&cursor={first + self.hub.page_size}>; rel="next"'}
        self._json(entries[first : first + self.hub.page_size], headers)

    def paths_info(self, _query: dict[str, str], name: str, revision: str) -> None:
        _, files = self._files(self._repo(name), revision)
        self._json(_infos(files, self._paths(), _repo_entry))

    def bucket_paths_info(self, _query: dict[str, str], name: str) -> None:
        repo = self._repo(name, is_bucket=True)
        self._json(_infos(repo.commits[repo.sha], self._paths(), _bucket_entry))

    def _paths(self) -> list[str]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            return list(json.loads(self.form)["paths"])
        return parse_qs(self.form.decode()).get("paths", [])

    def bucket(self, _query: dict[str, str], name: str) -> None:
        repo = self._repo(name, is_bucket=True)
        files = repo.commits[repo.sha]
        size = sum(map(len, files.values()))
        created = "2025-01-01T00:00:00.000Z"
        self._json(
            {
                "_id": "1",
                "id": name,
                "private": repo.private,
                "createdAt": created,
                "size": size,
                "totalFiles": len(files),
            }
        )

    def resolve(self, _query: dict[str, str], name: str, revision: str, path: str) -> None:
        repo = self._repo(name)
        sha, files = self._files(repo, revision)
        if self.hub.has_resolve_cache and path in files and not path.endswith(".parquet"):
            tag, size = f'"{_git_oid(files[path])}"', str(len(files[path]))
            to = f"/api/resolve-cache/datasets/{name}/{sha}/{quote(path)}?etag={quote(tag)}"
            self._send(307, {"X-Repo-Commit": sha, "X-Linked-Etag": tag, "X-Linked-Size": size, "Location": to}, b"")
        else:
            self._resolve(repo, files, path, {"X-Repo-Commit": sha})

    def resolve_from_cache(self, _query: dict[str, str], name: str, revision: str, path: str) -> None:
        sha, files = self._files(self._repo(name), revision)
        self._send_range(files[path], {"X-Repo-Commit": sha, "ETag": f'"{_git_oid(files[path])}"'})

    def resolve_in_bucket(self, _query: dict[str, str], name: str, path: str) -> None:
        repo = self._repo(name, is_bucket=True)
        self._resolve(repo, repo.commits[repo.sha], path, {})

    def _resolve(self, repo: Repo, files: dict[str, bytes], path: str, headers: dict[str, str]) -> None:
        body = files.get(path)
        if body is None:
            # Clients look at the commit of a repository whose card is missing.
            self._send(404, headers | {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b"")
        elif path.endswith(".parquet"):
            linked = {"X-Linked-Size": str(len(body)), "X-Linked-Etag": f'"{sha256_of(body)}"'}
            self._send(302, headers | linked | {"Location": self.hub.signed(repo, body), "Accept-Ranges": "bytes"}, b"")
        else:
            self._send_range(body, headers | {"ETag": f'"{_git_oid(body)}"'})

    # What writes: only for the user of the token.

    def _owned(self, name: str) -> Repo:
        if self._token() != TOKEN:
            raise _RefusedError(403, "", "You may not write here")
        return self._repo(name)

    def create(self, _query: dict[str, str]) -> None:
        asked = json.loads(self.form)
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        if self._token() != TOKEN:
            raise _RefusedError(403, "", "You may not write here")
        if name in self.hub.repos:
            self._send(409, {}, json.dumps({"url": f"{self.hub.url}/datasets/{name}"}).encode())
            return
        self.hub.create(name, {})
        self._json({"url": f"{self.hub.url}/datasets/{name}", "name": name, "id": name})

    def preupload(self, _query: dict[str, str], name: str, _revision: str) -> None:
        self._owned(name)
        files = json.loads(self.form)["files"]
        modes = [("lfs" if file["path"].endswith(".parquet") else "regular") for file in files]
        self._json(
            {
                "files": [
                    {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
                    for file, mode in zip(files, modes, strict=True)
                ]
            }
        )

    def validate(self, _query: dict[str, str]) -> None:
        self._json({"errors": [], "warnings": []})

    def lfs_batch(self, _query: dict[str, str], name: str) -> None:
        self._owned(name)
        objects = json.loads(self.form)["objects"]
        actions = [
            {**found, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{found['oid']}", "header": {}}}}
            for found in objects
        ]
        self._json({"transfer": "basic", "objects": actions})

    def lfs_upload(self, _query: dict[str, str], digest: str) -> None:
        if sha256_of(self.form) != digest:
            raise _RefusedError(400, "", "the bytes are not those of the name")
        self.hub.uploads[digest] = self.form
        self._send(200, {}, b"")

    def make_commit(self, _query: dict[str, str], name: str, revision: str) -> None:
        repo = self._owned(name)
        _, files = self._files(repo, revision)
        files = dict(files)
        for line in self.form.splitlines():
            said = json.loads(line)
            value = said["value"]
            if said["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif said["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
            elif said["key"] == "deletedFile":
                files.pop(value["path"])
        sha = repo.commit(files, revision)
        self._json({"commitUrl": f"{self.hub.url}/datasets/{name}/commit/{sha}", "commitOid": sha, "hookOutput": ""})

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.hub.now() if timestamp is None else timestamp)

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


def _git_oid(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def _repo_entry(path: str, body: bytes | None) -> dict[str, Any]:
    if body is None:
        return {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}
    entry = {"type": "file", "size": len(body), "path": path}
    if not path.endswith(".parquet"):
        return {**entry, "oid": _git_oid(body)}
    # What git has of a large file is a pointer to it.
    digest = sha256_of(body)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(body)}\n".encode()
    large = {"oid": digest, "size": len(body), "pointerSize": len(pointer)}
    return {**entry, "oid": _git_oid(pointer), "lfs": large}


def _sibling(path: str, body: bytes) -> dict[str, Any]:
    entry = _repo_entry(path, body)
    large = entry.get("lfs")
    sibling = {"rfilename": path, "size": entry["size"], "blobId": entry["oid"]}
    if large:
        sibling["lfs"] = {"sha256": large["oid"], "size": large["size"], "pointerSize": large["pointerSize"]}
    return sibling


def _bucket_entry(path: str, body: bytes | None) -> dict[str, Any]:
    when = "2025-01-01T00:00:00.000Z"
    if body is None:
        return {"type": "directory", "path": path, "uploadedAt": when}
    digest = sha256_of(body)
    return {"type": "file", "path": path, "size": len(body), "xetHash": digest, "mtime": when, "uploadedAt": when}


def _folders(files: Mapping[str, bytes]) -> list[str]:
    parts = (path.split("/") for path in files)
    return sorted({"/".join(names[:depth]) for names in parts for depth in range(1, len(names))})


def _entries(
    files: Mapping[str, bytes], folder: str, recursive: bool, entry: Callable[[str, bytes | None], dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Returns what is in a folder; `None` where there is none."""
    prefix = f"{folder}/" if folder else ""
    if folder and folder not in _folders(files):
        return None
    every: dict[str, bytes | None] = {**dict.fromkeys(_folders(files)), **files}
    inside = {path: body for path, body in sorted(every.items()) if path.startswith(prefix)}
    return [entry(path, body) for path, body in inside.items() if recursive or "/" not in path[len(prefix) :]]


def _infos(
    files: Mapping[str, bytes], paths: list[str], entry: Callable[[str, bytes | None], dict[str, Any]]
) -> list[dict[str, Any]]:
    every: dict[str, bytes | None] = {**dict.fromkeys(_folders(files)), **files}
    return [entry(path, every[path]) for path in paths if path in every]


_ID = r"([^/]+/[^/]+)"
_ROUTES: list[tuple[str, Callable[..., None]]] = [
    (rf"/api/datasets/{_ID}", _Handler.info),
    (rf"/api/datasets/{_ID}/revision/(.+)", _Handler.info),
    (rf"/api/datasets/{_ID}/refs", _Handler.refs),
    (rf"/api/datasets/{_ID}/tree/([^/]+)(?:/(.*))?", _Handler.tree),
    (rf"/api/datasets/{_ID}/paths-info/([^/]+)", _Handler.paths_info),
    (rf"/api/buckets/{_ID}", _Handler.bucket),
    (rf"/api/buckets/{_ID}/tree(?:/(.*))?", _Handler.bucket_tree),
    (rf"/api/buckets/{_ID}/paths-info", _Handler.bucket_paths_info),
    (rf"/datasets/{_ID}/resolve/([^/]+)/(.+)", _Handler.resolve),
    (rf"/buckets/{_ID}/resolve/(.+)", _Handler.resolve_in_bucket),
    (rf"/api/resolve-cache/datasets/{_ID}/([^/]+)/(.+)", _Handler.resolve_from_cache),
    (r"/api/repos/create", _Handler.create),
    (r"/api/validate-yaml", _Handler.validate),
    (rf"/api/datasets/{_ID}/preupload/([^/]+)", _Handler.preupload),
    (rf"/datasets/{_ID}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    (r"/lfs/([0-9a-f]+)", _Handler.lfs_upload),
    (rf"/api/datasets/{_ID}/commit/([^/]+)", _Handler.make_commit),
]
