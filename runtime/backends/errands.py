"""What the launcher is also started for: the job's network, a shell in a live host, finding out what is allowed."""

# ruff: noqa: PTH116, PTH119

from __future__ import annotations

import os

from hotfire.runtime.backends import first, launcher, mounts, netlink, syscalls
from hotfire.runtime.backends.steps import SetUpError, step

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import Any

    Plan = dict[str, Any]
    Message = dict[str, Any]
else:
    import _signal

NAMESPACES = (
    (b"user", syscalls.CLONE_NEWUSER),  # first: it gives the right to enter the others
    (b"ipc", syscalls.CLONE_NEWIPC),
    (b"uts", syscalls.CLONE_NEWUTS),
    (b"net", syscalls.CLONE_NEWNET),
    (b"pid", syscalls.CLONE_NEWPID),
    (b"mnt", syscalls.CLONE_NEWNS),
)
BRIDGE = "hotfire0"
OUTSIDE = b"outside"


class _Child:
    """A child in new namespaces that does one thing after its ids are mapped, and then waits to be let go."""

    def __init__(self, flags: int, work: Callable[[], None]) -> None:
        go, self._go = os.pipe()
        self._done, done = os.pipe()
        self.pid = syscalls.clone(flags)
        if self.pid == 0:
            os.close(self._go)
            syscalls.die_with_parent(_signal.SIGKILL)
            number = 0
            try:
                os.read(go, 1)
                work()
            except OSError as error:
                number = error.errno or 1
            os.write(done, bytes([number]))
            os.read(go, 1)
            os._exit(0)
        os.close(go)
        os.close(done)
        self._flags = flags

    def refused(self) -> int:
        """The error number with which the work failed, or 0."""
        try:
            if self._flags & syscalls.CLONE_NEWUSER:
                launcher.map_ids(self.pid)
        except SetUpError as error:
            return error.errno
        os.write(self._go, b"g")
        return (os.read(self._done, 1) or b"\1")[0]

    def let_go(self) -> None:
        os.close(self._go)
        os.close(self._done)
        os.waitpid(self.pid, 0)


def network(plan: Plan, channel: int) -> Message:
    """Make the job's user and network namespace with its bridge; they live as long as somebody holds them open."""
    with step("make a network namespace"):
        child = _Child(plan["flags"], _make_bridge)
    try:
        if number := child.refused():
            raise SetUpError("make a bridge", number)
        launcher.tell(channel, pid=child.pid)
        os.read(channel, 1)  # the supervisor has opened the namespaces, or has gone
    finally:
        child.let_go()
    return {}


def _make_bridge() -> None:
    net = netlink.Network()
    net.up("lo")
    net.add_bridge(BRIDGE)
    net.up(BRIDGE)
    net.close()


def plug_in(net: dict[str, Any], pid: int) -> None:
    """In the job's network: a cable from the bridge to eth0 of the host whose first process is ``pid``."""
    with step("connect the host to the job's network"):
        job = netlink.Network()
        job.add_veth(net["port"], BRIDGE, "eth0", pid)
        job.up(net["port"])
        job.close()


class Outside:
    """A program (pasta or slirp4netns) that carries a host's connections out. Started here, in this machine's own
    network, before the launcher leaves it; it learns the host's process id later."""

    def __init__(self, program: bytes, resolver: str | None) -> None:
        told, self._tell = os.pipe()
        self._ready, ready = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._tell)
            host = os.read(told, 16)
            null = os.open("/dev/null", os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            if host:
                _carry(program, resolver, host, ready, told)
            os._exit(1)
        os.close(ready)
        os.close(told)

    def connect(self, pid: int) -> bool:
        """Whether the host has a way out now. ``self._tell`` stays open: its end is the order to end."""
        os.write(self._tell, b"%d" % pid)
        return bool(os.read(self._ready, 1))


def _carry(program: bytes, resolver: str | None, host: bytes, ready: int, end: int) -> None:
    """slirp4netns takes our place and says when it is ready; pasta is ready when it has gone to the background."""
    first.normalise()
    if os.path.basename(program) == b"slirp4netns":
        os.set_inheritable(ready, True)
        os.set_inheritable(end, True)
        fds = [b"--ready-fd=%d" % ready, b"--exit-fd=%d" % end]
        shape = [b"--configure", b"--mtu=65520", b"--disable-host-loopback"]
        first.execute([program, *shape, *fds, host, OUTSIDE], {})
    namespaces = [b"--netns", b"/proc/%s/ns/net" % host, b"--userns", b"/proc/%s/ns/user" % host]
    shape = [b"--config-net", b"--no-map-gw", b"--quiet", b"--ns-ifname", OUTSIDE]
    # Without these it would listen on this machine's ports for the host, and the other way round.
    closed = [b"-t", b"none", b"-u", b"none", b"-T", b"none", b"-U", b"none"]
    if os.geteuid() == 0:
        shape += [b"--runas", b"0:0"]
    if resolver:
        shape += [b"--dns-forward", resolver.encode()]
    pid = os.fork()
    if pid == 0:
        first.execute([program, *shape, *closed, *namespaces], {})
    if os.waitpid(pid, 0)[1] == 0:
        os.write(ready, b"1")


def enter(plan: Plan, channel: int) -> Message:
    """Run a program on this terminal in the namespaces of process ``pid``, until it ends."""
    theirs = []
    with step("find the host", b"/proc/%d" % plan["pid"]):
        for name, kind in NAMESPACES:
            fd = os.open(b"/proc/%d/ns/%s" % (plan["pid"], name), os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(fd).st_ino != os.stat(b"/proc/self/ns/" + name).st_ino:
                theirs.append((fd, kind))
    with step("enter the host"):
        for fd, kind in theirs:
            syscalls.setns(fd, kind)
    for number in (_signal.SIGINT, _signal.SIGQUIT):  # the terminal's, meant for the program
        _signal.signal(number, _signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        syscalls.die_with_parent(_signal.SIGHUP)
        try:
            os.chdir(plan["cwd"])
        except OSError:
            os.chdir("/")
        first.normalise()
        first.execute(plan["argv"], plan["env"])
    return {"status": os.waitpid(pid, 0)[1]}


def probe(plan: Plan, channel: int) -> Message:
    """Do what a host takes in children that end at once.

    ``plan["tries"]`` are (name, CLONE flags); the answer has the error number of each, 0 for success.
    """
    return {"found": {name: _try(flags) for name, flags in plan["tries"]}}


def _try(flags: int) -> int:
    try:
        child = _Child(flags, lambda: _make_part_of_host(flags))
    except OSError as error:
        return error.errno or 1
    try:
        return child.refused()
    finally:
        child.let_go()


def _make_part_of_host(flags: int) -> None:
    if flags & syscalls.CLONE_NEWNS:
        syscalls.mount(None, b"/", None, syscalls.MS_SLAVE | syscalls.MS_REC)
        syscalls.mount(b"tmpfs", b"/dev", b"tmpfs", 0)
        syscalls.mount(b"/proc", b"/dev", None, mounts.BIND)
    if flags & syscalls.CLONE_NEWUTS:
        syscalls.set_hostname(b"probe")
    if flags & syscalls.CLONE_NEWNET:
        _make_bridge()


ERRANDS = {"network": network, "enter": enter, "probe": probe}
