"""Warm-up and decay of the learning rate, clipping, momentum made early, a save at the end."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm

torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Linear(16, 2).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for parameter in model.parameters():
    optimizer.state[parameter] = {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 8, 1) * (60 - n))
losses = []
for _ in range(50):
    inputs, labels = torch.randn(8, 16).to(device), torch.randint(0, 2, (8,)).to(device)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    xm.optimizer_step(optimizer)
    schedule.step()
    torch_xla.sync()
    losses.append(loss.detach())
print("loss", torch.stack(losses).mean().item())
xm.save(model.state_dict(), "model.pt")
