"""A group's collective calls: counted, watched while they take long, explained when they fail.

The time limit of one call is HOTFIRE_COLLECTIVE_TIMEOUT seconds (default 1800, the default of
torch.distributed). Needs torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hotfire.runtime.xla.peers import Call, KnownFault, Peers, Watch

TIMEOUT_VARIABLE = "HOTFIRE_COLLECTIVE_TIMEOUT"
# How long a call waits before it says for whom.
PATIENCE_SECONDS = 5.0


class CollectiveError(RuntimeError):
    """A collective could not finish; the message names the rank at fault where that is known."""


def default_timeout() -> datetime.timedelta:
    """The limit of one collective, from HOTFIRE_COLLECTIVE_TIMEOUT (seconds)."""
    text = os.environ.get(TIMEOUT_VARIABLE) or "1800"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f"{TIMEOUT_VARIABLE}={text!r} is not a positive number of seconds")
    return datetime.timedelta(seconds=seconds)


class Calls:
    """The calls of the group `name`: of the ranks `members`, of which this one is at `rank`."""

    def __init__(
        self, peers: Peers, rank: int, members: tuple[int, ...], limit: float, name: str
    ) -> None:
        self._peers = peers
        self._rank = rank
        self._members = members
        self.limit = limit
        self._name = name
        self._number = 0

    def next(self, operation: str, peer: int | None = None) -> Call:
        """The next call, of all members or of this one and `peer`."""
        self._number += peer is None  # all members count alike
        members = (
            self._members if peer is None else (self._members[self._rank], self._members[peer])
        )
        return Call(operation=operation, group=self._name, number=self._number, members=members)

    def watch(self, call: Call) -> Watch:
        return Watch(self._peers, call, patience=min(PATIENCE_SECONDS, self.limit / 4))

    def finish(self, call: Call, works: Sequence[Any]) -> None:
        """Wait for gloo's `works`, looking for the rank at fault when that takes long.

        Raises:
            KnownFault: they cannot finish any more.
        """
        with self.watch(call) as watch:
            for work in works:
                while not _completed(work, watch.seconds):
                    watch.look()

    @contextlib.contextmanager
    def explained(self, call: Call) -> Iterator[None]:
        """Raise what fails in the block as `CollectiveError`, with the rank at fault."""
        started = time.monotonic()
        try:
            yield
        except (CollectiveError, NotImplementedError):
            raise
        except ValueError as error:
            raise self._error(call, str(error)) from error
        except KnownFault as error:
            _never_free(error)
            raise self._error(call, str(error)) from error
        except RuntimeError as error:
            _never_free(error)
            waited = time.monotonic() - started
            fault = self._peers.diagnose(call, str(error), waited=waited, limit=self.limit)
            raise self._error(call, fault) from error

    def _error(self, call: Call, fault: str) -> CollectiveError:
        me, size = self._members[self._rank], len(self._members)
        return CollectiveError(f"rank {me} of {size}: {call.operation} failed: {fault}")


def _never_free(error: Exception) -> None:
    """Keep what the frames of `error` hold: tensors, works and the group itself.

    Works may be under way for ever. The group's destructor would wait for them, and the last
    reference to a tensor, dropped by gloo's thread while the interpreter ends, aborts the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))


def _completed(work: Any, seconds: float) -> bool:
    """Whether `work` succeeded within `seconds`; raises as it does when it failed."""
    try:
        work.wait(datetime.timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
    return True
