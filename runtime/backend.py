"""The seam between the runtime and what starts hosts: bare processes in namespaces, or a container engine.

``with backend.open(attempt) as session`` owns what all hosts of one attempt share: the network, the addresses, the
credentials. It knows the :class:`Place` of every host before anything starts, so that planning stays pure.
``session.start(spec)`` starts one host. Leaving the ``with`` leaves nothing behind, whatever happened inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol

from hotfire.runtime.events import Observer
from hotfire.runtime.layout import ML_ROOT, HostDir


class MountMode(StrEnum):
    READ_ONLY = "ro"
    READ_WRITE = "rw"
    COPY_ON_WRITE = "cow"
    """The container may write; the source never changes, and no byte is copied until it does."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """``source`` (a directory or a regular file of this machine) appears in the container as ``target`` (absolute)."""

    source: Path
    target: PurePosixPath
    mode: MountMode


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one host will live: its address on the job's network, and where it sees its /opt/ml."""

    host: str
    address: str
    ml_root: PurePosixPath = ML_ROOT
    """/opt/ml; another path only in the relocation fallback of the process backend."""
    network_interface: str = "eth0"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a backend needs to know to open a session; ``dirs`` maps host name to its directory."""

    job: str
    number: int
    dirs: Mapping[str, HostDir]
    network: str = "host"
    """``host`` or ``private`` (a network namespace per host)."""
    isolated: bool = False
    """EnableNetworkIsolation: hosts see each other and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a container engine gives a host. None or nothing: the engine's default. Bytes, CPUs."""

    shm_bytes: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """By name; -1 is unlimited."""
    gpus: int = 0
    """NVIDIA GPUs; -1 is all of them."""
    devices: tuple[str, ...] = ()
    """Device nodes: /dev/neuron0, /dev/infiniband/uverbs0."""
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """One host, ready to start. ``plan`` makes it, ``--dry-run`` prints it, a backend carries it out as it stands."""

    job: str
    host: str
    hostname: str
    """What gethostname() returns: ``ip-10-a-b-c.ec2.internal``, never algo-N (contract 1.2)."""
    argv: tuple[str, ...]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment: nothing is inherited beside it."""
    dir: HostDir
    """``dir.ml`` becomes ``place.ml_root``; stdout and stderr go to ``dir.log``."""
    place: Place
    mounts: tuple[Mount, ...] = ()
    image: str = ""
    """For a container engine: the image whose files the host sees. Then ``argv`` are the arguments of ``entrypoint``,
    ``env`` is added to the image's own, ``cwd`` is the image's, and ``dir.ml`` is mounted entry by entry."""
    entrypoint: tuple[str, ...] | None = None
    """None: the image's own."""
    resources: Resources = field(default_factory=Resources)


class Container(Protocol):
    """One started host."""

    host: str

    @property
    def id(self) -> str: ...

    @property
    def max_rss_bytes(self) -> int | None:
        """Resident memory of the largest process that ran in the host; None before its end or where it is unknown."""

    @property
    def pid(self) -> int:
        """Process id on this machine of the host's first process; 0 where nothing runs."""

    def pids(self) -> list[int]:
        """Process ids on this machine of everything that runs in the host now; PID 1 of the host first."""

    def poll(self) -> int | None:
        """The exit code of the host's first process (128+n for signal n), or None while it runs. Does not block."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Like :meth:`poll`, after waiting up to ``timeout`` seconds (None: for ever)."""

    def signal(self, number: int) -> None:
        """Send a signal to the host's first process; nothing if it has gone."""

    def stop(self, grace: float) -> int:
        """SIGTERM to the first process, ``grace`` seconds, SIGKILL to all (contract 5.4). Returns the exit code."""

    def kill(self) -> None:
        """SIGKILL to everything in the host, and wait for it."""

    def remove(self) -> None:
        """Undo :meth:`Session.start`: no process, mount or temporary file stays. ``dir.ml`` and ``dir.log`` do."""


class Session(Protocol):
    """Owner of what the hosts of one attempt share."""

    parallel: bool
    """Whether hosts may be started and removed from several threads at once."""

    @property
    def places(self) -> Mapping[str, Place]: ...

    def start(self, spec: ContainerSpec) -> Container:
        """Start one host.

        Raises:
            DataError: a mount's source is not there. A first program that cannot be executed is no error here: the
                container ends with 127 or 126 and a line in its log.
            PlatformError: the machine refuses what :meth:`Backend.open` had found possible.
        """


class Backend(Protocol):
    """A way to run hosts. ``name`` is the word of ``--backend``."""

    @property
    def name(self) -> str: ...

    def open(self, attempt: Attempt, observer: Observer) -> AbstractContextManager[Session]:
        """Prepare network and addresses; says fallbacks through ``observer`` as :class:`~hotfire.runtime.events.Note`.

        Raises:
            ValidationError: this machine cannot give what the attempt asks for; the message says what would.
        """
