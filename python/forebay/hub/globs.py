"""Glob patterns as in fsspec: `**` matches any number of folders, `*` and `?` stay within one."""

from __future__ import annotations

import re
from functools import lru_cache

from forebay.exceptions import SettingError


def has_magic(pattern: str) -> bool:
    """Whether a path is a pattern."""
    return re.search(r"[*?[]", pattern) is not None


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression for whole paths.

    Raises:
        SettingError: `**` is only part of a folder's name.
    """
    parts = pattern.split("/")
    found = []
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        if part == "*":
            found.append("[^/]+" if is_last else "[^/]+/")
        elif part == "**":
            found.append(".*" if is_last else "(?:.+/)?")
        elif "**" in part:
            raise SettingError(
                f"data_files: in `{pattern}`, `**` is not the whole name of a folder; write `**/*.parquet`"
            )
        else:
            found.append(_segment(part) + ("" if is_last else "/"))
    return re.compile(f"(?s:{''.join(found)})\\Z")


def _segment(part: str) -> str:
    """Returns the regular expression for one name."""
    found: list[str] = []
    place = 0
    while place < len(part):
        char = part[place]
        place += 1
        if char == "*":
            if not found or found[-1] != "[^/]*":
                found.append("[^/]*")
        elif char == "?":
            found.append("[^/]")
        elif char == "[":
            end = _end_of_set(part, place)
            if end is None:
                found.append(r"\[")
            else:
                found.append(_set(part[place:end]))
                place = end + 1
        else:
            found.append(re.escape(char))
    return "".join(found)


def _end_of_set(part: str, start: int) -> int | None:
    """Returns the end of the set that begins before `start`, whose first character may be a bracket."""
    first = start + 1 if part[start : start + 1] == "!" else start
    end = part.find("]", first + 1 if part[first : first + 1] == "]" else first)
    return None if end < 0 else end


def _set(inside: str) -> str:
    """Returns the regular expression for `[inside]`."""
    is_negated = inside.startswith("!")
    ranges = _ranges(inside[1:] if is_negated else inside)
    if not ranges:
        return "." if is_negated else "(?!)"
    return f"[{'^' if is_negated else ''}{''.join(ranges)}]"


def _ranges(chars: str) -> list[str]:
    """Returns characters and ranges, without empty ranges."""
    found, place = [], 0
    while place < len(chars):
        if chars[place + 1 : place + 2] == "-" and place + 2 < len(chars):
            first, last = chars[place], chars[place + 2]
            if first <= last:
                found.append(f"{re.escape(first)}-{re.escape(last)}")
            place += 3
        else:
            found.append(re.escape(chars[place]))
            place += 1
    return found
