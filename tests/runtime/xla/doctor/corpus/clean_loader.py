"""A clean loop: fixed batches, a device loader, values read every ten steps after the marker."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, TensorDataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader

torch.manual_seed(0)
device = torch_xla.device()
data = TensorDataset(torch.randn(96, 16), torch.randint(0, 2, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for _ in range(3):
    for inputs, labels in MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        xm.optimizer_step(optimizer)
        step += 1
        if step % 10 == 0:
            xm.add_step_closure(lambda value: print("loss", value.item()), args=(loss,))
model.eval()
right = torch.zeros((), device=device)
with torch.no_grad():
    for inputs, labels in MpDeviceLoader(loader, device):
        right += (model(inputs).argmax(-1) == labels).sum()
print("accuracy", right.item() / 96)
