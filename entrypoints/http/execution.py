"""Become a client's command: its environment, and the file that ``get_execution_role()`` reads first.

That file is /opt/ml/metadata/resource-metadata.json. It is shown to this one command, in a mount namespace of its own;
nothing is written to /opt.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hotfire.runtime.backends import syscalls
from hotfire.runtime.endpoint.clients import ROLE_ARN
from hotfire.runtime.errors import ValidationError

METADATA = Path("/opt/ml/metadata/resource-metadata.json")


def become(
    command: Sequence[str],
    environ: Mapping[str, str],
    metadata: Path,
    say: Callable[[str], None],
) -> NoReturn:
    """Replace this process, which must have one thread only.

    Raises:
        ValidationError: there is no such program.
    """
    try:
        show(metadata.read_bytes())
    except OSError as error:
        say(
            f"this machine does not let a file be shown to one command ({error.strerror}); "
            f"instead of get_execution_role() give role={ROLE_ARN!r}"
        )
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        raise ValidationError(f"{command[0]} cannot be run: {error.strerror}.") from error


def show(content: bytes) -> None:
    """Put ``content`` at :data:`METADATA` for this process and its children.

    Raises:
        OSError: this machine does not allow it.
    """
    place = next(path for path in METADATA.parents if path.is_dir())
    if place == Path("/"):
        raise OSError(None, "there is no /opt")
    _enter_namespace()
    syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    _cover(place)
    METADATA.parent.mkdir(parents=True, exist_ok=True)
    METADATA.write_bytes(content)


def _enter_namespace() -> None:
    """A mount namespace; who is not root needs a user namespace around it, and keeps his own id there."""
    user, group = os.geteuid(), os.getegid()
    flags = syscalls.CLONE_NEWNS | (0 if user == 0 else syscalls.CLONE_NEWUSER)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _cover(place: Path) -> None:
    """A directory of our own over ``place`` that shows everything that was there."""
    below = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        hidden = Path(f"/proc/self/fd/{below}")
        entries = list(hidden.iterdir())
        syscalls.mount(b"tmpfs", os.fsencode(place), b"tmpfs", syscalls.MS_NOSUID, b"mode=0755")
        for entry in entries:
            shown = place / entry.name
            if entry.is_symlink():
                shown.symlink_to(entry.readlink())
                continue
            if entry.is_dir():
                shown.mkdir()
            else:
                shown.touch()
            flags = syscalls.MS_BIND | syscalls.MS_REC
            syscalls.mount(os.fsencode(entry), os.fsencode(shown), None, flags)
    finally:
        os.close(below)
