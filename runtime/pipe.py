"""An input channel in Pipe mode: a FIFO per epoch and host, filled while the hosts run (contract 3.7)."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hotfire.runtime.backend import Mount
from hotfire.runtime.channel_parts import Feeds, Item, Size, manifest_text
from hotfire.runtime.data import recordio
from hotfire.runtime.data_rules import DataRules
from hotfire.runtime.errors import DataError, HotfireError, PlatformError
from hotfire.runtime.events import Observer
from hotfire.runtime.layout import ML_ROOT
from hotfire.runtime.manifests import Reference
from hotfire.runtime.pipe_fifo import Abandoned, Fifo, ReaderGone
from hotfire.runtime.pipe_source import ObjectUnits, Part, Payload, Source, Units, spooled
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_stream import Reader
from hotfire.runtime.sharding import Assignment
from hotfire.runtime.spec import Channel
from hotfire.runtime.storage import Locations

_SMALL = 1 << 16
"""Bytes of a record that is written in one piece."""

RELEASE_SECONDS = 0.005
"""Between two attempts to get a writer out of its wait."""


@dataclass(frozen=True, kw_only=True)
class PipeInput:
    """A channel that streams. On a host it is FIFOs ``<channel>_0``, ``<channel>_1`` ...; ``<channel>`` is not there."""

    channel: Channel
    hosts: frozenset[str]
    units: Units
    assignment: Assignment
    locations: Locations
    s3: S3 = field(repr=False)
    rules: DataRules = field(default_factory=DataRules)
    epochs: Path | None = None
    """Directory where each host's next epoch is written down, for jobs that go on with it after a restart."""
    manifest_lines: tuple[str, ...] = ()
    """Prefix and URIs of <channel>-manifest; none without one (contract 3.5)."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.channel.channel_name

    def mounts(self, host: str, ml_root: PurePosixPath = ML_ROOT) -> tuple[Mount, ...]:
        return ()

    def manifest(self) -> str | None:
        lines = self.manifest_lines
        return manifest_text(lines[0], lines[1:]) if lines else None

    def size(self) -> Size:
        """Objects of the channel and their bytes; for an augmented manifest its lines, of unknown bytes."""
        if isinstance(self.units, ObjectUnits):
            objects = self.units.objects
            return Size(len(objects), sum(one.size for one in objects))
        return Size(len(self.units), 0)

    def preview(self, host: str, epoch: int) -> Iterator[Item]:
        for position in self.assignment.order(host, epoch):
            for part in self.units.parts(position):
                yield _item(part)

    def to_download(self) -> int:
        return 0

    @contextmanager
    def materialise(self, observer: Observer, feeds: Feeds) -> Iterator[None]:
        """Feeders for all hosts; they are gone, with their FIFOs, when the block ends."""
        if not feeds.dirs:
            raise PlatformError(f"channel {self.name}: the hosts' directories are not known here")
        with ExitStack() as stack:
            for host in sorted(self.hosts & feeds.dirs.keys()):
                stack.enter_context(Feeder(self, host, feeds.dirs[host].ml.data, feeds).running())
            yield


def _item(part: Part) -> Item:
    if isinstance(part, bytes):
        return Item(uri=f"value {part.decode(errors='replace')[:60]}", bytes=len(part))
    if isinstance(part, Reference):
        return Item(uri=part.uri, bytes=None)
    return Item(uri=part.uri, bytes=part.size)


class Feeder:
    """One host's side of one channel: a thread that serves an epoch after the other, as many as are read."""

    def __init__(self, one: PipeInput, host: str, directory: Path, feeds: Feeds) -> None:
        self._one = one
        self._host = host
        self._directory = directory
        self._feeds = feeds
        self._note = None if one.epochs is None else one.epochs / f"{one.name}-{host}"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._fifos: dict[int, Fifo] = {}
        self._kept: list[Path] = []
        self._reader = Reader(one.s3, self._stop)
        self._source = Source(
            one.locations, self._reader, gunzip=one.channel.compression_type == "Gzip"
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        self._directory.mkdir(parents=True, exist_ok=True)
        first = self._first()
        self._fifo(first)
        if self._one.rules["pipe-next"] == "at-start":
            self._fifo(first + 1)
        name = f"pipe {self._one.name} {self._host}"
        thread = threading.Thread(target=self._run, args=(first,), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._reader.close()
            while thread.is_alive():
                with self._lock:
                    open_now = list(self._fifos.values())
                for fifo in open_now:
                    fifo.release()
                thread.join(RELEASE_SECONDS)
            for fifo in self._fifos.values():
                fifo.close()
            for used in self._kept:
                used.unlink(missing_ok=True)

    def _first(self) -> int:
        """The epoch that a host begins with (contract 3.7 leaves open which one it is after a restart)."""
        try:
            return 0 if self._note is None else int(self._note.read_text())
        except FileNotFoundError:
            return 0

    def _run(self, first: int) -> None:
        try:
            for epoch in itertools.count(first):
                self._epoch(epoch)
        except Abandoned:
            return
        except HotfireError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread must not end in silence
            text = f"channel {self._one.name}: {type(error).__name__}: {error}"
            self._fail(PlatformError(text, do="This is a fault of hotfire's; please report it."))

    def _fail(self, error: HotfireError) -> None:
        """The FIFO stays open: an end of the stream here would look like the end of the epoch."""
        if self._stop.is_set():
            return
        self._feeds.fail(error)
        self._stop.wait()

    def _fifo(self, epoch: int) -> Fifo:
        with self._lock:
            if self._stop.is_set():
                raise Abandoned
            if epoch not in self._fifos:
                self._fifos[epoch] = Fifo(self._directory / f"{self._one.name}_{epoch}")
            return self._fifos[epoch]

    def _epoch(self, epoch: int) -> None:
        fifo = self._fifo(epoch)
        self._await(fifo, epoch)
        if self._note is not None:
            self._note.parent.mkdir(parents=True, exist_ok=True)
            self._note.write_text(str(epoch + 1))
        ahead = 2 if self._one.rules["pipe-next"] == "at-start" else 1
        self._fifo(epoch + ahead)
        order = self._one.assignment.order(self._host, epoch)
        parts = (part for position in order for part in self._one.units.parts(position))
        payloads = self._source.payloads(parts)
        try:
            for payload in payloads:
                send(fifo, payload, self._one)
            fifo.flush()
        except ReaderGone:
            payloads.close()
        unlink = self._one.rules["pipe-used"] == "unlink"
        if not unlink:
            self._kept.append(fifo.path)
        with self._lock:
            del self._fifos[epoch]
        fifo.close(unlink=unlink)

    def _await(self, fifo: Fifo, epoch: int) -> None:
        seconds = self._one.rules.seconds("pipe-timeout")
        timer = threading.Timer(seconds, self._late, (fifo, epoch)) if seconds else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            fifo.open()
        finally:
            if timer is not None:
                timer.cancel()

    def _late(self, fifo: Fifo, epoch: int) -> None:
        self._feeds.fail(
            PlatformError(
                f"SageMaker pipe channel timed out: nobody opened {fifo.path.name}",
                do="Raise pipe-timeout, or read the channel.",
            )
        )


def send(fifo: Fifo, payload: Payload, one: PipeInput) -> None:
    """One part of the stream: as it is, or as a RecordIO record of its own (contract 3.8).

    Raises:
        ReaderGone, Abandoned: see there.
        DataError: it cannot be read, or is not as long as it was; the name is in the message.
    """
    if one.channel.record_wrapper_type != "RecordIO":
        _plain(fifo, payload)
    elif payload.size is None:
        size, unpacked = spooled(payload)
        with unpacked:
            _record(fifo, replace(payload, size=size, pieces=lambda: _read(unpacked)), one.rules)
    else:
        _record(fifo, payload, one.rules)


def _plain(fifo: Fifo, payload: Payload) -> None:
    if payload.file is None or payload.size is None:
        fifo.write(payload.pieces())
    elif payload.size <= _SMALL:
        fifo.add(_contents(payload, payload.file))
    else:
        with _opened(payload, payload.file) as file:
            _whole(fifo.send(file, payload.size), payload)


def _record(fifo: Fifo, payload: Payload, rules: DataRules) -> None:
    assert payload.size is not None
    parts = recordio.parts(payload.size)
    if len(parts) > 1 and rules["recordio-large"] == "refuse":
        raise DataError(
            f"Data download failed: {payload.name} has {payload.size} bytes, and a RecordIO record less than 2^29",
            do="Split the object, or use --data-rule recordio-large=parts.",
        )
    if payload.file is None:
        fifo.write(_framed(parts, payload))
    elif payload.size <= _SMALL:
        header, length = parts[0]
        fifo.add(header, _contents(payload, payload.file), recordio.padding(length))
    else:
        with _opened(payload, payload.file) as file:
            for header, length in parts:
                fifo.add(header)
                _whole(fifo.send(file, length), payload, length)
                fifo.add(recordio.padding(length))


def _framed(parts: list[tuple[bytes, int]], payload: Payload) -> Iterator[bytes]:
    """The pieces of a payload, cut where parts begin; small records in one piece."""
    pieces, rest = payload.pieces(), memoryview(b"")
    for header, length in parts:
        if length <= _SMALL:
            data = b"".join([bytes(rest), *pieces])
            _whole(len(data), payload, length)
            yield header + data + recordio.padding(length)
            return
        yield header
        left = length
        while left:
            rest = rest or memoryview(next(pieces, b""))
            if not rest:
                _whole(length - left, payload, length)
            yield bytes(rest[:left])
            taken = min(left, len(rest))
            rest, left = rest[taken:], left - taken
        yield recordio.padding(length)


def _read(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(_SMALL):
        yield data


def _whole(found: int, payload: Payload, expected: int | None = None) -> None:
    if found != (payload.size if expected is None else expected):
        raise DataError(
            f"Data download failed: {payload.name} became shorter while it was read",
            do="Start the job again when nobody writes to it.",
        )


def _contents(payload: Payload, path: Path) -> bytes:
    """A small file, in one piece: no context managers, since an object then costs more than its bytes."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, payload.size or 0)
        finally:
            os.close(file)
    except OSError as error:
        raise _unreadable(payload, error) from error
    _whole(len(data), payload)
    return data


@contextmanager
def _opened(payload: Payload, path: Path) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise _unreadable(payload, error) from error


def _unreadable(payload: Payload, error: OSError) -> DataError:
    return DataError(
        f"Data download failed: {payload.name}: {error.strerror}",
        do="Leave the files alone while a job reads them, and check their disk.",
    )
