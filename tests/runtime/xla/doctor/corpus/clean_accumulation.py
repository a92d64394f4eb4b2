"""Gradient accumulation: three programs, all of them within the first two steps."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for micro in range(200):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    (torch.nn.functional.cross_entropy(model(inputs), labels) / 4).backward()
    if micro % 4 == 3:
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
    torch_xla.sync()
