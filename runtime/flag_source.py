"""Where the flags say that the program is: a directory, an archive or a git repository, as hyperparameters. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from hotfire.runtime.errors import ValidationError

_REMOTE = ("s3://", "https://", "file://")
_ARCHIVES = (".tar.gz", ".tgz")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The flags about code; ``directory`` is within the repository when there is one."""

    script: str | None = None
    directory: str | None = None
    git_repo: str | None = None
    git_revision: str | None = None


class Faults:
    """Collects what is wrong, so that one run of the command tells all of it."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, what: str, do: str) -> None:
        if (what, do) not in self._found:
            self._found.append((what, do))

    def raise_any(self) -> None:
        if self._found:
            advice = dict.fromkeys(do for _, do in self._found)
            raise ValidationError(
                "; ".join(what for what, _ in self._found) + ".", do=" ".join(advice)
            )


def uri(text: str, cwd: Path) -> str:
    """``text`` if it is a URI, else the path as ``file:///absolute``; % is escaped, nothing else needs to be."""
    if text.startswith(_REMOTE):
        return text
    return "file://" + _absolute(text, cwd).replace("%", "%25")


def _absolute(text: str, cwd: Path) -> str:
    # normpath, not resolve: nothing here looks at the disk.
    return "/" + os.path.normpath(cwd / text).lstrip("/")


def submission(source: Source, cwd: Path, faults: Faults) -> dict[str, Any]:
    """``sagemaker_program`` and ``sagemaker_submit_directory``; neither for the built-in program alone."""
    if source.git_repo:
        return _from_git(source, cwd, faults)
    if source.git_revision:
        faults.add("--git-branch and --git-commit need --git-repo", "Add --git-repo URL.")
    if source.script is None:
        if source.directory is None:
            return {}
        faults.add("--source-dir without a script", "Name the script: hotfire run SCRIPT ...")
        return {}
    directory = source.directory
    if directory is None:
        whole = PurePosixPath(_absolute(source.script, cwd))
        return _code(whole.name, "file://" + str(whole.parent).replace("%", "%25"))
    if directory.startswith(_REMOTE) or directory.endswith(_ARCHIVES):
        return _code(_inside(source.script, directory, faults), uri(directory, cwd))
    return _code(_relative(source.script, directory, cwd, faults), uri(directory, cwd))


def _code(program: str, directory: str) -> dict[str, Any]:
    return {"sagemaker_program": program, "sagemaker_submit_directory": directory}


def _inside(script: str, source: str, faults: Faults) -> str:
    """A script of an archive or a repository: only a path within it can be meant."""
    path = os.path.normpath(script)
    if path.startswith(("/", "../")) or path == "..":
        _outside(script, source, faults)
    return path


def _relative(script: str, source: str, cwd: Path, faults: Faults) -> str:
    """The script below the source directory. As in the SDK a relative script is relative to that directory, unless it
    begins with the directory's own path, as a shell completes it: ``src/train.py --source-dir src``."""
    top = _absolute(source, cwd)
    path, prefix = os.path.normpath(script), os.path.normpath(source)
    typed_from_here = prefix not in (".", "..") and path.startswith(prefix + "/")
    whole = _absolute(script, cwd if typed_from_here or script.startswith("/") else Path(top))
    if not whole.startswith(top.rstrip("/") + "/"):
        _outside(script, source, faults)
    return os.path.relpath(whole, top)


def _outside(script: str, source: str, faults: Faults) -> None:
    faults.add(
        f"script {script} is outside the source directory {source}",
        "Give a script within it, or another --source-dir.",
    )


def _from_git(source: Source, cwd: Path, faults: Faults) -> dict[str, Any]:
    """``git+URL@REVISION#subdirectory=DIR``, the form that pip takes as well."""
    repo = source.git_repo or ""
    if re.match(r"\w+://[^/]*:[^/]*@", repo):
        faults.add(
            "--git-repo holds a password, which would be written down with the request",
            "Remove it; let git's own credential helper answer.",
        )
    revision = source.git_revision
    if source.script is None:
        faults.add("--git-repo without a script", "Name the script: hotfire run SCRIPT ...")
        return {}
    program = _inside(source.script, repo, faults)
    inside = os.path.normpath(source.directory) if source.directory else "."
    if inside.startswith(("/", "../")) or inside == "..":
        _outside(inside, repo, faults)
    subdirectory = "" if inside == "." else f"#subdirectory={quote(inside)}"
    at = f"@{revision}" if revision else ""
    return _code(program, f"git+{_git_address(repo, cwd)}{at}{subdirectory}")


def _git_address(repo: str, cwd: Path) -> str:
    if "://" in repo:
        return repo
    if short := re.fullmatch(r"([\w.\-]+@[\w.\-]+):(?!/)(.+)", repo):
        return f"ssh://{short[1]}/{short[2]}"
    return uri(repo, cwd)
