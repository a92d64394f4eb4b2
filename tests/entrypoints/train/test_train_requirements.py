"""requirements.txt and setup.py: overlays when emulating, plain pip in a container. Nothing comes from the network."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hotfire.entrypoints.train import requirements

PROBE = "import json, sys, os, {module}\nprint(json.dumps([{module}.VERSION, {module}.__file__, sys.executable]))\n"


def wheel(directory: Path, name: str, version: str, requires: str = "") -> None:
    """A wheel with one module that knows its version, and a program that prints it."""
    directory.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"VERSION = {version!r}\ndef main():\n    import pytest\n    print(VERSION, pytest.__name__)\n",
        f"{info}/METADATA": head + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-program = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


@pytest.fixture
def emulated(container: Any) -> Any:
    """A host of the platform, where the Python is the user's own."""
    container.env |= {
        "HOTFIRE_HOSTS": '{"algo-1": "127.77.0.1"}',
        "HOTFIRE_CACHE": str(container.root / "cache"),
    }
    wheel(container.code / "wheels", "hotprobe", "1.0")
    wheel(container.code / "wheels", "hotprobe", "2.0")
    container.configure(sagemaker_program="train.py")
    container.write("train.py", PROBE.format(module="hotprobe"))
    return container


def require(container: Any, *lines: str) -> None:
    container.write(
        "requirements.txt", "\n".join(["--no-index", "--find-links wheels", *lines]) + "\n"
    )


def test_an_overlay_is_made_once_and_the_python_stays_as_it_was(emulated: Any) -> None:
    require(emulated, "hotprobe==1.0")
    first = emulated.run()
    assert first.code == 0, first.err
    version, file, executable = json.loads(first.out.splitlines()[-1])
    cache = str(emulated.root / "cache")
    assert version == "1.0"
    assert file.startswith(cache)
    assert executable.startswith(cache)
    assert any(line.startswith("installing requirements.txt into") for line in first.talk)
    assert "hotprobe" in first.out

    second = emulated.run()
    assert json.loads(second.out) == [version, file, executable]
    assert any(line.startswith("requirements.txt: installed before") for line in second.talk)

    require(emulated, "hotprobe==2.0")
    assert json.loads(emulated.run().out.splitlines()[-1])[0] == "2.0"
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("hotprobe")


def test_console_scripts_see_the_overlay_and_the_parent_and_shells_find_them(emulated: Any) -> None:
    require(emulated, "hotprobe==1.0")
    emulated.write("job.sh", "#!/bin/sh\nhotprobe-program\npython -c 'import hotprobe, pytest'\n")
    emulated.configure(sagemaker_program="job.sh")
    result = emulated.run()
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "1.0 pytest"


def test_a_pin_wins_over_the_parents_version(emulated: Any) -> None:
    """Of a package that this Python has: the script gets the pinned one, this Python keeps its own."""
    installed = metadata.version("iniconfig")
    wheel(emulated.code / "wheels", "iniconfig", "99.0")
    require(emulated, "iniconfig==99.0")
    emulated.write("train.py", PROBE.format(module="iniconfig"))
    result = emulated.run()
    assert json.loads(result.out.splitlines()[-1])[0] == "99.0"
    assert metadata.version("iniconfig") == installed


def test_what_the_parent_has_is_not_installed_again(emulated: Any) -> None:
    wheel(emulated.code / "wheels", "needy", "1.0", requires="pytest>=1")
    require(emulated, "needy==1.0")
    emulated.write("train.py", "import needy, pytest; print(pytest.__file__)\n")
    result = emulated.run()
    assert result.code == 0, result.err
    assert Path(result.out.splitlines()[-1]).samefile(pytest.__file__)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["hotprobe==3.0"], "No matching distribution found for hotprobe==3.0"),
        (
            ["hotprobe==2.0", "picky==1.0"],
            "requested hotprobe==2.0; picky 1.0 depends on hotprobe<2",
        ),
        (["hotprobe=!2"], "hotprobe=!2"),
    ],
)
def test_what_cannot_be_installed_is_named_with_the_python(
    emulated: Any, lines: list[str], named: str
) -> None:
    wheel(emulated.code / "wheels", "picky", "1.0", requires="hotprobe<2")
    require(emulated, *lines)
    result = emulated.run()
    assert result.code == 1
    assert result.failure.startswith("requirements.txt cannot be installed: ")
    assert named in result.failure
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}." in result.failure


def test_a_half_made_overlay_is_not_taken_for_a_whole_one(emulated: Any) -> None:
    require(emulated, "hotprobe==1.0", "late==1.0")
    assert emulated.run().code == 1
    digest_before = {path.name for path in (emulated.root / "cache").iterdir()}
    wheel(emulated.root / "elsewhere", "late", "1.0")
    emulated.env["PIP_FIND_LINKS"] = str(emulated.root / "elsewhere")
    assert emulated.run().code == 0
    assert {path.name for path in (emulated.root / "cache").iterdir()} == digest_before


def test_an_overlay_is_for_one_content(tmp_path: Path) -> None:
    """Also of the files that the requirements name, and of the package if there is one."""
    (tmp_path / "local").mkdir()
    files = {"requirements.txt": "-r more.txt\n./local[extra]\n", "more.txt": "a==1\n"}
    for name, text in {**files, "local/setup.py": "1", "train.py": "1"}.items():
        (tmp_path / name).write_text(text)
    seen = set()

    def changed(name: str, text: str, *, package: bool = False) -> bool:
        (tmp_path / name).write_text(text)
        now = requirements.digest(requirements.wanted(tmp_path, package=package))
        new = now not in seen
        seen.add(now)
        return new

    assert changed("more.txt", "a==1\n")
    assert not changed("train.py", "2")
    assert not changed("more.txt", "a==1  # why not\n")
    assert changed("more.txt", "a==2\n")
    assert changed("local/setup.py", "2")
    assert changed("requirements.txt", "-r more.txt\n./local[extra]\nb\n")
    assert changed("train.py", "2", package=True)
    assert changed("train.py", "3", package=True)


def test_comments_alone_install_nothing(emulated: Any) -> None:
    emulated.write("requirements.txt", "# hotprobe\n\n")
    emulated.write("train.py", "")
    result = emulated.run()
    assert result.code == 0
    assert not (emulated.root / "cache").exists()


def test_two_hosts_install_once(emulated: Any) -> None:
    require(emulated, "hotprobe==1.0")
    runs = [emulated.start(), emulated.start()]
    results = [emulated.finish(process) for process in runs]
    assert [result.code for result in results] == [0, 0]
    installs = [line for r in results for line in r.talk if line.startswith("installing req")]
    assert len(installs) == 1


BACKEND = """\
# A build backend of the standard library alone, so that nothing is fetched to build.
import pathlib, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "mine-1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        wheel.writestr("pkg/__init__.py", "")
        for path in pathlib.Path("pkg").glob("*.py"):
            wheel.write(path)
        wheel.writestr("mine-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n")
        wheel.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("mine-1.dist-info/RECORD", "")
    return name
"""


def test_a_package_with_setup_py_runs_as_a_module_of_what_was_installed(emulated: Any) -> None:
    emulated.write("setup.py", "raise SystemExit('the backend builds it')\n")
    emulated.write(
        "pyproject.toml",
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
    )
    emulated.write("backend.py", BACKEND)
    emulated.write(
        "pkg/train.py",
        "import sys\nfrom pkg import other\nprint(__name__, __package__, other.WORD, sys.argv[1:])\n",
    )
    emulated.write("pkg/other.py", "WORD = 'found'\n")
    emulated.configure(sagemaker_program="pkg/train.py", lr=1)
    result = emulated.run()
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "__main__ pkg found ['--lr', '1']"
    assert list(emulated.root.glob("cache/*/lib/*/site-packages/mine-1.dist-info"))


def test_index_passwords_are_never_said(emulated: Any) -> None:
    emulated.write("requirements.txt", "hotprobe==1.0\n")
    emulated.env |= {"PIP_INDEX_URL": "http://user:s3cret@127.0.0.1:1/simple", "PIP_RETRIES": "0"}
    result = emulated.run()
    assert result.code == 1
    assert "s3cret" not in result.out + result.err + result.failure


def test_a_stop_during_the_installation(emulated: Any, tools: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        emulated.write("requirements.txt", "hotprobe==1.0\n")
        port = silent.getsockname()[1]
        emulated.env["PIP_INDEX_URL"] = f"http://127.0.0.1:{port}/simple"
        process = emulated.start()
        silent.settimeout(30)
        connection, _address = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            result = emulated.finish(process, timeout=15)
    assert result.code == 143
    assert result.failure == "stopped by SIGTERM before the script started"


@pytest.mark.slow
def test_in_a_container_pip_installs_into_the_images_python(container: Any) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(container.root / "image")], check=True)
    container.python = str(container.root / "image" / "bin" / "python")
    wheel(container.code / "wheels", "hotprobe", "1.0")
    require(container, "hotprobe==1.0")
    container.write("train.py", PROBE.format(module="hotprobe"))
    container.configure(sagemaker_program="train.py")
    result = container.run()
    assert result.code == 0, result.err
    file = Path(json.loads(result.out.splitlines()[-1])[1])
    assert file.is_relative_to(container.root / "image")
