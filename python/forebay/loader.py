"""Streams, which deliver the batches of a rank from a position on."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forebay import bottleneck, display
from forebay._lib import __version__
from forebay.distributed import agreeing, process_group
from forebay.exceptions import ClosedError, SettingError
from forebay.iteration import AsyncIteration, Iteration
from forebay.passes import Cursor, Passes, Progress, Run
from forebay.position import Position
from forebay.stages import NO_ARROW, SECONDS_BETWEEN_LOOKS, Alone, Delivered, Loop, Pass, Read, Until
from forebay.warned import warn_of_holes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator

    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.distributed import Fact
    from forebay.formats import Format
    from forebay.options import ReadOptions, ShareOptions
    from forebay.stages import Batches, Running, Stage
    from forebay.states import Hole

SECONDS_TO_WAIT_IN_THREAD = 0.05
"""How long another thread waits for a batch at a time, and so how long it outlives a cancelled iteration."""

T = TypeVar("T")


class Stream(Position, Generic[T]):
    """The batches of one rank, epoch by epoch, with a position that can be saved.

    Made by `Dataset.batches` and `Dataset.to_torch`. An iterator reads ahead on its own threads, which end with it. The
    position counts batches that the loop has received, not those read ahead. An iterator takes the position and the
    epoch, and begins to read, when its first batch is requested: `iter(stream)` alone changes nothing.
    """

    def __init__(
        self,
        dataset: Dataset,
        share: ShareOptions,
        read: ReadOptions,
        format: Format | None = None,
        stages: tuple[Stage, ...] = (),
    ) -> None:
        if share.has_replicas and read.on_error != "raise":
            raise SettingError(
                "on_error: ranks of one replica get the same batches, and one of them may fail to read what another "
                "reads; use on_error='raise'"
            )
        super().__init__(dataset, share, read)
        self._stages = stages
        self._active: Running | None = None
        self._last_stats: dict[str, float] = {}
        self._format = None if format is None else format.prepare(self.reader)
        # Whether the first stage takes batches as they are and applies the format itself.
        self._hands_over_batches = False
        # Has the reading threads pad, pack or decode, if the format says so.
        self._finish = None if self._format is None else self._format.finish
        self._takes_holes = self._finish is None
        self._leaves_rows_out = self._format is not None and self._format.leaves_rows_out

    def __iter__(self) -> Iterator[T]:
        return self._iteration(self._begin)

    def __aiter__(self) -> AsyncIterator[T]:
        """Iterates without blocking the running event loop while it waits."""
        return self._async_iteration(self._begin)

    def _iterate(self, worker: int, num_workers: int, is_wanted: Callable[[], bool] | None = None) -> Iterator[T]:
        """Yields every `num_workers`-th batch from number `worker` on, in a process that cannot ask other ranks.

        Yields none if `is_wanted` is given and returns False when the first one is requested.
        """
        # At once: a worker is asked for its state even before it has delivered anything.
        runs = self._begin(worker, num_workers)
        if is_wanted is not None:
            runs = _only_if(is_wanted, runs)
        return Iteration(self._deliver(runs, is_alone=False))

    def _iteration(self, begin: Callable[[], Iterator[Run]]) -> Iterator[T]:
        """Returns an iterator that changes nothing until its first batch is requested."""
        return Iteration(self._deliver(self._when_asked(begin)))

    def _async_iteration(self, begin: Callable[[], Iterator[Run]]) -> AsyncIterator[T]:
        """Returns an asynchronous iterator that changes nothing until its first batch is requested."""
        return AsyncIteration(self._deliver_async(self._when_asked(begin)))

    def _when_asked(self, begin: Callable[[], Iterator[Run]]) -> Iterator[Run]:
        """Returns the passes of an iteration that begins when the first pass is requested.

        It begins at once after a state from the end of an epoch: nothing can be lost, and a `StatefulDataLoader` makes
        a second iterator for the next epoch without using the first. The next epoch is the one that was set, even if
        the state was loaded later.
        """
        self._check_share()
        if self._is_over:
            if self._chosen is None or self._chosen <= self._epoch:
                return begin()
            self.set_epoch(self._chosen)
        self._is_announced = True
        return _late(begin)

    def _check_share(self) -> None:
        """Also refuses `read_once` where rows may be left out."""
        super()._check_share()
        if not self._share.read_once:
            return
        if self._read.on_error != "raise" or self._leaves_rows_out:
            raise SettingError(
                "read_once: only the rank that reads knows which rows could not be read; use on_error='raise'"
            )

    def _deliver(self, runs: Iterator[Run], *, is_alone: bool = True) -> Generator[T]:
        agrees = is_alone
        with closing(self._party(is_alone=is_alone)) as party, Loop() as loop:
            for run in self._warning(runs):
                agreeing = self._agreeing(run) if agrees else iter(())
                agrees = False
                for pause in party.meeting(agreeing, run.start):
                    time.sleep(pause)
                with party.reading(run) as read:
                    # Reading ahead has begun meanwhile.
                    for pause in agreeing:
                        time.sleep(pause)
                    with closing(self._staged(read, run, loop, is_alone=is_alone)) as batches:
                        while (item := next(batches, None)) is not None:
                            self._move(item.after, run)
                            yield item.value
                    if is_alone:
                        self._pass_over(run)

    async def _deliver_async(self, runs: Iterator[Run]) -> AsyncGenerator[T, None]:
        """Like `_deliver`, but waits in another thread and nothing more, so that a cancelled wait loses no batch."""
        import asyncio

        agrees, party = True, self._party(is_alone=True)
        with Loop() as loop:
            for run in self._warning(runs):
                agreeing = self._agreeing(run) if agrees else iter(())
                agrees = False
                for pause in party.meeting(agreeing, run.start, takes_part=False):
                    await asyncio.sleep(pause)
                with self._running(run) as stream:
                    for pause in agreeing:
                        await asyncio.sleep(pause)
                    with closing(self._staged(self._read_by(stream, run), run, loop, is_alone=True)) as batches:
                        await self._until_ready(batches, stream)
                        while (item := next(batches, None)) is not None:
                            self._move(item.after, run)
                            yield item.value
                            await self._until_ready(batches, stream)
                    self._pass_over(run)

    async def _until_ready(self, batches: Batches, stream: _lib.Stream) -> None:
        """Waits for the next batch, or the end."""
        import asyncio

        while not batches.is_ready():
            if self._stages:
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            else:
                await asyncio.to_thread(stream.wait, SECONDS_TO_WAIT_IN_THREAD)

    @contextmanager
    def _running(self, run: Run) -> Iterator[_lib.Stream]:
        stream = self.reader.stream(run.start.epoch, run.share, self._finish)
        self._active, self._pass_of_holes, self._is_set = stream, run.start.epoch, False
        try:
            yield stream
        finally:
            stats, holes = self._stats_of(stream, run), stream.holes()
            run.progress.end_pass(stats, holes)
            if self._is_active(stream):
                self._last_stats, self._active = stats, None
                if not self._is_set:
                    self._holes = holes
            stream.close()

    def _warning(self, runs: Iterator[Run]) -> Iterator[Run]:
        """Yields the passes of an iteration, and at its end warns of rows that could not be read.

        If it has no end, it warns after each pass. An exception that ends the loop is not replaced by the warning.
        """
        progress = Progress()
        for run in runs:
            yield run
            progress = run.progress
            if run.last is None and self._passes.steps is None:
                _warn_of(progress)
        _warn_of(progress)

    def _is_active(self, stream: _lib.Stream) -> bool:
        """Whether no other iteration has begun since this one."""
        return getattr(self._active, "stream", self._active) is stream

    def _stats_of(self, stream: _lib.Stream, run: Run) -> dict[str, float]:
        # Another iteration may be the active one.
        active = self._active
        if isinstance(active, Read | Delivered) and active.stream is stream:
            return active.stats()
        stats = stream.stats()
        return stats | {name: stats[name] + count for name, count in run.progress.skipped.items()}

    @contextmanager
    def _reading(self, run: Run) -> Iterator[Batches]:
        """Reads a pass."""
        with self._running(run) as stream:
            yield self._read_by(stream, run)

    def _read_by(self, stream: _lib.Stream, run: Run) -> Batches:
        """Returns the batches of `stream`, up to the end of the epoch."""
        steps = self._passes.steps
        batches = self._first(stream, run)
        return batches if steps is None else Until(batches, steps, run.share["num_workers"])

    def _party(self, *, is_alone: bool) -> Alone:
        """Returns the party that decides whether this rank reads for others, or another one for it."""
        distributed = process_group()
        is_asked = self._share.read_once and self._share.is_detected and is_alone and sys.platform == "linux"
        if distributed is None or not is_asked:
            return Alone(self._reading)
        from forebay.sharing import Party

        return Party(self._reading, self._share.rank, distributed)

    def _staged(self, batches: Batches, run: Run, loop: Loop, *, is_alone: bool) -> Batches:
        """Returns the batches after all stages."""
        shuffle = self._dataset._shuffle
        seed = 0 if shuffle is None else shuffle.seed
        rank, world_size = self._share.rank, self._share.world_size
        this = Pass(run.start.epoch, seed, rank, world_size, is_alone, self.reader.num_rows, loop=loop)
        for stage in self._stages:
            batches = stage.begin(batches, this)
        if self._stages and isinstance(self._active, Read):
            batches = self._active = Delivered(batches, self._active, this.waiting)
        return batches

    def _first(self, stream: _lib.Stream, run: Run) -> Batches:
        """Returns the batches of `stream` as the first stage."""
        start, share, last, *_ = run
        worker, num_workers, position = share["worker"], share["num_workers"], start.position

        def ends(number: int, behind: int) -> tuple[int, Cursor]:
            """Returns where the `number`-th batch begins, counted from 1, and where the stream stands after it."""
            nonlocal position
            if num_workers == 1:
                first, position = position, behind
                done = start.done - (start.position - position) // self._step
                return first + self._share.rank, Cursor(start.epoch, position, done)
            first = start.position + (worker + (number - 1) * num_workers) * self._step
            return first + self._share.rank, self._after(start, worker + number * num_workers, last)

        convert = None if self._hands_over_batches else self._format
        read = Read(stream, convert, ends, share["world_size"], run.progress.skipped)
        self._active = read
        return read

    def check_ranks(self) -> None:
        """Checks that the ranks agree on what the next iteration delivers; every rank must call it.

        This happens by itself before the first batch of each iteration if the rank was taken from an initialised
        process group. DataLoader workers have no process group, so with workers call this before the loop.

        Raises:
            AgreementError: on every rank, if the dataset, query, order, epoch, position, batch size or remainder differ
                between ranks; the message says what differs on which rank.
        """
        for pause in self._agreeing(Run(self._start, self._native_share(), None, self._epoch, Progress())):
            time.sleep(pause)

    def _agreeing(self, run: Run) -> Iterator[float]:
        """Yields pauses until all ranks of the process group have agreed on what they deliver."""
        distributed = process_group()
        if distributed is not None and self._share.is_detected and self._share.process[1] > 1:
            yield from agreeing(distributed, self._facts(run))

    def _facts(self, run: Run) -> dict[str, Fact]:
        """Returns what must be the same on every rank."""
        (epoch, position, done), share, *_ = run
        state = json.loads(self.reader.state(epoch, position))
        order = {"seed": 0, "num_lanes": 0, "window_rows": 0, "shuffle_bytes": 0} | state["order"]
        return {
            "version of Forebay": __version__,
            "dataset": state["fingerprint"],
            "query": state["query"],
            "number of rows": self.reader.num_rows,
            "order": order.pop("kind"),
            **{f"order.{name}": value for name, value in order.items()},
            "epoch": epoch,
            "world size": share["world_size"],
            "position": position,
            **{name: share[name] for name in ("batch_size", "remainder", "drop_last")},
            "number of passes": self._passes.number or 0,
            "steps_per_epoch": self._passes.steps or 0,
            "step of the epoch": 0 if self._passes.steps is None else done,
            "read_once": self._share.read_once,
        }

    @property
    def holes(self) -> list[Hole]:
        """The rows of the epoch that could not be read and that `on_error="skip"` left out, in order of failure.

        Each hole has the `object`, its `row_group`, the `cause`, and the rows as in a state: `start` to `end` among the
        selected rows of a `span`, or without a shuffle of the row group; with `weights`, among the drawn rows. Holes
        are those that this rank or its state has met, whichever rank they belong to: `stats()["rows_skipped"]` counts
        the rows that this rank left out itself. `forebay.cursor` joins the states of several ranks.
        """
        active = self._active
        if active is not None and not self._is_set:
            # Another thread may close it meanwhile.
            with suppress(ClosedError):
                return active.holes()
        return super().holes

    def stats(self) -> dict[str, float]:
        """Rows, bytes, requests, memory, waiting time of the last pass of the running, or else the last, iteration.

        What was skipped is counted over all of its passes.
        """
        active = self._active
        if active is not None:
            with suppress(ClosedError):
                return active.stats()
        return dict(self._last_stats)

    def bottleneck(self) -> str:
        """One sentence: what the running, or else the last, iteration mostly waits for, and what would help.

        Example:
            >>> stream = ds.batches(100)
            >>> for batch in stream:
            ...     pass
            >>> stream.bottleneck().split(":")[0] in ("the store", "memory", "decoding", "gathering", "the loop itself")
            True
        """
        return bottleneck.sentence(self.stats(), self._read.memory_limit)

    def __arrow_c_schema__(self) -> object:
        if self._stages:
            raise SettingError(NO_ARROW)
        return self._dataset.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hands the rest of the epoch to an Arrow consumer. This stream stays where it is: some consumers ask twice.

        Raises:
            SettingError: the stream runs functions of `map`, or has `repeat` or `steps_per_epoch`.
        """
        return self.hand_over(requested_schema)

    def hand_over(self, requested_schema: object | None = None, *, follows_parts: bool = False) -> object:
        """Returns the rest of the epoch as the capsule of an Arrow stream.

        With `follows_parts`, batches in the dataset's order may have fewer rows: they end where rows that were decoded
        together end, and so need no copy.
        """
        self._share.check_world()
        if self._stages:
            raise SettingError(NO_ARROW)
        if self._passes != Passes():
            raise SettingError(
                "repeat: one Arrow stream is one pass; iterate the batches, or leave `repeat` and `steps_per_epoch` out"
            )
        self._made_reader(num_workers=1)
        self.check_ranks()
        share = self._native_share() | {"follows_parts": follows_parts}
        stream = self.reader.stream(self._start.epoch, share)
        capsule = stream.__arrow_c_stream__(requested_schema)
        # Tells which rows were left out, once it has ended.
        self._active, self._pass_of_holes, self._is_set = stream, self._start.epoch, False
        return capsule

    def __getstate__(self) -> dict[str, Any]:
        # Threads and their memory are not pickled; the reader is made again from the pickled selection.
        return self.__dict__ | {"_reader": None, "_active": None, "_holes": self.holes}

    def __repr__(self) -> str:
        share = self._share
        return (
            f"{type(self).__name__}(rank {share.rank} of {share.world_size}, batch_size={share.batch_size}, "
            f"epoch={self._epoch}, position={self._at.cursor.position})"
        )

    def _repr_html_(self) -> str:
        return display.stream_html(self, repr(self))


def _warn_of(progress: Progress) -> None:
    if progress.holes and progress.skipped["rows_skipped"]:
        warn_of_holes(progress.holes, int(progress.skipped["rows_skipped"]))


def _only_if(is_wanted: Callable[[], bool], runs: Iterator[Run]) -> Iterator[Run]:
    if is_wanted():
        yield from runs


def _late(begin: Callable[[], Iterator[Run]]) -> Iterator[Run]:
    yield from begin()
