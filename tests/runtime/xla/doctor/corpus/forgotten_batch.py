"""The batch stays on the CPU: the step fails."""
# fails: yes

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    inputs, labels = torch.randn(8, 16), torch.randint(0, 2, (8,))
    optimizer.zero_grad()
    output = model(inputs)  # doctor: mixed-devices
    torch.nn.functional.cross_entropy(output, labels).backward()
    xm.optimizer_step(optimizer, barrier=True)
