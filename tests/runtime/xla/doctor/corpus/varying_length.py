"""Batches are padded to their own longest row."""
# steps: 8

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader
from torch_xla.distributed.parallel_loader import MpDeviceLoader

torch.manual_seed(0)
rows = [torch.randint(1, 50, (int(length),)) for length in torch.randint(4, 30, (96,))]


def collate(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)  # doctor: recompilation


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids).mean(dim=1))


device = torch_xla.device()
model = Classifier().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(rows, batch_size=8, collate_fn=collate)
for _ in range(2):
    for input_ids in MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        model(input_ids).square().mean().backward()
        xm.optimizer_step(optimizer)
