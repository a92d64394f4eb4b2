"""Data loaders: how long the script waits for them, how they cut the data, and when they end.

Needs torch and torch_xla. When the wanted number of steps is done (`Steps.enough`), the epoch ends
there, so that evaluation and saving follow as after any epoch; later epochs have one step each.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import opcode
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hotfire.runtime.xla.data import StaticBatches
from hotfire.runtime.xla.doctor.watch_steps import Steps

_DIGESTS = 3
_FOR_ITER = opcode.opmap["FOR_ITER"]
# A script that makes one for every epoch has said all with the first.
_LOADERS = 100


class Iteration:
    """One pass over a loader."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._opt, self._back = steps.optimizer_steps, steps.backwards
        self.batches = 0

    def over(self) -> bool:
        """Whether the pass should end here: trained enough, or evaluated enough batches."""
        steps = self._steps
        if not steps.limited:
            return False
        if steps.backwards > self._back:
            return steps.enough and steps.optimizer_steps > self._opt
        return self.batches >= steps.settings.steps


def watch(steps: Steps) -> None:
    """Hook DataLoader, its iterators, and torch_xla's device loader."""
    _watch_construction(steps)
    _watch_iterators(steps)
    _watch_device_loader(steps)


def _watch_construction(steps: Steps) -> None:
    original, numbers = DataLoader.__init__, itertools.count()

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if steps.detailed and (number := next(numbers)) < _LOADERS:
            vars(self)["_hotfire_loader"] = number
            steps.recorder.write("loader", **steps.now(), id=number, **_facts(steps, self))

    DataLoader.__init__ = init  # type: ignore[method-assign]


def _facts(steps: Steps, loader: Any) -> dict[str, Any]:
    batches, sampler = loader.batch_sampler, loader.sampler
    code = getattr(loader.collate_fn, "__code__", None)
    collate = (code.co_filename, code.co_firstlineno) if code else None
    return {
        "site": steps.stack.site(),
        "batch_size": loader.batch_size or getattr(batches, "batch_size", None),
        "drop_last": bool(loader.drop_last or getattr(batches, "drop_last", False)),
        "plain_batches": type(batches).__name__ == "BatchSampler",
        "workers": loader.num_workers,
        "rows": _length(sampler),
        "dataset_rows": _length(loader.dataset),
        "sampler": type(sampler).__name__,
        "replicas": getattr(sampler, "num_replicas", None),
        "sampler_drop_last": bool(getattr(sampler, "drop_last", False)),
        "collate": collate if collate and steps.stack.is_user(collate[0]) else None,
    }


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _watch_iterators(steps: Steps) -> None:
    original_init, original_next = _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__
    # Seconds in all, batches, seconds of the fastest.
    busy: dict[int, list[float]] = {}
    filled: set[int] = set()
    steps.at_end.append(lambda: {"loaders": busy, "filled_loaders": sorted(filled)})

    @functools.wraps(original_init)
    def init(self: Any, loader: Any) -> None:
        original_init(self, loader)
        vars(self)["_hotfire"] = Iteration(steps)
        number = vars(self)["_hotfire_loader"] = vars(loader).get("_hotfire_loader")
        if number is not None:
            busy.setdefault(number, [0.0, 0, 0.0])
            if _filled(sys._getframe(1)):
                filled.add(number)

    @functools.wraps(original_next)
    def following(self: Any) -> Any:
        if not steps.recorder.active:
            return original_next(self)
        iteration: Iteration = self._hotfire
        # A device loader reads ahead in a thread of its own; the script's pass ends there.
        ours = threading.current_thread() is threading.main_thread()
        if ours and iteration.over():
            _end(steps, sys._getframe(1))
        started = time.perf_counter()
        batch = original_next(self)
        seconds = time.perf_counter() - started
        number: int | None = self._hotfire_loader
        if number is not None:
            total = busy[number]
            total[0] += seconds
            total[1] += 1
            total[2] = min(total[2] or seconds, seconds)
        if ours:
            steps.wait += seconds
            steps.iterated, steps.loader = True, number
        iteration.batches += 1
        _write_digest(steps, number, iteration.batches, batch)
        return batch

    _BaseDataLoaderIter.__init__ = init  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign]


def _filled(frame: FrameType | None) -> bool:
    """Whether our `StaticBatches` reads the loader: it pads short batches, or drops them."""
    while frame is not None:
        if frame.f_code is StaticBatches.__iter__.__code__:
            return True
        frame = frame.f_back
    return False


def _watch_device_loader(steps: Steps) -> None:
    from torch_xla.distributed import parallel_loader

    per_device: Any = parallel_loader.PerDeviceLoader
    original_next: Callable[[Any], Any] = per_device.__next__
    parallel: Any = parallel_loader.ParallelLoader
    next_item, read_ahead = parallel.next_item, parallel._loader_worker

    @functools.wraps(original_next)
    def following(self: Any) -> Any:
        iteration: Iteration = vars(self).setdefault("_hotfire", Iteration(steps))
        if iteration.over():
            steps.sync()
            self._loader.close()
            _end(steps, sys._getframe(1))
        item = original_next(self)
        iteration.batches += 1
        steps.iterated = True
        steps.loader = getattr(self._loader._cpu_loader, "_hotfire_loader", None)
        return item

    @functools.wraps(next_item)
    def waiting(self: Any, device: Any) -> Any:
        started = time.perf_counter()
        try:
            return next_item(self, device)
        finally:
            steps.wait += time.perf_counter() - started

    @functools.wraps(read_ahead)
    def reading(self: Any) -> None:
        try:
            read_ahead(self)
        except Exception as error:
            # torch_xla closes the queue, so that the script's loop ends as if the data had ended.
            steps.recorder.write("loader_error", **steps.now(), **steps.stack.described(error))
            raise

    per_device.__next__ = following
    parallel.next_item = waiting
    parallel._loader_worker = reading


def _end(steps: Steps, frame: Any) -> None:
    """End a pass: as a loader ends where a loop asks, else with the script.

    Raises:
        StopIteration: to a ``for``, or to a library.
        SystemExit: to a script that called ``next`` by itself and may not expect an end.
    """
    instruction = frame.f_code.co_code[frame.f_lasti] if frame.f_lasti >= 0 else _FOR_ITER
    if steps.stack.is_user(frame.f_code.co_filename) and instruction != _FOR_ITER:
        raise SystemExit(0)
    raise StopIteration


def _write_digest(steps: Steps, loader: int | None, number: int, batch: Any) -> None:
    """The first batches' content: ranks that read the same rows have the same."""
    if loader is None or number > _DIGESTS or steps.settings.world_size == 1 or not steps.detailed:
        return
    digest = hashlib.blake2b(digest_size=8)
    for tensor in _host_tensors(batch):
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    steps.recorder.write(
        "batch", **steps.now(), loader=loader, number=number, digest=digest.hexdigest()
    )


def _host_tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided and not value.is_quantized
        on_host = plain and value.device.type == "cpu"
        return [value] if on_host and value.numel() and value.dim() else []
    items = value.values() if hasattr(value, "values") else value
    if isinstance(value, dict | list | tuple) or hasattr(value, "values"):
        return [tensor for item in items for tensor in _host_tensors(item)]
    return []
