"""A loop of accelerate's own style; rank 0 reports to argv[1]. argv[2] is the number of workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from small_task import SmallNet, rows

GLOBAL_BATCH, STEPS = 8, 4


def main() -> None:
    size = int(sys.argv[2])
    accelerator = Accelerator()
    torch.manual_seed(3)
    model = SmallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = rows(GLOBAL_BATCH * STEPS)
    listed = [{n: t[i] for n, t in data.items()} for i in range(GLOBAL_BATCH * STEPS)]
    loader = torch.utils.data.DataLoader(listed, batch_size=GLOBAL_BATCH // size, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
    rank = torch.tensor([accelerator.process_index], device=accelerator.device)
    gathered = accelerator.gather(rank).tolist()
    accelerator.wait_for_everyone()
    weights = [p.detach().cpu().flatten().tolist() for p in model.parameters()]
    if accelerator.is_main_process:
        report = {
            "losses": losses,
            "weights": sum(map(sum, weights)),
            "gathered": gathered,
            "device": accelerator.device.type,
        }
        Path(sys.argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
