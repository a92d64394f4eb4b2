"""Run with the collectives switched off: gloo works, XLA training must not."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm


def attempt(what: str, call) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 (printed, and read by the test)
        print(f"{what}: {type(error).__name__}: {error}", flush=True)
    else:
        print(f"{what}: done", flush=True)


def one_step(device: object) -> None:
    model = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2, device=device)).sum().backward()
    optimizer.step()


def main() -> None:
    device = torch_xla.device()  # before torch's autograd counts its devices
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"gloo sum: {total.item():.0f}", flush=True)
        attempt("cpu step", lambda: one_step("cpu"))
        attempt("xla step", lambda: one_step(device))
        attempt("xla reduction", lambda: xm.all_reduce("sum", torch.ones(1, device="xla")))
        attempt("xla rendezvous", lambda: xm.rendezvous("here"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
