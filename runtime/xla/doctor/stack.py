"""Which line of the user's code is running (standard library only)."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any

Site = tuple[str, int]
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def libraries() -> list[str]:
    """Directories whose code is nobody's fault: Python, its packages, and this library."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for module in ("torch", "torch_xla", "transformers"):
        origin = getattr(sys.modules.get(module), "__file__", None)
        if origin:
            found.add(os.path.dirname(os.path.dirname(origin)))  # noqa: PTH120
    return sorted(found | {_OURS})


class Stack:
    """Finds the innermost frame that belongs to the script."""

    def __init__(self) -> None:
        self.libraries = libraries()
        self._prefixes = tuple(path + os.sep for path in self.libraries)
        self._known: dict[str, bool] = {}

    def is_user(self, file: str) -> bool:
        known = self._known.get(file)
        if known is None:
            known = not file.startswith(("<", *self._prefixes))
            self._known[file] = known
        return known

    def site(self) -> Site | None:
        """File and line of the innermost user frame of this thread; None below none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self.is_user(frame.f_code.co_filename):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return None

    def described(self, error: BaseException) -> dict[str, Any]:
        """What an event says of `error`: type, message, and the innermost user line below it."""
        site, traceback = None, error.__traceback__
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if self.is_user(file):
                site = (file, traceback.tb_lineno)
            traceback = traceback.tb_next
        return {"type": type(error).__name__, "message": str(error)[:2000], "site": site}
