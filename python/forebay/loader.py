"""Streams: the things with a position. Ranks, epochs, states."""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from forebay import bottleneck, display
from forebay._lib import __version__
from forebay.distributed import agreeing, process_group
from forebay.exceptions import ClosedError, PerformanceWarning, SettingError, SkippedRowsWarning, StateError
from forebay.frames import level_of_loop
from forebay.iteration import AsyncIteration, Iteration
from forebay.options import ReadOptions, ShareOptions, check_count
from forebay.passes import MOST_DONE, MOST_EPOCH, Cursor, Passes, Run, check_ends
from forebay.stages import NO_ARROW, Alone, Delivered, Pass, Read, Until
from forebay.states import check_dict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping

    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.distributed import Fact
    from forebay.formats import Format
    from forebay.stages import Batches, Running, Stage
    from forebay.states import Hole

SECONDS_TO_WAIT = 0.05
"""How long another thread waits for a batch at a time; a cancelled iteration leaves it behind for no longer."""

SECONDS_BETWEEN_LOOKS = 0.001
"""How often a task of an event loop looks whether a stage has a batch."""

T = TypeVar("T")


class Stream(Generic[T]):
    """The batches of one rank, epoch by epoch, with a position that can be saved.

    Made by `Dataset.batches` and `Dataset.to_torch`. Iterating reads ahead on threads of its own, which end with the
    iterator; the position counts batches that the loop has received, not those read ahead. An iterator takes position
    and epoch, and begins to read, when its first batch is asked for: `iter(stream)` alone changes nothing.
    """

    has_rows: ClassVar[bool] = True
    """Whether what is in a batch are rows of the dataset, each with a position."""

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
        if self.has_rows and dataset._num_passes != 1 and share.remainder == "keep" and share.world_size > 1:
            raise SettingError(
                "repeat: with remainder 'keep' ranks may have other numbers of batches, so that they would be in "
                "different passes, and no state hold for all of them; use 'drop' or 'pad'"
            )
        self._dataset = dataset
        self._stages = stages
        self._share = share
        self._read = read
        self._reader: _lib.Reader | None = None
        self._passes = Passes(dataset._num_passes, share.steps_per_epoch)
        self._epoch = 0
        # Where the next iteration begins, and where the running one, or the last, stands.
        self._start = self._at = Cursor()
        self._epoch_at = 0
        # Where it stood before the last batch.
        self._before = Cursor(), 0
        # The epoch that was set, until an iteration begins.
        self._chosen: int | None = None
        # That of the state that was loaded.
        self._loaded_epoch: int | None = None
        # Whether an iterator is to begin there, of which nothing was asked for yet.
        self._is_announced = False
        self._start_holes: list[Hole] = []
        self._holes: list[Hole] = []
        # Whether it stands where it was set to, of which an iteration that is still running knows nothing.
        self._is_set = False
        self._worker: dict[str, Any] | None = None
        self._worker_mark: dict[str, Any] | None = None
        # Which batch is a worker's first, where it is not that of its number.
        self._turn: int | None = None
        self._active: Running | None = None
        self._last_stats: dict[str, float] = {}
        self._format = None if format is None else format.prepare(self.reader)
        # Whether the first stage takes batches as they are, and makes them what the format says.
        self._hands_over_batches = False

    @property
    def reader(self) -> _lib.Reader:
        """Selection, spans and order; made when first needed."""
        return self._made_reader()

    def _made_reader(self, num_workers: int | None = None) -> _lib.Reader:
        """Returns the reader; if it is made now, and for one of one worker, with the first rows."""
        if self._reader is None:
            is_alone = num_workers == 1 and self._share.world_size == 1
            self._reader = self._dataset._make_reader(self._read, reads_all=is_alone)
        return self._reader

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, from 0. Another epoch than the current one starts at its beginning."""
        self._chosen = epoch = check_count("epoch", epoch, least=0, most=self._passes.most_epoch)
        if epoch != self._epoch:
            self._start = self._at = self._beginning(epoch)
            self._epoch = self._epoch_at = epoch
            self._is_announced = False
            self._start_holes, self._holes, self._is_set = [], [], True
            self._worker = self._worker_mark = self._turn = None

    def _go_to(self, position: int) -> None:
        """Has the first iteration begin behind so many rows."""
        self._start = self._at = Cursor(0, position)

    def _go_on_to(self, epoch: int, num_taken: int | None = None) -> None:
        """Has a worker that is done with an epoch begin another one, in its turn: the loader asks where it was.

        With `num_taken` that is behind so many batches of the epoch, of which there may be more.
        """
        turn = None if self._worker is None else self._turn_behind(self._worker, num_taken)
        self.set_epoch(epoch)
        self._turn = turn

    def _turn_behind(self, worker: dict[str, Any], num_taken: int | None) -> int | None:
        """Returns how many workers a loader asks before this one, behind `num_taken` batches of an epoch or all."""
        turn, start = worker.get("turn"), self._start
        if turn is None or num_taken is None or self._passes != Passes():
            return turn
        has_more = self._num_batches(start) > 0
        length = self._num_batches(self._beginning(self._epoch))
        following = start.position // self._step if has_more else length + int(turn)
        return (following - num_taken) % int(worker["num_workers"])

    def _beginning(self, epoch: int) -> Cursor:
        """Returns where an epoch begins."""
        if self._passes.steps is None:
            return Cursor(self._passes.first(epoch))
        return self._after(Cursor(), epoch * self._passes.steps, None)._replace(done=0)

    def __len__(self) -> int:
        """The exact number of batches that the next iteration delivers to this rank.

        Once `iter` was called, this is about the iteration behind that one, though nothing was taken from it: trainers
        ask in this order how long epochs are.

        Raises:
            TypeError: it has no end: the dataset is repeated without one.
        """
        left = self._num_left(self._beginning(self._epoch) if self._is_announced else self._start)
        if left is None:
            raise TypeError("a dataset that is repeated without an end has no number of batches; see `steps_per_epoch`")
        return left

    def _num_left(self, start: Cursor) -> int | None:
        """Returns how many batches of the epoch this rank gets from `start` on; None for no end."""
        if self._passes.steps is not None:
            return max(self._passes.steps - start.done, 0)
        last = self._passes.last(self._epoch)
        if last is None:
            return None
        num_later = last - start.epoch
        return self._num_batches(start) + (num_later and num_later * self._num_batches(Cursor(last)))

    @property
    def _has_known_length(self) -> bool:
        """Whether `len` is known."""
        return self.has_rows and (self._passes.steps is not None or self._passes.number is not None)

    def _num_batches(self, start: Cursor) -> int:
        """Returns how many batches of a pass this rank gets from `start` on."""
        return self.reader.num_batches(self._native_share(start))

    @property
    def num_dropped(self) -> int:
        """Rows of an epoch, or of each pass, that `remainder="drop"` keeps from all ranks; fewer than `world_size`."""
        return self.reader.num_dropped(self._native_share())

    def __iter__(self) -> Iterator[T]:
        return self._iteration(self._begin)

    def __aiter__(self) -> AsyncIterator[T]:
        """Iterates beside other tasks of a running event loop, which it does not block while it waits."""
        return self._async_iteration(self._begin)

    def _iterate(self, worker: int, num_workers: int, is_wanted: Callable[[], bool] | None = None) -> Iterator[T]:
        """Yields every `num_workers`-th batch from number `worker` on, in a process that cannot ask other ranks.

        With `is_wanted` there are none if that says so when the first one is asked for.
        """
        # At once: a worker that has not delivered anything yet is asked for its state, too.
        runs = self._begin(worker, num_workers)
        if is_wanted is not None:
            runs = _only_if(is_wanted, runs)
        return Iteration(self._deliver(runs, is_alone=False))

    def _iteration(self, begin: Callable[[], Iterator[Run]]) -> Iterator[T]:
        """Returns an iterator that has taken nothing before its first batch is asked for."""
        return Iteration(self._deliver(self._when_asked(begin)))

    def _async_iteration(self, begin: Callable[[], Iterator[Run]]) -> AsyncIterator[T]:
        """Returns an iterator for a task, which has taken nothing either."""
        return AsyncIteration(self._deliver_async(self._when_asked(begin)))

    def _when_asked(self, begin: Callable[[], Iterator[Run]]) -> Iterator[Run]:
        """Returns the passes of an iteration that begins when the first of them is asked for.

        At once where a state is that of the end of its epoch: there is nothing to lose, and a `StatefulDataLoader` goes
        on to the next epoch by another iterator, without a look at the first one. That epoch is the one that was set,
        though the state was loaded later.
        """
        self._check_share()
        if self._is_over:
            if self._chosen is None or self._chosen <= self._epoch:
                return begin()
            self.set_epoch(self._chosen)
        self._is_announced = True
        return _late(begin)

    @property
    def _is_over(self) -> bool:
        """Whether the next iteration begins at the end of its epoch, as after a state that was saved there."""
        start, steps = self._start, self._passes.steps
        if steps is not None:
            return start.done >= steps
        is_last = start.position > 0 and start.epoch == self._passes.last(self._epoch)
        return is_last and not self._num_batches(start)

    def _begin(self, worker: int = 0, num_workers: int = 1) -> Iterator[Run]:
        """Takes the start of the next iteration, and returns its passes."""
        self._check_share()
        reader = self._made_reader(num_workers)
        if worker == 0:
            warn_of_missing_index(self._dataset, reader.unindexed(), self._read.memory_limit)
        got, mark = self._worker, self._mark(worker, num_workers)
        if got is not None and (mark is None or got | mark != got):
            here = f"worker {worker} of {num_workers} in global batches of {self._step} rows"
            raise StateError(
                f"this state is of worker {got.get('index')} of {got.get('num_workers')} in global batches of "
                f"{got.get('step')} rows, not of {here}; reduce the loader's state with `forebay.cursor(state)` to "
                "change workers, batch size or world size"
            )
        # The position of a worker's state is that of its own next batch.
        first = (worker if self._turn is None else self._turn) if got is None else 0
        start, last = self._start, self._passes.last(self._epoch)
        share = self._native_share(start, first, num_workers) | {"holes": self._start_holes}
        if mark is not None:
            left = self._num_left(start)
            mark = ({} if left is None else {"turn": (first - left) % num_workers}) | (got or mark)
        self._start, self._start_holes, self._worker, self._worker_mark = self._beginning(self._epoch), [], None, mark
        self._turn = None
        self._chosen, self._is_announced = None, False
        self._at = start if mark is None else self._after(start, first, last)
        self._epoch_at = self._epoch
        return self._runs(Run(start, share, last, self._epoch))

    def _check_share(self) -> None:
        """Refuses another world than the stream was made in, and to read for other ranks what cannot be handed over."""
        self._share.check_world()
        if not self._share.read_once:
            return
        if self._read.on_error != "raise" or getattr(self._format, "leaves_rows_out", False):
            raise SettingError("read_once: which rows could not be read is known where they were; use on_error='raise'")

    def _runs(self, run: Run) -> Iterator[Run]:
        """Yields the passes of an iteration, of which `run` is the first.

        Raises:
            SettingError: there is no end, and no batch.
        """
        start, share, last, number = run
        steps, num_workers = self._passes.steps, share["num_workers"]
        while steps is None or start.done + share["worker"] < steps:
            stood = self._at
            yield Run(start, share, last, number)
            if start.epoch == last:
                return
            # How long a pass is decides whose turn the next one begins with; of packed documents nobody knows.
            is_counted = num_workers > 1 or steps is not None
            length = self._num_batches(start) if is_counted else int(self._at != stood)
            if start.position == 0 and (is_counted or not start.done):
                check_ends(length, last)
            worker = (share["worker"] - length) % num_workers
            start = Cursor(start.epoch + 1, 0, 0 if steps is None else start.done + length)
            share = self._native_share(start, worker, num_workers)

    def _after(self, start: Cursor, number: int, last: int | None) -> Cursor:
        """Returns where this rank stands `number` batches behind `start`, at most at the end of the pass `last`."""
        epoch, position, done = start
        num_left = self._num_batches(start)
        left = number
        if left >= num_left and epoch != last:
            length = self._num_batches(Cursor(epoch + 1))
            check_ends(length, last)
            num_passes, left = divmod(left - num_left, length or 1)
            epoch, position = epoch + 1 + num_passes, 0
            if last is not None and epoch > last:
                epoch, left = last, length
        share = self._native_share(Cursor(epoch, position))
        dropped = self.reader.num_dropped(share) if share["remainder"] == "drop" else 0
        end = self.reader.num_rows - dropped
        return Cursor(epoch, min(position + left * self._step, end), done + number)

    def _deliver(self, runs: Iterator[Run], *, is_alone: bool = True) -> Generator[T]:
        agrees = is_alone
        with closing(self._party(is_alone=is_alone)) as party:
            for run in runs:
                agreeing = self._agreeing(run) if agrees else iter(())
                agrees = False
                for pause in party.meeting(agreeing, run.start):
                    time.sleep(pause)
                with party.reading(run) as read:
                    # Reading ahead has begun meanwhile.
                    for pause in agreeing:
                        time.sleep(pause)
                    with closing(self._staged(read, run, is_alone=is_alone)) as batches:
                        while (item := next(batches, None)) is not None:
                            self._move(item.after, run.number)
                            yield item.value
                    if is_alone:
                        self._pass_over(run)

    async def _deliver_async(self, runs: Iterator[Run]) -> AsyncGenerator[T, None]:
        """As `_deliver`; only waiting happens in another thread, so that a cancelled wait loses no batch."""
        import asyncio

        agrees, party = True, self._party(is_alone=True)
        for run in runs:
            agreeing = self._agreeing(run) if agrees else iter(())
            agrees = False
            for pause in party.meeting(agreeing, run.start, takes_part=False):
                await asyncio.sleep(pause)
            with self._running(run) as stream:
                for pause in agreeing:
                    await asyncio.sleep(pause)
                with closing(self._staged(self._read_by(stream, run), run, is_alone=True)) as batches:
                    while True:
                        while not batches.is_ready():
                            if self._stages:
                                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
                            else:
                                await asyncio.to_thread(stream.wait, SECONDS_TO_WAIT)
                        item = next(batches, None)
                        if item is None:
                            break
                        self._move(item.after, run.number)
                        yield item.value
                self._pass_over(run)

    def _move(self, after: Cursor, epoch: int) -> None:
        """Notes where it stands once the loop has a batch."""
        self._before = self._at, self._epoch_at
        self._at, self._epoch_at, self._is_set = after, epoch, False

    def _pass_over(self, run: Run) -> None:
        """Goes to the end of the last pass where others had batches that this rank had not, or batches were skipped."""
        is_last = run.start.epoch == run.last and self._passes.steps is None
        is_uneven = self.has_rows and self._share.remainder == "keep" and self._share.world_size > 1
        # Not where it was set to another place meanwhile.
        if is_last and (self.holes or is_uneven) and not self._is_set and self._at.epoch == run.start.epoch:
            # Rank 0 has the most batches.
            length = self.reader.num_batches(self._native_share(run.start) | {"rank": 0})
            end = self._after(run.start, length, run.last)
            self._at = self._at._replace(position=max(self._at.position, end.position))

    @contextmanager
    def _running(self, run: Run) -> Iterator[_lib.Stream]:
        # What is made of batches on the threads that read them, where the format says so.
        stream = self.reader.stream(run.start.epoch, run.share, getattr(self._format, "finish", None))
        self._active, self._is_set = stream, False
        try:
            yield stream
        finally:
            stats, holes = self._stats_of(stream), stream.holes()
            if self._is_active(stream):
                self._last_stats, self._active = stats, None
                if not self._is_set:
                    self._holes = holes
            stream.close()
        # Not in the place of what ended the loop.
        if holes:
            warn_of_holes(holes, int(stats["rows_skipped"]))

    def _is_active(self, stream: _lib.Stream) -> bool:
        """Whether no other iteration has begun since."""
        return getattr(self._active, "stream", self._active) is stream

    def _stats_of(self, stream: _lib.Stream) -> dict[str, float]:
        # Another iteration may be the active one.
        active = self._active
        if isinstance(active, Read | Delivered) and active.stream is stream:
            return active.stats()
        return stream.stats()

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
        """Returns what knows whether this rank reads for others, or another one for it."""
        distributed = process_group()
        is_asked = self._share.read_once and self._share.is_detected and is_alone and sys.platform == "linux"
        if distributed is None or not is_asked:
            return Alone(self._reading)
        from forebay.sharing import Party

        return Party(self._reading, self._share.rank, distributed)

    def _staged(self, batches: Batches, run: Run, *, is_alone: bool) -> Batches:
        """Returns what delivers batches through all stages."""
        shuffle = self._dataset._shuffle
        seed = 0 if shuffle is None else shuffle.seed
        this = Pass(run.start.epoch, seed, self._share.rank, self._share.world_size, is_alone, self.reader.num_rows)
        for stage in self._stages:
            batches = stage.begin(batches, this)
        if self._stages and isinstance(self._active, Read):
            batches = self._active = Delivered(batches, self._active, this.waiting)
        return batches

    def _first(self, stream: _lib.Stream, run: Run) -> Batches:
        """Returns the batches of `stream` as the first stage."""
        start, share, last, _ = run
        worker, num_workers, position = share["worker"], share["num_workers"], start.position

        def ends(number: int, behind: int) -> tuple[int, Cursor]:
            """Returns where the `number`-th batch begins, counted from 1, and where the stream stands behind it."""
            nonlocal position
            if num_workers == 1:
                first, position = position, behind
                done = start.done - (start.position - position) // self._step
                return first + self._share.rank, Cursor(start.epoch, position, done)
            first = start.position + (worker + (number - 1) * num_workers) * self._step
            return first + self._share.rank, self._after(start, worker + number * num_workers, last)

        read = Read(stream, None if self._hands_over_batches else self._format, ends)
        self._active = read
        return read

    def check_ranks(self) -> None:
        """Compares with the other ranks what the next iteration delivers; every rank must call it.

        Where the rank was found in an initialised process group, this happens by itself before the first batch of each
        iteration. DataLoader workers have no process group: with workers, call this before the loop.

        Raises:
            AgreementError: on every rank, when dataset, query, order, epoch, position, batch size or remainder differ
                between them; the message says what and where.
        """
        for pause in self._agreeing(Run(self._start, self._native_share(), None, self._epoch)):
            time.sleep(pause)

    def _agreeing(self, run: Run) -> Iterator[float]:
        """Yields pauses until all ranks of the process group have agreed to deliver the same."""
        distributed = process_group()
        if distributed is not None and self._share.is_detected and self._share.process[1] > 1:
            yield from agreeing(distributed, self._facts(run))

    def _facts(self, run: Run) -> dict[str, Fact]:
        """Returns what must be the same on every rank."""
        (epoch, position, done), share, _, _ = run
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
    def _step(self) -> int:
        """Rows of a batch of all ranks."""
        return self._share.batch_size * self._share.world_size

    def _mark(self, worker: int, num_workers: int) -> dict[str, int] | None:
        """Returns what tells a worker's state from one that holds for the whole rank.

        Beside it is the worker's turn in the epoch behind this one, which a loader may begin with any worker.
        """
        return None if num_workers == 1 else {"index": worker, "num_workers": num_workers, "step": self._step}

    def _native_share(self, start: Cursor | None = None, worker: int = 0, num_workers: int = 1) -> dict[str, Any]:
        """Returns what of a pass a worker takes, from `start` on; by default from where the next iteration begins."""
        share = self._share
        return {
            "rank": share.rank,
            "world_size": share.world_size,
            "batch_size": share.batch_size,
            "position": (start or self._start).position,
            "holes": self._start_holes if start is None else [],
            "remainder": share.remainder,
            "drop_last": share.drop_last,
            "worker": worker,
            "num_workers": num_workers,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position as a small JSON-able dict: that of the next batch not yet received.

        Any rank's is enough for all, because ranks step together; it holds for any world size, batch size and number of
        workers. O(1): no rows, no random state.
        """
        state: dict[str, Any] = json.loads(self.reader.state(self._at.epoch, self._at.position))
        if self._passes.steps is not None:
            state["steps"] = {"epoch": self._epoch_at, "done": self._at.done}
        if self.holes:
            state["holes"] = self.holes
        if self._worker_mark is not None:
            state["worker"] = dict(self._worker_mark)
        return state

    def _state_before_last(self) -> dict[str, Any]:
        """Returns the state before the last batch, which who took it has not used."""
        here = self._at, self._epoch_at
        self._at, self._epoch_at = self._before
        try:
            return self.state_dict()
        finally:
            self._at, self._epoch_at = here

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`: nothing lost, nothing doubled, nothing replayed; reads at most the current windows.

        Raises:
            StateError: `state` is of another dataset version, query or order; the message says what differs.
        """
        check_dict(state)
        self._check_kind(state)
        try:
            text = json.dumps({key: value for key, value in state.items() if key not in ("worker", "steps", "pack")})
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(f"not a Forebay state: {error}") from error
        if state.get("holes") and getattr(self._format, "finish", None) is not None:
            raise StateError(
                "this state is of a stream that left out rows by `on_error='skip'`; one that pads, packs or decodes "
                "cannot go on from there"
            )
        worker = state.get("worker")
        if worker is not None and not isinstance(worker, dict):
            raise StateError(f"not a Forebay state: worker: expected a dict, got {worker!r}")
        if worker is not None and not _is_turn(worker.get("turn", 0)):
            raise StateError(f"not a Forebay state: worker.turn: expected a number from 0, got {worker['turn']!r}")
        cursor = Cursor(*self.reader.read_state(text))
        self._epoch, done = self._read_steps(state, cursor)
        self._epoch_at = self._loaded_epoch = self._epoch
        self._is_announced = False
        self._start = self._at = cursor._replace(done=done)
        self._start_holes = self._holes = [dict(hole) for hole in state.get("holes", ())]
        self._is_set = True
        self._worker, self._worker_mark, self._turn = worker, worker, None

    def _check_kind(self, state: Mapping[str, Any]) -> None:
        """Refuses states of what is no such stream, which name no position of one."""
        if "pack" in state:
            raise StateError("this state is of a stream that packs; go on with the same `pack`")
        if "examples_iterable" in state:
            raise StateError("this state is of what `to_hf` returned, not of a stream; go on there")

    def _read_steps(self, state: Mapping[str, Any], cursor: Cursor) -> tuple[int, int]:
        """Returns the epoch that a state is of, and how many of its steps were done."""
        most = self._passes.most_epoch
        epoch: Any = self._passes.epoch_of(cursor.epoch)
        done: Any = 0
        if self._passes.steps is not None:
            steps = state.get("steps")
            if steps is None:
                raise StateError("this state is of a stream without `steps_per_epoch`, whose epochs are others")
            epoch, done = (steps.get(name) if isinstance(steps, dict) else None for name in ("epoch", "done"))
            if type(epoch) is not int or type(done) is not int or min(epoch, done) < 0 or done > MOST_DONE:
                raise StateError(f"not a Forebay state: steps: expected an epoch and the steps done, got {steps!r}")
        if epoch > most or cursor.epoch > MOST_EPOCH:
            raise StateError(f"not a Forebay state: epoch: expected 0 to {most}, got {max(epoch, cursor.epoch)}")
        return epoch, done

    @property
    def holes(self) -> list[Hole]:
        """What of the epoch could not be read and was left out by `on_error="skip"`, in the order in which it failed.

        Of each: the `object`, the `row_group` in it, the `cause`, and the rows as the state has them, from `start` to
        `end` of those selected in a `span`, or without a shuffle in the row group; with `weights`, of those drawn.
        Of this rank alone; `forebay.cursor` joins the states of several.
        """
        active = self._active
        if active is not None and not self._is_set:
            # Another thread may end it meanwhile.
            with suppress(ClosedError):
                return active.holes()
        return list(self._holes)

    def stats(self) -> dict[str, float]:
        """Rows, bytes, requests, memory, waiting time of the running iteration, or the last one: of its last pass."""
        active = self._active
        if active is not None:
            with suppress(ClosedError):
                return active.stats()
        return dict(self._last_stats)

    def bottleneck(self) -> str:
        """What the running iteration, or the last one, is waiting for most, and what would help: one sentence.

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
        """Hands the rest of the epoch to an Arrow consumer, which then owns the position.

        Raises:
            SettingError: functions of `map` stand behind the stream, or `repeat` before it.
        """
        return self.hand_over(requested_schema)

    def hand_over(self, requested_schema: object | None = None, *, follows_parts: bool = False) -> object:
        """Returns the rest of the epoch as the capsule of an Arrow stream.

        With `follows_parts`, batches of rows in the dataset's order may have fewer rows, to end where those do that
        were decoded together, which are not copied then.
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
        # Which tells what was left out, once it has ended.
        self._active, self._is_set = stream, False
        return capsule

    def __getstate__(self) -> dict[str, Any]:
        # Threads and their memory stay behind; the reader is made again from the pickled selection.
        return self.__dict__ | {"_reader": None, "_active": None}

    def __repr__(self) -> str:
        share = self._share
        return (
            f"{type(self).__name__}(rank {share.rank} of {share.world_size}, batch_size={share.batch_size}, "
            f"epoch={self._epoch}, position={self._at.position})"
        )

    def _repr_html_(self) -> str:
        return display.stream_html(self, repr(self))


def _is_turn(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_DONE


def _only_if(is_wanted: Callable[[], bool], runs: Iterator[Run]) -> Iterator[Run]:
    if is_wanted():
        yield from runs


def _late(begin: Callable[[], Iterator[Run]]) -> Iterator[Run]:
    yield from begin()


_warned: set[str] = set()
"""Fingerprints of the datasets that were warned of."""


def warn_of_missing_index(dataset: Dataset, found: tuple[str, int, int, int] | None, memory_limit: int) -> None:
    """Says once for each dataset that its row groups are large for the memory and cannot be read in parts."""
    fingerprint = dataset._native.fingerprint
    if found is None or fingerprint in _warned:
        return
    _warned.add(fingerprint)
    url, row_group, needed, num_row_groups = found
    if dataset._shuffle is None:
        cost = "It is read whole by each process that has rows of it"
    else:
        cost = "The shuffle is coarse, and rows may be read again"
    warnings.warn(
        f"row group {row_group} of `{url}` needs {needed} bytes at once, more than a quarter of memory_limit "
        f"({memory_limit} bytes), because it has no page index ({num_row_groups:,} such in the dataset). {cost}. "
        "Write the files with a page index (pyarrow: `write_page_index=True`) or with smaller row groups "
        "(`row_group_size`), or raise memory_limit",
        PerformanceWarning,
        stacklevel=level_of_loop(),
    )


def warn_of_holes(holes: list[Hole], num_rows: int) -> None:
    """Says what an iteration left out."""
    last = holes[-1]
    where = f"row group {last['row_group']} of `{last['object']}`"
    if len(holes) == 1:
        what = f"of {where}; `holes` of the stream has them. The cause"
    else:
        what = f"of {where} among others; `holes` of the stream lists them. The last cause"
    warnings.warn(
        f"{num_rows:,} rows could not be read and were skipped, {what}: {last['cause']}",
        SkippedRowsWarning,
        stacklevel=level_of_loop(),
    )
