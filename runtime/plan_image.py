"""What a host's plan says when the host is a container of an image: command line, variables, devices, limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hotfire.runtime import instances, spec
from hotfire.runtime.backend import Mount, MountMode, Resources

TOOLS = PurePosixPath("/run/hotfire/bin")
"""Where stand-ins for the tools of emulated devices are mounted."""
TRAIN = ("train",)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GIB = 1 << 30
ULIMITS = {"nofile": 1_048_576, "memlock": -1}
"""Not documented by the service (contract 1.3); too small ones are what fails for no visible reason."""

# Of the platform's variables, what the engine sets itself or what stands for things that containers have anyway: names
# that resolve, a port space of their own.
_NOT_IN_CONTAINERS = (
    "HOME",
    "PWD",
    "HOSTNAME",
    "HOTFIRE_HOSTS",
    "HOTFIRE_MASTER_PORT",
    "HOTFIRE_CACHE",
)


@dataclass(frozen=True, kw_only=True)
class Image:
    """The image of all hosts, and what this machine can give them. Bytes."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    memory: int = 0
    """Of this machine."""
    cpus: int = 0
    shm_bytes: int | None = None
    """None: half of the memory (contract 1.3)."""
    gpus: int = 0
    """Of this machine."""
    nodes: tuple[str, ...] = ()
    """Device nodes of this machine for Neuron and EFA."""
    limits: bool = False
    """CPUs and memory no more than the instance type has."""


def command(
    algorithm: spec.AlgorithmSpecification,
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The entry point (None: the image's) and its arguments: the four rows of contract 1.1."""
    entrypoint, arguments = algorithm.container_entrypoint, algorithm.container_arguments
    if entrypoint:
        # The image's CMD goes with its ENTRYPOINT, as in `docker run --entrypoint`.
        return entrypoint[:1], (*entrypoint[1:], *arguments)
    return None, arguments or TRAIN


def environment(
    image: Image, asked: Mapping[str, str], platform: Mapping[str, str], *, tools: bool
) -> dict[str, str]:
    """What is added to the image's ENV: image < Environment < platform (contract 1.2)."""
    kept = {key: value for key, value in platform.items() if key not in _NOT_IN_CONTAINERS}
    env = {**asked, **kept}
    if tools:
        path = env.get("PATH") or image.environment.get("PATH") or _DEFAULT_PATH
        env["PATH"] = f"{TOOLS}:{path}"
    return env


def tool_mounts(directory: Path, *, tools: bool) -> tuple[Mount, ...]:
    return (Mount(source=directory, target=TOOLS, mode=MountMode.READ_ONLY),) if tools else ()


def resources(image: Image, instance: instances.Instance, *, emulated: bool) -> Resources:
    """Devices of the instance type, or of this machine for ``local``; none where they are emulated."""
    gpus, nodes = (0, ()) if emulated else _devices(image, instance)
    cpus, memory = _limits(image, instance)
    return Resources(
        shm_bytes=image.shm_bytes or min(image.memory, memory or image.memory) // 2 or None,
        cpus=cpus,
        memory_bytes=memory,
        ulimits=ULIMITS,
        gpus=gpus,
        devices=nodes,
        # Neuron and EFA pin memory.
        capabilities=("IPC_LOCK",) if nodes else (),
    )


def _devices(image: Image, instance: instances.Instance) -> tuple[int, tuple[str, ...]]:
    if instance.name == instances.LOCAL:
        return (-1 if image.gpus else 0), image.nodes
    neuron = tuple(f"/dev/neuron{number}" for number in range(instance.neuron_chips or 0))
    others = tuple(node for node in image.nodes if "neuron" not in node) if instance.efa else ()
    return instance.gpus or 0, neuron + others


def _limits(image: Image, instance: instances.Instance) -> tuple[float | None, int | None]:
    """An engine refuses more CPUs than there are; a limit beyond this machine limits nothing."""
    if not image.limits:
        return None, None
    cpus = instance.vcpu if instance.vcpu and instance.vcpu < image.cpus else None
    memory = (instance.memory_gib or 0) * _GIB
    return cpus, memory if 0 < memory < image.memory else None


def beyond(image: Image, instance: instances.Instance) -> str:
    """What ``limits`` cannot hold back here because this machine is smaller than the type; empty when nothing."""
    has = f"{image.cpus} CPUs and {image.memory / _GIB:.0f} GiB"
    vcpu, gib = instance.vcpu, instance.memory_gib
    if vcpu is None or gib is None:
        return f"nothing is known of the CPUs and memory of {instance.name}: no limits are set"
    if vcpu > image.cpus or gib * _GIB > image.memory:
        return f"{instance.name} has {vcpu} CPUs and {gib} GiB, this machine {has}: no limit is set beyond that"
    return ""


def device_nodes(dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Neuron chips in the order of their numbers, then EFA's verbs devices. Reads the directory."""
    found = [*dev.glob("neuron[0-9]*"), *dev.glob("infiniband/uverbs[0-9]*")]

    def key(path: Path) -> tuple[str, int]:
        digits = path.name.lstrip("abcdefghijklmnopqrstuvwxyz")
        return path.name.removesuffix(digits), int(digits)

    nodes = [path for path in found if path.name.lstrip("abcdefghijklmnopqrstuvwxyz").isdecimal()]
    return tuple(str(path) for path in sorted(nodes, key=key))
