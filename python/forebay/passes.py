"""Passes: an epoch may go through the dataset several times, endlessly, or stop in the middle.

Each pass has its own order, remainder and last batch, and no batch holds rows of two passes. Passes are counted from 0
over all epochs, so that no order comes twice. A state names the pass, and so is valid with and without `repeat`. That
of an endless epoch, which goes through all later passes, also names the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.exceptions import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.states import Hole

MOST_PASSES = (1 << 31) - 1
"""The most passes of an epoch that has an end."""

MOST_EPOCH = (1 << 63) - 1
"""The largest number of an epoch or a pass."""

MOST_EMPTY_PASSES = 100
"""How many passes in a row may fill no batch of packed sequences: in another order, the documents may fill some."""

MOST_DONE = (1 << 63) - 1
"""The most batches or tokens that a state may count as delivered."""


class Cursor(NamedTuple):
    """The position of a stream: its next batch not yet delivered."""

    epoch: int = 0
    """The epoch of the order, which is the number of the pass."""
    position: int = 0
    done: int = 0
    """What was delivered before: steps of an epoch counted in steps, or parts of packed documents."""


class Standing(NamedTuple):
    """Where a stream stands, as one value, so that other threads never see half of a move."""

    cursor: Cursor = Cursor()
    epoch: int = 0
    """The epoch of the iteration, as in `set_epoch`."""


class Progress:
    """What an iteration has delivered, and what those of its passes that have ended have left out."""

    def __init__(self) -> None:
        self.num_batches = 0
        # Replaced, never changed: who took it keeps what was left out until then.
        self.skipped: Mapping[str, float] = {"images_skipped": 0, "rows_skipped": 0}
        self.holes: list[Hole] = []

    def end_pass(self, stats: Mapping[str, float], holes: list[Hole]) -> None:
        """Notes the statistics of a pass that has ended, which count what earlier passes left out, and its holes."""
        self.skipped = {name: stats[name] for name in self.skipped}
        self.holes = holes or self.holes


class Run(NamedTuple):
    """One pass of an iteration, or the rest of it."""

    start: Cursor
    share: dict[str, Any]
    last: int | None
    """The last pass of the iteration, if it has one."""
    number: int
    """The epoch of the iteration, as in `set_epoch`."""
    progress: Progress
    """That of the iteration; the same object in all its passes."""

    def behind(self, cursor: Cursor) -> Run:
        """Returns the rest of the pass from `cursor` on."""
        return self._replace(start=cursor, share=self.share | {"position": cursor.position})


@dataclass(frozen=True)
class Passes:
    """The passes of an epoch."""

    number: int | None = 1
    """Passes per epoch; None for endless."""
    steps: int | None = None
    """Batches per epoch, from as many passes as that takes."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.number not in (1, None):
            raise SettingError(
                "steps_per_epoch: an epoch of so many batches goes through the dataset as often as that takes; leave "
                "`repeat` out"
            )

    def first(self, epoch: int) -> int:
        """Returns the first pass of an epoch that is not counted in steps."""
        return epoch * (self.number or 1)

    @property
    def most_epoch(self) -> int:
        """The largest epoch whose passes can be numbered, given that each batch may be a pass."""
        return (MOST_EPOCH + 1) // (self.steps or self.number or 1) - 1

    def last(self, epoch: int) -> int | None:
        """Returns the last pass of an epoch; None if it is endless or counted in steps."""
        return None if self.steps is not None or self.number is None else self.first(epoch + 1) - 1

    def epoch_of(self, number: int) -> int:
        """Returns the epoch of a pass, if epochs are not counted in steps."""
        return number // (self.number or 1)


def check_ends(num_batches: int, last: int | None) -> None:
    """Refuses endless passes without a batch."""
    if last is None and not num_batches:
        raise SettingError(
            "repeat, steps_per_epoch: the dataset has no batch for this rank, so that there is none to repeat"
        )
