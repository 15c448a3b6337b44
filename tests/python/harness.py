"""What every loader must keep that can be stopped and shared: rows exactly once, in one order, in equal steps.

The checks know nothing of Forebay, so that they can be shown to fail: `test_control.py` points them at another loader.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Loader(Protocol):
    """Delivers the rest of an epoch to one rank, as the ids of the rows of each batch."""

    def __iter__(self) -> Iterator[list[int]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def resume_failures(make: Callable[[], Loader], cuts: Iterable[int] | None = None) -> list[str]:
    """Stops an epoch after some batches, has another loader go on, and returns how that differs from never stopping.

    Args:
        make: Makes loaders of the same epoch.
        cuts: After how many batches to stop; after each by default.
    """
    whole = list(make())
    failures = []
    for cut in range(len(whole) + 1) if cuts is None else cuts:
        stopped = make()
        batches = iter(stopped)
        before = [next(batches) for _ in range(cut)]
        state = json.loads(json.dumps(stopped.state_dict()))
        later = make()
        later.load_state_dict(state)
        failure = _compared(before + list(later), whole)
        if failure:
            failures.append(f"stopped after {cut} of {len(whole)} batches: {failure}")
    return failures


def rank_failures(make: Callable[[int, int], Loader], world_sizes: Iterable[int]) -> list[str]:
    """Has every rank of a world deliver its share, and returns how the shares differ from one epoch dealt out evenly.

    Fewer rows than ranks may be left out, so that all ranks take as many steps.
    """
    rows = Counter(_rows(make(0, 1)))
    failures = []
    for world_size in world_sizes:
        shares = [list(make(rank, world_size)) for rank in range(world_size)]
        delivered = Counter(row for share in shares for row in _rows(share))
        found = []
        steps = [len(share) for share in shares]
        if len(set(steps)) > 1:
            found.append(f"steps of {steps}")
        if delivered - rows:
            found.append(f"{(delivered - rows).total()} rows doubled")
        if (rows - delivered).total() >= world_size:
            found.append(f"{(rows - delivered).total()} rows lost")
        if found:
            failures.append(f"{world_size} ranks: {', '.join(found)}")
    return failures


def _compared(batches: list[list[int]], expected: list[list[int]]) -> str:
    got, wanted = Counter(_rows(batches)), Counter(_rows(expected))
    if got != wanted:
        return f"{(wanted - got).total()} rows lost, {(got - wanted).total()} doubled"
    if _rows(batches) != _rows(expected):
        return "another order"
    return "" if batches == expected else "other batches"


def _rows(batches: Iterable[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]
