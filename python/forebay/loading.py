"""`load_dataset`: opens names, folders and files as datasets with the requested features, rows and columns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, overload

from forebay import familiar
from forebay.dataset import Dataset, Filters
from forebay.dicts import DatasetDict
from forebay.exceptions import ColumnNotFoundError, PerformanceWarning, SettingError
from forebay.features import features_from_card
from forebay.frames import level_of_loop
from forebay.hub.resolve import Wanted
from forebay.options import check_names, check_text
from forebay.progress import with_progress
from forebay.sources import Opened, Request, open_sources, parse_sources
from forebay.splits import parse

Source = str | PathLike[str] | Sequence[str | PathLike[str]]


@overload
def load_dataset(
    path: Source | Any,
    name: str | None = None,
    *,
    split: str,
    data_files: Any = None,
    data_dir: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    columns: Sequence[str] | None = None,
    filters: str | Filters | None = None,
    features: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    streaming: bool = True,
) -> Dataset: ...


@overload
def load_dataset(
    path: Source | Any,
    name: str | None,
    split: str,
    *,
    data_files: Any = None,
    data_dir: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    columns: Sequence[str] | None = None,
    filters: str | Filters | None = None,
    features: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    streaming: bool = True,
) -> Dataset: ...


@overload
def load_dataset(
    path: Source | Any,
    name: str | None = None,
    split: None = None,
    *,
    data_files: Any = None,
    data_dir: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    columns: Sequence[str] | None = None,
    filters: str | Filters | None = None,
    features: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    streaming: bool = True,
) -> DatasetDict: ...


@familiar.explained(familiar.OF_LOAD)
def load_dataset(
    path: Source | Any,
    name: str | None = None,
    split: str | None = None,
    *,
    data_files: Any = None,
    data_dir: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    columns: Sequence[str] | None = None,
    filters: str | Filters | None = None,
    features: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    streaming: bool = True,
) -> Dataset | DatasetDict:
    """Opens Parquet in place: lists the objects and reads their footers, with one request each.

    Footers are cached on disk and read again only for objects that have changed. Folders named `key=value` below the
    listed one become columns, after those of the files.

    Args:
        path: A dataset on the Hugging Face Hub (`org/name`, `hf://datasets/org/name@revision/folder`,
            `org/name@~parquet` for the Hub's own Parquet copy, `hf://buckets/...`), unless a local folder has that
            name. Or a folder, a file, a glob (also `**`) or a list of these: local paths, `file://`, `s3://`, `gs://`,
            `az://`, or `http(s)://` (files only); a manifest (see `Dataset.save_manifest`); or an `obstore` store.
            Hidden and `_`-prefixed objects are ignored. Objects are in natural order (`part-2` before `part-10`); on
            the Hub, and in a local folder with configurations in a card, `data_files` or `data_dir`, in that of
            `datasets` (`part-10` before `part-2`).
        name: The configuration, as named in the card on the Hub or in the folder; by default the card's default.
        split: One of the splits that the card, or folder and file names, define by the rules of Hugging Face (`train`,
            `validation`, `test`; everything is `train` if no name says otherwise); several, as `train+test` or `all`;
            or rows of them, as `train[:10%]`, `train[100:200]`, `train[-1000:]`.
        data_files: Files of the dataset: a path, a pattern, a list of them, or a dict of these by split. `path` may
            then be `"parquet"`.
        data_dir: A folder of the dataset, or any folder if `path` is `"parquet"`.
        revision: A branch, tag or commit of a dataset on the Hub. The commit is part of every state.
        token: Token for the Hub. By default `HF_TOKEN` or that of a login, if there is one; `True` requires one;
            `False` uses none.
        columns: Columns to keep; by default those named in the configuration's card, else all.
        filters: Rows to keep, as in `Dataset.filter`; they may name columns that are not kept. By default those of the
            configuration's card.
        features: Features of some or all columns, as in `Dataset.cast`; filters see the columns after the cast. If all
            columns are named, they also set their order. By default those of the dataset's card, if it has any.
        storage_options: Credentials and endpoint under the names of the `object_store` crate (`aws_access_key_id`,
            `aws_endpoint`, ...), which override the environment (`AWS_ACCESS_KEY_ID`, ...), and `retry_for`: how long a
            read is retried when the store refuses or fails. For the Hub: `hf_endpoint`, `hf_token` and `hf_patience`.
            For `fsspec`: the arguments of the file system, of any JSON type.
        streaming: For compatibility with `datasets`; must be True, as nothing is downloaded first.

    Returns:
        A `Dataset`; without `split`, a `DatasetDict` of all splits.

    Raises:
        NotFoundError: nothing is there, or no Parquet object.
        DatasetNotFoundError: the Hub has no such dataset or revision, or this user may not see it.
        AccessDeniedError: the store refused the credentials.
        HubUnreachableError: the Hub cannot be reached or offline mode is set, and nothing was downloaded before.
        DataError: an object is not Parquet, a manifest is damaged, or a card is broken.
        SchemaError: the objects' types do not fit together.
        SettingError: there is no such configuration or split, an option is unknown, or a folder is that of a Delta or
            Iceberg table, which also holds files that the table no longer has.
        QueryError: a filter does not parse or type-check.
        ColumnNotFoundError: `columns`, `filters` or `features` name a column that is not in the files.

    Example:
        >>> ds = load_dataset(corpus, split="train", columns=["path", "size"])
        >>> ds.column_names
        ['path', 'size']
        >>> load_dataset(corpus, split="train[:10%]").num_rows
        100
    """
    sources, options = parse_sources(path, storage_options)
    for what, value in (("name", name), ("data_dir", data_dir), ("revision", revision)):
        if value is not None:
            check_text(what, value)
    if isinstance(split, str):
        check_text("split", split)
    if token is not None and not isinstance(token, str | bool):
        raise SettingError(f"token: expected text, or False for none, got {type(token).__name__}")
    if columns is not None:
        columns = check_names("columns", columns)
    if streaming is not True:
        raise SettingError(f"streaming: nothing is downloaded first here, so only True will do, got {streaming!r}")
    wanted = Wanted(name, data_files, data_dir)

    def open_all(tick: Callable[[int, int], None]) -> Opened:
        return open_sources(Request(sources, wanted, split, revision, token, options, tick))

    found = with_progress("opening", open_all)
    opened = {of: Dataset(native) for of, native in found.splits.items()}
    for note in next(iter(opened.values()))._native.notes:
        warnings.warn(note, PerformanceWarning, stacklevel=level_of_loop())
    if _is_cut(split) and (filters is not None or found.kept.filters is not None):
        whose = "the card's filters" if filters is None else "`filters`"
        # A card's filters would be applied without `filters`, too.
        may_follow = found.kept.filters is None
        behind = "; or filter what was cut: `load_dataset(..., split='train[:100]').filter(...)`" if may_follow else ""
        raise SettingError(
            f"split: {whose} choose the rows of a split, before `{split}` cuts them; choose rows of the whole split: "
            f"`load_dataset(..., split='train').take(100)`{behind}"
        )
    for of, dataset in opened.items():
        kept = found.kept.rows_of(dataset) if filters is None else dataset
        given = _of_card(kept, found.info) if features is None else features
        kept = _in_order_of(given, kept)
        opened[of] = _wanted(kept, found.kept.columns_of(kept) if columns is None else columns, filters, given)
    return DatasetDict(opened) if split is None else next(iter(opened.values()))


def _is_cut(split: Any) -> bool:
    return split is not None and any(part.is_slice for part in parse(split))


def _of_card(dataset: Dataset, info: Mapping[str, Any]) -> Any:
    """Returns the features of a dataset's card for its columns, if it has any."""
    said = info.get("features")
    if not said:
        return None
    features = features_from_card(said)
    fitting = {name: feature for name, feature in features.items() if _fits(dataset, name, feature)}
    if len(fitting) < len(features):
        named = ", ".join(f"`{name}`" for name in features if name not in fitting)
        warnings.warn(
            f"the dataset's card has features that are not those of its files: {named}; these columns are as the files "
            "have them",
            stacklevel=level_of_loop(),
        )
    return fitting


def _fits(dataset: Dataset, name: str, feature: Any) -> bool:
    """Whether the column exists and can be cast to the feature."""
    try:
        # The column alone: planning a cast takes time for every column.
        dataset.select_columns(name).cast({name: feature})
    except (ColumnNotFoundError, SettingError):
        return False
    return True


def _in_order_of(features: Any, dataset: Dataset) -> Dataset:
    """Returns a dataset with its columns in the order of `features`, as in `datasets`, if these name all columns."""
    names = list(features) if hasattr(features, "items") else []
    found = dataset.column_names
    return dataset.select_columns(names) if names != found and set(names) == set(found) else dataset


def _wanted(dataset: Dataset, columns: Sequence[str] | None, filters: str | Filters | None, features: Any) -> Dataset:
    """Returns a dataset with the features, rows and columns requested in `load_dataset`."""
    if features is not None:
        dataset = dataset.cast(features)
    if filters is not None:
        dataset = dataset.filter(filters)
    return dataset if columns is None else dataset.select_columns(columns)


def only_split(source: str) -> Dataset:
    """Opens the files of a side table, whatever split their names indicate."""
    splits = load_dataset(source)
    if len(splits) > 1:
        raise SettingError(f"tables: `{source}` has the splits {', '.join(splits)}; pass one of them as a Dataset")
    return next(iter(splits.values()))
