"""Rows of a Forebay stream as an examples iterable of `datasets`.

`datasets` builds every `IterableDataset` on an examples iterable, whose base class is private. Importing this module
needs a supported version of `datasets`.
"""

from __future__ import annotations

import copy
import json
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forebay.compat import formatted, locate
from forebay.exceptions import StateError
from forebay.features import with_plain_arrays
from forebay.hf.versions import import_datasets
from forebay.options import ShuffleOptions
from forebay.passes import MOST_EPOCH
from forebay.warned import warn_of_files

import_datasets("this module")

import numpy as np  # noqa: E402 - once the version of `datasets`, which brings them, is known
import pyarrow as pa  # noqa: E402 - as above
from datasets import Features  # noqa: E402 - as above
from datasets.features.features import require_decoding  # noqa: E402 - as above
from datasets.formatting import PythonFormatter  # noqa: E402 - as above
from datasets.iterable_dataset import _BaseExamplesIterable, _batch_to_examples  # noqa: E402 - as above
from datasets.table import cast_table_to_features  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.hf.parts import Part
    from forebay.options import ReadOptions

ROWS_PER_TABLE = 1024
"""Rows per table handed to `datasets`; fewer if they are large for the memory."""

MOST_TABLE_ROWS = (1 << 31) - 1

TYPE = "ForebayExamplesIterable"

SHARE = "shard_idx"
"""Key in a state for the share and the rows that it belongs to, if known."""

ROW = "shard_example_idx"
"""Key in a state for the next row of the share."""

IN_SHARE = {"of", "part", "table_rows"}
"""Keys of a share in a state: dataset, query and order of the rows; the part of them; rows per table."""

_EVENLY: ContextVar[bool] = ContextVar("EVENLY", default=False)


@contextmanager
def sharing(*, evenly: bool) -> Iterator[None]:
    """Makes shares have one size in the block, leaving out rows, if this or an enclosing block says `evenly`."""
    token = _EVENLY.set(_EVENLY.get() or evenly)
    try:
        yield
    finally:
        _EVENLY.reset(token)


LEAST_MEMORY = 256 << 20
"""Bytes that even a small part may hold, if the limit allows."""


class Source:
    """A dataset with its readers, shared by all its parts in one process."""

    def __init__(self, dataset: Dataset, read: ReadOptions) -> None:
        self.dataset = dataset
        self.read = read
        self._readers: dict[int, _lib.Reader] = {}

    @property
    def is_shuffled(self) -> bool:
        """Whether every epoch has its own order."""
        return self.dataset._shuffle is not None

    def reader(self, part: Part) -> _lib.Reader:
        """Returns a reader for `part`, with memory in proportion to its share of the windows."""
        limit = self.read.memory_limit
        memory = max(int(limit * part.fraction), min(limit, LEAST_MEMORY))
        if memory not in self._readers:
            read = replace(self.read, memory_limit=memory)
            self._readers[memory] = reader = self.dataset._make_reader(read, reads_all=part.is_whole)
            warn_of_files(self.dataset, reader, memory)
        return self._readers[memory]

    def shuffled(self, seed: int) -> Source:
        """Returns the dataset in Forebay's order of `seed`, with the same lanes and windows."""
        shuffle = replace(self.dataset._shuffle or ShuffleOptions(), seed=seed)
        return Source(type(self.dataset)(self.dataset._native, shuffle, self.dataset._format), self.read)

    @property
    def is_cuttable(self) -> bool:
        """Whether every epoch has the same rows in the same places, so that some can be cut off before a shuffle."""
        return not self.is_shuffled and self.dataset._num_passes == 1

    def cut(self, first: int, last: int | None) -> Source:
        """Returns the dataset with the rows from `first` to `last`; evaluates its filters."""
        taken = self.dataset if last is None else self.dataset.take(last)
        return Source(taken.skip(first), self.read)

    def narrowed(self, names: list[str]) -> Source:
        """Returns the dataset with some of its columns."""
        return Source(self.dataset.select_columns(names), self.read)

    def __getstate__(self) -> dict[str, Any]:
        # Readers are made again from the pickled selection.
        return self.__dict__ | {"_readers": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self  # immutable


class PythonRows:
    """Makes rows of Python objects from a table, decoded if there are features."""

    def __init__(self, features: Any = None, token_per_repo_id: dict[str, Any] | None = None) -> None:
        self._formatter = PythonFormatter(features=features, token_per_repo_id=token_per_repo_id)
        self._media = {name for name, feature in (features or {}).items() if _holds_media(feature)}

    def __call__(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Yields the rows of a table."""
        table = with_plain_arrays(table)
        names = table.column_names
        rest = formatted(self._formatter, "format_batch", table.select([n for n in names if n not in self._media]))
        if len(rest) == len(names):
            yield from _batch_to_examples(rest)
            return
        # A decoded medium is large, may hold a file open, or cost a request: it is made when its row is taken.
        media = table.select([name for name in names if name in self._media])
        for row in range(len(table)):
            made = formatted(self._formatter, "format_row", media.slice(row, 1), row)
            yield {name: rest[name][row] if name in rest else made[name] for name in names}


def _holds_media(feature: Any) -> bool:
    return require_decoding(feature) and getattr(feature, "_type", None) != "Json"


class State(dict[str, Any]):
    """The state of a part, with the keys that readers of `datasets` have in theirs.

    A DataLoader worker first loads the states of its shards into the objects that the shards were made from, each into
    whichever is in its place, and only then into the shards. The common keys let `datasets` do that.
    """

    def __init__(self, part: Part, origin: State | None = None) -> None:
        # The share is filled in when the rows are read.
        super().__init__({SHARE: None, ROW: 0, "type": TYPE})
        self._part = part
        self._origin = self if origin is None else origin

    def __setitem__(self, name: str, value: Any) -> None:
        if name == SHARE and isinstance(value, dict) and self._part.is_less_than(value.get("part")):
            # Before `datasets` misses states that a larger share does not have.
            raise _of_another_share(value["part"], self._part)
        super().__setitem__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        """Returns a plain dict, or, before the first row, another state that is copied with the share once it is known.

        `datasets` copies the state of the beginning before it reads, and counts rows from there.
        """
        share = self._origin[SHARE] if self[SHARE] is None else self[SHARE]
        if share is None and self[ROW] == 0:
            return State(self._part, self._origin)
        return {**self, SHARE: dict(share) if isinstance(share, dict) else share}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def plain(state: Any) -> Any:
    """Returns a state, and the states in it, as plain dicts and lists."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list) else state


class ForebayExamplesIterable(_BaseExamplesIterable):  # type: ignore[misc]  # it has no types
    """The rows of a part of a dataset, in its order, with a position that can be saved."""

    def __init__(self, source: Source, features: Any, part: Part, epoch: int = 0) -> None:
        super().__init__()
        self.source = source
        self.part = part
        self.own_features = features
        self.epoch = epoch
        self._to_rows: Callable[[pa.Table], Iterable[dict[str, Any]]] | None = None
        # `datasets` sleeps on shutdown for threads of pyarrow, which this does not use.
        self._sleep_on_threads_shutdown = False

    @property
    def features(self) -> Any:
        """None, as for rows that `datasets` reads itself: it then applies the features, which `cast` may change."""
        return None if self._to_rows is None else self.own_features

    def finished(self, to_rows: Callable[[pa.Table], Iterable[dict[str, Any]]]) -> ForebayExamplesIterable:
        """Returns the same rows in the form that users get, so that `datasets` need not convert them one by one."""
        other = copy.copy(self)
        other._to_rows = to_rows
        return other

    @property
    def num_shards(self) -> int:
        """The number of shards that the rows can be divided into."""
        return self.part.num_shards

    @property
    def num_rows(self) -> int:
        """The exact number of rows. Evaluates the filters if that has not been done."""
        return len(self.part.positions(self.source.dataset._epoch_rows))

    def _with(self, **changes: Any) -> ForebayExamplesIterable:
        other = copy.copy(self)
        other.__dict__.update(changes, _state_dict=None)
        return other

    def with_part(self, part: Part) -> ForebayExamplesIterable:
        """Returns another part of the same rows."""
        return self._with(part=part)

    def with_source(self, source: Source) -> ForebayExamplesIterable:
        """Returns the same part of the same rows in another order."""
        return self._with(source=source)

    def with_columns(self, names: list[str]) -> ForebayExamplesIterable:
        """Returns the same rows with some of their columns; the others are not read."""
        features = Features({name: self.own_features[name] for name in names})
        return self._with(source=self.source.narrowed(names), own_features=features)

    def shuffle_data_sources(self, generator: np.random.Generator) -> ForebayExamplesIterable:
        """Returns the rows of the epoch of `generator`, which `set_epoch` seeds with the epoch's number.

        After `skip` or `take` the epoch stays the same, because other epochs would skip or take other rows.
        """
        return self if self.part.is_fixed else self._with(epoch=_epoch_of(generator))

    def shard_data_sources(
        self,
        num_shards: int,
        index: int,
        contiguous: bool = True,  # noqa: ARG002 - the order decides what a share is
    ) -> ForebayExamplesIterable:
        """Keeps one of several shares."""
        part = self.part.evened(num_shards) if _EVENLY.get() else self.part
        return self.with_part(part.shard(num_shards, index, in_runs=not self.source.is_shuffled))

    def reshard_data_sources(self) -> ForebayExamplesIterable:
        """Returns itself: there are enough shards, and they do not depend on files."""
        return self

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = state = State(self.part)
        return state

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        to_rows = self._to_rows or PythonRows()
        for start, table in self._tables():
            try:
                # A table without columns still has rows.
                for row, example in enumerate(to_rows(table) if table.num_columns else [{}] * len(table), start):
                    if self._state_dict:
                        self._state_dict[ROW] = row + 1
                    yield row, example
            except Exception as error:
                locate(error, self.part.positions(self.source.dataset._epoch_rows)[start:])
                raise

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[int, pa.Table]]] | None:
        """The method by which `datasets` gets tables, which it prefers to rows."""
        return self._iter_arrow if self._to_rows is None else None

    def _iter_arrow(self) -> Iterator[tuple[int, pa.Table]]:
        for start, table in self._tables():
            if self._state_dict:
                self._state_dict[ROW] = start + len(table)
            yield start, table

    def _tables(self) -> Iterator[tuple[int, pa.Table]]:
        """Yields tables with the number of their first row, from the state's row on."""
        reader = self.source.reader(self.part)
        start, table_rows = self._begin(reader)
        stream = reader.stream(self._epoch(), self._share(reader, start, table_rows))
        try:
            while (batch := stream.next()) is not None:
                table = pa.table(batch)
                if table.schema != self.own_features.arrow_schema:
                    table = cast_table_to_features(table, self.own_features)
                yield start, table
                start += len(table)
        finally:
            stream.close()

    def _epoch(self) -> int:
        return self.epoch if self.source.is_shuffled else 0

    def _begin(self, reader: _lib.Reader) -> tuple[int, int]:
        """Returns the first row and the rows per table, and writes the share into the state."""
        table_rows = min(ROWS_PER_TABLE, reader.fitting_batch_rows)
        state: dict[str, Any] | None = self._state_dict
        if not state:
            return 0, table_rows
        row, share = state[ROW], state[SHARE]
        if state["type"] != TYPE:
            raise StateError(f"not a state of `to_hf`: it is one of `{state['type']}`")
        if share is None and row != 0:
            raise StateError(f"not a state of `to_hf`: it is at row {row!r}, and does not say of what")
        if share is not None:
            if not isinstance(share, dict) or share.keys() != IN_SHARE:
                raise StateError(f"not a state of `to_hf`: expected {', '.join(IN_SHARE)} of the rows, got {share!r}")
            of = share["of"]
            if not isinstance(of, str):
                raise StateError(f"not a state of `to_hf`: of: expected text, got {of!r}")
            # Raises if dataset, query or order differ, and says how.
            reader.read_state(of)
            if json.loads(of)["epoch"] != self._epoch():
                raise StateError(f"this state is from another epoch than {self._epoch()}; call `set_epoch` before")
            if share["part"] != str(self.part):
                raise _of_another_share(share["part"], self.part)
            _check("row", row, least=0, most=len(self.part.positions(reader.num_rows)))
            _check("table_rows", share["table_rows"], least=1, most=MOST_TABLE_ROWS)
            table_rows = share["table_rows"]
        state[SHARE] = {"of": reader.state(self._epoch(), 0), "part": str(self.part), "table_rows": table_rows}
        return int(row), table_rows

    def _share(self, reader: _lib.Reader, start: int, table_rows: int) -> dict[str, Any]:
        """Returns the part from row `start` on, as the share of a rank that ends where the part ends."""
        run = self.part.run(reader.num_rows)
        return {
            "rank": self.part.offset,
            "world_size": self.part.step,
            "batch_size": table_rows,
            "position": min(run.start + start * self.part.step, run.stop),
            "end": run.stop,
            "remainder": "keep",
            "drop_last": False,
            "worker": 0,
            "num_workers": 1,
        }


def _of_another_share(said: object, part: Part) -> StateError:
    return StateError(
        f"this state is from another share of the rows ({said}) than this one ({part}); resume with as many nodes, "
        "processes and workers, or read by `ds.to_torch()`, whose states know none of them"
    )


def _check(name: str, value: object, *, least: int, most: int) -> None:
    """Refuses a number in a state that is invalid or out of range."""
    if type(value) is not int or not least <= value <= most:
        raise StateError(f"not a state of `to_hf`: {name}: expected {least} to {most}, got {value!r}")


def _epoch_of(generator: np.random.Generator) -> int:
    """Returns the seed of a fresh generator, or else what the generator would draw next."""
    seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
    if isinstance(seed, int) and np.random.default_rng(seed).bit_generator.state == generator.bit_generator.state:
        return seed % (MOST_EPOCH + 1)
    return int(copy.deepcopy(generator).integers(MOST_EPOCH))
