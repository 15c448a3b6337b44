"""Detects trainers that use loaders and streams differently from a plain loop.

Loaders of `accelerate` divide among the ranks what `prepare` was given, or let rank 0 read for all. A stream of one
rank is a share already: such a loader would leave out rows, and ranks would wait for each other forever, so the stream
refuses to begin there.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError

if TYPE_CHECKING:
    from types import FrameType

    from forebay.loader import Stream
    from forebay.options import ShareOptions

_LIGHTNING = ("lightning", "pytorch_lightning")

_BETWEEN = (*_LIGHTNING, "forebay", "datasets", "multiprocessing", "torch", "torchdata")

_ALONE = "iterate the stream without `prepare`, or use `forebay.DataLoader`"


def is_dividing() -> bool:
    """Whether the caller is `accelerate`, which makes a share per rank, and whose ranks wait for each other."""
    return _caller() == "accelerate.data_loader"


def is_preparing() -> bool:
    """Whether the caller is `accelerate`, which looks for loaders among what `prepare` was given."""
    return _caller() == "accelerate.accelerator"


def goes_on_behind(*, is_over: bool = False) -> bool:
    """Whether the caller is Lightning, and goes on after the epoch of the state that it loads.

    After an epoch that is over, or of which it took `limit_train_batches` batches, it does not ask for the rest but for
    the next epoch, and may not call `set_epoch`.
    """
    loop = _loop_of_lightning()
    return loop is not None and (is_over or bool(loop.epoch_loop.batch_progress.is_last_batch))


def batches_taken() -> int | None:
    """Returns how many batches Lightning took of the epoch of the state that it loads; None for other callers."""
    loop = _loop_of_lightning()
    return None if loop is None else int(loop.epoch_loop.batch_progress.current.ready)


def is_a_batch_ahead(loader: object = None) -> bool:
    """Whether the caller is Lightning and holds a batch that no step has used; without a length, it takes one ahead.

    With `loader`, the batch must be of that loader, not of the training loader while that one validates.
    """
    fetcher = getattr(_loop_of_lightning(), "_data_fetcher", None)
    loaders = getattr(getattr(fetcher, "_combined_loader", None), "flattened", ())
    is_asked_for = loader is None or any(loader is found for found in loaders)
    return is_asked_for and bool(getattr(fetcher, "batches", ()))


def _loop_of_lightning() -> Any:
    """Returns Lightning's epoch loop if it called this package, directly or through torchdata and its workers."""
    frame = inspect.currentframe()
    while frame is not None and (root := frame.f_globals.get("__name__", "").partition(".")[0]) in _BETWEEN:
        loop = frame.f_locals.get("self") if root in _LIGHTNING else None
        if hasattr(loop, "epoch_loop"):
            return loop
        frame = frame.f_back
    return None


def epoch_meant(stream: Stream[Any], epoch: int, resumed_epoch: int) -> int:
    """Returns the epoch of `stream` that the caller means by `epoch`.

    `transformers.Trainer` computes the epoch of a checkpoint from the length of epochs. If that is unknown, it counts
    from 0 again, which means `resumed_epoch`: that of the loaded state, or the next one if that is over.
    """
    counts_again = not stream._has_known_length and _caller() == "transformers.trainer"
    return resumed_epoch + epoch if counts_again else epoch


def is_batching() -> bool:
    """Whether the caller is torch's `DataLoader`, and has a function that expects rows make batches.

    Whoever writes a function of their own knows what it is given.
    """
    frame = _frame_of_caller()
    if frame is None or frame.f_globals.get("__name__") != "torch.utils.data._utils.fetch":
        return False
    from torch.utils.data import default_collate

    collate = frame.f_locals.get("collate_fn")
    module = getattr(collate, "__module__", None) or ""
    return bool(frame.f_locals.get("auto_collation")) and (
        collate is default_collate or module.partition(".")[0] == "transformers"
    )


def _caller() -> str:
    """Returns the module that called this package."""
    frame = _frame_of_caller()
    name: str = "" if frame is None else frame.f_globals.get("__name__", "")
    return name


def _frame_of_caller() -> FrameType | None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "forebay":
        frame = frame.f_back
    return frame


def check_undivided(stream: object, share: ShareOptions) -> None:
    """Refuses to begin an epoch of `stream` in a loader of `accelerate` that divides it among ranks a second time.

    Raises:
        SettingError: on every rank, because loaders set the epoch of their dataset before they begin.
    """
    loaders, state = sys.modules.get("accelerate.data_loader"), sys.modules.get("accelerate.state")
    if loaders is None or state is None:
        return
    # The loader that began last.
    loader: Any = state.GradientState().active_dataloader
    dataset = getattr(loader, "dataset", None)
    is_of_one, reason = share.world_size > 1, ""
    if dataset is stream:
        is_read_by_one = isinstance(loader, loaders.DataLoaderDispatcher) and loader.state.num_processes > 1
        if is_read_by_one and (is_of_one or (share.is_detected and share.has_replicas)):
            reason = (
                "dispatch_batches: rank 0 would read for all ranks, but this stream delivers the rows of one rank, and "
                f"the others' would be left out; {_ALONE}, or make it with `rank=0, world_size=1`"
            )
    elif is_of_one and isinstance(dataset, loaders.IterableDatasetShard) and dataset.dataset is stream:
        reason = (
            "prepare: `accelerate` would divide the rows among the ranks, but this stream delivers the rows of one "
            f"rank already, and others would be left out; {_ALONE}"
        )
    if reason:
        # The loader has not begun, so `set_epoch` for a loop over the stream itself must work.
        loader.end()
        raise SettingError(reason)
