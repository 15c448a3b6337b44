"""`DataLoader`: a stream with the arguments of `torch.utils.data.DataLoader`, so that changing an import is enough."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Never, cast

from forebay import familiar
from forebay.exceptions import SettingError
from forebay.options import PoolOptions, as_number, check_count, check_flag
from forebay.trainers import epoch_meant, goes_on_behind, is_a_batch_ahead, is_preparing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forebay.dataset import Dataset
    from forebay.loader import Stream
    from forebay.mapped import MappedDataset, Workers
    from forebay.options import Remainder, StartMethod
    from forebay.passes import Run, Standing
    from forebay.states import Hole

REASONS = {
    "sampler": (
        "the order is that of the dataset, so that it can be resumed on any number of ranks, and needs no sampler; "
        "use `shuffle=True`, `ds.shuffle(weights=...)`, or `ds.select(...)` for rows of your choice, or torch's "
        "DataLoader, which takes a dataset with a sampler"
    ),
    "batch_sampler": (
        "batches are consecutive rows of the dataset's order, so that it can be resumed on any number of ranks; "
        "torch's DataLoader takes a dataset with a batch_sampler"
    ),
    "generator": (
        "the order follows from the seed of `ds.shuffle(seed=...)` and the epoch alone, so that ranks agree and runs "
        "can be resumed"
    ),
}

OF_BATCHES = {
    "forms": "`ds.with_format('torch', forms=...)` sets it for the rows",
    "compat": "`ds.with_format('torch', compat='datasets')` sets it for the rows",
    "padding": "pad in `collate_fn`, or leave it out",
    "pack": "leave `collate_fn` out",
    "decode": "leave `collate_fn` out, and do its work by `ds.map(function, batched=True)`",
}
"""Arguments of `to_torch` that do not apply with `collate_fn`, and what to do instead."""

OF_POOL = {"prefetch": "prefetch_factor", "start_method": "multiprocessing_context"}
"""Names of arguments in `PoolOptions`, and in torch."""


class DataLoader:
    """Batches of a dataset, with the arguments of `torch.utils.data.DataLoader` where they mean the same.

    A process has one reader, whose threads fetch and decode, whatever `num_workers` is. Workers run `collate_fn` and
    the functions of `Dataset.map` and read no files; without such functions, none are started. Ranks are found as in
    `to_torch`, without a `DistributedSampler`. Every loop delivers the next epoch, unless `set_epoch` chose one, and
    begins when its first batch is requested.

    Args:
        dataset: A `Dataset`, or one with functions (`Dataset.map`).
        batch_size: Rows per batch.
        shuffle: Deliver rows in the order of `Dataset.shuffle` with its default seed. A dataset that is shuffled
            already keeps its own order.
        sampler: Refused, like `batch_sampler` and `generator`: the order could not be resumed.
        batch_sampler: Refused.
        num_workers: Processes for `collate_fn` and functions. With 0, those of `map`, else the loop itself.
        collate_fn: Makes a batch from a list of rows in the dataset's [format](datasets.md#with_format); without a
            format, dicts of Python values. Without `collate_fn`, batches are those of `to_torch`. With it, no rows may
            be left out (`on_error="skip"`).
        pin_memory: As in `Dataset.to_torch`.
        drop_last: Leave out a last batch with fewer rows.
        timeout: The most seconds that the loop waits for workers; 0 for no limit.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: `"spawn"`, `"forkserver"`, or a context of one of them.
        generator: Refused.
        prefetch_factor: Batches that each worker holds; 4 by default.
        persistent_workers: Keep workers for the next loop.
        pin_memory_device: A GPU to deliver batches to, like `device` in `Dataset.to_torch`.
        in_order: Must be True; batches always come in order.
        **settings: Further arguments of `Dataset.to_torch`: `remainder`, `rank`, `world_size`, `mesh`, `replicate`,
            `forms`, `memory_limit`, ...

    Raises:
        SettingError: an argument cannot work; the message says why, and what to do instead.

    Example:
        >>> loader = forebay.DataLoader(ds.select_columns(["path", "size"]), batch_size=100, shuffle=True)
        >>> len(loader), next(iter(loader))["size"].shape
        (10, torch.Size([100]))
    """

    _is_accelerate_prepared: ClassVar[bool] = True
    """Read by `accelerate`: `prepare` has nothing to do, as every rank already gets its own batches."""

    use_stateful_dataloader: ClassVar[bool] = True
    """Read by `accelerate`: `save_state` and `load_state` include the position of a prepared loader."""

    # Hidden from type checkers.
    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            # `accelerate` passes by what is no loader of torch, and saves no position of it.
            from torch.utils import data

            return data.DataLoader if is_preparing() else type(self)

        # It would be taken to mean that a loader has every attribute.
        def __getattr__(self, name: str) -> Never:
            raise familiar.missing(self, "a loader", name, familiar.OF_LOADER)

    def __init__(
        self,
        dataset: Dataset | MappedDataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        **settings: Any,
    ) -> None:
        for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler), ("generator", generator)):
            if value is not None:
                raise SettingError(f"{name}: {REASONS[name]}")
        if batch_size is None:
            raise SettingError(
                "batch_size: expected a number of rows; a stream of batches is `ds.to_torch(batch_size)`"
            )
        if in_order is not True:
            raise SettingError("in_order: batches always come in their order, so that runs can be repeated and resumed")
        check_flag("persistent_workers", persistent_workers)
        check_flag("pin_memory", pin_memory)
        if collate_fn is not None and not callable(collate_fn):
            raise SettingError(f"collate_fn: expected a function, got {collate_fn!r}")
        _check_known(settings)
        self.dataset = _shuffled(dataset, shuffle)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self.num_workers = num_workers
        self.persistent_workers = persistent_workers
        self.prefetch_factor = prefetch_factor
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.in_order = in_order
        self._workers = _workers(num_workers, prefetch_factor, timeout, multiprocessing_context, worker_init_fn)
        if num_workers == 0:
            _check_needless(
                self.dataset,
                prefetch_factor=prefetch_factor,
                multiprocessing_context=multiprocessing_context,
                persistent_workers=persistent_workers,
                timeout=timeout,
                worker_init_fn=worker_init_fn,
            )
        if pin_memory:
            settings["pin_memory"] = pin_memory
        device: object = pin_memory_device
        if not isinstance(device, str) or device:
            if settings.get("device") is not None:
                raise SettingError("pin_memory_device: the device of the batches is `device` already; pass one of them")
            settings["device"] = pin_memory_device
        self._stream = self._make_stream(drop_last=drop_last, **settings)
        self._is_next_epoch_due = False
        # The first epoch that the loaded state leaves something of.
        self._resumed_epoch = 0
        # Where the running loop, or else the last one, began.
        self._began: Standing | None = None

    def _make_stream(self, **settings: Any) -> Stream[Any]:
        """Returns the stream of the rank, with the functions applied."""
        from forebay.mapped import MappedDataset, put_first
        from forebay.transforms import Collate

        mapped = self.dataset if isinstance(self.dataset, MappedDataset) else None
        bare = cast("Dataset", self.dataset) if mapped is None else mapped._dataset
        if self.collate_fn is None:
            stream: Stream[Any] = bare.to_torch(self.batch_size, **settings)._stream
        else:
            stream = _in_format(bare, self.batch_size, **settings)
        steps = () if mapped is None else mapped._steps
        collate = None if self.collate_fn is None else Collate(self.collate_fn)
        if steps or collate is not None:
            workers = self._workers if self._workers.number or mapped is None else mapped._workers
            keeps = self.persistent_workers or not self._workers.number
            put_first(stream, steps, collate, workers, keeps=keeps)
        return stream

    def __len__(self) -> int:
        """The exact number of batches that the next loop delivers to this rank.

        Batches of which `on_error="skip"` leaves nothing count, too; see `Stream.__len__`.
        """
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        if is_a_batch_ahead(self) and self._stream._before == self._began:
            # When Lightning resumes after an epoch, it begins the next one twice, without using a batch of the first.
            self._stream.load_state_dict(self._stream._state_before_last())
            self._is_next_epoch_due = False
        return self._stream._iteration(self._begin)

    def _begin(self) -> Iterator[Run]:
        """Takes the start of the next loop: that of the next epoch, unless another one was set."""
        if self._is_next_epoch_due:
            self._stream.set_epoch(self._stream.epoch + 1)
        runs = self._stream._begin()
        self._is_next_epoch_due = True
        self._began = self._stream._at
        return runs

    @property
    def epoch(self) -> int:
        """The epoch of the running loop, or of the next one if none has begun."""
        return self._stream.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next loop, from 0.

        Raises:
            SettingError: the epoch is no integer, or is negative.
        """
        self._stream.set_epoch(epoch_meant(self._stream, epoch, self._resumed_epoch))
        self._is_next_epoch_due = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the next batch not yet received; see `Stream.state_dict`."""
        return self._stream._state_before_last() if is_a_batch_ahead() else self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state` in the next loop; see `Stream.load_state_dict`.

        Raises:
            StateError: the state is malformed, or belongs to another dataset, query or order.
        """
        self._stream.load_state_dict(state)
        self._is_next_epoch_due = False
        is_over = self._stream._is_over
        self._resumed_epoch = self.epoch + is_over
        if goes_on_behind(is_over=is_over):
            self.set_epoch(self.epoch + 1)

    @property
    def num_dropped(self) -> int:
        """Rows of an epoch that no rank gets; see `Stream.num_dropped`."""
        return self._stream.num_dropped

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
        return f"DataLoader({self._stream!r}, num_workers={self.num_workers})"


def _check_known(settings: Mapping[str, Any]) -> None:
    """Refuses arguments that are neither those of torch nor of `Dataset.to_torch`."""
    from forebay.dataset import Dataset

    known = inspect.signature(Dataset.to_torch).parameters
    for name in settings:
        if name not in known:
            instead = f"; {familiar.OF_STREAM[name]}" if name in familiar.OF_STREAM else ""
            raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}{instead}")


def _shuffled(dataset: Any, shuffle: bool | None) -> Dataset | MappedDataset:
    """Returns the dataset in the requested order."""
    from forebay.dataset import Dataset
    from forebay.mapped import MappedDataset

    if isinstance(dataset, dict) and dataset:
        raise SettingError(f"dataset: these are several splits; choose one, as in ds['{next(iter(dataset))}']")
    if not isinstance(dataset, Dataset | MappedDataset):
        kind = type(dataset)
        is_stream = kind.__module__.startswith("forebay.") and hasattr(dataset, "state_dict")
        instead = "takes it with `batch_size=None`; this one takes the dataset itself" if is_stream else "takes others"
        raise SettingError(
            f"dataset: expected a dataset of `load_dataset`, got `{kind.__qualname__}`; torch's DataLoader {instead}"
        )
    bare = dataset._dataset if isinstance(dataset, MappedDataset) else dataset
    if shuffle is None:
        return dataset
    check_flag("shuffle", shuffle)
    if shuffle:
        return dataset if bare._shuffle is not None else dataset.shuffle()
    if bare._shuffle is not None:
        raise SettingError("shuffle=False: `ds.shuffle` shuffles this dataset; leave one of the two out")
    return dataset


def _workers(num_workers: int, prefetch: int | None, timeout: float, context: Any, init: Any) -> Workers:
    """Returns the workers that run functions."""
    from forebay.mapped import Workers

    num_workers = check_count("num_workers", num_workers, least=0, most=1024)
    find: Any = getattr(context, "get_start_method", None)
    if context is not None and not isinstance(context, str) and not callable(find):
        raise SettingError(
            f"multiprocessing_context: expected 'spawn', 'forkserver' or a context of one of them, got {context!r}"
        )
    method = find() if callable(find) else context
    try:
        options = PoolOptions(
            prefetch=PoolOptions.prefetch if prefetch is None else prefetch,
            timeout=None if as_number(timeout) == 0 else timeout,
            start_method=cast("StartMethod", method or "spawn"),
            worker_init_fn=init,
        )
    except SettingError as error:
        name, reason = str(error).split(":", 1)
        raise SettingError(f"{OF_POOL.get(name, name)}:{reason}") from None
    return Workers("processes" if num_workers else "loop", num_workers, options, is_of_loader=True)


def _check_needless(dataset: Any, **of_workers: Any) -> None:
    """Refuses arguments about workers if there are none, as torch does."""
    from forebay.mapped import MappedDataset

    has_own = isinstance(dataset, MappedDataset) and dataset._workers.number > 0
    # Workers of `map` persist in any case, and torch ignores an initialiser without workers.
    allowed = "persistent_workers" if has_own else "worker_init_fn"
    for name, value in of_workers.items():
        if value and name != allowed:
            instead = "; for the workers of `map`, pass it to `map`: `pool=fb.PoolOptions(...)`" if has_own else ""
            raise SettingError(f"{name}: it applies to workers, and `num_workers=0` starts none{instead}")


def _in_format(
    dataset: Dataset,
    batch_size: int,
    *,
    drop_last: bool,
    remainder: Remainder = "drop",
    pin_memory: bool = False,
    device: Any = None,
    **settings: Any,
) -> Stream[Any]:
    """Returns a stream in the dataset's own format, from which rows are made."""
    for name, instead in OF_BATCHES.items():
        value = settings.pop(name, None)
        if not isinstance(value, bool | dict | None) or value:
            raise SettingError(
                f"{name}: `collate_fn` is given rows of the dataset's format, not the batches of `to_torch`; {instead}"
            )
    stream: Stream[Any] = dataset.batches(batch_size, drop_last=drop_last, remainder=remainder, **settings)
    if pin_memory or device is not None:
        from forebay.devices import make_stages

        stream._stages = make_stages(device, pin_memory=pin_memory)
    return stream
