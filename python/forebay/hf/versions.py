"""The supported versions of `datasets`, whose private interfaces, used here, change between releases."""

from __future__ import annotations

import importlib
import re
from typing import Any

from forebay.exceptions import VersionError

OLDEST = (5, 0)
"""The oldest minor version of `datasets` that is tested."""

NEWEST = (5, 2)
"""The newest minor version of `datasets` that is tested."""

SUPPORTED = f">={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"


def import_datasets(what: str) -> Any:
    """Returns the package `datasets`, which `what` needs.

    Raises:
        VersionError: `datasets` is not installed, or has a version that is not supported.
    """
    needed = f"{what} needs the package `datasets` ({SUPPORTED})"
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise VersionError(f"{needed}: {error}; install it with `pip install 'datasets{SUPPORTED}'`") from error
    found = re.match(r"(\d+)\.(\d+)", datasets.__version__)
    if found is None or not OLDEST <= tuple(map(int, found.groups())) <= NEWEST:
        raise VersionError(
            f"{needed}, got {datasets.__version__}; install one of these, or a Forebay that knows yours. Streams of "
            "`ds.to_torch()` and `ds.batches()` need no `datasets`"
        )
    return datasets
