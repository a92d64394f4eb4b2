"""Rows of any length, padded to one length and to full batches by StaticBatches."""
# steps: 12

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader
from torch_xla.distributed.parallel_loader import MpDeviceLoader

from hotfire.runtime.xla.data import StaticBatches


def collate(rows):
    return {"ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


torch.manual_seed(0)
device = torch_xla.device()
data = [torch.randint(1, 50, (3 + n % 7,)) for n in range(60)]
loader = StaticBatches(DataLoader(data, batch_size=8, collate_fn=collate), 8, lengths=[12])
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for batch in MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        losses = model(batch["ids"]).square().mean((1, 2))
        ((losses * batch["weights"]).sum() / batch["weights"].sum()).backward()
        xm.optimizer_step(optimizer)
