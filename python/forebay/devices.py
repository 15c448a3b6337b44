"""Puts batches into pinned memory, or copies them to a GPU, a few batches ahead of the loop.

Pinned memory is torch's: its allocator keeps freed memory and reuses it once the copies from it are done. The native
stream gets slabs of it ahead of time, one per batch, and gathers columns into them that become tensors; what does not
fit, and what functions return, is copied there. A batch then goes to the device on a separate CUDA stream, while the
loop computes. The loop's CUDA stream, not the process, waits for an event of the copies, and every tensor is recorded
on that stream, so that its memory is not reused too early. Without an accelerator there is no stage and no copy.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from forebay.exceptions import SettingError
from forebay.options import check_flag
from forebay.stages import MOST_TAKEN, leave_at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay import _lib
    from forebay.stages import Batches, Item, Pass, Stage

BATCHES_AHEAD = 2
"""Batches on their way to the device, besides the one that the loop has."""

MOST_BYTES_WAITING = 32 << 20
"""The most bytes of pinned memory that wait for batches; there are always slabs for two."""


class Link(Protocol):
    """A connection to a device: `Cuda`, or in tests one that records its calls."""

    def allocate(self, num_bytes: int) -> Any:
        """Returns pinned memory, as a tensor of bytes."""

    def pin(self, tensor: Any) -> Any:
        """Returns a copy in pinned memory."""

    def copy(self, pinned: Any) -> Any:
        """Begins to copy pinned memory to the device; returns the tensor there."""

    def move_whole(self, value: Any) -> Any:
        """Moves an object to the device by its own methods."""

    def mark(self) -> Any:
        """Returns an event after all copies so far."""

    def hand_over(self, event: Any, tensors: list[Any]) -> None:
        """Makes the stream of the loop wait for an event, and use the tensors."""


class Cuda:
    """A connection to a GPU, with CUDA or ROCm."""

    def __init__(self, device: str | None) -> None:
        import torch

        self._torch = torch
        self._device: str | None = None
        self._stream: Any = None
        if device is not None:
            index: int | None = torch.device(device).index
            # Later, or in another thread, another GPU may be the current one.
            self._device = f"cuda:{torch.cuda.current_device() if index is None else index}"
            self._stream = _side_stream(self._device)

    def allocate(self, num_bytes: int) -> Any:
        """Returns memory from torch's allocator of pinned memory."""
        return self._torch.empty(num_bytes, dtype=self._torch.uint8, device="cpu", pin_memory=True)

    def pin(self, tensor: Any) -> Any:
        """Returns a copy in memory from that allocator."""
        return self._torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def copy(self, pinned: Any) -> Any:
        """Begins to copy on the side stream."""
        with self._torch.cuda.stream(self._stream):
            return pinned.to(self._device, non_blocking=True)

    def move_whole(self, value: Any) -> Any:
        """Calls the object's own `pin_memory` and `to`, on the stream of the loop, as its tensors are unknown here."""
        # Not all layouts of tensors can be pinned.
        if not isinstance(value, self._torch.Tensor) and callable(getattr(value, "pin_memory", None)):
            value = value.pin_memory()
        return value if self._device is None or not hasattr(value, "to") else value.to(self._device)

    def mark(self) -> Any:
        """Records an event on the side stream."""
        return None if self._stream is None else self._stream.record_event()

    def hand_over(self, event: Any, tensors: list[Any]) -> None:
        """Makes the current stream wait for the copies."""
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


@functools.cache
def _side_stream(device: str) -> Any:
    """Returns the stream of copies to a device: the same for all loops of the process.

    Torch keeps freed memory for the stream that it was allocated on, so that each new stream takes new memory.
    """
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch


def make_stages(device: Any, *, pin_memory: bool) -> tuple[Stage, ...]:
    """Returns the stage of `to_torch(pin_memory=..., device=...)`; none if there is nothing to do.

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
        """Begins an iteration; in workers of a DataLoader, batches stay as they are, for its own `pin_memory`.

        Raises:
            SettingError: there is a device, to which workers cannot send batches.
        """
        if not this.is_alone:
            if self._device is not None:
                raise SettingError(
                    "device: workers of a `DataLoader` cannot copy batches to a GPU; leave `device` out and copy them "
                    "in the loop, or iterate the stream itself, which reads on threads of its own"
                )
            return batches
        link, stream = self._make_link(self._device), batches.stream
        # With functions in between, batches are no longer those of the stream.
        slabs = None if stream is None else Slabs(stream, link)
        return Ahead(batches, link, slabs, copies=self._device is not None)


class Slabs:
    """Pinned memory that a stream gathers batches into: a tensor of bytes per batch.

    The tensors of a batch become views of its slab. Slabs are not reused here: torch, which knows of the copies from a
    slab, gets it back when the stream and the tensors are gone.
    """

    def __init__(self, stream: _lib.Stream, link: Link) -> None:
        self._stream = stream
        self._link = link
        # Slabs that are still held, by the stream or by the tensors of a batch.
        self._supplied: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._size = 0
        # From now on the stream notes how much memory batches need.
        stream.slabs()

    def supply(self) -> None:
        """Supplies slabs for as many batches as the stream may gather before the next call."""
        num_waiting, num_bytes = self._stream.slabs()
        if num_bytes == 0:
            return
        # The size of torch's blocks, so that one block serves batches of about the same size.
        size = 1 << (num_bytes - 1).bit_length()
        if size > self._size:
            # Waiting slabs are too small; the stream drops them when a larger one is supplied.
            self._size, num_waiting = size, 0
        # All ready batches may be taken at once, and as many gathered in their place.
        for _ in range(num_waiting, min(2 * MOST_TAKEN, max(2, MOST_BYTES_WAITING // size))):
            slab = self._link.allocate(size)
            self._supplied[slab.data_ptr()] = slab
            self._stream.supply(slab.data_ptr(), size, slab)

    def held(self) -> list[tuple[int, int, Any]]:
        """Returns start address, end address and tensor of each slab."""
        return [(start, start + slab.numel(), slab) for start, slab in self._supplied.items()]


def over_slab(tensor: Any, slabs: list[tuple[int, int, Any]]) -> Any | None:
    """Returns a tensor as a view of the slab that holds its memory; None if no slab does."""
    start = tensor.data_ptr()
    for begin, end, slab in slabs:
        if begin <= start < end:
            place, misfit = divmod(start - begin, tensor.element_size())
            view = slab.new_empty(0, dtype=tensor.dtype)
            return None if misfit else view.set_(slab.untyped_storage(), place, tensor.size(), tensor.stride())
    return None


class Moved(NamedTuple):
    """A batch on its way."""

    item: Item
    event: Any
    tensors: list[Any]
    """Its tensors on the device."""


class Ahead:
    """Batches on their way to a device."""

    stream = None

    def __init__(self, batches: Batches, link: Link, slabs: Slabs | None = None, *, copies: bool) -> None:
        self._batches = batches
        self._link = link
        self._slabs = slabs
        self._copies = copies
        self._moved: deque[Moved] = deque()
        self._failure: Exception | None = None
        self._of_parent: Any = None
        leave_at_fork(self)

    def leave_to_parent(self) -> None:
        """Forgets all batches in a forked process: they are the parent's to deliver."""
        # Nothing is freed here, nor supplied: the device is the parent's.
        self._of_parent = self._moved, self._slabs
        self._moved, self._slabs, self._failure = deque(), None, None

    def is_ready(self) -> bool:
        """Whether a batch is on its way, or none will come."""
        return bool(self._moved) or self._failure is not None or self._batches.is_ready()

    def __next__(self) -> Item:
        if not self._moved:
            if self._failure is not None:
                raise self._failure
            self._supply()
            self._moved.append(self._move(next(self._batches)))
        moved = self._moved.popleft()
        # Takes further ready batches, so that they are copied while the loop computes.
        while self._failure is None and len(self._moved) < BATCHES_AHEAD:
            try:
                self._supply()
                item = next(self._batches, None) if self._batches.is_ready() else None
                if item is None:
                    break
                self._moved.append(self._move(item))
            except Exception as error:  # noqa: BLE001 - raised after the batches before it
                self._failure = error
                break
        if self._copies:
            self._link.hand_over(moved.event, moved.tensors)
        return moved.item

    def _supply(self) -> None:
        """Supplies slabs before batches are taken, because others are then gathered at once."""
        if self._slabs is not None:
            self._slabs.supply()

    def _move(self, item: Item) -> Moved:
        """Moves a batch to pinned memory, and begins to copy it to the device."""
        tensors: list[Any] = []
        slabs = [] if self._slabs is None else self._slabs.held()

        def move_plain(tensor: Any) -> Any:
            pinned = tensor
            if tensor.device.type == "cpu":
                # First: memory in a slab is pinned, but torch would not know of the copies from it.
                pinned = over_slab(tensor, slabs)
                if pinned is None:
                    pinned = tensor if tensor.is_pinned() else self._link.pin(tensor)
            if not self._copies:
                return pinned
            tensors.append(self._link.copy(pinned))
            return tensors[-1]

        # Jagged tensors have the same shape only if their offsets are the same tensor.
        move_offsets = functools.cache(move_plain)

        def move(tensor: Any) -> Any:
            if is_plain(tensor):
                return move_plain(tensor)
            if str(tensor.layout) == "torch.jagged":
                return map_jagged(move_plain, move_offsets, tensor)
            # Others can neither be copied ahead, since torch does not record them on streams, nor lie in a slab.
            return self._link.move_whole(tensor)

        value = map_tensors(move, item.value, self._link.move_whole)
        return Moved(item._replace(value=value), self._link.mark() if self._copies else None, tensors)

    def close(self) -> None:
        """Drops what was taken ahead."""
        self._moved.clear()
        self._batches.close()


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is one piece of memory with strides."""
    return str(tensor.layout) == "torch.strided" and not tensor.is_nested


def map_jagged(of_values: Callable[[Any], Any], of_offsets: Callable[[Any], Any], tensor: Any) -> Any:
    """Returns a jagged tensor with functions applied to its parts. Torch would wait for each copy of offsets."""
    names, context = tensor.__tensor_flatten__()
    functions = {"_values": of_values, "_offsets": of_offsets, "_lengths": of_offsets}
    # The other parts are lengths that torch stores as shapes of empty tensors.
    parts = {name: functions.get(name, lambda part: part)(getattr(tensor, name)) for name in names}
    return tensor.__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())


def map_tensors(
    function: Callable[[Any], Any], value: Any, of_whole: Callable[[Any], Any] = lambda whole: whole
) -> Any:
    """Returns a batch with a function applied to all torch tensors in it.

    Args:
        function: Applied to tensors in dicts, lists, tuples and their subclasses, at any depth.
        value: The batch.
        of_whole: Applied to objects that move to devices by their own methods, such as torch's packed sequences.
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
        # Tokenizers and models return dict subclasses with attributes.
        made = copy.copy(value)
        # Some of them refuse `update`.
        for name, part in mapped.items():
            made[name] = part
        return made
    if isinstance(value, list | tuple) and any(
        isinstance(part, torch.Tensor | Mapping | list | tuple) or _moves_itself(part) for part in value
    ):
        return type(value)(map_tensors(function, part, of_whole) for part in value)
    return value


def _moves_itself(value: Any) -> bool:
    """Whether an object follows torch's protocol for custom batches: it has `pin_memory`, or `to`.

    Dicts, lists and tuples that only have `to`, as from tokenizers, are walked instead: their tensors are moved ahead.
    """
    if isinstance(value, type):
        return False
    own = ("pin_memory",) if isinstance(value, Mapping | list | tuple) else ("pin_memory", "to")
    return any(callable(getattr(value, name, None)) for name in own)
