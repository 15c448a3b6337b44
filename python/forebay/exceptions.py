"""Exceptions: each is a `ForebayError` and also the builtin exception that fits.

The message says what is wrong, where (object, row group, column, value) and what to do. The error of the store, the
decoder or the system is the `__cause__`, which is kept when an exception is pickled in another process.
"""

from __future__ import annotations

import pickle
from typing import Any

from forebay._lib import redacted


class _ChainedError(Exception):
    """An exception that holds no secrets, and keeps its causes when it is pickled or copied."""

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
    """Returns a text with secrets redacted and invalid Unicode, as in file names, escaped."""
    return redacted(text.encode(errors="backslashreplace").decode())


def _portable(cause: BaseException) -> BaseException:
    """Returns an exception, or a `Cause` with its text if it cannot be pickled, as those of some libraries."""
    try:
        pickle.loads(pickle.dumps(cause))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - classes may raise anything
        return Cause(f"{type(cause).__name__}: {cause}")
    return cause


class ForebayError(_ChainedError):
    """Base class of Forebay's exceptions; what Python has a kind for, such as a wrong argument's name, is Python's."""


class Cause(_ChainedError):  # noqa: N818 - it is the cause of one
    """The error of an underlying library, as the `__cause__` of a `ForebayError`; never raised itself."""


class NotFoundError(ForebayError, FileNotFoundError):
    """Nothing is stored at the source, or no Parquet object matches it."""


class AccessDeniedError(ForebayError, PermissionError):
    """The store refused the credentials, or the operating system denied access."""


class DatasetNotFoundError(NotFoundError):
    """The Hub has no such dataset or revision, or this user may not see it.

    Once `datasets` is imported, those that are raised are also instances of its `DatasetNotFoundError`.
    """


class GatedDatasetError(DatasetNotFoundError, AccessDeniedError):
    """A dataset on the Hub is gated: its owner grants access."""


class StoreError(ForebayError, OSError):
    """The store failed in a way that a retry cannot fix, or only gave wrong answers."""


class StoreTimeoutError(StoreError, TimeoutError):
    """The store refused, failed or did not answer for longer than `retry_for`."""


class HubUnreachableError(StoreError, ConnectionError):
    """The Hub cannot be reached or offline mode is set, and the data was not downloaded before."""


class ObjectChangedError(StoreError):
    """An object is not the one that was opened."""


class DataError(ForebayError, ValueError):
    """An object is not Parquet, or its bytes cannot be decoded."""

    _row: int | None = None
    """The row of a batch that the message names, until it is named by its position."""


class SkipLimitError(DataError):
    """More rows could not be read than `max_skipped` allows; the `__cause__` is the error of the last ones."""


class SchemaError(ForebayError, ValueError):
    """The objects of a dataset do not fit together."""


class ColumnNotFoundError(ForebayError, ValueError):
    """A column is not in the dataset."""


class QueryError(ForebayError, ValueError):
    """A SQL expression does not parse, does not type-check, or fails on a value."""


class SettingError(ForebayError, ValueError):
    """An argument has a value that cannot work."""


class RowIndexError(ForebayError, IndexError):
    """A row number is out of range."""


class SelectionError(ForebayError, ValueError):
    """A saved selection is malformed, is only a part, or is of another dataset."""


class StateError(ForebayError, ValueError):
    """A state is malformed, or belongs to another dataset, query or order."""


class AgreementError(ForebayError, ValueError):
    """The ranks of a process group are about to read different epochs."""


class MemoryLimitError(ForebayError, MemoryError):
    """`memory_limit` is less than what is needed at once."""


class TensorError(ForebayError, TypeError):
    """A column has no tensor form."""


class ClosedError(ForebayError, ValueError):
    """A stream was closed, belongs to another process, or was ended by an error."""


class TransformError(ForebayError, RuntimeError):
    """A function on batches raised, which is the `__cause__`, or returned something invalid, or could not be run."""


class WorkerDiedError(TransformError):
    """A process that runs functions on batches ended before its work was done."""


class TransformTimeoutError(TransformError, TimeoutError):
    """A function on batches took longer than the `timeout`."""


class VersionError(ForebayError, ImportError):
    """A library that Forebay needs is missing, or has an unsupported version."""


class SkippedRowsWarning(UserWarning):
    """Rows could not be read and were left out, because of `on_error="skip"`; `Stream.holes` lists them."""


class StoreWarning(UserWarning):
    """A store refuses, fails, breaks connections or stalls, and requests are retried; once for each of these."""


class PerformanceWarning(UserWarning):
    """The files or `memory_limit` make streaming slow, or the shuffle coarse; the message says what helps."""
