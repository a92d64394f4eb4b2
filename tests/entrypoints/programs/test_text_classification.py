"""The built-in program from end to end: real workers, real files, a model that loads."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xla, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PROGRAM = ["-m", "hotfire.entrypoints.programs.text_classification"]
SMALL = {
    "model_name_or_path": "tiny-bert",
    "hidden_size": "32",
    "num_hidden_layers": "1",
    "intermediate_size": "64",
    "max_length": "16",
    "learning_rate": "6e-3",
    "seed": "3",
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def arguments(**more: str) -> list[str]:
    return [word for name, value in (SMALL | more).items() for word in (f"--{name}", value)]


def write_rows(path: Path, count: int) -> None:
    """Two classes, told apart by one word."""
    words = {"good": "kind", "not good": "sour"}
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        for i in range(count):
            label = list(words)[i % 2]
            writer.writerow([f"a {words[label]} film", label])


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job with channels train and test."""
    write_rows(tmp_path / "train" / "data.csv", 60)
    write_rows(tmp_path / "test" / "data.csv", 25)
    (tmp_path / "tmp").mkdir()
    drop = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HOTFIRE_", "SM_", "TORCHELASTIC")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return kept | {
        "PYTHONPATH": str(ROOT / "build" / "view"),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path / "tmp"),
        "SAGEMAKER_BASE_DIR": str(tmp_path),
        "SM_CHANNEL_TRAIN": str(tmp_path / "train"),
        "SM_CHANNEL_TEST": str(tmp_path / "test"),
        "SM_MODEL_DIR": str(tmp_path / "model"),
        "SM_OUTPUT_DATA_DIR": str(tmp_path / "output" / "data"),
    }


@pytest.fixture
def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return str(probe.getsockname()[1])


def run(job: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=job,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def metrics_of(output: str) -> dict[str, float]:
    """What a metric definition `^name = (.*)$` would find."""
    pairs = (line.split(" = ") for line in output.splitlines() if line.count(" = ") == 1)
    return {name: float(value) for name, value in pairs if value[0].isdigit()}


def test_two_xla_workers_train_a_model_that_loads_and_classifies(
    job: dict[str, str], tmp_path: Path
) -> None:
    more = {"num_train_epochs": "8", "per_device_train_batch_size": "4", "warmup_ratio": "0.1"}
    exec_ = ["-m", "hotfire.runtime.xla.exec", *PROGRAM]
    done = run(job, *TORCHRUN, *exec_, *arguments(compiler="xla", **more))
    assert done.returncode == 0, done.stderr[-4000:]
    metrics = metrics_of(done.stdout)
    assert metrics["train_steps"] == 64
    assert metrics["eval_accuracy"] == 1.0
    assert metrics["world_size"] == 2
    assert done.stdout.count("eval_accuracy") == 1, "one rank prints"
    assert "[Gloo]" not in done.stdout
    written = json.loads((tmp_path / "output" / "data" / "metrics.json").read_text())
    assert written["eval_accuracy"] == metrics["eval_accuracy"]
    assert list((tmp_path / "tmp").glob("hotfire*")) == [], "the token file is gone"
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any("optim" in name or name.endswith(".pt") for name in names)

    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in (tmp_path / "model").iterdir():
            tar.add(path, path.name)
    sentences = ["A kind film", "a sour film"]
    for place in (archive, tmp_path / "model"):
        classify = ["-m", "hotfire.entrypoints.programs.classify", str(place), *sentences]
        found = run(job, *classify)
        assert found.returncode == 0, found.stderr[-4000:]
        rows = [line.split("\t") for line in found.stdout.splitlines()]
        assert [(row[0], row[2]) for row in rows] == [
            (label, text) for label, text in zip(["good", "not good"], sentences, strict=True)
        ]


def test_checkpoint_of_a_shorter_run_is_continued_and_channels_can_be_one(
    job: dict[str, str], tmp_path: Path
) -> None:
    """A DatasetDict in one channel; /opt/ml/checkpoints exists, as with a CheckpointConfig."""
    datasets = pytest.importorskip("datasets", reason="needs the hf extra")
    with (tmp_path / "train" / "data.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    part = datasets.Dataset.from_list(rows)
    both = datasets.DatasetDict({"train": part, "test": part.select(range(10))})
    both.save_to_disk(str(tmp_path / "both"))
    (tmp_path / "checkpoints").mkdir()
    environment = {k: v for k, v in job.items() if k != "SM_CHANNEL_TEST"}
    environment["SM_CHANNEL_TRAIN"] = str(tmp_path / "both")
    whole = arguments(compiler="none", num_train_epochs="2", save_steps="4")
    first = run(environment, *PROGRAM, *whole, "--max_train_steps", "4")
    assert first.returncode == 0, first.stderr[-4000:]
    second = run(environment, *PROGRAM, *whole)
    assert second.returncode == 0, second.stderr[-4000:]
    assert "resumed_from_step = 4" in second.stdout
    assert metrics_of(second.stdout)["train_steps"] == 16
    assert metrics_of(second.stdout)["eval_accuracy"] >= 0.0
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["checkpoint-00000012.pt", "checkpoint-00000016.pt"]


def test_unusable_data_ends_the_job_with_one_line_and_no_hanging_rank(
    job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train" / "data.csv").write_text("question,answer\nwhy,1\n")
    job["HOTFIRE_WORKER_DIR"] = str(tmp_path / "records")
    exec_ = ["-m", "hotfire.runtime.xla.exec", *PROGRAM]
    done = run(job, *TORCHRUN, *exec_, *arguments(compiler="none"))
    assert done.returncode == 1
    assert "text_classification: " in done.stderr
    assert "--label_column" in done.stderr
    record = json.loads((tmp_path / "records" / "rank-0.error.json").read_text())
    assert record["exit_code"] == 1
    assert "--label_column" in record["message"]
    assert not (tmp_path / "model").exists()


def test_hosts_with_different_rows_are_refused(
    job: dict[str, str], tmp_path: Path, free_port: str
) -> None:
    """Two hosts of one worker each, as a channel with ShardedByS3Key would leave them."""
    write_rows(tmp_path / "other" / "data.csv", 40)
    hosts = []
    for node, channel in enumerate(("train", "other")):
        environment = job | {"SM_CHANNEL_TRAIN": str(tmp_path / channel)}
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node_rank={node}",
            "--nproc_per_node=1", "--master_addr=127.0.0.2", f"--master_port={free_port}",
            f"--local_addr=127.0.0.{2 + node}", *PROGRAM, *arguments(compiler="none"),
        ]  # fmt: skip
        hosts.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        errors = [host.communicate(timeout=120)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    for host, error in zip(hosts, errors, strict=True):
        assert host.returncode == 1
        assert "text_classification: the hosts have different data" in error
