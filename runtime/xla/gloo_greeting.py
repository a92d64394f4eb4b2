"""torch 2.9's gloo greets on the standard output of every rank, among the metrics."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_gloo_greeting() -> Iterator[None]:
    """Drop gloo's greeting; what other threads print meanwhile comes after the block."""
    try:
        kept = os.dup(1)
    except OSError:  # closed: nobody to greet
        yield
        return
    _flush_stdout()
    caught = os.memfd_create("stdout")
    os.dup2(caught, 1)
    try:
        yield
    finally:
        _flush_stdout()
        os.dup2(kept, 1)
        with os.fdopen(caught, "rb") as file:
            file.seek(0)
            rest = [line for line in file if not line.startswith(b"[Gloo] Rank ")]
        with os.fdopen(kept, "wb") as file:
            file.writelines(rest)


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
