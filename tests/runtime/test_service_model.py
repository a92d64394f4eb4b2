"""The extract of botocore's service model: complete, cached whole or not at all, and made without importing botocore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import service_model
from hotfire.runtime.service_model import ROOT


def entry_of(directory: Path) -> Path:
    (entry,) = directory.glob("service-model-*.json")
    return entry


def fresh(directory: Path) -> service_model.Shapes:
    service_model._load.cache_clear()
    return service_model.load(directory)


def test_the_extract_agrees_with_botocore() -> None:
    from botocore.session import Session

    model: Any = Session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    shapes = service_model.load()
    assert list(shapes[ROOT]["members"]) == list(model.input_shape.members)
    assert shapes[ROOT]["required"] == model.input_shape.required_members
    count = model.input_shape.members["ResourceConfig"].members["KeepAlivePeriodInSeconds"]
    extracted = shapes["KeepAlivePeriodInSeconds"]
    assert {key: extracted[key] for key in ("min", "max")} == {
        key: count.metadata[key] for key in ("min", "max")
    }
    enum = service_model.enum_values("TrainingInstanceType")
    assert list(enum) == model.input_shape.members["ResourceConfig"].members["InstanceType"].enum


def test_the_cache_holds_what_was_extracted(tmp_path: Path) -> None:
    first = fresh(tmp_path)
    assert json.loads(entry_of(tmp_path).read_text()) == first
    assert fresh(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [entry_of(tmp_path).name]


def test_the_cache_is_used(tmp_path: Path) -> None:
    shapes = dict(fresh(tmp_path))
    shapes["TrainingJobName"] = {"type": "string", "max": 7}
    entry_of(tmp_path).write_text(json.dumps(shapes))
    assert fresh(tmp_path)["TrainingJobName"]["max"] == 7


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "{}", '{"CreateTrainingJobRequest": {"type": 1}}']
)
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, damage: str) -> None:
    whole = fresh(tmp_path)
    entry_of(tmp_path).write_text(damage)
    assert fresh(tmp_path) == whole
    assert json.loads(entry_of(tmp_path).read_text()) == whole


def test_a_cut_off_cache_is_rebuilt(tmp_path: Path) -> None:
    whole = fresh(tmp_path)
    entry = entry_of(tmp_path)
    shapes = json.loads(entry.read_text())
    del shapes["TagKey"]
    entry.write_text(json.dumps(shapes))
    assert fresh(tmp_path) == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    assert ROOT in fresh(occupied / "cache")
    assert occupied.read_text() == "in the way"


def test_the_hot_path_imports_neither_botocore_nor_regex_nor_yaml(tmp_path: Path) -> None:
    program = (
        "import json, sys; from pathlib import Path; from hotfire.runtime import request\n"
        "raw = request.load_text(Path(sys.argv[1]).read_text(), sys.argv[1])\n"
        "request.parse(raw, region='us-east-1', cache_dir=Path(sys.argv[2]))\n"
        "print(json.dumps([name for name in ('botocore', 'boto3', 'regex', 'yaml', 'importlib.metadata',"
        " 'torch') if name in sys.modules]))"
    )
    document = Path(__file__).parent / "data" / "minimal.json"
    done = subprocess.run(
        [sys.executable, "-c", program, str(document), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []
