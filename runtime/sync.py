"""A local directory kept in step with a destination while a job runs: checkpoints and their like (contract 5.7).

Files that were closed are uploaded within about a second, names that were deleted are deleted there, and leaving the
``with`` flushes the rest. Only what this side has put or restored is ever deleted, so several hosts and other writers
can share one prefix. Whatever fails is tried again; nothing is forgotten.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hotfire.runtime.destinations import Destination
from hotfire.runtime.errors import DataError, HotfireError, ValidationError
from hotfire.runtime.events import Note, Observer, Progress
from hotfire.runtime.inotify import Change, Happened
from hotfire.runtime.ledger import SETTLE_SECONDS, Ledger, Task
from hotfire.runtime.sync_files import SyncedFiles
from hotfire.runtime.sync_trouble import Trouble
from hotfire.runtime.sync_watcher import POLL_SECONDS, Watcher
from hotfire.runtime.synced import UPLOADED, UPLOADING, Abandoned, Changed, Signature, skipped
from hotfire.runtime.trees import printable

PATIENCE_SECONDS = 60.0
"""How long the last flush goes on while nothing succeeds."""

_NEVER = Signature(-1, -1, -1)


class Sync:
    """Keeps ``destination`` in step with ``directory`` (absolute, made if need be) inside the ``with``.

    ``known`` is what :func:`hotfire.runtime.checkpoints.restore` put there. ``markers``: write beside each file
    ``NAME.sagemaker-uploading`` during its upload and ``NAME.sagemaker-uploaded`` after it, as the service does and
    containers rely on to delete safely (contract 5.7). Symbolic links to files inside the directory count as their
    files; other links, and what is neither file nor directory, are left out.

    While it runs, failures are told as :class:`~hotfire.runtime.events.Note`. Leave it only after the hosts have ended.
    ``asks`` counts what tells us to end; two more of them while the rest is flushed, and it is given up.

    Raises:
        ValidationError: on entering: the destination lies inside the directory, or around it.
        DataError: on leaving: nothing could be uploaded for ``patience`` seconds; the files stay where they are. When
            the block ended with an exception of its own, that one goes on and this is told as a Note.
    """

    def __init__(
        self,
        directory: Path,
        destination: Destination,
        observer: Observer,
        *,
        label: str = "checkpoints",
        known: Mapping[str, Signature] | None = None,
        markers: bool = True,
        settle: float = SETTLE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        asks: Callable[[], int] = lambda: 0,
    ) -> None:
        self._directory = directory
        self._files = SyncedFiles(directory, markers=markers)
        self._destination = destination
        self._observer = observer
        self._label = label
        self._patience = patience
        self._asks = asks
        self._given_up = False
        self._ledger = Ledger(known=dict(known or {}), settle=settle)
        self._trouble = Trouble(observer, f"{label}: {destination.uri}")
        # One lock guards the ledger, the trouble and the counts. Nobody is woken without need: on a busy machine a
        # change of threads costs more than the copy of a small file.
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._empty = threading.Condition(self._lock)
        self._over = False
        self._alive = 0.0
        self._left_out: set[str] = set()
        self._watcher = Watcher(directory, self._note, self._look_at_all, self._say_polling)
        self._workers = [
            threading.Thread(target=self._work, name="hotfire-sync", daemon=True)
            for _ in range(destination.workers)
        ]
        self.uploaded = 0
        """Files uploaded so far, one twice if it changed."""
        self.bytes = 0
        self.deleted = 0

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._destination.overlaps(self._directory):
            raise ValidationError(
                f"{self._label}: {self._destination.uri} and {self._directory} lie in each other",
                do="Choose a destination outside the job's directory.",
            )
        try:
            self._destination.begin()
        except (HotfireError, OSError) as error:
            self._trouble.failed(error, time.monotonic())
        self._watcher.start()
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure = None
        try:
            self._watcher.stop()
            if not self._over:
                failure = self._flush()
        finally:
            with self._more:
                self._over = True
                self._more.notify_all()
            for worker in self._workers:
                # Of a destination that does not answer nobody waits to hear.
                worker.join(0 if self._given_up else None)
        if failure is None:  # of one that failed there is nothing better to hope for now
            self._destination.end()
        if failure is not None and kind is None:
            raise failure
        if failure is not None:
            self._observer(Note(text=f"{failure.what}. {failure.do}", warning=True))

    def abandon(self) -> None:
        """Transfer nothing more: leaving the ``with`` then flushes nothing."""
        with self._more:
            self._over = True
            self._more.notify_all()

    # What the watcher says, into the ledger.

    def _note(self, happened: list[Happened]) -> None:
        now = time.monotonic()
        happened = [one for one in happened if not skipped(one.name)]
        if not happened:
            return
        with self._more:
            for one in happened:
                if one.change is Change.GONE:
                    self._ledger.gone(one.name, now)
                elif one.change is Change.CLOSED:
                    self._ledger.closed(one.name, now)
                elif found := self._files.look(one.name):
                    self._ledger.appeared(one.name, found, now)
            self._more.notify()

    def _look_at_all(self) -> None:
        """Compare the whole directory with what is known."""
        found = dict(self._files.scan())
        now = time.monotonic()
        with self._more:
            for name, one in found.items():
                self._ledger.appeared(name, one, now)
            for name in self._ledger.known.keys() - found.keys():
                self._ledger.closed(name, now)
            self._more.notify()

    def _say_polling(self, error: OSError) -> None:
        text = (
            f"{self._label}: inotify is not available ({error.strerror}): looking every "
            f"{POLL_SECONDS:g} s instead (sysctl fs.inotify.max_user_watches, max_user_instances)"
        )
        self._observer(Note(text=text))

    # The workers: from the ledger to the destination.

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                self._carry(task)
            except Abandoned:
                return
            except Changed:
                with self._lock:
                    self._ledger.again(task, _NEVER, time.monotonic())
            except (HotfireError, OSError) as error:
                now = time.monotonic()
                with self._lock:
                    self._ledger.failed(task, now)
                    self._trouble.failed(error, now)

    def _next(self) -> Task | None:
        """The next task; the worker that takes it calls another one for what is left."""
        with self._more:
            while not self._over:
                now = time.monotonic()
                if task := self._ledger.take(now):
                    if self._ledger.waiting:
                        self._more.notify()
                    return task
                if self._ledger.empty:
                    self._empty.notify_all()
                due = self._ledger.next_due()
                self._more.wait(None if due is None else max(0.001, due - now))
        return None

    def _carry(self, task: Task) -> None:
        """Bring the destination up to date with one name.

        Raises:
            HotfireError, OSError, Abandoned, Changed: it did not work.
        """
        source = self._files.open(task.name)
        if source is None:
            self._remove(task)
            return
        with source:
            before = Signature.of(os.fstat(source.fileno()))
            if self._settled(task, before):
                return
            self._mark(task.name, UPLOADED, UPLOADING)

            def moved(for_good: bool) -> bool:
                if for_good or not task.tries:  # a try that fails half-way each time is no progress
                    self._alive = time.monotonic()
                return not self._over

            self._destination.put(source, before, task.name, moved)
        after = self._files.look(task.name)
        if after == before:
            self._mark(task.name, UPLOADING, UPLOADED)
        with self._lock:
            self.uploaded += 1
            self.bytes += before.size
            self._finish(task, before, after)
        self._observer(Progress(activity=self._label, done=self.bytes, total=None))

    def _settled(self, task: Task, found: Signature) -> bool:
        """Nothing is to be uploaded now: there already, still written to, or never to be."""
        reason = self._destination.refuses(task.name)
        if reason and task.name not in self._left_out:
            self._left_out.add(task.name)
            text = f"{self._label}: {printable(task.name)} is not uploaded: {reason}"
            self._observer(Note(text=text, warning=True))
        with self._lock:
            if reason:
                self._ledger.done(task, None)
            elif self._ledger.known.get(task.name) == found:
                self._ledger.done(task, found)
            elif task.look not in (None, found):
                self._ledger.again(task, found, time.monotonic())
            else:
                return False
        return True

    def _finish(self, task: Task, put: Signature, after: Signature | None) -> None:
        """The destination holds ``put``; the file is now like ``after``, so that there may be more to do."""
        self._worked()
        self._ledger.done(task, put)
        if after is None:
            self._ledger.closed(task.name, time.monotonic())
        else:
            self._ledger.appeared(task.name, after, time.monotonic())

    def _remove(self, task: Task) -> None:
        with self._lock:
            ours = task.name in self._ledger.known
        if ours:
            self._destination.delete(task.name)
            self._files.unmark(task.name)
        with self._lock:
            self._ledger.done(task, None)
            if ours:
                self.deleted += 1
                self._worked()

    def _worked(self) -> None:
        self._alive = time.monotonic()
        self._ledger.worked()
        self._trouble.worked()

    def _mark(self, name: str, old: str, new: str) -> None:
        if not self._ledger.hurry:  # in the last flush nobody is left to read them
            self._files.mark(name, old, new)

    # The end.

    def _flush(self) -> DataError | None:
        """Everything that is left, as it is now; what could not be done, if anything."""
        with self._lock:
            self._ledger.be_quick()
        self._look_at_all()
        asked = self._asks()
        with self._empty:
            self._alive = time.monotonic()
            self._more.notify_all()
            while not self._ledger.empty:
                self._empty.wait(0.2)
                if self._asks() > asked + 1:
                    self._given_up = True
                    given_up = self._trouble.error or DataError("given up, as asked")
                    return self._failure(self._ledger.unfinished, given_up)
                stuck = time.monotonic() - self._alive > self._patience
                if stuck and self._trouble.error is not None:
                    return self._failure(self._ledger.unfinished, self._trouble.error)
        return None

    def _failure(self, names: list[str], error: HotfireError | OSError) -> DataError:
        what, do = (error.what, error.do) if isinstance(error, HotfireError) else (str(error), "")
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return DataError(
            f"{self._label}: {printable(names[0])}{more} could not be stored in {self._destination.uri}: {what}",
            do=f"{do} The files are kept: {self._directory}".lstrip(),
        )
