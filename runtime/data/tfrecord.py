"""TFRecord files and the tf.train.Example messages in them, without TensorFlow."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator

from hotfire.runtime.data import recordio, wire

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78
_LARGEST = 1 << 40

Feature = list[bytes] | list[float] | list[int]


def read(stream: recordio.Readable, *, check: bool = False) -> Iterator[bytes]:
    """The payloads of a stream.

    Lengths are always checked against their checksum; payloads only with ``check``, which needs the package
    google-crc32c to be fast.

    Raises:
        RecordError: a wrong checksum, or an end inside a record.
    """
    while header := _exactly(stream, _LENGTH.size + _CRC.size, may_end=True):
        if _masked(header[:8]) != _CRC.unpack_from(header, 8)[0]:
            raise recordio.RecordError("not TFRecord: the checksum of a length is wrong")
        (length,) = _LENGTH.unpack_from(header)
        if length > _LARGEST:
            raise recordio.RecordError(f"a record of {length} bytes")
        payload = _exactly(stream, length)
        (crc,) = _CRC.unpack(_exactly(stream, _CRC.size))
        if check and _masked(payload) != crc:
            raise recordio.RecordError("the checksum of a record is wrong")
        yield payload


def example(payload: bytes) -> dict[str, Feature]:
    """A tf.train.Example: its features by name."""
    found: dict[str, Feature] = {}
    for number, _, features in wire.fields(payload):
        if number != 1:
            continue
        for entry, _, pair in wire.fields(wire.message(features)):
            if entry == 1:
                name, feature = _pair(wire.message(pair))
                found[name] = feature
    return found


def _pair(data: bytes) -> tuple[str, Feature]:
    name, feature = "", list[bytes]()
    result: Feature = feature
    for number, _, value in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        else:
            result = _feature(wire.message(value))
    return name, result


def _feature(data: bytes) -> Feature:
    for kind, _, content in wire.fields(data):
        values = list(wire.fields(wire.message(content)))
        if kind == 1:
            return [wire.message(value) for _, _, value in values]
        if kind == 2:
            return [number for _, _, value in values for number in wire.floats(value, "f")]
        return [number for _, wt, value in values for number in wire.integers(wt, value)]
    empty: list[bytes] = []
    return empty


def _exactly(stream: recordio.Readable, size: int, *, may_end: bool = False) -> bytes:
    found = stream.read(size) if size else b""
    while len(found) < size:
        more = stream.read(size - len(found))
        if not more:
            if may_end and not found:
                return b""
            raise recordio.RecordError(
                f"the stream ends inside a record: {len(found)} of {size} bytes"
            )
        found += more
    return found


def _masked(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord has it."""
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    try:
        value = importlib.import_module("google_crc32c").value
    except ImportError:
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF
    return int(value(data))
