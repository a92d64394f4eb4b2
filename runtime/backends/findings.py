"""What works on this machine, and the commands that would make the rest work: the lines of ``hotfire setup``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.backends import isolation


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of ``hotfire setup``: ``commands`` would make work what does not."""

    what: str
    works: bool
    detail: str
    commands: tuple[str, ...] = ()


def setup_report(python: str = sys.executable) -> tuple[Finding, ...]:
    """What of the process backend works on this machine, found by trying. ``python``: the interpreter to allow."""
    user = isolation.probe("user")
    root = os.geteuid() == 0 and user != 0 and isolation.probe("root") == 0
    return (
        Finding(
            what="own /opt/ml for each host (namespaces)",
            works=user == 0 or root,
            detail=_namespace_detail(user, root),
            commands=() if user == 0 or root else _namespace_commands(python),
        ),
        _overlay_finding(),
        _network_finding(python),
        _outbound_finding(),
        _fuse_finding(),
    )


def _namespace_detail(user: int, root: bool) -> str:
    if user == 0:
        return "user, mount, pid, uts and ipc namespaces"
    return "mount, pid, uts and ipc namespaces, as root" if root else isolation.why_refused(user)


def _namespace_commands(python: str) -> tuple[str, ...]:
    if isolation.in_container():
        options = ("seccomp=unconfined", "apparmor=unconfined")
        allowed = " ".join(f"--security-opt {option}" for option in options)
        return (f"docker run --cap-add SYS_ADMIN {allowed} ...",)
    if isolation.sysctl("user/max_user_namespaces") == "0":
        return _persistent_sysctl("user.max_user_namespaces", "10000")
    if isolation.sysctl("kernel/unprivileged_userns_clone") == "0":
        return _persistent_sysctl("kernel.unprivileged_userns_clone", "1")
    if isolation.sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _apparmor_profile(python)
    return ()


def _persistent_sysctl(name: str, value: str) -> tuple[str, ...]:
    return (
        f"echo '{name} = {value}' | sudo tee /etc/sysctl.d/90-hotfire.conf",
        "sudo sysctl --system",
    )


def _apparmor_profile(python: str) -> tuple[str, ...]:
    """Ubuntu 23.10 and later: allow user namespaces to this interpreter alone, not to every program."""
    real = Path(python).resolve()
    profile = (
        "abi <abi/4.0>,\\ninclude <tunables/global>\\n"
        f'profile hotfire-python "{real}" flags=(unconfined) {{\\n  userns,\\n}}\\n'
    )
    return (
        f"printf '{profile}' | sudo tee /etc/apparmor.d/hotfire-python",
        "sudo apparmor_parser -r /etc/apparmor.d/hotfire-python",
    )


def _overlay_finding() -> Finding:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    known = "overlay" in Path("/proc/filesystems").read_text(encoding="ascii").split()
    works = known and (release >= (5, 11) or os.geteuid() == 0)
    return Finding(
        what="copy-on-write channels without a copy (overlay)",
        works=works,
        detail="known to the kernel"
        if works
        else f"Linux {os.uname().release}; an ordinary user needs 5.11, and the module `overlay`",
        commands=() if works or known else ("sudo modprobe overlay",),
    )


def _network_finding(python: str) -> Finding:
    number = isolation.probe("network")
    return Finding(
        what="--network private",
        works=number == 0,
        detail="bridge and veth" if number == 0 else os.strerror(number),
        commands=()
        if number == 0
        else ("sudo modprobe -a bridge veth",)
        if isolation.probe("user") == 0
        else _namespace_commands(python),
    )


def _outbound_finding() -> Finding:
    program = isolation.outbound_program()
    tun = os.access("/dev/net/tun", os.R_OK | os.W_OK)
    works = program is not None and tun
    commands = [] if program else ["sudo apt-get install passt    # or: sudo dnf install passt"]
    commands += [] if tun else ["sudo chmod 0666 /dev/net/tun"]
    missing = "no pasta or slirp4netns" if program is None else "/dev/net/tun cannot be opened"
    return Finding(
        what="outbound connections from --network private",
        works=works,
        detail=program or "" if works else missing,
        commands=tuple(commands),
    )


def _fuse_finding() -> Finding:
    works = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return Finding(
        what="/dev/fuse for FastFile channels",
        works=works,
        detail="can be opened" if works else "cannot be opened by this user",
        commands=() if works else ("sudo chmod 0666 /dev/fuse",),
    )
