"""Reduces the states of loaders that hold streams to one cursor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay.exceptions import StateError

Hole = dict[str, Any]
"""Rows that could not be read, as a state lists them."""

_OF_A_HOLE = ("span", "start", "end")
"""What identifies a hole."""

_OF_A_PLACE = ("epoch", "position")
"""What says where in its stream a state is."""

_OF_A_STREAM = ("version", "fingerprint", "query", "order")
"""What the states of all ranks and workers of a stream have in common."""


def cursor(loader_state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reduces the state of a `torchdata.StatefulDataLoader` to one cursor, valid for any number of workers.

    The cursor is the smallest next batch of the loader's workers, which take batches in turn. The lists of rows that
    could not be read are joined.

    Args:
        loader_state: The result of `StatefulDataLoader.state_dict()`, or a list of those of several ranks. A state of
            a stream is returned as it is.

    Raises:
        StateError: `loader_state` holds no state of a stream, lacks that of a worker, or has those of other streams.
    """
    try:
        states = list(_states_in(loader_state))
    except RecursionError:
        raise StateError("not a Forebay state: it is nested endlessly, or nearly so") from None
    if not states:
        raise StateError("no Forebay state inside; expected what `StatefulDataLoader.state_dict()` returned")
    for state in states:
        _check(state)
        if differing := [name for name in _OF_A_STREAM if state.get(name) != states[0].get(name)]:
            names = ", ".join(differing)
            raise StateError(
                f"the states do not belong to one stream: they differ in {names}; reduce those of each alone"
            )
    first = min(states, key=lambda state: (state["epoch"], state["position"]))
    marks = [state["worker"] for state in states if "worker" in state]
    if marks:
        num_workers = marks[0]["num_workers"]
        found = {mark["index"] for mark in marks}
        if len(found) != num_workers or max(found) >= num_workers:
            raise StateError(f"the state is of {len(marks)} workers, but there were {num_workers}")
    reduced = {key: value for key, value in first.items() if key not in ("worker", "holes")}
    listed = (hole for state in states if state["epoch"] == first["epoch"] for hole in state.get("holes", ()))
    holes = {tuple(hole[name] for name in _OF_A_HOLE): hole for hole in listed}
    return reduced | {"holes": list(holes.values())} if holes else reduced


def check_state(state: object) -> None:
    """Refuses what is not a dict, such as the JSON of one, states of loaders, and numbers that are no position."""
    if not isinstance(state, Mapping):
        hint = "; `json.loads` makes one of JSON" if isinstance(state, str | bytes) else ""
        raise StateError(f"not a Forebay state: expected a dict, got {type(state).__name__}{hint}")
    if "position" not in state and _is_around_another(state):
        raise StateError(
            "not the state of a stream, but of something that holds one, such as a `StatefulDataLoader`: load it "
            "there, by its `load_state_dict`, or load here what `forebay.cursor(state)` makes of it"
        )
    _check_counts(state, [name for name in _OF_A_PLACE if name in state])


def _is_around_another(state: Mapping[str, Any]) -> bool:
    """Whether a state of a stream is somewhere in another dict."""
    try:
        return any(True for _ in _states_in(state))
    except StateError:  # of a loader, and too old to be reduced
        return True
    except RecursionError:
        return False


def _check(state: Mapping[str, Any]) -> None:
    """Refuses a state in which the parts that this module uses are malformed."""
    _check_counts(state, _OF_A_PLACE)
    if "worker" in state:
        _check_counts(state["worker"], ("index", "num_workers"), "worker")
    holes = state.get("holes", ())
    if not isinstance(holes, list | tuple):
        raise StateError(f"not a Forebay state: holes: expected a list, got {holes!r}")
    for hole in holes:
        _check_counts(hole, _OF_A_HOLE, "holes")


def _check_counts(part: object, names: Sequence[str], where: str = "") -> None:
    if not isinstance(part, Mapping):
        raise StateError(f"not a Forebay state: {where}: expected a dict, got {part!r}")
    for name in names:
        value = part.get(name)
        if type(value) is not int or value < 0:
            named = f"{where}.{name}" if where else name
            raise StateError(f"not a Forebay state: {named}: expected a number of 0 or more, got {value!r}")


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
