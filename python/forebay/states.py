"""States of loaders that hold streams, reduced to one cursor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay.exceptions import StateError

Hole = dict[str, Any]
"""Rows that could not be read, as a state lists them."""


def cursor(loader_state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reduces the state of a `torchdata.StatefulDataLoader` to one cursor, valid for any number of workers.

    The cursor is the smallest next batch of the loader's workers, which take batches in turn. What they
    could not read is joined.

    Args:
        loader_state: What `StatefulDataLoader.state_dict()` returned, or a list of what it did on several ranks. A
            state of ours comes back as it is.

    Raises:
        StateError: there is no state of ours inside, or not one of every worker.
    """
    states = list(_states_in(loader_state))
    if not states:
        raise StateError("no Forebay state inside; expected what `StatefulDataLoader.state_dict()` returned")
    first = min(states, key=lambda state: (int(state["epoch"]), int(state["position"])))
    marks = [state["worker"] for state in states if "worker" in state]
    if marks and {mark["index"] for mark in marks} != set(range(marks[0]["num_workers"])):
        raise StateError(f"the state is of {len(marks)} workers, but there were {marks[0]['num_workers']}")
    reduced = {key: value for key, value in first.items() if key not in ("worker", "holes")}
    found = (hole for state in states if state["epoch"] == first["epoch"] for hole in state.get("holes", ()))
    holes = {(hole["span"], hole["start"], hole["end"]): hole for hole in found}
    return reduced | {"holes": list(holes.values())} if holes else reduced


def _states_in(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if value.get("_steps_since_snapshot"):
            raise StateError(
                f"the loader's state is {value['_steps_since_snapshot']} batches older than its position; make the "
                "`StatefulDataLoader` with `snapshot_every_n_steps=1`"
            )
        if "fingerprint" in value and "position" in value:
            yield value
        else:
            for inner in value.values():
                yield from _states_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _states_in(inner)
