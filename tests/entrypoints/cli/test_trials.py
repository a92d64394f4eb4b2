"""`hotfire bench` and `hotfire tune-batch` over real jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

REFUSED, FAILED = 2, 1

# Trains wherever the job's compiler says; needs 64 MB for each sample of the batch.
SCRIPT = """
import argparse, os
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=1)
parser.add_argument("--learning_rate", type=float, default=0.1)
size = parser.parse_args().batch_size
device = "cpu"
if os.environ["HOTFIRE_COMPILER"] == "xla":
    import torch_xla
    device = torch_xla.device()
kept = [bytearray(b"x") * (64 << 20) for _ in range(size)]
model = torch.nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(3, 4).to(device)).sum().backward()
    optimizer.step()
    if device != "cpu":
        torch_xla.sync()
print("not reached" if size < 30 else "")
"""


@pytest.mark.xla
@pytest.mark.slow
def test_bench_compares_the_compilers_on_the_same_job(hotfire: Any) -> None:
    hotfire.script(SCRIPT)
    result = hotfire(
        *("bench", "train.py", "--compilers", "none,xla", "--steps", "3", "-p", "batch_size=2"),
        "--json",
    )
    assert result.returncode == 0, result.stderr
    none, xla = json.loads(result.stdout)["Compilers"]
    assert (none["compiler"], none["device"], none["compilations"]) == ("none", "cpu", 0)
    assert (xla["compiler"], xla["device"]) == ("xla", "xla")
    assert xla["compilations"] >= 1 and 0 < xla["compile_seconds"] < xla["start_seconds"]
    for row in (none, xla):
        assert row["samples_per_second"] == pytest.approx(2 / row["step_seconds"])
        assert row["peak_host_bytes"] > 128 << 20
        assert row["peak_device_bytes"] is None
    assert "no device's memory" in result.stderr or "no device's memory" in result.stdout
    jobs = hotfire.home / "jobs"
    assert not jobs.exists() or not list(jobs.iterdir()), "trials leave no jobs"
    assert not (hotfire.cwd / "hotfire-out").exists()


@pytest.mark.xla
@pytest.mark.slow
def test_the_largest_batch_below_a_memory_limit(hotfire: Any) -> None:
    hotfire.script(SCRIPT)
    # Without any sample torch takes 0.2 to 0.7 GB, depending on its build.
    result = hotfire(
        *("tune-batch", "train.py", "-p", "batch_size=auto", "-p", "learning_rate=0.001"),
        *("--compilers", "none", "--memory-limit", "1.5GB", "--start", "8", "--max", "64"),
        "--json",
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    (column,) = answer["Columns"]
    found = column["LargestBatch"]
    assert found in (8, 16)
    assert (column["LimitedBy"], column["GlobalBatch"]) == ("memory", found)
    assert column["LearningRate"]["Linear"] == pytest.approx(0.001 * found / 8)
    curve = {one["Batch"]: one for one in column["Curve"]}
    assert all((one["Verdict"] == "fits") is (batch <= found) for batch, one in curve.items())
    assert curve[found]["PeakHostBytes"] > found * (64 << 20)
    assert curve[found]["PeakDeviceBytes"] is None
    assert "not what fits a device" in "".join(answer["Remarks"])


def test_a_script_without_steps_cannot_be_compared(hotfire: Any) -> None:
    hotfire.script("print('nothing to train')\n")
    result = hotfire("bench", "train.py", "--compilers", "none")
    assert result.returncode == FAILED
    assert "ended without a step of a torch optimizer" in result.stderr


def test_a_script_that_fails_ends_the_search_and_is_kept(hotfire: Any) -> None:
    hotfire.script("raise ValueError('no such column')\n")
    search = ("tune-batch", "train.py", "-p", "batch_size=auto", "--memory-limit", "1GB")
    result = hotfire(*search)
    assert result.returncode == FAILED
    assert "the trial with compiler none, batch_size=8 failed" in result.stderr
    assert "no such column" in result.stderr
    (job,) = (hotfire.home / "jobs").iterdir()
    assert f"hotfire logs {job.name}" in result.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-p", "batch_size=8", "--memory-limit", "1GB"), "give the batch size as auto"),
        (("-p", "a=auto", "-p", "b=auto", "--memory-limit", "1GB"), "only one hyperparameter"),
        (("-p", "a=auto", "--memory-limit", "lots"), "not a size"),
        (("-p", "a=auto", "--memory-limit", "1GB", "--compilers", "gcc"), "'gcc' is none of"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    hotfire: Any, flags: tuple[str, ...], said: str
) -> None:
    hotfire.script("")
    result = hotfire("tune-batch", "train.py", *flags)
    assert result.returncode == REFUSED
    assert said in result.stderr


def test_a_cpu_has_no_memory_of_its_own_that_could_be_the_limit(
    hotfire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from hotfire.entrypoints.cli.tune_batch import tune_batch
    from hotfire.runtime import devices

    machine = devices.Machine(cpus=2, memory=1 << 34, memory_free=1 << 33)
    monkeypatch.setattr(devices, "machine", lambda: machine)
    result = CliRunner().invoke(tune_batch, ["train.py", "-p", "batch_size=auto"])
    assert result.exit_code == REFUSED
    assert "give --memory-limit" in result.output


def test_people_get_the_curves_and_a_column_for_each_compiler() -> None:
    from hotfire.entrypoints.cli.tune_batch import remarks, scaled, text_of

    point = {"Batch": 32, "Verdict": "fits", "PeakHostBytes": 2 * 10**9, "PeakDeviceBytes": None}
    beyond = point | {"Batch": 64, "Verdict": "does not fit", "PeakHostBytes": 3 * 10**9}
    some = {"Compiler": "xla", "LargestBatch": 32, "LimitedBy": "memory", "Workers": 4}
    none = {"Compiler": "none", "LargestBatch": 0, "LimitedBy": "memory", "Workers": 1}
    columns = [
        scaled(none | {"GlobalBatch": 0, "Curve": [beyond]}, 1e-3, 8),
        scaled(some | {"GlobalBatch": 128, "Curve": [point, beyond]}, 1e-3, 8),
    ]
    document = {
        "Hyperparameter": "batch_size",
        "BaseLearningRate": 1e-3,
        "BaseBatch": 8,
        "Columns": columns,
    }
    lines = [" ".join(line.split()) for line in text_of(document).splitlines()]
    assert "xla 32 2 GB - fits" in lines
    assert "xla 64 > 3 GB - does not fit" in lines
    assert "largest batch_size 0 32" in lines
    assert "learning rate, linear (0.001 at 8) - 0.016" in lines
    assert "learning rate, square root - 0.004" in lines
    assert "warm-up, share of the steps - 0.1" in lines
    [_, *hopeless, _] = remarks(1 << 30, 1e-3, columns)
    assert [text[:45] for text in hopeless] == ["compiler none: not even a batch of 1 fits; Py"]
