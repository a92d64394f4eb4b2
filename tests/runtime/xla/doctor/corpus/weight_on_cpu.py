"""The loss's class weights stay on the host and travel at every step."""
# steps: 5

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
criterion = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    criterion(model(inputs), labels).backward()  # doctor: mixed-devices
    xm.optimizer_step(optimizer, barrier=True)
