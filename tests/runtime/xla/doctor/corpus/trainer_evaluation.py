"""The Trainer joins predictions on the device: longer with every batch, and each length a program."""
# steps: 8

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
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
model = BertForSequenceClassification(config)
rows = [
    {
        "input_ids": torch.randint(0, 6, (16,)),
        "attention_mask": torch.ones(16, dtype=torch.long),
        "labels": n % 2,
    }
    for n in range(160)
]
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    num_train_epochs=2,
    optim="sgd",
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:32])
trainer.train()  # doctor: recompilation
