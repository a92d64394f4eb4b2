"""The arrows between the packages, and what the command line may import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Package -> what it may import of hotfire. The most specific row wins.
ALLOWED: dict[str, tuple[str, ...]] = {
    "runtime/backends/docker": ("hotfire.runtime", "hotfire.containers"),
    "runtime/xla": ("hotfire.runtime.xla", "hotfire.runtime.layout", "hotfire.runtime.errors"),
    "runtime": ("hotfire.runtime",),
    "containers": ("hotfire.containers", "hotfire.runtime.errors", "hotfire.runtime.events"),
    "entrypoints": ("hotfire",),
}
# Who alone may import what, since it is heavy or touches the outside.
OWNERS = {
    "docker": "containers",
    "click": "entrypoints",
    "torch_xla": ("runtime/xla", "entrypoints"),
}


def modules() -> list[Path]:
    folders = ("runtime", "containers", "entrypoints")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def allowed_for(relative: str) -> tuple[str, ...]:
    return next(rule for prefix, rule in ALLOWED.items() if relative.startswith(prefix))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_the_right_way(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    for name in imported(path):
        if name.split(".")[0] == "hotfire":
            assert any(
                name == rule or name.startswith(rule + ".") for rule in allowed_for(relative)
            ), f"{relative} imports {name}"
        owners = OWNERS.get(name.split(".")[0])
        if owners:
            assert relative.startswith(owners), f"{relative} imports {name}"


def imported_by(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code``, in a fresh interpreter."""
    shown = (
        f"{code}\nimport json, sys\nprint(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", shown],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "build" / "view"), "PATH": "/usr/bin:/bin"},
    )
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_help_imports_next_to_nothing() -> None:
    heavy = {"boto3", "botocore", "docker", "torch", "torch_xla", "yaml", "regex", "re2", "isal"}
    code = (
        "import contextlib, io\n"
        "from hotfire.entrypoints import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    cli.main(['--help'])"
    )
    found = imported_by(code)
    assert not found & heavy
    assert "click" in found


def test_importing_the_runtime_does_nothing() -> None:
    found = imported_by("import hotfire.runtime, hotfire.runtime.spec, hotfire.runtime.layout")
    assert not found & {"boto3", "docker", "torch", "click", "yaml", "subprocess"}


def test_train_needs_only_the_standard_library_until_it_runs() -> None:
    found = imported_by("import hotfire.entrypoints.train.__main__")
    assert not found & {"boto3", "docker", "torch", "click", "yaml", "regex"}
