"""Which pickles of datasets hold the secrets of stores.

A pickle may end up in caches, queues and logs. So it leaves out the values of secret storage options, unless it goes
straight to a process that this one starts, such as a worker of `map` or of a `DataLoader`. Other processes take them
from the environment, as always, or get an error that says what is missing.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError
from forebay.options import check_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forebay import _lib

_PICKLED: ContextVar[bool] = ContextVar("forebay_secrets_pickled", default=False)
_GIVEN: ContextVar[dict[str, str] | None] = ContextVar("forebay_options_given", default=None)


@contextmanager
def pickle_with_secrets() -> Iterator[None]:
    """Makes pickles of datasets, streams and loaders include the secrets of their stores within the block.

    For libraries that send pickles to other processes themselves and are trusted with secrets: Ray, joblib, Dask, a
    `multiprocessing` queue. Not needed for what `map`, `multiprocessing` and `DataLoader` pass to processes they start.

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
    """Gives storage options to datasets, streams and loaders that are unpickled within the block.

    They override pickled options and those of the environment. An empty dict means that nothing is missing because the
    environment provides the credentials, for example through the machine's role.

    Args:
        storage_options: As in `load_dataset`, for all stores but local files.

    Raises:
        SettingError: the argument is not a dict of options.

    Example:
        >>> import pickle
        >>> payload = pickle.dumps(ds)
        >>> with forebay.unpickle_with({"aws_session_token": "..."}):
        ...     len(pickle.loads(payload)) == len(ds)
        True
    """
    given: object = storage_options
    if given is None:
        raise SettingError("storage_options: expected a dict of text, got None; an empty one takes the environment's")
    token = _GIVEN.set(check_options(storage_options))
    try:
        yield
    finally:
        _GIVEN.reset(token)


def are_pickled() -> bool:
    """Whether a pickle made now includes secrets."""
    return _PICKLED.get() or _is_starting_a_process()


def given_options() -> dict[str, str] | None:
    """Returns the options given by `unpickle_with`."""
    return _GIVEN.get()


class Tokens(dict[str, Any]):
    """The tokens of repositories that `datasets` decodes with; pickled only where other secrets are."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Values other than strings only mean no token, or that of the login.
        kept = {name: token for name, token in self.items() if are_pickled() or not isinstance(token, str)}
        return Tokens, (kept,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokens:
        return Tokens(self)


def hub_tokens(source: _lib.Dataset | _lib.Reader) -> Tokens:
    """Returns the tokens of a dataset's repositories on the Hub as `datasets` takes them: False means none."""
    return Tokens({name: token or False for name, token in source.hub_tokens.items()})


def _is_starting_a_process() -> bool:
    """Whether a pickle made now goes to a child process, through a pipe that no other process reads."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None
