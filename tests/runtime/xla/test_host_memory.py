"""What a CPU worker frees is used again, without new pages from the kernel."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
PAGES = 64 << 8
FAULTS = f"""
import os, resource
from hotfire.runtime.xla import host_memory

host_memory.keep_freed(os.environ)
for turn in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray({PAGES} * 4096)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(after - before)
"""


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ({}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, False),
    ],
)
def test_the_same_pages_serve_the_next_step(chosen: dict[str, str], kept: bool) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=clean | {"PYTHONPATH": os.pathsep.join(sys.path)} | chosen,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (int(done.stdout) < 16) == kept  # where pages are huge, 32 make 64 MB
