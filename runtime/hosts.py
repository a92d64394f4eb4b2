"""The hosts of one attempt: started, side by side where the backend allows it, and removed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

    def start(spec: ContainerSpec) -> None:
        container = session.start(spec)
        found[spec.host] = container
        up(container)

    try:
        if session.parallel:
            _all(start, specs, side_by_side=True)
        else:
            for spec in specs:
                start(spec)
        yield [found[spec.host] for spec in specs]
    finally:
        _all(_remove, [*found.values()], side_by_side=session.parallel)


def _remove(container: Container) -> None:
    container.remove()


def _all(work: Callable[[_T], object], items: Sequence[_T], *, side_by_side: bool) -> None:
    """Every item is worked on whatever becomes of the others; the error of the first that failed is raised then."""
    with ExitStack() as stack:
        if side_by_side and len(items) > 1:
            # One host needs none, and a job's start is short.
            from concurrent.futures import ThreadPoolExecutor

            pool = stack.enter_context(ThreadPoolExecutor(min(len(items), _AT_ONCE)))
            for end in [pool.submit(work, one).result for one in items]:
                stack.callback(end)
        else:
            for one in items:
                stack.callback(work, one)
