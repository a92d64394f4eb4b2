"""The job of `compilers.py`: a MiniLM-sized classifier on random rows, through the library's loop."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

import torch

from hotfire.entrypoints.programs.arguments import boolean
from hotfire.runtime.xla.device import open_device
from hotfire.runtime.xla.loop import Loop, LoopConfig

VOCABULARY, LENGTH = 30_522, 128


def make_model(dropout: float) -> Any:
    """22.7 million parameters, as microsoft/MiniLM-L6-H384 has."""
    hf: Any = import_module("transformers")
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    auto = hf.AutoModelForSequenceClassification
    return auto.from_config(config, attn_implementation="eager")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--bf16", type=boolean, default=False)
    args = parser.parse_args()
    count = 16 * args.batch_size
    rows = {
        "input_ids": torch.randint(5, VOCABULARY, (count, LENGTH)),
        "attention_mask": torch.ones(count, LENGTH, dtype=torch.int64),
        "labels": torch.randint(0, 2, (count,)),
    }
    config = LoopConfig(
        max_train_steps=10_000,
        per_device_train_batch_size=args.batch_size,
        max_grad_norm=0.0,
        bf16=args.bf16,
    )
    with open_device() as env:
        Loop(env, make_model(args.dropout), rows, config).train()


if __name__ == "__main__":
    main()
