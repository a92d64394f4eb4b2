"""Does the XLA device compute what it should? A matmul, a gradient and an all-reduce against known results.

``python -m hotfire.runtime.xla.gpu_selftest`` tests the device of PJRT_DEVICE: exit code 0, or 1 and what differs.
"""

from __future__ import annotations

import os
import sys

import torch

SIZE = 512
_RELATIVE = 2e-2
"""Wide enough for TF32, far too narrow for a wrong kernel."""


def main() -> int:
    try:
        print(run())
    except Mismatch as error:
        print(f"self-test failed: {error}", file=sys.stderr)
        return 1
    return 0


class Mismatch(Exception):
    """The device's answer is not the known one."""


def run() -> str:
    """What was tested and on what; raises :class:`Mismatch`."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    device = torch_xla.device()
    kind = str(xr.device_type())
    if kind != os.environ.get("PJRT_DEVICE", kind):
        raise Mismatch(f"the device is {kind}, not {os.environ['PJRT_DEVICE']}")
    generator = torch.Generator().manual_seed(7)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    compare("matmul", (left.to(device) @ right.to(device)).cpu(), left @ right)

    weights = left.clone().requires_grad_()
    torch.autograd.backward(torch.tanh(weights @ right).sum())
    there = left.to(device).requires_grad_()
    torch.autograd.backward(torch.tanh(there @ right.to(device)).sum())
    if weights.grad is None or there.grad is None:
        raise Mismatch("there is no gradient")
    compare("gradient", there.grad.cpu(), weights.grad)

    # The sum over the replicas of this process; across processes the collective is the same program.
    value = torch.full((1024,), 3.0).to(device)
    xm.all_reduce(xm.REDUCE_SUM, [value])
    compare("all-reduce", value.cpu(), torch.full((1024,), 3.0 * xr.world_size()))
    return f"self-test passed on {kind}: matmul, gradient, all-reduce over {xr.world_size()}"


def compare(what: str, found: torch.Tensor, known: torch.Tensor) -> None:
    """Raises :class:`Mismatch` unless ``found`` is ``known`` up to rounding."""
    if found.shape != known.shape or not bool(torch.isfinite(found).all()):
        raise Mismatch(f"{what}: not finite, or of another shape ({tuple(found.shape)})")
    error = float((found - known).norm() / known.norm())
    if error > _RELATIVE:
        raise Mismatch(f"{what}: relative error {error:.3g}, allowed {_RELATIVE:g}")


if __name__ == "__main__":
    sys.exit(main())
