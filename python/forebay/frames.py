"""Where in a program a warning belongs."""

from __future__ import annotations

import inspect


def level_of_loop() -> int:
    """Returns the `stacklevel`, for the caller, of the first frame that is not of this package.

    Nor is it of `contextlib`, which stands between the end of an iteration and what it tells then.
    """
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("forebay", "contextlib"):
        frame, level = frame.f_back, level + 1
    return level
