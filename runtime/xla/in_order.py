"""Blocking work in threads, one after the other in the order given (standard library only)."""

from __future__ import annotations

import threading
from collections.abc import Callable


class InOrder:
    """Runs each piece of work in a thread of its own, once the one before has ended.

    The threads do not keep the interpreter from ending.
    """

    def __init__(self) -> None:
        self._last: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> Callable[[], None]:
        """Start `work`; what is returned waits for its end and raises what it raised."""
        before, errors = self._last, list[BaseException]()

        def run() -> None:
            if before is not None:
                before.join()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                errors.append(error)

        thread = self._last = threading.Thread(target=run, daemon=True)
        thread.start()

        def wait() -> None:
            thread.join()
            if errors:
                raise errors[0]

        return wait
