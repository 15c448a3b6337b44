"""Passes: an epoch of a stream may go through the dataset several times, without an end, or stop in the middle.

A pass has an order, a remainder and a last batch of its own, and no batch holds rows of two. Passes are counted from 0
over all epochs, so that no order comes twice, and a state names the pass: it is the same for a dataset that is repeated
and for one that is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay.exceptions import SettingError

MOST_PASSES = (1 << 31) - 1
"""Passes of an epoch that has an end."""

MOST_EPOCH = (1 << 63) - 1
"""The last number that an epoch, or a pass, may begin with."""

MOST_DONE = (1 << 63) - 1
"""Batches or tokens that a state may say were delivered."""


class Cursor(NamedTuple):
    """Where a stream stands: the next batch not yet delivered."""

    epoch: int = 0
    """Of the order: the number of the pass."""
    position: int = 0
    done: int = 0
    """Batches of an epoch that is counted in steps, or what of packed documents, was delivered before."""


class Run(NamedTuple):
    """One pass of an iteration, or what of it is left."""

    start: Cursor
    share: dict[str, Any]
    last: int | None
    """The pass that the iteration ends with, if it ends with one."""
    number: int
    """The epoch that the iteration is of, as `set_epoch` counts them."""

    def behind(self, cursor: Cursor) -> Run:
        """Returns what of it is left."""
        return self._replace(start=cursor, share=self.share | {"position": cursor.position})


@dataclass(frozen=True)
class Passes:
    """What an epoch is made of."""

    number: int | None = 1
    """Passes of an epoch; None for no end."""
    steps: int | None = None
    """Batches of an epoch, which goes through as many passes as that takes."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.number not in (1, None):
            raise SettingError(
                "steps_per_epoch: an epoch of so many batches goes through the dataset as often as that takes; leave "
                "`repeat` out"
            )

    def first(self, epoch: int) -> int:
        """Returns the pass that an epoch begins with, where it is not counted in steps."""
        return epoch * (self.number or 1)

    @property
    def most_epoch(self) -> int:
        """The last epoch whose passes have numbers; each batch may be a pass."""
        return (MOST_EPOCH + 1) // (self.steps or self.number or 1) - 1

    def last(self, epoch: int) -> int | None:
        """Returns the pass that an epoch ends with, if it ends with one."""
        return None if self.steps is not None or self.number is None else self.first(epoch + 1) - 1

    def epoch_of(self, number: int) -> int:
        """Returns the epoch that a pass is of, where it is not counted in steps."""
        return number // (self.number or 1)


def check_ends(num_batches: int, last: int | None) -> None:
    """Refuses passes of no batch that have no end."""
    if last is None and not num_batches:
        raise SettingError(
            "repeat, steps_per_epoch: the dataset has no batch for this rank, so that there is none to repeat"
        )
