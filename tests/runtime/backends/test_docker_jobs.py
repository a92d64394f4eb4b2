"""Whole jobs in containers, through the command line: two hosts, failures, stops, the lines for a bare host, XLA."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runtime.backends.conftest import Desk

pytestmark = pytest.mark.docker


_WRITES = """
import json, os, socket
host = os.environ["SM_CURRENT_HOST"]
print("read", open(os.environ["SM_CHANNEL_TRAIN"] + "/f").read(), "as", host, os.environ["SM_HP_A"])
open(os.environ["SM_CHANNEL_TRAIN"] + "/cache", "w").close()
os.makedirs(os.environ["SM_MODEL_DIR"] + "/" + host)
open(os.environ["SM_MODEL_DIR"] + "/" + host + "/w", "w").write(socket.gethostname())
"""


def test_two_hosts_from_channel_to_artifact(desk: Desk) -> None:
    desk.script(_WRITES)
    done = desk.run(
        "--name", "two", "--instance-count", "2", "--input", "train=data", "-p", "a=1.5"
    )
    assert done.returncode == 0, done.stderr
    assert {"algo-1 | read 42 as algo-1 1.5", "algo-2 | read 42 as algo-2 1.5"} <= set(
        done.stdout.splitlines()
    )
    assert {"algo-1/w", "algo-2/w"} <= set(desk.members("two"))
    assert os.listdir(desk.root / "data") == ["f"]  # noqa: PTH208
    # A host that ends at once does not take its name away from one that starts later.
    assert "waiting for host" not in done.stdout


def test_emulated_cores_are_seen_in_the_container(desk: Desk) -> None:
    desk.script("import os; print('cores', os.environ['SM_NUM_NEURONS'])\n")
    done = desk.run("--instance-type", "ml.trn1.2xlarge")
    assert done.returncode == 0, done.stderr
    assert "cores 2" in done.stdout


def test_a_failing_host_fails_the_job_and_ends_the_other(desk: Desk) -> None:
    desk.script(
        "import os, sys, time\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2': raise ValueError('bad batch')\n"
        "time.sleep(600)\n"
    )
    began = time.monotonic()
    done = desk.run("--name", "bad", "--instance-count", "2")
    assert done.returncode == 1
    assert "bad batch" in done.stderr
    assert "exit code: 1" in done.stderr
    assert time.monotonic() - began < 100


def test_an_image_that_is_not_here_is_refused_before_anything_starts(desk: Desk) -> None:
    desk.script("")
    done = desk.run(image="hotfire-gpu:never-built")
    assert done.returncode == 2
    assert "hotfire images build gpu" in done.stderr
    assert not (desk.root / "home" / "jobs").exists() or not list(
        (desk.root / "home" / "jobs").iterdir()
    )


def request(desk: Desk, image: str, **algorithm: list[str]) -> list[str]:
    """The words that run a job whose image is not ours."""
    document = {
        "TrainingJobName": "plain",
        "RoleArn": "arn:aws:iam::123456789012:role/r",
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            **algorithm,
        },
        "OutputDataConfig": {"S3OutputPath": f"file://{desk.root}/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "Environment": {"MINE": "1"},
    }
    (desk.root / "job.json").write_text(json.dumps(document))
    return [sys.executable, "-m", "hotfire.entrypoints", "run", "job.json"]


def test_container_entrypoint_and_arguments(desk: Desk, docker_base: str) -> None:
    argv = request(
        desk,
        docker_base,
        ContainerEntrypoint=["/bin/sh", "-c"],
        ContainerArguments=['echo "$0" "$TRAINING_JOB_NAME"; env | cut -d= -f1 | sort', "a b"],
    )
    done = desk.call([*argv, "--backend", "docker"])
    assert done.returncode == 0, done.stderr
    first, *names = done.stdout.splitlines()
    assert first == "a b plain"
    assert {"MINE", "TRAINING_JOB_ARN", "AWS_REGION", "HOME", "HOSTNAME"} <= set(names)
    assert not {"SM_HOSTS", "PYTHONPATH", "AWS_DEFAULT_REGION"} & set(names)
    assert "VolumeSizeInGB is not enforced" in done.stderr


def test_arguments_alone_go_to_the_image_s_own_entry_point(desk: Desk, docker_base: str) -> None:
    """Without the word train (contract 1.1)."""
    text = f'FROM {docker_base}\nENTRYPOINT ["printf", "<%s>"]\nCMD ["no"]\n'
    build = [desk_docker(), "build", "-q", "-t", "hotfire-test/arguments", "-"]
    env = {**desk.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(build, input=text.encode(), check=True, capture_output=True, env=env)
    try:
        argv = request(desk, "hotfire-test/arguments", ContainerArguments=["serve", "a b"])
        done = desk.call([*argv, "--backend", "docker"])
        assert (done.returncode, done.stdout) == (0, "<serve><a b>\n"), done.stderr
        done = desk.call([*argv, "--name", "process"])
        assert done.returncode == 2
        assert "--backend docker" in done.stderr
    finally:
        rm = [desk_docker(), "rmi", "hotfire-test/arguments"]
        subprocess.run(rm, check=True, capture_output=True, env=env)


_LISTED = """
import sys
from hotfire.runtime import description, service
from hotfire.runtime.surroundings import Surroundings
for job in description.list_jobs(Surroundings.here()):
    print(job["TrainingJobName"], job["TrainingJobStatus"], "docker" in sys.modules)
"""


def test_a_job_whose_supervisor_was_killed_is_told_and_cleaned_up_by_ps(desk: Desk) -> None:
    """The desk counts what is left. Hosts, network and copy-on-write volumes; twice, to see that it costs once."""
    desk.script("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    argv = desk.argv("--name", "killed", "--instance-count", "2", "--input", "train=data")
    with subprocess.Popen(
        argv, cwd=desk.root, env=desk.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        ups = (line for line in process.stdout if b"up" in line)
        assert len(list(itertools.islice(ups, 2))) == 2
        process.kill()
    said = [
        subprocess.run(
            [sys.executable, "-c", _LISTED],
            env=desk.environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["killed", "Failed", "True"], ["killed", "Failed", "False"]]
    job = desk.root / "home" / "jobs" / "killed"
    assert (job / "notes").read_text().count("which the supervisor had left") == 2
    assert list(job.glob("attempts/*/*/scratch")) == []


def test_the_printed_lines_run_on_a_bare_host(desk: Desk, tmp_path: Path) -> None:
    desk.script(
        "import os; print('ran with', os.environ['SM_HP_A'], os.listdir('/opt/ml/input/data/train'))\n"
    )
    flags = ("--input", "train=data", "-p", "a=it's", "--dry-run", "--as", "docker-run")
    done = desk.run(*flags, "--env", "API_TOKEN=secret123")
    assert done.returncode == 0, done.stderr
    assert "secret123" not in done.stdout
    assert "-e API_TOKEN" in done.stdout
    assert "/opt/ml:" not in done.stdout.replace("/opt/ml/", "")
    host = tmp_path / "host"
    (host / "ml" / "input" / "data").mkdir(parents=True)
    for name, source in (("code", "src"), ("input/data/train", "data")):
        subprocess.run(["cp", "-r", str(desk.root / source), str(host / "ml" / name)], check=True)
    # This machine's engine may not be allowed to raise limits.
    lines = "\n".join(line for line in done.stdout.splitlines() if "--ulimit" not in line)
    env = {**desk.environ, "PATH": f"/usr/bin:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["sh", "-euc", lines], cwd=host, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "ran with it's ['f']" in ran.stdout


_GRADIENTS = """
import os, torch, torch_xla
import torch.distributed as dist, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.xla_backend
dist.init_process_group("xla", init_method="xla://")
rank, size = xr.global_ordinal(), xr.world_size()
torch.manual_seed(0)
device = torch_xla.device()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
inputs, targets = torch.randn(12, 8), torch.randn(12, 1)
part = slice(rank * 12 // size, (rank + 1) * 12 // size)
loss = torch.nn.functional.mse_loss(model(inputs[part].to(device)), targets[part].to(device))
loss.backward()
xm.reduce_gradients(torch.optim.SGD(model.parameters(), lr=0.1))
torch_xla.sync()
flat = torch.cat([p.grad.cpu().flatten() for p in model.parameters()])
print("world", size, "on", xr.device_type())
if rank == 0: torch.save(flat, "/opt/ml/model/gradients.pt")
"""


@pytest.fixture
def with_torch(desk: Desk, docker_base: str) -> tuple[str, ...]:
    """Flags: this environment comes in as a channel, copy on write, instead of being baked into 7 GB of layers."""
    words = ("run", "--rm", docker_base, "python3", "-c", "import sys; print(sys.version_info[1])")
    version = subprocess.run(
        [desk_docker(), *words], capture_output=True, text=True, check=True, env=desk.environ
    ).stdout.strip()
    if int(version) != sys.version_info[1]:
        pytest.skip(f"the base image has Python 3.{version}, not 3.{sys.version_info[1]}")
    return (
        *("--input", f"env={sysconfig.get_paths()['purelib']}"),
        *("--env", "PYTHONPATH=/opt/hotfire:/opt/ml/input/data/env"),
    )


@pytest.mark.xla
@pytest.mark.slow
def test_gradients_of_two_hosts_are_those_of_one_process(
    desk: Desk, with_torch: tuple[str, ...]
) -> None:
    import torch

    desk.script(_GRADIENTS)
    common = (
        *with_torch,
        *("--instance-type", "ml.trn1.2xlarge", "--distribution", "torch_distributed"),
        *("--processes-per-host", "1"),
    )
    found = []
    for hosts in (1, 2):
        name = f"gradients-{hosts}"
        done = desk.run("--name", name, "--instance-count", str(hosts), *common)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert f"world {hosts} on CPU" in done.stdout
        with tarfile.open(desk.root / "out" / name / "output" / "model.tar.gz") as tar:
            member = tar.extractfile("gradients.pt")
            assert member is not None
            found.append(torch.load(member))
    assert float(found[0].norm()) > 0.1
    assert torch.allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


_EIGHT = """
import json, os, socket, torch, torch.distributed as dist
hosts, me = json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]
assert len({socket.gethostbyname(host) for host in hosts}) == 8
rank = hosts.index(me)
dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:7777", rank=rank, world_size=8)
torch.manual_seed(0)
inputs, weights = torch.randn(64, 4), torch.zeros(4, requires_grad=True)
targets = inputs @ torch.tensor([1.0, -2.0, 3.0, -4.0])
for step in range(100):
    loss = ((inputs[rank::8] @ weights - targets[rank::8]) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    dist.all_reduce(gradient)
    with torch.no_grad(): weights -= 0.1 * gradient / 8
print("learned", [round(w, 2) + 0.0 for w in weights.tolist()], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.xla
@pytest.mark.slow
def test_eight_hosts_train_together(desk: Desk, with_torch: tuple[str, ...]) -> None:
    """They find each other by name, sum their gradients over the network, and go away; the desk counts what is left."""
    desk.script(_EIGHT)
    env = ("--env", "GLOO_SOCKET_IFNAME=eth0", "--env", "OMP_NUM_THREADS=1")
    done = desk.run("--instance-count", "8", *with_torch, *env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    wanted = {f"algo-{n} | learned [1.0, -2.0, 3.0, -4.0]" for n in range(1, 9)}
    assert {line for line in done.stdout.splitlines() if "learned" in line} == wanted


def desk_docker() -> str:
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
