"""Train a tiny text classifier the way Trainium training scripts of 2022-2024 are written.

Nothing here knows hotfire. The script takes SageMaker's variables for its arguments, initialises
torch.distributed with torch_xla's backend, shards its data by rank, and uses names that torch_xla
2.9 no longer has (`xm.xrt_world_size`, `xm.get_ordinal`). Its text is made up on the spot, unless
the channel holds a `train.csv` with the columns text and label.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend  # noqa: F401 (registers the backend "xla")
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GOOD = ("bright", "clever", "moving", "superb", "tender", "warm")
BAD = ("bland", "clumsy", "cold", "dull", "stale", "tedious")
FILLERS = ("the", "film", "acting", "plot", "music", "was", "and", "a", "very", "really")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default=os.environ.get("SM_CHANNEL_TRAIN"))
    parser.add_argument("--model_dir", default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=16, help="over all workers")
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--max_length", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def made_up_rows(count, seed):
    """`count` sentences whose label is the kind of their only judging word."""
    generator = torch.Generator().manual_seed(seed)

    def pick(words):
        return words[int(torch.randint(len(words), (1,), generator=generator))]

    for i in range(count):
        words = [pick(FILLERS) for _ in range(8)] + [pick(GOOD if i % 2 else BAD)]
        order = torch.randperm(len(words), generator=generator).tolist()
        yield " ".join(words[j] for j in order), i % 2


def read_rows(directory):
    path = Path(directory or ".") / "train.csv"
    if not directory or not path.is_file():
        return list(made_up_rows(256, seed=1))
    with path.open(newline="") as file:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(file)]


def encode(rows, args):
    """Every sentence at the same length: another shape would be another compilation."""
    ids = torch.zeros(len(rows), args.max_length, dtype=torch.int64)
    for i, (text, _) in enumerate(rows):
        for j, word in enumerate(text.split()[: args.max_length]):
            ids[i, j] = 1 + sum(map(ord, word)) % (args.vocabulary - 1)
    return TensorDataset(ids, torch.tensor([label for _, label in rows]))


class Classifier(torch.nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.words = torch.nn.Embedding(vocabulary, width, padding_idx=0)
        self.hidden = torch.nn.Linear(width, width)
        self.output = torch.nn.Linear(width, 2)

    def forward(self, ids):
        return self.output(torch.relu(self.hidden(self.words(ids).mean(dim=1))))


def main():
    args = parse_args()
    dist.init_process_group("xla")
    world_size, rank = xm.xrt_world_size(), xm.get_ordinal()
    device = xm.xla_device()
    torch.manual_seed(args.seed)  # the same initial weights everywhere
    model = Classifier(args.vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    data = encode(read_rows(args.train), args)
    sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=args.seed)
    loader = DataLoader(data, args.batch_size // world_size, sampler=sampler, drop_last=True)
    loader = pl.MpDeviceLoader(loader, device)

    history = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses, right = [], []
        for ids, labels in loader:
            optimizer.zero_grad()
            logits = model(ids)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            loss.backward()
            xm.optimizer_step(optimizer)
            losses.append(loss.detach())
            right.append((logits.argmax(dim=1) == labels).float().mean())
        # Read once an epoch: every earlier look would run the graph up to there.
        numbers = torch.stack([torch.stack(losses).mean(), torch.stack(right).mean()]).cpu().numpy()
        numbers = xm.mesh_reduce("epoch", numbers, lambda ranks: sum(ranks) / len(ranks))
        history.append({"epoch": epoch, "loss": float(numbers[0]), "accuracy": float(numbers[1])})
        xm.master_print(" ".join(f"{k} = {v:.6g}" for k, v in history[-1].items()))

    model_dir = Path(args.model_dir)
    if xm.is_master_ordinal():
        model_dir.mkdir(parents=True, exist_ok=True)
    xm.rendezvous("model directory")
    xm.save(model.state_dict(), model_dir / "checkpoint.pt")
    if xm.is_master_ordinal(local=False):
        text = json.dumps({"world_size": world_size, "history": history})
        (model_dir / "history.json").write_text(text)
    xm.rendezvous("saved")


if __name__ == "__main__":
    main()
