"""A row cannot be read: MpDeviceLoader's thread ends, and the loop as if the data had ended."""
# steps: 8

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, Dataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader


class Rows(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        if index == 44:
            raise ValueError("row 44 has no label")  # doctor: loader-failed
        return torch.full((16,), index / 80), index % 2


torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in MpDeviceLoader(DataLoader(Rows(), batch_size=8), device):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    xm.optimizer_step(optimizer)
