"""Every worker tokenises all texts."""
# workers: 2

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

dist.init_process_group("xla")
torch.manual_seed(0)
words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "good", "bad", "film"])}
inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
texts = ["good film", "bad film"] * 160
encoded = tokenizer(texts, padding="max_length", max_length=8)  # doctor: tokenising
rows = torch.tensor(encoded["input_ids"])[xr.global_ordinal() :: xr.world_size()]
device = torch_xla.device()
model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Flatten(), torch.nn.Linear(32, 2))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for start in range(0, 160, 8):
    optimizer.zero_grad()
    model(rows[start : start + 8].to(device)).square().mean().backward()
    xm.optimizer_step(optimizer, barrier=True)
