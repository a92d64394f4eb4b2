"""TMPDIR is short enough for the sockets that multiprocessing makes there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotfire.entrypoints.train import temporary
from hotfire.entrypoints.train.temporary import short_temporary

LISTENS = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX').close()"


def listen(environment: dict[str, str]) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", LISTENS], env=environment, capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(temporary, "_TOP", tmp_path)
    return tmp_path


def test_a_long_directory_gets_a_short_name_for_a_while(tmp_path: Path) -> None:
    long = tmp_path / "attempts" / ("x" * 100) / "tmp"
    long.mkdir(parents=True)
    given = {**os.environ, "TMPDIR": str(long)}
    assert not listen(given)
    with short_temporary(given) as short:
        link = Path(short["TMPDIR"])
        assert listen(dict(short))
        (link / "file").touch()
    assert (long / "file").exists()
    assert not link.is_symlink()


def test_a_short_directory_stays(top: Path) -> None:
    given = {"TMPDIR": "/" + "x" * (temporary.LONGEST - 1)}
    with short_temporary(given) as same:
        assert same is given
    with short_temporary({}) as none:
        assert none == {}
    assert list(top.iterdir()) == []


def test_names_of_killed_hosts_go(top: Path) -> None:
    (top / "hotfire-tmp-dead").symlink_to(top / "gone")
    (top / "hotfire-tmp-alive").symlink_to(top)
    with short_temporary({"TMPDIR": "/" + "x" * 200}):
        assert not (top / "hotfire-tmp-dead").is_symlink()
        assert (top / "hotfire-tmp-alive").is_symlink()


def test_no_place_for_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_TOP", tmp_path / "absent")
    given = {"TMPDIR": "/" + "x" * 200}
    with short_temporary(given) as same:
        assert same is given
