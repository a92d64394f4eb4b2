"""Where this machine's container engine listens, and who that is."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from hotfire.runtime.errors import ValidationError

DEFAULT_SOCKET = "/var/run/docker.sock"
SECONDS = 60
"""For one request; those that wait for a container have no limit."""
_CAP_SYS_RESOURCE = 24


def address(environ: Mapping[str, str]) -> str:
    """Where the engine listens: ``DOCKER_HOST``, the docker command's current context, the usual sockets."""
    if given := environ.get("DOCKER_HOST"):
        return given
    if found := _context(environ):
        return found
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    usual = (
        DEFAULT_SOCKET,
        f"{runtime}/docker.sock",
        "/run/podman/podman.sock",
        f"{runtime}/podman/podman.sock",
    )
    present = [path for path in usual if _is_socket(path)]
    usable = [path for path in present if os.access(path, os.W_OK)]
    return f"unix://{(usable or present or usual[:1])[0]}"


def _context(environ: Mapping[str, str]) -> str:
    """The endpoint of the context that ``docker context use`` chose."""
    import hashlib
    import json

    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "/")) / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = environ.get("DOCKER_CONTEXT") or config.get("currentContext") or "default"
        if name == "default":
            return ""
        key = hashlib.sha256(name.encode()).hexdigest()
        meta = json.loads((folder / "contexts" / "meta" / key / "meta.json").read_text("utf-8"))
        return str(meta["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, AttributeError):
        return ""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def listener(path: str) -> int:
    """The process id of who listens at the socket ``path``, 0 where that is no process of ours to see.

    Raises:
        ValidationError: nobody does, or the socket may not be used.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except PermissionError as error:
            raise ValidationError(
                f"you may not use the container engine at {path}.",
                do="Add yourself to its group (sudo usermod -aG docker $USER; then log in again), or use --backend process.",
            ) from error
        except OSError as error:
            raise ValidationError(
                f"no container engine answers at {path}: {error.strerror or error}.",
                do="Start it (sudo systemctl start docker, or sudo dockerd), or use --backend process.",
            ) from error
        peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])


def hard_limits(pid: int) -> dict[str, int]:
    """What a process cannot raise its limits beyond, by their names for containers; nothing if it may do as it likes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        rows = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    effective = next((line.split()[1] for line in status.splitlines() if "CapEff" in line), "0")
    if int(effective, 16) >> _CAP_SYS_RESOURCE & 1:
        return {}
    found = {}
    for title, name in (("Max open files", "nofile"), ("Max locked memory", "memlock")):
        row = next((row for row in rows if row.startswith(title)), "")
        if (hard := row.removeprefix(title).split()[1:2]) and hard[0].isdecimal():
            found[name] = int(hard[0])
    return found
