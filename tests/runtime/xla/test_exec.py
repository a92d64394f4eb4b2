"""`hotfire.runtime.xla.exec` runs a script as Python does, and says how a worker ended."""

from __future__ import annotations

import json
import os
import py_compile
import signal
import subprocess
import sys
import zipapp
from collections.abc import Callable
from pathlib import Path

import pytest

Environment = Callable[..., dict[str, str]]
EXEC = ["-m", "hotfire.runtime.xla.exec"]

# Everything that a script can see of how it was started; a worker of its own proves pickling.
INTROSPECTION = """\
'''a docstring'''
import json, multiprocessing, os, pickle, sys

class Local:
    pass

def double(x):
    return 2 * x

if __name__ == "__main__":
    import __main__
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [1, 2])
    print(json.dumps({
        "argv": sys.argv, "path0": sys.path[0], "file": __file__, "doc": __doc__,
        "name": __name__, "package": __package__, "spec": getattr(__spec__, "name", None),
        "loader": type(__loader__).__name__, "main": __main__.Local is Local,
        "pickled": type(pickle.loads(pickle.dumps(Local()))) is Local, "doubled": doubled,
        "cached": hasattr(__main__, "__cached__"),
        "module": Local.__module__, "annotations": "__annotations__" in globals(),
        "orig_argv_tail": sys.orig_argv[-1], "torch": "torch" in sys.modules,
    }, sort_keys=True))
"""


@pytest.fixture
def python(worker_environment: Environment, tmp_path: Path) -> Callable[..., list[str]]:
    """Run Python in `tmp_path`; returns stdout, stderr, and the exit status as text."""

    def run(*arguments: str, **environment: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=worker_environment(**environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return [done.stdout, done.stderr, str(done.returncode)]

    return run


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("place", ["plain.py", "with space/mäßig 'q.py"])
def test_script_sees_what_python_would_show_it(
    python: Callable[..., list[str]], tmp_path: Path, place: str
) -> None:
    script = write(tmp_path / place, INTROSPECTION)
    expected = python(script, "--a", "b c", "")
    assert expected[2] == "0", expected
    assert python(*EXEC, script, "--a", "b c", "") == expected
    relative = os.path.relpath(script, tmp_path)
    assert python(*EXEC, relative) == python(relative)


def test_script_behind_a_link_imports_its_real_neighbours(
    python: Callable[..., list[str]], tmp_path: Path
) -> None:
    write(tmp_path / "real" / "neighbour.py", "x = 1\n")
    script = write(tmp_path / "real" / "s.py", "import neighbour, sys; print(sys.path[0])\n")
    link = tmp_path / "link.py"
    link.symlink_to(script)
    assert python(*EXEC, str(link)) == python(str(link))


def test_module_and_package_run_as_with_dash_m(
    python: Callable[..., list[str]], tmp_path: Path
) -> None:
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "job.py", INTROSPECTION)
    # Python itself cannot pickle functions of a package's __main__ to spawned workers.
    write(
        tmp_path / "package" / "__main__.py",
        "import sys; print(__spec__.name, __name__, sys.argv)\n",
    )
    for module in ("package.job", "package"):
        expected = python("-m", module, "--x", "1")
        assert expected[2] == "0", expected
        assert python(*EXEC, "-m", module, "--x", "1") == expected


def test_bytecode_directory_and_zip_run_too(
    python: Callable[..., list[str]], tmp_path: Path
) -> None:
    source = write(tmp_path / "app" / "__main__.py", "import sys; print(__name__, sys.argv)\n")
    compiled = str(tmp_path / "s.pyc")
    py_compile.compile(source, compiled, doraise=True)
    archive = tmp_path / "app.pyz"
    zipapp.create_archive(tmp_path / "app", archive)
    for target in (compiled, str(tmp_path / "app"), str(archive)):
        expected = python(target, "x")
        assert expected[2] == "0", expected
        assert python(*EXEC, target, "x") == expected


@pytest.mark.parametrize(
    "body",
    [
        "def f():\n    raise ValueError('no')\nf()\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n",
        "raise SystemExit(42)",
        "raise SystemExit('a message')",
        "raise SystemExit",
        "def broken(:\n",
        "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\nraise ValueError\n",
        "import atexit\natexit.register(print, 'at exit')\nraise OSError(2, 'gone')\n",
        "import threading\nthreading.Timer(0.1, print, ['later']).start()\n",
    ],
)
def test_ends_as_python_does(python: Callable[..., list[str]], tmp_path: Path, body: str) -> None:
    """Same output, same traceback without our frames, same status."""
    script = write(tmp_path / "s.py", body)
    assert python(*EXEC, script) == python(script)


def test_missing_script_and_missing_module(python: Callable[..., list[str]]) -> None:
    out, err, status = python(*EXEC, "absent.py")
    assert (out, status) == ("", "2")
    assert "can't open file" in err
    out, err, status = python(*EXEC, "-m", "absent.module")
    assert status == "1"
    assert "absent" in err
    assert python(*EXEC)[2] == "2"


def test_script_without_torch_xla_imports_nothing_more(
    python: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Beyond what `python -m` itself imports: our own small modules."""
    script = write(tmp_path / "s.py", "import sys; print(*sorted(sys.modules), sep='\\n')\n")
    write(tmp_path / "plain.py", f"import runpy; runpy.run_path({script!r}, run_name='__main__')\n")
    ours = set(python(*EXEC, script)[0].split())
    plain = set(python("-m", "plain")[0].split())
    extra = {name for name in ours - plain if not name.startswith("hotfire")}
    assert extra <= {"__future__", "importlib.util", "importlib._abc"}, extra


MP_FN = "import logging\nlog = logging.getLogger(__name__)\ndef _mp_fn(index):\n    print('rank', index)\n"


@pytest.mark.parametrize(
    ("rest", "shims", "printed"),
    [
        ("", "", "rank 3\n"),
        ("", "-mp_fn", ""),
        ("if __name__ == '__main__':\n    print('main')\n", "", "main\n"),
        ("def start():\n    _mp_fn(7)\nstart()\n", "", "rank 7\n"),
    ],
)
def test_script_for_a_launcher_has_its_mp_fn_called(
    python: Callable[..., list[str]], tmp_path: Path, rest: str, shims: str, printed: str
) -> None:
    """Only where the script would otherwise do nothing; said by rank 0 alone."""
    script = write(tmp_path / "s.py", MP_FN + rest)
    out, err, status = python(*EXEC, script, RANK="3", WORLD_SIZE="4", HOTFIRE_SHIMS=shims)
    assert (out, err, status) == (printed, "", "0")
    if printed == "rank 3\n":
        assert "shim mp_fn" in python(*EXEC, script, HOTFIRE_SHIMS=shims)[1]


def test_plain_pytorch_script_is_untouched(
    python: Callable[..., list[str]], tmp_path: Path
) -> None:
    """torch_xla is not imported, and torch and its classes are as torch made them."""
    body = """\
import sys, torch, torch.distributed as dist
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(model.weight.tolist(), total, [n for n in sys.modules if n.startswith("torch_xla")])
print([f for f in vars(dist).values() if "hotfire" in str(getattr(f, "__module__", ""))])
"""
    script = write(tmp_path / "s.py", body)
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    expected = python(script, **alone)
    assert expected[2] == "0", expected[1]
    assert expected[0].endswith("[]\n[]\n")
    assert python(*EXEC, script, **alone) == expected


def test_unknown_shim_is_refused_before_the_script_runs(
    python: Callable[..., list[str]], tmp_path: Path
) -> None:
    script = write(tmp_path / "s.py", "print('ran')\n")
    out, err, status = python(*EXEC, script, HOTFIRE_SHIMS="-colectives")
    assert (out, status) == ("", "1")
    assert "-compat,-collectives,-spawn,-guard" in err


def test_worker_record_of_a_good_end(python: Callable[..., list[str]], tmp_path: Path) -> None:
    script = write(tmp_path / "s.py", "import os; print(os.getpid())\n")
    directory = tmp_path / "records"
    stale = write(directory / "rank-3.error.json", "{}")
    environment = {"HOTFIRE_WORKER_DIR": str(directory), "RANK": "3", "LOCAL_RANK": "1"}
    out, err, status = python(*EXEC, script, WORLD_SIZE="4", **environment)
    assert status == "0", err
    record = json.loads((directory / "rank-3.json").read_text())
    assert record == {"pid": int(out), "rank": 3, "local_rank": 1}
    assert not Path(stale).exists(), "an earlier attempt's error is not this one's"
    assert [p.name for p in directory.iterdir()] == ["rank-3.json"]


@pytest.mark.parametrize(
    ("body", "kind", "message", "status"),
    [
        ("raise ValueError('bad ü')", "ValueError", "bad ü", 1),
        ("import sys; sys.exit(42)", "SystemExit", "42", 42),
        ("import sys; sys.exit('no data')", "SystemExit", "no data", 1),
        ("import absent_module", "ModuleNotFoundError", "No module named 'absent_module'", 1),
        ("x = (", "SyntaxError", "'(' was never closed (s.py, line 1)", 1),
        ("raise ValueError('x' * 100_000)", "ValueError", "x" * 4000, 1),
    ],
)
def test_worker_record_of_a_bad_end(
    python: Callable[..., list[str]],
    tmp_path: Path,
    body: str,
    kind: str,
    message: str,
    status: int,
) -> None:
    script = write(tmp_path / "s.py", body + "\n")
    done = python(*EXEC, script, HOTFIRE_WORKER_DIR=str(tmp_path))
    assert done[2] == str(status)
    record = json.loads((tmp_path / "rank-0.error.json").read_text())
    assert record["rank"] == 0
    assert record["type"] == kind
    assert record["message"] == message
    assert record["exit_code"] == status
    assert record["time"] > 1_700_000_000
    assert len(record["traceback_tail"]) <= 8000
    assert "hotfire" not in record["traceback_tail"]
    assert kind in record["traceback_tail"] or kind == "ValueError"


@pytest.mark.parametrize("body", ["raise SystemExit(0)", "pass"])
def test_no_error_record_without_an_error(
    python: Callable[..., list[str]], tmp_path: Path, body: str
) -> None:
    script = write(tmp_path / "s.py", body)
    assert python(*EXEC, script, HOTFIRE_WORKER_DIR=str(tmp_path))[2] == "0"
    assert not (tmp_path / "rank-0.error.json").exists()


def test_interrupt_ends_by_the_signal(worker_environment: Environment, tmp_path: Path) -> None:
    """A shell sees from the status that Ctrl-C ended the script; so must a launcher."""
    script = write(tmp_path / "s.py", "print('up', flush=True)\nimport time; time.sleep(60)\n")
    environment = worker_environment(HOTFIRE_WORKER_DIR=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, *EXEC, script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    record = json.loads((tmp_path / "rank-0.error.json").read_text())
    assert record["type"] == "KeyboardInterrupt"
    assert record["exit_code"] == 130
