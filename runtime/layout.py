"""Every path, nowhere else: one host's /opt/ml (:class:`MlTree`) and a job's directory on this machine (:class:`JobDir`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ML_ROOT = PurePosixPath("/opt/ml")


@dataclass(frozen=True)
class MlTree:
    """The tree of contract 2.1 below ``root``, which is /opt/ml inside a container and some directory outside."""

    root: Path

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def config(self) -> Path:
        return self.input / "config"

    @property
    def hyperparameters(self) -> Path:
        return self.config / "hyperparameters.json"

    @property
    def resourceconfig(self) -> Path:
        return self.config / "resourceconfig.json"

    @property
    def inputdataconfig(self) -> Path:
        return self.config / "inputdataconfig.json"

    @property
    def checkpointconfig(self) -> Path:
        return self.config / "checkpointconfig.json"

    @property
    def data(self) -> Path:
        return self.input / "data"

    def channel(self, name: str) -> Path:
        return self.data / name

    def channel_manifest(self, name: str) -> Path:
        return self.data / f"{name}-manifest"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def output_data(self) -> Path:
        return self.output / "data"

    @property
    def failure(self) -> Path:
        return self.output / "failure"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def code(self) -> Path:
        return self.root / "code"

    def directories(self) -> tuple[Path, ...]:
        """What exists, empty, before the entrypoint starts (contract 2.1)."""
        return (
            self.config,
            self.data,
            self.model,
            self.output_data,
            self.output / "metrics" / "sagemaker",
            self.output / "profiler",
        )


@dataclass(frozen=True)
class HostDir:
    """One host of one attempt: ``ml`` is its /opt/ml, ``log`` its merged stdout and stderr."""

    root: Path

    @property
    def ml(self) -> MlTree:
        return MlTree(self.root / "ml")

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def log_times(self) -> Path:
        """When which bytes of :attr:`log` were seen."""
        return self.root / "log-times"

    @property
    def samples(self) -> Path:
        """What the host used, a row of CSV about every second."""
        return self.root / "samples.csv"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def bin(self) -> Path:
        """Stand-ins for the emulated devices' tools; first on the host's PATH."""
        return self.root / "bin"

    @property
    def pid(self) -> Path:
        """While the host lives: the process id, on this machine, of its first process."""
        return self.root / "pid"

    @property
    def scratch(self) -> Path:
        """The backend's own: overlay layers, mount points, sockets. Removed with the container."""
        return self.root / "scratch"


@dataclass(frozen=True)
class JobDir:
    """``jobs/NAME``: the directory is the database of one job."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def request(self) -> Path:
        return self.root / "request.json"

    @property
    def record(self) -> Path:
        return self.root / "record.json"

    @property
    def options(self) -> Path:
        """What the caller chose beside the request: backend, network, maps, interpreter. Never a secret."""
        return self.root / "options.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor while the job lives: liveness without process ids."""
        return self.root / "lock"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def notes(self) -> Path:
        """Assumptions, fallbacks and warnings of the run, a line each."""
        return self.root / "notes"

    @property
    def points(self) -> Path:
        """Values of the job's metrics: a CSV file that grows while the job runs."""
        return self.root / "points.csv"

    @property
    def statistics(self) -> Path:
        """What each metric definition matched."""
        return self.root / "statistics.json"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def uploads(self) -> Path:
        """Multipart uploads in progress: a directory for each owner, the artifacts or a host, with a file for each."""
        return self.root / "uploads"

    @property
    def tags(self) -> Path:
        """Tags of the job, once they are no longer those of its request."""
        return self.root / "tags.json"

    @property
    def updates(self) -> Path:
        """What UpdateTrainingJob has changed: members of the request that it replaced."""
        return self.root / "updates.json"

    @property
    def banner(self) -> Path:
        """What the endpoint says about the job before its hosts say anything, a line each."""
        return self.root / "banner"

    def log_times(self, host: str) -> Path:
        """When which byte of a host's logs, all attempts joined, was first seen: lines of ``offset milliseconds``."""
        return self.root / f"log-times-{host}"

    @property
    def data(self) -> Path:
        """Channels that had to be downloaded, one directory each."""
        return self.root / "data"

    def host(self, attempt: int, host: str) -> HostDir:
        return HostDir(self.root / "attempts" / str(attempt) / host)

    def attempts(self) -> list[int]:
        found = (self.root / "attempts").glob("*/")
        return sorted(int(path.name) for path in found if path.name.isdecimal())


def hotfire_home(environ: Mapping[str, str]) -> Path:
    """``$HOTFIRE_HOME``, else ``$XDG_DATA_HOME/hotfire``, else ``~/.local/share/hotfire``."""
    if chosen := environ.get("HOTFIRE_HOME"):
        return Path(chosen).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "hotfire"


def cache_home(environ: Mapping[str, str]) -> Path:
    """``$HOTFIRE_CACHE``, else ``$XDG_CACHE_HOME/hotfire``, else ``~/.cache/hotfire``. Safe to delete at any time."""
    if chosen := environ.get("HOTFIRE_CACHE"):
        return Path(chosen).expanduser().absolute()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "hotfire"
