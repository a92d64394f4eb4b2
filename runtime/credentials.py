"""AWS credentials for the hosts, the container service's way: fetched over HTTP, never in files, arguments or logs.

The service serves them at 169.254.170.2 (contract 8). Hosts that share this machine's network get the variant that
every AWS SDK also accepts: a URL on the loopback interface with an unguessable path.
"""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hotfire.runtime.status import utc_now

LIFETIME = timedelta(hours=1)


def at_hand(environ: Mapping[str, str]) -> bool:
    """Whether the caller seems to have credentials; looks at names and files, asks nobody."""
    if environ.get("AWS_ACCESS_KEY_ID") or environ.get("AWS_PROFILE"):
        return True
    home = Path(environ.get("HOME", "/"))
    shared = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    config = Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    return shared.is_file() or config.is_file()


def current(role_arn: str) -> dict[str, str]:
    """The caller's credentials as the metadata endpoint words them; empty when there are none."""
    import boto3

    found = boto3.Session().get_credentials()
    if found is None:
        return {}
    frozen = found.get_frozen_credentials()
    return {
        "RoleArn": role_arn,
        "AccessKeyId": frozen.access_key or "",
        "SecretAccessKey": frozen.secret_key or "",
        "Token": frozen.token or "",
        "Expiration": (utc_now() + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


class CredentialServer:
    """Serves the caller's credentials to the job's hosts while the ``with`` lasts.

    On 127.0.0.1 at :attr:`url`, for hosts that share this machine's network; :meth:`serve` adds a socket of the
    caller's, such as 169.254.170.2 inside a host's own network. ``path`` is what keeps others out.
    """

    def __init__(self, role_arn: str) -> None:
        # 20 ms that only jobs with credentials spend.
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        self.path = path = f"/v2/credentials/{uuid.uuid4()}"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == path
                body = json.dumps(current(role_arn) if known else {}).encode()
                self.send_response(200 if known and len(body) > 2 else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Silent: the path is a secret."""

        class Server(ThreadingHTTPServer):
            def __init__(self, listener: socket.socket) -> None:
                super().__init__(listener.getsockname(), Handler, bind_and_activate=False)
                self.socket.close()
                self.socket = listener

        self._make = Server
        self._running: list[tuple[Server, threading.Thread]] = []
        self._loopback = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._loopback.getsockname()[1]}{path}"

    def __enter__(self) -> Self:
        self.serve(self._loopback)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server, thread in self._running:
            server.shutdown()
            server.server_close()
            thread.join()

    def serve(self, listener: socket.socket) -> None:
        """Answer on a listening socket as well, which is closed at the end of the ``with``."""
        server = self._make(listener)
        thread = threading.Thread(
            target=server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="hotfire-credentials",
            daemon=True,
        )
        thread.start()
        self._running.append((server, thread))
