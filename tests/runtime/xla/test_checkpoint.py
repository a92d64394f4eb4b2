"""Checkpoint files: whole or absent, the last ones kept, the uploader's markers respected."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="checkpoints need the xla extra")

from hotfire.runtime.xla import checkpoint

pytestmark = pytest.mark.xla


def test_last_ones_are_kept_and_read_back(tmp_path: Path) -> None:
    directory = tmp_path / "not yet there"
    for step in (3, 12, 100_000_000):
        checkpoint.write(directory, step, {"at": torch.tensor([step])}, keep=2)
    assert checkpoint.saved_steps(directory) == [12, 100_000_000]
    assert checkpoint.read(directory, 12)["at"].tolist() == [12]


def test_what_the_uploader_is_sending_is_not_deleted(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, {}, keep=1)
    marker = tmp_path / "checkpoint-00000001.pt.sagemaker-uploading"
    marker.touch()
    checkpoint.write(tmp_path, 2, {}, keep=1)
    assert checkpoint.saved_steps(tmp_path) == [1, 2]
    marker.unlink()
    checkpoint.write(tmp_path, 3, {}, keep=1)
    assert checkpoint.saved_steps(tmp_path) == [3]


class Unsaveable:
    """Fails in the middle of being written, noting which files there were."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __reduce__(self) -> str:
        names = [path.name for path in self.directory.iterdir()]
        raise OSError(f"disk full; files: {names}")


def test_failed_write_leaves_earlier_checkpoints_and_no_partial_file(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, {"kept": True}, keep=1)
    with pytest.raises(OSError, match="disk full") as raised:
        checkpoint.write(tmp_path, 2, {"bad": Unsaveable(tmp_path)}, keep=1)
    assert ".sagemaker-ignore" in str(raised.value), "the name while writing is not uploaded"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-00000001.pt"]
    assert checkpoint.read(tmp_path, 1) == {"kept": True}


def test_reading_runs_no_code_from_the_file(tmp_path: Path) -> None:
    torch.save({"model": Path("/")}, checkpoint.path_of(tmp_path, 1))
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        checkpoint.read(tmp_path, 1)


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-5.pt", "checkpoint-00000005.pt.sagemaker-uploaded", "notes.txt"):
        (tmp_path / name).touch()
    assert checkpoint.saved_steps(tmp_path) == []
    assert checkpoint.saved_steps(tmp_path / "absent") == []
