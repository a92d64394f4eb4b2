"""The loss is read before the step's marker, at every step."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for _ in range(50):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    total += loss.item()  # doctor: explicit-evaluation
    xm.optimizer_step(optimizer, barrier=True)
print("mean loss", total / 50)
