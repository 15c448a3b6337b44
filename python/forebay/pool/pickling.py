"""Objects as a pickle and separate buffers: arrays, tensors and Arrow data are not copied into the pickle.

NumPy and Arrow support buffers outside the pickle (PEP 574). Tensors of torch do not, and are taken apart here; those
on a device, with a gradient or with another layout are pickled by torch.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from forebay import _lib

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_BYTES = 512
"""Smaller buffers stay in the pickle."""


@lru_cache(maxsize=64)
def bytes_of(num_bytes: int) -> Any:
    """Returns the ctypes array type of `num_bytes` bytes; making the type takes longer than using it."""
    return ctypes.c_char * num_bytes


class _Pickler(pickle.Pickler):
    """Takes plain torch tensors apart into type, shape and memory."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) is not torch.Tensor or not _is_plain(torch, obj):
            return NotImplemented
        flat = obj.contiguous()
        memory = bytes_of(flat.numel() * flat.element_size()).from_address(flat.data_ptr())
        memory.owner = flat
        return _tensor, (pickle.PickleBuffer(memory), str(obj.dtype).removeprefix("torch."), tuple(obj.shape))


def _is_plain(torch: Any, tensor: Any) -> bool:
    return bool(
        tensor.is_cpu
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _tensor(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Returns a tensor that shares the buffer's memory, or has a copy if it is in the pickle."""
    import torch
    from torch.utils.dlpack import from_dlpack

    kind = getattr(torch, dtype)
    if not memoryview(memory).nbytes:
        return torch.empty(shape, dtype=kind)
    if (capsule := _lib.tensor_over(memory, dtype, shape)) is not None:
        # Half as long as to make a tensor of the bytes and a view of that.
        return from_dlpack(capsule)
    if memoryview(memory).readonly:
        memory = bytearray(memory)
    return torch.frombuffer(memory, dtype=kind).view(shape)


def take_apart(value: object) -> tuple[memoryview, list[memoryview]]:
    """Returns a value as its pickle and buffers, which share the memory of the value.

    Raises:
        Exception: whatever the value's `__reduce__` raises; `pickle.PicklingError` and others if it has none.
    """
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LEAST_BYTES:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=is_small).dump(value)
    return stream.getbuffer(), buffers


def put_together(head: bytes | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Returns the value from its pickle and buffers, sharing their memory."""
    if not head:
        return _lib.Batch.from_block(*buffers)
    return pickle.loads(head, buffers=buffers)  # noqa: S301 - from a process of our own
