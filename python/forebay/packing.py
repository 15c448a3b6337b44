"""Streams of packed sequences, made from the documents of one rank, with states that are exact to the token.

The position of a packed stream is the first document that is still needed, and how much was delivered from there on;
sequences are packed again from there. Ranks consume documents at different rates, so each rank has its own state.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.dlpack import from_dlpack

from forebay import _lib
from forebay.exceptions import MemoryLimitError, SettingError, StateError
from forebay.loader import Stream
from forebay.passes import MOST_DONE, Cursor
from forebay.stages import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forebay.dataset import Dataset
    from forebay.distributed import Fact
    from forebay.options import ReadOptions, ShareOptions
    from forebay.passes import Run, Standing
    from forebay.shaping import Pack
    from forebay.stages import Batches, Stage

MAX_DOCUMENTS_PER_READ = 256
"""Documents taken from the reader at a time, fewer if they are large. No state depends on it."""

BYTES_OF_PLACE = 8
"""The most bytes per token of a column, `position_ids` or `labels`."""

MADE = ("position_ids", "cu_seqlens", "max_seqlen", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Keys of batches besides the packed columns."""


class PackedFormat:
    """Packed batches as dicts of torch tensors."""

    leaves_rows_out = False

    def __init__(self, pack: Pack, columns: list[str]) -> None:
        self.finish = pack._documents(columns)
        self._is_flat = pack.flatten

    @property
    def library(self) -> str:
        """The library, as named in `with_format`."""
        return "torch"

    def prepare(self, reader: _lib.Reader) -> PackedFormat:
        """Refuses columns that are not lists of numbers."""
        reader.forms({}, "torch", self.finish)
        return self

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Returns the columns by name, and the boundaries of the documents."""
        columns: dict[str, Any] = batch.convert(from_dlpack)
        if self._is_flat:
            starts, longest = columns.pop("cu_seqlens"), columns.pop("max_seqlen")
            columns |= {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
            columns |= {"max_length_q": longest, "max_length_k": longest}
        return columns

    def rows(self, batch: Any) -> NoReturn:  # noqa: ARG002 - refused for any
        """Refused: the rows of a packed batch are not those of the dataset."""
        raise SettingError("rows: a packed batch holds sequences, not rows of the dataset; iterate batches")


class PackedRun:
    """A running read whose documents are packed, with the methods of a read."""

    def __init__(self, stream: _lib.Stream, packer: _lib.Packer) -> None:
        self.stream = stream
        self._packer = packer
        self._owner = os.getpid()

    def next(self) -> _lib.PackedBatch | None:
        """Waits for the next batch; None at the end."""
        while not self._is_ready:
            self._packer.feed(self.stream)
        return self._packer.next()

    def wait(self, seconds: float) -> bool:
        """Waits until `next` would not block, and takes available documents meanwhile."""
        if not self._is_ready and self.stream.wait(seconds):
            self._packer.feed(self.stream)
        return self._is_ready

    @property
    def _is_ready(self) -> bool:
        if self._owner != os.getpid():
            # `wait` raises. Packed sequences are the parent's to deliver, and another thread may have held the packer's
            # lock when this process was forked.
            self.stream.wait(0)
        return self._packer.has_batch or self._packer.is_done

    @property
    def mark(self) -> tuple[int, int]:
        """The position after the last batch: a document of the rank, and how much was delivered from it on."""
        return self._packer.mark

    def holes(self) -> list[dict[str, Any]]:
        """The holes of the read: none, since rows that cannot be read are an error."""
        return self.stream.holes()

    def stats(self) -> dict[str, float]:
        """The statistics of the read, and how well the sequences are filled."""
        tokens, padding = self._packer.filled
        return self.stream.stats() | {"tokens_packed": tokens, "tokens_padding": padding}


class PackedRead:
    """The batches of a run: the first stage."""

    stream = None

    def __init__(
        self, run: PackedRun, convert: Callable[[Any], Any], ends: Callable[[tuple[int, int]], Cursor]
    ) -> None:
        self._run = run
        self._convert = convert
        self._ends = ends

    def is_ready(self) -> bool:
        """Whether a batch is ready, or none will come."""
        return self._run.wait(0)

    def __next__(self) -> Item:
        batch = self._run.next()
        if batch is None:
            raise StopIteration
        # Its rows are sequences, which have no position in the epoch.
        return Item(self._convert(batch), 0, 0, self._ends(self._run.mark))

    def close(self) -> None:
        """Does nothing: the run is closed by its creator."""


class PackedStream(Stream[dict[str, Any]]):
    """The packed batches of one rank, with a position that is exact to the token."""

    has_rows = False

    def __init__(
        self, dataset: Dataset, share: ShareOptions, read: ReadOptions, pack: Pack, stages: tuple[Stage, ...] = ()
    ) -> None:
        columns = list(dataset.column_names if pack.columns is None else pack.columns)
        if share.steps_per_epoch is not None:
            raise SettingError(
                "steps_per_epoch: how many batches documents are packed into is known only when all of them were read, "
                "so no epoch could begin in the middle; repeat the dataset, and count steps in the loop"
            )
        taken = [name for name in columns if name in MADE or (name == "labels" and pack.labels and len(columns) == 1)]
        if taken:
            raise SettingError(f"columns: packed batches have a `{taken[0]}` of their own; rename the column")
        unknown = [name for name in pack.values if name not in columns and not (pack.labels and name == "labels")]
        if unknown:
            raise SettingError(f"values: `{unknown[0]}` is not a column that is packed")
        self._pack = pack
        self._settings = pack._settings(share.batch_size, drop_last=share.drop_last)
        # Refuses invalid numbers.
        _lib.Packer(self._settings, 0, 0, read.memory_limit)
        num_bytes = BYTES_OF_PLACE * (len(columns) + 1 + pack.labels) * pack.length * share.batch_size
        if num_bytes > read.memory_limit:
            raise MemoryLimitError(
                f"memory_limit of {read.memory_limit} bytes is too small: a batch of {share.batch_size} sequences of "
                f"{pack.length} tokens takes up to {num_bytes}; use a smaller batch_size or length, or raise the limit"
            )
        super().__init__(dataset.select_columns(columns), share, read, PackedFormat(pack, columns), stages)

    def __len__(self) -> int:
        raise TypeError("how many batches documents are packed into is known only when all of them were read")

    def _iterate(self, *_: Any, **__: Any) -> NoReturn:
        raise SettingError(
            "num_workers: each worker would pack documents of its own, so that sequences would depend on the number "
            "of workers; packing happens on Rust threads, so iterate the stream itself, or use `num_workers=0`"
        )

    @contextmanager
    def _running(self, run: Run) -> Iterator[Any]:
        document = run.start.position // self._share.world_size
        packer = _lib.Packer(self._settings, document, run.start.done, self._read.memory_limit)
        last: dict[str, float] | None = None
        try:
            with super()._running(run) as stream:
                packed = PackedRun(stream, packer)
                # `stats` then asks the packed run.
                self._active = packed
                try:
                    yield packed
                finally:
                    last = packed.stats() if self._is_active(stream) else None
        finally:
            if last is not None:
                self._last_stats = last

    @property
    def _is_over(self) -> bool:
        """Also True if the rest fills no batch and `drop_last` leaves that out, which only reading it tells."""
        start = self._start
        # The first document may be needed to the end.
        has_begun = start.position > 0 or start.done > 0
        is_last = has_begun and start.epoch == self._passes.last(self._epoch)
        if super()._is_over or not (is_last and self._share.drop_last):
            return super()._is_over
        # With more documents left than this, there is a batch for sure, and reading a window would be wasted.
        num_left = (self.reader.num_rows - start.position) // self._share.world_size
        if start.done > 0 and self._pack.mode == "best_fit":
            # Sequences of this window were delivered, and perhaps all of its documents.
            num_left -= self._pack.window
        if num_left >= self._share.batch_size * self._pack.length:
            return False
        share = self._native_share(start) | {"holes": self._start_holes}
        with closing(self.reader.stream(start.epoch, share, self._finish)) as stream:
            document = start.position // self._share.world_size
            packer = _lib.Packer(self._settings, document, start.done, self._read.memory_limit)
            return PackedRun(stream, packer).next() is None

    def _first(self, stream: Any, run: Run) -> Batches:
        assert self._format is not None, "packed batches have a format"  # noqa: S101

        def ends(mark: tuple[int, int]) -> Cursor:
            document, done = mark
            return Cursor(run.start.epoch, min(document * self._share.world_size, self.reader.num_rows), done)

        return PackedRead(stream, self._format, ends)

    def _native_share(self, start: Cursor | None = None, worker: int = 0, num_workers: int = 1) -> dict[str, Any]:
        documents = min(self.reader.fitting_batch_rows, MAX_DOCUMENTS_PER_READ)
        share = super()._native_share(start, worker, num_workers)
        return share | {"batch_size": documents, "drop_last": False}

    def _facts(self, run: Run) -> dict[str, Fact]:
        # Ranks have different positions, and read as much at a time as their memory allows.
        facts = super()._facts(run._replace(share=run.share | {"batch_size": self._share.batch_size}))
        return {name: fact for name, fact in facts.items() if name != "position"} | {"packing": self._settings}

    def _identity(self) -> dict[str, Any]:
        """The settings that must be the same for a state to mean the same sequences."""
        same = {"mode": self._pack.mode, "length": self._pack.length}
        if self._pack.mode == "best_fit":
            same["window"] = self._pack.window
        return same | {"rank": self._share.rank, "world_size": self._share.world_size}

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the next sequence not yet received, as a small dict that can be written as JSON.

        Each rank has its own state, valid for the same rank and world size; batch size and columns may change.
        """
        return super().state_dict()

    def _state_at(self, at: Standing) -> dict[str, Any]:
        return super()._state_at(at) | {"pack": self._identity() | {"done": at.cursor.done}}

    def _check_kind(self, state: Mapping[str, Any]) -> None:
        self._check_packing(state)

    def _read_steps(self, state: Mapping[str, Any], cursor: Cursor) -> tuple[int, int]:
        epoch, _ = super()._read_steps(state, cursor)
        if cursor.position != self.reader.num_rows and cursor.position % self._share.world_size:
            raise StateError(f"not a Forebay state: position {cursor.position} is between the documents of one rank")
        return epoch, self._check_packing(state)

    def _check_packing(self, state: Mapping[str, Any]) -> int:
        """Returns how much was delivered from the position on; refuses other packing and ranks."""
        packed = state.get("pack")
        if not isinstance(packed, dict):
            raise StateError("this state is from a stream that does not pack")
        differences = [
            f"{name}: expected `{expected}`, got `{packed.get(name)}`"
            for name, expected in self._identity().items()
            if packed.get(name) != expected
        ]
        if differences:
            hint = "; packed streams go on with the packing and on the rank of the state"
            raise StateError(f"this state does not belong to this stream: {'; '.join(differences)}{hint}")
        done = packed.get("done")
        if isinstance(done, bool) or not isinstance(done, int) or not 0 <= done <= MOST_DONE:
            raise StateError(f"not a Forebay state: pack.done: expected a number of 0 or more, got {done!r}")
        return done
