"""Data parallelism of the unchanged torch_xla API over several CPU processes. Needs torch_xla.

PJRT's CPU client knows one process: under torchrun each rank believes it is alone, and reductions
do nothing. `install` puts torchrun's world into `torch_xla.runtime` and replaces the collectives
of `torch.distributed` (backend "xla") and of `xm` by ones that go through host memory. What has no
replacement raises: it would otherwise be ignored.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hotfire.runtime.xla.world import World

# Kept alive: torch drops a library's kernels with the object.
_refusals: list[Any] = []


def needed(world: World) -> bool:
    """Several processes, each with torch_xla's CPU client."""
    return world.size > 1 and os.environ.get("PJRT_DEVICE", "CPU") == "CPU"


def install() -> str | None:
    """Replace the collectives when this process is one of several CPU ones; idempotent."""
    world = World.from_environment(os.environ)
    if not needed(world) or _refusals:
        return None
    _describe_world(world)
    _register_backend()
    _replace_xm()
    _refuse_functional()
    return f"data parallel over {world.size} CPU processes"


def _describe_world(world: World) -> None:
    """What torch_xla.runtime would have learned from a client that knows its peers."""
    import torch_xla.runtime

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


def _value(value: int) -> int:
    return value


def _register_backend() -> None:
    from hotfire.runtime.xla.c10d_backend import HostStagedProcessGroup
    from hotfire.runtime.xla.host_group import dist

    dist.Backend.register_backend("xla", HostStagedProcessGroup, devices="xla")
    # register_rendezvous_handler refuses to replace torch_xla's.
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    rendezvous._rendezvous_handlers["xla"] = _rendezvous


def _rendezvous(url: str, timeout: datetime.timedelta, **kwargs: Any) -> Iterator[Any]:
    """``init_method="xla://"``: torchrun's own world, where torch_xla asks its client."""
    from hotfire.runtime.xla.host_group import dist

    yield from dist.rendezvous("env://", timeout=timeout)


def _replace_xm() -> None:
    """The `xm` collectives, with torch_xla's signatures."""
    import torch
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    from hotfire.runtime.xla import staging
    from hotfire.runtime.xla.host_group import dist, world_group

    operations = {
        xm.REDUCE_SUM: dist.ReduceOp.SUM,
        xm.REDUCE_MUL: dist.ReduceOp.PRODUCT,
        xm.REDUCE_AND: dist.ReduceOp.BAND,
        xm.REDUCE_OR: dist.ReduceOp.BOR,
        xm.REDUCE_MIN: dist.ReduceOp.MIN,
        xm.REDUCE_MAX: dist.ReduceOp.MAX,
    }

    @functools.wraps(xm.all_reduce)
    def all_reduce(
        reduce_type: str,
        inputs: torch.Tensor | list[torch.Tensor],
        scale: float = 1.0,
        groups: list[list[int]] | None = None,
        pin_layout: bool = True,
    ) -> Any:
        _only_world("xm.all_reduce", groups)
        if not isinstance(inputs, torch.Tensor):
            staging.all_reduce_(world_group(), list(inputs), operations[reduce_type], scale)
            return inputs
        [result] = staging.reduced(world_group(), [inputs], operations[reduce_type], scale)
        return result.to(inputs.device)

    @functools.wraps(xm.all_gather)
    def all_gather(
        value: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        groups: list[list[int]] | None = None,
        output: Any = None,
        pin_layout: bool = True,
        channel_id: Any = None,
        use_global_device_ids: Any = None,
    ) -> Any:
        _only_world("xm.all_gather", groups)
        values = [value] if isinstance(value, torch.Tensor) else value
        gathered = [torch.cat(staging.all_gather(world_group(), v), dim) for v in values]
        if output is not None:
            targets = [output] if isinstance(output, torch.Tensor) else output
            staging.write(targets, gathered)
            return output
        results = [g.to(v.device) for g, v in zip(gathered, values, strict=True)]
        return results[0] if isinstance(value, torch.Tensor) else results

    @functools.wraps(xm.reduce_scatter)
    def reduce_scatter(
        reduce_type: str,
        input: torch.Tensor | list[torch.Tensor],
        scale: float,
        scatter_dim: int,
        shard_count: int,
        groups: list[list[int]] | None = None,
        output: Any = None,
        pin_layout: bool = True,
        channel_id: Any = None,
        use_global_device_ids: Any = None,
    ) -> Any:
        _only_world("xm.reduce_scatter", groups)
        if shard_count != xr.world_size():
            _refuse("xm.reduce_scatter with shard_count other than the world size")
        inputs = [input] if isinstance(input, torch.Tensor) else input
        whole = staging.reduced(world_group(), inputs, operations[reduce_type], scale)
        mine = [w.chunk(shard_count, scatter_dim)[xr.global_ordinal()] for w in whole]
        if output is not None:
            staging.write([output] if isinstance(output, torch.Tensor) else output, mine)
            return output
        results = [m.to(i.device) for m, i in zip(mine, inputs, strict=True)]
        return results[0] if isinstance(input, torch.Tensor) else results

    @functools.wraps(xm.collective_broadcast)
    def collective_broadcast(
        tensors: list[torch.Tensor],
        root_ordinal: int = 0,
        groups: list[list[int]] | None = None,
        pin_layout: bool = True,
    ) -> None:
        _only_world("xm.collective_broadcast", groups)
        staging.broadcast_(world_group(), tensors, root_ordinal)

    @functools.wraps(xm.xla_rendezvous)
    def xla_rendezvous(
        payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
    ) -> list[bytes]:
        _only_world("xm.rendezvous", [list(ordinals)] if ordinals else None)
        if not isinstance(payload, bytes):
            raise TypeError(f"`payload` must be bytes, not {type(payload)}")
        staging.barrier(world_group())
        return world_group().gather_bytes(payload)

    for replacement in (all_reduce, all_gather, reduce_scatter, collective_broadcast):
        setattr(xm, replacement.__name__, replacement)
    xm.xla_rendezvous = xla_rendezvous
    for name in ("all_to_all", "collective_permute", "send", "recv"):
        setattr(xm, name, functools.partial(_refuse, f"xm.{name}"))


def _only_world(name: str, groups: Sequence[Sequence[int]] | None) -> None:
    """Replica groups other than the whole world have no emulation here.

    Raises:
        NotImplementedError: `groups` divides the world.
    """
    import torch_xla.runtime as xr

    if groups and [sorted(group) for group in groups] != [list(range(xr.world_size()))]:
        _refuse(f"{name} within groups {[list(group) for group in groups]}")


def _refuse(what: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"{what} is not emulated on CPU processes; it needs the device it was written for"
    )


def _refuse_functional() -> None:
    """torch's functional collectives have XLA kernels that do nothing between CPU processes."""
    import torch.library

    make_library: Any = torch.library.Library
    library = make_library("_c10d_functional", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in (
            "all_reduce",
            "all_gather_into_tensor",
            "reduce_scatter_tensor",
            "all_to_all_single",
            "broadcast",
        ):
            refusal = functools.partial(_refuse, f"the functional collective {name}")
            library.impl(name, refusal, "XLA", allow_override=True)
    _refusals.append(library)
