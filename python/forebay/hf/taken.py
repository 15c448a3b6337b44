"""Takes over Parquet datasets of `datasets`: their files, columns and filters."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from forebay.casts import is_alike
from forebay.dicts import DatasetDict
from forebay.exceptions import QueryError, SettingError
from forebay.hf.filters import HINT, to_exact_sql
from forebay.hf.versions import import_datasets
from forebay.loading import load_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.dataset import Dataset

STEPS = {
    "BufferShuffledExamplesIterable": "shuffle",
    "CyclingMultiSourcesExamplesIterable": "interleave_datasets",
    "FilteredExamplesIterable": "filter",
    "FormattedExamplesIterable": "map",
    "HorizontallyConcatenatedMultiSourcesExamplesIterable": "concatenate_datasets",
    "InterleavedShardsExamplesIterable": "shuffle",
    "MappedExamplesIterable": "map",
    "RandomlyCyclingMultiSourcesExamplesIterable": "interleave_datasets",
    "RebatchedArrowExamplesIterable": "map",
    "RepeatExamplesIterable": "repeat",
    "SkipExamplesIterable": "skip",
    "StepExamplesIterable": "shard",
    "TakeExamplesIterable": "take",
    "VerticallyConcatenatedMultiSourcesExamplesIterable": "concatenate_datasets",
}
"""The call that makes each kind of examples iterable in `datasets`."""

MAPS = {
    "_batch_fn": "batch",
    "_rename_columns_fn": "rename_columns",
    "add_column_fn": "add_column",
}
"""The call that maps each internal function of `datasets`."""

INSTEAD = {
    "filter": "then filter in SQL: `fb.from_hf(ds).filter(\"lang = 'de'\")`",
    "shuffle": "then shuffle it: `fb.from_hf(ds).shuffle(seed)`",
    "take": "then take rows: `fb.from_hf(ds).take(n)`",
    "skip": "then skip rows: `fb.from_hf(ds).skip(n)`",
    "rename_columns": "then rename them: `fb.from_hf(ds).rename_columns({'id': 'number'})`",
    "batch": "then stream batches: `fb.from_hf(ds).batches(n)`",
    "repeat": "then repeat it: `fb.from_hf(ds).repeat(n)`",
    "concatenate_datasets": "and put together what `fb.from_hf(ds).to_hf()` returns",
    "interleave_datasets": "and put together what `fb.from_hf(ds).to_hf()` returns",
    "map": "then compute in SQL (`fb.from_hf(ds).sql(...)`), or map what `to_hf()` returns",
}
"""What to do instead of a step, if there is an alternative."""

OPTIONS: dict[str, dict[str, str | None]] = {
    "s3": {
        "key": "aws_access_key_id",
        "secret": "aws_secret_access_key",
        "token": "aws_session_token",
        "endpoint_url": "aws_endpoint",
        "region_name": "aws_region",
        "anon": "aws_skip_signature",
    },
    "az": {
        "account_name": "azure_storage_account_name",
        "account_key": "azure_storage_account_key",
        "sas_token": "azure_storage_sas_token",
    },
    # The token is also that of the builder.
    "hf": {"endpoint": "hf_endpoint", "token": None},
}
"""Options of the file systems of `fsspec`, by the scheme of Forebay, and their names there; None if it needs none."""


def from_hf(dataset: Any, *, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Takes over a dataset that `datasets` streams from Parquet: its files, configuration, columns and filters.

    Reads footers only. Python functions that were applied to the dataset cannot be taken over, nor can its order.

    Args:
        dataset: A `datasets.IterableDataset`, or an `IterableDatasetDict`.
        storage_options: Options of the store, as in `load_dataset`. They override those of the dataset, of which any
            that Forebay does not know are left out then. Not for a dataset whose rows Forebay reads already.

    Returns:
        A `Dataset`; for an `IterableDatasetDict`, a `DatasetDict`.

    Raises:
        SettingError: the dataset is not Parquet, or has a step that only `datasets` can do; the message names it.
        VersionError: `datasets` is not installed, or has a version that Forebay does not support.

    Example:
        >>> import datasets
        >>> files = str(corpus / "*.parquet")
        >>> streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        >>> from_hf(streamed.select_columns(["path", "size"])).filter("size < 10").num_rows
        4
    """
    datasets = import_datasets("`from_hf`")
    if isinstance(dataset, dict):
        return DatasetDict({name: from_hf(one, storage_options=storage_options) for name, one in dataset.items()})
    if not isinstance(dataset, datasets.IterableDataset):
        is_ours = type(dataset).__module__.startswith("forebay.")
        of_ours, instead = (" of Forebay", "use it as it is") if is_ours else ("", "load it with `streaming=True`")
        got = type(dataset).__name__
        raise SettingError(f"dataset: expected a `datasets.IterableDataset`, got {got}{of_ours}; {instead}")
    if dataset._distributed is not None:
        raise _refusal("split_dataset_by_node", "streams find their rank themselves")
    taken = _take_rows(dataset, storage_options)
    name = dataset._formatting and dataset._formatting.format_type
    return taken.with_format(None if name == "python" else name)


def _take_rows(dataset: Any, storage_options: Mapping[str, Any] | None) -> Dataset:
    """Returns the rows and columns of a dataset, if no step but the selection of columns was applied."""
    from forebay.hf.examples import ForebayExamplesIterable

    rows, columns, removed = dataset._ex_iterable, None, set[str]()
    while (left := _left_columns(rows)) is not None:
        if left == "selected":
            columns = rows.column_names if columns is None else columns
        else:
            removed.update(rows.remove_columns)
        rows = _below(rows)
    if isinstance(rows, ForebayExamplesIterable):
        if not rows.part.is_whole:
            raise _refusal("take" if rows.part.last is not None else "skip" if rows.part.first > 0 else "shard")
        if storage_options:
            raise SettingError(
                "storage_options: Forebay reads the rows of this dataset already, with the options that it was opened "
                "with; open the files by `forebay.load_dataset`, which takes them"
            )
        taken, read_as = rows.source.dataset, rows.own_features
    else:
        builder = _builder_of(rows)
        taken, read_as = open_files(builder, rows.kwargs, storage_options), builder.info.features or {}
    taken = _as_read(taken, {name: it for name, it in dataset.features.items() if read_as.get(name) == it})
    if not isinstance(rows, ForebayExamplesIterable):
        check_types(taken, dataset.features)
    kept = taken.column_names if columns is None else columns
    taken = taken.select_columns([name for name in kept if name not in removed])
    found = taken.features
    meant = {name: feature for name, feature in dataset.features.items() if found.get(name, feature) != feature}
    if not meant:
        return taken
    check_types(taken, type(dataset.features)(meant))
    return taken.cast(meant)


def _as_read(taken: Dataset, features: Mapping[str, Any]) -> Dataset:
    """Returns a dataset whose columns have the types that `datasets` casts files to, given as features."""
    told = import_datasets("`from_hf`").Features(features).arrow_schema
    meant = {field.name: features[field.name] for field in taken.schema if _is_other(field.type, told, field.name)}
    return taken.cast(meant) if meant else taken


def _is_other(kind: Any, told: Any, name: str) -> bool:
    """Whether a type is not that of a column of a schema, if it has the column; nullability makes no difference."""
    wanted = told.field(name).type if name in told.names else kind
    return bool(kind != wanted and not is_alike(kind, getattr(wanted, "storage_type", wanted)))


def _left_columns(rows: Any) -> Literal["selected", "removed"] | None:
    """Returns how an examples iterable leaves out columns, if it does nothing else."""
    if type(rows).__name__ == "SelectColumnsIterable":
        return "selected"
    is_map = type(rows).__name__ == "MappedExamplesIterable"
    return "removed" if is_map and _name_of(rows.function) == "identity_func" and rows.remove_columns else None


def _below(rows: Any) -> Any:
    """Returns the input of an examples iterable that leaves out columns, past what `datasets` puts in between."""
    rows = rows.ex_iterable
    while type(rows).__name__ in ("FormattedExamplesIterable", "RebatchedArrowExamplesIterable"):
        rows = rows.ex_iterable
    return rows


def _name_of(function: Any) -> str:
    """Returns the name of a function, also of a partial one."""
    return getattr(getattr(function, "func", function), "__name__", "")


def _builder_of(rows: Any) -> Any:
    """Returns the Parquet builder that made an examples iterable; raises for any other."""
    step = STEPS.get(type(rows).__name__)
    if step is not None:
        raise _refusal(MAPS.get(_name_of(getattr(rows, "function", None)), step))
    builder = getattr(getattr(rows, "generate_tables_fn", None), "__self__", None)
    parquet = importlib.import_module("datasets.packaged_modules.parquet.parquet").Parquet
    if not isinstance(builder, parquet):
        made_by = type(rows).__name__ if builder is None else type(builder).__name__
        raise SettingError(f"dataset: expected one of Parquet files, got one made by `{made_by}`")
    return builder


def _refusal(step: str, instead: str | None = None) -> SettingError:
    advice = instead or INSTEAD.get(step)
    return SettingError(
        f"dataset: `{step}` was called on it, which cannot be taken over; pass the dataset before that step"
        + (f", {advice}" if advice else "")
    )


def open_files(builder: Any, kwargs: Mapping[str, Any], storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Opens the files of a split of a Parquet builder, with its columns and filters.

    Raises:
        SettingError: Forebay cannot read the files in the same way.
    """
    files, config = list(kwargs["files"]), builder.config
    if any(row_groups is not None for row_groups in kwargs.get("row_groups_list") or []):
        raise _refusal("reshard", "any number of processes can divide it")
    if config.on_bad_files != "error":
        raise SettingError(f"on_bad_files: expected 'error', got {config.on_bad_files!r}; Forebay leaves no file out")
    options: dict[str, Any] = {}
    for file in files:
        options |= _store_options(builder.storage_options or {}, file, may_leave_out=storage_options is not None)
    options |= storage_options or {}
    uris = [_uri(file) for file in files]
    if twice := [uri for uri, times in Counter(uris).items() if times > 1]:
        raise SettingError(f"data_files: `{twice[0]}` is in a split twice; a dataset has every row once")
    named = {"train": uris}
    taken = load_dataset("parquet", data_files=named, split="train", token=builder.token, storage_options=options)
    if config.filters is not None:
        taken = _filter(taken, config.filters)
    if config.columns is not None:
        taken = taken.select_columns(_columns(taken.column_names, config.columns))
    return taken


def _columns(found: list[str], columns: Any) -> list[str]:
    """Returns the names of the columns that `datasets` keeps, in the order of the files."""
    if not isinstance(columns, list):
        raise SettingError(f"columns: expected a list of names, got {columns!r}")
    if not columns:
        raise SettingError("columns: the list is empty, so that `datasets` has no rows; name at least one")
    for name in columns:
        if name not in found:
            raise SettingError(f"columns: no column {name!r} in the files; they have {', '.join(found)}")
        if columns.count(name) > 1:
            raise SettingError(f"columns: {name!r} is named twice")
    return [name for name in found if name in columns]


def _filter(taken: Dataset, filters: Any) -> Dataset:
    """Keeps the rows that `datasets` keeps."""
    text, params = to_exact_sql(filters, taken.schema, taken._native.mixed_columns)
    try:
        return taken.filter(text, params=params)
    except QueryError as error:
        raise SettingError(f"filters: {error}; {HINT}") from error


def check_types(taken: Dataset, features: Any) -> None:
    """Refuses features whose columns or storage types are not those of the files; nullability makes no difference.

    Raises:
        SettingError: a column is not in the files, or has another type there.
    """
    found, told = {field.name: field.type for field in taken.schema}, features.arrow_schema
    for field in told:
        kind = found.get(field.name)
        if kind is None:
            raise SettingError(
                f"features: column `{field.name}` is not in the files; expected one of {', '.join(found)}"
            )
        if _is_other(kind, told, field.name):
            raise SettingError(
                f"features: column `{field.name}` is `{kind}` in the files, expected `{field.type}`; pass the dataset "
                "before it was cast, then cast it: `fb.from_hf(ds).cast(features)`"
            )


def _uri(file: str) -> str:
    """Returns a file name of `datasets` as a path or URI of Forebay."""
    if "::" in file:
        raise SettingError(f"data_files: `{file}` lies in another file, which Forebay does not open; unpack that one")
    for scheme, ours in (("gcs://", "gs://"), ("abfs://", "az://"), ("s3a://", "s3://")):
        if file.startswith(scheme):
            return ours + file.removeprefix(scheme)
    return file


def _store_options(options: Mapping[str, Any], file: str, *, may_leave_out: bool = False) -> dict[str, str]:
    """Returns the options of `fsspec` with which `datasets` opens a file as storage options of Forebay.

    Raises:
        SettingError: Forebay does not know one of them, and none `may_leave_out`.
    """
    config, protocols = import_datasets("`from_hf`").config, importlib.import_module("fsspec").available_protocols()
    is_of_hub = file.startswith(config.HF_ENDPOINT) and "/resolve/" in file
    scheme = "hf" if is_of_hub else file.split("://")[0] if "://" in file else "file"
    if scheme == "file":
        return {}
    # Those of the scheme are in a dict; without one, those that are in no dict of another scheme are meant.
    of_scheme = options.get(scheme, {name: value for name, value in options.items() if name not in protocols}) or {}
    of_client = of_scheme.get("client_kwargs") or {}
    given = {name: value for name, value in {**of_scheme, **of_client}.items() if value is not None}
    given.pop("client_kwargs", None)
    known = OPTIONS.get("hf" if is_of_hub else _uri(file).split("://")[0], {})
    if (unknown := sorted(set(given) - set(known))) and not may_leave_out:
        raise SettingError(
            f"storage_options: Forebay does not know {', '.join(unknown)} of `fsspec`; pass `storage_options` of its "
            "own, as in `load_dataset`"
        )
    if given.get("endpoint") == config.HF_ENDPOINT:
        # Both take the default from the same environment variable.
        del given["endpoint"]
    return {ours: str(value) for name, value in given.items() if (ours := known.get(name)) is not None}
