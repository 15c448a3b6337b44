"""Who gets the secrets of stores when datasets are pickled.

A pickle is a file like any other: it lies in caches, queues and logs. So the values of secret storage options are left
out of it, but where it goes straight to a process that this one starts, as the workers of a `DataLoader` are. Everybody
else finds them in the environment, as ever, or is told what is missing.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from forebay.options import check_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PICKLED: ContextVar[bool] = ContextVar("forebay_secrets_pickled", default=False)
_GIVEN: ContextVar[dict[str, str] | None] = ContextVar("forebay_options_given", default=None)


@contextmanager
def pickle_with_secrets() -> Iterator[None]:
    """Has datasets, streams and loaders that are pickled meanwhile take the secrets of their stores along.

    For what carries pickles to other processes by itself, and is trusted with them: Ray, joblib, Dask, a queue of
    `multiprocessing`. What `multiprocessing` and `DataLoader` give to processes when they start them needs this not.

    Example:
        >>> import pickle
        >>> with forebay.pickle_with_secrets():
        ...     payload = pickle.dumps(ds)
        >>> len(pickle.loads(payload)) == len(ds)
        True
    """
    token = _PICKLED.set(True)
    try:
        yield
    finally:
        _PICKLED.reset(token)


@contextmanager
def unpickle_with(storage_options: Mapping[str, Any]) -> Iterator[None]:
    """Gives storage options to datasets, streams and loaders that are unpickled meanwhile.

    They go before those that were pickled and those of the environment. An empty dict says that nothing is missing: the
    environment knows, as by the role of a machine.

    Args:
        storage_options: As in `load_dataset`, for all stores but local files.

    Raises:
        SettingError: they are no options.

    Example:
        >>> import pickle
        >>> payload = pickle.dumps(ds)
        >>> with forebay.unpickle_with({"aws_session_token": "..."}):
        ...     len(pickle.loads(payload)) == len(ds)
        True
    """
    token = _GIVEN.set(check_options(storage_options))
    try:
        yield
    finally:
        _GIVEN.reset(token)


def are_pickled() -> bool:
    """Returns whether a pickle that is being made takes secrets along."""
    return _PICKLED.get() or _is_starting_a_process()


def given_options() -> dict[str, str] | None:
    """Returns the options given to what is being unpickled."""
    return _GIVEN.get()


def _is_starting_a_process() -> bool:
    """Returns whether what is pickled now goes to a child, through a pipe that nobody else reads."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None
