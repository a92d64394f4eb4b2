"""A directory as an S3 bucket: lists, and answers ranges by sendfile. For benchmarks; no authentication, one page.

python data_server.py DIRECTORY PORT
"""

from __future__ import annotations

import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root = Path()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type=2" in parts.query:
            self._list(parse_qs(parts.query).get("prefix", [""])[0])
        else:
            self._object(body=True)

    def _list(self, prefix: str) -> None:
        folder = self.root / prefix.rpartition("/")[0]
        rows = "".join(
            f"<Contents><Key>{escape(str(path.relative_to(self.root)))}</Key>"
            f"<Size>{path.stat().st_size}</Size><ETag>&quot;e&quot;</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for path in sorted(folder.iterdir())
        )
        data = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _object(self, *, body: bool) -> None:
        path = self.root / unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        with path.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            start, end = 0, size - 1
            if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, end = int(match[1]), min(int(match[2] or end), end)
            self.send_response(206 if match else 200)
            if match:
                self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(end - start + 1))
            self.end_headers()
            self.wfile.flush()
            while body and start <= end:
                start += os.sendfile(
                    self.connection.fileno(), source.fileno(), start, end - start + 1
                )


if __name__ == "__main__":
    Handler.root = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
