"""What torch_xla and torch removed up to 2.9 and training scripts of 2021-2024 still rely on.

Removed names come back and do what their replacements do; a name that torch_xla has is not
touched. `xm.mesh_reduce` takes numpy values again: torch 2.6 made `torch.load` refuse them.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any


def install() -> str | None:
    """Correct the imported torch_xla; returns what was done."""
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from torch_xla._internal import utils

    def xrt_world_size(defval: int = 1) -> int:
        """Replaced by `torch_xla.runtime.world_size`."""
        return int(xr.world_size())

    def get_ordinal(defval: int = 0) -> int:
        """Replaced by `torch_xla.runtime.global_ordinal`."""
        return int(xr.global_ordinal())

    def using_pjrt() -> bool:
        """PJRT is the only runtime since 2.1."""
        return True

    removed: list[tuple[Any, str, Any]] = [
        (xm, "xrt_world_size", xrt_world_size),
        (xm, "get_ordinal", get_ordinal),
        (xm, "parse_xla_device", utils.parse_xla_device),
        (xr, "using_pjrt", using_pjrt),
    ]
    added = []
    for module, name, function in removed:
        if not hasattr(module, name):
            setattr(module, name, function)
            added.append(name)
    _take_numpy_in_mesh_reduce(xm)
    return ", ".join([*added, "numpy in mesh_reduce"])


def _take_numpy_in_mesh_reduce(xm: Any) -> None:
    import torch

    @functools.wraps(xm.mesh_reduce)
    def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
        on_cpu = xm._maybe_convert_to_cpu(data)
        payload = io.BytesIO()
        torch.save(on_cpu, payload)
        payloads = xm.rendezvous(tag, payload.getvalue())
        # The job's own ranks wrote these.
        values = [torch.load(io.BytesIO(p), weights_only=False) for p in payloads]
        return reduce_fn(values) if values else on_cpu

    xm.mesh_reduce = mesh_reduce
