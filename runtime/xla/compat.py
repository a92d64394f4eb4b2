"""Names that torch_xla removed up to 2.9 and that training scripts of 2021-2024 still call.

Each does what its replacement does. A name that torch_xla has is never touched.
"""

from __future__ import annotations

from typing import Any


def install() -> str | None:
    """Add the removed names that are missing; returns which, None when none was."""
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
    return ", ".join(added) or None
