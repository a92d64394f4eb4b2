"""What a call brings along: the caller's side (where jobs are kept, the environment) and a job's options."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.handover import detach, remove_containers
from hotfire.runtime.layout import cache_home, hotfire_home
from hotfire.runtime.store import Store

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The caller's side: where jobs are kept and what the environment says. The only reader of ``os.environ``."""

    store: Store
    cache: Path
    cwd: Path
    environ: Mapping[str, str]

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None) -> Surroundings:
        environ = os.environ if environ is None else environ
        return cls(
            store=Store(
                hotfire_home(environ),
                lost=lambda job_dir: remove_containers(job_dir, environ),
                resume=lambda job_dir, lock: detach(
                    job_dir, lock, cls.here(environ), "hotfire.runtime.supervisor"
                ),
            ),
            cache=cache_home(environ),
            cwd=Path.cwd(),
            environ=environ,
        )

    @property
    def region(self) -> str:
        return (
            self.environ.get("AWS_REGION")
            or self.environ.get("AWS_DEFAULT_REGION")
            or DEFAULT_REGION
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller chooses beside the request. Kept in ``options.json``, so that a job can be looked at again."""

    backend: str = "process"
    network: str = "host"
    maps: tuple[str, ...] = ()
    """FROM=TO each: an s3:// prefix or file-system id, and the directory that stands for it."""
    python: str = field(default_factory=lambda: sys.executable)
    processes_per_host: int | None = None
    pass_names: tuple[str, ...] = ()
    grace: float = 120.0
    """Seconds between SIGTERM and SIGKILL (contract 5.4)."""
    interrupt_after: str = ""
    """Rehearse a spot interruption: a time (90s) or a text of the log (step 40)."""
    rehearse: str = ""
    """The trouble of the service to play: a :class:`hotfire.runtime.rehearse.Rehearsal`."""
    regex: str = "re2"
    """What searches the log for metrics: a :class:`hotfire.runtime.observe.patterns.Engine`."""
    spot_discount: float = 0.7
    """Share of the price that managed spot training is assumed to save; the bill's own rule is the provider's."""
    shm_bytes: int | None = None
    """Of a container's /dev/shm; None: half of the memory. Docker backend only, as what follows."""
    limits: bool = False
    """Give containers no more CPUs and memory than the instance type has."""
    samples: tuple[str, ...] = ()
    """CHANNEL=SHARE% or CHANNEL=COUNT, @SEED behind: a part of a channel."""
    data_rules: tuple[str, ...] = ()
    """NAME=VALUE each: see docs/data.md."""
    input_bandwidth: str = ""
    """What the service's download is assumed to reach, e.g. 100MB/s; only for the time that it would take."""

    def to_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "network": self.network,
            "maps": list(self.maps),
            "python": self.python,
            "processes_per_host": self.processes_per_host,
            "pass_names": list(self.pass_names),
            "grace": self.grace,
            "interrupt_after": self.interrupt_after,
            "rehearse": self.rehearse,
            "regex": self.regex,
            "spot_discount": self.spot_discount,
            "shm_bytes": self.shm_bytes,
            "limits": self.limits,
            "samples": list(self.samples),
            "data_rules": list(self.data_rules),
            "input_bandwidth": self.input_bandwidth,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Options:
        known: dict[str, Any] = dict(raw)
        for name in ("maps", "pass_names", "samples", "data_rules"):
            known[name] = tuple(known[name])
        return cls(**known)
