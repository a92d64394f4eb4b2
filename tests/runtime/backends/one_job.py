"""Run one job through the process backend and print as JSON what came of it. Started by ``Machine`` in conftest."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from hotfire.runtime.backend import Attempt, ContainerSpec, Mount, MountMode
from hotfire.runtime.backends.process import ProcessBackend
from hotfire.runtime.errors import HotfireError
from hotfire.runtime.events import Event, Note
from hotfire.runtime.layout import HostDir


def main(job: dict[str, Any]) -> dict[str, Any]:
    notes: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    dirs = {host: HostDir(Path(job["root"], "job", host)) for host in job["hosts"]}
    attempt = Attempt(job="job", number=1, dirs=dirs, network=job.get("network", "host"))
    try:
        with ProcessBackend().open(attempt, observe) as session:
            for directory in dirs.values():
                for path in directory.ml.directories():
                    path.mkdir(parents=True, exist_ok=True)
            hosts = [session.start(spec(job, host, dirs[host], session)) for host in dirs]
            codes = [host.wait() for host in hosts]
            roots = [str(place.ml_root) for place in session.places.values()]
            kind = session.isolation
    except HotfireError as error:
        return {"error": type(error).__name__, "text": str(error), "notes": notes}
    return {
        "isolation": kind,
        "codes": codes,
        "roots": roots,
        "logs": [directory.log.read_text() for directory in dirs.values()],
        "notes": notes,
        "opt": sorted(str(path) for path in Path("/opt").rglob("*")),
        "times": Path("/opt").stat().st_mtime_ns if Path("/opt").exists() else 0,
    }


def spec(job: dict[str, Any], host: str, directory: HostDir, session: Any) -> ContainerSpec:
    root = session.places[host].ml_root
    return ContainerSpec(
        job="job",
        host=host,
        hostname="ip-10-0-0-1.ec2.internal",
        argv=("/bin/sh", "-c", job["script"]),
        env={"PATH": os.environ["PATH"], "ML": str(root), **job["mark"]},
        dir=directory,
        place=session.places[host],
        mounts=tuple(
            Mount(source=Path(source), target=root / PurePosixPath(target), mode=MountMode(mode))
            for source, target, mode in job.get("mounts", ())
        ),
    )


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
