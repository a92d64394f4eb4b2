"""The Hugging Face Trainer on XLA, as users write it; rank 0 reports to argv[1]."""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    HfArgumentParser,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    set_seed,
)

GLOBAL_BATCH, STEPS = 8, 4


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return GLOBAL_BATCH * STEPS

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(i)
        ids = torch.randint(5, 50, (12,), generator=generator)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": (ids[0] % 2).long(),
        }


def main() -> None:
    set_seed(1)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    auto = AutoModelForSequenceClassification
    model = auto.from_config(config)
    chosen = auto.from_config(copy.deepcopy(config), attn_implementation="sdpa")
    parser = HfArgumentParser(Seq2SeqTrainingArguments)
    [parsed] = parser.parse_args_into_dataclasses(["--output_dir", "unused"])
    [named] = parser.parse_args_into_dataclasses(
        ["--output_dir", "unused", "--optim", "adamw_torch_fused"]
    )
    size = int(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=directory,
                per_device_train_batch_size=GLOBAL_BATCH // size,
                max_steps=STEPS,
                learning_rate=1e-2,
                logging_steps=1,  # what is not logged is not averaged over the ranks
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Rows(),
        )
        loss = trainer.train().training_loss
        if trainer.is_world_process_zero():
            report = {
                "loss": loss,
                "attention": model.config._attn_implementation,
                "chosen_attention": chosen.config._attn_implementation,
                "optimizer": str(trainer.args.optim.value),
                "parsed_optimizer": parsed.optim.value,
                "chosen_optimizer": named.optim.value,
                "world_size": trainer.args.world_size,
                "device": trainer.args.device.type,
            }
            Path(sys.argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
