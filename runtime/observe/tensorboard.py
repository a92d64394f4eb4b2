"""TensorBoard event files, written by hand: records of TFRecord (length and masked CRC-32C) with Event messages inside.

Only scalars, by the fields of event.proto and summary.proto: Event{1 wall_time, 2 step, 3 file_version, 5 summary},
Summary{1 value}, Value{1 tag, 2 simple_value}.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import BinaryIO

from hotfire.runtime.observe.metrics import MetricPoint


def write_events(points: Iterable[MetricPoint], folder: Path) -> list[Path]:
    """One run per host below ``folder`` (``algo-1/events.out.tfevents.*``), new files each time.

    The step of a value counts the values of its metric on its host: log lines have no step of their own.
    """
    files: dict[str, BinaryIO] = {}
    paths: list[Path] = []
    steps: Counter[tuple[str, str]] = Counter()
    with ExitStack() as stack:
        for one in points:
            if one.host not in files:
                directory = folder / one.host
                directory.mkdir(parents=True, exist_ok=True)
                name = f"events.out.tfevents.{int(one.time):010d}.hotfire"
                paths.append(directory / name)
                files[one.host] = stack.enter_context(paths[-1].open("wb"))
                files[one.host].write(record(_double(1, one.time) + _bytes(3, b"brain.Event:2")))
            step = steps[one.host, one.name]
            steps[one.host, one.name] += 1
            files[one.host].write(record(_scalar(one, step)))
    return paths


def _scalar(point: MetricPoint, step: int) -> bytes:
    value = _bytes(1, point.name.encode()) + b"\x15" + struct.pack("<f", point.value)
    return _double(1, point.time) + b"\x10" + _varint(step) + _bytes(5, _bytes(1, value))


def record(data: bytes) -> bytes:
    """One TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), RFC 3720 appendix B.4."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data
