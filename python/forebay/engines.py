"""Other engines that read a dataset as a table."""

from __future__ import annotations

import sys
from typing import Any

from forebay import _lib
from forebay.exceptions import SettingError, VersionError


def check_datafusion(session: Any) -> None:
    """Refuses a `datafusion` that cannot read tables of the DataFusion that Forebay is built with.

    `session` is what `datafusion` passes: a session, or its codec for plans. If `datafusion` is not installed there is
    nothing to compare, and compatibility is up to the caller.

    Raises:
        VersionError: the major versions differ.
        SettingError: `session` is something else.
    """
    installed, ours = _installed(), _lib.DATAFUSION_VERSION
    major = ours.partition(".")[0]
    if installed is not None and installed.partition(".")[0] != major:
        raise VersionError(
            f"datafusion {installed} cannot read the table: this Forebay is built with DataFusion {ours}, and only "
            f"equal major versions can pass tables; install `datafusion=={major}.*`, run the query by `ds.sql` or "
            "`ds.query`, or hand over the rows: `ctx.from_arrow(ds)`"
        )
    is_session = session is None or hasattr(session, "__datafusion_logical_extension_codec__")
    if not is_session and type(session).__name__ != "PyCapsule":
        raise SettingError(
            f"session: expected the DataFusion session that is to read the table, got {type(session).__name__}; "
            "`ctx.register_table(name, ds)` passes it"
        )


def _installed() -> str | None:
    """Returns the version of `datafusion` that is imported, or else installed."""
    imported = getattr(sys.modules.get("datafusion"), "__version__", None)
    if isinstance(imported, str):
        return imported
    from importlib import metadata  # takes 10 ms, so not when Forebay is imported

    try:
        return metadata.version("datafusion")
    except metadata.PackageNotFoundError:
        return None
