"""Streams of tensors for torch. `to_torch` imports this module, and with it torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

from torch.utils.data import IterableDataset, get_worker_info

from forebay import display
from forebay.exceptions import ForebayError
from forebay.loader import Stream
from forebay.packing import PackedStream
from forebay.shaping import Pack
from forebay.trainers import (
    batches_taken,
    check_undivided,
    epoch_meant,
    goes_on_behind,
    is_a_batch_ahead,
    is_batching,
)
from forebay.warned import warn_of_batches_of_batches
from forebay.workers import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from forebay.dataset import Dataset
    from forebay.formats import Format
    from forebay.options import ReadOptions, ShareOptions
    from forebay.passes import Run
    from forebay.stages import Stage
    from forebay.states import Hole

TorchBatch = dict[str, Any]
"""Column name to tensor, list, dict, `Masked`, `Ragged` or `DictionaryEncoded`; see `Dataset.to_torch`."""


class TorchStream(IterableDataset[TorchBatch]):
    """A `torch.utils.data.IterableDataset` that yields whole batches of tensors. Made by `Dataset.to_torch`.

    Iterate over it directly (the fast path: Rust threads read ahead), or pass it to
    `DataLoader(stream, batch_size=None, num_workers=k)`, whose workers deliver the rank's batches in the same order.
    """

    def __init__(
        self,
        dataset: Dataset,
        share: ShareOptions,
        read: ReadOptions,
        format: Format | Pack | None,
        stages: tuple[Stage, ...] = (),
    ) -> None:
        self._stream: Stream[TorchBatch] = (
            PackedStream(dataset, share, read, format, stages)
            if isinstance(format, Pack)
            else Stream(dataset, share, read, format, stages)
        )
        self._place = Place()
        # The first epoch that the loaded state leaves something of.
        self._resumed_epoch = 0

    def __iter__(self) -> Iterator[TorchBatch]:
        info = get_worker_info()
        if (info is None or info.id == 0) and is_batching():
            warn_of_batches_of_batches()
        if info is None:
            return self._stream._iteration(self._begin)
        try:
            is_wanted = self._place.begin(self._stream, info)
            return self._stream._iterate(info.id, info.num_workers, is_wanted)
        except ForebayError as error:
            # Torch loses an exception that a persistent worker raises here, but not one raised for its first batch.
            return map(_refuse, [error])

    def __aiter__(self) -> AsyncIterator[TorchBatch]:
        return self._stream._async_iteration(self._begin)

    def _begin(self) -> Iterator[Run]:
        """Takes the start of the next iteration in this process, and lets later workers know."""
        self._place.settle(self._stream)
        runs = self._stream._begin()
        self._place.choose(self._stream, None)
        return runs

    def __getitem__(self, index: Any) -> Never:
        """Refused: batches come in their order."""
        raise TypeError("a stream has no batches by number, but in a loop; rows by number are `ds[i]` of its dataset")

    def __len__(self) -> int:
        """The exact number of batches that the next iteration delivers to this rank, over all workers.

        Batches of which `on_error="skip"` leaves nothing count, too; see `Stream.__len__`.
        """
        self._place.settle(self._stream)
        return len(self._stream)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._stream.epoch

    @property
    def num_dropped(self) -> int:
        """Rows of an epoch, or of each pass, that no rank gets; see `Stream.num_dropped`."""
        self._place.settle(self._stream)
        return self._stream.num_dropped

    def check_ranks(self) -> None:
        """Checks that the ranks agree on what the next loop delivers; see `Stream.check_ranks`."""
        self._place.settle(self._stream)
        self._stream.check_ranks()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, from 0. An epoch other than the current one starts at its beginning.

        Applies to loops that begin afterwards, here and in DataLoader workers, including persistent ones.

        Raises:
            SettingError: the epoch is no integer, or is negative; a loader of `accelerate` would divide these batches
                among the ranks a second time.
        """
        check_undivided(self, self._stream._share)
        epoch = epoch_meant(self._stream, epoch, self._resumed_epoch)
        # Also the same epoch again, after a loop of workers has used it up: an earlier state may be loaded.
        is_other = epoch != self._stream.epoch or self._place.settle(self._stream)
        self._stream.set_epoch(epoch)
        if is_other:
            self._place.choose(self._stream, get_worker_info())

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the next batch not yet received; see `Stream.state_dict`.

        Raises:
            StateError: the workers of a plain `DataLoader` take the batches, so their position is not known.
        """
        if get_worker_info() is None:
            self._place.check_known(self._stream)
            if is_a_batch_ahead():
                return self._stream._state_before_last()
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state` in the next loop; the loop after that begins at 0. See `Stream.load_state_dict`.

        Raises:
            StateError: the state is malformed, or belongs to another dataset, query or order.
        """
        self._stream.load_state_dict(state)
        is_over = self._stream._is_over
        self._resumed_epoch = self.epoch + is_over
        if goes_on_behind(is_over=is_over):
            self._stream._go_on_to(self.epoch + 1, batches_taken())
        self._place.choose(self._stream, get_worker_info())

    @property
    def holes(self) -> list[Hole]:
        """The rows of the epoch that could not be read and that `on_error="skip"` left out; see `Stream.holes`."""
        return self._stream.holes

    def stats(self) -> dict[str, float]:
        """Rows, bytes, requests, memory and waiting time; see `Stream.stats`."""
        return self._stream.stats()

    def bottleneck(self) -> str:
        """One sentence: what the loop mostly waits for, and what would help; see `Stream.bottleneck`."""
        return self._stream.bottleneck()

    def __repr__(self) -> str:
        return f"Torch{self._stream!r}"

    def _repr_html_(self) -> str:
        return display.stream_html(self._stream, repr(self))


def _refuse(error: ForebayError) -> TorchBatch:
    raise error
