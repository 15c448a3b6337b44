"""Resolves names of datasets, configurations and splits to files, as `datasets` does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from posixpath import join, normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from forebay.exceptions import DataError, HubUnreachableError, NotFoundError, SettingError
from forebay.hub import globs, patterns
from forebay.hub.card import Card
from forebay.hub.formats import holds_data, kind_of, only_parquet
from forebay.hub.kept import Kept
from forebay.hub.patterns import Listing
from forebay.hub.repository import File, Repository, look_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forebay.hub.client import Client
    from forebay.hub.places import Place


_OF_SEVERAL = re.compile(r"(.*-)(\d{5})(-of-(\d{5}).*)")
"""A name that contains the number of files."""


@dataclass(frozen=True)
class Wanted:
    """The arguments besides the name of a dataset."""

    name: str | None = None
    data_files: Any = None
    data_dir: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.data_files, Sequence | Mapping | Set) and not self.data_files:
            raise SettingError(f"data_files: got {self.data_files!r}, which is empty; leave it out for all files")

    @property
    def is_default(self) -> bool:
        """Whether all arguments are None."""
        return self.name is None and self.data_files is None and self.data_dir is None


@dataclass(frozen=True)
class Chosen:
    """The paths of each split of a configuration."""

    config: str
    splits: dict[str, list[str]]
    info: Mapping[str, Any]
    """`dataset_info` of the configuration in the card."""
    kept: Kept = field(default_factory=Kept)
    """The rows and columns of the files that belong to the configuration."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """What is missing from each incomplete split, in a copy whose file list is not complete."""


@dataclass(frozen=True)
class Resolution:
    """The files of each split of a configuration, at a commit."""

    chosen: Chosen
    splits: dict[str, list[File]]
    commit: str | None
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a split that was not downloaded completely cannot be read, if only copies can be."""

    def check(self, splits: Iterable[str]) -> None:
        """Refuses splits that cannot be read.

        Raises:
            HubUnreachableError: not all of their files were downloaded, and the Hub cannot be asked.
        """
        for split in splits:
            if split in self.missing:
                raise HubUnreachableError(self.missing[split])


def resolve(place: Place, wanted: Wanted, client: Client) -> Resolution:
    """Returns the files of a dataset on the Hub.

    Raises:
        DatasetNotFoundError: there is no such dataset or revision, or this user may not see it.
        NotFoundError: the dataset has no such files.
        SettingError: there is no such configuration, or the arguments do not fit together.
        DataError: the card is broken, or the files are not Parquet.
    """
    repository = _repository(place, client)
    with _as_missing(repository):
        return _resolution(repository, _choose(repository, wanted))


def resolve_named(place: Place, client: Client) -> Resolution:
    """Returns the file at a path, or all files that match a pattern, whatever splits their names mean.

    The files of a folder, or of a whole dataset, are divided into splits.

    Raises:
        As `resolve`.
    """
    repository = _repository(place, client)
    with _as_missing(repository):
        paths = _named(repository)
        if paths is None:
            return _resolution(repository, _choose(repository, Wanted()))
        if place.path not in repository.files:
            _check_parquet(repository.listing, {"train": paths}, {"train": [place.path]})
            paths = _only_parquet(repository.listing, paths)
        return _resolution(repository, Chosen("default", {"train": paths}, {}))


@contextmanager
def _as_missing(repository: Repository) -> Iterator[None]:
    """Converts errors about files missing from a copy whose file list is incomplete: they may be on the Hub.

    Raises:
        HubUnreachableError: instead of `NotFoundError`.
    """
    try:
        yield
    except NotFoundError as error:
        if repository.is_whole:
            raise
        raise HubUnreachableError(
            f"{error}: only some of its files may have been downloaded, and {repository.why_copied}"
        ) from None


def _repository(place: Place, client: Client) -> Repository:
    key = (place.kind, place.id, place.revision, place.path if place.kind == "buckets" else "")
    if key not in client.known:
        client.known[key] = look_up(place, client)
    known: Repository = client.known[key]
    return replace(known, place=place, endpoint=client.settings.endpoint)


def _resolution(repository: Repository, chosen: Chosen) -> Resolution:
    splits = {split: [repository.files[path] for path in paths] for split, paths in chosen.splits.items()}
    why = repository.why_copied
    missing = {
        split: f"`{repository.place.id}`: {what} was not downloaded, and {why}"
        for split, what in chosen.missing.items()
    }
    for split, files in splits.items() if why is not None else ():
        if gone := [uri for uri, _, _ in files if uri.startswith("hf://")]:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            missing[split] = f"`{repository.place.id}`: `{gone[0]}`{more} was not downloaded, and {why}"
    return Resolution(chosen, splits, repository.commit, missing)


def _choose(repository: Repository, wanted: Wanted) -> Chosen:
    place, listing = repository.place, repository.listing
    if place.is_export and wanted.data_files is None and wanted.data_dir is None:
        return _choose_export(repository, wanted)
    if not place.path:
        return choose(listing, repository.card(), wanted)
    paths = _named(repository)
    if paths is not None:
        if wanted.data_files is not None or wanted.data_dir is not None:
            raise SettingError(f"data_files: `{place}` names files already; pass the name of the dataset as the path")
        named = Listing(listing.root, [path for path in paths if holds_data(path)] or paths)
        try:
            return choose(named, Card(), Wanted(wanted.name))
        except NotFoundError:
            # Hidden files, which have no split.
            return choose(named, Card(), Wanted(wanted.name, [place.path]))
    if place.path not in listing.folders:
        raise _no_path(place, listing)
    card = repository.card(place.path) if place.kind == "buckets" else Card()
    return choose(listing, card, wanted, place.path)


def _named(repository: Repository) -> list[str] | None:
    """Returns the files that a place names by path or pattern; None for a folder or a whole dataset.

    Raises:
        NotFoundError: no file matches.
    """
    place = repository.place
    if place.path in repository.files:
        # Even if the name is also a pattern.
        return [place.path]
    if not globs.has_magic(place.path):
        return None
    paths = patterns.resolve(repository.listing, [place.path], only_data=False)
    if not paths:
        raise NotFoundError(f"no file matches `{place}`")
    return paths


def _no_path(place: Place, listing: Listing) -> NotFoundError:
    if not place.path:
        return NotFoundError(f"no data files in `{place}`")
    near = get_close_matches(place.path, [*listing.folders, *listing.paths], 3)
    hint = f"; did you mean `{'`, `'.join(near)}`?" if near else ""
    return NotFoundError(f"no such file or folder: `{place}`{hint}")


def _choose_export(repository: Repository, wanted: Wanted) -> Chosen:
    """Returns the files of the Hub's own Parquet: `config/split/0000.parquet`."""
    place, named = repository.place, _named(repository)
    below = f"{place.path}/" if place.path else ""
    inside = [path for path in repository.listing.paths if path.startswith(below)] if named is None else named
    parts = [PurePosixPath(path).parts for path in inside if path.endswith(".parquet")]
    parts = [part for part in parts if len(part) == 3]
    if not parts:
        raise _no_path(place, repository.listing)
    configs = list(dict.fromkeys(part[0] for part in parts))
    # A copy may lack other configs.
    is_only = len(configs) == 1 and (repository.is_whole or bool(place.path))
    config = wanted.name or (configs[0] if is_only else "default")
    if config not in configs and not repository.is_whole:
        raise NotFoundError(f"no config `{config}` in `{repository.listing.root}`, but `{'`, `'.join(configs[:20])}`")
    if config not in configs:
        raise _no_config(wanted.name, configs, place.id, {split for _, split, _ in parts})
    found: dict[str, list[str]] = {}
    for folder, split, name in parts:
        if folder == config:
            # The Hub exports only a part of large splits.
            found.setdefault(split.removeprefix("partial-"), []).append(f"{folder}/{split}/{name}")
    names = [split for split in patterns.KEYWORDS if split in found]
    ordered = names + sorted(found.keys() - set(names))
    return Chosen(config, {split: found[split] for split in ordered}, {})


def choose(listing: Listing, card: Card, wanted: Wanted, root: str = "") -> Chosen:
    """Returns the paths of each split of a configuration, in the order of `datasets`.

    Raises:
        As `resolve`.
    """
    folder = _joined(root, wanted.data_dir)
    first: Mapping[str, Any] = next(iter(card.configs.values()), {})
    if not listing.is_whole and card.configs:
        # The files of the first config may not be in the copy.
        first = card.configs.get(_config(card, wanted, listing.root, ()), {})
    is_named = True
    if wanted.data_files is not None:
        found = patterns.sanitized(wanted.data_files)
    elif wanted.data_dir is None and first.get("data_files") is not None:
        found = patterns.sanitized(first["data_files"])
    else:
        found, is_named = patterns.infer(listing, folder), False
    files = _resolved(listing, found, folder)
    _check_parquet(listing, files, found if is_named else None)
    files = {split: _only_parquet(listing, paths) for split, paths in files.items()}
    config = _config(card, wanted, listing.root, files)
    said: Mapping[str, Any] = {}
    if wanted.data_files is not None and wanted.data_dir is None:
        # Files named by the user are taken as they are.
        files = _resolved(listing, found, folder, only_data=False)
    elif wanted.data_files is None and wanted.data_dir is None and config in card.configs:
        said = card.configs[config]
        folder = _joined(root, said.get("data_dir"))
        found, files = _of_config(listing, said, config, folder)
    if not any(files.values()):
        raise NotFoundError(f"no data files of the config `{config}` in `{listing.root}`")
    # Not if files are named, nor for a config called `default` that is not the card's default.
    is_told = (
        wanted.data_files is None and wanted.data_dir is None and (wanted.name is not None or card.default is not None)
    )
    is_said = wanted.data_files is not None or said.get("data_files") is not None
    missing = {} if listing.is_whole else _missing(listing, found, folder, is_said=is_said)
    return Chosen(config, files, card.info(config, is_told=is_told), card.kept(config), missing)


def _of_config(
    listing: Listing, said: Mapping[str, Any], config: str, folder: str
) -> tuple[patterns.Patterns, dict[str, list[str]]]:
    """Returns the patterns of each split of a configuration, and the files that match them."""
    try:
        own = said.get("data_files")
        found = patterns.infer(listing, folder) if own is None else patterns.sanitized(own)
        return found, _resolved(listing, found, folder)
    except NotFoundError as error:
        raise NotFoundError(f"the config `{config}` of the card: {error}") from error


def _resolved(
    listing: Listing, found: patterns.Patterns, folder: str, *, only_data: bool = True
) -> dict[str, list[str]]:
    return {
        split: [path for pattern in split_patterns for path in _fitting(listing, pattern, folder, only_data=only_data)]
        for split, split_patterns in found.items()
    }


def _fitting(listing: Listing, pattern: str, folder: str, *, only_data: bool = True) -> list[str]:
    own, below = _placed(pattern, listing, folder)
    try:
        return patterns.resolve(listing, [own], below, only_data=only_data)
    except NotFoundError:
        if listing.is_whole:
            raise
        # Reported by `_missing`.
        return []


def _missing(listing: Listing, found: patterns.Patterns, folder: str, *, is_said: bool) -> dict[str, str]:
    """Returns what each split lacks in a copy whose file list is incomplete, as far as names tell.

    Every given pattern must match a file, and of names with a number of files, none may be left out.
    """
    missing: dict[str, str] = {}
    for split, split_patterns in found.items():
        for pattern in split_patterns:
            paths = _fitting(listing, pattern, folder)
            others = replace(listing, paths=sorted(_left_out(paths)))
            if not paths and is_said:
                missing.setdefault(split, f"what fits `{pattern}`")
            elif left_out := _fitting(others, pattern, folder):
                missing.setdefault(split, f"`{left_out[0]}`, by the names of the others,")
    return missing


def _left_out(paths: Iterable[str]) -> set[str]:
    """Returns the missing names among names that contain the number of files."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for path in paths:
        if match := _OF_SEVERAL.fullmatch(path):
            start, number, end, total = match.groups()
            found.setdefault((start, total), {})[int(number)] = end
    return {
        f"{start}{number:05}{next(iter(ends.values()))}"
        for (start, total), ends in found.items()
        for number in range(int(total))
        if number not in ends
    }


def _placed(pattern: str, listing: Listing, folder: str) -> tuple[str, str]:
    """Returns a pattern and the folder that it is relative to: `folder`, unless the pattern names the location.

    Raises:
        SettingError: the pattern leads out of the listed files.
    """
    for prefix in listing.prefixes:
        if pattern.startswith(prefix):
            own = pattern.removeprefix(prefix)
            return (own if prefix.startswith("hf:") else unquote(own.partition("?")[0])), ""
    if listing.is_local and "://" not in pattern:
        whole = normpath(join(listing.root, folder, pattern))
        if f"{whole}/".startswith(f"{listing.root}/"):
            return whole.removeprefix(listing.root).lstrip("/") or ".", ""
    elif "://" not in pattern and not pattern.startswith("/") and ".." not in pattern.split("/"):
        return pattern.rstrip("/"), folder
    hint = "; `load_dataset('parquet', data_files=...)` takes files from anywhere" if "://" in pattern else ""
    raise SettingError(
        f"data_files: `{pattern}` is not in `{listing.root}`; expected a path or a pattern below it{hint}"
    )


def _joined(root: str, folder: Any) -> str:
    if folder is None:
        return root
    if not isinstance(folder, str) or folder.startswith("/") or "://" in folder or ".." in folder.split("/"):
        raise SettingError(f"data_dir: expected a folder of the dataset, got {folder!r}")
    parts = [part for part in f"{root}/{folder}".split("/") if part not in ("", ".")]
    return "/".join(parts)


def _config(card: Card, wanted: Wanted, root: str, splits: Iterable[str]) -> str:
    default = card.default
    known = [*card.configs] or ["default", *card.infos]
    name = wanted.name if wanted.name is not None else default
    if name is not None:
        if name not in known and (wanted.name is not None or card.configs):
            raise _no_config(name, known, root, splits)
        return name
    if len(card.configs) > 1 and wanted.data_files is None and wanted.data_dir is None:
        raise _no_config(None, known, root, splits)
    return "default"


def _no_config(name: Any, known: list[str], where: str, splits: Iterable[str]) -> SettingError:
    shown = f"it has `{'`, `'.join(known[:20])}`{' and more' if len(known) > 20 else ''}" if known else "it has none"
    if name is None:
        return SettingError(f"name: `{where}` has several configs; choose one: {shown}")
    near = [f"split={name!r}"] if name in splits else get_close_matches(str(name), known, 3)
    hint = f"did you mean `{'`, `'.join(near)}`? {shown}" if near else shown
    return SettingError(f"name: no config {name!r} in `{where}`; {hint}")


def _only_parquet(listing: Listing, paths: list[str]) -> list[str]:
    prefix = f"hf://{listing.root}/"
    return [path[len(prefix) :] for path in only_parquet(prefix + path for path in paths)]


def _check_parquet(listing: Listing, files: Mapping[str, list[str]], named: patterns.Patterns | None) -> None:
    """Refuses files that are mostly not Parquet; `named` are the patterns of a user or a card that they match.

    If not all files are known, splits without files are left to `_missing`.

    Raises:
        NotFoundError: there are no data files.
        SettingError: a split has no files.
        DataError: the files are of another kind, or of several kinds.
    """
    kinds = {split: kind_of(paths) for split, paths in files.items() if paths or listing.is_whole}
    if set(kinds.values()) == {"parquet"}:
        return
    # Markdown counts as a kind, but is not data.
    if not any(kind_of(path for path in paths if not path.endswith(".md")) for paths in files.values()):
        raise _no_data(listing, named)
    if set(kinds.values()) == {"parquet", None}:
        empty = next(split for split, kind in kinds.items() if kind is None)
        why = "none of its patterns matches a file" if named is None else f"no file matches {_quoted(named[empty])}"
        raise SettingError(f"the split `{empty}` of `{listing.root}` has no files: {why}{_there(listing)}")
    shown = ", ".join(f"`{split}` is {kind or 'nothing'}" for split, kind in kinds.items())
    raise DataError(f"`{listing.root}` is not Parquet: {shown}{_export(listing)}")


def _no_data(listing: Listing, named: patterns.Patterns | None) -> NotFoundError:
    """Returns the error for a dataset, or patterns, without a data file."""
    asked = "" if named is None else f" match {_quoted(pattern for of_split in named.values() for pattern in of_split)}"
    export = "" if kind_of(listing.paths) == "parquet" else _export(listing)
    return NotFoundError(f"no data files in `{listing.root}`{asked}{_there(listing)}{export}")


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _there(listing: Listing) -> str:
    """Returns some of the files that are there, for messages; notes about the data only if there is nothing else."""
    paths = [path for path in listing.paths if holds_data(path) and not path.endswith(".md")] or listing.paths
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"; it has {_quoted(paths[:3])}{more}" if paths else ""


def _export(listing: Listing) -> str:
    """Returns what may help if a dataset is not Parquet."""
    is_of_hub = listing.root.startswith("datasets/")
    return "; `@~parquet` behind the name is the Hub's own copy as Parquet, where it has one" if is_of_hub else ""
