"""Sample weights from NumPy make the loss float64, behind a float32 model."""
# steps: 5

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.from_numpy(np.linspace(0.0, 1.0, 8)).to(device)
for _ in range(20):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    losses = torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    (losses * weights).mean().backward()  # doctor: float64
    xm.optimizer_step(optimizer, barrier=True)
