"""The position of a stream: epochs, cursors, states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from forebay.exceptions import SettingError, StateError
from forebay.options import check_count
from forebay.passes import MOST_DONE, MOST_EMPTY_PASSES, MOST_EPOCH, Cursor, Passes, Progress, Run, Standing, check_ends
from forebay.states import check_state
from forebay.warned import warn_of_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.options import ReadOptions, ShareOptions
    from forebay.states import Hole

_OF_PYTHON = ("worker", "steps", "repeat", "pack")
"""The fields of states that the core does not know."""


class Position:
    """The position of one rank among the batches of a dataset: its epoch and cursor, which states save."""

    has_rows: ClassVar[bool] = True
    """Whether batches hold rows of the dataset, each with a position."""

    def __init__(self, dataset: Dataset, share: ShareOptions, read: ReadOptions) -> None:
        if self.has_rows and dataset._num_passes != 1 and share.remainder == "keep" and share.world_size > 1:
            raise SettingError(
                "repeat: with remainder 'keep' ranks may have other numbers of batches, so that they would be in "
                "different passes, and no state hold for all of them; use 'drop' or 'pad'"
            )
        self._dataset = dataset
        self._share = share
        self._read = read
        self._reader: _lib.Reader | None = None
        self._passes = Passes(dataset._num_passes, share.steps_per_epoch)
        self._epoch = 0
        # Where the next iteration begins.
        self._start = Cursor()
        # Where the running iteration, or else the last, stands, and where it stood before the last batch.
        self._at = self._before = Standing()
        # The epoch set by `set_epoch`, until an iteration begins.
        self._chosen: int | None = None
        # Whether there is an iterator that will begin there, but has not been asked for a batch yet.
        self._is_announced = False
        self._start_holes: list[Hole] = []
        self._holes: list[Hole] = []
        # The pass whose holes they are, or those of the stream that is read: another one tries its rows again.
        self._pass_of_holes = 0
        # Whether the position was set, so that an iteration that is still running must not change it.
        self._is_set = False
        self._worker: dict[str, Any] | None = None
        self._worker_mark: dict[str, Any] | None = None
        # The number of a worker's first batch, if it differs from the worker's number.
        self._turn: int | None = None
        # Whether rows are left out that `holes` does not list.
        self._leaves_rows_out = False
        # Whether the stream can resume from a state with skipped rows.
        self._takes_holes = True

    @property
    def reader(self) -> _lib.Reader:
        """The reader, which has selection, spans and order; made when first needed."""
        return self._made_reader()

    def _made_reader(self, num_workers: int | None = None) -> _lib.Reader:
        """Returns the reader. If made now for a single worker and rank, it fetches the first rows, too."""
        if self._reader is None:
            is_alone = num_workers == 1 and self._share.world_size == 1
            self._reader = self._dataset._make_reader(self._read, reads_all=is_alone)
        return self._reader

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, from 0. An epoch other than the current one starts at its beginning.

        Raises:
            SettingError: the epoch is no integer, is negative, or is too large for its passes to be numbered.
        """
        self._chosen = epoch = check_count("epoch", epoch, least=0, most=self._passes.most_epoch)
        if epoch != self._epoch:
            self._epoch, self._start = epoch, self._beginning(epoch)
            self._at = Standing(self._start, epoch)
            self._is_announced = False
            self._start_holes, self._holes, self._is_set = [], [], True
            self._worker = self._worker_mark = self._turn = None

    def _go_to(self, position: int) -> None:
        """Makes the first iteration begin after `position` rows."""
        self._start = Cursor(0, position)
        self._at = Standing(self._start)

    def _go_on_to(self, epoch: int, num_taken: int | None = None) -> None:
        """Makes a worker that is done with an epoch begin another one, with the batches that are its turn there.

        The loader goes on with the worker that is next after the last batch, or after `num_taken` batches if given.
        """
        turn = None if self._worker is None else self._turn_behind(self._worker, num_taken)
        self.set_epoch(epoch)
        self._turn = turn

    def _turn_behind(self, worker: dict[str, Any], num_taken: int | None) -> int | None:
        """Returns how many workers a loader asks before this one, after `num_taken` batches of an epoch or all."""
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

        A reader that is alone (one rank, no second worker) delivers fewer where `on_error="skip"`, of the stream or of
        an `Image`, leaves nothing of a batch: such a batch counts here, and is passed over.

        After a call of `iter`, this is the length of the iteration after it, even if no batch was taken yet, because
        trainers ask for the length of an epoch in this order.

        Raises:
            TypeError: the dataset is repeated endlessly.
        """
        left = self._num_left(self._beginning(self._epoch) if self._is_announced else self._start)
        if left is None:
            raise TypeError("a dataset that is repeated without an end has no number of batches; see `steps_per_epoch`")
        return left

    def _num_left(self, start: Cursor) -> int | None:
        """Returns how many batches of the epoch this rank gets from `start` on; None if endless."""
        if self._passes.steps is not None:
            return max(self._passes.steps - start.done, 0)
        last = self._passes.last(self._epoch)
        if last is None:
            return None
        return self._num_batches(start) + (last - start.epoch) * self._num_batches(Cursor(last))

    @property
    def _has_known_length(self) -> bool:
        """Whether `len` is known."""
        return self.has_rows and (self._passes.steps is not None or self._passes.number is not None)

    def _num_batches(self, start: Cursor) -> int:
        """Returns how many batches of a pass this rank gets from `start` on."""
        return self.reader.num_batches(self._native_share(start))

    @property
    def num_dropped(self) -> int:
        """Rows of an epoch, or of each pass, that no rank gets.

        With `remainder="drop"` fewer than `world_size`, and with `drop_last` those of the last batch.
        """
        return self.reader.num_dropped(self._native_share())

    @property
    def _is_over(self) -> bool:
        """Whether the next iteration begins at the end of its epoch, as after a state saved there."""
        start, steps = self._start, self._passes.steps
        if steps is not None:
            return start.done >= steps
        is_last = start.position > 0 and start.epoch == self._passes.last(self._epoch)
        # Rank 0 has the most batches: the epoch goes on if only this one has none left.
        return is_last and not self.reader.num_batches(self._native_share(start) | {"rank": 0})

    def _begin(self, worker: int = 0, num_workers: int = 1) -> Iterator[Run]:
        """Takes the start of the next iteration, and returns its passes."""
        self._check_share()
        reader = self._made_reader(num_workers)
        if worker == 0:
            warn_of_files(self._dataset, reader, self._read.memory_limit)
        got, mark = self._worker, self._mark(worker, num_workers)
        if got is not None and (mark is None or got | mark != got):
            here = f"worker {worker} of {num_workers} in global batches of {self._step} rows"
            raise StateError(
                f"this state is from worker {got.get('index')} of {got.get('num_workers')} in global batches of "
                f"{got.get('step')} rows, not of {here}; reduce the loader's state with `forebay.cursor(state)` to "
                "change workers, batch size or world size"
            )
        # The position in a worker's state is that of the worker's own next batch.
        first = (worker if self._turn is None else self._turn) if got is None else 0
        start, last = self._start, self._passes.last(self._epoch)
        share = self._native_share(start, first, num_workers) | {"holes": self._start_holes}
        if mark is not None:
            left = self._num_left(start)
            mark = ({} if left is None else {"turn": (first - left) % num_workers}) | (got or mark)
        self._holes, self._pass_of_holes = self._start_holes, start.epoch
        self._start, self._start_holes, self._worker, self._worker_mark = self._beginning(self._epoch), [], None, mark
        self._turn = None
        self._chosen, self._is_announced = None, False
        self._at = Standing(start if mark is None else self._after(start, first, last), self._epoch)
        return self._runs(Run(start, share, last, self._epoch, Progress()))

    def _check_share(self) -> None:
        """Refuses a world other than the one the stream was made in."""
        self._share.check_world()

    def _runs(self, run: Run) -> Iterator[Run]:
        """Yields the passes of an iteration, of which `run` is the first.

        Raises:
            SettingError: there is no end, and no batch.
        """
        start, share, last, number, progress = run
        steps, num_workers = self._passes.steps, share["num_workers"]
        num_empty, most_empty = 0, 1 if self.has_rows else MOST_EMPTY_PASSES
        while steps is None or start.done + share["worker"] < steps:
            num_before = progress.num_batches
            yield Run(start, share, last, number, progress)
            if start.epoch == last:
                return
            # The length of a pass decides which worker begins the next one; with packing it is not known ahead.
            is_counted = num_workers > 1 or steps is not None
            length = self._num_batches(start) if is_counted else progress.num_batches - num_before
            if start.position == 0 and (is_counted or not start.done):
                num_empty = 0 if length else num_empty + 1
                if num_empty == most_empty:
                    check_ends(length, last)
            worker = (share["worker"] - length) % num_workers
            start = Cursor(start.epoch + 1, 0, 0 if steps is None else start.done + length)
            share = self._native_share(start, worker, num_workers)

    def _after(self, start: Cursor, number: int, last: int | None) -> Cursor:
        """Returns where this rank stands `number` batches after `start`, at most at the end of the pass `last`."""
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

    def _move(self, after: Cursor, run: Run) -> None:
        """Updates the position when the loop receives a batch."""
        run.progress.num_batches += 1
        self._before = self._at
        self._at, self._is_set = Standing(after, run.number), False

    def _pass_over(self, run: Run) -> None:
        """Moves to the end of the last pass if other ranks had more batches than this one, or batches were skipped."""
        is_last = run.start.epoch == run.last and self._passes.steps is None
        is_uneven = self.has_rows and self._share.remainder == "keep" and self._share.world_size > 1
        # Not if the position was set elsewhere meanwhile.
        is_short = self._leaves_rows_out or is_uneven or bool(self.holes)
        at, epoch = self._at
        if is_last and is_short and not self._is_set and at.epoch <= run.start.epoch:
            # Rank 0 has the most batches.
            length = self.reader.num_batches(self._native_share(run.start) | {"rank": 0})
            end = self._after(run.start, length, run.last)
            # It is still in an earlier pass if nothing of this one could be read.
            stood = at.position if at.epoch == run.start.epoch else 0
            self._at = Standing(at._replace(epoch=run.start.epoch, position=max(stood, end.position)), epoch)

    @property
    def _step(self) -> int:
        """Rows of a global batch, of all ranks together."""
        return self._share.batch_size * self._share.world_size

    def _mark(self, worker: int, num_workers: int) -> dict[str, int] | None:
        """Returns what marks a state as that of one worker, not of the whole rank.

        States add the worker's turn in the next epoch, which a loader may begin with any worker.
        """
        return None if num_workers == 1 else {"index": worker, "num_workers": num_workers, "step": self._step}

    def _native_share(self, start: Cursor | None = None, worker: int = 0, num_workers: int = 1) -> dict[str, Any]:
        """Returns a worker's share of a pass from `start` on; by default from where the next iteration begins."""
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
        """Returns the position of the next batch not yet received, as a small dict that can be written as JSON.

        Ranks step together, so the state of one rank is enough for all; with `remainder="keep"`, that of rank 0. It is
        valid for any world size, batch size and number of workers, except that packed streams have one state for each
        rank. O(1): it holds no rows and no random state.
        """
        return self._state_at(self._at)

    def _state_before_last(self) -> dict[str, Any]:
        """Returns the state before the last batch, for a caller that has taken it but not used it."""
        return self._state_at(self._before)

    def _state_at(self, at: Standing) -> dict[str, Any]:
        """Returns the state of a stream that stands at `at`."""
        state: dict[str, Any] = json.loads(self.reader.state(at.cursor.epoch, at.cursor.position))
        if self._passes.steps is not None:
            state["steps"] = {"epoch": at.epoch, "done": at.cursor.done}
        elif self._passes.number is None:
            # Every earlier epoch goes through this pass, too.
            state["repeat"] = {"epoch": at.epoch}
        if at.cursor.epoch == self._pass_of_holes and (holes := self.holes):
            state["holes"] = holes
        if self._worker_mark is not None:
            state["worker"] = dict(self._worker_mark)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`; no row is lost, repeated or replayed. Reads at most the current windows.

        Raises:
            StateError: `state` belongs to another dataset version, query or order; the message says what differs.
        """
        check_state(state)
        self._check_kind(state)
        try:
            text = json.dumps({key: value for key, value in state.items() if key not in _OF_PYTHON})
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(f"not a Forebay state: {error}") from error
        if state.get("holes") and not self._takes_holes:
            raise StateError(
                "this state is from a stream that left out rows by `on_error='skip'`; one that pads, packs or decodes "
                "cannot go on from there"
            )
        worker = state.get("worker")
        if worker is not None and not isinstance(worker, dict):
            raise StateError(f"not a Forebay state: worker: expected a dict, got {worker!r}")
        if worker is not None and not _is_turn(worker.get("turn", 0)):
            raise StateError(f"not a Forebay state: worker.turn: expected a number from 0, got {worker['turn']!r}")
        cursor = Cursor(*self.reader.read_state(text))
        self._epoch, done = self._read_steps(state, cursor)
        self._is_announced = False
        self._start = cursor._replace(done=done)
        self._at = Standing(self._start, self._epoch)
        self._start_holes = self._holes = [dict(hole) for hole in state.get("holes", ())]
        self._pass_of_holes = cursor.epoch
        self._is_set = True
        self._worker, self._worker_mark, self._turn = worker, worker, None

    def _check_kind(self, state: Mapping[str, Any]) -> None:
        """Refuses states of other kinds of streams, which have no position in this one."""
        if "pack" in state:
            raise StateError("this state is from a stream that packs; go on with the same `pack`")
        if "examples_iterable" in state:
            raise StateError("this state is from what `to_hf` returned, not from a stream; go on there")

    def _read_steps(self, state: Mapping[str, Any], cursor: Cursor) -> tuple[int, int]:
        """Returns the epoch of a state, and how many of its steps were done."""
        most = self._passes.most_epoch
        epoch: Any = self._passes.epoch_of(cursor.epoch)
        done: Any = 0
        if self._passes.steps is not None:
            steps = state.get("steps")
            if steps is None:
                raise StateError("this state is from a stream without `steps_per_epoch`, whose epochs are others")
            epoch, done = (steps.get(name) if isinstance(steps, dict) else None for name in ("epoch", "done"))
            if type(epoch) is not int or type(done) is not int or min(epoch, done) < 0 or done > MOST_DONE:
                raise StateError(f"not a Forebay state: steps: expected an epoch and the steps done, got {steps!r}")
        elif self._passes.number is None and "repeat" in state:
            repeat = state["repeat"]
            epoch = repeat.get("epoch") if isinstance(repeat, dict) else None
            if type(epoch) is not int or not 0 <= epoch <= cursor.epoch:
                raise StateError(
                    f"not a Forebay state: repeat: expected an epoch up to pass {cursor.epoch}, got {repeat!r}"
                )
        if epoch > most or cursor.epoch > MOST_EPOCH:
            raise StateError(f"not a Forebay state: epoch: expected 0 to {most}, got {max(epoch, cursor.epoch)}")
        return epoch, done

    @property
    def holes(self) -> list[Hole]:
        """The rows of the epoch that were left out."""
        return [dict(hole) for hole in self._holes]


def _is_turn(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_DONE
