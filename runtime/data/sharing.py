"""One stream of records for several processes of a host: one reads it, and hands each of the others its own records.

A FIFO has one reader (contract 3.7). Reader number 0 of ``count`` serves the others over a Unix socket in the abstract
namespace, so that nothing is left on disk; record ``i`` goes to reader ``i % count``.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from hotfire.runtime.data.recordio import Readable, RecordError

_POLL = 0.02
_LENGTH = struct.Struct("<Q")
_END = (1 << 64) - 1
_READER = struct.Struct("<I")
_WELCOME = b"+"
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, kw_only=True)
class Share:
    """Reader ``index`` of ``count`` of the channel called ``name``; ``place`` is what they meet by, within ``timeout`` s."""

    name: str
    place: str
    index: int
    count: int
    timeout: float

    @property
    def address(self) -> str:
        return f"\0hotfire-pipe/{os.geteuid()}/{self.place}"


def lead(records: Iterable[bytes], share: Share, *, drop_last: bool = False) -> Iterator[bytes]:
    """The records of reader 0, which pulls those of the others along; they wait for it, and it for them.

    The end of this iterator, early or not, is the end of the epoch for all. A reader that stopped is skipped.
    ``drop_last`` leaves out the records after the last one of which every reader gets as many.

    Raises:
        TimeoutError: a reader did not come.
    """
    with ExitStack() as stack:
        others = _gathered(share, stack)
        waiting = iter(records)
        try:
            while turn := list(islice(waiting, share.count)):
                if drop_last and len(turn) < share.count:
                    return
                for index, record in enumerate(turn[1:], start=1):
                    _send(others, index, _LENGTH.pack(len(record)), record)
                yield turn[0]
        finally:
            for index in list(others):
                _send(others, index, _LENGTH.pack(_END))


def follow(share: Share) -> Iterator[bytes]:
    """The records of another reader.

    Raises:
        TimeoutError: reader 0 is not there.
        RecordError: reader 0 died in the middle of the epoch.
    """
    with closing(_joined(share)) as connection, connection.makefile("rb") as stream:
        while (length := _length(stream, share)) != _END:
            yield _exactly(stream, length, share)


def _gathered(share: Share, stack: ExitStack) -> dict[int, socket.socket]:
    """A connection to every other reader."""
    found: dict[int, socket.socket] = {}
    end = time.monotonic() + share.timeout
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(share.address)
        listener.listen(share.count)
        while len(found) < share.count - 1:
            listener.settimeout(max(_POLL, end - time.monotonic()))
            try:
                connection = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                raise TimeoutError(_absent(share, found)) from None
            connection.settimeout(share.timeout)
            index = _reader(connection)
            if index in found or not 0 < index < share.count:
                connection.close()  # of the next epoch already, or none of ours
                continue
            connection.sendall(_WELCOME)
            connection.settimeout(None)
            found[index] = connection
    return found


def _absent(share: Share, found: dict[int, socket.socket]) -> str:
    numbers = ", ".join(str(n) for n in range(1, share.count) if n not in found)
    return (
        f"channel {share.name} is shared by {share.count} processes of this host (local ranks times DataLoader "
        f"workers), and number {numbers} did not come within {share.timeout:g} s: all of them must iterate"
    )


def _reader(connection: socket.socket) -> int:
    """The number that a process of the same user says it has; 0 for anybody else."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(peer)[1] != os.geteuid():
        return 0
    with suppress(OSError):
        said = connection.recv(_READER.size, socket.MSG_WAITALL)
        if len(said) == _READER.size:
            return int(_READER.unpack(said)[0])
    return 0


def _joined(share: Share) -> socket.socket:
    end = time.monotonic() + share.timeout
    while time.monotonic() < end:
        connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            connection.connect(share.address)
            connection.sendall(_READER.pack(share.index))
            if connection.recv(1):
                return connection
        connection.close()
        time.sleep(_POLL)
    raise TimeoutError(
        f"channel {share.name}: local rank 0 (its DataLoader worker 0), which reads the FIFO for all {share.count} "
        f"processes of this host, did not do so within {share.timeout:g} s"
    )


def _send(others: dict[int, socket.socket], index: int, *pieces: bytes) -> None:
    if index in others:
        try:
            for piece in pieces:
                others[index].sendall(piece)
        except OSError:
            others.pop(index).close()


def _length(stream: BinaryIO, share: Share) -> int:
    return int(_LENGTH.unpack(_exactly(stream, _LENGTH.size, share))[0])


def _exactly(stream: Readable, size: int, share: Share) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise RecordError(
            f"channel {share.name}: the process that reads the FIFO (local rank 0) died"
        )
    return found
