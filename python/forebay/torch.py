"""The torch end: batches as tensors. The only module that imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay.loader import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forebay import _lib
    from forebay.dataset import Dataset
    from forebay.options import ReadOptions, ShareOptions

TorchBatch = dict[str, Any]
"""Column name to tensor, or to a list of `str` or `bytes`."""


class TorchStream(IterableDataset[TorchBatch]):
    """A `torch.utils.data.IterableDataset` that yields whole batches of tensors. Made by `Dataset.to_torch`.

    Iterate it as it is (the fast path: Rust threads read ahead), or put it into
    `DataLoader(stream, batch_size=None, num_workers=k)`, whose workers take the rank's batches in turn, in the same
    order.
    """

    def __init__(self, dataset: Dataset, share: ShareOptions, read: ReadOptions) -> None:
        self._stream: Stream[TorchBatch] = Stream(dataset, share, read, _Convert())
        # Refuse now what has no tensor form, not in step 10 000.
        self._stream._convert = _Convert(self._stream.reader.forms())

    def __iter__(self) -> Iterator[TorchBatch]:
        info = get_worker_info()
        return self._stream._iterate(*((0, 1) if info is None else (info.id, info.num_workers)))

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


class _Convert:
    """Turns a batch into tensors and lists, by the forms found when the stream was made."""

    def __init__(self, forms: list[str] | None = None) -> None:
        self._forms = forms or []

    def __call__(self, batch: _lib.Batch) -> TorchBatch:
        converted: TorchBatch = {}
        for index, (name, form) in enumerate(zip(batch.column_names, self._forms, strict=True)):
            column = batch.column(index)
            converted[name] = column.strings() if form == "strings" else _from_dlpack(column)
        return converted


_from_dlpack: Callable[[_lib.Column], torch.Tensor] = torch.utils.dlpack.from_dlpack
