"""NumPy's float64 reaches the device."""

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).double().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
random = np.random.default_rng(0)
for _ in range(50):
    inputs = torch.from_numpy(random.normal(size=(8, 16))).to(device)
    labels = torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    output = model(inputs)  # doctor: float64
    torch.nn.functional.cross_entropy(output, labels).backward()
    xm.optimizer_step(optimizer, barrier=True)
