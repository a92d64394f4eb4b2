"""hotfire's own loop over two workers: warm-up, clipping, logging, evaluation."""
# workers: 2

import torch

from hotfire.runtime.xla.device import open_device
from hotfire.runtime.xla.loop import Loop, LoopConfig


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8000, 128)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(128, 2)

    def forward(self, input_ids):
        return self.head(self.dropout(self.embedding(input_ids)).mean(dim=1))


class TinyLoop(Loop):
    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.forward(batch["input_ids"]), batch["labels"])

    def eval_sums(self, batch, weights):
        logits = self.forward(batch["input_ids"])
        right = (logits.argmax(dim=-1) == batch["labels"]).float()
        return {"accuracy": (right * weights).sum()}


rows = {"input_ids": torch.randint(0, 50, (203, 12)), "labels": torch.randint(0, 2, (203,))}
with open_device("xla") as env:
    env.seed(0)
    config = LoopConfig(max_train_steps=30, per_device_train_batch_size=4, warmup_ratio=0.2)
    loop = TinyLoop(env, Tiny(), rows, config)
    print(loop.train())
    print(loop.evaluate(rows))
    digest = [float(p.detach().cpu().double().abs().sum()) for p in loop.model.parameters()]
    print("DIGEST", env.rank, digest, flush=True)
