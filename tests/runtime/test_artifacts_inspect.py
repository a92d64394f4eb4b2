"""Warnings about what a model directory holds."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.model_files import inspect

CONFIG = json.dumps({"model_type": "bert", "architectures": ["BertModel"]})


def safetensors(path: Path, size: int = 8) -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, size]},
        }
    ).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(size)
    path.write_bytes(data)
    return data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """What save_pretrained leaves."""
    (tmp_path / "config.json").write_text(CONFIG)
    safetensors(tmp_path / "model.safetensors")
    (tmp_path / "vocab.txt").write_text("a")
    return tmp_path


def test_a_saved_model_is_fine(model: Path) -> None:
    found = inspect(model)
    assert found.warnings == ()
    assert found.files == 3
    assert found.largest[0][0] == "model.safetensors"
    assert found.bytes == sum(path.stat().st_size for path in model.iterdir())


@pytest.mark.parametrize("exists", [True, False])
def test_nothing(exists: bool, tmp_path: Path) -> None:
    (warning,) = inspect(tmp_path if exists else tmp_path / "model").warnings
    assert "empty" in warning
    assert "SM_MODEL_DIR" in warning


def test_optimizer_states_are_counted(model: Path) -> None:
    (model / "checkpoint-500").mkdir()
    (model / "checkpoint-500" / "optimizer.pt").write_bytes(b"\x80\x02" + bytes(4998))
    (model / "checkpoint-500" / "trainer_state.json").write_bytes(b"{}")
    (model / "adam.optim").write_bytes(bytes(1000))
    (warning,) = inspect(model).warnings
    assert "6 kB in 3 files (checkpoint-500/optimizer.pt ...)" in warning


def test_config_without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (warning,) = inspect(model).warnings
    assert "config.json without weights" in warning


def test_a_config_of_somebody_else_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"layers": 3}')
    (tmp_path / "model.pth").write_bytes(b"\x80\x02x")
    assert inspect(tmp_path).warnings == ()


def test_weights_without_config(model: Path) -> None:
    (model / "config.json").unlink()
    (warning,) = inspect(model).warnings
    assert "model.safetensors without config.json" in warning


def test_adapters_have_a_config_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    safetensors(tmp_path / "adapter_model.safetensors")
    assert inspect(tmp_path).warnings == ()


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1])
def test_safetensors_that_are_cut_off(keep: int, model: Path) -> None:
    data = safetensors(model / "model.safetensors")
    (model / "model.safetensors").write_bytes(data[:keep])
    (warning,) = inspect(model).warnings
    assert "model.safetensors is cut off" in warning


def test_not_safetensors_at_all(model: Path) -> None:
    (model / "model.safetensors").write_bytes((5).to_bytes(8, "little") + b"hello" + bytes(50))
    (warning,) = inspect(model).warnings
    assert "no safetensors header" in warning


def test_torch_files_that_are_cut_off(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "good.pt", "w") as file:
        file.writestr("data.pkl", bytes(100))
    whole = (tmp_path / "good.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[:60])
    (tmp_path / "none.bin").touch()
    assert sorted(warning.split("directory: ")[1] for warning in inspect(tmp_path).warnings) == [
        "cut.pt is cut off",
        "none.bin is empty",
    ]


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ({"weight_map": {"a": "s-1.safetensors", "b": "s-2.safetensors"}}, "names 1 files"),
        ({}, "has no weight_map"),
    ],
)
def test_shards_that_are_not_there(index: Any, text: str, model: Path) -> None:
    (model / "model.safetensors").rename(model / "s-1.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (warning,) = inspect(model).warnings
    assert text in warning


def test_a_config_that_is_not_json(model: Path) -> None:
    (model / "config.json").write_text("{")
    (warning,) = inspect(model).warnings
    assert "config.json is not JSON" in warning


def test_hosts_are_judged_together(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "1" / "config.json").write_text(CONFIG)
    safetensors(tmp_path / "2" / "model.safetensors")
    assert inspect(tmp_path / "1", tmp_path / "2").warnings == ()
