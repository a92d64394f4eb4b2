"""What a container writes, as the engine passes it on."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from hotfire.containers.address import SECONDS


class Output:
    """What a container writes, stdout and stderr in the order in which the engine read them; ends with the container.

    On a connection of our own: after the engine's answer it carries no HTTP any more, which HTTP libraries handle badly.
    """

    def __init__(self, path: str, version: str, container: str) -> None:
        """Raises OSError where the engine does not take the request."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(SECONDS)
            self._socket.connect(path)
            query = "stream=1&stdout=1&stderr=1"
            self._socket.sendall(
                f"POST /v{version}/containers/{container}/attach?{query} HTTP/1.1\r\nHost: docker\r\n"
                "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
            )
            self._reader = self._socket.makefile("rb", buffering=1 << 16)
            status = self._reader.readline().split()
            while self._reader.readline().strip():
                pass
            if status[1:2] not in ([b"101"], [b"200"]):
                raise OSError(f"the engine answered {b' '.join(status).decode()}")
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        """Chunks as they come; without a terminal each has a header of 8 bytes: the stream, and its length."""
        while len(header := self._reader.read(8)) == 8:
            (length,) = struct.unpack(">4xL", header)
            yield self._reader.read(length)

    def close(self) -> None:
        """Ends an iteration in another thread; that thread then closes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Close the connection; only by the thread that reads it."""
        self._reader.close()
        self._socket.close()
