"""What flows through the FIFOs of a Pipe channel: units, their parts, and each part's bytes (contract 3.7 to 3.10)."""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.listing import LocalObject, Object
from hotfire.runtime.manifests import AugmentedManifest, Reference
from hotfire.runtime.s3 import S3Object
from hotfire.runtime.s3_stream import AHEAD, Opened, Reader
from hotfire.runtime.storage import LocalLocation, Locations

Part = Object | Reference | bytes
"""An object, an object that only its URI is known of, or bytes as they are."""

_IN_MEMORY = 4 << 20
_STEP = 1 << 20


class Units(Protocol):
    """What is shared out and shuffled: objects, or lines of an augmented manifest (contract 3.11)."""

    def __len__(self) -> int: ...

    def parts(self, position: int) -> tuple[Part, ...]: ...


@dataclass(frozen=True)
class ObjectUnits:
    objects: Sequence[Object]

    def __len__(self) -> int:
        return len(self.objects)

    def parts(self, position: int) -> tuple[Part, ...]:
        return (self.objects[position],)


@dataclass(frozen=True)
class LineUnits:
    manifest: AugmentedManifest

    def __len__(self) -> int:
        return len(self.manifest)

    def parts(self, position: int) -> tuple[Part, ...]:
        return self.manifest.values(position)


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One part, ready to be written: a file of this machine, or pieces. ``size`` in bytes, None until it is unpacked."""

    name: str
    size: int | None
    file: Path | None = None
    pieces: Callable[[], Iterator[bytes]] = field(default=lambda: iter(()))


class Source:
    """Turns parts into payloads, and begins those of S3 ahead of their turn."""

    def __init__(self, locations: Locations, reader: Reader, *, gunzip: bool) -> None:
        self._locations = locations
        self._reader = reader
        self._gunzip = gunzip

    def payloads(self, parts: Iterable[Part]) -> Generator[Payload, None, None]:
        """Every part in order.

        Raises:
            DataError: one cannot be read; also while its pieces are taken.
        """
        begun: deque[tuple[Part, Future[Opened] | None]] = deque()
        waiting = iter(parts)
        while True:
            for part in itertools.islice(waiting, AHEAD - len(begun)):
                begun.append(self._begin(part))
            if not begun:
                return
            payload = self._payload(*begun.popleft())
            # A value of an augmented manifest is no object: compression is about objects.
            yield self._unzipped(payload) if self._gunzip and payload.name else payload

    def _begin(self, part: Part) -> tuple[Part, Future[Opened] | None]:
        if isinstance(part, Reference):
            part = self._located(part)
        if isinstance(part, S3Object):
            listed = part if part.etag else None
            return part, self._reader.begin(part.bucket, part.key, listed)
        return part, None

    def _located(self, reference: Reference) -> Part:
        try:
            location = self._locations.resolve(reference.uri)
        except ValidationError as error:
            raise DataError(f"Data download failed: {error.what}", do=error.do) from error
        if not isinstance(location, LocalLocation):
            return S3Object(bucket=location.bucket, key=location.key, size=0, etag="")
        return LocalObject(path=location.path, key="", size=-1, uri=reference.uri)

    def _payload(self, part: Part, begun: Future[Opened] | None) -> Payload:
        if isinstance(part, bytes):
            return Payload(name="", size=len(part), pieces=lambda: iter((part,)))
        if begun is not None:
            opened = begun.result()
            return Payload(
                name=opened.uri, size=opened.size, pieces=lambda: self._reader.body(opened)
            )
        assert isinstance(part, LocalObject)
        try:
            size = part.path.stat().st_size
        except OSError as error:
            raise DataError(
                f"Data download failed: {part.uri}: {part.path}: {error.strerror}",
                do="Put it back and start the job again.",
            ) from error
        return Payload(name=part.uri, size=size, file=part.path)

    def _unzipped(self, payload: Payload) -> Payload:
        def pieces() -> Iterator[bytes]:
            return gunzip(_raw(payload), payload.name)

        return Payload(name=payload.name, size=None, pieces=pieces)


def _raw(payload: Payload) -> Iterator[bytes]:
    if payload.file is None:
        yield from payload.pieces()
        return
    with payload.file.open("rb", buffering=0) as source:
        while data := source.read(_STEP):
            yield data


def gunzip(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The contents of a gzip file, of any number of members; zeros after the last one are padding.

    Raises:
        DataError: it is none, is damaged, or ends early. ``name`` is in the message.
    """
    from isal import isal_zlib

    member, members = None, 0
    for piece in pieces:
        data = piece
        while data:
            if member is None:
                data = data.lstrip(b"\0") if members else data
                if not data:
                    break
                member = isal_zlib.decompressobj(wbits=31)
            try:
                out = member.decompress(data, _STEP)
                data = member.unconsumed_tail
                yield out
                while not data and not member.eof and len(out) == _STEP:
                    out = member.decompress(b"", _STEP)
                    yield out
            except isal_zlib.error as error:  # type: ignore[misc]  # its stubs call it a value
                raise _damaged(name, str(error)) from error
            if member.eof:
                data, member, members = member.unused_data, None, members + 1
    if member is not None or not members:
        raise _damaged(name, "it ends early")


def _damaged(name: str, why: str) -> DataError:
    return DataError(
        f"Data download failed: {name} is not a sound gzip file: {why}",
        do="Replace the object, or set the channel's CompressionType to None.",
    )


def spooled(payload: Payload) -> tuple[int, BinaryIO]:
    """Contents whose length must be known before they are written: held in memory while small, else on disk."""
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
    size = 0
    for piece in payload.pieces():
        size += len(piece)
        file.write(piece)
    file.seek(0)
    return size, file  # type: ignore[return-value]
