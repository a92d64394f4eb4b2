"""The logs of a job's hosts: followed while they grow, and shown.

Hosts write stdout and stderr to a regular file and are never slowed down by whoever reads it; :class:`LogPump` follows
those files and hands chunks of bytes to an observer, to the last byte.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from hotfire.runtime.events import LogChunk, Observer
from hotfire.runtime.observe import log_pieces
from hotfire.runtime.observe.log_pieces import Rotation

CHUNK = 1 << 20
IDLE_SECONDS = 0.02


class LogPump:
    """Reads the logs of all hosts as they grow: with :meth:`read`, or in a ``with`` that does so in a thread.

    ``seen`` is told the host and the offset of new bytes before the observer gets them; ``rotations``, by host, get what
    was read out of the way.
    """

    def __init__(
        self,
        logs: Mapping[str, Path],
        observer: Observer,
        seen: Callable[[str, int], None] | None = None,
        rotations: Mapping[str, Rotation] | None = None,
    ) -> None:
        self._observer = observer
        self._seen = seen
        self._rotations = rotations or {}
        self._offsets = dict.fromkeys(logs, 0)
        self._whole = dict.fromkeys(logs, True)
        self._logs = dict(logs)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="hotfire-logs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self.finish()

    def finish(self) -> None:
        """Read what is left. Once the hosts have ended, nothing can be lost.

        A last line that never got its newline gets it, so that it does not run into what is observed next.
        """
        while self.read():
            pass
        for host, offset in self._offsets.items():
            if not self._whole[host]:
                self._observer(LogChunk(host=host, data=b"\n"))
            if host in self._rotations:
                self._rotations[host].finish(offset)

    def _follow(self) -> None:
        while not self._done.is_set():
            if not self.read():
                self._done.wait(IDLE_SECONDS)

    def read(self) -> int:
        """Hand on what is new, up to a chunk of each host: how many bytes it was."""
        return sum(self._read(host, path) for host, path in self._logs.items())

    def _read(self, host: str, path: Path) -> int:
        offset = self._offsets[host]
        data = log_pieces.read(path, offset, offset + CHUNK)
        if data:
            if self._seen is not None:
                self._seen(host, offset)
            self._offsets[host] += len(data)
            self._whole[host] = data.endswith(b"\n")
            self._observer(LogChunk(host=host, data=data))
            if host in self._rotations:
                self._rotations[host].read_to(self._offsets[host])
        return len(data)


class LogPrinter:
    """Writes chunks to one stream, whole lines with a prefix per host; exact bytes when there is only one host.

    On a terminal, the unfinished line of a host (a progress bar) is kept live on the last row, and of a finished one what
    was seen last is shown: a carriage return would write over the prefix.
    Losing the stream (``hotfire run | head``) must not end the job: ``lost`` says why, what follows is dropped, the log
    files keep it.
    """

    def __init__(self, stream: BinaryIO, hosts: tuple[str, ...], *, live: bool) -> None:
        self._stream = stream
        self._live = live
        width = max((len(host) for host in hosts), default=0)
        self._prefix = {
            host: f"{host:<{width}} | ".encode() if len(hosts) > 1 else b"" for host in hosts
        }
        self._pending = dict.fromkeys(hosts, b"")
        self._row: str | None = None
        self._lock = threading.Lock()
        self.lost: OSError | None = None

    def __call__(self, chunk: LogChunk) -> None:
        with self._lock:
            prefix = self._prefix[chunk.host]
            if not prefix and self._live:
                self._write(chunk.data)
                return
            end = chunk.data.rfind(b"\n") + 1
            lines, rest = chunk.data[:end], chunk.data[end:]
            if lines:
                lines = self._pending[chunk.host] + lines
                self._pending[chunk.host] = b""
                if self._live and b"\r" in lines:
                    lines = b"".join(_visible(line) + b"\n" for line in lines.split(b"\n")[:-1])
                if prefix:
                    lines = prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
                self._write(self._clear() + lines)
            self._pending[chunk.host] += rest
            if rest and self._live:
                self._draw(chunk.host)

    def close(self) -> None:
        """Write what never got its newline."""
        with self._lock:
            out = self._clear()
            for host, rest in self._pending.items():
                if rest:
                    out += self._prefix[host] + rest + b"\n"
                    self._pending[host] = b""
            if out:
                self._write(out)

    def interrupt(self) -> None:
        """Make room for a line of talk on the same terminal."""
        with self._lock:
            if cleared := self._clear():
                self._write(cleared)

    def _clear(self) -> bytes:
        if self._row is None:
            return b""
        self._row = None
        return b"\r\x1b[K"

    def _draw(self, host: str) -> None:
        clear = self._clear()
        self._row = host
        self._write(clear + b"\r\x1b[K" + self._prefix[host] + _visible(self._pending[host]))

    def _write(self, data: bytes) -> None:
        if self.lost is not None:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except OSError as error:
            self.lost = error


def _visible(line: bytes) -> bytes:
    """The part after the last carriage return that is followed by something: what a progress bar shows now."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
