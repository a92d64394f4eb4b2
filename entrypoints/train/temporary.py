"""A short name for a long TMPDIR: a Unix socket's path has at most 107 bytes, and multiprocessing puts sockets there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

LONGEST = 107 - len("/pymp-12345678/listener-12345678")
"""Bytes of a directory in which DataLoader's workers can hand tensors over."""

_TOP = Path("/tmp")
_PREFIX = "hotfire-tmp-"


@contextlib.contextmanager
def short_temporary(environment: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """``environment`` with a TMPDIR that is short enough: as it is, or a link to it that goes with the block."""
    path = Path(environment.get("TMPDIR", ""))
    if len(os.fsencode(path)) <= LONGEST or (link := _link(path)) is None:
        yield environment
        return
    try:
        yield {**environment, "TMPDIR": str(link)}
    finally:
        link.unlink(missing_ok=True)


def _link(path: Path) -> Path | None:
    """None where no link can be made: long temporary paths are then all there is."""
    import tempfile

    try:
        for old in _TOP.glob(_PREFIX + "*"):  # of hosts that were killed
            if old.is_symlink() and not old.exists():
                with contextlib.suppress(OSError):
                    old.unlink()
        link = Path(tempfile.mktemp(prefix=_PREFIX, dir=_TOP))
        link.symlink_to(path)
    except OSError:
        return None
    return link
