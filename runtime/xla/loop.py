"""A training loop of about a page; a feature is one overridden method. Needs torch.

A step has one static shape, reads nothing back from the device, and ends where the next batch is
asked for. What the host wants to know (losses) it collects in step closures. See `Loop`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotfire.runtime.xla import checkpoint
from hotfire.runtime.xla.data import WEIGHTS, EvalBatches, Rows, TrainBatches, row_count
from hotfire.runtime.xla.device import Batch, DeviceEnv
from hotfire.runtime.xla.stop import StopFlag, stop_on_sigterm

# Without a logging interval, losses are still fetched this often: each holds a device buffer.
_COLLECT_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Hyperparameters, by the names that the Hugging Face Trainer gives them."""

    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    num_train_epochs: float = 3.0
    max_train_steps: int = 0
    """Optimizer steps in all; 0 leaves it to the epochs."""
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    """Share of all steps, used where `warmup_steps` is 0."""
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 1.0
    """0 clips nothing."""
    bf16: bool = False
    seed: int = 42
    logging_steps: int = 10
    save_steps: int = 0
    """Steps between checkpoints; 0 saves only when stopped, and only with a directory."""
    checkpoint_dir: Path | None = None
    keep_checkpoints: int = 2


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What `Loop.train` did: `samples` were trained on in `seconds`, over all ranks."""

    step: int
    stopped: bool
    train_loss: float
    samples: int
    seconds: float


class Loop:
    """Trains `model` on `rows` (see `data`) on the device of `env`.

    All ranks start from rank 0's weights. Override `loss`, `eval_sums`, `make_optimizer`,
    `learning_rate`, `update` or `report`; the model is called through `self.forward`.
    """

    def __init__(
        self, env: DeviceEnv, model: torch.nn.Module, rows: Rows, config: LoopConfig
    ) -> None:
        self.env = env
        self.config = config
        self.model = model.to(env.device)
        tie: Any = getattr(model, "tie_weights", None)
        if tie is not None:
            tie()  # moving to an XLA device copies shared parameters apart
        env.broadcast_parameters(model)
        self.forward = env.compiled(model)
        self.optimizer = self.make_optimizer()
        self.batches = TrainBatches(
            rows,
            config.per_device_train_batch_size,
            rank=env.rank,
            world_size=env.world_size,
            accumulation=config.gradient_accumulation_steps,
            seed=config.seed,
        )
        self.total_steps = config.max_train_steps or math.ceil(
            config.num_train_epochs * self.batches.steps_per_epoch
        )
        self.step = 0
        self._saved_step = 0
        self._pending: list[torch.Tensor] = []
        self._loss_total, self._loss_count = 0.0, 0

    # The loop.

    def train(self) -> TrainResult:
        """Train to the last step, or to the first SIGTERM; from the last checkpoint if any."""
        self.env.seed(self.config.seed + 1_000 * self.env.rank)
        self.resume()
        first, started = self.step, time.monotonic()
        with stop_on_sigterm() as stop:
            while self.step < self.total_steps and not self._stopping(stop):
                self._train_epoch(stop)
            stopped = self.step < self.total_steps and self._stopping(stop)
        self.env.sync(wait=True)
        self._collect(self._take_pending())
        if stopped or self.config.save_steps:
            self.save_checkpoint()
        return TrainResult(
            step=self.step,
            stopped=stopped,
            train_loss=self._loss_total / max(self._loss_count, 1),
            samples=(self.step - first) * self._samples_per_step,
            seconds=time.monotonic() - started,
        )

    def _train_epoch(self, stop: StopFlag) -> None:
        epoch, done = divmod(self.step, self.batches.steps_per_epoch)
        before = self.step
        self.batches.set_epoch(epoch, first_step=done)
        self.model.train()
        for _ in self._steps():
            if self.step % (self.config.logging_steps or _COLLECT_STEPS) == 0:
                self.env.after_step(self._log, self.step, self._take_pending())
            if self.config.save_steps and self.step % self.config.save_steps == 0:
                self.save_checkpoint()
            if self.step >= self.total_steps or self._stopping(stop):
                break
        if self.step == before:
            raise RuntimeError("an epoch ended without a step: the batches could not be loaded")

    def _steps(self) -> Iterator[None]:
        """Forward and backward of each micro-batch; yields after each update."""
        accumulation = self.config.gradient_accumulation_steps
        for count, batch in enumerate(self.env.batches(self.batches), 1):
            self._fix_randomness(self.step * accumulation + (count - 1) % accumulation)
            with self.env.autocast(self.config.bf16):
                loss = self.loss(batch)
            (loss / accumulation if accumulation > 1 else loss).backward()  # type: ignore[no-untyped-call]
            self._pending.append(loss.detach())
            if count % accumulation == 0:
                self.update()
                self.step += 1
                yield

    def _fix_randomness(self, micro_batch: int) -> None:
        """Dropout depends on the seed, the rank and the micro-batch, not on what ran before."""
        text = f"{self.config.seed} {self.env.rank} {micro_batch}"
        self.env.fix_randomness(random.Random(text).getrandbits(48))

    def _stopping(self, stop: StopFlag) -> bool:
        return self.env.any(stop.requested)

    # What a script overrides.

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean loss of a training micro-batch: a scalar on the device."""
        loss: torch.Tensor = self.forward(**batch).loss
        return loss

    def eval_sums(self, batch: Batch, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Sums over the batch's rows, each row times its weight: scalars on the device."""
        labels = batch.pop("labels")
        logits = self.forward(**batch).logits.float()
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        right = (logits.argmax(dim=-1) == labels).float()
        return {"loss": (losses * weights).sum(), "accuracy": (right * weights).sum()}

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW; vectors (biases, normalisation) are not decayed."""
        matrices = [p for p in self.model.parameters() if p.requires_grad and p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.requires_grad and p.dim() <= 1]
        optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.config.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=self.config.learning_rate,
        )
        create_adam_state(optimizer)
        return optimizer

    def learning_rate(self, step: int) -> float:
        """The rate of update `step` (from 0): linear warm-up, then linear decay.

        Never 0 within the training: torch_xla compiles a constant 0 as a program of its own.
        """
        warmup = self.config.warmup_steps or math.ceil(self.config.warmup_ratio * self.total_steps)
        if step < warmup:
            return self.config.learning_rate * (step + 1) / warmup
        left = (self.total_steps - step) / max(self.total_steps - warmup, 1)
        return self.config.learning_rate * left

    def update(self) -> None:
        """One optimizer step from the gradients that the micro-batches left."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        self.env.optimizer_step(self.optimizer, max_grad_norm=self.config.max_grad_norm)
        self.optimizer.zero_grad(set_to_none=True)

    def report(self, step: int, loss: float) -> None:
        """Called on rank 0 every `logging_steps` with the mean loss since the last call."""
        rate = self.learning_rate(step - 1)
        print(f"step = {step}/{self.total_steps}, loss = {loss:.4f}, learning_rate = {rate:.3e}")

    # Evaluation.

    def evaluate(self, rows: Rows) -> dict[str, float]:
        """The means of `eval_sums` over all rows of all ranks; the padding does not count."""
        batches = EvalBatches(
            rows,
            self.config.per_device_eval_batch_size,
            rank=self.env.rank,
            world_size=self.env.world_size,
        )
        names: list[str] = []
        sums: list[torch.Tensor] = []
        self.model.eval()
        with torch.no_grad():
            for batch in self.env.batches(batches):
                weights = batch.pop(WEIGHTS)
                with self.env.autocast(self.config.bf16):
                    values = self.eval_sums(batch, weights)
                names = list(values)
                sums.append(torch.stack([value.float() for value in values.values()]))
        self.env.sync(wait=True)
        local = torch.stack(self.env.to_host(sums)).double().sum(dim=0).tolist()
        totals = self.env.sum(dict(zip(names, local, strict=True)))
        return {name: total / row_count(rows) for name, total in totals.items()}

    # Losses, read on the host between steps.

    @property
    def _samples_per_step(self) -> int:
        config = self.config
        per_rank = config.per_device_train_batch_size * config.gradient_accumulation_steps
        return per_rank * self.env.world_size

    def _take_pending(self) -> list[torch.Tensor]:
        taken, self._pending = self._pending, []
        return taken

    def _collect(self, losses: list[torch.Tensor]) -> float:
        """The mean of `losses` over all ranks, added to the run's total."""
        if not losses:
            return math.nan
        local = float(torch.stack(self.env.to_host(losses)).double().sum())
        mean = self.env.sum({"loss": local})["loss"] / (len(losses) * self.env.world_size)
        self._loss_total += mean * len(losses)
        self._loss_count += len(losses)
        return mean

    def _log(self, step: int, losses: list[torch.Tensor]) -> None:
        mean = self._collect(losses)
        if self.env.is_main and self.config.logging_steps:
            self.report(step, mean)

    # Checkpoints.

    def save_checkpoint(self) -> None:
        """Everything that the next step depends on, of all ranks, in one file of rank 0."""
        if self.config.checkpoint_dir is None or self.step == self._saved_step:
            return
        self._saved_step = self.step
        self.env.sync(wait=True)
        self._collect(self._take_pending())
        state = {
            "step": self.step,
            "model": self.env.host_copy(self.model.state_dict()),
            "optimizer": self.env.host_copy(self.optimizer.state_dict()),
            "rng": checkpoint.gather_rng_states(self.env),
            "loss": [self._loss_total, self._loss_count],
            "data": self._data_identity(),
        }
        if self.env.is_main:
            keep = self.config.keep_checkpoints
            checkpoint.write(self.config.checkpoint_dir, self.step, state, keep=keep)
        self.env.barrier()

    def resume(self) -> None:
        """Continue from the newest checkpoint; without one, from the start.

        Raises:
            ValueError: it was made from other data, or with another global batch or seed.
        """
        if self.config.checkpoint_dir is None:
            return
        state = checkpoint.broadcast_latest(self.env, self.config.checkpoint_dir)
        if state is None:
            return
        if state["data"] != self._data_identity():
            raise ValueError(
                f"the checkpoint of step {state['step']} in {self.config.checkpoint_dir} belongs "
                f"to {state['data']}, this run is {self._data_identity()}; "
                "empty the directory or give the same data and batch size"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = self._saved_step = state["step"]
        self._loss_total, self._loss_count = state["loss"]
        checkpoint.restore_rng_state(self.env, state["rng"])
        if self.env.is_main:
            print(f"resumed_from_step = {self.step}")

    def _data_identity(self) -> dict[str, Any]:
        """What makes step N the same step: nothing here depends on the number of ranks."""
        return {
            "rows": self.batches.row_count,
            "global_batch": self._samples_per_step,
            "seed": self.config.seed,
        }


def create_adam_state(optimizer: torch.optim.Optimizer) -> None:
    """Give Adam's states the zeros that its first step would make.

    XLA compiles the update once then, and not once more when the states have appeared.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zeros = torch.zeros(parameter.shape, dtype=parameter.dtype)
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": zeros.to(parameter.device, copy=True),
                "exp_avg_sq": zeros.to(parameter.device, copy=True),
            }
