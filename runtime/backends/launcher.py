"""The program beside every host: makes the namespaces, becomes the parent of the first process, reports its end.

:mod:`hotfire.runtime.backends.spawn` starts it as a bare interpreter: a process with threads must not fork, and a host
must not depend on what the supervisor has open. It speaks over one socket, the ``channel``:

- from the supervisor, first an order: the descriptors of a plan, and of what the plan names; afterwards each byte is
  a signal for the host's first process; the end of the stream (the supervisor closed it, or was killed) is the order
  to kill everything;
- to the supervisor, each message is a marshalled dict: ``{"pid": ..., "notes": ...}`` once the program has been
  executed, or ``{"error": ...}``; at the end ``{"status": ..., "max_rss": ...}``.

Every import here is paid by every host: nothing beyond small C modules, so neither pathlib nor contextlib.
"""

# ruff: noqa: PTH108, PTH115, PTH116, PTH119, PTH120, PTH123, PTH208, PTH211, SIM105

from __future__ import annotations

import errno
import marshal
import os
import select
from _socket import AF_UNIX, MSG_CMSG_CLOEXEC, SOCK_SEQPACKET
from _socket import socket as raw_socket
from array import array

from hotfire.runtime.backends import first, processes, syscalls
from hotfire.runtime.backends.steps import SetUpError, step

TYPE_CHECKING = False  # typing itself would cost every host ten milliseconds
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any, NoReturn

    Plan = dict[str, Any]
else:
    import _signal  # what `signal` wraps, without its enums


def main(descriptor: str) -> NoReturn:
    """Do the errands that are ordered over the channel: any number of probes, and one that is none."""
    channel = int(descriptor)
    os.set_inheritable(channel, False)
    code = 0
    try:
        errand = "probe"
        while errand == "probe":
            errand, plan = wait_for_order(channel)
            if errand == "host":
                host(plan, channel)
            elif errand:
                from hotfire.runtime.backends import errands

                tell(channel, **errands.ERRANDS[errand](plan, channel))
    except SetUpError as error:
        tell(channel, error=error.as_dict())
        code = 1
    os._exit(code)  # nothing is left to do, and taking an interpreter down takes its time


def wait_for_order(channel: int) -> tuple[str, Plan]:
    """The errand and its plan; no errand when the supervisor has gone."""
    messenger = raw_socket(AF_UNIX, SOCK_SEQPACKET, 0, channel)
    try:
        data, ancillary, _, _ = messenger.recvmsg(64, 4096, MSG_CMSG_CLOEXEC)
    finally:
        messenger.detach()
    if not data:
        return "", {}
    fds = array("i", ancillary[0][2]).tolist()
    with open(fds.pop(0), "rb") as file:
        errand, plan, kept = marshal.load(file)
    new = dict(zip(kept, fds, strict=False))
    if len(fds) > len(kept):
        for stream in (1, 2):
            os.dup2(fds[-1], stream)
        os.close(fds[-1])
    if "join" in plan:
        plan["join"] = [(new[fd], kind) for fd, kind in plan["join"]]
    return errand, plan


def tell(channel: int, **message: Any) -> None:
    """Send a message; a supervisor that is gone needs none."""
    try:
        os.write(channel, marshal.dumps(message))
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise


def host(plan: Plan, channel: int) -> None:
    """Start one host and stay beside it until nothing of it is left."""
    os.set_blocking(channel, False)
    _signal.pthread_sigmask(
        _signal.SIG_SETMASK, ()
    )  # the supervisor's thread may have blocked SIGCHLD
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    syscalls.adopt_orphans()
    stand_in = _StandIn(plan["stand_in"]) if plan["stand_in"] else None
    try:
        pid, notes = start(plan, channel)
        tell(channel, pid=pid, notes=notes)
        status, max_rss = wait(pid, channel, wake, _contained(plan))
    finally:
        if stand_in:
            stand_in.remove()
    tell(channel, status=status, max_rss=max_rss)


def _contained(plan: Plan) -> bool:
    """Whether the end of the first process is the end of everything: a pid namespace, and nothing beside it."""
    outside = plan["net"] and plan["net"]["outside"]
    return bool(plan["flags"] & syscalls.CLONE_NEWPID) and not outside


def start(plan: Plan, channel: int) -> tuple[int, list[str]]:
    """The host's first process, from the namespaces to the running program; its id, and what could not be had."""
    outside = None
    if plan["net"]:
        from hotfire.runtime.backends import errands

        if program := plan["net"]["outside"]:
            outside = errands.Outside(program, plan["net"]["resolver"])
    for fd, kind in plan["join"]:
        with step("enter the job's network"):
            syscalls.setns(fd, kind)
        os.close(fd)
    answer, answer_write = os.pipe()
    go, go_write = os.pipe()
    with step("make namespaces"):
        pid = syscalls.clone(plan["flags"]) if plan["flags"] else os.fork()
    if pid == 0:
        os.close(go_write)
        first.become(plan, go, answer_write, channel)
    os.close(answer_write)
    os.close(go)
    try:
        if plan["flags"] & syscalls.CLONE_NEWUSER:
            map_ids(pid)
        notes = []
        if plan["net"]:
            errands.plug_in(plan["net"], pid)
            if outside and not outside.connect(pid):
                name = os.path.basename(plan["net"]["outside"]).decode()
                notes.append(f"{name} refused, so the private network has no way out")
        with step("start the host"):
            os.write(go_write, b"g")
        return pid, notes + _read_answer(answer)
    except BaseException:
        os.kill(pid, _signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(answer)
        os.close(go_write)


def _read_answer(answer: int) -> list[str]:
    """What the first process says before the program takes its place, which closes its end of the pipe."""
    with open(answer, "rb", closefd=False) as file:
        data = file.read()
    if not data:
        raise SetUpError("start the host: it was killed", errno.ESRCH)
    said = marshal.loads(data)
    if error := said.get("error"):
        raise SetUpError(**error)
    notes: list[str] = said["notes"]
    return notes


def map_ids(pid: int) -> None:
    """Ids of the new user namespace: root keeps the ids it has, another user becomes root of the host alone."""
    with step("map user ids"):
        if os.geteuid() == 0:
            try:
                for kind in ("uid", "gid"):
                    _write(f"/proc/{pid}/{kind}_map", _same_ids(kind))
                return
            except PermissionError:
                pass  # root of a container, without the right to map others
        _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/uid_map", f"0 {os.geteuid()} 1")
        _write(f"/proc/{pid}/gid_map", f"0 {os.getegid()} 1")


def _same_ids(kind: str) -> str:
    with open(f"/proc/self/{kind}_map") as file:
        ranges = [line.split() for line in file]
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def wait(pid: int, channel: int, wake: int, contained: bool) -> tuple[int, int]:
    """Serve the channel until the first process has ended and nothing of the host is left.

    ``contained``: a pid namespace ends with its first process, so there is nothing to look for.
    Returns the wait status of the first process and the largest resident set of any process, in bytes.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wake, select.POLLIN)
    status: int | None = None
    max_rss = 0
    while True:
        ended, kib = _reap(pid)
        max_rss = max(max_rss, kib * 1024)
        status = status if ended is None else ended
        if status is not None and (contained or not _kill_descendants()):
            return status, max_rss
        ready = [fd for fd, _ in poll.poll(None if status is None else 20)]
        if wake in ready:
            os.read(wake, 4096)
        if channel in ready and not _obey(channel, pid if status is None else None):
            poll.unregister(channel)


def _reap(pid: int) -> tuple[int | None, int]:
    """Collect everything that ended: the status of ``pid`` if it was among it, and the largest set in KiB."""
    found: int | None = None
    largest = 0
    while True:
        try:
            ended, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found, largest
        if ended == 0:
            return found, largest
        largest = max(largest, usage.ru_maxrss)
        if ended == pid:
            found = status


def _obey(channel: int, pid: int | None) -> bool:
    """Pass on the signals that were asked for. False when the supervisor has gone: then everything is to die."""
    try:
        orders = os.read(channel, 64)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        orders = b""
    if pid is not None:
        for number in orders or (_signal.SIGKILL,):
            os.kill(pid, number)
    return bool(orders)


def _kill_descendants() -> bool:
    """SIGKILL to everything that outlived the first process, daemons included; whether there was anything."""
    alive = processes.descendants(os.getpid())
    for pid in alive:
        try:
            os.kill(pid, _signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return bool(alive)


class _StandIn:
    """Symbolic links in the place of mounts, at /opt/ml itself; made before the host starts, gone after it.

    ``plan``: ``root`` is the real /opt/ml, ``home`` what it stands for, ``whole`` whether /opt/ml itself is the link.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._root: bytes = plan["root"]
        self._home: bytes = plan["home"]
        self._whole: bool = plan["whole"]
        self._watched = os.path.dirname(self._root) if self._whole else self._root
        with step("link /opt/ml to the job", self._root):
            before = os.stat(self._watched)
            self._times = (before.st_atime_ns, before.st_mtime_ns)
            if self._whole:
                os.symlink(self._home, self._root)
            else:
                self._fill()

    def remove(self) -> None:
        """Leave /opt/ml as it was found; what the host put there belongs to the job."""
        if self._whole:
            os.unlink(self._root)
        else:
            self._empty()
        self._restore_times()

    def _restore_times(self) -> None:
        try:
            os.utime(self._watched, ns=self._times)
        except PermissionError:
            pass  # somebody else's directory, in which we may only write

    def _fill(self) -> None:
        try:
            for name in os.listdir(self._home):
                os.symlink(self._home + b"/" + name, self._root + b"/" + name)
        except OSError:
            self._empty()
            raise

    def _empty(self) -> None:
        import shutil

        for entry in list(os.scandir(self._root)):
            home = self._home + b"/" + entry.name
            if entry.is_symlink() and os.readlink(entry.path) == home:
                os.unlink(entry.path)
            else:
                shutil.move(os.fsdecode(entry.path), os.fsdecode(home))
