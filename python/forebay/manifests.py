"""Manifests: everything that opening a dataset reads, in one object."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from forebay import _lib
from forebay.exceptions import SettingError
from forebay.sources import parse_sources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def save_manifest(
    splits: Sequence[tuple[str | None, _lib.Dataset]],
    uri: str | PathLike[str],
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Writes datasets of the core, by split, to one object."""
    if not isinstance(uri, str | PathLike):
        raise SettingError(f"uri: expected a path or a URI that ends in `.forebay`, got {uri!r}")
    sources, options = parse_sources(uri, storage_options)
    _lib.save_manifest(list(splits), sources[0], options)
