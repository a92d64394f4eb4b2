"""RecordIO framing (contract 3.8): written for Pipe channels and by ``hotfire data pack``, read back by scripts.

A record is ``u32 magic, u32 (cflag << 29 | length), payload, zeros up to a multiple of 4``, little endian. A payload of
2^29 bytes or more takes several parts: cflag 1 for the first, 2 in the middle, 3 for the last; 0 is a whole record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol

MAGIC = 0xCED7230A
LARGEST_PART = (1 << 29) - 4
"""Bytes of a full part: the largest length that fits and needs no padding."""

_HEADER = struct.Struct("<II")
_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class RecordError(ValueError):
    """The stream is not RecordIO, or it ends inside a record."""


def parts(length: int) -> list[tuple[bytes, int]]:
    """Header and payload length of each part of a record of ``length`` bytes."""
    if length <= LARGEST_PART:
        return [(_HEADER.pack(MAGIC, length), length)]
    lengths = [LARGEST_PART] * (length // LARGEST_PART)
    if rest := length % LARGEST_PART:
        lengths.append(rest)
    flags = [_FIRST, *[_MIDDLE] * (len(lengths) - 2), _LAST]
    return [
        (_HEADER.pack(MAGIC, flag << 29 | size), size)
        for flag, size in zip(flags, lengths, strict=True)
    ]


def padding(length: int) -> bytes:
    """Zeros that follow a payload of ``length`` bytes."""
    return bytes(-length % 4)


def framed(payload: bytes) -> Iterator[bytes]:
    """The bytes of one record, in pieces."""
    view, start = memoryview(payload), 0
    for header, size in parts(len(payload)):
        yield header
        yield bytes(view[start : start + size])
        start += size
    yield padding(len(payload))


def write(out: BinaryIO, records: Iterable[bytes]) -> None:
    """Append records to a file."""
    for record in records:
        out.writelines(framed(record))


def read(stream: Readable) -> Iterator[bytes]:
    """The payloads of a stream, up to its end.

    Parts as :func:`parts` makes them, and as a SageMaker stream has them, are joined as they are. MXNet's writer (im2rec)
    splits a record where the payload itself holds the magic number and leaves that number out; such parts are shorter,
    and the number is put back.

    Raises:
        RecordError: a wrong magic number, or an end inside a record.
    """
    pieces: list[bytes] = []
    while header := _exactly(stream, _HEADER.size, at_end=not pieces):
        magic, word = _HEADER.unpack(header)
        if magic != MAGIC:
            raise RecordError(
                f"not RecordIO: {magic:#010x} in the place of {MAGIC:#010x} (is the channel's "
                "RecordWrapperType RecordIO, or its data RecordIO already?)"
            )
        flag, length = word >> 29, word & ((1 << 29) - 1)
        if (flag in (_MIDDLE, _LAST)) != bool(pieces) or flag > _LAST:
            raise RecordError(f"part of kind {flag} out of its order")
        pieces.append(_exactly(stream, length, at_end=False))
        _exactly(stream, -length % 4, at_end=False)
        if flag in (_WHOLE, _LAST):
            yield b"".join(pieces) if len(pieces) > 1 else pieces[0]
            pieces = []
        elif length != LARGEST_PART:
            pieces.append(_MAGIC_BYTES)


def _exactly(stream: Readable, size: int, *, at_end: bool) -> bytes:
    """``size`` bytes; none at the end of the stream where a record may begin. A FIFO gives them in pieces."""
    found = stream.read(size) if size else b""
    while len(found) < size:
        more = stream.read(size - len(found))
        if not more:
            if at_end and not found:
                return b""
            raise RecordError(f"the stream ends inside a record: {len(found)} of {size} bytes")
        found += more
    return found
