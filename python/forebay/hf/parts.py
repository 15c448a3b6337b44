"""Parts of an epoch: which positions one of several processes delivers.

`datasets` divides a dataset between nodes, DataLoader workers and the inputs of its buffers, one division after
another. A part says what is left after that, without knowing how many rows there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

_SAID = re.compile(
    r"rows \[\d+:\d*\], (\d+(?:/[1-9]\d*)?) to (\d+(?:/[1-9]\d*)?), \d+ of ([1-9]\d*)(?:, even for \d+)?"
)
"""What a part says of itself."""

DEFAULT_NUM_SHARDS = 192
"""Shards that a dataset says it has: as many as an epoch has lanes, which every usual number of processes divides."""


@dataclass(frozen=True)
class Part:
    """Some of the positions of an epoch, always in ascending order, so that the whole is the dataset's own order.

    A shuffled epoch is dealt out as to ranks, every so many positions, because its lanes lie in turn. One in the order
    of the files is cut into runs, so that no page is read by two processes but where a cut goes through it.
    """

    num_shards: int = DEFAULT_NUM_SHARDS
    """How many shards are left; more cannot be made of it."""
    first: int = 0
    """Positions before it were skipped."""
    last: int | None = None
    """Positions from it on were not taken."""
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(1)
    """The run, as a fraction of what lies between `first` and `last`."""
    offset: int = 0
    step: int = 1
    """Which positions of the run: every `step`-th, from number `offset` on."""
    multiple: int = 1
    """Of it are the rows that are dealt: the last ones of the epoch beyond that belong to no part."""

    @property
    def is_whole(self) -> bool:
        """Whether it has not been divided, skipped or cut short."""
        return self == Part(self.num_shards)

    @property
    def is_divided(self) -> bool:
        """Whether it is one of several shares."""
        return replace(self, first=0, last=None) != Part(self.num_shards)

    @property
    def is_fixed(self) -> bool:
        """Whether it skips rows, or takes some: other epochs may not put others in their place."""
        return self.first > 0 or self.last is not None

    def run(self, num_rows: int) -> range:
        """Returns the positions of an epoch of `num_rows` rows that the part is dealt from."""
        end = num_rows if self.last is None else min(self.last, num_rows)
        first = min(self.first, end)
        end -= (end - first) % self.multiple
        return range(first + int((end - first) * self.low), first + int((end - first) * self.high))

    def positions(self, num_rows: int) -> range:
        """Returns the positions of the part in an epoch of `num_rows` rows."""
        return self.run(num_rows)[self.offset :: self.step]

    def shard(self, num_shards: int, index: int, *, in_runs: bool) -> Part:
        """Returns shard `index` of `num_shards`: all of them together are the part, in sizes that differ by one row.

        Beyond as many as there are, shards are empty, as those of `datasets`.
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
        """Returns an undivided part without its last rows, so few that `num_shards` shards of it are of one size.

        Shards of a divided part differ as before: rows could come to lie in other shards of the whole.
        """
        return self if self.is_divided else replace(self, multiple=num_shards)

    def skip(self, num_rows: int) -> Part:
        """Returns what is left of an undivided part without its first rows."""
        first = self.first + num_rows
        return replace(self, first=first if self.last is None else min(first, self.last))

    def take(self, num_rows: int) -> Part:
        """Returns the first rows of an undivided part."""
        last = self.first + num_rows
        return replace(self, last=last if self.last is None else min(last, self.last))

    @property
    def fraction(self) -> Fraction:
        """How much of the epoch it is, skipped rows aside."""
        return (self.high - self.low) / self.step

    def is_less_than(self, said: object) -> bool:
        """Whether a part that says `said` of itself is a larger one."""
        found = _SAID.fullmatch(said) if isinstance(said, str) else None
        if found is None:
            return False
        low, high, step = found.groups()
        return self.fraction < (Fraction(high) - Fraction(low)) / int(step)

    def __str__(self) -> str:
        rows = f"[{self.first}:{'' if self.last is None else self.last}]"
        even = f", even for {self.multiple}" if self.multiple > 1 else ""
        return f"rows {rows}, {self.low} to {self.high}, {self.offset} of {self.step}{even}"
