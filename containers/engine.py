"""A container engine over its socket: images, networks, volumes, containers. The only importer of the docker SDK.

Thin on purpose: every call is one request, takes and returns values, and turns the engine's errors into ours.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import (
    HotfireError,
    PlatformError,
    ResourceLimitExceeded,
    ResourceNotFound,
    ValidationError,
)

MIB = 1 << 20
DEFAULT_SOCKET = "/var/run/docker.sock"
_CAP_SYS_RESOURCE = 24
_SECONDS = 60
"""For one request; those that wait for a container have no limit."""


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


class EngineGone(PlatformError):
    """The engine does not answer any more: it was stopped, or is starting again."""


class StartRefused(PlatformError):
    """The engine could not start a container; ``code`` is what a shell would say: 127 not found, 126 not executable."""

    def __init__(self, what: str, *, do: str = "", code: int = 125) -> None:
        super().__init__(what, do=do)
        self.code = code


def address(environ: Mapping[str, str]) -> str:
    """Where the engine listens: ``DOCKER_HOST``, the docker command's current context, the usual sockets."""
    if given := environ.get("DOCKER_HOST"):
        return given
    if found := _context(environ):
        return found
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    usual = (
        DEFAULT_SOCKET,
        f"{runtime}/docker.sock",
        "/run/podman/podman.sock",
        f"{runtime}/podman/podman.sock",
    )
    present = [path for path in usual if _is_socket(path)]
    usable = [path for path in present if os.access(path, os.W_OK)]
    return f"unix://{(usable or present or usual[:1])[0]}"


def _context(environ: Mapping[str, str]) -> str:
    """The endpoint of the context that ``docker context use`` chose."""
    import hashlib
    import json

    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "/")) / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = environ.get("DOCKER_CONTEXT") or config.get("currentContext") or "default"
        if name == "default":
            return ""
        key = hashlib.sha256(name.encode()).hexdigest()
        meta = json.loads((folder / "contexts" / "meta" / key / "meta.json").read_text("utf-8"))
        return str(meta["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, AttributeError):
        return ""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def connect(environ: Mapping[str, str]) -> Engine:
    """The engine of this machine.

    Raises:
        ValidationError: none answers, it may not be used, or it is of a kind that cannot carry jobs out.
    """
    where = address(environ)
    if not where.startswith("unix://"):
        raise ValidationError(
            f"the container engine is at {where}: jobs mount directories of this machine, so it must be here.",
            do="Unset DOCKER_HOST, or log in to that machine and run hotfire there.",
        )
    path = where.removeprefix("unix://")
    daemon = _try_socket(path)
    # Imported here, as everything of the SDK: 0.1 s that only jobs in containers spend.
    import docker
    from docker.errors import DockerException

    try:
        # Eight hosts wait and write at the same time, each on a connection of its own.
        client = docker.APIClient(
            base_url=where, version="auto", timeout=_SECONDS, max_pool_size=128
        )
        engine = Engine(client, path, daemon)
    except DockerException as error:
        raise ValidationError(
            f"the container engine at {path} does not answer as Docker does: {_first_line(error)}",
            do="Docker 20.10 or newer is needed.",
        ) from error
    if engine.podman:
        engine.close()
        raise ValidationError(
            f"{path} is Podman's: hotfire needs Docker's engine (its overlay volumes and network aliases differ).",
            do="Start Docker, rootless if you like, and point DOCKER_HOST at its socket.",
        )
    return engine


def _try_socket(path: str) -> int:
    """The process id of who listens, if that is a process of ours to see."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except PermissionError as error:
            raise ValidationError(
                f"you may not use the container engine at {path}.",
                do="Add yourself to its group (sudo usermod -aG docker $USER; then log in again), or use --backend process.",
            ) from error
        except OSError as error:
            raise ValidationError(
                f"no container engine answers at {path}: {error.strerror or error}.",
                do="Start it (sudo systemctl start docker, or sudo dockerd), or use --backend process.",
            ) from error
        peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])


def hard_limits(pid: int) -> dict[str, int]:
    """What a process cannot raise its limits beyond, by their names for containers; nothing if it may do as it likes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        rows = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    effective = next((line.split()[1] for line in status.splitlines() if "CapEff" in line), "0")
    if int(effective, 16) >> _CAP_SYS_RESOURCE & 1:
        return {}
    found = {}
    for title, name in (("Max open files", "nofile"), ("Max locked memory", "memlock")):
        row = next((row for row in rows if row.startswith(title)), "")
        if (hard := row.removeprefix(title).split()[1:2]) and hard[0].isdecimal():
            found[name] = int(hard[0])
    return found


class Output:
    """What a container writes, stdout and stderr in the order in which the engine read them; ends with the container.

    On a connection of our own: after the engine's answer it carries no HTTP any more, which HTTP libraries handle badly.
    """

    def __init__(self, path: str, version: str, container: str) -> None:
        """Raises OSError where the engine does not take the request."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_SECONDS)
            self._socket.connect(path)
            query = "stream=1&stdout=1&stderr=1"
            self._socket.sendall(
                f"POST /v{version}/containers/{container}/attach?{query} HTTP/1.1\r\nHost: docker\r\n"
                "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
            )
            self._reader = self._socket.makefile("rb", buffering=1 << 16)
            status = self._reader.readline().split()
            while self._reader.readline().strip():
                pass
            if status[1:2] not in ([b"101"], [b"200"]):
                raise OSError(f"the engine answered {b' '.join(status).decode()}")
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        """Chunks as they come; without a terminal each has a header of 8 bytes: the stream, and its length."""
        while len(header := self._reader.read(8)) == 8:
            (length,) = struct.unpack(">4xL", header)
            yield self._reader.read(length)

    def close(self) -> None:
        """Ends an iteration in another thread; that thread then closes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Close the connection; only by the thread that reads it."""
        self._reader.close()
        self._socket.close()


class Engine:
    """A connection to an engine; every method may be called from any thread."""

    def __init__(self, client: Any, path: str, daemon: int = 0) -> None:
        """``daemon``: the engine's process id on this machine, 0 where it is not known."""
        self._client = client
        self.path = path
        self.hard_limits = hard_limits(daemon) if daemon else {}
        with _said("ask the engine what it is"):
            info = client.info()
        self.version = str(info.get("ServerVersion", ""))
        self.cpus = int(info.get("NCPU") or 1)
        self.memory = int(info.get("MemTotal") or 0)
        machine = str(info.get("Architecture", ""))
        self.architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
        self.has_init = bool(info.get("InitBinary"))
        self.runtimes = frozenset(info.get("Runtimes") or {})
        self.rootless = any("rootless" in str(one) for one in info.get("SecurityOptions") or [])
        self.podman = "podman" in str(info.get("ProductLicense") or "") or bool(
            info.get("BuildahVersion")
        )

    def close(self) -> None:
        self._client.close()

    def answers(self) -> bool:
        """Whether anybody listens. The SDK would leak a socket at each question to nobody."""
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            return probe.connect_ex(self.path) == 0

    # --- images

    def image(self, name: str) -> Image | None:
        """The image of that name or id, if it is on this machine."""
        try:
            with _said(f"look at image {name}"):
                raw = self._client.inspect_image(name)
        except ResourceNotFound:
            return None
        config = raw.get("Config") or {}
        pairs = (item.partition("=") for item in config.get("Env") or [])
        return Image(
            id=raw["Id"],
            tags=tuple(raw.get("RepoTags") or ()),
            entrypoint=tuple(config.get("Entrypoint") or ()),
            environment={key: value for key, _, value in pairs},
            user=config.get("User") or "",
            labels=config.get("Labels") or {},
            bytes=int(raw.get("Size") or 0),
            architecture=raw.get("Architecture") or "",
        )

    def tag(self, image: str, repository: str, tag: str) -> None:
        with _said(f"name {image} {repository}:{tag}"):
            self._client.tag(image, repository, tag)

    def push(
        self, repository: str, tag: str, credentials: Mapping[str, str] | None
    ) -> Iterator[dict[str, Any]]:
        """The engine's progress lines. Errors are lines too: see :mod:`hotfire.containers.registry`."""
        with _said(f"push {repository}:{tag}"):
            # An explicit (even empty) configuration, so that nothing is looked up or kept in ~/.docker.
            yield from self._client.push(
                repository,
                tag=tag,
                stream=True,
                decode=True,
                auth_config=dict(credentials) if credentials else None,
            )

    def remove_image(self, name: str) -> None:
        with _said(f"remove image {name}"), _unless_gone():
            self._client.remove_image(name, force=True)

    # --- networks

    def subnets(self) -> list[str]:
        """The subnets of all networks of the engine, as ``a.b.c.d/n``."""
        with _said("list networks"):
            networks = self._client.networks()
        configs = [(one.get("IPAM") or {}).get("Config") or [] for one in networks]
        return [entry["Subnet"] for config in configs for entry in config if entry.get("Subnet")]

    def create_network(
        self, name: str, subnet: str, gateway: str, *, labels: Mapping[str, str], internal: bool
    ) -> str | None:
        """The id of a new bridge network; None where another network has the addresses."""
        from docker.types import IPAMConfig, IPAMPool

        # Without an address on the bridge this machine is out of reach as well, not only what lies beyond it.
        options = {"com.docker.network.bridge.inhibit_ipv4": "true"} if internal else {}
        ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet, gateway=gateway)])
        try:
            with _said(f"make network {name}"):
                made = self._client.create_network(
                    name,
                    driver="bridge",
                    options=options,
                    ipam=ipam,
                    labels=dict(labels),
                    internal=internal,
                    check_duplicate=True,
                )
        except HotfireError as error:
            if any(word in error.what.lower() for word in ("overlap", "pool")):
                return None
            raise
        return str(made["Id"])

    def remove_network(self, network: str) -> None:
        with _said(f"remove network {network}"), _unless_gone():
            self._client.remove_network(network)

    # --- volumes

    def create_overlay(
        self, name: str, *, lower: str, upper: str, work: str, labels: Mapping[str, str]
    ) -> None:
        """A volume that shows ``lower`` and keeps what is written in ``upper``; mounted while a container runs.

        No path may hold a comma, a colon or a backslash, which separate mount options.
        """
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        with _said(f"make volume {name}"):
            self._client.create_volume(
                name,
                driver="local",
                driver_opts={"type": "overlay", "device": "overlay", "o": options},
                labels=dict(labels),
            )

    def remove_volume(self, name: str) -> None:
        with _said(f"remove volume {name}"), _unless_gone():
            self._client.remove_volume(name, force=True)

    # --- containers

    def create(self, wanted: Creation) -> str:
        """Make a container, not yet running; its id.

        Raises:
            ResourceNotFound: the image is not here.
        """
        client = self._client
        with _said(f"create container {wanted.name}"):
            made = client.create_container(
                wanted.image,
                command=list(wanted.command),
                entrypoint=list(wanted.entrypoint) if wanted.entrypoint is not None else None,
                name=wanted.name,
                hostname=wanted.hostname or None,
                user=wanted.user or None,
                environment=dict(wanted.environment),
                labels=dict(wanted.labels),
                stdin_open=False,
                tty=False,
                host_config=_host_config(client, wanted),
                networking_config=_networking(client, wanted.joined),
                stop_timeout=wanted.stop_seconds,
            )
        return str(made["Id"])

    def attach(self, container: str) -> Output:
        """Everything the container writes from now on; the connection is there when this returns."""
        with _said("read a container's output"):
            return Output(self.path, self._client._version, container)

    def start(self, container: str) -> None:
        """Start a created container.

        Raises:
            StartRefused: its program or something that it needs is not there.
        """
        with _said("start a container"):
            self._client.start(container)

    def wait(self, container: str) -> int:
        """Block until the container has ended; its exit code.

        Raises:
            EngineGone: the engine went away meanwhile.
        """
        with _said("wait for a container"):
            answer = self._client.wait(container, timeout=None)
        if answer.get("Error"):
            raise EngineGone(f"the engine stopped waiting: {answer['Error']}")
        return int(answer["StatusCode"])

    def state(self, container: str) -> State | None:
        """How the container is; None if there is none."""
        try:
            with _said("look at a container"):
                raw = self._client.inspect_container(container)["State"]
        except ResourceNotFound:
            return None
        ended = raw["Status"] in ("exited", "dead")
        return State(
            status=raw["Status"],
            pid=int(raw.get("Pid") or 0),
            code=int(raw["ExitCode"]) if ended else None,
            out_of_memory=bool(raw.get("OOMKilled")),
            error=raw.get("Error") or "",
        )

    def signal(self, container: str, number: int) -> None:
        """Send a signal to the container's first process; nothing if it has gone."""
        with _said("signal a container"), _unless_gone():
            self._client.kill(container, signal=int(number))

    def remove_container(self, container: str) -> None:
        """Kill it if it runs, and remove it with its anonymous volumes."""
        with _said("remove a container"), _unless_gone():
            self._client.remove_container(container, force=True, v=True)

    # --- what is ours

    def owned(self, label: str) -> list[Owned]:
        """Containers, then networks, then volumes that carry ``label``: ``name`` or ``name=value``."""
        filters = {"label": [label]}
        with _said("list what carries hotfire's label"):
            containers = self._client.containers(all=True, filters=filters)
            networks = self._client.networks(filters=filters)
            volumes = self._client.volumes(filters=filters).get("Volumes") or []
        found = [
            Owned(
                kind="container",
                id=raw["Id"],
                name=(raw.get("Names") or [""])[0].lstrip("/"),
                labels=raw.get("Labels") or {},
                image=raw.get("ImageID") or "",
            )
            for raw in containers
        ]
        found += [
            Owned(kind="network", id=raw["Id"], name=raw["Name"], labels=raw.get("Labels") or {})
            for raw in networks
        ]
        found += [
            Owned(kind="volume", id=raw["Name"], name=raw["Name"], labels=raw.get("Labels") or {})
            for raw in volumes
        ]
        return found

    def remove(self, owned: Owned) -> None:
        removers: dict[str, Callable[[str], None]] = {
            "container": self.remove_container,
            "network": self.remove_network,
            "volume": self.remove_volume,
        }
        removers[owned.kind](owned.id)


def _host_config(client: Any, wanted: Creation) -> Any:
    from docker.types import DeviceRequest, Mount, Ulimit

    limits = wanted.limits
    gpus = DeviceRequest(count=limits.gpus, capabilities=[["gpu"]])
    values: dict[str, Any] = {
        "mounts": [
            Mount(
                target=bind.target,
                source=bind.source,
                type="volume" if bind.volume else "bind",
                read_only=bind.read_only,
                no_copy=bind.volume,
            )
            for bind in wanted.binds
        ],
        "init": wanted.init,
        "shm_size": limits.shm_bytes,
        "ulimits": [
            Ulimit(name=name, soft=value, hard=value) for name, value in limits.ulimits.items()
        ],
        "nano_cpus": round(limits.cpus * 1e9) if limits.cpus else None,
        "mem_limit": limits.memory_bytes,
        "devices": [f"{device}:{device}:rwm" for device in limits.devices],
        "device_requests": [gpus] if limits.gpus else None,
        "cap_add": list(limits.capabilities) or None,
        # Nothing restarts a container of a training job (contract 1.1).
        "restart_policy": {"Name": "no"},
    }
    if wanted.shares_network_of:
        values["network_mode"] = f"container:{wanted.shares_network_of}"
    elif wanted.joined:
        values["network_mode"] = wanted.joined.network
        values["extra_hosts"] = dict(wanted.joined.others)
    else:
        values["network_mode"] = "none"
    return client.create_host_config(**values)


def _networking(client: Any, joined: Joined | None) -> Any:
    if joined is None:
        return None
    endpoint = client.create_endpoint_config(
        aliases=list(joined.aliases), ipv4_address=joined.address
    )
    return client.create_networking_config({joined.network: endpoint})


# --- errors


@contextlib.contextmanager
def _said(doing: str) -> Iterator[None]:
    """What the SDK and its HTTP library raise inside becomes an error of ours that says what was being done."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.NotFound as error:
        text = _text(error)
        if _not_executable(text):
            raise _refused(text) from error
        raise ResourceNotFound(f"cannot {doing}: {text}") from error
    except docker.errors.APIError as error:
        raise _explained(doing, _text(error)) from error
    except (requests.exceptions.RequestException, docker.errors.DockerException, OSError) as error:
        raise EngineGone(
            f"the container engine stopped answering (cannot {doing}: {_first_line(error)})",
            do="See that it runs: docker info. Its log says why it stopped.",
        ) from error


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Undoing something that is undone already is no error."""
    import docker.errors

    try:
        yield
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        text = _text(error)
        if "is not running" in text or "already in progress" in text:
            return
        raise


def _explained(doing: str, text: str) -> HotfireError:
    low = text.lower()
    if _not_executable(text):
        return _refused(text)
    if "no space left on device" in low:
        return ResourceLimitExceeded(
            f"the engine's disk is full (cannot {doing}: {text})",
            do="docker system df shows what uses it; hotfire prune and docker image prune free some.",
        )
    if 'could not select device driver "" with capabilities: [[gpu]]' in low:
        return StartRefused(
            "the engine cannot give GPUs to containers: it has no NVIDIA runtime.",
            do="Install nvidia-container-toolkit on this machine (nvidia-ctk runtime configure), then restart Docker.",
        )
    if "error gathering device information" in low or "no such device" in low:
        return StartRefused(
            f"a device of the container is not on this machine: {text}",
            do="ls /dev/neuron* /dev/nvidia* /dev/infiniband shows what is there.",
        )
    if "start a container" in doing:
        return StartRefused(f"the engine cannot start the container: {text}")
    return PlatformError(f"cannot {doing}: {text}", do="docker info and the engine's log say more.")


_NOT_FOUND = ("executable file not found", "no such file or directory")
_NOT_EXECUTABLE = ("permission denied", "exec format error", "is a directory")


def _not_executable(text: str) -> bool:
    low = text.lower()
    began = "starting container process caused" in low or "oci runtime create failed" in low
    return began and "exec" in low and any(word in low for word in (*_NOT_FOUND, *_NOT_EXECUTABLE))


def _refused(text: str) -> StartRefused:
    found = not any(word in text.lower() for word in _NOT_FOUND)
    return StartRefused(
        f"the container's program cannot be run: {text}",
        do="An image without ENTRYPOINT must have an executable `train` on its PATH (contract 1.1).",
        code=126 if found else 127,
    )


def _text(error: Any) -> str:
    return str(error.explanation or error).strip()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
