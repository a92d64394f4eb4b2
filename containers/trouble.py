"""What the SDK and its HTTP library raise, as errors of ours that say what was being done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hotfire.runtime.errors import (
    HotfireError,
    PlatformError,
    ResourceLimitExceeded,
    ResourceNotFound,
)


class EngineGone(PlatformError):
    """The engine does not answer any more: it was stopped, or is starting again."""


class StartRefused(PlatformError):
    """The engine could not start a container; ``code`` is what a shell would say: 127 not found, 126 not executable."""

    def __init__(self, what: str, *, do: str = "", code: int = 125) -> None:
        super().__init__(what, do=do)
        self.code = code


@contextlib.contextmanager
def said(doing: str) -> Iterator[None]:
    """What the SDK and its HTTP library raise inside becomes an error of ours that says what was being done."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.NotFound as error:
        text = _text(error)
        if _not_executable(text):
            raise _refused(text) from error
        raise ResourceNotFound(f"cannot {doing}: {text}") from error
    except docker.errors.APIError as error:
        raise _explained(doing, _text(error)) from error
    except (requests.exceptions.RequestException, docker.errors.DockerException, OSError) as error:
        raise EngineGone(
            f"the container engine stopped answering (cannot {doing}: {first_line(error)})",
            do="See that it runs: docker info. Its log says why it stopped.",
        ) from error


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """Undoing something that is undone already is no error."""
    import docker.errors

    try:
        yield
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        text = _text(error)
        if "is not running" in text or "already in progress" in text:
            return
        raise


def _explained(doing: str, text: str) -> HotfireError:
    low = text.lower()
    if _not_executable(text):
        return _refused(text)
    if "no space left on device" in low:
        return ResourceLimitExceeded(
            f"the engine's disk is full (cannot {doing}: {text})",
            do="docker system df shows what uses it; hotfire prune and docker image prune free some.",
        )
    if 'could not select device driver "" with capabilities: [[gpu]]' in low:
        return StartRefused(
            "the engine cannot give GPUs to containers: it has no NVIDIA runtime.",
            do="Install nvidia-container-toolkit on this machine (nvidia-ctk runtime configure), then restart Docker.",
        )
    if "error gathering device information" in low or "no such device" in low:
        return StartRefused(
            f"a device of the container is not on this machine: {text}",
            do="ls /dev/neuron* /dev/nvidia* /dev/infiniband shows what is there.",
        )
    if "start a container" in doing:
        return StartRefused(f"the engine cannot start the container: {text}")
    return PlatformError(f"cannot {doing}: {text}", do="docker info and the engine's log say more.")


_NOT_FOUND = ("executable file not found", "no such file or directory")
_NOT_EXECUTABLE = ("permission denied", "exec format error", "is a directory")


def _not_executable(text: str) -> bool:
    low = text.lower()
    began = "starting container process caused" in low or "oci runtime create failed" in low
    return began and "exec" in low and any(word in low for word in (*_NOT_FOUND, *_NOT_EXECUTABLE))


def _refused(text: str) -> StartRefused:
    found = not any(word in text.lower() for word in _NOT_FOUND)
    return StartRefused(
        f"the container's program cannot be run: {text}",
        do="An image without ENTRYPOINT must have an executable `train` on its PATH (contract 1.1).",
        code=126 if found else 127,
    )


def _text(error: Any) -> str:
    return str(error.explanation or error).strip()


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
