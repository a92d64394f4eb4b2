"""Parallel ranged downloads from S3 that resume: each object appears under its final name only when it is whole."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.daemon_pool import LEAVE_SECONDS, DaemonPool
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Observer, Progress
from hotfire.runtime.s3 import CONNECTIONS, S3Client, S3Object, errors_as
from hotfire.runtime.s3_patience import Patience
from hotfire.runtime.storage import local_fault

PART = 16 << 20
"""Bytes of one ranged request."""

_WRITERS = 8
"""Threads for parts of many bytes: more of them fight for the file's lock and take three times the processor's time."""
_MANY = 1 << 20

_CHUNK = 1 << 18
"""Small enough to stay in the allocator's hands: larger blocks cost page faults, a third of the time."""

_TICK = 0.1


@dataclass(frozen=True)
class Wanted:
    """``target`` names content (an ETag is in it), so that a partial file beside it may be continued."""

    object: S3Object
    target: Path


def download(client: S3Client, wanted: Sequence[Wanted], observer: Observer, activity: str) -> None:
    """Fetch everything; returns when all of it is there.

    Progress counts what an earlier, interrupted download had left. After an error or Ctrl-C the partial files stay,
    and the next call goes on from them.

    Raises:
        DataError: S3 refused, the connection broke for good, an object changed meanwhile, or the disk is full.
    """
    total = sum(one.object.size for one in wanted)
    shared = _Shared(client, wanted)
    # Small objects wait for answers, large parts for the processor.
    threads = CONNECTIONS if total < _MANY * shared.parts else _WRITERS
    pool = DaemonPool(threads, "download")
    workers = [pool.submit(shared.work) for _ in range(min(threads, shared.parts))]
    try:
        _watch(workers, lambda: observer(_progress(activity, shared.done, total)))
    finally:
        shared.stop.set()
        # What a thread left behind has open is not ours to close: the number may be another file's then.
        if pool.close(LEAVE_SECONDS):
            shared.close()
    observer(_progress(activity, shared.done, total))


def _progress(activity: str, done: int, total: int) -> Progress:
    return Progress(activity=activity, done=done, total=total)


def _watch(workers: Sequence[Future[None]], report: Callable[[], None]) -> None:
    pending = set(workers)
    while pending:
        finished, pending = wait(pending, timeout=_TICK)
        report()
        for worker in finished:
            worker.result()


class _Shared:
    """What the workers share: the parts still to take, and the count of bytes."""

    def __init__(self, client: S3Client, wanted: Sequence[Wanted]) -> None:
        self.client = client
        self.stop = threading.Event()
        self.done = 0
        self.parts = sum(part_count(one.object.size) for one in wanted)
        self._lock = threading.Lock()
        self._open: set[_Partial] = set()
        self._todo = self._each(wanted)

    def _each(self, wanted: Sequence[Wanted]) -> Iterator[tuple[_Partial, int]]:
        for one in wanted:
            partial = _Partial(one)
            self._open.add(partial)
            for number in range(part_count(one.object.size)):
                yield partial, number

    def work(self) -> None:
        while not self.stop.is_set():
            with self._lock:
                item = next(self._todo, None)
            if item is None:
                return
            partial, number = item
            try:
                if part_count(partial.wanted.object.size) == 1:
                    partial.fetch_whole(self)
                else:
                    partial.fetch(number, self)
            except OSError as error:
                do = "Free space or set HOTFIRE_CACHE to a larger disk; the download then goes on."
                raise local_fault(error, partial.wanted.target, do) from error

    def moved(self, count: int) -> None:
        with self._lock:
            self.done += count

    def finished(self, partial: _Partial) -> None:
        with self._lock:
            self._open.discard(partial)

    def close(self) -> None:
        for partial in self._open:
            partial.close()


def part_count(size: int) -> int:
    return max(1, -(-size // PART))


class _Partial:
    """One object on its way to ``target``: the bytes in ``target.part``, the numbers of whole parts in ``.parts``.

    The journal is trusted only within one boot: after a power failure parts may be named whose bytes never reached the
    disk. A lock on the file keeps two processes apart; the second one downloads to a name of its own.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._lock = threading.Lock()
        self._missing: set[int] = set()
        self._file = -1
        self._journal = -1
        self._path = wanted.target.with_name(wanted.target.name + ".part")
        self._journal_path = self._path.with_name(self._path.name + "s")
        self._private = False

    def fetch(self, number: int, shared: _Shared) -> None:
        size = self.wanted.object.size
        length = min(PART, size - number * PART)
        with self._lock:
            if self._file < 0:
                self._begin()
            missing = number in self._missing
        if not missing:
            shared.moved(length)
        elif length:
            self._transfer(number * PART, length, shared)
        if shared.stop.is_set() and missing and length:
            return
        with self._lock:
            self._whole(number, write=missing)
            over = not self._left
        if over:
            self._finish()
            shared.finished(self)

    def fetch_whole(self, shared: _Shared) -> None:
        """An object of one part: there is nothing to resume, so there is no journal and no lock."""
        one = self.wanted
        path = one.target.with_name(f"{one.target.name}.part.{os.getpid()}-{id(self)}")
        one.target.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._transfer(0, one.object.size, shared)
            if not shared.stop.is_set():
                path.replace(one.target)
        finally:
            self.close(keep=True)
            path.unlink(missing_ok=True)
            shared.finished(self)

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._claim(self._path):
            self._private = True
            self._path = self._path.with_name(f"{self._path.name}.{os.getpid()}-{id(self)}")
            self._journal_path = self._path.with_name(self._path.name + "s")
            self._claim(self._path)
        count = part_count(self.wanted.object.size)
        self._left = set(range(count))
        self._missing = self._left - self._read_journal()
        os.truncate(self._file, self.wanted.object.size)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if len(self._missing) == count:
            flags |= os.O_TRUNC
        self._journal = os.open(self._journal_path, flags, 0o644)
        if len(self._missing) == count:
            os.write(self._journal, f"{_boot()} {PART}\n".encode())

    def _claim(self, path: Path) -> bool:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its former owner may have renamed it to the target between our open and our lock.
            if os.fstat(handle).st_ino != path.stat().st_ino:
                raise FileNotFoundError(path)
        except (BlockingIOError, FileNotFoundError):
            os.close(handle)
            return False
        self._file = handle
        return True

    def _read_journal(self) -> set[int]:
        try:
            head, *lines = self._journal_path.read_text().splitlines(keepends=True)
        except (OSError, ValueError):
            return set()
        if head != f"{_boot()} {PART}\n":
            return set()
        numbers = {line.strip() for line in lines if line.endswith("\n")}
        return {int(number) for number in numbers if number.isdecimal()} & self._left

    def _whole(self, number: int, *, write: bool) -> None:
        if write:
            os.write(self._journal, f"{number}\n".encode())
        self._left.discard(number)

    def _transfer(self, start: int, length: int, shared: _Shared) -> None:
        """Bytes [start, start + length); a connection that breaks is opened again where it broke."""
        done = 0
        patience = Patience(shared.client, shared.stop.wait)
        while done < length and not shared.stop.is_set():
            try:
                for data in self._read(start + done, start + length, shared):
                    if shared.stop.is_set():
                        return
                    _write_all(self._file, data, start + done)
                    done += len(data)
                    patience.moved()
                    shared.moved(len(data))
            except DataError as error:
                if not patience.again(error.__cause__) and not shared.stop.is_set():
                    raise

    def _read(self, start: int, end: int, shared: _Shared) -> Iterator[bytes]:
        one = self.wanted.object
        whole = start == 0 and end == one.size
        extra = {} if whole else {"Range": f"bytes={start}-{end - 1}"}
        with errors_as(DataError, one.uri, "download", prefix="Data download failed: "):
            answer = shared.client.get_object(
                Bucket=one.bucket, Key=one.key, IfMatch=f'"{one.etag}"', **extra
            )
        try:
            with errors_as(DataError, one.uri, "download", prefix="Data download failed: "):
                yield from answer["Body"].iter_chunks(_CHUNK)
        finally:
            answer["Body"].close()

    def _finish(self) -> None:
        self.close(keep=True)
        self._path.replace(self.wanted.target)
        self._journal_path.unlink(missing_ok=True)

    def close(self, *, keep: bool = False) -> None:
        for handle in (self._file, self._journal):
            if handle >= 0:
                os.close(handle)
        self._file = self._journal = -1
        if self._private and not keep:
            self._path.unlink(missing_ok=True)
            self._journal_path.unlink(missing_ok=True)


def _write_all(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, at)
        view, at = view[count:], at + count


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
