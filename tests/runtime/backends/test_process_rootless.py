"""Root runs every test of this folder a second time as an ordinary user; an ordinary user has just done so."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the user nobody owns; pytest's own temporary directories are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="hotfire-rootless-"))
    yield path
    shutil.rmtree(path)


def give_away(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def interpreter() -> str:
    """A Python that the user nobody may execute: root's own often lies below /root."""
    versions = [f"/usr/bin/python3.{minor}" for minor in (13, 12, 11)]
    # setpriv itself executes with root's rights; only what it starts has lost them.
    usable = "import ctypes, os, sys; sys.exit(not os.access(sys.executable, os.X_OK))"
    for python in (str(Path(sys.executable).resolve()), *versions):
        command = (*AS_NOBODY, python, "-I", "-c", usable)
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return python
    pytest.skip("no Python from 3.11 to 3.13 on this machine can be executed by another user")


def copy_of_the_code(target: Path) -> None:
    """hotfire.runtime, these tests and pytest, where another user can read them."""
    package = target / "build" / "view" / "hotfire" / "runtime"
    without = shutil.ignore_patterns("__pycache__", "xla", "data")
    shutil.copytree(REPOSITORY / "runtime", package, ignore=without)
    tests = target / "tests" / "runtime" / "backends"
    tests.mkdir(parents=True)
    for path in (HERE / "conftest.py", HERE / "one_job.py", *HERE.glob("test_process_*.py")):
        shutil.copy(path, tests)
    shutil.copy(REPOSITORY / "pyproject.toml", target)
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if file.suffix == ".py":
                place = target / "site" / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(distribution.locate_file(file)), place)
            elif file.name in ("METADATA", "entry_points.txt"):
                (target / "site" / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(distribution.locate_file(file)), target / "site" / file)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_everything_here_as_an_ordinary_user(home: Path) -> None:
    python = interpreter()
    copy_of_the_code(home)
    give_away(home)
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(home / "tmp"),
        "tests/runtime/backends",
    ]
    done = subprocess.run(
        [*AS_NOBODY, python, "-B", "-m", "pytest", *arguments],
        cwd=home,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(home),
            "PYTHONPATH": str(home / "site"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.splitlines()[-1].split(" passed")[0].split()[-1])
    assert passed > 80
