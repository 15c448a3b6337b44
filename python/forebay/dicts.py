"""Datasets by the name of their split, as `load_dataset` without `split` makes them."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, TypeVar

from forebay import familiar
from forebay.dataset import Dataset
from forebay.manifests import save_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from forebay.mapped import MappedDataset

P = ParamSpec("P")
SplitT = TypeVar("SplitT", bound="Dataset | MappedDataset")
DictT = TypeVar("DictT", bound="_Splits[Any]")


def _of_each(method: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[DictT, P], DictT]:
    """Makes a method of `Dataset` one that calls that of every split."""

    @wraps(method)
    def called(self: DictT, /, *args: P.args, **kwargs: P.kwargs) -> DictT:
        return type(self)({name: getattr(split, method.__name__)(*args, **kwargs) for name, split in self.items()})

    called.__doc__ = f"Calls `Dataset.{method.__name__}` for every split."
    setattr(called, "__signature__", signature(method).replace(return_annotation="Self"))  # noqa: B010
    return called


class _Splits(dict[str, SplitT]):
    """What dicts of splits have in common."""

    remove_columns = _of_each(Dataset.remove_columns)
    rename_column = _of_each(Dataset.rename_column)
    rename_columns = _of_each(Dataset.rename_columns)
    select_columns = _of_each(Dataset.select_columns)
    shuffle = _of_each(Dataset.shuffle)

    @property
    def num_rows(self) -> dict[str, int]:
        """The exact number of kept rows of each split. Evaluates the filters if that has not been done."""
        return {name: split.num_rows for name, split in self.items()}

    def __repr__(self) -> str:
        splits = [f"  {name}: {split!r}".replace("\n", "\n  ") for name, split in self.items()]
        number = f"{len(self)} splits" if len(self) != 1 else "1 split"
        return "\n".join([f"{type(self).__name__}({number})", *splits])

    def __missing__(self, name: object) -> Never:
        raise KeyError(f"no split {name!r}; there are {', '.join(self)}")

    # Hidden from type checkers, which would take it to mean that a dict has every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            if name.startswith("__"):
                raise AttributeError(name)
            if not hasattr(Dataset, name):
                raise familiar.missing(self, "a dict of splits", name, familiar.OF_DATASET)
            raise AttributeError(
                f"these are several splits; choose one first: ds['{next(iter(self), 'train')}'].{name}"
            )


class DatasetDict(_Splits[Dataset]):
    """Datasets by split name; made by `load_dataset` without `split`.

    As in `datasets`, methods that choose rows, columns, an order or a format do so in every split, and `map` maps every
    split. All others are those of one split: `splits["train"].to_torch(...)`.

    Example:
        >>> splits = load_dataset(corpus).filter("size < 150").select_columns(["path", "size"])
        >>> splits.num_rows, splits.column_names
        ({'train': 50}, {'train': ['path', 'size']})
    """

    cast = _of_each(Dataset.cast)
    cast_column = _of_each(Dataset.cast_column)
    filter = _of_each(Dataset.filter)
    with_format = _of_each(Dataset.with_format)

    @property
    def column_names(self) -> dict[str, list[str]]:
        """Names of the columns of each split, in order."""
        return {name: dataset.column_names for name, dataset in self.items()}

    @familiar.explained(familiar.OF_MAP)
    def map(self, function: Callable[..., Any], **settings: Any) -> MappedDatasetDict:
        """Calls `Dataset.map` for every split. Each has workers of its own, which start with its loop.

        Example:
            >>> splits = load_dataset(corpus).map(lambda row: {"kb": row["size"] / 1000}).remove_columns("size")
            >>> next(iter(splits["train"]))["kb"]
            0.0
        """
        return MappedDatasetDict({name: dataset.map(function, **settings) for name, dataset in self.items()})

    def save_manifest(self, uri: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Writes the lists of all splits' objects and their footers to one object; see `Dataset.save_manifest`."""
        save_manifest([(name, dataset._native) for name, dataset in self.items()], uri, storage_options)

    def to_hf(self, **settings: Any) -> Any:
        """Returns all splits as a `datasets.IterableDatasetDict` (Hugging Face); see `Dataset.to_hf`."""
        from forebay.hf.versions import import_datasets

        made = {name: dataset.to_hf(**{"split": name} | settings) for name, dataset in self.items()}
        return import_datasets("`to_hf`").IterableDatasetDict(made)


class MappedDatasetDict(_Splits["MappedDataset"]):
    """Datasets with functions by split name; made by `DatasetDict.map`."""

    @familiar.explained(familiar.OF_MAP)
    def map(self, function: Callable[..., Any], **settings: Any) -> MappedDatasetDict:
        """Applies one more function to every split."""
        return MappedDatasetDict({name: dataset.map(function, **settings) for name, dataset in self.items()})
