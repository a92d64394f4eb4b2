"""max_train_steps is an argument, and nothing looks at it."""
# argv: --max_train_steps 5

import argparse

import torch
import torch_xla
import torch_xla.core.xla_model as xm

parser = argparse.ArgumentParser()
parser.add_argument("--max_train_steps", type=int, default=0)  # doctor: ignored-limit
args = parser.parse_args()
torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    xm.optimizer_step(optimizer, barrier=True)
