"""The CUDA plugin without a GPU: its options, its self-test on the CPU, and that a failed self-test is not ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xla
ROOT = Path(__file__).parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "view"), "PJRT_DEVICE": "CPU"}


def python(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """torch_xla belongs into a process of its own."""
    argv = [sys.executable, "-W", "ignore", *(("-c", code) if code else ()), *words]
    return subprocess.run(argv, env={**ENV, **env}, capture_output=True, text=True, check=False)


def test_the_self_test_passes_where_the_device_computes_rightly() -> None:
    done = python("", "-m", "hotfire.runtime.xla.gpu_selftest")
    assert done.returncode == 0, done.stderr
    assert "self-test passed on CPU: matmul, gradient, all-reduce" in done.stdout


def test_a_wrong_result_is_a_mismatch() -> None:
    code = (
        "import torch; from hotfire.runtime.xla.gpu_selftest import Mismatch, compare\n"
        "known = torch.ones(8, 8)\n"
        "compare('same', known * 1.001, known)\n"
        "for wrong in (known * 1.1, known * float('nan'), torch.ones(4)):\n"
        "    try: compare('matmul', wrong, known)\n"
        "    except Mismatch as error: print('refused', error)\n"
    )
    done = python(code)
    assert done.stdout.count("refused matmul") == 3, done.stderr


def test_options_of_one_process_and_of_many() -> None:
    code = (
        "from hotfire.runtime.xla.gpu_plugin import options\n"
        "print(options({}))\n"
        "print(options(dict(RANK='5', LOCAL_RANK='1', WORLD_SIZE='8', LOCAL_WORLD_SIZE='4')))\n"
    )
    alone, many = map(eval, python(code).stdout.splitlines())
    assert alone == {"platform_name": "gpu", "allocator": "default", "node_id": 0, "num_nodes": 1}
    assert (many["node_id"], many["num_nodes"], many["visible_devices"]) == (5, 8, [1])


_GUARD = """
import sys
from pathlib import Path
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.xla import gpu_plugin
library, folder = Path(sys.argv[1]), sys.argv[2]
try:
    gpu_plugin.ensure_tested(library, folder, {**__import__("os").environ, **dict(w.split("=") for w in sys.argv[3:])})
    print("tested")
except ValidationError as error:
    print("refused", error)
"""


def test_a_device_that_fails_is_refused_and_one_that_passes_is_tested_once(tmp_path: Path) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"x")
    refused = python(_GUARD, str(library), str(tmp_path), "PJRT_DEVICE=NONSENSE")
    assert refused.stdout.startswith("refused the GPU did not pass"), refused.stderr
    assert "Inductor" in refused.stdout
    first = python(_GUARD, str(library), str(tmp_path))
    assert first.stdout.strip() == "tested" and "self-test passed" in first.stderr
    # Not run again: it would fail.
    again = python(_GUARD, str(library), str(tmp_path), "PJRT_DEVICE=NONSENSE")
    assert again.stdout.strip() == "tested"


def test_without_the_plugins_package_it_says_what_to_install() -> None:
    code = (
        "from hotfire.runtime.xla import gpu_plugin\n"
        "gpu_plugin.importlib.util.find_spec = lambda name: None\n"
        "gpu_plugin.library()\n"
    )
    done = python(code)
    assert "pip install jax-cuda12-pjrt" in done.stderr
