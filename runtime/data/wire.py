"""Just enough of protobuf's wire format to read records whose messages are known. Standard library only."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hotfire.runtime.data.recordio import RecordError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes
"""An int for varints; the raw little-endian bytes for everything else."""


def fields(message: bytes) -> Iterator[tuple[int, int, Value]]:
    """Number, wire type and value of every field, in order.

    Raises:
        RecordError: not a protobuf message.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value: Value
            value, position = _varint(message, position)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(kind)
            if kind == BYTES:
                size, position = _varint(message, position)
            if size is None or not number:
                raise RecordError(f"field {number} of wire type {kind}: not a protobuf record")
            value, position = message[position : position + size], position + size
            if position > len(message):
                raise RecordError("a protobuf record ends inside a field")
        yield number, kind, value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise RecordError("a protobuf record ends inside a number")
        byte = message[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise RecordError("a number of a protobuf record is too long")


def integers(kind: int, value: Value, *, signed: bool = True) -> list[int]:
    """A repeated integer field's entry, packed or not."""
    if isinstance(value, int):
        found = [value]
    else:
        found, position = [], 0
        while position < len(value):
            number, position = _varint(value, position)
            found.append(number)
    return [n - (1 << 64) if signed and n >= 1 << 63 else n for n in found]


def floats(value: Value, code: str) -> list[float]:
    """A repeated float (``f``) or double (``d``) field's entry, packed or not."""
    size = struct.calcsize(code)
    if isinstance(value, int) or len(value) % size:
        raise RecordError("a protobuf record has no floats where they belong")
    return list(struct.unpack(f"<{len(value) // size}{code}", value))


def text(value: Value) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def message(value: Value) -> bytes:
    """A field that must hold a message or bytes."""
    if isinstance(value, int):
        raise RecordError("a protobuf record has a number where a message belongs")
    return value
