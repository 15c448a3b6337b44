"""Finds the line of a program that a warning is about."""

from __future__ import annotations

import inspect


def level_of_loop(*others: str) -> int:
    """Returns the `stacklevel`, for the caller, of the first frame outside this package and `others`.

    Frames of `contextlib`, which call what runs at the end of an iteration, are also skipped.
    """
    passed_over = ("forebay", "contextlib", *others)
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in passed_over:
        frame, level = frame.f_back, level + 1
    return level
