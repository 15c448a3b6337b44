"""What trainers make of loaders and streams, where it is other than what a loop does.

Loaders of `accelerate` divide among the ranks what `prepare` is given, or rank 0 reads for all. A stream of one rank is
its share already: in such a loader rows would be left out, and ranks wait for each other for ever, so it refuses to
begin there.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError

if TYPE_CHECKING:
    from forebay.loader import Stream
    from forebay.options import ShareOptions

_LIGHTNING = ("lightning", "pytorch_lightning")

_BETWEEN = (*_LIGHTNING, "forebay", "datasets", "multiprocessing", "torch", "torchdata")

_ALONE = "iterate the stream as it is, or `forebay.DataLoader`, without `prepare`"


def is_dividing() -> bool:
    """Whether `accelerate` calls, which makes a share for each rank, and ranks wait for each other at every step."""
    return _caller() == "accelerate.data_loader"


def goes_on_behind(*, is_over: bool = False) -> bool:
    """Whether Lightning calls, and goes on behind the epoch of the state that it loads.

    Of an epoch that is over, or of which it took as many batches as `limit_train_batches` says, it does not ask for the
    rest, but for the next epoch, whose number it may tell nobody.
    """
    loop = _loop_of_lightning()
    return loop is not None and (is_over or bool(loop.epoch_loop.batch_progress.is_last_batch))


def batches_taken() -> int | None:
    """Returns how many batches of the epoch of the state that it loads Lightning has taken; None where others call."""
    loop = _loop_of_lightning()
    return None if loop is None else int(loop.epoch_loop.batch_progress.current.ready)


def is_a_batch_ahead(loader: object = None) -> bool:
    """Whether Lightning calls, and has a batch that no step has seen: it takes one ahead where it knows no length.

    With `loader` the batch has to be of that one, not of the one that is trained on while this one validates.
    """
    fetcher = getattr(_loop_of_lightning(), "_data_fetcher", None)
    loaders = getattr(getattr(fetcher, "_combined_loader", None), "flattened", ())
    is_asked_for = loader is None or any(loader is found for found in loaders)
    return is_asked_for and bool(getattr(fetcher, "batches", ()))


def _loop_of_lightning() -> Any:
    """Returns the loop over epochs that called this package, itself or by a loader of torchdata and its workers."""
    frame = inspect.currentframe()
    while frame is not None and (root := frame.f_globals.get("__name__", "").partition(".")[0]) in _BETWEEN:
        loop = frame.f_locals.get("self") if root in _LIGHTNING else None
        if hasattr(loop, "epoch_loop"):
            return loop
        frame = frame.f_back
    return None


def epoch_meant(stream: Stream[Any], epoch: int) -> int:
    """Returns which epoch of `stream` is meant by who sets `epoch`.

    `transformers.Trainer` knows by the length of an epoch which one a checkpoint is of. Where none is known it counts
    from 0 again, which is the epoch of the state, and the next one where that is over.
    """
    if stream._loaded_epoch is None or stream._has_known_length or _caller() != "transformers.trainer":
        return epoch
    if stream._is_over:
        stream._loaded_epoch += 1
    return stream._loaded_epoch + epoch


def _caller() -> str:
    """Returns the module that called this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "forebay":
        frame = frame.f_back
    name: str = "" if frame is None else frame.f_globals.get("__name__", "")
    return name


def check_undivided(stream: object, share: ShareOptions) -> None:
    """Refuses to begin an epoch of `stream` in a loader of `accelerate` that divides it among ranks once more.

    Raises:
        SettingError: on every rank: loaders set the epoch of what they hold before they begin.
    """
    loaders, state = sys.modules.get("accelerate.data_loader"), sys.modules.get("accelerate.state")
    if loaders is None or state is None:
        return
    # That which has begun last.
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
        # It has not begun: a loop over the stream itself can be told an epoch.
        loader.end()
        raise SettingError(reason)
