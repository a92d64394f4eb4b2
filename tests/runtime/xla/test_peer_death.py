"""A rank that dies is named by the ranks that waited for it, within seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]


def start(
    environment: Callable[..., dict[str, str]], script: Path, how: str, port: str, **extra: str
) -> list[subprocess.Popen[str]]:
    """Two ranks without torchrun, which would kill the survivor before it can speak."""
    return [
        subprocess.Popen(
            [sys.executable, "-m", "hotfire.runtime.xla.exec", str(script), how],
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **extra,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kill", "rank 1 ended: its process {pid} on "),
        ("midway", "rank 1 ended: its process {pid} on "),
        ("raise", "rank 1 ended: ValueError: row 17 has no label"),
        ("hang", "no answer within 4 s from rank 1: slower than the others, or on a path without"),
        ("part", "the ranks wait for each other: rank 0 in all_reduce SUM"),
    ],
)
def test_survivor_names_the_rank_at_fault(
    worker_environment: Callable[..., dict[str, str]],
    free_port: Callable[[], str],
    workers: Path,
    tmp_path: Path,
    how: str,
    reason: str,
) -> None:
    ranks = start(
        worker_environment,
        workers / "mortal.py",
        how,
        free_port(),
        HOTFIRE_WORKER_DIR=str(tmp_path),
        HOTFIRE_COLLECTIVE_TIMEOUT="4" if how == "hang" else "200",
    )
    try:
        out, err = ranks[0].communicate(timeout=170)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert ranks[0].returncode == 1
    assert reason.format(pid=ranks[1].pid) in err
    [line] = [line for line in out.splitlines() if line.startswith("seconds: ")]
    assert float(line.split()[1]) < 15
    record = json.loads((tmp_path / "rank-0.error.json").read_text())
    assert record["type"] == "CollectiveError"
    assert (tmp_path / "rank-1.error.json").exists() == (how in ("raise", "part"))
    if how == "hang":
        assert "hotfire: rank 0 has waited 1 s in all_reduce SUM for rank 1" in err
