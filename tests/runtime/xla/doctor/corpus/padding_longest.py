"""A tokenizer pads each batch to its own longest text."""
# steps: 8

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from transformers import PreTrainedTokenizerFast

torch.manual_seed(0)
words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "good", "bad", "film", "very"])}
inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
texts = ["very " * (n * 7 % 23) + "good film" for n in range(160)]


def collate(batch):
    return tokenizer(
        batch,
        padding="longest",  # doctor: recompilation
        return_tensors="pt",
    )["input_ids"]


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids).mean(dim=1))


device = torch_xla.device()
model = Classifier().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(texts, batch_size=4, collate_fn=collate)
for input_ids in MpDeviceLoader(loader, device):
    optimizer.zero_grad()
    model(input_ids).square().mean().backward()
    xm.optimizer_step(optimizer)
