"""Exceptions: every one is a `ForebayError`, and the builtin that fits is mixed in.

The message says what is wrong, where (object, row group, column, value) and what to do.
"""


class ForebayError(Exception):
    """Base of all exceptions that Forebay raises on its own account."""


class NotFoundError(ForebayError, FileNotFoundError):
    """Nothing is stored under the source, or no Parquet object matches it."""


class AccessDeniedError(ForebayError, PermissionError):
    """The store refused the credentials."""


class StoreError(ForebayError, OSError):
    """The store failed, after retries."""


class ObjectChangedError(StoreError):
    """An object is not the one that was opened."""


class DataError(ForebayError, ValueError):
    """An object is not Parquet, or its bytes cannot be decoded."""


class SchemaError(ForebayError, ValueError):
    """The objects of a dataset do not fit together."""


class ColumnNotFoundError(ForebayError, ValueError):
    """A column is not in the dataset."""


class QueryError(ForebayError, ValueError):
    """A SQL expression does not parse, does not type-check, or fails on a value."""


class SettingError(ForebayError, ValueError):
    """An argument has a value that cannot work."""


class StateError(ForebayError, ValueError):
    """A state is malformed, or belongs to another dataset, query or order."""


class MemoryLimitError(ForebayError, MemoryError):
    """`memory_limit` cannot hold the least that is needed at once."""


class TensorError(ForebayError, TypeError):
    """A column has no tensor form."""


class ClosedError(ForebayError, ValueError):
    """A stream was closed, or belongs to another process."""


class PerformanceWarning(UserWarning):
    """A dataset streams, but its files make it slow or the shuffle coarse; the message says what they need."""
