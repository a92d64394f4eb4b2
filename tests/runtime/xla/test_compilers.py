"""The launcher and the three compilers: what the script is told, what is written, what is measured."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.xla import compile_cache, compiler_debug
from hotfire.runtime.xla.compilers import disagreement

Launch = Callable[..., Any]

STEPS = """
import os, sys
import torch
device = "cpu"
if sys.argv[1] == "xla":
    import torch_xla
    device = torch_xla.device()
model = torch.nn.Linear(4, 2).to(device)
groups = [{"params": []}, {"params": list(model.parameters())}]
optimizer, other = (torch.optim.SGD(groups, lr=0.1) for _ in range(2))
kept = []
for step in range(int(sys.argv[2])):
    kept.append(bytearray(int(sys.argv[3])))
    model(torch.ones(3, 4).to(device)).sum().backward()
    optimizer.step()
    other.step()
    if device != "cpu":
        torch_xla.sync()
print("steps", step + 1)
"""


@pytest.fixture
def steps(tmp_path: Path) -> str:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return str(path)


def measured(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "measures" / "rank-0.json").read_text())
    return found


@pytest.mark.parametrize(
    ("compiler", "device", "graphs", "said"),
    [
        ("xla", "xla", 0, ""),
        ("xla", "cpu", 0, "trains on cpu"),
        ("inductor", "cpu", 0, "torch.compile(model)"),
        ("inductor", "cuda", 2, ""),
        ("none", "cpu", 0, ""),
    ],
)
def test_a_script_that_ignores_the_compiler_is_told(
    compiler: str, device: str, graphs: int, said: str
) -> None:
    text = disagreement(compiler, device, graphs)
    assert said in text
    assert bool(text) == bool(said)


@pytest.mark.parametrize(
    ("device", "kept"), [("CPU", False), ("NEURON", False), ("GPU", True), ("TPU", True)]
)
def test_compiled_programs_are_kept_where_the_device_can_load_them(
    tmp_path: Path, device: str, kept: bool
) -> None:
    environment = {"HOTFIRE_COMPILE_CACHE": str(tmp_path), "PJRT_DEVICE": device}
    compile_cache.prepare(environment)
    path = environment.get(compile_cache.PATH, "")
    assert bool(path) is kept
    assert not kept or (Path(path).is_dir() and Path(path).parent == tmp_path)
    own = environment | {compile_cache.PATH: "/mine"}
    compile_cache.prepare(own)
    assert own[compile_cache.PATH] == "/mine"


@pytest.mark.parametrize(
    ("compiler", "more", "expected"),
    [
        ("xla", {}, {"XLA_METRICS_FILE": "compiler/XLA_METRICS_FILE.txt", "XLA_IR_DEBUG": "1"}),
        (
            "xla",
            {"RANK": "1", "WORLD_SIZE": "2", "XLA_IR_DEBUG": "0"},
            {"XLA_METRICS_FILE": "compiler/XLA_METRICS_FILE-rank1.txt", "XLA_IR_DEBUG": "0"},
        ),
        ("inductor", {}, {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": "compiler"}),
        ("none", {}, {}),
    ],
)
def test_debugging_tells_the_compiler_where_to_write(
    tmp_path: Path, compiler: str, more: dict[str, str], expected: dict[str, str]
) -> None:
    environment = {"SM_OUTPUT_DATA_DIR": str(tmp_path), **more}
    compiler_debug.prepare(compiler, environment)
    atexit.unregister(compiler_debug._report)
    paths = {name: str(tmp_path / text) for name, text in expected.items() if text[0] in "c"}
    assert environment.items() >= {**expected, **paths}.items()
    assert (tmp_path / "compiler").is_dir() is (compiler != "none")


@pytest.mark.xla
def test_steps_are_timed_and_the_script_ends_at_the_last(
    launch: Launch, steps: str, tmp_path: Path
) -> None:
    [done] = launch(
        *(steps, "cpu", "9", "0"),
        HOTFIRE_COMPILER="inductor",
        HOTFIRE_MEASURE_STEPS="4",
        SM_OUTPUT_DATA_DIR=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("the script has compiled nothing") == 1
    record = measured(tmp_path)
    assert record["ended"] == "steps"
    # Two optimizers step four times each: the first one counts.
    assert len(record["steps"]) == 4 and record["steps"] == sorted(record["steps"])
    assert record["device"] == "cpu" and record["compilations"] == 0
    assert record["peak_host_bytes"] > 100 << 20 and record["peak_device_bytes"] is None


@pytest.mark.xla
def test_a_script_beyond_the_memory_limit_ends_as_if_killed(
    launch: Launch, steps: str, tmp_path: Path
) -> None:
    [done] = launch(
        *(steps, "cpu", "1000000", str(4 << 20)),
        HOTFIRE_MEASURE_STEPS="1000000",
        HOTFIRE_MEMORY_LIMIT=str(900 << 20),
        SM_OUTPUT_DATA_DIR=str(tmp_path),
    )
    assert done.returncode == 137
    record = measured(tmp_path)
    assert record["ended"] == "memory"
    assert record["peak_host_bytes"] > 900 << 20
    assert 0 < len(record["steps"]) < 1000


@pytest.mark.xla
def test_debugging_leaves_metrics_graphs_and_lines(
    launch: Launch, steps: str, tmp_path: Path
) -> None:
    [done] = launch(
        *(steps, "xla", "5", "0"),
        HOTFIRE_COMPILER="xla",
        HOTFIRE_COMPILER_DEBUG="1",
        SM_OUTPUT_DATA_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in (tmp_path / "compiler").iterdir()}
    assert set(found) == {
        "XLA_METRICS_FILE.txt",
        "XLA_SAVE_TENSORS_FILE.hlo",
        "XLA_SAVE_TENSORS_FILE.ir",
        "metrics-report.txt",
    }
    assert "steps.py:" in found["XLA_SAVE_TENSORS_FILE.ir"]
    assert "HloModule" in found["XLA_SAVE_TENSORS_FILE.hlo"]
    assert "Metric: CompileTime" in found["metrics-report.txt"]
    # The same step five times: the graph is not written five times.
    assert found["XLA_SAVE_TENSORS_FILE.hlo"].count("# step") < 5
    # torch_xla goes by the innermost frame, which is the doctor's.
    assert "Compilation Analysis:   user torch_xla.sync" in done.stderr + done.stdout
    assert "hotfire: compiler (rank 0): " in done.stderr
    assert str(tmp_path / "compiler") in done.stderr


@pytest.mark.xla
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor on a CPU needs g++")
def test_eager_xla_and_inductor_train_alike(launch: Launch, workers: Path, tmp_path: Path) -> None:
    out = tmp_path / "seam.json"
    [done] = launch(
        *(str(workers / "seam.py"), str(out), "xla", "none", "inductor"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "compiled"),
        # Scalar code: probing the processor's vectors takes four times as long as all the rest.
        TORCHINDUCTOR_VEC_ISA_OK="0",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert found["graphs"] >= 1, "Inductor compiled nothing"
    eager = found["reports"].pop("none")
    assert found["reports"]["xla"]["device"] == "xla"
    for report in found["reports"].values():
        assert report["losses"] == pytest.approx(eager["losses"], rel=1e-5)
        assert report["weights"] == pytest.approx(eager["weights"], rel=1e-4, abs=1e-6)
        assert report["evaluation"] == pytest.approx(eager["evaluation"], rel=1e-5)


@pytest.mark.xla
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor on a CPU needs g++")
def test_the_trainers_model_is_compiled_by_the_launchers_variables(
    launch: Launch, workers: Path, tmp_path: Path
) -> None:
    [done] = launch(
        *(str(workers / "hf_trainer.py"), str(tmp_path / "report.json"), "1"),
        HOTFIRE_COMPILER="inductor",
        USE_TORCH_XLA="0",
        ACCELERATE_DYNAMO_BACKEND="inductor",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "compiled"),
        TORCHINDUCTOR_VEC_ISA_OK="0",
        HOTFIRE_MEASURE_STEPS="3",
        SM_OUTPUT_DATA_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "has compiled nothing" not in done.stderr
    record = measured(tmp_path)
    assert (record["ended"], record["device"]) == ("steps", "cpu")
    assert record["compilations"] >= 1
