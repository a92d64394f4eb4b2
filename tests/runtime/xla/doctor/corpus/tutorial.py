"""The style of the Trainium tutorials: plain optimizer.step, and a limit that nothing looks at."""
# workers: 2
# argv: --max_train_steps 4 --epochs 1

import argparse
import os

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max_train_steps", type=int, default=100)  # doctor: ignored-limit
    parser.add_argument("--model_dir", default=os.environ.get("SM_MODEL_DIR", "."))
    args, _ = parser.parse_known_args()
    device = "xla"
    dist.init_process_group(device)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(320, 16), torch.randint(0, 2, (320,)))
    rank, size = xm.get_ordinal(), xm.xrt_world_size()
    sampler = DistributedSampler(data, num_replicas=size, rank=rank) if size > 1 else None
    loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
    loader = MpDeviceLoader(loader, device)
    model = torch.nn.Linear(16, 2).to(device)
    optimizer = torch.optim.AdamW(  # doctor: late-optimizer-state
        [{"params": [parameter]} for parameter in model.parameters()], lr=0.001
    )
    for _ in range(args.epochs):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()  # doctor: replica-drift
    xm.save(model.state_dict(), f"{args.model_dir}/model.pt")
