"""Several workers through torchrun: who failed first, and what a stop does to them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]

SHOW = """\
import json, os, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "USE_TORCH_XLA"]
line = json.dumps({"argv": sys.argv} | {name: os.environ.get(name) for name in names})
os.write(1, (line + "\\n").encode())
"""
FAILS = """\
import os, sys, time
if os.environ["RANK"] == "1":
    {failing}
time.sleep(60)
"""
SAVES = """\
import os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
def again(number, frame):
    Path("told-twice").touch()
def save(number, frame):
    signal.signal(signal.SIGTERM, again)
    time.sleep({seconds})
    Path("saved-" + rank).touch()
    sys.exit({code})
if rank in {careful!r}:
    signal.signal(signal.SIGTERM, save)
Path("ready-" + rank).touch()
time.sleep(60)
"""


@pytest.fixture
def cluster(container: Any) -> Any:
    """Two workers on one host."""
    container.configure(
        sagemaker_program="train.py", sagemaker_torch_distributed_enabled=True, lr=0.1
    )
    container.env |= {"HOTFIRE_PROCESSES_PER_HOST": "2", "HOTFIRE_GRACE": "20"}
    return container


def test_every_worker_gets_its_place(cluster: Any) -> None:
    cluster.write("train.py", SHOW)
    cluster.env |= {
        "HOTFIRE_HOSTS": json.dumps({"algo-1": "127.77.1.1"}),
        "HOTFIRE_MASTER_PORT": "29817",
    }
    result = cluster.run()
    assert (result.code, result.failure) == (0, "")
    seen = sorted(map(json.loads, result.out.splitlines()), key=lambda worker: worker["RANK"])
    assert [worker["RANK"] for worker in seen] == ["0", "1"]
    for worker in seen:
        assert worker["argv"] == ["train.py", "--lr", "0.1"]
        assert (worker["MASTER_ADDR"], worker["MASTER_PORT"]) == ("127.77.1.1", "29817")
        assert worker["WORLD_SIZE"] == "2"
        assert worker["OMP_NUM_THREADS"] not in (None, "0")
    assert not any("OMP_NUM_THREADS" in line for line in result.err.splitlines())


@pytest.mark.parametrize(
    ("failing", "code", "failure"),
    [
        ("sys.exit(42)", 42, "rank 1: exited with code 42"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1: killed (SIGKILL)"),
        (
            "raise ValueError('shapes differ')",
            1,
            "rank 1: ValueError: shapes differ\nat train.py:3",
        ),
    ],
)
def test_the_first_failed_rank_speaks_for_all(
    cluster: Any, failing: str, code: int, failure: str
) -> None:
    cluster.write("train.py", FAILS.format(failing=failing))
    result = cluster.run()
    assert result.code == code
    assert result.failure.startswith(failure)


def test_both_workers_save_and_one_that_is_careless_does_not_cut_the_other_short(
    cluster: Any, tools: Any
) -> None:
    cluster.write("train.py", SAVES.format(seconds=2, code=0, careful=["0"]))
    process = cluster.start()
    for rank in "01":
        tools.wait_for((cluster.code / f"ready-{rank}").exists, f"rank {rank}")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    result = cluster.finish(process)
    assert (cluster.code / "saved-0").exists()
    assert not (cluster.code / "told-twice").exists()
    assert result.code == 143
    assert result.failure.startswith("rank 1: ended by SIGTERM, as the job was stopped")


def test_a_stop_that_all_workers_survive_is_a_success(cluster: Any, tools: Any) -> None:
    cluster.write("train.py", SAVES.format(seconds=0.2, code=0, careful=["0", "1"]))
    process = cluster.start()
    for rank in "01":
        tools.wait_for((cluster.code / f"ready-{rank}").exists, f"rank {rank}")
    process.send_signal(signal.SIGTERM)
    result = cluster.finish(process)
    assert (result.code, result.failure) == (0, "")


def test_workers_that_refuse_are_killed_after_the_grace_period(cluster: Any, tools: Any) -> None:
    cluster.write("train.py", SAVES.format(seconds=60, code=0, careful=["0", "1"]))
    cluster.env["HOTFIRE_GRACE"] = "1"
    process = cluster.start()
    for rank in "01":
        tools.wait_for((cluster.code / f"ready-{rank}").exists, f"rank {rank}")
    process.send_signal(signal.SIGTERM)
    result = cluster.finish(process, timeout=20)
    assert result.code == 137
    assert "did not end within" in result.failure


def test_a_stop_while_torch_is_being_imported(cluster: Any, tools: Any) -> None:
    cluster.write("train.py", "open('started', 'w')\n")
    process = cluster.start()
    tools.wait_for(
        lambda: tools.processes("hotfire.entrypoints.train.elastic", str(cluster.ml)), "torchrun"
    )
    process.send_signal(signal.SIGTERM)
    result = cluster.finish(process, timeout=20)
    assert result.code == 143
    assert not (cluster.code / "started").exists()


def test_a_taken_port_is_named(cluster: Any) -> None:
    import socket

    cluster.write("train.py", "")
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        cluster.env["HOTFIRE_MASTER_PORT"] = str(port)
        result = cluster.run()
    assert result.code == 1
    assert result.failure.startswith("torchrun: DistNetworkError")
    assert str(port) in result.failure


def test_a_lone_host_gives_way_on_the_usual_port(cluster: Any) -> None:
    import socket

    cluster.write("train.py", SHOW)
    try:
        taken = socket.create_server(("", 7777))
    except OSError:
        pytest.skip("port 7777 is taken by somebody else, who may leave at any time")
    with taken:
        result = cluster.run()
    ports = {json.loads(line)["MASTER_PORT"] for line in result.out.splitlines()}
    assert result.code == 0
    assert len(ports) == 1
    assert "7777" not in ports


def test_two_hosts_form_one_world(container: Any, tmp_path: Any) -> None:
    """Two containers as two hosts; the first one's failure is its own."""
    second = type(container)(tmp_path / "second")
    addresses = json.dumps({"algo-1": "127.77.2.1", "algo-2": "127.77.2.2"})
    for number, host in ((1, container), (2, second)):
        host.config.mkdir(parents=True, exist_ok=True)
        host.write("train.py", SHOW)
        host.configure(sagemaker_program="train.py", sagemaker_torch_distributed_enabled=True)
        host.hosts("algo-1", "algo-2", current=f"algo-{number}")
        host.env |= {"HOTFIRE_HOSTS": addresses, "HOTFIRE_MASTER_PORT": "29818"}
    processes = [container.start(), second.start()]
    results = [host.finish(p) for host, p in zip((container, second), processes, strict=True)]
    assert [result.code for result in results] == [0, 0]
    workers = [json.loads(result.out) for result in results]
    assert [(w["RANK"], w["WORLD_SIZE"]) for w in workers] == [("0", "2"), ("1", "2")]
    assert {w["MASTER_ADDR"] for w in workers} == {"127.77.2.1"}


def test_a_job_without_code_runs_the_built_in_program(container: Any, tools: Any) -> None:
    container.configure(learning_rate=0.1)
    container.env["HOTFIRE_PROCESSES_PER_HOST"] = "1"
    process = container.start()
    module = "hotfire.entrypoints.programs.text_classification\0--learning_rate\x000.1"
    words = ("hotfire.runtime.xla.exec", module, str(container.ml))
    tools.wait_for(lambda: tools.processes(*words), "torchrun")
    process.send_signal(signal.SIGTERM)
    result = container.finish(process)
    assert result.code == 143
    assert any("the job brings no code: the built-in program" in line for line in result.talk)


def test_torchrun_is_for_python(cluster: Any) -> None:
    cluster.write("job.sh", "#!/bin/sh\n")
    cluster.configure(sagemaker_program="job.sh")
    result = cluster.run()
    assert result.code == 1
    assert result.failure.startswith("torchrun starts Python scripts, and job.sh is an executable")
