"""The torch end: batches as tensors. The only module that imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from forebay import display
from forebay.formats import TensorFormat
from forebay.loader import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from forebay.dataset import Dataset
    from forebay.options import ReadOptions, ShareOptions

TorchBatch = dict[str, Any]
"""Column name to tensor, list, dict, `Masked`, `Ragged` or `DictionaryEncoded`; see `Dataset.to_torch`."""


class TorchStream(IterableDataset[TorchBatch]):
    """A `torch.utils.data.IterableDataset` that yields whole batches of tensors. Made by `Dataset.to_torch`.

    Iterate it as it is (the fast path: Rust threads read ahead), or put it into
    `DataLoader(stream, batch_size=None, num_workers=k)`, whose workers take the rank's batches in turn, in the same
    order.
    """

    def __init__(self, dataset: Dataset, share: ShareOptions, read: ReadOptions, forms: dict[str, str]) -> None:
        self._stream: Stream[TorchBatch] = Stream(dataset, share, read, TensorFormat("torch", forms))

    def __iter__(self) -> Iterator[TorchBatch]:
        info = get_worker_info()
        if info is None:
            return iter(self._stream)
        return self._stream._iterate(info.id, info.num_workers)

    def __aiter__(self) -> AsyncIterator[TorchBatch]:
        return self._stream.__aiter__()

    def __len__(self) -> int:
        """The exact number of batches that the next iteration delivers to this rank, all workers together."""
        return len(self._stream)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers, from 0."""
        return self._stream.epoch

    @property
    def num_dropped(self) -> int:
        """Rows of the epoch that no rank gets; fewer than `world_size`."""
        return self._stream.num_dropped

    def check_ranks(self) -> None:
        """Compares with the other ranks what the next loop delivers; see `Stream.check_ranks`."""
        self._stream.check_ranks()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, from 0. Another epoch than the current one starts at its beginning."""
        self._stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch not yet received; see `Stream.state_dict`."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`; see `Stream.load_state_dict`."""
        self._stream.load_state_dict(state)

    def stats(self) -> dict[str, float]:
        """Rows, bytes, requests, memory and waiting time; see `Stream.stats`."""
        return self._stream.stats()

    def __repr__(self) -> str:
        return f"Torch{self._stream!r}"

    def _repr_html_(self) -> str:
        return display.stream_html(self._stream, repr(self))
