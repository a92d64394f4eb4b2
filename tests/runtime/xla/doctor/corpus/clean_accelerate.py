"""accelerate's loop, as its documentation has it, on full batches."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator()
data = TensorDataset(torch.randn(160, 16), torch.randint(0, 2, (160,)))
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader, evaluation = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)
)
for _ in range(2):
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()
    model.eval()
    right = []
    with torch.no_grad():
        for inputs, labels in evaluation:
            right.append((model(inputs).argmax(-1) == labels).sum())
    accelerator.print("accuracy", torch.stack(right).sum().item() / len(data))
accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
