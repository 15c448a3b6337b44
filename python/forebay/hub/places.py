"""Parses names of datasets on the Hub: `org/name`, or a URI."""

from __future__ import annotations

import errno
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from forebay.exceptions import SettingError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

PARQUET_BRANCH = "refs/convert/parquet"
"""The branch that holds a dataset as Parquet, made by the Hub."""

DEFAULT_REVISION = "main"
"""The branch that is used if no revision is named."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
_URL = re.compile(
    r"datasets/(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+)/(?P<path>.+)", re.DOTALL
)
_URL_IN_BUCKET = re.compile(r"buckets/(?P<id>[^/]+/[^/]+)/resolve/(?P<path>.+)", re.DOTALL)
_PAGE = re.compile(
    r"datasets/(?P<id>[^/?#]+/[^/?#]+)(?:/|/viewer[^?#]*|/(?:tree|blob)/(?P<revision>[^/?#]+)(?:/(?P<path>[^?#]*))?)?"
    r"(?:[?#].*)?",
    re.DOTALL,
)
_SPECIAL = re.compile(r"(refs/(?:convert|pr)/[^/]+)(?:/(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """A repository or a bucket, or something in one."""

    kind: Literal["datasets", "buckets"]
    id: str
    revision: str | None = None
    path: str = ""
    """A folder, a file or a pattern in it; empty for all of it."""
    is_export: bool = False
    """Whether it was written as `@~parquet`."""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.kind}/{self.id}{revision}{'/' if self.path else ''}{self.path}"

    def at(self, revision: str | None) -> Place:
        """Returns the place at another revision, if one is given.

        Raises:
            SettingError: the place names another revision already, or is a bucket.
        """
        if revision is None:
            return self
        if self.kind == "buckets":
            raise SettingError(f"revision: `{self}` is a bucket, which has none")
        if self.revision not in (None, revision):
            raise SettingError(f"revision: `{self}` names one already, got `{revision}`")
        return replace(self, revision=revision)


def parse(source: str) -> Place | None:
    """Returns the place on the Hub that a text names; None if it names something else.

    `org/name` is on the Hub unless there is a local file or folder of that name.

    Raises:
        SettingError: a URI is not complete.
    """
    if source.startswith("hf://"):
        return _of_uri(source)
    if source.startswith("buckets/") and source.count("/") >= 2 and local(source) is None:
        return _of_uri(f"hf://{source}")
    name, at, revision = source.partition("@")
    if not is_name(name) or local(source) is not None:
        return None
    return _with_revision(Place("datasets", name), unquote(revision)) if at else Place("datasets", name)


def of_url(url: str, endpoint: str) -> Place | None:
    """Returns the place of a `resolve` URL of the Hub at `endpoint`; None for any other text.

    The URL names a file or a pattern, and is read as its place, with the user's token, as in `datasets`.

    Raises:
        SettingError: the URL is that of a page of a dataset in the browser.
    """
    if not url.startswith(f"{endpoint}/"):
        return None
    rest = url.removeprefix(f"{endpoint}/")
    found = _URL.fullmatch(rest) or _URL_IN_BUCKET.fullmatch(rest)
    if found is None or not _NAME.fullmatch(found["id"]):
        _refuse_page(url, rest)
        return None
    path = found["path"]
    if not re.search(r"[*[]", path):
        path = unquote(re.split(r"[?#]", path, maxsplit=1)[0])
    if found.re is _URL:
        return Place("datasets", found["id"], unquote(found["revision"]), path)
    return Place("buckets", found["id"], path=path)


def _refuse_page(url: str, rest: str) -> None:
    page = _PAGE.fullmatch(rest)
    if page is None or not is_name(page["id"]):
        return
    revision = None if page["revision"] == DEFAULT_REVISION else page["revision"]
    place = Place("datasets", page["id"], revision, unquote(page["path"] or "").strip("/"))
    meant = place if place.path else str(place).removeprefix("hf://datasets/")
    raise SettingError(f"path: `{url}` is a page of the Hub, not a file; write `{meant}`")


def meant_by(path: str) -> str | None:
    """Returns the name of the Hub dataset that a path is probably meant for; None if it is one already, or no name."""
    name = path.removeprefix("datasets/").rstrip("/")
    return name if name != path and is_name(name) and local(name) is None else None


def is_name(text: str) -> bool:
    """Whether a text has the form `owner/name`, as those of datasets on the Hub and of many local folders."""
    return _NAME.fullmatch(text) is not None and ".." not in text and not text.endswith((".parquet", ".forebay"))


def local(path: str) -> Path | None:
    """Returns the local file or folder that a text names; None if there is none, or the name is invalid."""
    try:
        found = Path(path).expanduser()
        return found if found.exists() else None
    except (OSError, RuntimeError, ValueError):
        # The name is too long, or its user does not exist; the core then raises the error.
        return None


def _mode(path: Path) -> int:
    """Returns the file mode of a path; 0 if nothing is there."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0
        raise


def files_below(root: Path) -> Iterator[str]:
    """Yields the paths of the files below a folder. Follows links, except those that lead back.

    Broken links are included, so that opening one is an error.

    Raises:
        StoreError: a folder that is not hidden cannot be read.
    """
    pending: list[tuple[Path, frozenset[Path]]] = [(root, frozenset())]
    while pending:
        folder, above = pending.pop()
        real = folder.resolve()
        if real in above:
            continue
        try:
            found = [(path, _mode(path)) for path in folder.iterdir()]
        except OSError as error:
            is_hidden = any(part.startswith((".", "__")) for part in folder.relative_to(root).parts)
            if isinstance(error, PermissionError) and (is_hidden or folder.name == "lost+found"):
                continue
            raise StoreError(f"cannot list `{folder}`: {error}") from error
        pending.extend((path, above | {real}) for path, mode in found if stat.S_ISDIR(mode))
        files = (path for path, mode in found if stat.S_ISREG(mode) or (mode == 0 and path.is_symlink()))
        yield from (path.relative_to(root).as_posix() for path in files)


def _of_uri(uri: str) -> Place:
    kind, _, rest = uri.removeprefix("hf://").partition("/")
    owner, _, rest = rest.partition("/")
    name, _, path = rest.partition("/")
    name, at, revision = name.partition("@")
    if kind not in ("datasets", "buckets") or not _NAME.fullmatch(f"{owner}/{name}"):
        what = "expected `hf://datasets/owner/name@revision/path` or `hf://buckets/owner/name/path`"
        raise SettingError(f"path: cannot understand `{uri}`: {what}")
    place = Place("datasets" if kind == "datasets" else "buckets", f"{owner}/{name}", path=path.strip("/"))
    if not at:
        return place
    if kind == "buckets":
        raise SettingError(f"path: `{uri}` is a bucket, which has no revisions")
    if revision == "refs" and (special := _SPECIAL.fullmatch(f"refs/{path}")):
        return replace(place, revision=special[1], path=(special[2] or "").strip("/"))
    return _with_revision(place, unquote(revision))


def _with_revision(place: Place, revision: str) -> Place:
    if not revision:
        raise SettingError(f"path: `{place}@` names no revision after the `@`")
    if revision == "~parquet":
        return replace(place, revision=PARQUET_BRANCH, is_export=True)
    return replace(place, revision=revision)
