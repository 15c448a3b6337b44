"""Packages that only some methods need."""

from __future__ import annotations

import importlib
from typing import Any

from forebay.exceptions import VersionError

_EXTRAS = {"pyarrow": "arrow", "torch": "torch"}
"""The extra of Forebay that installs a package."""


def import_for(what: str, package: str) -> Any:
    """Returns a package that `what` needs.

    Raises:
        VersionError: the package is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = f"install it with `pip install 'forebay[{_EXTRAS[package]}]'`"
        raise VersionError(f"{what} needs the package `{package}`: {error}; {hint}") from error
