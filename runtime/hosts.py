"""The hosts of one attempt: started, side by side where the backend allows it, and removed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hotfire.runtime.backend import Container, ContainerSpec, Session

_T = TypeVar("_T")
_AT_ONCE = 32


@contextmanager
def started(
    session: Session, specs: Sequence[ContainerSpec], up: Callable[[Container], None]
) -> Iterator[list[Container]]:
    """The containers of ``specs``, in their order; ``up`` is told of each as soon as it runs.

    On leaving, or when one of them cannot be started, every one is removed, also if the removal of another fails: that
    error is raised afterwards.
    """
    found: dict[str, Container] = {}
    failed: list[BaseException] = []

    def start(spec: ContainerSpec) -> None:
        container = session.start(spec)
        found[spec.host] = container
        up(container)

    def remove(container: Container) -> None:
        try:
            container.remove()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    try:
        _each(start, specs, side_by_side=session.parallel)
        yield [found[spec.host] for spec in specs]
    finally:
        _each(remove, [*found.values()], side_by_side=session.parallel)
        if failed:
            raise failed[0]


def _each(work: Callable[[_T], None], items: Sequence[_T], *, side_by_side: bool) -> None:
    """The first error is raised: at once, or, side by side, when the work on all the others has ended."""
    if not side_by_side or len(items) < 2:
        for one in items:
            work(one)
        return
    # One host needs none, and a job's start is short.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(items), _AT_ONCE)) as pool:
        ended = [pool.submit(work, one) for one in items]
    for future in ended:
        future.result()
