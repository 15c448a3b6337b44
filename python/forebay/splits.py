"""Parses split expressions as `datasets` does: `train`, `train+test`, `all`, `train[:10%]`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALL = "all"
"""Means all splits, unless a split has this name."""

_PART = re.compile(
    r"""(?P<name>\w+(\.\w+)*)
    (\[ ((?P<start>-?[\d_]+)(?P<start_pct>%)?)? : ((?P<stop>-?[\d_]+)(?P<stop_pct>%)?)? \])?
    (\((?P<rounding>[^)]*)\))?""",
    re.VERBOSE,
)
_ROUNDINGS = ("closest", "pct1_dropremainder")
_EXAMPLE = "expected `train`, `train+test`, `train[:10%]`, `train[100:200]` or `all`"


@dataclass(frozen=True)
class Part:
    """Rows of a split; all of them if `start` and `stop` are None."""

    name: str
    start: int | None = None
    stop: int | None = None
    is_percent: bool = False
    rounding: str = "closest"

    @property
    def is_slice(self) -> bool:
        """Whether the part may be less than the whole split."""
        return self.start is not None or self.stop is not None

    def rows(self, num_rows: int) -> tuple[int, int]:
        """Returns the half-open range of rows in a split of `num_rows` rows."""
        start = 0 if self.start is None else self._absolute(self.start, num_rows)
        stop = num_rows if self.stop is None else self._absolute(self.stop, num_rows)
        start = max(num_rows + start, 0) if start < 0 else min(start, num_rows)
        stop = max(num_rows + stop, 0) if stop < 0 else min(stop, num_rows)
        return start, max(start, stop)

    def _absolute(self, boundary: int, num_rows: int) -> int:
        if not self.is_percent:
            return boundary
        if self.rounding == "closest":
            return round(boundary * num_rows / 100.0)
        if num_rows < 100:
            raise SettingError(
                f"split: `{self.name}` has {num_rows} rows, of which `pct1_dropremainder` would keep none; it needs 100"
            )
        return boundary * math.trunc(num_rows / 100.0)


def parse(split: Any) -> list[Part]:
    """Returns the parts of a split expression: a string, or an object of `datasets` such as `ReadInstruction`.

    Raises:
        SettingError: it is not a split expression.
    """
    split = text_of(split)
    parts = [_part(text.strip(), split) for text in split.split("+")]
    roundings = {part.rounding for part in parts if part.is_percent}
    if len(roundings) > 1:
        raise SettingError(f"split: `{split}` rounds in two ways; use one of them")
    return parts


def text_of(split: Any) -> str:
    """Returns a split expression as text.

    Raises:
        SettingError: it is neither text nor an object of `datasets`.
    """
    if isinstance(split, str):
        return split
    if type(split).__module__.split(".")[0] != "datasets":
        several = "; several datasets take a call each" if isinstance(split, list | tuple) else ""
        raise SettingError(f"split: {_EXAMPLE}, got {split!r}{several}")
    if type(split).__name__ == "_SplitMerged":
        # `Split.TRAIN + Split.TEST`, whose text is that of a Python object.
        return f"{text_of(split._split1)}+{text_of(split._split2)}"
    return str(split)


def _part(text: str, split: str) -> Part:
    found = _PART.fullmatch(text)
    if found is None:
        raise SettingError(f"split: cannot understand `{split}`; {_EXAMPLE}")
    start, stop = (_number(found[name]) for name in ("start", "stop"))
    # A `%` on either boundary applies to both.
    is_percent = bool(found["start_pct"] or found["stop_pct"])
    rounding = found["rounding"]
    if rounding is not None and (rounding not in _ROUNDINGS or not is_percent):
        raise SettingError(f"split: `{split}`: only percentages are rounded, by `({'`, `('.join(_ROUNDINGS)})`")
    if is_percent and any(abs(number) > 100 for number in (start, stop) if number is not None):
        raise SettingError(f"split: `{split}`: expected -100% to 100%")
    return Part(found["name"], start, stop, is_percent, rounding or "closest")


def _number(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"split: `{text}` is not a number; {_EXAMPLE}") from None


def names(parts: Iterable[Part], available: Sequence[str] | None, where: str) -> list[str]:
    """Returns the names of the splits of `parts`, each once; unchecked if the available splits are not known yet.

    Raises:
        SettingError: there is no such split.
    """
    wanted = list(dict.fromkeys(part.name for part in parts))
    if available is None:
        return wanted
    if wanted == [ALL] and ALL not in available:
        return list(available)
    for name in wanted:
        if name not in available:
            raise unknown(name, available, where)
    return wanted


def unknown(name: str, available: Sequence[str], where: str) -> SettingError:
    """Returns the exception for an unknown split, with similar names."""
    near = get_close_matches(name, available, 3)
    hint = f" (did you mean `{'`, `'.join(near)}`?)" if near else ""
    return SettingError(f"no split `{name}` in `{where}`; it has {', '.join(available)}{hint}")


def ranges(parts: Sequence[Part], sizes: Sequence[tuple[str, int]], text: str) -> list[tuple[int, int]] | None:
    """Returns the ranges of rows of `parts` in the concatenated splits, adjacent ones merged; None for all rows.

    Raises:
        SettingError: ranges overlap, or are not in the order of the rows.
    """
    if not any(part.is_slice for part in parts):
        if len({part.name for part in parts}) < len(parts):
            raise SettingError(f"split: `{text}` names a split twice; a dataset has every row once")
        return None
    starts, end = {}, 0
    for name, num_rows in sizes:
        starts[name] = (end, num_rows)
        end += num_rows
    found: list[tuple[int, int]] = []
    for part in parts:
        if part.name not in starts:
            raise unknown(part.name, [name for name, _ in sizes], text)
        first, num_rows = starts[part.name]
        start, stop = (first + row for row in part.rows(num_rows))
        if start == stop:
            continue
        if found and start < found[-1][1]:
            raise SettingError(
                f"split: the parts of `{text}` overlap, or are not in the order of their rows; "
                "a dataset has every row once"
            )
        if found and start == found[-1][1]:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
