"""Less data than one batch, and the rest is dropped."""  # doctor: no-xla-steps
# steps: 5

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, TensorDataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader

torch.manual_seed(0)
device = torch_xla.device()
data = TensorDataset(torch.randn(24, 16), torch.randint(0, 2, (24,)))
loader = DataLoader(data, batch_size=64, drop_last=True)  # doctor: oversized-batch
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in MpDeviceLoader(loader, device):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    xm.optimizer_step(optimizer)
