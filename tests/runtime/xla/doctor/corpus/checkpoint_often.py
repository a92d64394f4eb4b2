"""A checkpoint at every third step."""

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
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    xm.optimizer_step(optimizer, barrier=True)
    if step % 3 == 0:
        xm.save(model.state_dict(), "checkpoint.pt")  # doctor: frequent-checkpoint
