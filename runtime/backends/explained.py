"""A refused step of a host's set-up, in words for the user."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hotfire.runtime.backends.placing import missing
from hotfire.runtime.backends.steps import SetUpError
from hotfire.runtime.errors import DataError, HotfireError, PlatformError


def explained(error: SetUpError) -> HotfireError:
    """A refused step in words: the user's own doing is a DataError, the machine's a PlatformError."""
    path = os.fsdecode(error.path)
    reason = os.strerror(error.errno) if error.errno else "it failed"
    if error.what == "open the source of a mount":
        return missing(Path(path))
    if error.what == "change to the working directory":
        return DataError(f"the working directory {path}: {reason}.", do="Check its path.")
    if error.what in ("mount", "overlay") and error.errno in (errno.ENOTDIR, errno.EISDIR):
        return DataError(
            f"{path} exists as a file where a directory is to be mounted, or the other way round.",
            do="Give the mount a path of its own.",
        )
    where = f" ({path})" if path else ""
    return PlatformError(
        f"this machine refuses to {error.what}{where}: {reason}.",
        do="Run `hotfire setup` to see what it allows.",
    )
