"""Real workers: torchrun around `hotfire.runtime.xla.exec`, as the launcher of a job starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.backends.processes import descendants

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).parents[3]
TIMEOUT = 180


def worker_environment(**extra: str) -> dict[str, str]:
    """No rank of an outer launcher, one thread per worker, the checkout's packages."""
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_", "TORCHELASTIC_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith((*drop, "HOTFIRE_"))}
    view = str(ROOT / "build" / "view")
    return environment | {"PYTHONPATH": view, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU"} | extra


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torchrun(processes: int, port: str, node: int = 0, nodes: int = 1) -> list[str]:
    """torchrun for one host; hosts are 127.0.0.2 and up, the first is the master."""
    return [
        sys.executable, "-m", "torch.distributed.run",
        f"--nproc_per_node={processes}", f"--nnodes={nodes}", f"--node_rank={node}",
        "--master_addr=127.0.0.2", f"--master_port={port}", f"--local_addr=127.0.0.{2 + node}",
    ]  # fmt: skip


Launch = Callable[..., list[subprocess.CompletedProcess[str]]]


def launch(
    *arguments: str,
    processes: int = 1,
    nodes: int = 1,
    always_torchrun: bool = False,
    **environment: str,
) -> list[subprocess.CompletedProcess[str]]:
    """Run `exec ARGUMENTS` in `processes` workers on each of `nodes` hosts; the hosts' results."""
    port = free_port()
    program = ["-m", "hotfire.runtime.xla.exec", *arguments]
    commands = [[sys.executable, *program]]
    if processes * nodes > 1 or always_torchrun:
        commands = [[*torchrun(processes, port, n, nodes), *program] for n in range(nodes)]
    started = [
        subprocess.Popen(
            command,
            env=worker_environment(SM_CURRENT_HOST=f"algo-{n + 1}", **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n, command in enumerate(commands)
    ]
    finished = []
    try:
        for process in started:
            out, err = process.communicate(timeout=TIMEOUT)
            done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
            finished.append(done)
    finally:
        for process in started:
            if process.poll() is None:
                # torchrun's workers have sessions of their own, and live on when it is killed.
                for pid in [process.pid, *descendants(process.pid)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
    return finished


@pytest.fixture(scope="session")
def workers() -> Path:
    """The directory of the programs that workers run."""
    return WORKERS


@pytest.fixture(scope="session", name="launch")
def launch_fixture() -> Launch:
    return launch


@pytest.fixture(scope="session", name="worker_environment")
def worker_environment_fixture() -> Callable[..., dict[str, str]]:
    return worker_environment


@pytest.fixture(scope="session", name="free_port")
def free_port_fixture() -> Callable[[], str]:
    return free_port


# Processes per host, and hosts.
LAYOUTS = {"1": (1, 1), "2": (2, 1), "4": (4, 1), "2x2": (2, 2), "8": (8, 1)}


@pytest.fixture(scope="session")
def run_layout() -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Run a program of `workers/` in a layout of processes; the hosts' results."""

    def run(
        program: str, layout: str, *arguments: str, **environment: str
    ) -> list[subprocess.CompletedProcess[str]]:
        processes, nodes = LAYOUTS[layout]
        script = str(WORKERS / program)
        return launch(script, *arguments, processes=processes, nodes=nodes, **environment)

    return run


@pytest.fixture(scope="session")
def parity(
    run_layout: Callable[..., list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """What `workers/parity.py` reports per layout of processes; each runs once per session."""
    reports: dict[str, dict[str, Any]] = {}

    def report(layout: str) -> dict[str, Any]:
        if layout not in reports:
            out = tmp_path_factory.mktemp("parity") / "report.json"
            for done in run_layout("parity.py", layout, str(out)):
                assert done.returncode == 0, done.stderr[-4000:]
            reports[layout] = json.loads(out.read_text())
        return reports[layout]

    return report
