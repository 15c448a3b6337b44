"""Datasets with functions: `Dataset.map`, and the stage of a stream that runs the functions."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forebay import familiar
from forebay.columns import length_of, row_of
from forebay.exceptions import SettingError
from forebay.formats import TABLES, FrameFormat, TensorFormat
from forebay.iteration import ANEW, Iteration
from forebay.options import PoolOptions, check_count, check_flag, check_names, check_text
from forebay.shaping import Pad
from forebay.stages import NO_ARROW
from forebay.transforms import Collate, Columns, Opener, Program, Step, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from forebay.dataset import Dataset
    from forebay.loader import Stream
    from forebay.pool.ordered import Crew, Ordered
    from forebay.stages import Batches, Pass
    from forebay.torch import TorchStream

REFUSED = {
    "filter": "choose rows before `map`, where SQL sees the columns of the files",
    "sql": "query before `map`, where SQL sees the columns of the files",
    "query": "query before `map`, where SQL sees the columns of the files",
    "select": "choose rows before `map`",
    "cast": "cast columns before `map`, or return other types",
    "cast_column": "cast columns before `map`, or return other types",
    "decode": "decode before `map`",
    "shard": "take shards before `map`",
    "selection": "take the selection before `map`",
    "gather": "rows read by number do not go through `map`; call the function on them",
    "head": "rows read by number do not go through `map`; call the function on them",
    "to_hf": "`datasets` has a `map` of its own: `ds.to_hf().map(...)`",
    "with_format": "choose the format before `map`: functions are given it; `to_torch` yields tensors in any case",
    "explain": "explain it before `map`: functions do not change what is read",
    "save_manifest": "save it before `map`: a manifest holds no functions",
    "units": "which columns functions return is known only from their batches",
    "column_names": "which columns functions return is known only from their batches",
    "schema": "which columns functions return is known only from their batches",
    "features": "which columns functions return is known only from their batches",
}
"""Methods of `Dataset` that make no sense after `map`, and what to do instead."""

ROWS_PER_BATCH = 1000
"""Rows that functions on batches are given in a loop over rows, as those of `datasets` are."""

ROWS_AHEAD = 32
"""As many, if all functions take single rows: a look at the first row is not to wait for a thousand calls."""


class _RefusedError(SettingError, AttributeError):
    """A method that a dataset has and one with functions does not; `hasattr` is false."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled by a function, as the class is not where its name says.
        return _refused, self.args


def _refused(message: str) -> _RefusedError:
    return _RefusedError(message)


# In tracebacks, it is what users catch.
_RefusedError.__module__ = SettingError.__module__
_RefusedError.__name__ = _RefusedError.__qualname__ = SettingError.__name__


@dataclass(frozen=True)
class Workers:
    """What runs functions: `number` processes or threads, or with 0 the loop itself."""

    kind: str = "loop"
    number: int = 0
    options: PoolOptions = field(default_factory=PoolOptions)
    is_of_loader: bool = False
    """Whether they are the `num_workers` of a `DataLoader`."""


class MappedDataset:
    """A dataset whose batches pass through functions. Made by `Dataset.map`; immutable, like a `Dataset`."""

    def __init__(self, dataset: Dataset, steps: tuple[Step | Columns, ...], workers: Workers) -> None:
        self._dataset = dataset
        self._steps = steps
        self._workers = workers

    @property
    def _functions(self) -> list[Step]:
        return [step for step in self._steps if isinstance(step, Step)]

    @familiar.explained(familiar.OF_MAP)
    def map(self, function: Callable[..., Any], **settings: Any) -> MappedDataset:
        """Applies one more function to batches, in the same workers; arguments are those of `Dataset.map`.

        Raises:
            SettingError: the earlier functions run in threads and this one in processes, or the other way round.
        """
        step, workers = make_step(self._dataset, function, number=len(self._functions), **settings)
        kinds = {found.kind for found in (self._workers, workers)} - {"loop"}
        if len(kinds) > 1:
            raise SettingError("num_threads: all functions of a dataset run in the same workers, threads or processes")
        chosen = workers if workers.number >= self._workers.number else self._workers
        # The options that were given last.
        given = self._workers if settings.get("pool") is None else workers
        chosen = replace(chosen, options=given.options)
        return MappedDataset(self._dataset, (*self._steps, step), chosen)

    @familiar.explained(familiar.OF_SHUFFLE)
    def shuffle(self, seed: int = 0, **settings: Any) -> MappedDataset:
        """Delivers rows in a seeded order; see `Dataset.shuffle`."""
        return MappedDataset(self._dataset.shuffle(seed, **settings), self._steps, self._workers)

    def repeat(self, num_times: int | None = None) -> MappedDataset:
        """Makes an epoch pass over the rows several times; see `Dataset.repeat`."""
        return MappedDataset(self._dataset.repeat(num_times), self._steps, self._workers)

    @familiar.explained(familiar.OF_STREAM | familiar.OF_TENSORS)
    def batches(self, batch_size: int, **settings: Any) -> Stream[Any]:
        """Streams batches after the functions; arguments are those of `Dataset.batches`."""
        stream: Stream[Any] = self._dataset.batches(batch_size, **settings)
        return self._behind(stream)

    @familiar.explained(familiar.OF_STREAM)
    def to_torch(self, batch_size: int, **settings: Any) -> TorchStream:
        """Streams batches of tensors after the functions; arguments are those of `Dataset.to_torch`."""
        made = self._dataset.to_torch(batch_size, **settings)
        self._behind(made._stream)
        return made

    def _behind(self, stream: Stream[Any]) -> Stream[Any]:
        """Makes the functions the first stage of a stream that has not begun."""
        put_first(stream, self._steps, None, self._workers)
        return stream

    def select_columns(self, column_names: str | Sequence[str]) -> MappedDataset:
        """Keeps the named columns of what the functions returned, in that order.

        Unlike before `map`, nothing less is read. This and `remove_columns`, `rename_column` and `rename_columns` raise
        `TransformError` in the loop if a batch lacks a column.
        """
        return self._with("select_columns", check_names("column_names", column_names))

    def remove_columns(self, column_names: str | Sequence[str]) -> MappedDataset:
        """Keeps all columns except the named ones."""
        return self._with("remove_columns", check_names("column_names", column_names))

    def rename_column(self, original_column_name: str, new_column_name: str) -> MappedDataset:
        """Renames a column."""
        old = check_text("original_column_name", original_column_name)
        return self.rename_columns({old: check_text("new_column_name", new_column_name)})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> MappedDataset:
        """Renames columns."""
        if not isinstance(column_mapping, Mapping):
            raise SettingError(f"column_mapping: expected a dict of names, got {column_mapping!r}")
        check_names("column_mapping", [*column_mapping, *column_mapping.values()])
        return self._with("rename_columns", column_mapping)

    def _with(self, method: str, names: Sequence[str] | Mapping[str, str]) -> MappedDataset:
        if isinstance(self._dataset._format, FrameFormat):
            raise SettingError(f"{method}: the functions return tables; let them do it")
        names = dict(names) if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
        return MappedDataset(self._dataset, (*self._steps, Columns(method, names)), self._workers)

    def take(self, n: int) -> MappedDataset:
        """Keeps the first `n` rows, the only ones that the functions are then given; see `Dataset.take`."""
        return MappedDataset(self._dataset.take(n), self._steps, self._workers)

    def skip(self, n: int) -> MappedDataset:
        """Leaves out the first `n` rows, which the functions are then not given; see `Dataset.skip`.

        Raises:
            SettingError: a function takes positions or seeds of rows, which would be others; or as in `Dataset.skip`.
        """
        if any(step.with_indices or step.with_seeds for step in self._functions):
            raise SettingError(
                "skip: a function takes positions or seeds of rows, which would be others; skip before `map`"
            )
        return MappedDataset(self._dataset.skip(n), self._steps, self._workers)

    def iter(self, batch_size: int | None = None, drop_last_batch: bool = False) -> Iterator[Any]:
        """Yields all rows after the functions, in the dataset's order, or batches of them as `batches` does.

        Rows are dicts of what the functions returned for them, and of the other columns in the dataset's format. For a
        loop over rows, functions on batches are given 1,000 rows at a time.

        Raises:
            SettingError: `batch_size` is below 1, or rows of a table format are wanted.
            ForebayError: while iterating, as in any loop over a [stream](../howto/errors.md#when-they-come).

        Example:
            >>> mapped = ds.map(lambda row: {"kb": row["size"] / 1000}, remove_columns=["text", "tokens"])
            >>> next(iter(mapped.take(1)))["kb"]
            0.0
        """
        if batch_size is not None:
            return iter(self.batches(batch_size, rank=0, world_size=1, drop_last=drop_last_batch))
        if isinstance(self._dataset._format, FrameFormat):
            raise SettingError("rows: tables that functions return are not taken apart; pass `batch_size`")
        num_rows = ROWS_PER_BATCH if any(step.batched for step in self._functions) else ROWS_AHEAD
        return Iteration(_rows(self.batches(num_rows, rank=0, world_size=1)), ANEW)

    def __iter__(self) -> Iterator[Any]:
        return self.iter()

    def __getitem__(self, key: Any) -> Any:
        """Refused: functions run on the batches of a stream."""
        raise SettingError(
            "row: rows read by number do not go through `map`; call the function on them, or look at a batch of "
            "`to_torch` or `batches`; loops of torch have `forebay.DataLoader`, and trainers `ds.to_hf().map(function)`"
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Refused: Arrow asks for the columns first, and those that functions return are known from batches only."""
        raise SettingError(NO_ARROW)

    @property
    def num_rows(self) -> int:
        """The exact number of rows: functions return as many as they are given."""
        return self._dataset.num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED:
            raise _refused(f"{name}: the dataset has functions; {REFUSED[name]}")
        raise familiar.missing(self, "a dataset with functions", name, familiar.BEHIND_FUNCTIONS)

    def __repr__(self) -> str:
        functions = "".join(f"\n  .{step.method}({step.name})" for step in self._steps)
        return f"{self._dataset!r}{functions}"


def _rows(batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for index in range(length_of(batch) or 0):
            yield {name: row_of(column, index) for name, column in batch.items()}


def make_step(
    dataset: Dataset,
    function: Callable[..., Any],
    *,
    number: int,
    batched: bool = False,
    with_indices: bool = False,
    with_seeds: bool = False,
    input_columns: Any = None,
    remove_columns: Any = None,
    fn_kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    num_threads: int = 0,
    pool: PoolOptions | None = None,
) -> tuple[Step, Workers]:
    """Checks the arguments of `Dataset.map`, and returns the step and its workers.

    Raises:
        SettingError: an argument cannot work.
    """
    if not callable(function):
        raise SettingError(f"map: expected a function, got {function!r}")
    for name, flag in (("batched", batched), ("with_indices", with_indices), ("with_seeds", with_seeds)):
        check_flag(name, flag)
    if fn_kwargs is not None and not isinstance(fn_kwargs, Mapping):
        raise SettingError(f"fn_kwargs: expected a dict, got {fn_kwargs!r}")
    wanted = None if input_columns is None else tuple(check_names("input_columns", input_columns))
    removed = () if remove_columns is None else tuple(check_names("remove_columns", remove_columns))
    given = dataset._format
    if isinstance(given, FrameFormat) and (not batched or removed):
        name = "remove_columns" if batched else "batched"
        raise SettingError(
            f"{name}: functions on tables take batches and return tables; pass `batched=True` and no more"
        )
    if not batched and isinstance(given, TensorFormat) and given._library not in ("torch", "numpy"):
        raise SettingError(f"batched: rows of {given._library} have no form of their own; pass `batched=True`")
    if number == 0:
        # Padding, which comes before the functions, adds a mask.
        named = dict.fromkeys((*(wanted or ()), *removed))
        dataset._native.select_columns([name for name in named if name != Pad.mask])
    step = Step(function, batched, with_indices, with_seeds, wanted, removed, dict(fn_kwargs or {}), str(number))
    return step, make_workers(num_proc, num_threads, pool)


def make_workers(num_proc: int | None, num_threads: int, pool: PoolOptions | None) -> Workers:
    """Checks the arguments about workers, and returns the workers."""
    num_proc = 0 if num_proc is None else check_count("num_proc", num_proc, least=0, most=1024)
    num_threads = check_count("num_threads", num_threads, least=0, most=1024)
    if num_proc and num_threads:
        raise SettingError(
            "num_threads: functions run in processes or in threads; pass one of `num_proc`, `num_threads`"
        )
    if pool is not None and not isinstance(pool, PoolOptions):
        raise SettingError(f"pool: expected `PoolOptions`, got {pool!r}")
    kind = "processes" if num_proc else "threads" if num_threads else "loop"
    return Workers(kind, num_proc or num_threads, pool or PoolOptions())


def put_first(
    stream: Stream[Any],
    steps: tuple[Step | Columns, ...],
    collate: Collate | None,
    workers: Workers,
    *,
    keeps: bool = True,
) -> None:
    """Makes functions the first stage of a stream that has not begun.

    Raises:
        SettingError: the functions cannot be sent to other processes, or the rows have no positions to pass to them.
    """
    if stream._read.on_error != "raise" or stream._leaves_rows_out:
        raise SettingError(
            "on_error: functions of `map` and a `collate_fn` are seeded by the positions of their rows, so no row may "
            "be left out before them; use 'raise'"
        )
    if not stream.has_rows:
        raise SettingError("pack: functions run on rows, of which packed batches have none; call them in the loop")
    given = stream._format
    if steps and collate is not None and given is not None and given.library in TABLES:
        raise SettingError("collate_fn: rows of a table format cannot be collated after `map`; use another format")
    shuffle = stream._dataset._shuffle
    program = Program(Opener(given), steps, collate, 0 if shuffle is None else shuffle.seed)
    stage = MapStage(program, workers, keeps_workers=keeps)
    if workers.kind == "processes":
        # Refuses now what cannot be sent.
        stage.make_job()
    stream._hands_over_batches = True
    stream._stages = (stage, *stream._stages)


class MapStage:
    """Runs a program on the batches of a stream, in workers that are kept for all its epochs."""

    def __init__(self, program: Program, workers: Workers, *, keeps_workers: bool = True) -> None:
        self._program = program
        self._workers = workers
        self._keeps_workers = keeps_workers
        self._crew: Crew | None = None
        # Weak: an iteration refers to the stream, so a strong reference would be a cycle that keeps the workers alive.
        self._running: weakref.ref[Ordered] | None = None

    def begin(self, batches: Batches, this: Pass) -> Batches:
        """Begins an iteration. In a DataLoader worker, the program runs in that worker."""
        # Not at the top: importing Forebay does not import `multiprocessing`.
        from forebay.pool.ordered import Inline, Ordered

        if self._workers.kind == "loop" or not this.is_alone:
            return Inline(batches, self._program, this)
        timeout = self._workers.options.timeout
        running = None if self._running is None else self._running()
        is_taken = running is not None and not running.is_closed
        if this.loop.crew is not None or is_taken or not self._keeps_workers:
            if this.loop.crew is None:
                this.loop.crew = this.loop.enter_context(closing(self._make_crew()))
            return Ordered(batches, this.loop.crew, this, timeout)
        if self._crew is None or not self._crew.is_usable:
            self._crew = self._make_crew()
        running = Ordered(batches, self._crew, this, timeout)
        self._running = weakref.ref(running)
        return running

    def _make_crew(self) -> Crew:
        options = self._workers.options
        if self._workers.kind == "threads":
            from forebay.pool.threads import Threads

            return Threads(self._program, self._workers.number, options.prefetch)
        from forebay.pool.processes import Processes

        job, setting = self.make_job(), self._program.setting
        return Processes(job, setting, self._workers.number, options.prefetch, options.start_method)

    def make_job(self) -> bytes:
        """Returns the program as bytes.

        Raises:
            SettingError: the program cannot be sent to another process.
        """
        from forebay.pool.sending import to_bytes
        from forebay.pool.worker import HOW_TO_BE_FOUND, Job
        from forebay.secrets import pickle_with_secrets

        workers = self._workers
        num_loader_workers = workers.number if workers.is_of_loader else 0
        try:
            # Only processes that this one starts get the bytes, through a socket of their own.
            with pickle_with_secrets():
                return to_bytes(Job(self._program, workers.options.worker_init_fn, num_loader_workers, []))
        except Exception as error:
            what = told(error)
            raise SettingError(
                f"{self._program.setting}: the function cannot be sent to a process: {what}; {HOW_TO_BE_FOUND}"
            ) from error

    def close(self) -> None:
        """Ends the workers; the next iteration starts new ones."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def __getstate__(self) -> dict[str, Any]:
        # Workers are not pickled.
        return self.__dict__ | {"_crew": None, "_running": None}
