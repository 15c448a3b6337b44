"""What a loop asks for batches: an iterator that after an error has no next one, but is at no end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from forebay.exceptions import ClosedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator

T = TypeVar("T")

FROM_STATE = "load what `state_dict` returns, and iterate again, to go on behind the batches that were received"
ANEW = "iterate again, from the first row on"
"""How to go on where an iteration has ended in an error: of what has a position, and of what has none."""


class Iteration(Generic[T]):
    """The batches that a loop asks for, one by one."""

    def __init__(self, batches: Iterable[T], advice: str = FROM_STATE) -> None:
        self._failures: list[str] = []
        self._advice = advice
        # Which does not hold on to this: an iteration that is left has to end at once, not with the next collection.
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
    """The batches that a task of an event loop asks for. One that is cancelled while it waits ends the iteration."""

    def __init__(self, batches: AsyncGenerator[T, None]) -> None:
        self._failure: str | None = None
        self._batches = batches

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if self._failure is not None:
            raise _ended_by(self._failure)
        # Of another task, which goes on waiting: this one is refused.
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
    """Yields the batches, and notes what ends them: not what a second thread is told that asks meanwhile."""
    try:
        yield from batches
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(type(error).__name__)
        raise
