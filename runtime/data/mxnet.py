"""Image records in MXNet's layout (im2rec): a header with the label and a number, then the image as it was encoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hotfire.runtime.data import recordio

_HEADER = struct.Struct("<IfQQ")


@dataclass(frozen=True)
class ImageRecord:
    """``labels`` has one value, or as many as were written; ``payload`` is a JPEG, a PNG, or whatever was packed."""

    labels: tuple[float, ...]
    number: int
    payload: bytes

    @property
    def label(self) -> int:
        return int(self.labels[0])


def pack(label: float, number: int, payload: bytes) -> bytes:
    """The contents of one record."""
    return _HEADER.pack(0, label, number, 0) + payload


def unpack(record: bytes) -> ImageRecord:
    """What :func:`pack` or im2rec wrote.

    Raises:
        RecordError: too short for its header or its labels.
    """
    if len(record) < _HEADER.size:
        raise recordio.RecordError(f"{len(record)} bytes are no image record")
    count, label, number, _ = _HEADER.unpack_from(record)
    end = _HEADER.size + 4 * count
    if len(record) < end:
        raise recordio.RecordError(f"an image record of {count} labels has {len(record)} bytes")
    # The first field counts labels that follow the header; 0 means the one inside.
    labels = struct.unpack_from(f"<{count}f", record, _HEADER.size) if count else (label,)
    return ImageRecord(labels, number, record[end:])


def read(stream: recordio.Readable) -> Iterator[ImageRecord]:
    """Image records of a stream or file."""
    return map(unpack, recordio.read(stream))
