"""Ranks: the rank of this process, and the check that all ranks are about to read the same epoch.

Nothing here imports torch: a process group exists only if the program has imported `torch.distributed` itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from forebay.exceptions import AgreementError, SettingError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

WARN_AFTER = 30.0
"""Seconds after which a rank warns that it still waits for the others."""

MAX_GROUPS_SHOWN = 4
"""The most different values that a message lists."""

_LATE = (
    "rank {rank} has waited {waited:.0f} s for the other ranks to begin this epoch; all ranks must iterate, or pass "
    "`rank` and `world_size` to read without asking the others"
)

Fact = int | str | list[str]
"""A value that must be the same on every rank. Messages show integers of all ranks, but text of this rank only."""


def current_world() -> tuple[int, int]:
    """Returns rank and world size: of the initialised `torch.distributed`, else of the environment, else 0 and 1."""
    distributed = process_group()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return 0, 1
    try:
        return int(rank), int(world_size)
    except ValueError:
        raise SettingError(f"RANK and WORLD_SIZE: expected integers, got {rank!r} and {world_size!r}") from None


def process_group() -> Any | None:
    """Returns `torch.distributed` if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def agreeing(distributed: Any, facts: Mapping[str, Fact]) -> Iterator[float]:
    """Compares facts between the ranks of the process group, in one all-gather of 8 bytes per fact.

    Yields the seconds to pause before going on, until all ranks have answered. Every rank must call this, and then
    either all ranks raise or none. A fact `a.b` is meaningful, and reported, only if `a` is the same on all ranks.

    Raises:
        AgreementError: a fact differs, or the ranks could not be compared.
    """
    rank = int(distributed.get_rank())
    table = yield from gather(distributed, [_number(fact) for fact in facts.values()])
    columns = dict(zip(facts, zip(*table, strict=True), strict=True))
    differing = [name for name, column in columns.items() if len(set(column)) > 1]
    found = [
        _difference(name, facts[name], rank, columns[name])
        for name in differing
        if name.partition(".")[0] not in differing or "." not in name
    ]
    if found:
        raise AgreementError(
            f"the ranks would not share one epoch: {'; '.join(found)}; give every rank the same source, query, "
            "settings, epoch and state, or pass `rank` and `world_size` to read without asking the others"
        )


def _number(fact: Fact) -> int:
    """Returns a fact as 64 bits: an integer as it is, text as its digest."""
    import hashlib  # loads OpenSSL, so not when Forebay is imported

    if isinstance(fact, int):
        data = (fact & (1 << 64) - 1).to_bytes(8, "little")
    else:
        data = hashlib.blake2b(json.dumps(fact).encode(), digest_size=8).digest()
    return int.from_bytes(data, "little", signed=True)


def gather(distributed: Any, numbers: Sequence[int]) -> Generator[float, None, list[list[int]]]:
    """Returns the numbers of every rank; yields pauses meanwhile."""
    torch = sys.modules["torch"]
    mine = torch.tensor(numbers, dtype=torch.int64, device=_device(distributed))
    gathered = [mine.clone() for _ in range(distributed.get_world_size())]
    try:
        work = distributed.all_gather(gathered, mine, async_op=True)
        start, pause, is_patient = time.monotonic(), 0.0002, True
        # Waiting in C++ would block Ctrl-C.
        while not work.is_completed():
            waited = time.monotonic() - start
            if is_patient and waited > WARN_AFTER:
                is_patient = False
                warnings.warn(_LATE.format(rank=distributed.get_rank(), waited=waited), RuntimeWarning, stacklevel=2)
            yield pause
            pause = min(pause * 2, 0.05)
        work.wait()
    except (RuntimeError, ValueError) as error:
        raise AgreementError(
            f"the ranks could not compare what they are about to read: {error}; all ranks must iterate"
        ) from error
    return [row.tolist() for row in gathered]


def _device(distributed: Any) -> str:
    """Returns a device that the process group can send from; the CPU if possible."""
    devices = [entry.split(":")[0] for entry in distributed.get_backend_config().split(",")]
    if "cpu" in devices:
        return "cpu"
    # Without `set_device`, the current GPU of all processes is the first one.
    bound = getattr(distributed.group.WORLD, "bound_device_id", None)
    return devices[0] if bound is None else str(bound)


def _difference(name: str, fact: Fact, rank: int, column: Sequence[int]) -> str:
    """Returns the text that says which ranks have which values."""
    name = name.rpartition(".")[2]
    groups: dict[int, list[int]] = {}
    for of, value in enumerate(column):
        groups.setdefault(value, []).append(of)
    shown = list(groups.items())[:MAX_GROUPS_SHOWN]
    more = f" and {len(groups) - len(shown)} more" if len(groups) > len(shown) else ""
    if isinstance(fact, int):
        # Values were sent as signed numbers; show the original ones.
        values = ((bool(value) if isinstance(fact, bool) else value % (1 << 64), of) for value, of in shown)
        return f"{name} is " + ", ".join(f"{value} on {_ranks(of)}" for value, of in values) + more
    parted = " and ".join(_ranks(of) for _, of in shown)
    return f"{name} differs between {parted}{more} (on this one, rank {rank}: {json.dumps(fact, ensure_ascii=False)})"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    named = ", ".join(map(str, ranks[:MAX_GROUPS_SHOWN]))
    return f"ranks {named}" + (f" and {len(ranks) - MAX_GROUPS_SHOWN} more" if len(ranks) > MAX_GROUPS_SHOWN else "")
