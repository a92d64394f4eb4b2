"""Lists of CPU tensors as few flat ones, in types that gloo can reduce. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

BUCKET_BYTES = 32 << 20
# gloo has no kernels for these: carried as the wider type and cut back afterwards. Sums of the two
# half types are taken in float32, as the devices that these processes stand in for do.
CARRIERS = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
_OWN_KERNELS = (
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
)
Bucket = tuple[list[int], torch.Tensor]


def carrier(tensor: torch.Tensor) -> torch.dtype:
    """The type in which `tensor` is sent.

    Raises:
        NotImplementedError: there is none (complex numbers, 8-bit floats).
    """
    found = CARRIERS.get(tensor.dtype, tensor.dtype)
    if found not in _OWN_KERNELS:
        raise NotImplementedError(f"collectives of {tensor.dtype} on CPU processes")
    return found


def pack(tensors: Sequence[torch.Tensor], indices: Sequence[int]) -> list[Bucket]:
    """The tensors at `indices`, copied into flat tensors of one type and about BUCKET_BYTES."""
    buckets: list[list[int]] = []
    used, dtype = 0, None
    for i in indices:
        wanted = carrier(tensors[i])
        nbytes = tensors[i].numel() * wanted.itemsize
        if wanted != dtype or used + nbytes > BUCKET_BYTES:
            buckets.append([])
            used, dtype = 0, wanted
        buckets[-1].append(i)
        used += nbytes
    return [(bucket, _flat([tensors[i] for i in bucket])) for bucket in buckets]


def unpack(
    like: Sequence[torch.Tensor], buckets: Sequence[Bucket], scale: float = 1.0
) -> dict[int, torch.Tensor]:
    """The buckets' parts by index, in the shapes and types of `like`, times `scale`."""
    results: dict[int, torch.Tensor] = {}
    for indices, flat in buckets:
        # Whole numbers are cut, as a device does it; `mul_` would refuse.
        scaled = flat if scale == 1.0 else (flat * scale).to(flat.dtype)
        parts = torch.split(scaled, [like[i].numel() for i in indices])
        for i, part in zip(indices, parts, strict=True):
            results[i] = part.view(like[i].shape).to(like[i].dtype)
    return results


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A fresh tensor: gloo works in place."""
    dtype = carrier(tensors[0])
    return torch.cat([t.detach().reshape(-1).to(dtype) for t in tensors])
