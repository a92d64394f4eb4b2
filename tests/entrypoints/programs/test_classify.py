"""Reading a model archive without trusting it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hotfire.entrypoints.programs import classify


def archive(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_member_leading_out_of_the_archive_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = archive(tmp_path / "m.tar.gz", ("../../evil.txt", b"x"), ("config.json", b"{}"))
    assert classify.main([str(bad), "hello"]) == 1
    assert "evil.txt" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["empty directory", "empty archive", "absent", "no archive"])
def test_what_is_no_model_is_said(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model"
    if kind == "empty directory":
        path.mkdir()
    elif kind == "empty archive":
        archive(path)
    elif kind == "no archive":
        path.write_text("hello")
    assert classify.main([str(path), "hello"]) == 1
    assert capsys.readouterr().err.startswith("classify: ")
