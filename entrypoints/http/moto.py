"""moto behind the endpoint: STS, IAM, CloudWatch, Logs of other groups, and ECR, called in this process.

One application per service and no dispatcher: what is not named here cannot be reached, moto's own control API least.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from hotfire.entrypoints.http.messages import Request, Response
from hotfire.runtime.errors import ValidationError

SERVICES: Mapping[str, str] = {
    "sts": "sts",
    "iam": "iam",
    "logs": "logs",
    "monitoring": "cloudwatch",
    "ecr": "ecr",
}
"""Service of the credential scope to moto's name."""

# Hop-by-hop, or ours to set.
_DROPPED = {"connection", "content-length", "server", "date", "transfer-encoding"}


def check() -> None:
    """Raises ValidationError when moto is not installed."""
    from importlib.util import find_spec

    for name in ("moto", "flask", "flask_cors"):
        if find_spec(name) is None:
            raise ValidationError(
                "hotfire serve needs moto, which is not installed.",
                do="pip install 'hotfire[endpoint]'",
            )


class Moto:
    """The applications, each made when it is first needed (0.3 s)."""

    def __init__(self) -> None:
        self._apps: dict[str, Any] = {}
        self._lock = threading.Lock()

    def call(self, service: str, request: Request, body: bytes, region: str) -> Response:
        """Let moto answer."""
        told: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> None:
            told.update(status=int(status.split()[0]), headers=headers)

        chunks: Iterable[bytes] = self._app(service)(
            environment(request, body, service, region), start
        )
        try:
            answer = b"".join(chunks)
        finally:
            close = getattr(chunks, "close", None)
            if close:
                close()
        headers = {
            name: value
            for name, value in told["headers"]
            if name.lower() not in _DROPPED and not name.lower().startswith("access-control-")
        }
        return Response(status=told["status"], headers=headers, body=answer)

    def _app(self, service: str) -> Any:
        with self._lock:
            app = self._apps.get(service)
            if app is None:
                from moto.moto_server.werkzeug_app import create_backend_app

                app = create_backend_app(SERVICES[service])  # type: ignore[arg-type]
                app.debug = False
                self._apps[service] = app
            return app


def environment(request: Request, body: bytes, service: str, region: str) -> dict[str, Any]:
    """The WSGI environment of a request; headers go through unaltered, but the one that moto tells the region by."""
    found: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.decoded_path.encode("utf-8", "surrogateescape").decode("latin-1"),
        "QUERY_STRING": request.query,
        "RAW_URI": request.path,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        if name.lower() not in ("content-type", "content-length", "transfer-encoding"):
            found["HTTP_" + name.upper().replace("-", "_")] = value
    if "HTTP_AUTHORIZATION" not in found:
        scope = f"testing/20200101/{region}/{service}/aws4_request"
        found["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host"
    return found
