"""The `datasets.IterableDataset` that users get, extended by what Forebay's streams can do."""

from __future__ import annotations

import copy
import inspect
import operator
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np

from forebay import familiar
from forebay.compat import DatasetsFormat
from forebay.exceptions import SettingError
from forebay.formats import FrameFormat, TensorFormat
from forebay.hf.examples import ForebayExamplesIterable, PythonRows, Source, sharing
from forebay.hf.parts import DEFAULT_NUM_SHARDS, Part
from forebay.hf.resumable import BY_ROWS, ResumableDataset, resumable
from forebay.hf.tensors import TorchRows
from forebay.options import MOST_COUNT, MOST_SEED, check_count
from forebay.secrets import Tokens, hub_tokens
from forebay.trainers import is_dividing

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.dataset import Dataset
    from forebay.formats import Format
    from forebay.options import ReadOptions

_OF_MAP = inspect.signature(datasets.IterableDataset.map)


class IterableDataset(ResumableDataset):
    """A `datasets.IterableDataset` over a stream of Forebay. Made by `Dataset.to_hf`.

    `shuffle`, `skip` and `take` are Forebay's as long as no other step was applied: `shuffle` sets Forebay's order,
    which loses no rows on resume, and `skip` does not read the skipped rows.
    """

    _ex_iterable: Any
    _formatting: Any
    _counted: ForebayExamplesIterable
    """Rows of the same number, for `len`."""
    _is_divided_alike = True
    """Whether shards have as many rows as those of `_counted`."""

    def __len__(self) -> int:
        """The exact number of rows. Evaluates the filters if that has not been done."""
        return self._counted.num_rows

    @property
    def num_rows(self) -> int:
        """The exact number of rows; see `len`."""
        return len(self)

    @property
    def total_dataset_length(self) -> int:
        """Read by `accelerate`: 0, as the last batch has no padding rows for `gather_for_metrics` to drop."""
        return 0

    def shuffle(
        self,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
        buffer_size: int = 1000,
        max_buffer_input_shards: int = 10,
    ) -> Any:
        """Delivers the rows in Forebay's order of `seed`; see `forebay.Dataset.shuffle`.

        Lanes, windows and weights of an earlier `shuffle` stay as they are. What `skip` and `take` leave of the files'
        order is shuffled so, too, which evaluates filters. Shards, what was cut from another order, and what other
        steps were applied to, are shuffled by `datasets` with its buffer.
        """
        plain = self._undivided()
        if plain is None or (plain.part.is_fixed and not plain.source.is_cuttable):
            buffered = super().shuffle(seed, generator, buffer_size, max_buffer_input_shards)
            return _counting(buffered, self._counted, is_divided_alike=False)
        if generator is not None and not isinstance(generator, np.random.Generator):
            raise SettingError(f"generator: expected a `numpy.random.Generator`, got {generator!r}")
        if generator is not None or seed is None:
            seed = int((copy.deepcopy(generator) or np.random.default_rng()).integers(1 << 63))
        part = plain.part
        source = plain.source.cut(part.first, part.last) if part.is_fixed else plain.source
        shuffled = source.shuffled(check_count("seed", seed, least=0, most=MOST_SEED))
        return self._of(plain.with_source(shuffled).with_part(Part(part.num_shards)))

    def skip(self, n: int) -> Any:
        """Leaves out the first `n` rows, without reading them."""
        plain = self._undivided()
        return (
            super().skip(n) if plain is None else self._of(plain.with_part(plain.part.skip(max(operator.index(n), 0))))
        )

    def take(self, n: int) -> Any:
        """Keeps the first `n` rows."""
        plain = self._undivided()
        return (
            super().take(n) if plain is None else self._of(plain.with_part(plain.part.take(max(operator.index(n), 0))))
        )

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> Any:
        """Keeps one of `num_shards` shards, which together have every row once and differ by at most one row.

        Those that `accelerate` makes for its ranks have one size, so that no rank waits for another's last batch; each
        epoch leaves out fewer rows than there are ranks.
        """
        num_shards = check_count("num_shards", num_shards)
        index = check_count("index", index, least=-MOST_COUNT)
        if not 0 <= index < num_shards:
            raise SettingError(f"index: expected 0 to {num_shards - 1}, one of {num_shards} shards, got {index}")
        with sharing(evenly=is_dividing()):
            sharded = super().shard(num_shards, index, contiguous)
            if not self._is_divided_alike:
                return sharded
            return _counting(sharded, self._counted.shard_data_sources(num_shards, index))

    @familiar.explained(familiar.OF_MAP_OF_ROWS)
    def map(self, function: Callable[..., Any] | None = None, *arguments: Any, **settings: Any) -> Any:
        """Applies a function to rows, or to batches of them; the length is unknown only after functions on batches."""
        mapped = super().map(function, *arguments, **settings)
        asked = _OF_MAP.bind(self, function, *arguments, **settings).arguments
        return mapped if asked.get("batched") else self._as_long(mapped)

    def with_format(self, type: str | None = None) -> Any:
        """Sets the format of rows and batches."""
        return self._as_long(super().with_format(type))

    def reshard(self) -> Any:
        """Returns the same dataset: there are enough shards."""
        return self._as_long(super().reshard())

    def select_columns(self, column_names: str | list[str]) -> Any:
        """Keeps the named columns; the others are not read, unless another step was applied before."""
        plain, names = self._plain(), _names(column_names)
        if plain is None or any(name not in plain.own_features for name in names):
            return self._as_long(super().select_columns(column_names))
        return self._of(plain.with_columns(names))

    def remove_columns(self, column_names: str | list[str]) -> Any:
        """Leaves the named columns out; see `select_columns`."""
        plain, names = self._plain(), _names(column_names)
        if plain is None or any(name not in plain.own_features for name in names):
            return self._as_long(super().remove_columns(column_names))
        return self._of(plain.with_columns([name for name in plain.own_features if name not in names]))

    def rename_columns(self, column_mapping: dict[str, str]) -> Any:
        """Renames columns."""
        return self._as_long(super().rename_columns(column_mapping))

    def rename_column(self, original_column_name: str, new_column_name: str) -> Any:
        """Renames a column."""
        return self._as_long(super().rename_column(original_column_name, new_column_name))

    def cast(self, features: Any) -> Any:
        """Changes the types of all columns."""
        return self._as_long(super().cast(features))

    def cast_column(self, column: str, feature: Any) -> Any:
        """Changes the type of a column."""
        return self._as_long(super().cast_column(column, feature))

    def decode(self, *arguments: Any, **settings: Any) -> Any:
        """Decodes media, in threads, or leaves them as they are stored."""
        return self._as_long(super().decode(*arguments, **settings))

    def _plain(self) -> ForebayExamplesIterable | None:
        """Returns the rows, if no step of `datasets` was applied to them."""
        rows = self._ex_iterable
        is_plain = isinstance(rows, ForebayExamplesIterable) and self._distributed is None
        return rows if is_plain and self.features == rows.own_features else None

    def _as_long(self, dataset: Any) -> Any:
        """Makes a dataset of `datasets` a Forebay one with as many rows as this one."""
        return _counting(dataset, self._counted, is_divided_alike=self._is_divided_alike)

    def _undivided(self) -> ForebayExamplesIterable | None:
        plain = self._plain()
        return None if plain is None or plain.part.is_divided else plain

    def _of(self, rows: ForebayExamplesIterable) -> Any:
        """Returns a dataset like this one with other rows."""
        info = self._info.copy()
        info.features = rows.own_features
        made = IterableDataset(
            rows,
            info=info,
            split=self._split,
            formatting=self._formatting,
            token_per_repo_id=self._token_per_repo_id,
        )
        return adopt(made)

    def _prepare_ex_iterable_for_iteration(
        self, batch_size: int | None = BY_ROWS, drop_last_batch: bool = False
    ) -> Any:
        rows, formatting = self._ex_iterable, self._formatting
        to_rows = self._to_rows(batch_size)
        if to_rows is not None:
            self._ex_iterable, self._formatting = rows.finished(to_rows), None
        try:
            return super()._prepare_ex_iterable_for_iteration(batch_size, drop_last_batch)
        finally:
            self._ex_iterable, self._formatting = rows, formatting

    def _to_rows(self, batch_size: int | None) -> PythonRows | TorchRows | None:
        """Returns what converts tables to rows, if no other step has to run."""
        rows = self._ex_iterable
        if not isinstance(rows, ForebayExamplesIterable) or rows.own_features != self.features:
            return None
        if self._formatting is None:
            return PythonRows(self.features, self._token_per_repo_id)
        is_torch = self._formatting.format_type == "torch" and batch_size == BY_ROWS
        return TorchRows(self.features, self._token_per_repo_id) if is_torch else None


def _names(column_names: str | list[str]) -> list[str]:
    return [column_names] if isinstance(column_names, str) else column_names


def _counting(dataset: Any, counted: ForebayExamplesIterable, *, is_divided_alike: bool = True) -> Any:
    """Makes a dataset of `datasets` a Forebay one with as many rows as `counted`, and maybe shards with as many."""
    dataset.__class__ = IterableDataset
    dataset._counted = counted
    dataset._is_divided_alike = is_divided_alike
    return dataset


def adopt(dataset: Any) -> Any:
    """Makes a dataset of `datasets` a Forebay one, if it consists of Forebay's rows only."""
    rows = dataset._ex_iterable
    if not isinstance(rows, ForebayExamplesIterable):
        return dataset
    dataset._token_per_repo_id = Tokens(dataset._token_per_repo_id)
    return _counting(resumable(dataset), rows)


def make(dataset: Dataset, read: ReadOptions, *, split: str | None = None, num_shards: int | None = None) -> Any:
    """Returns `dataset` as a `datasets.IterableDataset`."""
    features = dataset.features
    part = Part(num_shards or _num_shards(dataset))
    rows = ForebayExamplesIterable(Source(dataset, read), features, part)
    info = datasets.DatasetInfo(features=features)
    num_rows = dataset._native.num_rows_known
    named = _own_split(dataset) if split is None else _named_split(split)
    if named is not None and num_rows is not None:
        info.splits = datasets.splits.SplitDict()
        info.splits.add(datasets.SplitInfo(str(named), num_examples=num_rows))
    made = adopt(IterableDataset(rows, info=info, split=named, token_per_repo_id=hub_tokens(dataset._native)))
    return made if dataset._format is None else made.with_format(_format_name(dataset._format))


def _named_split(split: str) -> Any:
    try:
        return datasets.NamedSplit(split)
    except ValueError as error:
        raise SettingError(f"split: {error}") from error


def _own_split(dataset: Dataset) -> Any:
    """Returns the split that a dataset was opened as; None for several, and for names that `datasets` refuses."""
    names = {name for name, _ in dataset._native.parts}
    try:
        return datasets.NamedSplit(names.pop()) if len(names) == 1 else None
    except ValueError:
        return None


def _num_shards(dataset: Dataset) -> int:
    """Returns the number of lanes, or its least multiple that is not below the usual number."""
    num_lanes = (dataset._shuffle and dataset._shuffle.num_lanes) or DEFAULT_NUM_SHARDS
    return num_lanes * -(-DEFAULT_NUM_SHARDS // num_lanes)


def _format_name(format: Format) -> str | None:
    if isinstance(format, DatasetsFormat):
        return format.name
    if isinstance(format, TensorFormat) and format._requests:
        raise SettingError(f"forms: `datasets` has none, got {format._requests}; call `with_format` without them")
    if isinstance(format, TensorFormat | FrameFormat):
        return "arrow" if format._library == "pyarrow" else format._library
    raise SettingError(f"format: `datasets` has no {format!r}")
