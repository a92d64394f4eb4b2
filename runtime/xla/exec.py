"""Run a training script as ``python`` would, with torch_xla corrected when the script imports it.

::

    python -m hotfire.runtime.xla.exec SCRIPT [ARGUMENT ...]
    python -m hotfire.runtime.xla.exec -m MODULE [ARGUMENT ...]

The script is ``__main__`` in every respect: ``sys.argv``, ``sys.path[0]``, ``__file__``, pickling,
workers started by ``multiprocessing`` spawn, exit status. A script that never imports torch_xla
runs unchanged. See `hotfire.runtime.xla.shims` and `hotfire.runtime.xla.worker_record`.
"""

# pathlib would be half of what a trivial script pays for this module.
# ruff: noqa: PTH100, PTH112, PTH113, PTH120, PTH123

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType

from hotfire.runtime.xla import compilers, shims
from hotfire.runtime.xla.worker_record import WorkerRecord

USAGE = "usage: python -m hotfire.runtime.xla.exec (SCRIPT | -m MODULE) [ARGUMENT ...]"
_OUR_FRAMES = {__file__, "<frozen runpy>"}


def main(argv: list[str]) -> None:
    """Replace this program by the one that `argv` names; returns or raises as that one does."""
    if not argv or argv == ["-m"]:
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)
    record = WorkerRecord.from_environment(os.environ)
    record.started()
    try:
        code, module = _load_module(argv[1:]) if argv[0] == "-m" else _load_script(argv)
        shims.watch_imports()
        compilers.prepare()
        # Our own module stays importable: replacing __main__ would otherwise drop its last owner.
        sys.modules.setdefault("hotfire.runtime.xla.exec", sys.modules["__main__"])
        sys.modules["__main__"] = module
        exec(code, vars(module))  # noqa: S102
        _call_mp_fn(module)
    except BaseException as error:
        error.__traceback__ = _without_our_frames(error.__traceback__)
        record.failed(error)
        _tell_other_ranks(error)
        _hide_our_frames()
        raise


def _call_mp_fn(module: ModuleType) -> None:
    """Scripts of `xla_spawn.py` define ``_mp_fn(index)`` and leave calling it to the launcher."""
    if "_mp_fn" in vars(module) and "mp_fn" in shims.selected(os.environ):
        from hotfire.runtime.xla.spawn import call_mp_fn

        call_mp_fn(module)


def _load_script(argv: list[str]) -> tuple[CodeType, ModuleType]:
    """A file, or a directory or zip archive holding ``__main__.py``, as ``python PATH`` runs it."""
    path = argv[0]
    sys.argv[:] = argv
    if os.path.isdir(path) or (os.path.isfile(path) and _is_zip(path)):
        _set_path0(path)
        return _from_spec("__main__", _find_main(path))
    if not os.path.isfile(path):
        print(f"{sys.executable}: can't open file {os.path.abspath(path)!r}", file=sys.stderr)
        raise SystemExit(2)
    _set_path0(os.path.dirname(os.path.realpath(path)))
    file = os.path.abspath(path)
    loader: SourceFileLoader | SourcelessFileLoader
    if path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", file)
        code = loader.get_code("__main__")
        assert code is not None
    else:
        loader = SourceFileLoader("__main__", file)
        code = compile(loader.get_data(file), file, "exec", dont_inherit=True)
    module = ModuleType("__main__")
    # What the interpreter gives a script: no spec, so that multiprocessing goes by __file__.
    vars(module).update(__file__=file, __loader__=loader, __cached__=None)
    return code, _like_the_interpreters(module)


def _load_module(arguments: list[str]) -> tuple[CodeType, ModuleType]:
    name = arguments[0]
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = importlib.util.find_spec(name)
    if spec is None:
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        raise SystemExit(1)
    code, module = _from_spec(name, spec)
    sys.argv[:] = [spec.origin or name, *arguments[1:]]
    return code, module


def _from_spec(name: str, spec: importlib.machinery.ModuleSpec) -> tuple[CodeType, ModuleType]:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code else None
    if code is None:
        print(f"{sys.executable}: No code object available for {name}", file=sys.stderr)
        raise SystemExit(1)
    module = importlib.util.module_from_spec(spec)
    module.__name__ = "__main__"
    return code, _like_the_interpreters(module)


def _like_the_interpreters(module: ModuleType) -> ModuleType:
    vars(module).update(__builtins__=__builtins__, __annotations__={})
    return module


def _find_main(path: str) -> importlib.machinery.ModuleSpec:
    spec = PathFinder.find_spec("__main__", [path])
    if spec is None:
        print(f"{sys.executable}: can't find '__main__' module in {path!r}", file=sys.stderr)
        raise SystemExit(1)
    return spec


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _set_path0(directory: str) -> None:
    """``python -m`` put the current directory first; under -P (safe path) it put nothing."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = directory


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OUR_FRAMES:
        traceback = traceback.tb_next
    return traceback


def _hide_our_frames() -> None:
    """The error travels on through our frames; the hook that prints it drops them again."""
    show = sys.excepthook

    def show_script_frames(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        inner = _without_our_frames(traceback)
        show(kind, error.with_traceback(inner), inner)

    sys.excepthook = show_script_frames


def _tell_other_ranks(error: BaseException) -> None:
    """Ranks waiting for this one in a collective can then name it and its reason."""
    groups = sys.modules.get("hotfire.runtime.xla.host_group")
    if groups is not None and not (isinstance(error, SystemExit) and not error.code):
        groups.announce_failure(error)


if __name__ == "__main__":
    main(sys.argv[1:])
