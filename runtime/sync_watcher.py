"""The thread that hears of changes in a directory that is kept in step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from hotfire.runtime.inotify import Change, Happened, TooManyWatches, TreeWatch
from hotfire.runtime.synced import skipped

POLL_SECONDS = 1.0
"""Between two looks at the directory where there is no inotify."""


class Watcher:
    """Hears of changes from inotify, or looks at everything again and again where that is not to be had."""

    def __init__(
        self,
        directory: Path,
        heard: Callable[[list[Happened]], None],
        look_at_all: Callable[[], None],
        say_polling: Callable[[OSError], None],
    ) -> None:
        self._directory = directory
        self._heard = heard
        self._look_at_all = look_at_all
        self._say_polling = say_polling
        self._watch: TreeWatch | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="hotfire-watch", daemon=True)

    def start(self) -> None:
        try:
            self._watch = TreeWatch(str(self._directory), skipped)
        except TooManyWatches as error:
            self._say_polling(error)
        self._look_at_all()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if (watch := self._watch) is not None:
            watch.wake()
        self._thread.join()
        if watch is not None:
            watch.close()

    def _follow(self) -> None:
        watch = self._watch
        while watch is not None and not self._over.is_set():
            try:
                happened = watch.wait(None)
            except TooManyWatches as error:
                self._say_polling(error)
                watch = None
                continue
            if any(one.change is Change.LOST for one in happened):
                self._look_at_all()
            self._heard([one for one in happened if one.name])
        while not self._over.wait(POLL_SECONDS):
            self._look_at_all()
