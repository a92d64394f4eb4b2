"""Tokenising: how many texts, where, how long. Hooks transformers when the script imports it."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

from hotfire.runtime.xla.after_import import after_import
from hotfire.runtime.xla.doctor.stack import Site
from hotfire.runtime.xla.doctor.watch_steps import Steps

_BASE = "transformers.tokenization_utils_base"


def watch(steps: Steps) -> None:
    """Count calls of tokenizers by line; the end event has them."""
    lines: dict[Any, dict[str, Any]] = {}
    steps.at_end.append(lambda: {"texts": list(lines.values())})
    after_import(_BASE, functools.partial(_hook, steps, lines))


def _hook(steps: Steps, lines: dict[Any, dict[str, Any]]) -> None:
    base: Any = vars(sys.modules[_BASE])["PreTrainedTokenizerBase"]
    original = base.__call__

    @functools.wraps(original)
    def call(tokenizer: Any, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not steps.recorder.active:
            return original(tokenizer, text, *args, **kwargs)
        started = time.perf_counter()
        result = original(tokenizer, text, *args, **kwargs)
        if site := steps.stack.site():
            _count(lines, site, text, time.perf_counter() - started)
        return result

    base.__call__ = call


def _count(lines: dict[Any, dict[str, Any]], site: Site, text: Any, seconds: float) -> None:
    entry = lines.setdefault(site, {"site": site, "calls": 0, "texts": 0, "seconds": 0.0})
    entry["calls"] += 1
    entry["texts"] += len(text) if isinstance(text, list | tuple) else 1
    entry["seconds"] += seconds
