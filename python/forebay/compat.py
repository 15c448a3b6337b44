"""Batches and rows exactly as in `datasets`, made by its own formatters: `compat="datasets"` and `Dataset.decode`.

The dtypes are those of `datasets` (every integer is int64, every float is float32), lists are stacked if those of a
batch have one length, and media are decoded. Columns of plain numbers are converted to the same tensors directly.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from forebay.exceptions import DataError, SettingError, TensorError
from forebay.features import datasets_module, read_features, with_plain_arrays
from forebay.options import check_choice
from forebay.secrets import Tokens, hub_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from forebay import _lib

Compat = Literal["datasets"]
"""The library whose batches are reproduced."""

NO_FORM = (AttributeError, TypeError, ValueError, RuntimeError, OSError, OverflowError)
"""Exceptions of the formatters of `datasets`, and of decoders, for values that they cannot convert."""


def check_compat(compat: object) -> None:
    """Refuses other values than the name of a supported library, or None."""
    check_choice("compat", compat, Literal[Compat, None])


def refuse_media(features: Mapping[str, Any], decoded: Container[str]) -> None:
    """Refuses columns of media, except those in `decoded`, if a dataset with `decode` is to deliver tensors.

    Raises:
        SettingError: there is such a column, which would be delivered as bytes.
    """
    from datasets.features.features import require_decoding

    for name, feature in features.items():
        if name not in decoded and require_decoding(feature):
            raise SettingError(
                f"decode: `batches`, and loops over the dataset, yield what `decode()` makes of `{name}`; tensors of "
                f'images are made by `decode={{"{name}": forebay.Image(size=224)}}`, all that `datasets` makes by '
                "`compat='datasets'`, and what the files hold comes without `decode()`"
            )


class DatasetsFormat:
    """Rows and batches of `datasets` in one of its formats; without one, Python rows with media decoded."""

    finish = None
    leaves_rows_out = False

    def __init__(self, name: str | None, tokens: Mapping[str, Any] | None = None) -> None:
        if datasets_module() is None:
            raise SettingError(
                "`decode()` and compat='datasets' need the package `datasets`; install it with `pip install datasets`"
            )
        self.name = name
        """The name of the format in `datasets`."""
        self._tokens = Tokens(tokens or {})
        """The tokens by which media are read that rows name by their place on the Hub."""
        self._schema: Any = None
        self._formatter: Any = None
        self._target: Any = None

    @property
    def library(self) -> str | None:
        """The library, as named in `with_format`; None for Python rows."""
        return self.name

    def prepare(self, reader: _lib.Reader) -> DatasetsFormat:
        """Returns a separate format for one stream."""
        return DatasetsFormat(self.name, hub_tokens(reader))

    def __call__(self, batch: _lib.Batch) -> Any:
        """Returns the batch as `IterableDataset.iter` yields it."""
        table = self._table(batch)
        if self.name != "torch":
            return self._format("format_batch", table)
        quick = {name: tensor for name in table.column_names if (tensor := _quick_tensor(table[name])) is not None}
        slow = [name for name in table.column_names if name not in quick]
        made = self._format("format_batch", table.select(slow)) if slow else {}
        return {name: quick[name] if name in quick else made[name] for name in table.column_names}

    def rows(self, batch: _lib.Batch) -> Iterator[Any]:
        """Yields the rows as `IterableDataset.__iter__` does."""
        table = self._table(batch)
        for index in range(len(batch)):
            yield self._format("format_row", table.slice(index, 1), index)

    def _table(self, batch: _lib.Batch) -> Any:
        """Returns a batch with the types of its features."""
        import pyarrow as pa
        from datasets.table import table_cast

        record = pa.record_batch(batch)
        features = self._learn(record.schema)
        table = pa.Table.from_batches([record])
        try:
            table = table_cast(table, self._target)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"a batch does not fit its features {features}: {error}") from error
        return with_plain_arrays(table) if self.name is None else table

    def _learn(self, schema: Any) -> Any:
        """Returns the features of batches with a schema; makes the formatter for them."""
        from datasets.formatting import get_formatter

        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            features = read_features(schema)
            self._formatter = get_formatter(self.name, features=features, token_per_repo_id=self._tokens)
            self._target, self._schema = features.arrow_schema, schema
        return self._formatter.features

    def _format(self, method: str, table: Any, first: int = 0) -> Any:
        try:
            return formatted(self._formatter, method, table, first, ", or read without `compat`")
        except ImportError as error:
            for name in table.column_names:
                self._blame(name, method, table.select([name]))
            raise SettingError(f"a batch cannot be decoded: {error}") from error

    def _blame(self, name: str, method: str, column: Any) -> None:
        """Raises if a column alone lacks a decoder."""
        try:
            formatted(_of_column(self._formatter, name), method, column)
        except ImportError as error:
            why = str(error).rstrip(".")
            raise SettingError(
                f"column `{name}` cannot be decoded: {why}; or read its bytes without `compat` and `decode`"
            ) from error

    def __repr__(self) -> str:
        return "decode()" if self.name is None else f"with_format({self.name!r}, compat='datasets')"

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetsFormat, (self.name, self._tokens)


def formatted(formatter: Any, method: str, table: Any, first: int = 0, instead: str = "") -> Any:
    """Returns a table as formatted by a formatter of `datasets`; its first row is row `first` of its batch.

    Raises:
        DataError: a column holds a value that cannot be decoded, or has no Python object; see `locate`.
        ImportError: a library that decodes media is missing, or lacks what it needs.
        TensorError: a column has no form; besides leaving it out, the message suggests `instead`.
    """
    make: Callable[[Any], Any] = getattr(formatter, method)
    try:
        return make(table)
    except NO_FORM as error:
        if isinstance(error, RuntimeError) and "libtorchcodec" in str(error):
            # The rest of its message is pages of traces, one for each version of FFmpeg.
            raise ImportError("`torchcodec` cannot load FFmpeg; install one of the versions it supports") from error
        for name in table.column_names:
            column = table.select([name])
            try:
                getattr(_of_column(formatter, name), method)(column)
            except NO_FORM as cause:
                raise _no_form(column, formatter, cause, first, instead) from cause
        raise DataError(f"a batch has no form in `datasets`: {error}") from error


def _of_column(formatter: Any, name: str) -> Any:
    """Returns a formatter for one column: those of frames look for every column that is to be decoded."""
    features = formatter.features
    if features is None:
        return formatter
    return type(formatter)(
        features=type(features)({name: features[name]}), token_per_repo_id=formatter.token_per_repo_id
    )


def locate(error: Exception, positions: Sequence[int]) -> None:
    """Names the row of a value that cannot be decoded by its position, given those of the rows of its batch."""
    if isinstance(error, DataError) and error._row is not None and error._row < len(positions):
        said, position = str(error), positions[error._row]
        error.args = (said.replace(_in_batch(error._row), f"the row at position {position}", 1),)
        error._row = None


def _in_batch(row: int) -> str:
    return f"row {row} of its batch"


def _no_form(column: Any, formatter: Any, error: Exception, first: int, instead: str) -> DataError | TensorError:
    """Returns the exception for a column, given as a table, on which a formatter raised `error`."""
    from datasets.features.features import require_decoding
    from datasets.formatting import PythonFormatter

    (name,), features = column.column_names, formatter.features
    is_python = isinstance(formatter, PythonFormatter)
    if features is not None and require_decoding(features[name]):
        python = formatter if is_python else PythonFormatter(features, False, formatter.token_per_repo_id)
        decode = python.format_batch
        row = next((row for row in range(len(column)) if _fails(decode, column.slice(row, 1))), None)
        if row is not None:
            return _undecodable(name, first + row, error, column[name][row].as_py())
        if is_python:
            return _undecodable(name, None, error)
    if is_python:
        what = f"column `{name}` of type `{column.schema.field(name).type}`"
        return DataError(f"{what} holds a value that Python has no object for: {error}; leave it out")
    return TensorError(f"column `{name}` has no form of `datasets`: {error}; leave it out{instead}")


def _fails(make: Callable[[Any], Any], table: Any) -> bool:
    try:
        make(table)
    except NO_FORM:
        return True
    return False


def _undecodable(column: str, row: int | None, error: Exception, value: Any = None) -> DataError:
    """Returns the exception for a value that cannot be decoded, in a row of a batch if it is known."""
    where = "" if row is None else f", in {_in_batch(row)}"
    # The address of a buffer tells nothing.
    cause = re.sub(r" <\S+ object at 0x[0-9a-fA-F]+>", "", str(error)).rstrip(".")
    is_of_system = _is_of_system(error)
    if (path := _path_alone(value)) is not None and (is_of_system or isinstance(error, RuntimeError)):
        named = "" if path in cause else f"`{path}`: "
        text = f"column `{column}` names a file that cannot be read{where}: {named}{cause}"
    elif is_of_system:
        text = f"column `{column}` cannot be decoded{where}: {cause}"
    else:
        text = (
            f"column `{column}` holds a value that cannot be decoded{where}: {cause}; leave that row out, or read its "
            "bytes without `compat` and `decode`"
        )
    made = DataError(text)
    made._row = row
    return made


def _is_of_system(error: Exception) -> bool:
    """Whether an exception comes from the system or a network; PIL has such exceptions for broken images, too."""
    if not isinstance(error, OSError) or type(error).__name__ == "UnidentifiedImageError":
        return False
    return type(error) is not OSError or error.errno is not None


def _path_alone(value: Any) -> str | None:
    """Returns the path of the first medium in a value of which the bytes are elsewhere; None without one."""
    if isinstance(value, dict) and isinstance(path := value.get("path"), str) and value.get("bytes", b"") is None:
        return path
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((path for path in map(_path_alone, parts) if path is not None), None)


def _quick_tensor(column: Any) -> Any:
    """Returns numbers, or lists of numbers with one length, as torch's formatter would; None for other columns."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import torch

    types = pa.types
    array = column.combine_chunks()
    if array.null_count or not len(array):
        return None
    width = None
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        items = array.flatten()
        if len(items) == 0 or len(items) % len(array):
            return None
        width = len(items) // len(array)
        is_fixed = types.is_fixed_size_list(array.type)
        if not is_fixed and pc.any(pc.not_equal(array.value_lengths(), width)).as_py():
            return None
        array = items
    is_float = types.is_float32(array.type) or types.is_float64(array.type)
    is_integer = types.is_integer(array.type) and not types.is_uint64(array.type)
    if array.null_count or not (is_float or is_integer):
        return None
    values = torch.tensor(array.to_numpy(), dtype=torch.float32 if is_float else torch.int64)
    return values if width is None else values.reshape(-1, width)
