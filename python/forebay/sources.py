"""Opens the sources of `load_dataset` as datasets of the core: names on the Hub, folders with a card, files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from forebay import _lib, splits
from forebay.exceptions import (
    AccessDeniedError,
    DatasetNotFoundError,
    GatedDatasetError,
    HubUnreachableError,
    NotFoundError,
    SettingError,
    StoreError,
)
from forebay.familiar import OTHER_FORMATS
from forebay.hub import patterns, places, settings
from forebay.hub.card import FILES, Card
from forebay.hub.card import read as read_card
from forebay.hub.client import Client, Route
from forebay.hub.kept import Kept
from forebay.hub.resolve import Chosen, Wanted, choose, resolve, resolve_named
from forebay.options import AS_JSON, check_options, check_text

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.hub.repository import File

Tick = Callable[[int, int], None]

_HUB_OPTIONS = ("hf_endpoint", "hf_token", "hf_patience")
"""Options that no other store has."""

EXPECTED = "source: expected a path, a URI, a list of them or a store"


@dataclass
class Request:
    """The arguments of `load_dataset` that select files."""

    sources: list[str]
    wanted: Wanted
    split: Any
    revision: str | None
    token: str | bool | None
    options: dict[str, str]
    tick: Tick
    hub_options: dict[str, str] = field(default_factory=dict)
    """Options that only the Hub's store gets."""

    def keep_for_hub(self, **options: str) -> None:
        """Leaves the Hub's options, and these, to its store: the token is for no other, and no other has them."""
        given = [name for name in self.options if name.removesuffix(AS_JSON) in _HUB_OPTIONS]
        self.hub_options |= {name: self.options.pop(name) for name in given} | options


@dataclass
class Opened:
    """Datasets of the core by split, and what a card says about them."""

    splits: dict[str, _lib.Dataset]
    info: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)


@dataclass
class _Found:
    """Files by split, and what a card says about them."""

    splits: dict[str, list[File]] | None = None
    """None if the core is to find them."""
    info: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    commit: str | None = None
    check: Callable[[Iterable[str]], None] = lambda _: None
    """Refuses splits that cannot be read."""


def parse_sources(source: Any, storage_options: Mapping[str, Any] | None) -> tuple[list[str], dict[str, str]]:
    """Returns URIs and options. Takes apart `obstore` stores, whose client cannot be passed between extensions."""
    options = check_options(storage_options)
    if type(source).__module__.split(".")[0] == "obstore":
        from forebay.stores import from_obstore

        uri, found = from_obstore(source)
        return [uri], found | options
    if isinstance(source, str | PathLike):
        return [check_text("source", fspath(source))], options
    _refuse_rows(source)
    try:
        # The keys of a mapping would be taken for paths.
        sources = [] if isinstance(source, Mapping) else [check_text("source", fspath(item)) for item in source]
    except TypeError:
        sources = []
    if not sources:
        raise SettingError(f"{EXPECTED}, got {source!r}")
    return sources, options


def _refuse_rows(source: Any) -> None:
    """Refuses objects that hold rows: iterating over them gives column names or lines, not paths."""
    kind = type(source)
    if hasattr(source, "read"):
        raise SettingError(f"{EXPECTED}, got an open file ({kind.__name__}); pass its path")
    if kind.__module__.partition(".")[0] == "datasets" and not isinstance(source, Mapping):
        raise SettingError(
            f"{EXPECTED}, got a `{kind.__name__}` of `datasets`; `from_hf(dataset)` takes over one of "
            "`streaming=True`, and `dataset.to_parquet(file)` writes another"
        )
    # Series and arrays of paths have one dimension.
    if len(getattr(source, "shape", ()) or ()) > 1:
        raise SettingError(f"{EXPECTED}, got a {kind.__name__} in memory; write it to Parquet, and pass its path")


def open_sources(request: Request) -> Opened:
    """Opens the requested split, or all splits.

    Raises:
        ForebayError: see `load_dataset`.
    """
    parts = None if request.split is None else splits.parse(request.split)
    found = _find(request)
    if found.splits is None:
        try:
            return _open_listed(request, parts, found.info)
        except NotFoundError as error:
            instead = _with_owner(request.sources[0])
            if not instead or len(request.sources) > 1:
                raise
            raise type(error)(f"{error}{instead}") from error.__cause__
    where = ", ".join(map(_shown, request.sources))
    if parts is None:
        found.check(found.splits)
        wanted = [(name, [(name, _once(files, name, where))]) for name, files in found.splits.items()]
    else:
        names = splits.names(parts, list(found.splits), where)
        found.check(names)
        wanted = [("+".join(names), [(name, _once(found.splits[name], name, where)) for name in names])]
        parts = _of_all(parts, names)
    opened = dict(_lib.Dataset.open_files(wanted, found.commit, request.options, request.hub_options, request.tick))
    return Opened(_cut(opened, parts, request.split), found.info, found.kept)


def _open_listed(request: Request, parts: list[splits.Part] | None, info: Mapping[str, Any]) -> Opened:
    """Opens sources whose splits the core finds by file names."""
    if parts is None:
        opened = _lib.Dataset.open_splits(request.sources, request.options, request.hub_options, request.tick)
        return Opened(dict(opened), info)
    text = splits.text_of(request.split)
    names = "+".join(splits.names(parts, None, ""))
    native = _lib.Dataset.open(request.sources, names, request.options, request.hub_options, request.tick)
    return Opened(_cut({text: native}, _of_all(parts, [name for name, _ in native.parts]), text), info)


def _of_all(parts: list[splits.Part], names: list[str]) -> list[splits.Part]:
    """Returns the parts with `all` replaced by the splits it stands for."""
    is_all = len({part.name for part in parts}) == 1 and parts[0].name == splits.ALL and splits.ALL not in names
    if is_all and any(part.is_slice for part in parts):
        raise SettingError(
            f"split: `{splits.ALL}` cannot be cut; name the splits: `{'+'.join(f'{name}[:10%]' for name in names)}`"
        )
    return [splits.Part(name) for name in names] if is_all else parts


def _cut(opened: dict[str, _lib.Dataset], parts: list[splits.Part] | None, split: Any) -> dict[str, _lib.Dataset]:
    if parts is None:
        return opened
    ((name, native),) = opened.items()
    ranges = splits.ranges(parts, native.parts, splits.text_of(split))
    return {name: native if ranges is None else native.select_ranges(ranges)}


def _shown(source: str) -> str:
    """Returns a source for messages, without the query of a URL, which may be a signature."""
    return source.split("?", 1)[0] if source.startswith(("http://", "https://")) else source


def _with_owner(source: str) -> str:
    """Returns advice if a path may be meant as a dataset on the Hub."""
    if (meant := places.meant_by(source)) is not None:
        return f"; a dataset of the Hub is named `{meant}`"
    is_name = re.fullmatch(r"\w[\w-]*", source) is not None
    return f"; a dataset of the Hub is named with its owner, as in `owner/{source}`" if is_name else ""


def _once(files: Sequence[File], split: str, where: str) -> list[File]:
    """Returns the files of a split, each once, as several patterns may match a file.

    Raises:
        SettingError: there are no files, or a file name is not Unicode.
    """
    if not files:
        raise SettingError(f"split: `{split}` of `{where}` has no files: none of its patterns matches a file")
    for file in files:
        check_text("data_files", file[0])
    return list(dict.fromkeys(files))


def _find(request: Request) -> _Found:
    """Returns the files of the splits, or a result that leaves finding them to the core."""
    sources, wanted = request.sources, request.wanted
    place = (places.parse(sources[0]) or _of_url(sources[0], request)) if len(sources) == 1 else None
    if place is not None:
        try:
            resolution = resolve(place.at(request.revision), wanted, _client(request))
        except (DatasetNotFoundError, HubUnreachableError) as error:
            if not _may_be_folder(request) or isinstance(error, GatedDatasetError):
                raise
            what = f"there is no local folder `{sources[0]}`; as a dataset of the Hub: {error}"
            raise type(error)(what) from error.__cause__
        chosen = resolution.chosen
        return _Found(resolution.splits, chosen.info, chosen.kept, resolution.commit, resolution.check)
    if len(sources) == 1 or not any(map(_uri, sources)):
        if request.revision is not None and wanted.data_files is None:
            raise SettingError(
                f"revision: `{', '.join(map(_shown, sources))}` is not on the Hub; only its datasets have revisions"
            )
        return _find_elsewhere(request)
    if not wanted.is_default:
        raise SettingError(
            "name, data_files, data_dir: they choose among the files of one dataset, and a list names files"
        )
    return _of_patterns({"train": sources}, "", request)


def _may_be_folder(request: Request) -> bool:
    """Whether what was looked up on the Hub may be meant as a local folder."""
    return request.revision is None and places.is_name(request.sources[0])


def _uri(source: str) -> places.Place | None:
    return places.parse(source) if source.startswith("hf://") else None


def _of_url(source: str, request: Request) -> places.Place | None:
    if not source.startswith(("http://", "https://")):
        return None
    given = request.options | request.hub_options
    return places.of_url(source, settings.endpoint_of(given.get("hf_endpoint")))


def _client(request: Request) -> Client:
    """Returns the Hub's client, and passes its endpoint and token on to the store of the files."""
    options = request.options | request.hub_options
    token = options.get("hf_token") if request.token is None else request.token
    found = settings.current(token, options.get("hf_endpoint"))
    request.keep_for_hub(hf_endpoint=found.endpoint, hf_token=found.token or "")
    patience = _seconds(options, "hf_patience" if "hf_patience" in options else "retry_for")
    timeout = _seconds(options, "read_timeout") or Route.timeout
    return Client(found, patience, Route(timeout, options.get("proxy_url"), options.get("ca_certificate")))


def _seconds(options: Mapping[str, str], name: str) -> float | None:
    """Returns the value of an option that is a time; None if it is not given."""
    return _lib.seconds_of(name, options[name]) if name in options else None


def _find_elsewhere(request: Request) -> _Found:
    """Returns the files of a local folder with a card, or of splits named by the user."""
    wanted = request.wanted
    source = request.sources[0]
    token = "" if request.token is False else request.token
    if source.endswith(".forebay"):
        # The objects of a manifest may be on the Hub.
        request.keep_for_hub()
        if isinstance(token, str):
            request.hub_options.setdefault("hf_token", token)
    if len(request.sources) > 1:
        if not wanted.is_default:
            raise SettingError(
                "name, data_files, data_dir: they choose among the files of one folder, and a list names files"
            )
        return _Found()
    # Even if there is a folder of that name.
    if source == "parquet" and wanted.data_files is not None:
        return _of_patterns(patterns.sanitized(wanted.data_files), wanted.data_dir or "", request)
    if source == "parquet" and wanted.data_dir is not None:
        return _of_data_dir(wanted.data_dir, request)
    folder = None if "://" in source else places.local(source)
    if folder is not None and folder.is_dir():
        card = _card(folder)
        if card.configs:
            return _of_folder(folder, card, wanted)
        if wanted.is_default:
            return _Found(info={} if card.default is None else card.info(card.default))
        # Without the card's features, as in `datasets`, if the files are named otherwise.
        return _of_folder(folder, Card(), wanted)
    if source in OTHER_FORMATS and (wanted.data_files is not None or wanted.data_dir is not None):
        raise SettingError(f"path: `{source}` files are not read, only Parquet; `datasets` converts with `to_parquet`")
    if source == "parquet":
        form = "`data_files`, a path, a pattern, or those of each split, or `data_dir`, a folder"
        raise SettingError(f"data_files: `parquet` needs the files: {form}")
    if wanted.name is not None:
        raise SettingError(
            f"name: `{source}` has no configs, which datasets of the Hub and folders with a card have; a split is "
            f"`split={wanted.name!r}`{_with_owner(source)}"
        )
    if wanted.is_default:
        return _Found()
    base = "/".join(part for part in (source.rstrip("/"), (wanted.data_dir or "").strip("/")) if part)
    if wanted.data_files is None:
        request.sources = [f"{base}/"]
        return _Found()
    return _of_patterns(patterns.sanitized(wanted.data_files), base, request)


def _of_data_dir(data_dir: str, request: Request) -> _Found:
    """Returns the files of a `data_dir` without a dataset: split by names, ignoring any card there."""
    if "://" in data_dir:
        request.sources, request.wanted = [data_dir], Wanted()
        return _find(request)
    folder = places.local(data_dir)
    if folder is None or not folder.is_dir():
        raise NotFoundError(f"data_dir: no such folder: `{data_dir}`")
    return _of_folder(folder, Card(), Wanted())


def _card(folder: Path) -> Card:
    return read_card((_text(folder / name) for name in FILES), str(folder))


def _text(path: Path) -> str | None:
    """Returns the text of a file; None if it does not exist."""
    try:
        # With its own line ends, which matter for the head of a card.
        return path.read_bytes().decode("utf-8-sig", errors="replace") if path.is_file() else None
    except PermissionError as error:
        # In a folder that may not be entered, nobody knows whether the file exists.
        denied = path if os.access(path.parent, os.X_OK) else path.parent
        raise AccessDeniedError(f"permission denied for `{denied}`; this user has not the rights to read it") from error
    except OSError as error:
        raise StoreError(f"cannot read `{path}`: {error}") from error


def _of_folder(folder: Path, card: Card, wanted: Wanted) -> _Found:
    root = folder.resolve()
    listing = patterns.Listing(root.as_posix(), sorted(places.files_below(root)), is_local=True)
    chosen: Chosen = choose(listing, card, wanted)
    if not card.configs and wanted.data_files is None:
        _lib.refuse_tables(str(folder), listing.paths, [path for paths in chosen.splits.values() for path in paths])
    return _Found(
        {split: [((root / path).as_posix(), None, None) for path in paths] for split, paths in chosen.splits.items()},
        chosen.info,
        chosen.kept,
    )


def _of_patterns(found: patterns.Patterns, base: str, request: Request) -> _Found:
    """Returns the files named by the user, wherever they are."""
    client = None
    commits: set[str | None] = set()
    files: dict[str, list[File]] = {}
    for split, named in found.items():
        files[split] = []
        for pattern in named:
            whole = _below(base, pattern)
            place = _uri(whole) or _of_url(whole, request)
            if place is None:
                commits.add(None)
                files[split].append((whole, None, None))
                continue
            client = client or _client(request)
            resolution = resolve_named(place.at(request.revision), client)
            resolution.check(resolution.splits)
            commits.add(resolution.commit)
            files[split].extend(file for of_split in resolution.splits.values() for file in of_split)
    commit = next(iter(commits)) if len(commits) == 1 else None
    return _Found(files, commit=commit)


def _below(base: str, pattern: str) -> str:
    is_whole = not base or "://" in pattern or pattern.startswith(("/", "~"))
    return pattern if is_whole else f"{base.rstrip('/')}/{pattern}"
