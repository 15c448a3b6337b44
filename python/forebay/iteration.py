"""Iterators of loops: after an error, they raise a `ClosedError` instead of ending as if all were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from forebay.exceptions import ClosedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator

T = TypeVar("T")

FROM_STATE = "load what `state_dict` returns, and iterate again, to continue after the batches that were received"
ANEW = "iterate again, from the first row on"
"""How to go on after an iteration has ended in an error, with a position (`FROM_STATE`) or without (`ANEW`)."""


class Iteration(Generic[T]):
    """An iterator over the batches of a loop."""

    def __init__(self, batches: Iterable[T], advice: str = FROM_STATE) -> None:
        self._failures: list[str] = []
        self._advice = advice
        # The generator does not refer to `self`: an abandoned iteration must end at once, not at the next collection.
        self._batches = _noted(batches, self._failures)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._failures:
            raise _ended_by(self._failures[0], self._advice)
        return next(self._batches)

    def close(self) -> None:
        """Ends the iteration and its threads."""
        self._batches.close()


class AsyncIteration(Generic[T]):
    """An iterator over batches for a task of an event loop. If the task is cancelled while waiting, it ends."""

    def __init__(self, batches: AsyncGenerator[T, None]) -> None:
        self._failure: str | None = None
        self._batches = batches

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if self._failure is not None:
            raise _ended_by(self._failure)
        # Another task is waiting already: this call is refused, and that one goes on.
        is_asked = getattr(self._batches, "ag_running", False)
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            if not is_asked:
                self._failure = type(error).__name__
            raise

    async def aclose(self) -> None:
        """Ends the iteration and its threads."""
        await self._batches.aclose()


def _ended_by(failure: str, advice: str = FROM_STATE) -> ClosedError:
    return ClosedError(f"the iteration was ended by `{failure}`; {advice}")


def _noted(batches: Iterable[T], failures: list[str]) -> Generator[T]:
    """Yields the batches, and notes the exception that ends them, but not that of a second thread asking meanwhile."""
    try:
        yield from batches
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(type(error).__name__)
        raise
