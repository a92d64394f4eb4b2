"""Data parallelism of the unchanged torch_xla API over several CPU processes. Needs torch_xla.

PJRT's CPU client knows one process: under torchrun each rank believes it is alone, and reductions
do nothing. `install` puts torchrun's world into `torch_xla.runtime` and replaces the collectives
of `torch.distributed` (backend "xla"), of `xm` and torch's functional ones by ones that go through
host memory. What has no replacement raises: it would otherwise be ignored.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

from hotfire.runtime.xla.world import World

_installed = False


def needed(world: World) -> bool:
    """Several processes, each with torch_xla's CPU client."""
    return world.size > 1 and os.environ.get("PJRT_DEVICE", "CPU") == "CPU"


def install() -> str | None:
    """Replace the collectives when this process is one of several CPU ones; idempotent."""
    global _installed
    world = World.from_environment(os.environ)
    if not needed(world) or _installed:
        return None
    _installed = True
    from hotfire.runtime.xla import functional_collectives, xm_collectives

    _describe_world(world)
    _register_backend()
    xm_collectives.install()
    functional_collectives.install()
    return f"data parallel over {world.size} CPU processes"


def _describe_world(world: World) -> None:
    """What torch_xla.runtime would have learned from a client that knows its peers."""
    import torch_xla.runtime

    from hotfire.runtime.xla.xm_collectives import refuse

    xr: Any = torch_xla.runtime
    os.environ.setdefault("PJRT_LOCAL_PROCESS_RANK", str(world.local_rank))
    os.environ.setdefault("PJRT_LOCAL_PROCESS_COUNT", str(world.local_size))
    xr._WORLD_SIZE, xr._ORDINAL = world.size, world.rank
    for name, value in {
        "process_count": world.size,
        "process_index": world.rank,
        "global_device_count": world.size,
        "global_runtime_device_count": world.size,
        "local_ordinal": world.local_rank,
    }.items():
        setattr(xr, name, functools.wraps(getattr(xr, name))(functools.partial(_value, value)))
    # One program over all processes needs a client that knows them; in one process it works.
    xr.use_spmd = functools.partial(refuse, "SPMD over several processes (xr.use_spmd)")


def _value(value: int) -> int:
    return value


def _register_backend() -> None:
    import torch_xla.distributed.xla_backend  # noqa: F401 (its own registration comes first)

    from hotfire.runtime.xla.c10d_backend import HostStagedProcessGroup
    from hotfire.runtime.xla.host_group import dist

    dist.Backend.register_backend("xla", HostStagedProcessGroup, extended_api=True, devices="xla")
    # register_rendezvous_handler refuses to replace torch_xla's.
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    rendezvous._rendezvous_handlers["xla"] = _rendezvous


def _rendezvous(url: str, timeout: datetime.timedelta, **kwargs: Any) -> Iterator[Any]:
    """``init_method="xla://"``: torchrun's own world, where torch_xla asks its client."""
    from hotfire.runtime.xla.host_group import dist

    yield from dist.rendezvous("env://", timeout=timeout)
