"""What an engine is asked for and what it answers, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Image:
    """What an image says about itself."""

    id: str
    tags: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0
    architecture: str = ""


@dataclass(frozen=True, kw_only=True)
class Bind:
    """``source``, a path of the engine's machine, or the volume of that name, appears as ``target``."""

    source: str
    target: str
    read_only: bool = False
    volume: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one container may use. None: no limit, or the engine's own default. Bytes, CPUs."""

    shm_bytes: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """Soft and hard limit by name; -1 is unlimited."""
    gpus: int = 0
    """NVIDIA GPUs; -1 is all."""
    devices: tuple[str, ...] = ()
    """Device nodes, in the container under the same name."""
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A container's place on a network; its only one, so that the interface is eth0."""

    network: str
    address: str
    aliases: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    """Name to address, for /etc/hosts: the engine's resolver forgets a container as soon as it has ended."""


@dataclass(frozen=True, kw_only=True)
class Creation:
    """One container. ``entrypoint`` None keeps the image's; ``command`` are its arguments."""

    name: str
    image: str
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    hostname: str = ""
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    joined: Joined | None = None
    shares_network_of: str = ""
    """Id of the container whose network namespace it uses instead of one of its own."""
    init: bool = True
    stop_seconds: int = 120
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class State:
    """Of a container: ``code`` is None while it has not ended. ``pid`` is 0 where nothing runs."""

    status: str
    pid: int = 0
    code: int | None = None
    out_of_memory: bool = False
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Owned:
    """Something of the engine that carries our label."""

    kind: str
    """``container``, ``network`` or ``volume``."""
    id: str
    name: str
    labels: Mapping[str, str]
    image: str = ""
    """Of a container: the id of its image."""
