"""System calls that Python 3.11 lacks, through ctypes. Paths and names are bytes; a failure is an ``OSError``.

The launcher imports this module in every host it starts, so it imports nothing slow.
"""

from __future__ import annotations

import ctypes
import errno
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_SLAVE = 1 << 19
MS_RELATIME = 1 << 21
MNT_DETACH = 2

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGCHLD = 17
_SYS_MOUNT_SETATTR = 442
# (clone, pivot_root); every architecture newer than x86-64 shares one table.
_NUMBERS = {"x86_64": (56, 155)}
_GENERIC_NUMBERS = (220, 41)

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _syscall(number: int, *arguments: int | bytes | ctypes.Structure | None) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _call("syscall", ctypes.c_long(number), *words)


def clone(flags: int) -> int:
    """Fork into new namespaces (``CLONE_NEW*``): 0 in the child, the child's process id in the parent.

    Only for a process with one thread: nothing that libc or Python does around ``fork`` is done here.
    """
    number, _ = _NUMBERS.get(os.uname().machine, _GENERIC_NUMBERS)
    return _syscall(number, flags | _SIGCHLD, 0, 0, 0, 0)


def setns(fd: int, kind: int) -> None:
    """Move this process into the namespace that ``fd`` refers to; ``kind`` is its CLONE_NEW* flag."""
    _call("setns", fd, kind)


def mount(
    source: bytes | None, target: bytes, fstype: bytes | None, flags: int, data: bytes | None = None
) -> None:
    """mount(2)."""
    _call("mount", source, target, fstype, ctypes.c_ulong(flags), data)


def detach(target: bytes) -> None:
    """Unmount ``target`` and what is below it, at the latest when its last user is gone."""
    _call("umount2", target, MNT_DETACH)


def pivot_root(new: bytes, old: bytes) -> None:
    """pivot_root(2)."""
    _, number = _NUMBERS.get(os.uname().machine, _GENERIC_NUMBERS)
    _syscall(number, new, old)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def make_read_only(target: bytes) -> None:
    """Make the mount at ``target`` and all mounts below it read-only. ENOSYS before Linux 5.12."""
    attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
    _call(
        "syscall",
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_long(_AT_FDCWD),
        target,
        ctypes.c_long(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_long(ctypes.sizeof(attributes)),
    )


def punch(descriptor: int, begin: int, count: int) -> None:
    """Give bytes of a file back to the disk; they read as zeros. EOPNOTSUPP where the file system cannot."""
    if not hasattr(_libc, "fallocate"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    _call("fallocate", descriptor, mode, ctypes.c_int64(begin), ctypes.c_int64(count))


def set_hostname(name: bytes) -> None:
    """sethostname(2)."""
    _call("sethostname", name, ctypes.c_size_t(len(name)))


def die_with_parent(number: int) -> None:
    """Get signal ``number`` when the thread that made this process ends."""
    _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
