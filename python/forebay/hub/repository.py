"""Lists the files of a repository at a commit, or of a bucket, from the Hub or from a downloaded copy."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from posixpath import join
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from forebay.exceptions import DataError, HubUnreachableError, NotFoundError, StoreError
from forebay.hub import card
from forebay.hub.client import text_of
from forebay.hub.patterns import Listing
from forebay.hub.places import DEFAULT_REVISION, local
from forebay.hub.settings import DEFAULT_ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.hub.client import Answer, Client
    from forebay.hub.places import Place
    from forebay.hub.settings import Settings

_COMMIT = re.compile(r"[0-9a-f]{40}")

MOST_SIBLINGS = 1000
"""The most files that are trusted to be all files of a commit: a page of a listing."""

MOST_SILENCE = 10.0
"""Seconds for which requests without an answer are retried if there is a copy, unless `hf_patience` is set."""

File = tuple[str, int | None, str | None]
"""Path or URI, size, entity tag: what a store needs to know about a file."""


@dataclass(frozen=True)
class Repository:
    """The files of a repository at a commit, or of a bucket."""

    place: Place
    commit: str | None
    files: dict[str, File]
    texts: Any
    """Returns the text of a file by its path; None if there is no such file."""
    why_copied: str | None = None
    """Why only downloaded files can be read, if that is so."""
    is_whole: bool = True
    """Whether all files of the commit are known."""
    endpoint: str = DEFAULT_ENDPOINT
    """The Hub's endpoint, with which its URLs begin."""

    @property
    def listing(self) -> Listing:
        """The names of the files, for finding splits."""
        at = f"@{self.commit}" if self.commit else ""
        return Listing(
            f"{self.place.kind}/{self.place.id}{at}", sorted(self.files), self._prefixes, is_whole=self.is_whole
        )

    @property
    def _prefixes(self) -> tuple[str, ...]:
        """Prefixes of URIs and URLs of files at the opened revision and its commit."""
        whole = f"{self.place.kind}/{self.place.id}"
        if self.commit is None:
            return (f"hf://{whole}/",)
        revision = self.place.revision or DEFAULT_REVISION
        names = {revision, quote(revision, safe=""), self.commit}
        uris = [f"hf://{whole}@{name}/" for name in names] + [f"hf://{whole}/"] * (revision == DEFAULT_REVISION)
        return (*uris, *(f"{self.endpoint}/{whole}/resolve/{name}/" for name in names))

    def card(self, folder: str = "") -> card.Card:
        """Reads the card in a folder."""
        texts = (self.texts(join(folder, name)) for name in card.FILES)
        return card.read(texts, join(f"{self.place.kind}/{self.place.id}", folder).rstrip("/"))


def look_up(place: Place, client: Client) -> Repository:
    """Returns the files of a repository, from the Hub (one request, and one for the card) or from a downloaded copy.

    Repositories that are gated, or have more than a thousand files, take further requests to list the files.

    A copy is used in offline mode, if the Hub cannot be reached, and if its commit is named and its file list complete.
    An incomplete copy, which may lack rows, is not used in place of a Hub that can be reached but fails.

    Raises:
        DatasetNotFoundError: there is no such repository or revision, or this user may not see it.
        HubUnreachableError: the Hub cannot be reached, and there is no copy.
    """
    if place.kind == "buckets":
        return _of_bucket(place, client)
    is_pinned = _COMMIT.fullmatch(place.revision or "") is not None
    copy = _Copy.find(place, client.settings)
    if copy is not None and client.settings.is_offline:
        return copy.repository(place, client, "the Hub is not asked: `HF_HUB_OFFLINE` is set")
    if copy is not None and is_pinned and copy.is_whole:
        return copy.repository(place, client)
    silences = client.first_silence, client.silence
    if copy is not None:
        client.first_silence = client.patience if client.is_patience_given else min(client.patience, MOST_SILENCE)
        client.silence = client.first_silence if copy.is_whole else math.inf
    try:
        return _of_hub(place, client)
    except HubUnreachableError as error:
        if copy is None or (client.was_reached and not copy.is_whole):
            raise
        warnings.warn(f"{error}; what was downloaded of the commit `{copy.commit}` is used instead", stacklevel=2)
        return copy.repository(place, client, "the Hub cannot be reached")
    finally:
        client.first_silence, client.silence = silences


def _of_hub(place: Place, client: Client) -> Repository:
    revision = quote(place.revision or DEFAULT_REVISION, safe="")
    # With the files and their sizes, as in `HfApi.dataset_info(files_metadata=True)`.
    url = f"/api/datasets/{place.id}/revision/{revision}?blobs=true"

    def read(answer: Answer) -> tuple[dict[str, Any], str]:
        info = answer.json()
        commit = info.get("sha") if isinstance(info, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise StoreError(f"`{place.id}`: the Hub named no commit for `{place.revision or DEFAULT_REVISION}`")
        return info, commit

    info, commit = client.get(url, place.id, read, place.revision or DEFAULT_REVISION)
    entries: Iterable[Any] | None = _siblings(info)
    if entries is None:
        entries = client.pages(f"/api/datasets/{place.id}/tree/{commit}?recursive=true&expand=false", place.id)
    root = f"hf://datasets/{place.id}@{commit}"
    copied = _Copy(client.settings.cache, place.id, commit)
    listed = {path: (f"{root}/{path}", size, tag) for path, size, tag in _files(entries, place)}
    files: dict[str, File] = {path: copied.file(path, file[1]) or file for path, file in listed.items()}

    def text(path: str) -> str | None:
        return _text(client, place, path, commit, listed[path]) if path in listed else None

    return Repository(place, commit, files, text)


def _siblings(info: dict[str, Any]) -> list[Any] | None:
    """Returns the files in the answer about a commit, in the form of a listing; None if they must be listed separately.

    For a gated repository, this answer has the files even if the user has no access; the listing then refuses.
    """
    siblings = info.get("siblings")
    if info.get("gated") or not isinstance(siblings, list) or not 0 < len(siblings) <= MOST_SIBLINGS:
        return None
    entries = []
    for sibling in siblings:
        if not isinstance(sibling, dict) or not {"rfilename", "size", "blobId"} <= sibling.keys():
            return None
        size, large = sibling["size"], sibling.get("lfs")
        entry = {"type": "file", "path": sibling["rfilename"], "size": size, "oid": sibling["blobId"]}
        if isinstance(large, dict):
            entry["lfs"] = {"size": large.get("size", size), "oid": large.get("sha256")}
        entries.append(entry)
    return entries


def _of_bucket(place: Place, client: Client) -> Repository:
    # The listing is by prefix: the files of a folder, a single file, and others with the same beginning.
    below = f"/{quote(place.path)}" if place.path and not re.search(r"[*?[]", place.path) else ""
    entries = client.pages(f"/api/buckets/{place.id}/tree{below}?recursive=true", f"buckets/{place.id}")
    root = f"hf://buckets/{place.id}"
    files: dict[str, File] = {path: (f"{root}/{path}", size, tag) for path, size, tag in _files(entries, place)}

    def text(path: str) -> str | None:
        return _text(client, place, path, None, files[path]) if path in files else None

    return Repository(place, None, files, text)


def _text(client: Client, place: Place, path: str, commit: str | None, listed: File) -> str:
    """Returns the text of a file that the Hub lists.

    Raises:
        NotFoundError: the Hub does not have the file.
        StoreError: the Hub sends something else, such as HTML, which must not pass for a card without configurations.
    """
    at = "" if commit is None else f"/{commit}"
    _, size, _ = listed

    def read(answer: Answer) -> Answer:
        if size is not None and len(answer.body) != size:
            kind = answer.headers.get("Content-Type") or "something"
            raise StoreError(
                f"`{place.id}/{path}`: the Hub lists {size} bytes and sent {len(answer.body)}, as {kind}; try again "
                "later"
            )
        return answer

    try:
        answer = client.get(f"/{place.kind}/{place.id}/resolve{at}/{quote(path)}", place.id, read)
    except NotFoundError as error:
        if type(error) is not NotFoundError:
            raise
        raise NotFoundError(f"`{place.id}/{path}`: the Hub lists it and does not have it; try again later") from error
    return text_of(answer, f"`{place.id}/{path}`")


def _files(entries: Iterable[Any], place: Place) -> Iterable[tuple[str, int, str | None]]:
    """Yields paths, sizes and tags, which are the digests that the Hub also sends with a file."""
    for entry in entries:
        try:
            if entry["type"] != "file":
                continue
            large = entry.get("lfs") or {}
            path, size = str(entry["path"]), int(large.get("size", entry["size"]))
            tag = large.get("oid") or (entry.get("xetHash") if place.kind == "buckets" else entry.get("oid"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"`{place.id}`: the Hub lists a file that is not understood: {entry!r}") from error
        yield path, size, tag


@dataclass(frozen=True)
class _Copy:
    """A downloaded repository at a commit, in the layout of `huggingface_hub`."""

    cache: Path
    id: str
    commit: str

    @classmethod
    def find(cls, place: Place, settings: Settings) -> _Copy | None:
        """Returns the copy of a revision, if there is one.

        Raises:
            HubUnreachableError: there is no copy, and offline mode is set.
        """
        revision = place.revision or DEFAULT_REVISION
        found = cls(settings.cache, place.id, revision)
        ref = local(str(found.folder / "refs" / revision))
        if not _COMMIT.fullmatch(revision) and ref is not None and ref.is_file():
            # A damaged file names no commit.
            found = cls(settings.cache, place.id, ref.read_text(encoding="utf-8", errors="replace").strip())
        if _COMMIT.fullmatch(found.commit) and found.snapshot.is_dir():
            return found
        if settings.is_offline:
            raise HubUnreachableError(
                f"`{place.id}` at `{revision}` is not among the downloaded datasets in `{settings.cache}`, and the Hub "
                "is not asked: `HF_HUB_OFFLINE` is set"
            )
        return None

    @property
    def folder(self) -> Path:
        return self.cache / f"datasets--{self.id.replace('/', '--')}"

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.commit

    @property
    def tree(self) -> Path:
        """The list of all files of the commit, if it was downloaded."""
        return self.folder / "trees" / f"{self.commit}.json"

    @property
    def is_whole(self) -> bool:
        """Whether all files are known, though not necessarily downloaded."""
        return self.tree.is_file()

    def _is_absent(self, path: str) -> bool:
        """Whether the Hub has answered a request for this file that it does not exist."""
        return (self.folder / ".no_exist" / self.commit / path).is_file()

    def file(self, path: str, size: int | None) -> File | None:
        """Returns a downloaded file; None if it was not downloaded, or not completely."""
        if path.startswith("/") or ".." in path.split("/"):
            # The Hub's name would lead to another file of this machine.
            return None
        there = self.snapshot / path
        is_whole = there.is_file() and (size is None or there.stat().st_size == size)
        return (str(there), None, None) if is_whole else None

    def repository(self, place: Place, client: Client, why_copied: str | None = None) -> Repository:
        """Returns the files of the copy; known files that were not downloaded have their URI on the Hub."""
        remote: dict[str, File] = {}
        is_whole = self.is_whole
        if is_whole:
            remote = {path: self._remote(path, facts) for path, facts in self._tree().items()}
            files = {path: self.file(path, file[1]) or file for path, file in remote.items()}
        else:
            warnings.warn(
                f"of `{self.id}` at `{self.commit}` only some files may have been downloaded; those are used",
                stacklevel=2,
            )
            walked = (Path(folder) / name for folder, _, names in os.walk(self.snapshot) for name in names)
            files = {path.relative_to(self.snapshot).as_posix(): (str(path), None, None) for path in walked}

        def text(path: str) -> str | None:
            copied = self.file(path, remote[path][1] if path in remote else None)
            if copied is not None:
                there, _, _ = copied
                try:
                    return Path(there).read_bytes().decode()
                except UnicodeDecodeError as error:
                    raise DataError(f"`{there}`: it is not UTF-8: {error}") from error
            # If not all files are known, a README is expected to exist, but not the other `FILES`, which are rare.
            is_missing = not is_whole and path == card.README and not self._is_absent(path)
            if path not in remote and not is_missing:
                return None
            if why_copied is None:
                return _text(client, place, path, self.commit, remote[path])
            raise HubUnreachableError(
                f"`{self.id}`: `{path}`, which may say which files are what, was not downloaded, and {why_copied}; "
                f"the files alone are `hf://datasets/{self.id}@{self.commit}/**`"
            )

        return Repository(place, self.commit, files, text, why_copied, is_whole)

    def _tree(self) -> dict[str, Any]:
        try:
            files = json.loads(self.tree.read_text(encoding="utf-8"))["files"]
            return {str(path): dict(facts) for path, facts in files.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"`{self.tree}` is damaged: {error}; remove it, and the dataset is looked up again"
            ) from error

    def _remote(self, path: str, facts: dict[str, Any]) -> File:
        size, tag = facts.get("lfs_size", facts.get("size")), facts.get("lfs_sha256", facts.get("blob_id"))
        return f"hf://datasets/{self.id}@{self.commit}/{path}", size, tag
