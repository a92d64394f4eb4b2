"""Rows are chosen by a mask: the number of rows is known to the data alone."""
# steps: 12

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    output = model(inputs)
    hard = output[output[:, 0] > 0]  # doctor: host-fallback
    loss = torch.nn.functional.cross_entropy(output, labels) + hard.sum() * 0.001
    loss.backward()
    xm.optimizer_step(optimizer, barrier=True)
