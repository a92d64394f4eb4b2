"""Training alone while the launcher started several is refused; plain gloo is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]


def test_guard_stops_xla_training_whose_world_is_too_small(
    launch: Callable[..., Any], workers: Path
) -> None:
    script = str(workers / "guarded.py")
    [done] = launch(script, processes=2, HOTFIRE_SHIMS="-collectives")
    assert done.returncode == 0, done.stderr[-4000:]
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert lines["gloo sum"] == "2"
    assert lines["cpu step"] == "done"
    for what in ("xla step", "xla reduction", "xla rendezvous"):
        assert lines[what].startswith("WorldSizeMismatch: WORLD_SIZE is 2 but torch_xla sees 1")
    shims = [line for line in done.stderr.splitlines() if line.startswith("hotfire: ")]
    assert len(shims) == 1, "one line, of rank 0"
    assert "compat" in shims[0]
    assert "guard" in shims[0]
    assert "collectives (" not in shims[0]


def test_spmd_within_one_process_is_left_alone(launch: Callable[..., Any], workers: Path) -> None:
    [done] = launch(str(workers / "spmd.py"), CPU_NUM_DEVICES="2")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "devices 2 sum 56.0" in done.stdout
    assert "collectives (" not in done.stderr
