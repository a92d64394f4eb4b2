"""No training while torch.distributed and torch_xla disagree about how many processes there are.

torch_xla on CPU processes, and every backend whose process group was never initialised, answers
"1" to `xr.world_size()` under torchrun: each rank then trains alone, silently. The check runs at
the first XLA collective or the first optimizer step on XLA parameters; a script that uses gloo on
CPU tensors never meets it. Needs torch and torch_xla.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from hotfire.runtime.xla.world import World

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_to_all",
    "collective_broadcast",
    "collective_permute",
    "reduce_gradients",
    "reduce_scatter",
    "xla_rendezvous",
)


class WorldSizeMismatch(RuntimeError):
    """The launcher started several processes and torch_xla sees another number."""


def check_world() -> None:
    """Raise unless torch_xla sees as many processes as the launcher started.

    Raises:
        WorldSizeMismatch: WORLD_SIZE is above 1 and `torch_xla.runtime.world_size()` differs.
    """
    import torch_xla.runtime

    xr: Any = torch_xla.runtime
    launched = World.from_environment(os.environ).size
    if launched == 1:
        return
    seen = xr.process_count() if xr.is_spmd() else xr.world_size()
    if seen != launched:
        raise WorldSizeMismatch(
            f"WORLD_SIZE is {launched} but torch_xla sees {seen}: every rank would train alone. "
            "Call torch.distributed.init_process_group('xla', init_method='xla://') before "
            "training; on CPU processes start the script with "
            "python -m hotfire.runtime.xla.exec and leave its shims on"
        )


def install() -> str | None:
    """Put the check before every XLA collective and the first optimizer step on XLA parameters."""
    if World.from_environment(os.environ).size == 1:
        return None
    import torch_xla.core.xla_model as xm

    for name in COLLECTIVES:
        setattr(xm, name, _checked(getattr(xm, name)))
    _check_first_optimizer_step()
    return "world sizes are compared before training"


def _checked(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_world()
        return collective(*args, **kwargs)

    return call


def _check_first_optimizer_step() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    checked = False

    def check(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # The hook stays: torch cannot take one away while it runs several.
        nonlocal checked
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        if not checked and any(p.device.type == "xla" for p in parameters):
            checked = True
            check_world()

    register_optimizer_step_pre_hook(check)
