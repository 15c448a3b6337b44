"""Makes the core's calls of `fsspec`, for stores that the core does not support itself.

Calls run on Python threads, which Python may end at any time when it exits, and which end with their store. `fsspec`
gives each thread its own file system, but shares asynchronous ones among all.
"""

from __future__ import annotations

import copy
import json
import tarfile
import threading
import time
import weakref
import zipfile
import zlib
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from forebay.options import AS_JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay._lib import Reply

    Job = tuple[str, str, tuple[Any, ...], Reply]
    Infos = list[tuple[str, int, str | None]]
    """Names, sizes, and versions, which change when an object does."""

MOST_THREADS = 32
"""The core makes at most 16 calls at a time, so half of the threads may be stuck."""

VERSIONS = ("ETag", "etag", "sha", "CRC", "mtime", "LastModified", "last_modified", "modified", "modify", "created")
"""Keys that file systems use for the version of an object, the most reliable first."""

_UNUSABLE = (ImportError, TypeError, ValueError)
"""Exceptions of a file system's class about its name or arguments."""

_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    StopIteration,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of a file system that a retry would raise again. Not `EOFError`: FTP and SFTP raise it for a connection
that breaks."""

CHECKING_CACHES = ("blockcache", "cached", "filecache")
"""File systems that keep objects, and can be told to ask each time whether these are still the same."""

WHOLE_FILE_CACHES = ("filecache", "simplecache")

DOWNLOADED_WITHIN = 10.0
"""Seconds for which a cached file without its end counts as one that somebody still downloads. It is no other version
then, and is read again."""


class StaleError(Exception):
    """A cache has another version of an object than the store behind it."""


class Calls:
    """The calls for one store."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._threads = _Threads(
            {
                name.removesuffix(AS_JSON): json.loads(value) if name.endswith(AS_JSON) else value
                for name, value in options.items()
            }
        )
        weakref.finalize(self, self._threads.jobs.put, None)

    def submit(self, method: str, url: str, arguments: tuple[Any, ...], reply: Reply) -> None:
        """Queues a call; its result goes to `reply`."""
        self._threads.submit((method, url, arguments, reply))


class _Threads:
    """One thread per simultaneous call. Threads refer to this object only, so that `Calls` can be collected."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._options = options
        self._lock = threading.Lock()
        self._num_threads = 0
        self._num_calls = 0

    def submit(self, job: Job) -> None:
        with self._lock:
            self._num_calls += 1
            is_short = self._num_threads < min(self._num_calls, MOST_THREADS)
            self._num_threads += is_short
        if is_short:
            try:
                threading.Thread(target=self._serve, name="forebay-fsspec", daemon=True).start()
            except Exception as error:  # noqa: BLE001 - passed to the reply
                with self._lock:
                    self._num_calls -= 1
                    self._num_threads -= 1
                # The system may have threads or memory to spare again by the next call.
                job[-1].fail("broken", error)
                return
        self.jobs.put(job)

    def _serve(self) -> None:
        used: set[Any] = set()
        while (job := self.jobs.get()) is not None:
            if job[-1].is_wanted:
                self._call(used, *job)
            # Does not keep the reply until the next call.
            del job
            with self._lock:
                self._num_calls -= 1
        # For the next thread.
        self.jobs.put(None)

    def _call(self, used: set[Any], method: str, url: str, arguments: tuple[Any, ...], reply: Reply) -> None:
        """Makes a call; adds its file system to those that this thread has used."""
        try:
            try:
                # `url_to_fs` removes the options of chained URLs from the dict.
                fs, path = _url_to_fs(url, copy.deepcopy(self._options))
            except _UNUSABLE as error:
                reply.fail("unusable", _no_store(url, error))
                return
            if fs not in used:
                # It may be that of a thread that has ended, with the listings that were read for another store.
                fs.invalidate_cache()
                used.add(fs)
            reply.send(*_METHODS[method](fs, path, *arguments))
        except StaleError as error:
            reply.fail("stale", error)
        except BaseException as error:  # noqa: BLE001 - passed to the reply
            reply.fail(kind_of(error), error)


def _url_to_fs(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError("reading it needs `fsspec`: pip install fsspec") from error
    for link in url.split("::"):
        if (kind := link.split("://", 1)[0]) in CHECKING_CACHES:
            # Otherwise an object that was replaced would be read as it was, under its new version.
            options[kind] = {"check_files": True} | options.get(kind, {})
    fs, path = url_to_fs(url, **options)
    return fs, path


def _no_store(url: str, error: Exception) -> Exception:
    scheme = url.split("://", 1)[0]
    expected = "a path, `file://`, `s3://`, `gs://`, `az://`, `hf://`, `http(s)://` or what `fsspec` reads"
    return ValueError(f"no store for `{scheme}://`, expected {expected}: {error}")


def _find(fs: Any, folder: str) -> tuple[Infos]:
    fs.invalidate_cache()
    try:
        found = fs.find(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return ([],)
    # Some file systems return names with a leading slash for a folder without one.
    folder = folder.strip("/")
    sized = {name: info if info.get("size") is not None else fs.info(name) for name, info in found.items()}
    return ([_told(name.strip("/").removeprefix(folder).strip("/"), info) for name, info in sized.items()],)


def _info(fs: Any, path: str) -> tuple[Infos]:
    info = fs.info(path)
    if info.get("type") == "directory":
        raise IsADirectoryError(path)
    return ([_told("", info)],)


def _read(fs: Any, path: str, start: int, end: int) -> tuple[Infos, bytes]:
    data = fs.cat_file(path, start=start, end=end) if start < end else b""
    # After reading: an object that was replaced meanwhile has another version by now, unless a listing of before is
    # cached. It is used: a file system that finds objects in listings only would list a folder for each read.
    (infos,) = _info(fs, path)
    _check_cached(fs, path, infos[0][1])
    return infos, data if isinstance(data, bytes) else bytes(data)


def _check_cached(fs: Any, path: str, size: int) -> None:
    """Refuses a cached file of another length than the object.

    Bytes come from the cache, and what is known of the object from the store: its version says nothing about them.
    """
    if getattr(fs, "protocol", None) not in WHOLE_FILE_CACHES or fs.compression is not None:
        return
    kept = fs._check_file(fs._strip_protocol(path))
    file = kept[1] if isinstance(kept, tuple) else kept
    try:
        status = Path(file).stat() if file else None
    except FileNotFoundError:
        return
    if status is None or status.st_size == size:
        return
    if status.st_size < size and time.time() - status.st_mtime < DOWNLOADED_WITHIN:
        return
    raise StaleError(
        f"the cache has {status.st_size} bytes of it in `{file}`, and the store {size}; remove that file, or the "
        "folder of the cache"
    )


def _write(fs: Any, path: str, data: bytes) -> tuple[Infos]:
    fs.pipe_file(path, data)
    return ([],)


_METHODS: dict[str, Callable[..., tuple[Any, ...]]] = {"find": _find, "info": _info, "read": _read, "write": _write}


def _told(name: str, info: Mapping[str, Any]) -> tuple[str, int, str | None]:
    version = next((info[key] for key in VERSIONS if info.get(key) is not None), None)
    # A listing may have seconds where `info` has a date.
    version = version.timestamp() if isinstance(version, datetime) else version
    if info.get("size") is None:
        raise ValueError(f"the file system does not say how large {name or 'it'} is, so its end cannot be found")
    return name, int(info["size"]), None if version is None else str(version)


def kind_of(error: BaseException) -> str:
    """Returns the core's name for the kind of an exception, which decides how it is handled."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        # Some file systems raise it for any error.
        below = "not_found" if error.__cause__ is None else kind_of(error.__cause__)
        return "not_found" if below == "final" else below
    if isinstance(error, PermissionError):
        return "denied"
    if isinstance(error, TimeoutError):
        return "stalled"
    match _status_of(error):
        case 404 | 410:
            return "not_found"
        case 401 | 403:
            return "denied"
        case 429 | 503:
            return "throttled"
        case int(status) if status >= 500 or status == 408:
            return "failed"
        case int(status) if status >= 400:
            return "final"
    may_pass = isinstance(error, Exception) and not isinstance(error, (*_MISTAKES, *_UNUSABLE))
    return "broken" if may_pass else "final"


def _status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of an exception of any client; None if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        # Of botocore.
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    found = (getattr(place, name, None) for place in (error, response) for name in ("status", "status_code", "code"))
    return next((status for status in found if isinstance(status, int)), None)
