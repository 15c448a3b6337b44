"""Assigns files to splits, by given patterns or by the names that `datasets` recognises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from posixpath import basename
from typing import Any

from forebay.exceptions import NotFoundError, SettingError
from forebay.hub import globs
from forebay.hub.formats import holds_data

KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in names of folders and files that mean a split."""

_SHARDED = "data/{split}-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*"
_APART = "[-._ 0-9]"
_IN_FOLDERS = ("**/{word}/**", "**/{word}{apart}*/**", "**/*{apart}{word}/**", "**/*{apart}{word}{apart}*/**")
_IN_FILES = ("**/{word}{apart}*", "**/*{apart}{word}{apart}*")

SPLIT_NAME = re.compile(r"^\w+(\.\w+)*$")
"""Valid names of splits."""

_IGNORED = frozenset(
    {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"}
)
"""Files about a dataset, not of it, unless a pattern names them."""

Patterns = dict[str, list[str]]
"""The patterns of each split."""


def _keyword_patterns(forms: Sequence[str]) -> Patterns:
    return {
        split: [form.format(word=word, apart=_APART) for word in words for form in forms]
        for split, words in KEYWORDS.items()
    }


_BY_NAME: list[Patterns] = [
    {"logs": ["**/*.eval"]},
    {"test": ["**/task.toml", "**/instruction.md"]},
    _keyword_patterns(_IN_FOLDERS),
    _keyword_patterns(_IN_FILES),
    {"train": ["**"]},
]
"""Tried one after another, until a pattern matches."""


@dataclass(frozen=True)
class Listing:
    """The files below a root, by their paths below it, sorted."""

    root: str
    paths: list[str]
    prefixes: tuple[str, ...] = ()
    """Prefixes of URIs and URLs of the files."""
    is_local: bool = False
    """Whether the root is a local folder, so that patterns may contain `.` and `..`, or begin with the root."""
    is_whole: bool = True
    """Whether these are all files below the root."""
    folders: frozenset[str] = field(init=False)
    _marks: list[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folders: set[str] = set()
        for path in self.paths:
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        object.__setattr__(self, "folders", frozenset(folders))
        of_root = _marks(f"{self.root}/x")
        marks = [tuple(map(sum, zip(of_root, _marks(path), strict=True))) for path in self.paths]
        object.__setattr__(self, "_marks", marks)

    def find(self, pattern: str, folder: str = "", *, word: str = "") -> list[str]:
        """Returns the files below a folder that match a pattern; hidden ones only if the pattern names the hidden part.

        For speed, only paths that contain `word` are tried.

        Raises:
            NotFoundError: no file matches.
        """
        whole = "/".join(part for part in (self.root, folder, pattern) if part)
        ignored = _IGNORED - {basename(pattern)}
        fits = globs.compiled(whole).match if globs.has_magic(whole) else re.compile(re.escape(whole) + r"\Z").match
        marks, prefix = _marks(whole), f"{self.root}/"
        found = [
            path
            for path, own in zip(self.paths, self._marks, strict=True)
            if word in path and own == marks and fits(prefix + path) and basename(path) not in ignored
        ]
        if not found:
            raise NotFoundError(f"no file matches `{whole}`")
        return found


def _marks(path: str) -> tuple[int, int]:
    """Counts folders `__x` and parts `.x`; files match only patterns with the same counts."""
    if "/." not in path and "__" not in path and not path.startswith("."):
        return 0, 0
    parts = [part for part in path.split("/") if part not in ("", ".")]
    special = sum(part.startswith("__") for part in parts[:-1])
    return special, sum(part.startswith(".") and part.strip(".") != "" for part in parts)


def infer(listing: Listing, folder: str = "") -> Patterns:
    """Returns the patterns of the splits that file and folder names below a folder define.

    Raises:
        NotFoundError: there are no files.
        SettingError: the name of a split is invalid.
    """
    sharded = _found(lambda: listing.find(_SHARDED.format(split="*"), folder))
    expression = re.sub(r"{(.+?)}", r"(?P<split>.+)", basename(_SHARDED))
    found = {match["split"] for path in sharded if (match := re.search(expression, basename(path)))}
    if found:
        if wrong := [name for name in sorted(found) if not SPLIT_NAME.match(name)]:
            raise SettingError(
                f"split: `{wrong[0]}`, by the name of a file, is not a valid split name: use letters, digits and `_`"
            )
        names = [name for name in KEYWORDS if name in found] + sorted(found - KEYWORDS.keys())
        return {name: [_SHARDED.format(split=name)] for name in names}
    for patterns in _BY_NAME:
        splits = [name for name, tried in patterns.items() if _any(listing, tried, folder)]
        if splits:
            return {name: patterns[name] for name in splits}
    raise NotFoundError(f"no data files below `{'/'.join(part for part in (listing.root, folder) if part)}`")


def _any(listing: Listing, patterns: Iterable[str], folder: str) -> bool:
    """Whether any of the patterns matches a file."""
    for pattern in patterns:
        word = max(re.findall("[a-z]+", pattern), key=len, default="")
        try:
            listing.find(pattern, folder, word=word)
        except NotFoundError:
            continue
        return True
    return False


def _found(find: Callable[[], list[str]]) -> list[str]:
    try:
        return find()
    except NotFoundError:
        return []


def resolve(listing: Listing, patterns: Sequence[str], folder: str = "", *, only_data: bool = True) -> list[str]:
    """Returns the files of a split: those of each pattern in turn, sorted.

    Raises:
        NotFoundError: a named file does not exist.
    """
    found = []
    for pattern in patterns:
        paths = _found(partial(listing.find, pattern, folder))
        if only_data:
            paths = [path for path in paths if holds_data(path)]
        if not paths and not globs.has_magic(pattern):
            named = "/".join(part for part in (folder, pattern) if part)
            raise _missing(named, listing)
        found.extend(paths)
    return found


def _missing(named: str, listing: Listing) -> NotFoundError:
    if named in listing.paths:
        return NotFoundError(
            f"`{named}` in `{listing.root}` is not a data file, judging by its name; expected it to end in `.parquet`"
        )
    near = [path for path in listing.paths if basename(path) == basename(named)]
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return NotFoundError(f"no file `{named}` in `{listing.root}`{hint}")


def sanitized(data_files: Any, where: str = "data_files") -> Patterns:
    """Returns patterns by split, from what a user or a card gives: a pattern, a list of them, or these by split.

    Raises:
        SettingError: `data_files` is anything else.
    """
    if isinstance(data_files, str):
        return {"train": [data_files]}
    if isinstance(data_files, Mapping) and data_files:
        return _by_split(data_files.items(), where)
    # An array without dimensions only claims to be iterable.
    is_scalar = getattr(data_files, "shape", None) == ()
    if isinstance(data_files, Iterable) and not isinstance(data_files, Mapping) and not is_scalar:
        items = list(data_files)
        if not any(isinstance(item, Mapping) for item in items):
            return {"train": _list(items, where)}
        for item in items:
            if not isinstance(item, Mapping) or set(item) != {"split", "path"}:
                raise SettingError(f"{where}: expected items of `split` and `path`, got {item!r}")
        return _by_split(((item["split"], item["path"]) for item in items), where)
    raise SettingError(
        f"{where}: expected a path, a pattern, a list of them, or those of each split; got {data_files!r}"
    )


def _by_split(named: Iterable[tuple[Any, Any]], where: str) -> Patterns:
    found: Patterns = {}
    for name, patterns in named:
        # A number, or a `NamedSplit` of `datasets`.
        split = str(name)
        if not SPLIT_NAME.match(split):
            raise SettingError(
                f"{where}: {name!r} is not a valid split name: use letters, digits and `_`, with dots between them"
            )
        if split in found:
            raise SettingError(f"{where}: the split `{split}` is there twice")
        found[split] = _list(patterns, where)
    return found


def _list(patterns: Any, where: str) -> list[str]:
    found = (
        [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else [patterns]
    )
    if wrong := [pattern for pattern in found if not isinstance(pattern, str) or not pattern]:
        raise SettingError(f"{where}: expected paths and patterns as text, got {wrong[0]!r}")
    return found
