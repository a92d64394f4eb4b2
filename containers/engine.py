"""A container engine over its socket: images, networks, volumes, containers. The docker SDK is its client.

Thin on purpose: every call is one request, takes and returns values, and turns the engine's errors into ours.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hotfire.containers import creation
from hotfire.containers.address import SECONDS, address, hard_limits, listener
from hotfire.containers.output import Output
from hotfire.containers.trouble import EngineGone, first_line, said, unless_gone
from hotfire.containers.values import Creation, Image, Owned, State
from hotfire.runtime.errors import HotfireError, ResourceNotFound, ValidationError


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
    daemon = listener(path)
    # Imported here, as everything of the SDK: 0.1 s that only jobs in containers spend.
    import docker
    from docker.errors import DockerException

    try:
        # Eight hosts wait and write at the same time, each on a connection of its own.
        client = docker.APIClient(
            base_url=where, version="auto", timeout=SECONDS, max_pool_size=128
        )
        engine = Engine(client, path, daemon)
    except DockerException as error:
        raise ValidationError(
            f"the container engine at {path} does not answer as Docker does: {first_line(error)}",
            do="Docker 20.10 or newer is needed.",
        ) from error
    if engine.podman:
        engine.close()
        raise ValidationError(
            f"{path} is Podman's: hotfire needs Docker's engine (its overlay volumes and network aliases differ).",
            do="Start Docker, rootless if you like, and point DOCKER_HOST at its socket.",
        )
    return engine


class Engine:
    """A connection to an engine; every method may be called from any thread."""

    def __init__(self, client: Any, path: str, daemon: int = 0) -> None:
        """``daemon``: the engine's process id on this machine, 0 where it is not known."""
        self._client = client
        self.path = path
        self.hard_limits = hard_limits(daemon) if daemon else {}
        with said("ask the engine what it is"):
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
            with said(f"look at image {name}"):
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
        with said(f"name {image} {repository}:{tag}"):
            self._client.tag(image, repository, tag)

    def push(
        self, repository: str, tag: str, credentials: Mapping[str, str] | None
    ) -> Iterator[dict[str, Any]]:
        """The engine's progress lines. Errors are lines too: see :mod:`hotfire.containers.registry`."""
        with said(f"push {repository}:{tag}"):
            # An explicit (even empty) configuration, so that nothing is looked up or kept in ~/.docker.
            yield from self._client.push(
                repository,
                tag=tag,
                stream=True,
                decode=True,
                auth_config=dict(credentials) if credentials else None,
            )

    def remove_image(self, name: str) -> None:
        with said(f"remove image {name}"), unless_gone():
            self._client.remove_image(name, force=True)

    # --- networks

    def subnets(self) -> list[str]:
        """The subnets of all networks of the engine, as ``a.b.c.d/n``."""
        with said("list networks"):
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
            with said(f"make network {name}"):
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
        with said(f"remove network {network}"), unless_gone():
            self._client.remove_network(network)

    # --- volumes

    def create_overlay(
        self, name: str, *, lower: str, upper: str, work: str, labels: Mapping[str, str]
    ) -> None:
        """A volume that shows ``lower`` and keeps what is written in ``upper``; mounted while a container runs.

        No path may hold a comma, a colon or a backslash, which separate mount options.
        """
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        with said(f"make volume {name}"):
            self._client.create_volume(
                name,
                driver="local",
                driver_opts={"type": "overlay", "device": "overlay", "o": options},
                labels=dict(labels),
            )

    def remove_volume(self, name: str) -> None:
        with said(f"remove volume {name}"), unless_gone():
            self._client.remove_volume(name, force=True)

    # --- containers

    def create(self, wanted: Creation) -> str:
        """Make a container, not yet running; its id.

        Raises:
            ResourceNotFound: the image is not here.
        """
        client = self._client
        with said(f"create container {wanted.name}"):
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
                host_config=creation.host_config(client, wanted),
                networking_config=creation.networking(client, wanted.joined),
                stop_timeout=wanted.stop_seconds,
            )
        return str(made["Id"])

    def attach(self, container: str) -> Output:
        """Everything the container writes from now on; the connection is there when this returns."""
        with said("read a container's output"):
            return Output(self.path, self._client._version, container)

    def start(self, container: str) -> None:
        """Start a created container.

        Raises:
            StartRefused: its program or something that it needs is not there.
        """
        with said("start a container"):
            self._client.start(container)

    def wait(self, container: str) -> int:
        """Block until the container has ended; its exit code.

        Raises:
            EngineGone: the engine went away meanwhile.
        """
        with said("wait for a container"):
            answer = self._client.wait(container, timeout=None)
        if answer.get("Error"):
            raise EngineGone(f"the engine stopped waiting: {answer['Error']}")
        return int(answer["StatusCode"])

    def state(self, container: str) -> State | None:
        """How the container is; None if there is none."""
        try:
            with said("look at a container"):
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
        with said("signal a container"), unless_gone():
            self._client.kill(container, signal=int(number))

    def remove_container(self, container: str) -> None:
        """Kill it if it runs, and remove it with its anonymous volumes."""
        with said("remove a container"), unless_gone():
            self._client.remove_container(container, force=True, v=True)

    # --- what is ours

    def owned(self, label: str) -> list[Owned]:
        """Containers, then networks, then volumes that carry ``label``: ``name`` or ``name=value``."""
        filters = {"label": [label]}
        with said("list what carries hotfire's label"):
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
