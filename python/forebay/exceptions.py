"""Exceptions: every one is a `ForebayError`, and the builtin that fits is mixed in.

The message says what is wrong, where (object, row group, column, value) and what to do. What a store, a decoder or the
system said below is the `__cause__`, which is kept when an exception is pickled on its way from another process.
"""

from __future__ import annotations

import pickle
from typing import Any

from forebay._lib import redacted


class _ChainedError(Exception):
    """An exception that holds no secrets, and takes its causes along when it is pickled or copied."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(_said(one) if isinstance(one, str) else one for one in arguments))

    def __reduce__(self) -> tuple[Any, ...]:
        reduced: Any = super().__reduce__()
        made, arguments, *state = reduced
        attributes = dict(state[0]) if state and state[0] else {}
        if self.__cause__ is not None:
            attributes["__cause__"] = _portable(self.__cause__)
        return made, arguments, attributes


def _said(text: str) -> str:
    """Returns a text without secrets, and with escapes for what is no Unicode, as in names of files."""
    return redacted(text.encode(errors="backslashreplace").decode())


def _portable(cause: BaseException) -> BaseException:
    """Returns an exception, or what it says where it cannot be pickled: it may be of any library's class."""
    try:
        pickle.loads(pickle.dumps(cause))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - classes may raise anything
        return Cause(f"{type(cause).__name__}: {cause}")
    return cause


class ForebayError(_ChainedError):
    """Base of all exceptions that Forebay raises on its own account."""


class Cause(_ChainedError):  # noqa: N818 - it is the cause of one
    """What a library below said, as the `__cause__` of a `ForebayError`; never raised by itself."""


class NotFoundError(ForebayError, FileNotFoundError):
    """Nothing is stored under the source, or no Parquet object matches it."""


class AccessDeniedError(ForebayError, PermissionError):
    """The store refused the credentials, or the system the user."""


class DatasetNotFoundError(NotFoundError):
    """The Hub has no such dataset or revision, or not for this user.

    Once `datasets` is imported, those that are raised are its `DatasetNotFoundError`, too.
    """


class GatedDatasetError(DatasetNotFoundError, AccessDeniedError):
    """A dataset of the Hub is for those whom its owner lets in."""


class StoreError(ForebayError, OSError):
    """The store failed in a way that asking again does not change, or gave wrong answers only."""


class StoreTimeoutError(StoreError, TimeoutError):
    """The store refused, failed or kept silent for longer than `retry_for`."""


class HubUnreachableError(StoreError, ConnectionError):
    """The Hub cannot be reached, or is not to be asked, and what is wanted was not downloaded before."""


class ObjectChangedError(StoreError):
    """An object is not the one that was opened."""


class DataError(ForebayError, ValueError):
    """An object is not Parquet, or its bytes cannot be decoded."""


class SkipLimitError(DataError):
    """More rows could not be read than `max_skipped` allows; the `__cause__` is why the last ones could not."""


class SchemaError(ForebayError, ValueError):
    """The objects of a dataset do not fit together."""


class ColumnNotFoundError(ForebayError, ValueError):
    """A column is not in the dataset."""


class QueryError(ForebayError, ValueError):
    """A SQL expression does not parse, does not type-check, or fails on a value."""


class SettingError(ForebayError, ValueError):
    """An argument has a value that cannot work."""


class RowIndexError(ForebayError, IndexError):
    """There is no row of that number."""


class SelectionError(ForebayError, ValueError):
    """A saved selection is malformed, is a part only, or is of another dataset."""


class StateError(ForebayError, ValueError):
    """A state is malformed, or belongs to another dataset, query or order."""


class AgreementError(ForebayError, ValueError):
    """The ranks of a process group are about to read different epochs."""


class MemoryLimitError(ForebayError, MemoryError):
    """`memory_limit` cannot hold the least that is needed at once."""


class TensorError(ForebayError, TypeError):
    """A column has no tensor form."""


class ClosedError(ForebayError, ValueError):
    """A stream was closed, or belongs to another process, or an error has ended the iteration."""


class TransformError(ForebayError, RuntimeError):
    """A function that runs on batches raised or returned what is none; its own exception is the `__cause__`."""


class WorkerDiedError(TransformError):
    """A process that runs functions on batches ended before its work."""


class TransformTimeoutError(TransformError, TimeoutError):
    """A function that runs on batches took longer than its `timeout`."""


class VersionError(ForebayError, ImportError):
    """A library beside Forebay has another version than the one that it works with."""


class SkippedRowsWarning(UserWarning):
    """Rows could not be read and were left out, because of `on_error="skip"`; `Stream.holes` lists them."""


class StoreWarning(UserWarning):
    """A store refuses, fails, breaks connections or stalls, and requests are made again: once for each of these."""


class PerformanceWarning(UserWarning):
    """A dataset streams, but its files or `memory_limit` make that slow, or the shuffle coarse; it says what helps."""
