"""Fine-tune a Hugging Face model for text classification: what a job runs without a script.

::

    python -m hotfire.entrypoints.programs.text_classification --model_name_or_path tiny-bert ...

Arguments are those of the Trainium fine-tuning tutorials. Data comes from the channels ``train``
and ``test`` (SM_CHANNEL_TRAIN, SM_CHANNEL_TEST), or from one channel ``train`` with a DatasetDict.
The model goes to SM_MODEL_DIR; metrics are printed one per line and written to
``metrics.json`` in SM_OUTPUT_DATA_DIR. Runs as one process or as any number below torchrun.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotfire.entrypoints.programs import tables
from hotfire.entrypoints.programs.arguments import Parser, amount, boolean, natural, positive, whole

if TYPE_CHECKING:
    from hotfire.runtime.xla.data import Rows
    from hotfire.runtime.xla.device import DeviceEnv
    from hotfire.runtime.xla.loop import LoopConfig, TrainResult

NO_CHECKPOINTS = "the job has no CheckpointConfig, so there is no checkpoint directory"
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def parser(environment: Mapping[str, str]) -> Parser:
    """All arguments; the defaults of paths come from `environment`."""
    p = Parser(prog="text_classification", description=__doc__, allow_abbrev=False,
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    base = environment.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    add = p.add_argument
    add("--model_name_or_path", default="tiny-bert", help="name on the Hub, directory, or preset")
    add("--from_scratch", type=boolean, nargs="?", const=True, default=False)
    for size in SIZES:
        add(f"--{size}", type=positive, help="of a model made from scratch")
    add("--vocab_size", type=positive, default=8000, help="of a vocabulary learnt from the data")
    add("--max_length", type=positive, default=128)
    add("--per_device_train_batch_size", type=positive, default=8)
    add("--per_device_eval_batch_size", type=positive, default=8)
    add("--gradient_accumulation_steps", type=positive, default=1)
    add("--learning_rate", type=amount, default=5e-5)
    add("--weight_decay", type=amount, default=0.0)
    add("--num_train_epochs", type=amount, default=3.0)
    add("--max_train_steps", "--max_steps", type=whole, default=0, help="0 or -1: by the epochs")
    add("--warmup_steps", type=natural, default=0)
    add("--warmup_ratio", type=amount, default=0.0)
    add("--max_grad_norm", type=amount, default=1.0)
    add("--bf16", type=boolean, nargs="?", const=True, default=False)
    add("--seed", type=natural, default=42)
    add("--logging_steps", type=natural, default=10)
    add("--save_steps", type=natural, default=0)
    add("--text_column")
    add("--label_column")
    add("--compiler", choices=("auto", "xla", "inductor", "none"), default="auto")
    add("--train_dir", type=Path, default=environment.get("SM_CHANNEL_TRAIN"))
    add("--test_dir", type=Path, default=environment.get("SM_CHANNEL_TEST"))
    add("--model_dir", type=Path, default=environment.get("SM_MODEL_DIR", f"{base}/model"))
    add("--output_data_dir", type=Path,
        default=environment.get("SM_OUTPUT_DATA_DIR", f"{base}/output/data"))  # fmt: skip
    add("--checkpoint_dir", type=Path, default=f"{base}/checkpoints",
        help="used when it exists, as it does for a job with a CheckpointConfig")  # fmt: skip
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, train, evaluate, save. Returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    p = parser(os.environ)
    args = p.parse(sys.argv[1:] if argv is None else argv)
    if args.train_dir is None:
        p.error("no training data: give the job a channel named train, or --train_dir")
    from hotfire.runtime.xla.device import open_device

    with open_device(args.compiler) as env:
        try:
            _run(args, env)
        except tables.DataError as error:
            if env.rank == env.world.host_leader:
                raise SystemExit(f"text_classification: {error}") from error
            raise
    return 0


def _run(args: argparse.Namespace, env: DeviceEnv) -> None:
    from hotfire.entrypoints.programs import text_model

    if args.model_name_or_path in text_model.PRESETS:
        args.from_scratch = True
    if not env.is_main:
        text_model.be_quiet()
    prepared = _prepare_once_per_host(args, env)
    env.seed(args.seed)
    model = text_model.build_model(
        args.model_name_or_path,
        from_scratch=args.from_scratch,
        label_names=prepared.labels,
        vocab_size=len(prepared.tokenizer),
        max_length=args.max_length,
        sizes={name: getattr(args, name) for name in SIZES if getattr(args, name)},
    )
    metrics = _train(args, env, model, prepared)
    state = env.host_copy(model.state_dict())
    if env.is_main:
        text_model.save(model, prepared.tokenizer, state, args.model_dir)
        text_model.write_metrics(args.output_data_dir, metrics)
    env.barrier()


def _train(
    args: argparse.Namespace, env: DeviceEnv, model: Any, data: Prepared
) -> dict[str, float]:
    from hotfire.runtime.xla.loop import Loop

    loop = Loop(env, model, data.train, _loop_config(args, env))
    if env.is_main:
        if args.save_steps and loop.config.checkpoint_dir is None:
            print(f"note: nothing is saved every {args.save_steps} steps: {NO_CHECKPOINTS}")
        print(f"train_rows = {len(data.train['labels'])}")
        print(f"world_size = {env.world_size}")
        print(f"device = {env.device}", flush=True)
    result = loop.train()
    metrics = _train_metrics(result)
    if data.test is not None and not result.stopped:
        metrics |= {f"eval_{name}": value for name, value in loop.evaluate(data.test).items()}
    if env.is_main:
        for name, value in metrics.items():
            print(f"{name} = {value:.6g}")
        sys.stdout.flush()
    return metrics


def _train_metrics(result: TrainResult) -> dict[str, float]:
    return {
        "train_steps": result.step,
        "train_loss": result.train_loss,
        "train_runtime": result.seconds,
        "train_samples_per_second": result.samples / max(result.seconds, 1e-9),
        **({"stopped_at_step": result.step} if result.stopped else {}),
    }


def _loop_config(args: argparse.Namespace, env: DeviceEnv) -> LoopConfig:
    from hotfire.runtime.xla.loop import LoopConfig

    names = {field.name for field in dataclasses.fields(LoopConfig)} & set(vars(args))
    values = {name: getattr(args, name) for name in names}
    values["max_train_steps"] = max(args.max_train_steps, 0)
    # All ranks save and resume, or none: one host alone would wait for the others.
    wanted = env.any(args.checkpoint_dir.is_dir())
    values["checkpoint_dir"] = args.checkpoint_dir if wanted else None
    return LoopConfig(**values)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Token tensors of both splits, the tokenizer, and the label names in order of their ids."""

    train: Rows
    test: Rows | None
    labels: list[str]
    tokenizer: Any


def _prepare_once_per_host(args: argparse.Namespace, env: DeviceEnv) -> Prepared:
    """Tokens are made by one process of each host and read by the others from a file.

    A learnt vocabulary is made by rank 0 for all hosts. The file is gone when this returns: the
    readers keep it mapped.
    """
    import torch

    leads = env.local_rank == 0
    texts = _read_texts(args) if leads else None
    tokenizer = _shared_tokenizer(args, env, texts)
    if leads:
        assert texts is not None
        content = _tokenized(args, tokenizer, texts)
    if env.world_size == 1:
        return Prepared(**content, tokenizer=tokenizer)
    own = tempfile.TemporaryDirectory(prefix="hotfire-tokens-") if leads else nullcontext("")
    with own as directory:
        path = Path(directory) / "tokens.pt"
        if leads:
            torch.save(content, path)
        mine = (str(path), _digest(content)) if leads else None
        answers = [json.loads(part) for part in env.gather_bytes(json.dumps(mine).encode())]
        _check_same_data({digest for _, digest in filter(None, answers)})
        hosts_own, _ = answers[env.world.host_leader]
        content = torch.load(hosts_own, mmap=True, weights_only=True)
        env.barrier()
    return Prepared(**content, tokenizer=tokenizer)


def _digest(content: Mapping[str, Any]) -> str:
    """Of all rows in their order."""
    import hashlib

    digest = hashlib.blake2b()
    for part in (content["train"], content["test"] or {}):
        for name in sorted(part):
            digest.update(f"{name} {tuple(part[name].shape)}".encode())
            digest.update(part[name].contiguous().numpy().data)
    return digest.hexdigest()


def _check_same_data(digests: set[str]) -> None:
    """Every rank cuts its part out of the same global batches."""
    if len(digests) > 1:
        raise tables.DataError(
            "the hosts have different data; give the channels S3DataDistributionType "
            "FullyReplicated: the ranks divide the rows between them"
        )


Texts = tuple[tables.LabelledTexts, tables.LabelledTexts | None]


def _read_texts(args: argparse.Namespace) -> Texts:
    train, test = tables.read_channels(args.train_dir, args.test_dir)
    columns = args.text_column, args.label_column
    return tables.labelled(train, *columns), tables.labelled(test, *columns) if test else None


def _shared_tokenizer(args: argparse.Namespace, env: DeviceEnv, texts: Texts | None) -> Any:
    from hotfire.entrypoints.programs import text_model

    if args.model_name_or_path not in text_model.PRESETS:
        return text_model.load_tokenizer(args.model_name_or_path)
    learnt = None
    if env.is_main:
        assert texts is not None
        learnt = text_model.train_tokenizer(texts[0].texts, args.vocab_size).encode()
    return text_model.tokenizer_from_json(env.broadcast_bytes(learnt).decode(), args.max_length)


def _tokenized(args: argparse.Namespace, tokenizer: Any, texts: Texts) -> dict[str, Any]:
    train, test = texts
    labels = tables.label_names(train, test)

    def rows(part: tables.LabelledTexts) -> Rows:
        import torch

        encoded = tokenizer(
            part.texts,
            padding="max_length",
            truncation=True,
            max_length=args.max_length,
            return_tensors="pt",
        )
        ids = {name: i for i, name in enumerate(labels)}
        return dict(encoded) | {"labels": torch.tensor([ids[label] for label in part.labels])}

    return {"train": rows(train), "test": rows(test) if test else None, "labels": labels}


if __name__ == "__main__":
    sys.exit(main())
