"""Anything that a program does to a stream or a loader, beside a model that knows the batches of each epoch."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import batches_of, ids, write_uneven

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = {
    "batches": lambda rows, **share: rows.batches(8, **share),
    "to_torch": lambda rows, **share: rows.to_torch(8, **share),
    "DataLoader": lambda rows, **share: fb.DataLoader(rows, 8, **share),
}

CASES: dict[str, tuple[Callable[[fb.Dataset], fb.Dataset], dict[str, Any]]] = {
    "whole": (lambda rows: rows, {}),
    "passes": (lambda rows: rows.repeat(2), {}),
    "steps": (lambda rows: rows, {"steps_per_epoch": 3}),
    "steps of several passes": (lambda rows: rows, {"steps_per_epoch": 13, "rank": 1, "world_size": 3}),
    "filled up": (lambda rows: rows, {"remainder": "pad", "rank": 1, "world_size": 2}),
    "nothing": (lambda rows: rows.filter("id < 0"), {}),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    return write_uneven(tmp_path_factory.mktemp("model"), 61).shuffle(3, num_lanes=4, window_rows=5)


@dataclass
class Loop:
    """An iterator, and what it is to deliver: nothing of an epoch before it is asked for the first batch."""

    batches: Iterator[Any]
    epoch: int | None = None
    number: int = 0
    is_over: bool = False


@dataclass
class Model:
    """What a stream is told, in batches of an epoch."""

    epochs: Callable[[int], list[list[int]]]
    is_loader: bool
    epoch: int = 0
    start: int = 0
    """The batch that the next loop begins with."""
    at: tuple[int, int] = (0, 0)
    """Epoch and batch of the state."""
    chosen: int | None = None
    """The epoch that was set since a loop began."""
    is_announced: bool = False
    """Whether there is an iterator that will begin there."""
    is_next_due: bool = False
    """Whether the next loop of a loader is another epoch."""
    states: list[tuple[dict[str, Any], tuple[int, int]]] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)

    def set_epoch(self, epoch: int) -> None:
        self.chosen = epoch
        if epoch != self.epoch:
            self.epoch, self.start, self.at, self.is_announced = epoch, 0, (epoch, 0), False

    def load(self, at: tuple[int, int]) -> None:
        self.at, (self.epoch, self.start) = at, at
        self.is_announced = self.is_next_due = False

    def add(self, loop: Loop) -> None:
        self.loops.append(loop)
        if self.start and self.start == len(self.epochs(self.epoch)):
            # What is over begins at once, unless a later epoch was set before.
            if self.chosen is None or self.chosen <= self.epoch:
                self.begin(loop)
                return
            self.set_epoch(self.chosen)
        self.is_announced = True

    def begin(self, loop: Loop) -> None:
        if self.is_loader and self.is_next_due:
            self.set_epoch(self.epoch + 1)
        loop.epoch, loop.number = self.at = self.epoch, self.start
        self.start, self.chosen, self.is_announced, self.is_next_due = 0, None, False, True

    def next(self, loop: Loop) -> list[int] | None:
        if loop.is_over:
            return None
        if loop.epoch is None:
            self.begin(loop)
        rest = self.epochs(loop.epoch)[loop.number :]
        if not rest:
            loop.is_over = True
            return None
        loop.number += 1
        self.at = loop.epoch, loop.number
        return rest[0]

    @property
    def num_left(self) -> int:
        return len(self.epochs(self.epoch)) - (0 if self.is_announced else self.start)


OPERATIONS = ("iterate", "next", "next", "drain", "close", "set epoch", "save", "load", "length", "copy", "pickle")


def check(stream: Any, model: Model, operation: str, number: int) -> Any:
    """Does something to both, and compares; returns the stream, or its copy."""
    loop = model.loops[number % len(model.loops)] if model.loops else None
    if operation == "iterate":
        model.add(Loop(iter(stream)))
    elif operation == "set epoch":
        stream.set_epoch(number)
        model.set_epoch(number)
        model.is_next_due = False
    elif operation == "save":
        model.states.append((stream.state_dict(), model.at))
    elif operation == "load" and model.states:
        state, at = model.states[number % len(model.states)]
        stream.load_state_dict(state)
        model.load(at)
    elif operation == "length":
        assert len(stream) == model.num_left
    elif operation in ("copy", "pickle"):
        # Loops over the one before go on, and are none of the copy's.
        model.loops.clear()
        stream = copy.deepcopy(stream) if operation == "copy" else pickle.loads(pickle.dumps(stream))
    elif operation == "close" and loop is not None:
        loop.batches.close()
        loop.is_over = True
    elif loop is not None and operation in ("next", "drain"):
        expected: list[int] | None = []
        while expected is not None:
            expected, batch = model.next(loop), next(loop.batches, None)
            assert (None if batch is None else ids(batch)) == expected
            if operation == "next":
                break
    assert stream.epoch == model.epoch
    return stream


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_streams_do_what_the_model_does(rows: fb.Dataset, kind: str, case: str) -> None:
    change, share = CASES[case]
    chosen, known = change(rows), {}

    def epochs(epoch: int) -> list[list[int]]:
        if epoch not in known:
            stream = chosen.batches(8, **share)
            stream.set_epoch(epoch)
            known[epoch] = batches_of(stream)
        return known[epoch]

    @settings(max_examples=25)
    @given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3)), max_size=30))
    def do(steps: list[tuple[str, int]]) -> None:
        stream, model = KINDS[kind](chosen, **share), Model(epochs, kind == "DataLoader")
        for operation, number in steps:
            stream = check(stream, model, operation, number)
        later = KINDS[kind](chosen, **share)
        later.load_state_dict(stream.state_dict())
        epoch, number = model.at
        assert batches_of(later) == epochs(epoch)[number:]

    do()
