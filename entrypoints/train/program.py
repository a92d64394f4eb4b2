"""Finds the user's program in the code directory and says what kind it is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hotfire.runtime.errors import ValidationError

_TOOLKIT_NAMES = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")
_OBVIOUS = ("train.py", "train.sh", "train")


class Kind(Enum):
    SCRIPT = "a Python script"
    PACKAGE = "a module of the package that setup.py installs"
    COMMAND = "an executable"


@dataclass(frozen=True, kw_only=True)
class Program:
    """``name`` is relative to ``code``."""

    name: str
    kind: Kind
    code: Path
    note: str = ""

    @property
    def path(self) -> Path:
        return self.code / self.name

    @property
    def module(self) -> str:
        """For PACKAGE: ``pkg/train.py`` runs as ``pkg.train``."""
        return self.name.removesuffix(".py").replace("/", ".")


def find_program(asked: str | None, code: Path) -> Program | None:
    """The program that the job names, else the only one it can mean; None when there is no code at all.

    Raises:
        ValidationError: it is missing, outside the source directory, or cannot be told from others.
    """
    if asked is None:
        return _obvious(code)
    _check_name(asked, code)
    note = ""
    if not _TOOLKIT_NAMES.fullmatch(asked):
        note = (
            f"warning: sagemaker-training 5.1.4 refuses the name {asked!r}: "
            "only letters, digits and . _ + - / are safe"
        )
    name = os.path.normpath(asked)
    return Program(name=name, kind=_kind(name, code), code=code, note=note)


def _check_name(name: str, code: Path) -> None:
    if not name or Path(name).is_absolute() or name.startswith("-") or ".." in Path(name).parts:
        raise ValidationError(
            f"sagemaker_program is {name!r}: it must be a path inside the source directory.",
            do="Name the script relative to the source directory: train.py.",
        )
    path = code / name
    if path.is_file():
        root = os.path.realpath(code)
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise ValidationError(
                f"The script {name} leads outside the source directory.",
                do="Copy it into the source directory; a link out of it does not travel with the job.",
            )
        return
    # setup.py may name a module without its suffix, as the toolkit lets it.
    if not ((code / "setup.py").is_file() and path.with_name(f"{path.name}.py").is_file()):
        raise ValidationError(
            f"The script {name} is {'a directory' if path.is_dir() else 'not'} in {code}, "
            f"which holds {_listing(code)}.",
            do=_meant(name, code),
        )


def _kind(name: str, code: Path) -> Kind:
    """The toolkit's rule: .sh first, then setup.py, then .py; anything else is executed."""
    if name.endswith(".sh"):
        return Kind.COMMAND
    if (code / "setup.py").is_file():
        return Kind.PACKAGE
    return Kind.SCRIPT if name.endswith(".py") else Kind.COMMAND


def _obvious(code: Path) -> Program | None:
    names = sorted(entry.name for entry in code.iterdir()) if code.is_dir() else []
    if not names:
        return None
    scripts = [name for name in names if name.endswith(".py") and name != "setup.py"]
    known = [name for name in _OBVIOUS if (code / name).is_file()]
    found = known[:1] or (scripts if len(scripts) == 1 else [])
    if not found:
        raise ValidationError(
            f"The job names no script, and {code} holds {_listing(code)}.",
            do="Set the hyperparameter sagemaker_program (or the variable SAGEMAKER_PROGRAM) to the script.",
        )
    note = f"the job names no script: {found[0]} is the one in {code}"
    return Program(name=found[0], kind=_kind(found[0], code), code=code, note=note)


def _listing(code: Path, limit: int = 8) -> str:
    try:
        names = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name for entry in code.iterdir()
        )
    except OSError:
        names = []
    if not names:
        return "nothing"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _meant(name: str, code: Path) -> str:
    import difflib

    files = [str(path.relative_to(code)) for path in list(code.rglob("*.py"))[:10_000]]
    same = [path for path in files if Path(path).name == Path(name).name]
    near = same or difflib.get_close_matches(name, files, n=1)
    return (
        f"Did you mean {near[0]}?" if near else "Check sagemaker_program and the source directory."
    )
