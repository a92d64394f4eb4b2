"""A factor computed in Python is built into the graph as a constant."""
# steps: 8

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    scores = model(inputs)  # doctor: recompilation
    kept = scores[:, :1].expand(8, 2 + step)
    loss = torch.nn.functional.cross_entropy(scores, labels) + kept.mean()
    loss.backward()
    xm.optimizer_step(optimizer, barrier=True)
