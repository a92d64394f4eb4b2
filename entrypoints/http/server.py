"""The listener: HTTP/1.1 on 127.0.0.1, a thread per connection, bodies streamed both ways."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hotfire.entrypoints.http.messages import BadBody, Body, Request, Response

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
IDLE_SECONDS = 300
"""After which a silent connection is closed."""
_DRAIN = 64 << 20
_CHUNK_LINE = 1024
Answer = Callable[[Request], Response]


def serve(port: int, answer: Answer) -> ThreadingHTTPServer:
    """A server that listens and does not answer yet: call ``serve_forever``. Port 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """

    class Handler(_Handler):
        pass

    Handler.answer = staticmethod(answer)
    return _Server((HOST, port), Handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, most likely."""
        logger.debug("connection from %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    answer: Answer

    def _respond(self) -> None:
        body = _body(self.rfile.read, self.rfile.readline, self.headers)
        if body is None:
            self.close_connection = True
            self._send(Response(status=400, body=b"The body's framing cannot be read."))
            return
        path, _, query = self.path.partition("?")
        request = Request(
            method=self.command, path=path, query=query, headers=_Headers(self.headers), body=body
        )
        response = self.answer(request)
        if not _used_up(body):
            self.close_connection = True
        self._send(response)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _respond

    def _send(self, response: Response) -> None:
        found = response.body
        length = len(found) if isinstance(found, bytes) else response.length
        if response.length is not None:
            length = response.length
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value.replace("\r", " ").replace("\n", " "))
        if response.status not in (204, 304):
            self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        if self.command == "HEAD" or isinstance(found, bytes):
            # Head and body in one segment.
            self._headers_buffer: list[bytes]
            self._headers_buffer.append(b"\r\n")
            if self.command != "HEAD" and isinstance(found, bytes):
                self._headers_buffer.append(found)
            self.flush_headers()
            return
        self.end_headers()
        with contextlib.closing(found):  # type: ignore[type-var]
            for data in found:
                self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of requests that are no HTTP; what the client got wrong is not the server's error."""
        self.close_connection = True
        self._send(
            Response(status=400 if code >= 500 else code, body=b"The request cannot be read.")
        )

    def version_string(self) -> str:
        return "hotfire"

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


class _Headers:
    def __init__(self, found: Any) -> None:
        self._found = found

    def get(self, name: str, default: str = "", /) -> str:
        return str(self._found.get(name, default))

    def items(self) -> list[tuple[str, str]]:
        return [(name, str(value)) for name, value in self._found.items()]


def _body(read: Callable[[int], bytes], line: Callable[[int], bytes], headers: Any) -> Body | None:
    """The body of a request; None when its framing is broken or ambiguous."""
    coding = str(headers.get("Transfer-Encoding", "")).lower()
    lengths = headers.get_all("Content-Length", [])
    if coding:
        if coding != "chunked" or lengths:
            return None
        return Body(_Chunks(read, line).read, None)
    text = lengths[0] if lengths else "0"
    if len(set(lengths)) > 1 or not (text.isascii() and text.isdecimal() and len(text) < 16):
        return None
    return Body(_Counted(read, int(text)).read, int(text))


class _Counted:
    def __init__(self, read: Callable[[int], bytes], length: int) -> None:
        self._read = read
        self._left = length

    def read(self, count: int) -> bytes:
        data = self._read(min(count, self._left))
        if not data and self._left and count:
            raise BadBody("The body ended before its announced length.")
        self._left -= len(data)
        return data


class _Chunks:
    """``Transfer-Encoding: chunked``."""

    def __init__(self, read: Callable[[int], bytes], line: Callable[[int], bytes]) -> None:
        self._read = read
        self._line = line
        self._left = 0
        self._done = False

    def read(self, count: int) -> bytes:
        if not self._left and not self._done:
            self._next()
        if self._done:
            return b""
        data = self._read(min(count, self._left))
        if not data:
            raise BadBody("A chunked body ended too early.")
        self._left -= len(data)
        if not self._left and self._line(_CHUNK_LINE).strip():
            raise BadBody("A chunked body is broken.")
        return data

    def _next(self) -> None:
        word = self._line(_CHUNK_LINE).partition(b";")[0].strip()
        try:
            if not word or not word.isalnum():
                raise ValueError
            self._left = int(word, 16)
        except ValueError as error:
            raise BadBody("A chunked body is broken.") from error
        if not self._left:
            self._done = True
            while self._line(_CHUNK_LINE).strip():
                pass


def _used_up(body: Body) -> bool:
    """Whether the connection can go on: what nobody wanted of the body is read away, if it is little."""
    left = _DRAIN
    try:
        while left > 0:
            data = body.read(1 << 16)
            if not data:
                return True
            left -= len(data)
    except (BadBody, OSError):
        pass
    return False
