"""The same training for any number of processes; rank 0 reports to the file in argv[1].

First a script as users have them (old names of torch_xla included), then the loop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from small_task import SmallNet, rows

from hotfire.runtime.xla.device import open_device
from hotfire.runtime.xla.loop import Loop, LoopConfig

GLOBAL_BATCH, STEPS = 8, 6


def tolist(model: torch.nn.Module, what: str) -> dict[str, list[float]]:
    values = ((n, p.grad if what == "grad" else p) for n, p in model.named_parameters())
    return {name: value.detach().cpu().flatten().tolist() for name, value in values}


def user_script() -> dict:
    """xm only, with the names of 2022; no init_process_group, as accelerate does it."""
    rank, size = xm.get_ordinal(), xm.xrt_world_size()
    device = xm.xla_device()
    torch.manual_seed(100 + rank)
    model = SmallNet().to(device)
    xm.broadcast_master_param(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = rows(GLOBAL_BATCH * STEPS)
    share = GLOBAL_BATCH // size
    mine = [
        {name: tensor[i] for name, tensor in data.items()}
        for step in range(STEPS)
        for i in range(step * GLOBAL_BATCH + rank * share, step * GLOBAL_BATCH + (rank + 1) * share)
    ]
    loader = torch.utils.data.DataLoader(mine, batch_size=share, drop_last=True)
    losses, gradients = [], {}
    for batch in pl.MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(xm.mesh_reduce("loss", loss.item(), lambda values: sum(values) / size))
        gradients = gradients or tolist(model, "grad")
    return {"losses": losses, "gradients": gradients, "weights": tolist(model, "weight")}


def ddp_script() -> dict:
    """torch.distributed's backend and DistributedDataParallel."""
    size, rank = xm.xrt_world_size(), xm.get_ordinal()
    torch.manual_seed(0)
    model = SmallNet().to(xm.xla_device())
    if size > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    data, share = rows(GLOBAL_BATCH), GLOBAL_BATCH // size
    mine = slice(rank * share, (rank + 1) * share)
    model(**{n: t[mine].to(xm.xla_device()) for n, t in data.items()}).loss.backward()
    torch_xla.sync()
    named = tolist(model, "grad")
    return {"gradients": {name.removeprefix("module."): g for name, g in named.items()}}


def full_graph_script() -> dict:
    """torch_xla.compile(full_graph=True) forbids evaluation inside, except our collectives."""
    size, rank = xm.xrt_world_size(), xm.get_ordinal()
    torch.manual_seed(0)
    model = SmallNet().to(xm.xla_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, share = rows(GLOBAL_BATCH), GLOBAL_BATCH // size
    mine = slice(rank * share, (rank + 1) * share)
    batch = {n: t[mine].to(xm.xla_device()) for n, t in data.items()}

    def step(batch: dict) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        xm.optimizer_step(optimizer)
        return loss

    compiled = torch_xla.compile(step, full_graph=True, name="step")
    for _ in range(3):
        compiled(batch)
    return {"weights": tolist(model, "weight")}


class RecordingLoop(Loop):
    """Keeps the first reduced gradients, the initial weights of this rank, and each loss."""

    def train(self):
        self.losses, self.gradients = [], {}
        self.initial = {n: t.cpu() for n, t in self.model.state_dict().items()}
        return super().train()

    def update(self) -> None:
        if not self.gradients:
            self.env.reduce_gradients(self.optimizer)
            self.gradients = tolist(self.model, "grad")
        super().update()

    def report(self, step: int, loss: float) -> None:
        self.losses.append(loss)


def loop_script(compiler: str) -> dict:
    """The loop over torch_xla, or over plain torch behind the same seam."""
    env = open_device(compiler)
    torch.manual_seed(7 + env.rank)
    config = LoopConfig(
        learning_rate=1e-2,
        weight_decay=0.01,
        max_train_steps=STEPS,
        warmup_steps=2,
        per_device_train_batch_size=GLOBAL_BATCH // env.world_size,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.3,
        logging_steps=1,
    )
    loop = RecordingLoop(env, SmallNet(), rows(50), config)
    result = loop.train()
    own = b"".join(t.numpy().tobytes() for t in loop.initial.values())
    test = rows(37, seed=1)
    evaluation = loop.evaluate(test)
    loop.model.eval()
    with torch.no_grad():
        logits = loop.model(x=test["x"].to(env.device)).logits.cpu()
    right = (logits.argmax(dim=1) == test["labels"]).float()
    return {
        "losses": loop.losses,
        "train_loss": result.train_loss,
        "gradients": loop.gradients,
        "weights": tolist(loop.model, "weight"),
        "initial_weights_equal": len(set(env.gather_bytes(own))) == 1,
        "evaluation": evaluation,
        "accuracy_by_hand": right.mean().item(),
    }


def main() -> None:
    report = {"user": user_script()}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("xla", init_method="xla://")
    report |= {"ddp": ddp_script(), "full_graph": full_graph_script(), "loop": loop_script("xla")}
    report["plain_loop"] = loop_script("none")
    report["world_size"] = xm.xrt_world_size()
    if xm.get_ordinal() == 0:
        Path(sys.argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
