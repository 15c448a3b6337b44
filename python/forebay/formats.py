"""Formats of batches and rows: Arrow, or the arrays and frames of another library.

Each format is a small picklable object that turns a `Batch` into the library's batch and splits that into rows. A
library is imported when its format is chosen.
"""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from forebay.columns import row_of
from forebay.compat import DatasetsFormat, check_compat
from forebay.exceptions import DataError, ForebayError, SettingError, TensorError
from forebay.options import check_text, is_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forebay import _lib

FormatName = Literal["torch", "numpy", "arrow", "pandas", "polars", "jax", "tensorflow"]
"""The names that `Dataset.with_format` takes, the same as in Hugging Face `datasets`."""

FormatAlias = Literal["np", "pa", "pd", "pl", "pt", "pyarrow", "python", "pytorch", "tf"]
"""Aliases of them in `datasets`."""

TABLES = ("arrow", "pandas", "polars")
"""Those whose batches are tables, not dicts."""

_ALIASES: dict[str, FormatName | None] = {
    "np": "numpy",
    "pa": "arrow",
    "pd": "pandas",
    "pl": "polars",
    "pt": "torch",
    "pyarrow": "arrow",
    "python": None,
    "pytorch": "torch",
    "tf": "tensorflow",
}


def format_of(name: Any) -> Any:
    """Returns the format for an alias of `datasets`, and other values as they are."""
    return _ALIASES.get(name, name) if isinstance(name, str) else name


class Format(Protocol):
    """Converts batches into those of a library."""

    @property
    def library(self) -> str | None:
        """The library, as named in `with_format`; None for Python rows."""

    @property
    def finish(self) -> str | None:
        """How the stream's own threads pad, pack or decode batches, as JSON; None if they do nothing of it."""

    @property
    def leaves_rows_out(self) -> bool:
        """Whether batches may lack rows that could be read."""

    def prepare(self, reader: _lib.Reader) -> Format:
        """Returns the format for the columns of `reader`, or refuses them."""

    def __call__(self, batch: _lib.Batch) -> Any:
        """Returns the library's batch."""

    def rows(self, batch: _lib.Batch) -> Iterator[Any]:
        """Yields the rows of a batch."""


def make_format(name: str | None, forms: Mapping[str, str] | None = None, compat: str | None = None) -> Format | None:
    """Returns the format with a name; None means Arrow batches and Python rows.

    Raises:
        SettingError: the format is unknown, its library is not installed, or it takes no forms.
    """
    check_compat(compat)
    if not is_choice(name, Literal[FormatName, None]):
        raise SettingError(f"format: expected one of {', '.join(get_args(FormatName))} or None, got {name!r}")
    if compat is not None:
        if forms is not None:
            raise SettingError("forms: with `compat`, `datasets` decides them; leave one of the two out")
        if name in ("torch", "jax", "tensorflow"):
            _import({"jax": "jax.numpy"}.get(name, name), name)
        return DatasetsFormat(name)
    if name in ("torch", "numpy", "jax", "tensorflow"):
        return TensorFormat(name, check_forms(forms))
    if forms is not None:
        raise SettingError(f"forms: only formats of tensors have them (torch, numpy, jax, tensorflow), not {name!r}")
    if name is None:
        return None
    library = _import("pyarrow" if name == "arrow" else name, name)
    return FrameFormat(library.__name__)


def check_forms(forms: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the requested forms as a dict of texts, or refuses them."""
    if forms is None:
        return {}
    try:
        asked: dict[Any, Any] = dict(forms)
    except (TypeError, ValueError):
        raise SettingError(f'forms: expected a dict such as {{"tokens": "ragged"}}, got {forms!r}') from None
    for column, form in asked.items():
        if not isinstance(column, str) or not isinstance(form, str):
            raise SettingError(f"forms: expected names of columns and forms, got {column!r}: {form!r}")
        check_text("forms", column)
        check_text(f"forms[{column!r}]", form)
    return asked


class TensorFormat:
    """Dicts of tensors, lists, `Masked`, `Ragged` and `DictionaryEncoded`, by column."""

    def __init__(self, library: str, requests: dict[str, str], finish: str | None = None) -> None:
        self._library = library
        self._requests = requests
        self.finish = finish
        self._forms: _lib.Forms | None = None
        self._make_tensor = _tensor_maker(library)

    def prepare(self, reader: _lib.Reader) -> TensorFormat:
        """Chooses the form of each column; a column without one is refused now, not in step 10 000."""
        prepared = TensorFormat(self._library, self._requests, self.finish)
        target = self._library
        if target == "jax" and not _import("jax", target).config.jax_enable_x64:
            target = "jax32"
        prepared._forms = reader.forms(self._requests, target, self.finish)
        return prepared

    @property
    def library(self) -> str | None:
        """The library, as named in `with_format`."""
        return self._library

    @property
    def has_requests(self) -> bool:
        """Whether forms were requested."""
        return bool(self._requests)

    @property
    def decoded(self) -> list[str]:
        """The columns that the stream decodes."""
        return [] if self.finish is None else list(json.loads(self.finish).get("images", ()))

    @property
    def leaves_rows_out(self) -> bool:
        """Whether images that cannot be decoded are left out."""
        images = {} if self.finish is None else json.loads(self.finish).get("images", {})
        return any(image["on_error"] == "skip" for image in images.values())

    def finished(self, settings: str) -> TensorFormat:
        """Returns this format for batches that a stream pads, packs or decodes as `settings` say, as JSON."""
        return TensorFormat(self._library, self._requests, settings)

    def __call__(self, batch: _lib.Batch) -> dict[str, Any]:
        """Returns the columns by name. Tensors share the batch's memory."""
        assert self._forms is not None, "a format is prepared before its first batch"  # noqa: S101
        # torch's function also takes capsules directly, without calls of `__dlpack__`.
        return batch.convert(self._forms, self._make_tensor, takes_capsules=self._library == "torch")

    def rows(self, batch: _lib.Batch) -> Iterator[dict[str, Any]]:
        """Yields each row as a dict; None for NULL."""
        try:
            columns = self(batch)
        except TensorError:
            # Its lists differ in length, against what the footers said; a row has a length of its own.
            rows = (row_of(self(batch.slice(index, 1)), 0) for index in range(len(batch)))
        else:
            rows = (row_of(columns, index) for index in range(len(batch)))
        yield from rows

    def __repr__(self) -> str:
        forms = f", forms={self._requests}" if self._requests else ""
        return f"with_format({self._library!r}{forms})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._library, self._requests, self.finish, self._forms)


def _restore(library: str, requests: dict[str, str], finish: str | None, forms: _lib.Forms | None) -> TensorFormat:
    restored = TensorFormat(library, requests, finish)
    restored._forms = forms
    return restored


class FrameFormat:
    """pyarrow tables, pandas or Polars frames; a row is a table of one row."""

    finish = None
    leaves_rows_out = False

    def __init__(self, library: str) -> None:
        self._library = library
        self._module = importlib.import_module(library)

    @property
    def library(self) -> str | None:
        """The library, as named in `with_format`."""
        return self._library.removeprefix("py")

    def prepare(self, reader: _lib.Reader) -> FrameFormat:  # noqa: ARG002 - tables hold all types
        """Returns itself."""
        return self

    def __call__(self, batch: _lib.Batch) -> Any:
        """Returns a `pyarrow.Table` or `polars.DataFrame` without a copy, or a `pandas.DataFrame`.

        Raises:
            DataError: the library has no form for a column, or for a value in it.
        """
        try:
            return self._frame(batch)
        except BaseException as error:
            if not _is_refusal(error):
                raise
            raise self._no_form(batch, error) from error

    def _frame(self, batch: Any) -> Any:
        if self._library == "pyarrow":
            return self._module.table(batch)
        if self._library == "polars":
            return self._module.DataFrame(batch)
        import pyarrow as pa

        return pa.record_batch(batch).to_pandas()

    def _no_form(self, batch: Any, error: BaseException) -> DataError:
        """Returns the exception for a batch on which the library raised `error`; names the first such column."""
        what, library = "a batch", self._library
        if importlib.util.find_spec("pyarrow") is not None:
            import pyarrow as pa

            record = pa.record_batch(batch)
            for field in record.schema:
                try:
                    self._frame(record.select([field.name]))
                except BaseException as cause:
                    if not _is_refusal(cause):
                        raise
                    what, error = f"column `{field.name}` of type `{field.type}`", cause
                    break
        return DataError(f"{what} has no form in `{library}`: {error}; leave it out, or read it in another format")

    def rows(self, batch: _lib.Batch) -> Iterator[Any]:
        """Yields tables of one row."""
        table = self(batch)
        for index in range(len(batch)):
            yield table.iloc[index : index + 1] if self._library == "pandas" else table.slice(index, 1)

    def __repr__(self) -> str:
        return f"with_format({self.library!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameFormat, (self._library,)


def _is_refusal(error: BaseException) -> bool:
    """Whether a library refused a type or value; Polars panics at some, which is no `Exception`."""
    if type(error).__name__ == "PanicException":
        return True
    return isinstance(error, Exception) and not isinstance(error, ForebayError | MemoryError)


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise SettingError(f"format: {name!r} needs the package `{package}`: {error}") from error


def _tensor_maker(library: str) -> Callable[[_lib.Tensor], Any]:
    """Returns what makes a library's tensor of ours, through DLPack."""
    if library == "torch":
        from_dlpack: Callable[[_lib.Tensor], Any] = _import("torch.utils.dlpack", library).from_dlpack
        return from_dlpack
    if library == "jax":
        jax = _import("jax.numpy", library)
        return lambda tensor: jax.from_dlpack(tensor)
    if library == "tensorflow":
        dlpack = _import("tensorflow", library).experimental.dlpack
        # TensorFlow takes any address, and aborts the process later at one that is not aligned.
        return lambda tensor: dlpack.from_dlpack(tensor.__dlpack__(copy=None if tensor.is_aligned else True))
    numpy = _import("numpy", library)

    def make_array(tensor: _lib.Tensor) -> Any:
        array = numpy.from_dlpack(tensor)
        kind = tensor.time_type
        if kind is None:
            return array
        # Days are 32 bits in Arrow and 64 in NumPy.
        return array.view(kind) if array.itemsize == numpy.dtype(kind).itemsize else array.astype(kind)

    return make_array
