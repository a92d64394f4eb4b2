"""Texts are tokenised one at a time, before training."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

torch.manual_seed(0)
words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "good", "bad", "film"])}
inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
texts = ["good film", "bad film"] * 160
rows = []
for text in texts:
    ids = tokenizer(text, padding="max_length", max_length=8)["input_ids"]  # doctor: tokenising
    rows.append(torch.tensor(ids))
rows = torch.stack(rows)
device = torch_xla.device()
model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Flatten(), torch.nn.Linear(32, 2))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for start in range(0, 320, 8):
    optimizer.zero_grad()
    model(rows[start : start + 8].to(device)).square().mean().backward()
    xm.optimizer_step(optimizer, barrier=True)
