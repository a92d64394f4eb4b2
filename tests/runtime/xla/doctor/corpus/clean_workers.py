"""Two workers: the same start, averaged gradients, divided data."""
# workers: 2

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader

dist.init_process_group("xla")
torch.manual_seed(0)
device = torch_xla.device()
data = TensorDataset(torch.randn(192, 16), torch.randint(0, 2, (192,)))
sampler = DistributedSampler(data, num_replicas=xr.world_size(), rank=xr.global_ordinal())
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for inputs, labels in MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        xm.optimizer_step(optimizer)
