"""What reaches site-packages: the package ``hotfire`` and nothing with a generic name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("containers", "entrypoints", "runtime")


def declared() -> dict[str, object]:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    settings: dict[str, object] = tools["setuptools"]
    return settings


def test_every_package_on_disk_is_declared() -> None:
    on_disk = {
        "hotfire." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(declared()["packages"])  # type: ignore[call-overload]


def test_every_folder_with_python_is_a_package() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), path


def test_the_wheel_holds_hotfire_alone_and_all_its_data(tmp_path: Path) -> None:
    # Built aside: setuptools would find again, in build/lib, what an earlier build left there.
    tree = tmp_path / "tree"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run(
        [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", tmp_path, tree],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hotfire"}
    data = [path for folder in FOLDERS for path in (tree / folder).rglob("*") if path.is_file()]
    missing = [
        str(path.relative_to(tree))
        for path in data
        if "hotfire/" + str(path.relative_to(tree)) not in names
    ]
    assert not missing
