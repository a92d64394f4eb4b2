"""Steps of setting a host up that can be refused, and how a refusal travels from the host's side to the supervisor."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SetUpError(Exception):
    """One step that the kernel refused: ``what`` was tried, on which ``path``, and for which mount of the plan."""

    def __init__(self, what: str, number: int, path: bytes = b"", mount: int = -1) -> None:
        super().__init__(what)
        self.what = what
        self.errno = number
        self.path = path
        self.mount = mount

    def as_dict(self) -> dict[str, Any]:
        return {"what": self.what, "number": self.errno, "path": self.path, "mount": self.mount}


class step:
    """``with step("what", path)``: an ``OSError`` inside becomes a :class:`SetUpError` that says so."""

    def __init__(self, what: str, path: bytes = b"", mount: int = -1) -> None:
        self._said = (what, path, mount)

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            what, path, mount = self._said
            raise SetUpError(what, error.errno or 0, path, mount) from None
