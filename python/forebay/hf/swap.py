"""Makes `datasets` read Parquet with Forebay in existing programs."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from forebay.exceptions import ColumnNotFoundError, PerformanceWarning, SchemaError, SettingError
from forebay.hf.versions import import_datasets
from forebay.options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from forebay.dataset import Dataset

METHODS = ("_get_examples_iterable_for_split", "_as_streaming_dataset_single")
"""The methods by which the Parquet builder of `datasets` makes streams."""


class Enabled:
    """The result of `enable`, a context manager that disables Forebay on exit unless it was enabled before."""

    def __init__(self, was_enabled: bool) -> None:
        self._was_enabled = was_enabled

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._was_enabled:
            disable()


def enable() -> Enabled:
    """Makes `datasets.load_dataset(..., streaming=True)` read Parquet with Forebay, in this process, until `disable`.

    `load_dataset` then returns a `datasets.IterableDataset` like that of `Dataset.to_hf`. Files that Forebay cannot
    read in the same way are read by `datasets`, with a warning that says why. In a `with`, it lasts for the block.

    Raises:
        VersionError: `datasets` is not installed, or has a version that Forebay does not support.

    Example:
        >>> import datasets
        >>> files = str(corpus / "*.parquet")
        >>> with forebay.hf.enable():
        ...     streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        >>> len(streamed)
        1000
    """
    import_datasets("`forebay.hf.enable`")
    parquet, was_enabled = _parquet(), is_enabled()
    for name, make in zip(METHODS, (_examples_of, _single_of), strict=True):
        if name not in vars(parquet):
            setattr(parquet, name, make(getattr(parquet, name)))
    return Enabled(was_enabled)


def disable() -> None:
    """Makes `datasets` read Parquet itself again. Datasets that were made in between stay as they are."""
    parquet = _parquet()
    for name in METHODS:
        if getattr(vars(parquet).get(name), "_is_forebay", False):
            delattr(parquet, name)


def is_enabled() -> bool:
    """Whether `datasets` reads Parquet with Forebay in this process."""
    return getattr(vars(_parquet()).get(METHODS[0]), "_is_forebay", False)


def _parquet() -> Any:
    return importlib.import_module("datasets.packaged_modules.parquet.parquet").Parquet


def _ours(method: Callable[..., Any]) -> Callable[..., Any]:
    method._is_forebay = True  # type: ignore[attr-defined]  # marks it for `is_enabled` and `disable`
    return method


def _examples_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method that makes the examples iterable of a split."""

    def examples(self: Any, split_generator: Any) -> Any:
        from forebay.hf.examples import ForebayExamplesIterable, Source
        from forebay.hf.parts import Part
        from forebay.hf.taken import open_files

        features = self.info.features
        try:
            taken = _with_columns(open_files(self, split_generator.gen_kwargs), list(features))
        except (SettingError, SchemaError, ColumnNotFoundError) as error:
            warnings.warn(f"`datasets` reads these files without Forebay: {error}", PerformanceWarning, stacklevel=5)
            return original(self, split_generator)
        return ForebayExamplesIterable(Source(taken, ReadOptions()), features, Part())

    return _ours(examples)


def _with_columns(taken: Dataset, names: list[str]) -> Dataset:
    """Returns a dataset with its columns in the order of `names`, which must be all of them.

    Raises:
        SettingError: a column is in some of the files only.
        ColumnNotFoundError: a column is in none of the files.
    """
    if others := [name for name in taken.column_names if name not in names]:
        raise SettingError(f"features: column `{others[0]}` of some files is not among them")
    return taken.select_columns(names)


def _single_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method that makes the dataset of a split."""

    def single(self: Any, splits_generator: Any, *arguments: Any, **settings: Any) -> Any:
        from forebay.hf.iterable import adopt

        return adopt(original(self, splits_generator, *arguments, **settings))

    return _ours(single)
