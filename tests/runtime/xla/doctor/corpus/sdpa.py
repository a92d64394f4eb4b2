"""The model is made with sdpa, whose mask is looked at by the host."""
# steps: 8

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from transformers import AutoModelForSequenceClassification, BertConfig

torch.manual_seed(0)
device = torch_xla.device()
config = BertConfig(
    vocab_size=6,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
config._attn_implementation = "sdpa"
model = AutoModelForSequenceClassification.from_config(config)  # doctor: sdpa-evaluation
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    batch = {
        "input_ids": torch.randint(0, 6, (4, 16)).to(device),
        "attention_mask": torch.ones(4, 16, dtype=torch.long).to(device),
        "labels": torch.randint(0, 2, (4,)).to(device),
    }
    optimizer.zero_grad()
    model(**batch).loss.backward()
    xm.optimizer_step(optimizer, barrier=True)
