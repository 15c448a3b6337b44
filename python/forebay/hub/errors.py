"""Refusals of the Hub, as exceptions that users of `datasets` catch."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from forebay.exceptions import (
    AccessDeniedError,
    DatasetNotFoundError,
    ForebayError,
    GatedDatasetError,
    NotFoundError,
    StoreError,
)
from forebay.hub.places import PARQUET_BRANCH

if TYPE_CHECKING:
    from forebay.hub.settings import Settings
    from forebay.hub.transport import Refusal


def refused(error: Refusal, what: str, settings: Settings, revision: str | None = None) -> ForebayError:
    """Returns the exception for an answer that a retry would not change; `revision` is the requested one."""
    code = error.headers.get("X-Error-Code") or ""
    said = settings.without_token(error.headers.get("X-Error-Message") or str(error))
    anonymous = settings.token is None
    if code == "GatedRepo":
        ask = f"ask for access at {settings.endpoint}/datasets/{what}"
        hint = "log in, or pass `token`" if anonymous else ask
        return as_datasets(GatedDatasetError)(f"dataset `{what}` is gated on the Hub; {hint}: {said}")
    if code == "RevisionNotFound":
        return as_datasets(DatasetNotFoundError)(
            f"dataset `{what}` has no such revision on the Hub: {_of_revision(revision) or said}"
        )
    if code == "EntryNotFound":
        return NotFoundError(f"`{what}`: no such file or folder on the Hub: {said}")
    if "credential" in said.lower():
        return AccessDeniedError(f"`{what}`: the Hub does not know the token; log in again, or pass another `token`")
    if error.status == 403 and error.headers.get("X-Error-Message"):
        # For example, the dataset is disabled, or the token lacks a permission.
        return as_datasets(DatasetNotFoundError)(
            f"dataset `{what}` cannot be accessed on the Hub at {settings.endpoint}: {said}"
        )
    if error.status in (401, 403, 404):
        hint = "; if it is private, log in or pass `token`" if anonymous else "; the token may not see it"
        return as_datasets(DatasetNotFoundError)(
            f"dataset `{what}` does not exist on the Hub at {settings.endpoint}, or cannot be accessed{hint}"
        )
    return StoreError(f"`{what}`: the Hub answered {error.status}: {said}")


def _of_revision(revision: str | None) -> str:
    """Returns the text for a revision that does not exist, with a likely reason."""
    if revision == PARQUET_BRANCH:
        return f"`{revision}`; the Hub makes it for datasets that its viewer shows, and has not made it for this one"
    if revision is not None and re.fullmatch(r"[0-9a-f]{4,39}", revision):
        return f"`{revision}`; a commit must be named by all of its 40 digits"
    return f"`{revision}`" if revision is not None else ""


def as_datasets(kind: type[DatasetNotFoundError]) -> type[DatasetNotFoundError]:
    """Returns a class that is also the one of `datasets`, if that is imported, as in programs that catch it."""
    module = sys.modules.get("datasets.exceptions")
    theirs: Any = getattr(module, "DatasetNotFoundError", None)
    # Classes are hashable, though their type does not say so.
    return kind if theirs is None else _both(cast("Any", kind), theirs)


@cache
def _both(kind: type[DatasetNotFoundError], theirs: type[Exception]) -> type[DatasetNotFoundError]:
    def reduce(self: DatasetNotFoundError) -> tuple[Any, ...]:
        _, arguments, attributes = kind.__reduce__(self)
        return _made, (kind, *arguments), attributes

    names = {"__reduce__": reduce, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, theirs), names)


def _made(kind: type[DatasetNotFoundError], *arguments: Any) -> DatasetNotFoundError:
    """Unpickles an exception from a process with `datasets` imported, which this process may not have imported."""
    return as_datasets(kind)(*arguments)
