"""Threads for requests that may never be answered: left behind, where ThreadPoolExecutor would wait for them at exit."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, InvalidStateError, wait
from typing import Any, TypeVar

LEAVE_SECONDS = 1.0
"""For threads to end after an error or Ctrl-C; one whose request is not answered is left behind."""

_T = TypeVar("_T")


class DaemonPool:
    """Up to ``threads`` threads, begun as they are needed; ``name`` begins their names."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._todo: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._waiting: set[Future[Any]] = set()

    def submit(self, work: Callable[..., _T], *arguments: object) -> Future[_T]:
        """The result of ``work``. Cancelling it works at any time; work that has begun then goes on for nothing."""
        # Never marked as running: only so can close() free whoever waits for a request without an answer.
        future: Future[_T] = Future()
        with self._lock:
            self._waiting.add(future)
            if len(self._threads) < min(self._most, len(self._waiting)):
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        future.add_done_callback(self._over)
        self._todo.put((future, lambda: work(*arguments)))
        return future

    def carry_out(self, work: Iterable[Callable[[], object]]) -> None:
        """Return when all of it is done; the first error is raised as it comes, and the rest goes on until `close`."""
        futures = [self.submit(one) for one in work]
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()

    def close(self, patience: float = 0.0) -> bool:
        """Cancel what is not done, and wait ``patience`` seconds for the threads; returns whether all have ended."""
        for future in list(self._waiting):
            future.cancel()
        for _ in self._threads:
            self._todo.put(None)
        end = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _over(self, future: Future[Any]) -> None:
        with self._lock:
            self._waiting.discard(future)

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            future, work = item
            if future.cancelled():
                continue
            with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - it is told where the result is asked for
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del item, future, work
