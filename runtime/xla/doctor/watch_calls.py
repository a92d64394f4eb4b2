"""Shapes, types and places of what the outermost modules are called with. Needs torch."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from hotfire.runtime.xla.doctor.watch_steps import Steps

_TENSORS = 64
Signature = tuple[tuple[str, tuple[int, ...], str, str], ...]


def watch(steps: Steps) -> None:
    """Write a "call" event when a module that no other module calls sees a new signature."""
    original = torch.nn.Module.__call__
    inside = False
    seen: set[Any] = set()

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or torch.compiler.is_compiling() or not steps.detailed:
            return original(self, *args, **kwargs)
        inside = True
        try:
            frame = sys._getframe(1)
            signature = tuple(_tensors(args, kwargs))
            key = id(self), self.training, frame.f_code, frame.f_lineno, signature
            if signature and key not in seen:
                seen.add(key)
                _write(steps, self, args, kwargs, f"{id(self)}:{id(frame.f_code)}:{frame.f_lineno}")
            return original(self, *args, **kwargs)
        finally:
            inside = False

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    _watch_moves(steps)


def _watch_moves(steps: Steps) -> None:
    """Where a model is put on the device: the line that a reader takes for its beginning."""
    to = torch.nn.Module.to

    def moved(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = next(self.parameters(), None)
        result = to(self, *args, **kwargs)
        after = next(self.parameters(), None)
        was = before.device.type if before is not None else ""
        if after is not None and after.device.type == "xla" != was and steps.detailed:
            kind = type(self).__name__
            steps.recorder.write("model", **steps.now(), module=kind, site=steps.stack.site())
        return result

    torch.nn.Module.to = moved  # type: ignore[method-assign]


def _write(steps: Steps, module: torch.nn.Module, args: Any, kwargs: Any, caller: str) -> None:
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    named = {(names[i] if i < len(names) else f"argument {i}"): a for i, a in enumerate(args)}
    signature = list(_tensors((), named | kwargs))
    if not any(place == "xla" for _, _, _, place in signature) and not _has_xla(module):
        return
    steps.recorder.write(
        "call",
        **steps.now(),
        site=steps.stack.site(),
        caller=f"{caller}:{module.training}",
        module=type(module).__name__,
        training=module.training,
        grad=torch.is_grad_enabled(),
        tensors={name: [list(shape), kind, place] for name, shape, kind, place in signature},
        parameters=_parameters(module),
    )


def _has_xla(module: torch.nn.Module) -> bool:
    return any(p.device.type == "xla" for p in module.parameters())


def _parameters(module: torch.nn.Module) -> dict[str, list[str]]:
    """``{"xla float32": [first few names]}`` of parameters and floating buffers."""
    found: dict[str, list[str]] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        key = f"{tensor.device.type} {str(tensor.dtype).removeprefix('torch.')}"
        if len(found.setdefault(key, [])) < 3:
            found[key].append(name)
    return found


def _tensors(args: Any, kwargs: Any) -> Signature:
    found: list[tuple[str, tuple[int, ...], str, str]] = []

    def visit(name: str, value: Any) -> None:
        if len(found) >= _TENSORS:
            return
        if isinstance(value, torch.Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            found.append((name, tuple(value.shape), kind, value.device.type))
        elif isinstance(value, dict):
            for key, item in value.items():
                visit(f"{name}.{key}" if name else str(key), item)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                visit(f"{name}[{index}]", item)

    for index, value in enumerate(args):
        visit(str(index), value)
    visit("", kwargs)
    return tuple(found)
