"""One process, several CPU devices, one program over all of them."""

from __future__ import annotations

import numpy
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

xr.use_spmd()
count = xr.global_runtime_device_count()
mesh = xs.Mesh(numpy.arange(count), (count,), ("data",))
rows = torch.arange(8.0).view(8, 1).to(torch_xla.device())
xs.mark_sharding(rows, mesh, ("data", None))
print("devices", count, "sum", (rows * 2).sum().item())
