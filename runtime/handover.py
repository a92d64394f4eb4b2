"""A job passes from one process to another: to a supervisor of its own, or from one that was killed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotfire.runtime.layout import JobDir
from hotfire.runtime.store import JobLock

if TYPE_CHECKING:
    from hotfire.runtime.surroundings import Surroundings


def remove_containers(job_dir: JobDir, environ: Mapping[str, str]) -> None:
    """Containers run on when their supervisor is killed: remove a job's, and note which they were."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(job_dir.options.read_text(encoding="utf-8")).get("backend") != "docker":
            return
        from hotfire.runtime.backends import docker_orphans

        found = docker_orphans.sweep(job_dir.root, environ)
        with job_dir.notes.open("a", encoding="utf-8") as out:
            for one in found:
                if one.kind == "container":
                    out.write(f"removed the container {one.name}, which the supervisor had left\n")


def package_view(cache: Path) -> Path:
    """A directory that holds the package ``hotfire`` and nothing else, for an interpreter that lacks it.

    Links to where the running hotfire is; its own site-packages must not reach the job's interpreter.
    """
    parts: dict[str, Path] = {}
    for name in ("containers", "entrypoints", "runtime"):
        found = importlib.util.find_spec(f"hotfire.{name}")
        assert found is not None and found.submodule_search_locations
        parts[name] = Path(found.submodule_search_locations[0]).resolve()
    key = hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:12]
    view = cache / "view" / key
    for name, source in parts.items():
        link = view / "hotfire" / name
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(source)
    return view


def detach(
    job_dir: JobDir,
    lock: JobLock,
    around: Surroundings,
    module: str,
    words: Sequence[str] = (),
    descriptors: Sequence[int] = (),
) -> None:
    """Leave a created job to ``python -m MODULE NAME LOCK WORDS...``; the lock is closed here, whatever happens.

    The process has a session of its own and inherits ``descriptors`` beside the lock.
    """
    paths = [str(package_view(around.cache)), *filter(None, [around.environ.get("PYTHONPATH")])]
    with contextlib.closing(lock), (job_dir.root / "supervisor.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, job_dir.name, str(lock.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=(lock.fileno(), *descriptors),
            start_new_session=True,
            cwd="/",
            env={**around.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    # It outlives this process; while this process lives, it must not stay behind as a zombie.
    threading.Thread(target=process.wait, name=f"hotfire-{job_dir.name}", daemon=True).start()
