"""Sums of large XLA tensors in the CPU client's own memory, without a copy. Needs torch_xla.

PJRT's CPU client computes in host memory, so gloo can add up where a result lies; copying both
ways costs more than twice the sum itself. Overwriting a buffer behind torch_xla's back is right
only when nothing else stands for the same memory. So nothing that exists is overwritten: each
tensor is first multiplied by the scale, within the graph that is pending anyway, and the buffer
used is that product's. It is new (XLA gives every output of a program a buffer of its own, copied
when it is a parameter or a duplicate), nobody else has seen it, and no program that reads it has
been traced. Then the product becomes the tensor's value the way any in-place operation's does:
views and ``detach()``ed aliases see it, clones, host tensors it came from and other tensors do not.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch_xla

from hotfire.runtime.xla.buckets import CARRIERS

_XLAC: Any = vars(torch_xla)["_XLAC"]
_C: Any = torch._C
# Smaller tensors go in flat copies: a collective per tensor would cost more than the copy.
LARGE_BYTES = 256 << 10
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def candidates(tensors: Sequence[torch.Tensor]) -> set[int]:
    """The indices of those worth it, the same on every rank that passes the same shapes.

    None when a tensor occurs twice: the second product would be of the first.
    """
    if len({id(t) for t in tensors}) < len(tensors) or any(t.device.type != "xla" for t in tensors):
        return set()
    return {
        i
        for i, t in enumerate(tensors)
        if t.dtype in _TYPES and t.numel() * t.element_size() >= LARGE_BYTES
    }


def buffers(
    tensors: Sequence[torch.Tensor], indices: Collection[int], scale: float
) -> dict[int, Buffer]:
    """Those of the tensors at `indices`: products that are traced here and computed later."""
    owners = Counter(_storage(tensor) for tensor in tensors)
    return {i: Buffer(tensors[i], scale, owners[_storage(tensors[i])] == 1) for i in indices}


class Buffer:
    """The memory in which ``tensor * scale`` will be, and how it becomes the tensor's value."""

    def __init__(self, tensor: torch.Tensor, scale: float, alone: bool) -> None:
        """Trace the product; `alone` says that no other tensor of the list shares its storage."""
        carrier = CARRIERS.get(tensor.dtype, tensor.dtype)
        self._target = tensor
        self._stays = alone and carrier == tensor.dtype
        self._product = tensor
        if self._stays and not _is_view(tensor):
            tensor.mul_(scale)
        else:
            self._product = tensor.to(carrier) * scale
        self._plain = torch._from_functional_tensor(self._product)
        if self._stays and self._product is not tensor:
            # What an in-place operation does, without writing the base at once. Many gradients are
            # views (autograd made them by transposing), and with them the `grad.data` that
            # xm.optimizer_step passes: whoever shares the base gets the value when it is read.
            torch._functionalize_replace(tensor, self._plain)
            torch._functionalize_commit_update(tensor)

    def memory(self) -> torch.Tensor:
        """The product as a CPU tensor over the device's own buffer; its program has run."""
        size = self._plain.numel() * self._plain.element_size()
        address = ctypes.c_char * size
        memory = address.from_address(_XLAC._unsafe_buffer_pointer(self._plain))
        return torch.frombuffer(memory, dtype=self._plain.dtype).view(self._plain.shape)

    def finish(self) -> None:
        """Give the tensor the reduced value, if it is not there already."""
        if not self._stays:
            self._target.copy_(self._product)


def _storage(tensor: torch.Tensor) -> int:
    """The same number for all views of one tensor."""
    number: int = tensor.untyped_storage()._cdata
    return number


def _is_view(tensor: torch.Tensor) -> bool:
    return bool(_C._functionalization.get_view_meta_sequence(tensor))
