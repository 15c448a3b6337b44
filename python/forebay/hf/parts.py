"""Parts of an epoch: the positions that one of several processes delivers.

`datasets` divides a dataset among nodes, DataLoader workers and the inputs of its buffers, one after another. A part
describes what is left after that, without knowing how many rows there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

_SAID = re.compile(
    r"rows \[\d+:\d*\], (\d+(?:/[1-9]\d*)?) to (\d+(?:/[1-9]\d*)?), \d+ of ([1-9]\d*)(?:, even for \d+)?"
)
"""Parses the text of a part."""

DEFAULT_NUM_SHARDS = 192
"""Shards that a dataset claims to have: the lanes of an epoch, a multiple of all usual numbers of processes."""


@dataclass(frozen=True)
class Part:
    """Some of the positions of an epoch, in ascending order, so that the whole is in the dataset's own order.

    A shuffled epoch is dealt out as among ranks, in steps, because its lanes alternate. An epoch in the order of the
    files is cut into runs, so that two processes read the same page only where a cut goes through it.
    """

    num_shards: int = DEFAULT_NUM_SHARDS
    """The most shards that the part can be divided into."""
    first: int = 0
    """The first position; those before it are skipped."""
    last: int | None = None
    """The end; positions from it on are left out."""
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(1)
    """The run, as fractions of the range from `first` to `last`."""
    offset: int = 0
    step: int = 1
    """The positions within the run: every `step`-th, from `offset` on."""
    multiple: int = 1
    """The number of rows is rounded down to a multiple of this; the last rows beyond it belong to no part."""

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole epoch."""
        return self == Part(self.num_shards)

    @property
    def is_divided(self) -> bool:
        """Whether the part is one of several shares."""
        return replace(self, first=0, last=None) != Part(self.num_shards)

    @property
    def is_fixed(self) -> bool:
        """Whether the part skips or takes rows, which must then be the same in every epoch."""
        return self.first > 0 or self.last is not None

    def run(self, num_rows: int) -> range:
        """Returns the run of positions, in an epoch of `num_rows` rows, from which the part is dealt."""
        end = num_rows if self.last is None else min(self.last, num_rows)
        first = min(self.first, end)
        end -= (end - first) % self.multiple
        return range(first + int((end - first) * self.low), first + int((end - first) * self.high))

    def positions(self, num_rows: int) -> range:
        """Returns the positions of the part in an epoch of `num_rows` rows."""
        return self.run(num_rows)[self.offset :: self.step]

    def shard(self, num_shards: int, index: int, *, in_runs: bool) -> Part:
        """Returns shard `index` of `num_shards`, which together are the part and differ by at most one row in size.

        Shards beyond the part's own number of shards are empty, as in `datasets`.
        """
        left = self.num_shards // num_shards + (index < self.num_shards % num_shards)
        num_shards = min(num_shards, self.num_shards)
        if index >= num_shards:
            return replace(self, num_shards=0, high=self.low)
        if not in_runs:
            return replace(self, num_shards=left, offset=self.offset + self.step * index, step=self.step * num_shards)
        length = self.high - self.low
        low, high = (self.low + length * number / num_shards for number in (index, index + 1))
        return replace(self, num_shards=left, low=low, high=high)

    def evened(self, num_shards: int) -> Part:
        """Returns an undivided part without the last rows that keep `num_shards` shards from having one size.

        A divided part stays as it is: otherwise rows could move to other shards of the whole.
        """
        return self if self.is_divided else replace(self, multiple=num_shards)

    def skip(self, num_rows: int) -> Part:
        """Returns an undivided part without its first rows."""
        first = self.first + num_rows
        return replace(self, first=first if self.last is None else min(first, self.last))

    def take(self, num_rows: int) -> Part:
        """Returns the first rows of an undivided part."""
        last = self.first + num_rows
        return replace(self, last=last if self.last is None else min(last, self.last))

    @property
    def fraction(self) -> Fraction:
        """The fraction of the epoch that the part has, not counting skipped rows."""
        return (self.high - self.low) / self.step

    def is_less_than(self, said: object) -> bool:
        """Whether `said` is the text of a larger part."""
        found = _SAID.fullmatch(said) if isinstance(said, str) else None
        if found is None:
            return False
        low, high, step = found.groups()
        return self.fraction < (Fraction(high) - Fraction(low)) / int(step)

    def __str__(self) -> str:
        rows = f"[{self.first}:{'' if self.last is None else self.last}]"
        even = f", even for {self.multiple}" if self.multiple > 1 else ""
        return f"rows {rows}, {self.low} to {self.high}, {self.offset} of {self.step}{even}"
