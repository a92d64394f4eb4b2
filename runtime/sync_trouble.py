"""The failures of a destination, as the user hears of them."""

from __future__ import annotations

from hotfire.runtime.errors import HotfireError
from hotfire.runtime.events import Note, Observer

_TELL_AFTER = 2.0


class Trouble:
    """Tells of a failure that lasts, once, and of its end."""

    def __init__(self, observer: Observer, what: str) -> None:
        self._observer = observer
        self._what = what
        self._since: float | None = None
        self._told = False
        self.error: HotfireError | OSError | None = None

    def failed(self, error: HotfireError | OSError, now: float) -> None:
        self.error = error
        self._since = now if self._since is None else self._since
        if not self._told and now - self._since > _TELL_AFTER:
            self._told = True
            what = error.what if isinstance(error, HotfireError) else str(error)
            text = f"{self._what} does not take everything and is tried again: {what}"
            self._observer(Note(text=text, warning=True))

    def worked(self) -> None:
        if self._told:
            self._observer(Note(text=f"{self._what} takes files again"))
        self._since, self._told, self.error = None, False, None
