"""Who may talk to the endpoint: programs of this machine. It runs code, so web pages must not reach it.

The listener is on 127.0.0.1 alone. A page in a browser on this machine could still send requests there: under a name
that its own name server points to 127.0.0.1 (the Host header then tells), or across origins (browsers say so).
"""

from __future__ import annotations

from hotfire.entrypoints.http.messages import Headers
from hotfire.runtime.errors import HotfireError

NAMES = frozenset(["127.0.0.1", "localhost", "[::1]"])


class Forbidden(HotfireError):
    api_code = "AccessDeniedException"


def check(headers: Headers) -> None:
    """Let a request pass.

    Raises:
        Forbidden: it came under a foreign name, or from a page in a browser.
    """
    host = headers.get("Host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name.lower() not in NAMES:
        raise Forbidden(
            f"This endpoint is for programs of its own machine, under the names {', '.join(sorted(NAMES))}."
        )
    if headers.get("Origin") or headers.get("Sec-Fetch-Site", "none") != "none":
        raise Forbidden("This endpoint is not for web pages.")
