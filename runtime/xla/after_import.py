"""Work to do once a module has been imported, without importing it oneself (standard library only)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def _nothing() -> None:
    pass


def after_import(
    name: str, work: Callable[[], None], before: Callable[[], None] = _nothing
) -> None:
    """Call `work` when the import of module `name` has succeeded; at once if it is imported.

    `before` is called when that import begins.
    """
    if name in sys.modules:
        work()
    else:
        sys.meta_path.insert(0, _Finder(name, work, before))


class _Finder:
    """Lets the other finders find the module, and adds the work to the end of its execution."""

    def __init__(self, name: str, work: Callable[[], None], before: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._before = before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then_work(module: ModuleType) -> None:
            self._before()
            execute(module)
            self._work()

        # On the instance: everything else a loader can do (resources, source) stays as it is.
        vars(spec.loader)["exec_module"] = execute_then_work
        return spec
