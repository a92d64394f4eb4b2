"""What one host sees: its /opt/ml, its mounts, /etc/hosts, /proc, /dev/shm. Runs inside the host's mount namespace.

Sources are opened before the first mount and reached through /proc/self/fd afterwards, so that no mount can hide the
source of a later one, and so that no path, however it is spelled, goes through a parser of mount options.
"""

# ruff: noqa: PTH101, PTH102, PTH115, PTH116, PTH120, PTH123, PTH211

from __future__ import annotations

import errno
import os
import stat

from hotfire.runtime.backends import syscalls

READ_ONLY = "ro"
READ_WRITE = "rw"
COPY_ON_WRITE = "cow"
BIND = syscalls.MS_BIND | syscalls.MS_REC
"""Recursive always: a user namespace refuses to bind a tree without the mounts that it holds."""


def by_fd(fd: int) -> bytes:
    return b"/proc/self/fd/%d" % fd


def _open_directory(path: bytes) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def unescape(field: bytes) -> bytes:
    r"""A path of /proc/self/mountinfo, where blank, tab, newline and backslash are written ``\040`` and so on."""
    head, *rest = field.split(b"\\")
    return head + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def mount_points() -> list[bytes]:
    with open("/proc/self/mountinfo", "rb") as file:
        return [unescape(line.split(b" ", 5)[4]) for line in file]


def _below(path: bytes, root: bytes) -> bool:
    return root == b"/" or path == root or path.startswith(root + b"/")


class View:
    """The mount namespace under construction, for mounts at ``targets``.

    ``stage`` is an empty directory on the machine's disk. Sources may be opened once this object exists, not before.
    """

    def __init__(self, stage: bytes, targets: list[bytes]) -> None:
        self._stages = 0
        self._modes: list[tuple[bytes, str]] = []
        self._tmpfs: set[int] = set()
        # Other mounts of the machine (automounts) still arrive here; ours never leave.
        syscalls.mount(None, b"/", None, syscalls.MS_SLAVE | syscalls.MS_REC)
        self._stage_fd = _open_directory(stage)
        if any(not os.path.lexists(b"/" + target.split(b"/")[1]) for target in targets):
            self._replace(b"/")
            os.close(self._stage_fd)
            self._stage_fd = _open_directory(stage)
            syscalls.detach(by_fd(self._stage_fd) + b"/1")  # the copy of the root below itself

    def _stage(self) -> bytes:
        self._stages += 1
        path = by_fd(self._stage_fd) + b"/%d" % self._stages
        os.mkdir(path)
        return path

    def bind(self, source: int, target: bytes, mode: str, *, directory: bool) -> None:
        """The open file ``source`` appears as ``target``."""
        self._ensure(target, directory=directory)
        syscalls.mount(by_fd(source), target, None, BIND)
        if mode == READ_ONLY:
            _make_read_only(target)
        self._modes.append((target, mode))

    def overlay(self, source: int, target: bytes, name: bytes | None = None) -> None:
        """The directory ``source``, or its file ``name``, appears as ``target``; what is written lands in the stage.

        An overlay's lower layer is a directory: a file comes as part of its directory, of which only the file shows.
        """
        self._ensure(target, directory=name is None)
        stage = self._stage()
        for layer in (b"lower", b"upper", b"work", b"merged"):
            os.mkdir(stage + b"/" + layer)
        _mount_overlay(source, stage, target if name is None else b"merged")
        if name is not None:
            syscalls.mount(b"merged/" + name, target, None, BIND)
            syscalls.detach(b"merged")
        os.chdir("/")
        self._modes.append((target, COPY_ON_WRITE))

    def _ensure(self, target: bytes, *, directory: bool) -> None:
        """Make the mount point, without ever making anything in the machine's own directories."""
        try:
            found = stat.S_ISDIR(os.stat(target).st_mode)
        except FileNotFoundError:
            self._create(target, directory=directory)
            return
        if found != directory:
            raise OSError(errno.ENOTDIR if directory else errno.EISDIR, "of the other kind")

    def _create(self, target: bytes, *, directory: bool) -> None:
        parent = os.path.dirname(target)
        self._ensure(parent, directory=True)
        if not self._may_create(parent):
            self._replace(parent)
        if directory:
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    def _may_create(self, parent: bytes) -> bool:
        if os.stat(parent).st_dev in self._tmpfs:
            return True
        inside = [(len(root), mode) for root, mode in self._modes if _below(parent, root)]
        return bool(inside) and max(inside)[1] != READ_ONLY

    def _replace(self, path: bytes) -> None:
        """Put a directory in the place of ``path`` that holds the same entries and takes new ones."""
        place = self._stage()
        mode = b"mode=%o" % stat.S_IMODE(os.stat(path).st_mode)
        syscalls.mount(b"tmpfs", place, b"tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, mode)
        fd = _open_directory(place)
        self._tmpfs.add(os.fstat(fd).st_dev)
        for entry in os.scandir(path):
            _show(entry, by_fd(fd) + b"/" + entry.name)
        if path == b"/":
            os.fchdir(fd)
            syscalls.pivot_root(b".", b".")
            syscalls.detach(b".")
            os.chdir("/")
        else:
            syscalls.mount(by_fd(fd), path, None, syscalls.MS_MOVE)
        os.close(fd)


def _show(entry: os.DirEntry[bytes], place: bytes) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), place)
        return
    if entry.is_dir():
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    syscalls.mount(entry.path, place, None, BIND)


def _mount_overlay(source: int, stage: bytes, target: bytes) -> None:
    """Relative names keep commas and colons of the real paths out of the options."""
    os.chdir(stage)
    syscalls.mount(by_fd(source), b"lower", None, BIND)
    layers = b"lowerdir=lower,upperdir=upper,workdir=work"
    try:
        syscalls.mount(b"overlay", target, b"overlay", 0, layers + b",userxattr")
    except OSError as error:  # before 5.11 the option is unknown; root of the machine needs none
        if error.errno != errno.EINVAL:
            raise
        syscalls.mount(b"overlay", target, b"overlay", 0, layers)
    syscalls.detach(b"lower")
    # The kernel makes it 000, which `rm -r` of an ordinary user trips over.
    os.chmod("work/work", 0o700)


def _make_read_only(target: bytes) -> None:
    try:
        syscalls.make_read_only(target)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        root = os.path.realpath(target)
        for point in mount_points():
            if _below(point, root):
                _remount_read_only(point)


def _remount_read_only(point: bytes) -> None:
    """Before Linux 5.12: one mount at a time, repeating the flags that a user namespace may not clear."""
    found = os.statvfs(point).f_flag
    flags = {
        os.ST_NOSUID: syscalls.MS_NOSUID,
        os.ST_NODEV: syscalls.MS_NODEV,
        os.ST_NOEXEC: syscalls.MS_NOEXEC,
        os.ST_NOATIME: syscalls.MS_NOATIME,
        os.ST_NODIRATIME: syscalls.MS_NODIRATIME,
        os.ST_RELATIME: syscalls.MS_RELATIME,
    }
    kept = sum(ms for st, ms in flags.items() if found & st)
    remount = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    syscalls.mount(None, point, None, remount | kept)
