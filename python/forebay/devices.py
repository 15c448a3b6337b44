"""Batches in the memory that a GPU reads: pinned, or already copied to the device, a few batches ahead of the loop.

A batch's tensors are copied into pinned memory, and from there by a stream of their own, beside what the loop computes.
The loop's stream waits for an event of the copies, not the process, and every tensor is told that this stream uses it,
so that its memory is not given away too early. Pinned memory is torch's: its allocator keeps what is freed, and gives
it away again when the copies from it are over. Without an accelerator there is no stage, and nothing is copied.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from forebay.exceptions import SettingError
from forebay.options import check_flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.stages import Batches, Item, Pass, Stage

BATCHES_AHEAD = 2
"""Batches that are on their way to the device beside the one that the loop has."""


class Link(Protocol):
    """The way to a device: that of CUDA, or one that notes what it is asked for, in the tests."""

    def pin(self, tensor: Any) -> Any:
        """Returns a copy in pinned memory."""

    def copy(self, pinned: Any) -> Any:
        """Begins to copy pinned memory to the device; returns the tensor there."""

    def move_whole(self, value: Any) -> Any:
        """Has an object that knows how go there by itself."""

    def mark(self) -> Any:
        """Returns an event behind all copies so far."""

    def hand_over(self, event: Any, tensors: list[Any]) -> None:
        """Has the stream of the loop wait for an event, and use the tensors."""


class Cuda:
    """The way to a GPU of CUDA or ROCm."""

    def __init__(self, device: str | None) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._stream = None if device is None else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch

    def pin(self, tensor: Any) -> Any:
        """Returns a copy in memory of torch's allocator of pinned memory."""
        return self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)

    def copy(self, pinned: Any) -> Any:
        """Begins to copy on the side stream."""
        with self._torch.cuda.stream(self._stream):
            return pinned.to(self._device, non_blocking=True)

    def move_whole(self, value: Any) -> Any:
        """Calls the object's own `pin_memory` and `to`, in the stream of the loop: its tensors are not known here."""
        if callable(getattr(value, "pin_memory", None)):
            value = value.pin_memory()
        return value if self._device is None or not hasattr(value, "to") else value.to(self._device)

    def mark(self) -> Any:
        """Records an event on the side stream."""
        return None if self._stream is None else self._stream.record_event()

    def hand_over(self, event: Any, tensors: list[Any]) -> None:
        """Has the current stream wait for the copies."""
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


def make_stages(device: Any, *, pin_memory: bool) -> tuple[Stage, ...]:
    """Returns the stage of `to_torch(pin_memory=..., device=...)`; none where there is nothing to do.

    Raises:
        SettingError: there is no such device.
    """
    check_flag("pin_memory", pin_memory)
    if device is None and not pin_memory:
        return ()
    import torch

    try:
        chosen = None if device is None else torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SettingError(f"device: expected a device of torch such as 'cuda', got {device!r}: {error}") from error
    if chosen is not None and chosen.type not in ("cpu", "cuda"):
        raise SettingError(f"device: batches are copied to 'cuda' or stay on the 'cpu', got {str(chosen)!r}")
    num_devices = torch.cuda.device_count()
    if chosen is not None and chosen.type == "cuda":
        if (chosen.index or 0) >= num_devices:
            raise SettingError(
                f"device: torch finds no GPU for {str(chosen)!r}; leave `device` out where there is none"
            )
        return (DeviceStage(str(chosen)),)
    return (DeviceStage(None),) if pin_memory and num_devices else ()


class DeviceStage:
    """Takes batches to pinned memory, or through it to a device."""

    def __init__(self, device: str | None, make_link: Callable[[str | None], Link] = Cuda) -> None:
        self._device = device
        self._make_link = make_link

    def begin(self, batches: Batches, this: Pass) -> Batches:
        """Begins an iteration; workers of a DataLoader leave batches as they are, for its own `pin_memory`."""
        if not this.is_alone:
            return batches
        return Ahead(batches, self._make_link(self._device), copies=self._device is not None)


class Moved(NamedTuple):
    """A batch on its way."""

    item: Item
    event: Any
    tensors: list[Any]
    """Those of the device."""


class Ahead:
    """Batches on their way to a device."""

    def __init__(self, batches: Batches, link: Link, *, copies: bool) -> None:
        self._batches = batches
        self._link = link
        self._copies = copies
        self._moved: deque[Moved] = deque()
        self._failure: Exception | None = None

    def is_ready(self) -> bool:
        """Whether a batch is on its way, or none will come."""
        return bool(self._moved) or self._failure is not None or self._batches.is_ready()

    def __next__(self) -> Item:
        if not self._moved:
            if self._failure is not None:
                raise self._failure
            self._moved.append(self._move(next(self._batches)))
        moved = self._moved.popleft()
        # Others that are there, so that they are copied while the loop computes.
        while self._failure is None and len(self._moved) < BATCHES_AHEAD:
            try:
                item = next(self._batches, None) if self._batches.is_ready() else None
            except Exception as error:  # noqa: BLE001 - raised behind the batches before it
                self._failure = error
                break
            if item is None:
                break
            self._moved.append(self._move(item))
        if self._copies:
            self._link.hand_over(moved.event, moved.tensors)
        return moved.item

    def _move(self, item: Item) -> Moved:
        """Copies a batch into pinned memory, and has that copied on."""
        tensors: list[Any] = []

        def move(tensor: Any) -> Any:
            is_plain = str(tensor.layout) == "torch.strided" and not tensor.is_nested
            is_there = tensor.device.type != "cpu" or not is_plain or tensor.is_pinned()
            pinned = tensor if is_there else self._link.pin(tensor)
            if not self._copies:
                return pinned
            tensors.append(self._link.copy(pinned))
            return tensors[-1]

        value = map_tensors(move, item.value, self._link.move_whole)
        return Moved(item._replace(value=value), self._link.mark() if self._copies else None, tensors)

    def close(self) -> None:
        """Drops what was taken ahead."""
        self._moved.clear()
        self._batches.close()


def map_tensors(
    function: Callable[[Any], Any], value: Any, of_whole: Callable[[Any], Any] = lambda whole: whole
) -> Any:
    """Returns a batch with a function applied to all tensors of torch in it.

    Args:
        function: Applied to tensors in dicts, lists, tuples and their subclasses, however deep.
        value: The batch.
        of_whole: Applied to objects that go to devices by methods of their own, as torch's packed sequences.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if _moves_itself(value):
        return of_whole(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, part, of_whole) for part in value))
    if isinstance(value, Mapping):
        mapped = {name: map_tensors(function, part, of_whole) for name, part in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return mapped
        # What tokenizers and models return: dicts of their own, with attributes.
        made = copy.copy(value)
        # Some refuse `update`.
        for name, part in mapped.items():
            made[name] = part
        return made
    if isinstance(value, list | tuple) and any(
        isinstance(part, torch.Tensor | Mapping | list | tuple) or _moves_itself(part) for part in value
    ):
        return type(value)(map_tensors(function, part, of_whole) for part in value)
    return value


def _moves_itself(value: Any) -> bool:
    """Whether an object is of torch's protocol for batches of other classes: it has `pin_memory`, or `to`.

    Dicts, lists and tuples with `to` alone are walked through, as what tokenizers return: their tensors then go ahead.
    """
    if isinstance(value, type):
        return False
    own = ("pin_memory",) if isinstance(value, Mapping | list | tuple) else ("pin_memory", "to")
    return any(callable(getattr(value, name, None)) for name in own)
