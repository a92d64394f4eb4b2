"""Every error that hotfire raises on purpose.

One root, :class:`HotfireError`; each kind knows the exit code of the command line and the error code of the API.
The message has two lines: what happened, and what to do about it. The edges (CLI, HTTP) catch the root once.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``hotfire`` command; documented in ``docs/cli.md``."""

    COMPLETED = 0
    FAILED = 1
    REFUSED = 2
    STOPPED = 3
    INTERNAL = 70
    INTERRUPTED = 130


class HotfireError(Exception):
    """The root: ``what`` happened in one line, what to ``do`` about it in another."""

    exit_code: ExitCode = ExitCode.INTERNAL
    api_code: str = "InternalServerError"

    def __init__(self, what: str, *, do: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.do = do

    def __str__(self) -> str:
        return f"{self.what}\n{self.do}" if self.do else self.what


class ValidationError(HotfireError):
    """A request that the service would refuse, or that this machine cannot carry out as given."""

    exit_code = ExitCode.REFUSED
    api_code = "ValidationException"


class UnsupportedError(ValidationError):
    """A feature of SageMaker that hotfire refuses by name rather than approximate in silence."""


class ResourceInUse(HotfireError):
    """The job name is taken, or the job is not in a state that allows the call (contract 9.3)."""

    exit_code = ExitCode.REFUSED
    api_code = "ResourceInUse"


class ResourceNotFound(HotfireError):
    """No job of that name. The service answers DescribeTrainingJob so with a ValidationException (contract 9.2)."""

    exit_code = ExitCode.REFUSED
    api_code = "ValidationException"


class ResourceLimitExceeded(HotfireError):
    """More than this machine holds: memory, disk, hosts."""

    exit_code = ExitCode.REFUSED
    api_code = "ResourceLimitExceeded"


class DataError(HotfireError):
    """A user-side problem that the platform meets while the job runs: a download, an upload (contract 5.5).

    The job ends ``Failed`` with the reason ``ClientError: <what>``.
    """

    exit_code = ExitCode.FAILED
    api_code = "ClientError"


class PlatformError(HotfireError):
    """hotfire's own side broke; the job ends ``Failed`` with ``InternalServerError: <what>``."""
