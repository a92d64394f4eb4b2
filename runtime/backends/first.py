"""The first process of a host, from its birth in new namespaces until the program takes its place."""

# ruff: noqa: PTH112, PTH119, PTH120

from __future__ import annotations

import errno
import marshal
import os

from hotfire.runtime.backends import mounts, syscalls
from hotfire.runtime.backends.steps import SetUpError, step

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any, NoReturn

    Plan = dict[str, Any]
else:
    import _signal

NOT_FOUND, NOT_EXECUTABLE = 127, 126


def become(plan: Plan, go: int, answer: int, channel: int) -> NoReturn:
    """Wait for ``go``, set everything up, say on ``answer`` how that went, and execute the program."""
    try:
        syscalls.die_with_parent(_signal.SIGKILL)
        if os.read(go, 1) != b"g":  # the launcher died before it could tell us to
            os._exit(1)
        os.setsid()
        said: dict[str, Any] = {"notes": _set_up(plan, channel)}
    except SetUpError as error:
        said = {"error": error.as_dict()}
    except Exception as error:  # noqa: BLE001 (it would end in a log that nobody may be reading)
        said = {"error": SetUpError(f"start the host: {error!r}", 0).as_dict()}
    os.write(answer, marshal.dumps(said))
    if "error" in said:
        os._exit(1)
    execute(plan["argv"], plan["env"])


def _set_up(plan: Plan, channel: int) -> list[str]:
    """Make the process what the plan says; returns what this machine keeps for itself, a line each."""
    os.umask(0o022)
    if plan["net"]:
        _configure_network(plan["net"], channel)
    notes = _make_view(plan) if plan["flags"] & syscalls.CLONE_NEWNS else []
    if plan["flags"] & syscalls.CLONE_NEWUTS:
        with step("set the host name", plan["hostname"]):
            syscalls.set_hostname(plan["hostname"])
    with step("change to the working directory", plan["cwd"]):
        os.chdir(plan["cwd"])
    raise_limits()
    normalise()
    return notes


def _configure_network(net: dict[str, Any], channel: int) -> None:
    """Loopback, eth0, and the sockets of the platform's own services, which only this host can reach."""
    from hotfire.runtime.backends import netlink

    with step("configure the host's network"):
        own = netlink.Network()
        own.up("lo")
        own.add_address("eth0", net["address"], net["prefix"])
        own.up("eth0")
        for address, port in net["services"]:
            own.add_address("lo", address, 32)
            netlink.hand_over(channel, address, port)
        own.close()


def _make_view(plan: Plan) -> list[str]:
    wanted = plan["mounts"]
    with step("make a private mount namespace", plan["stage"]):
        view = mounts.View(plan["stage"], [mount["target"] for mount in wanted])
    cow = any(mount["mode"] == mounts.COPY_ON_WRITE for mount in wanted)
    points = mounts.mount_points() if cow else []
    sources = [_open_source(mount, number, points) for number, mount in enumerate(wanted)]
    for number in sorted(range(len(wanted)), key=lambda n: wanted[n]["target"].count(b"/")):
        _mount(view, wanted[number], sources[number], number)
    return _own_filesystems(plan)


def _open_source(
    mount: dict[str, Any], number: int, points: list[bytes]
) -> list[tuple[int, bytes]]:
    """The opened source. For copy-on-write each mount below it too, because an overlay sees one file system only."""
    source: bytes = mount["source"]
    with step("open the source of a mount", source, number):
        mount["directory"] = os.path.isdir(source)
        if mount["mode"] != mounts.COPY_ON_WRITE:
            return [(_open(source), b"")]
        source = os.path.realpath(source, strict=True)
        if not mount["directory"]:
            mount["name"] = os.path.basename(source)
            return [(_open(os.path.dirname(source)), b"")]
        below = sorted({point for point in points if point.startswith(source + b"/")})
        return [(_open(point), point[len(source) :]) for point in [source, *below]]


def _open(path: bytes) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _mount(
    view: mounts.View, mount: dict[str, Any], sources: list[tuple[int, bytes]], number: int
) -> None:
    overlay = mount["mode"] == mounts.COPY_ON_WRITE
    for source, relative in sources:
        target = mount["target"] + relative
        with step("overlay" if overlay else "mount", target, number):
            if overlay:
                view.overlay(source, target, mount.get("name"))
            else:
                view.bind(source, target, mount["mode"], directory=mount["directory"])


def _own_filesystems(plan: Plan) -> list[str]:
    """The host's own /dev/shm, /sys and /proc; where that is refused, this machine's stay, and a line says so."""
    notes = []
    safe = syscalls.MS_NOSUID | syscalls.MS_NODEV
    wanted: list[tuple[bytes, bytes, int, bytes | None]] = [
        (b"tmpfs", b"/dev/shm", safe, b"mode=1777")
    ]
    if plan["net"]:  # /sys/class/net shows the interfaces of the network in which it was mounted
        wanted.append((b"sysfs", b"/sys", safe | syscalls.MS_NOEXEC, None))
    old_sys = _open(b"/sys")
    if plan["flags"] & syscalls.CLONE_NEWPID:
        wanted.append((b"proc", b"/proc", safe | syscalls.MS_NOEXEC, None))
    for kind, target, flags, data in wanted:
        try:
            syscalls.mount(kind, target, kind, flags, data)
            if kind == b"sysfs":
                groups = b"/fs/cgroup"
                syscalls.mount(mounts.by_fd(old_sys) + groups, target + groups, None, mounts.BIND)
        except OSError as error:
            notes.append(f"{target.decode()} is this machine's own: {error.strerror}")
    return notes


def raise_limits() -> None:
    """As many open files as may be had, up to the million of contract 1.3, and as much locked memory."""
    import resource

    for kind, most in (
        (resource.RLIMIT_NOFILE, 1 << 20),
        (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY),
    ):
        soft, hard = (_finite(limit) for limit in resource.getrlimit(kind))
        wanted = min(hard, _finite(most))
        if soft < wanted:
            resource.setrlimit(kind, (_limit(wanted), _limit(hard)))


_FINITE = 1 << 62


def _finite(limit: int) -> int:
    return _FINITE if limit < 0 else limit


def _limit(finite: int) -> int:
    return -1 if finite == _FINITE else finite


def normalise() -> None:
    """The umask and the signals that a program expects, whatever this process has inherited."""
    os.umask(0o022)
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals():
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """Become the program; or say in the log why not, and end as a container engine would (contract 1.1)."""
    name = argv[0]
    path = env.get(b"PATH", os.defpath.encode())
    places = [name] if b"/" in name else [d + b"/" + name for d in path.split(b":") if d]
    code, reason = NOT_FOUND, "not found"
    for place in places:
        try:
            os.execve(place, argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                code, reason = NOT_EXECUTABLE, error.strerror or ""
    os.write(2, b"hotfire: %s: %s\n" % (name, reason.encode()))
    os._exit(code)
