"""Installs what the user's code needs: in a container as everybody expects, on one's own machine without a trace.

In a container, ``pip install`` goes into the image's Python, as the toolkit does it. Under hotfire's platform the
Python is the user's own, so an overlay is made instead: a virtual environment with the parent's packages visible
below its own. Not ``pip install --target`` on PYTHONPATH: that ignores what is installed (requirements that mention
torch would fetch 4 GB again), leaves console scripts without an interpreter that sees them, and leaks into every other
Python. And not ``--system-site-packages``, which shows the base Python's packages and not those of a parent that is a
virtual environment itself; a .pth file adds exactly the parent's. pip then installs only what is missing or pinned
otherwise, and what it installs stands first on sys.path.

One overlay per content, Python and parent, below the cache; whoever comes second installs nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.environ import Python
from hotfire.entrypoints.train.talk import hidden, say
from hotfire.runtime.errors import DataError, UnsupportedError
from hotfire.runtime.layout import cache_home

_DONE = "complete"
_PARENT_FILE = "_hotfire_parent.pth"
_ERROR_LINE = re.compile(r"^ *(?:ERROR|error): (?P<text>.+)$")
_TELLING = ("No matching distribution", "Cannot install", "Invalid requirement")
_UNTOLD = ("[present-rich]", "subprocess-exited", "metadata-generation", "ResolutionImpossible")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to install from ``code``: requirements.txt, the package of setup.py, or both."""

    code: Path
    requirements: bool
    package: bool

    def arguments(self) -> list[str]:
        """For ``pip install``, run in ``code``."""
        package = ["."] if self.package else []
        return package + (["-r", "requirements.txt"] if self.requirements else [])


def wanted(code: Path, *, package: bool) -> Wanted:
    return Wanted(code=code, requirements=bool(_lines(code / "requirements.txt")), package=package)


def install(
    what: Wanted, children: Children, environment: Mapping[str, str], *, overlay: bool
) -> Python:
    """Install ``what``, into an overlay or into this Python, and say which Python to run the script with.

    Raises:
        DataError: pip failed; names the requirement and the Python.
        UnsupportedError: the packages are to come from CodeArtifact.
    """
    if not what.arguments():
        return Python(variables={})
    if environment.get("CA_REPOSITORY_ARN"):
        raise UnsupportedError(
            "Packages from CodeArtifact (CA_REPOSITORY_ARN) are not supported.",
            do="Put the repository's address into PIP_INDEX_URL.",
        )
    pip = Pip(children=children, environment=environment)
    if not overlay:
        say(f"installing {_names(what)}")
        pip.install(sys.executable, what)
        return Python(variables={})
    home = cache_home(environment) / f"requirements-{digest(what)}"
    with _locked(home.with_name(f"{home.name}.lock")):
        if (home / _DONE).exists():
            say(f"{_names(what)}: installed before, in {home}")
        else:
            _make_overlay(home, what, pip)
    return Python(
        executable=str(home / "bin" / "python"),
        variables={
            "VIRTUAL_ENV": str(home),
            "PATH": f"{home / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}",
        },
    )


def _names(what: Wanted) -> str:
    return " and ".join(
        (["requirements.txt"] if what.requirements else [])
        + (["the package of setup.py"] if what.package else [])
    )


def _make_overlay(home: Path, what: Wanted, pip: Pip) -> None:
    # A virtual environment cannot be moved, so it is made in place and marked when it is whole.
    if home.exists():
        shutil.rmtree(home)
    say(f"installing {_names(what)} into {home}")
    python = str(home / "bin" / "python")
    pip.python([sys.executable, "-m", "venv", "--without-pip", str(home)])
    (_site_packages(home) / _PARENT_FILE).write_text(_parent_lines(), encoding="utf-8")
    if not pip.has_pip(python):
        pip.python([python, "-m", "ensurepip", "--default-pip"])
    pip.install(python, what)
    (home / _DONE).touch()


def _site_packages(home: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return home / "lib" / version / "site-packages"


def parent_directories() -> list[str]:
    """Where this Python's packages are, the user's own included where they are on."""
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in (*own, *site.getsitepackages()) if Path(path).is_dir()]


def _parent_lines() -> str:
    # addsitedir and not the bare path: the parent's own .pth files (editable installs) count too.
    return "".join(f"import site; site.addsitedir({path!r})\n" for path in parent_directories())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One host of the job installs, the others wait; a stop interrupts the wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another host that is installing the same requirements")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(what: Wanted) -> str:
    """Changes with the requirements, the files they name, this Python and its packages."""
    state = hashlib.sha256()
    for text in (sys.version, sys.prefix, *_installed()):
        state.update(f"{text}\n".encode())
    if what.package:
        _add_tree(state, what.code)
    if what.requirements:
        _add_requirements(state, what.code / "requirements.txt", set())
    return state.hexdigest()[:20]


def _installed() -> list[str]:
    return sorted(
        entry.name
        for directory in parent_directories()
        for entry in os.scandir(directory)
        if entry.name.endswith((".dist-info", ".egg-info", ".egg-link"))
    )


def _lines(path: Path) -> list[str]:
    """Lines that ask for something; a trailing backslash joins lines, as pip has it."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return []
    joined = text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def _add_requirements(state: hashlib._Hash, path: Path, seen: set[Path]) -> None:
    if path in seen:
        return
    seen.add(path)
    for line in _lines(path):
        state.update(f"{line}\n".encode(errors="replace"))
        for word in re.split(r"[\s=]+|@ ", line):
            name = word.removeprefix("file://").partition("[")[0]
            local = path.parent / name
            if not name or name.startswith("-") or not local.exists():
                continue
            if local.is_file() and local.suffix == ".txt":
                _add_requirements(state, local, seen)
            elif local != path.parent or name == ".":
                _add_tree(state, local)


def _add_tree(state: hashlib._Hash, root: Path) -> None:
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    for path in files:
        if "__pycache__" in path.parts or ".git" in path.parts:
            continue
        state.update(f"{path.relative_to(root)}\0".encode(errors="replace"))
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())


@dataclass(frozen=True, kw_only=True)
class Pip:
    children: Children
    environment: Mapping[str, str]

    def install(self, python: str, what: Wanted) -> None:
        """Run pip with its own output on our streams; its log, in a scratch directory, tells why it failed."""
        with tempfile.TemporaryDirectory(prefix="hotfire-pip-") as scratch:
            log = Path(scratch) / "log"
            argv = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
            argv += ["--progress-bar", "off", "--log", str(log), *what.arguments()]
            code = self.children.run(argv, env=self._clean(), cwd=what.code)
            if code != 0:
                raise DataError(
                    f"{_names(what)} cannot be installed: {_why(log)} (Python "
                    f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}, "
                    f"pip's exit code {code}).",
                    do="Change the pin, or take an image or --python that has it.",
                )

    def python(self, argv: Sequence[str]) -> None:
        """Run a Python program of the standard library's.

        Raises:
            DataError: it failed.
        """
        code, text = self.children.capture(argv, env=self._clean(), errors_only=True)
        if code != 0:
            last = (text.strip().splitlines() or [f"exit code {code}"])[-1]
            raise DataError(
                f"python {' '.join(argv[1:3])} failed: {hidden(last)}",
                do="Install the venv module of this Python (python3-venv on Debian and Ubuntu).",
            )

    def has_pip(self, python: str) -> bool:
        find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pip') is None)"
        return self.children.run([python, "-c", find], env=self._clean()) == 0

    def _clean(self) -> dict[str, str]:
        # The script's own modules must not get in pip's way, nor our PYTHONPATH count as installed.
        left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        return {name: value for name, value in self.environment.items() if name not in left_out}


def _why(log: Path) -> str:
    """pip's own reason, from its log, whose lines begin with the time."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "pip gave no reason"
    lines = [line.partition(" ")[2] for line in text.splitlines()]
    errors = [match["text"].strip() for line in lines if (match := _ERROR_LINE.match(line))]
    telling = [text for text in errors if text.startswith(_TELLING)]
    others = [text for text in errors if not text.startswith(_UNTOLD)]
    chosen = [*telling, *others, *errors, "pip gave no reason"][0].rstrip(".")
    return hidden("; ".join([chosen, *_conflict(lines)]))[:600]


def _conflict(lines: Sequence[str]) -> list[str]:
    """What pip lists below "The conflict is caused by": who asks for what."""
    found: list[str] = []
    inside = False
    for line in lines:
        if inside and not line.strip():
            break
        if inside:
            found.append(line.strip())
        inside = inside or line.startswith("The conflict is caused by")
    return found
