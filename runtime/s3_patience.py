"""How long a transfer goes on asking S3 when no answer comes: longer than boto3 does, so that a short outage passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

OUTAGE_SECONDS = 30.0
"""From the first failure without a byte since, until a transfer fails. boto3's own attempts are over in a few."""

_TRIES = 5
_LONGEST_PAUSE = 2.0


class Patience:
    """Of one transfer. Where AWS_MAX_ATTEMPTS or the profile says how often to ask, five times that are enough.

    ``wait`` lets seconds pass, and says whether nobody wants the answer any more.
    """

    def __init__(self, client: Any, wait: Callable[[float], bool]) -> None:
        self._chosen = "total_max_attempts" in (client.meta.config.retries or {})
        self._wait = wait
        self._tries = 0
        self._failed = 0.0

    def moved(self) -> None:
        """Bytes came: the connection works."""
        self._tries = 0

    def again(self, cause: BaseException | None) -> bool:
        """Whether to try once more after ``cause``, boto3's error; a pause has passed then."""
        self._tries += 1
        if self._tries == 1:
            self._failed = time.monotonic()
        over = time.monotonic() - self._failed >= OUTAGE_SECONDS
        if (self._tries >= _TRIES if self._chosen else over) or not passing(cause):
            return False
        return not self._wait(min(_LONGEST_PAUSE, 0.1 * 2**self._tries))


def passing(cause: BaseException | None) -> bool:
    """Whether an error of boto3's may pass: no connection, or a broken one, or S3 has trouble of its own."""
    from botocore import exceptions as kinds

    if isinstance(cause, kinds.ClientError):
        status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500
    # A wrong checksum shows only when every byte has come: there is nothing left to go on from.
    never = kinds.FlexibleChecksumError | kinds.SSLError
    broken = kinds.ConnectionError | kinds.HTTPClientError | kinds.IncompleteReadError
    return isinstance(cause, broken) and not isinstance(cause, never)
