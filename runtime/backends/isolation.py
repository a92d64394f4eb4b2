"""How much a host can be kept apart on this machine: namespaces, /opt/ml itself, or another place for /opt/ml."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hotfire.runtime.backend import Attempt
from hotfire.runtime.backends import spawn, syscalls
from hotfire.runtime.errors import HotfireError, ValidationError
from hotfire.runtime.events import Note, Observer
from hotfire.runtime.layout import ML_ROOT

VARIABLE = "HOTFIRE_ISOLATION"
STALE_MARK = "stands-in-for-opt-ml"
"""A file in a host's scratch directory: the link /opt/ml to its neighbour ``ml`` is ours."""

_OWN = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC
_TRIES = {
    "user": _OWN | syscalls.CLONE_NEWUSER,
    "root": _OWN,
    "network": syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET,
}


class Isolation(StrEnum):
    NAMESPACE = "namespace"
    NATIVE = "native"
    RELOCATED = "relocated"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """``flags``: the namespaces of a host.

    In NATIVE: ``whole``, whether /opt/ml is absent and becomes one link, and ``lock``, the descriptor that holds it.
    """

    isolation: Isolation
    flags: int = 0
    whole: bool = False
    lock: int | None = None


@functools.cache
def probe(name: str) -> int:
    """Try one of the sets of namespaces in a process that ends at once: 0, or the error number of the refusal."""
    try:
        found: int = spawn.ask("probe", {"tries": [(name, _TRIES[name])]})["found"][name]
    except HotfireError:
        return 1
    return found


def namespace_flags() -> int:
    """The namespaces that hosts can have here, 0 for none. Root of the machine does without user namespaces."""
    if probe("user") == 0:
        return _TRIES["user"]
    return _TRIES["root"] if os.geteuid() == 0 and probe("root") == 0 else 0


def choose(
    attempt: Attempt, environ: Mapping[str, str], observer: Observer, undo: ExitStack
) -> Chosen:
    """The best that this machine allows, in the order of :class:`Isolation`; one Note says when it is not the first.

    Raises:
        ValidationError: HOTFIRE_ISOLATION asks for what is impossible.
    """
    forced = _forced(environ)
    reason = f"{VARIABLE}={forced}"
    if forced in (None, Isolation.NAMESPACE):
        if flags := namespace_flags():
            return Chosen(isolation=Isolation.NAMESPACE, flags=flags)
        reason = f"this machine refuses namespaces ({why_refused(probe('user'))})"
        if forced:
            raise _impossible(forced, reason)
    if forced in (None, Isolation.NATIVE):
        found = _take_ml_root(attempt, undo)
        if isinstance(found, Chosen):
            text = f"the host uses {ML_ROOT} itself: {reason}; run `hotfire setup`"
            observer(Note(text=text, warning=True))
            return found
        if forced:
            raise _impossible(forced, found)
        reason += f", and {found}"
    text = f"each host has another directory instead of {ML_ROOT}: {reason}; run `hotfire setup`"
    observer(Note(text=text, warning=True))
    return Chosen(isolation=Isolation.RELOCATED)


def _forced(environ: Mapping[str, str]) -> Isolation | None:
    text = environ.get(VARIABLE, "")
    if text and text not in tuple(Isolation):
        raise ValidationError(
            f"{VARIABLE}={text} is not known.", do=f"Use one of: {', '.join(Isolation)}."
        )
    return Isolation(text) if text else None


def _impossible(forced: Isolation, reason: str) -> ValidationError:
    return ValidationError(
        f"{VARIABLE}={forced} is not possible: {reason}.",
        do=f"Unset {VARIABLE}, or run `hotfire setup`.",
    )


def _take_ml_root(attempt: Attempt, undo: ExitStack) -> Chosen | str:
    """Lock /opt/ml for this session if it is absent or empty, and writable; otherwise, why it cannot be used."""
    if len(attempt.dirs) != 1:
        return f"{len(attempt.dirs)} hosts cannot share {ML_ROOT}"
    root = Path(ML_ROOT)
    try:
        lock = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"{root.parent}: {error.strerror}"
    undo.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return f"another job uses {ML_ROOT}"
    _remove_stale_link(root)
    whole = not os.path.lexists(root)
    if reason := _unusable(root, whole):
        return reason
    return Chosen(isolation=Isolation.NATIVE, whole=whole, lock=lock)


def _unusable(root: Path, absent: bool) -> str:
    if absent:
        return "" if os.access(root.parent, os.W_OK) else f"{root.parent} is not writable"
    if not root.is_dir() or not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return f"{ML_ROOT} is not a writable directory"
    return f"{ML_ROOT} is not empty" if any(root.iterdir()) else ""


def _remove_stale_link(root: Path) -> None:
    """What a session that was killed together with its launcher left; nobody has it, for we have the lock."""
    if root.is_symlink() and (root.readlink().parent / "scratch" / STALE_MARK).exists():
        root.unlink()


def why_refused(number: int) -> str:
    """A refusal of user namespaces in words: the setting that causes it, where one is known to, else the error."""
    if sysctl("user/max_user_namespaces") == "0":
        return "user.max_user_namespaces is 0"
    if sysctl("kernel/unprivileged_userns_clone") == "0":
        return "kernel.unprivileged_userns_clone is 0"
    if sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        return "AppArmor restricts them to known programs"
    if in_container():
        return f"{os.strerror(number)}; this is a container, whose engine blocks them by default"
    return os.strerror(number)


def sysctl(name: str) -> str:
    """A kernel setting, ``kernel/...``; empty where there is none."""
    try:
        return (Path("/proc/sys") / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def in_container() -> bool:
    """Whether this machine is itself a container of docker's or podman's."""
    return any(Path(path).exists() for path in ("/.dockerenv", "/run/.containerenv"))


def outbound_program() -> str | None:
    """The program that connects a private network to the outside, if there is one."""
    return shutil.which("pasta") or shutil.which("slirp4netns")
