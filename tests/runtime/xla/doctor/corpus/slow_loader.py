"""Rows are decoded in the main process, more slowly than the step trains on them."""

import time

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, Dataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader


class Decoded(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((16,), index / 400), index % 2


torch.manual_seed(0)
device = torch_xla.device()
loader = DataLoader(Decoded(), batch_size=8)  # doctor: loader-stall
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for inputs, labels in MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        xm.optimizer_step(optimizer)
