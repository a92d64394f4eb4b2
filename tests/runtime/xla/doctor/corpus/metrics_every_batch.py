"""The evaluation reads its counts at every batch."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch_xla.device()
data = TensorDataset(torch.randn(64, 16), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=8)
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, labels in loader:
            output = model(inputs.to(device))
            right += (output.argmax(-1).cpu() == labels).sum().item()  # doctor: explicit-evaluation
    return right / len(data)


for _ in range(3):
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
    print("accuracy", evaluate())
