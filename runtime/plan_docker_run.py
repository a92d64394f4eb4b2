"""A plan as shell lines for a bare host with Docker: ``hotfire run --dry-run --as docker-run``. Pure.

The lines stand for themselves: they write the config files and start the image, with devices and EFA, and need neither
hotfire nor this machine. Values that look like secrets are not printed; the line takes them from the shell it runs in.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from hotfire.runtime.backend import ContainerSpec, Mount, MountMode
from hotfire.runtime.layout import ML_ROOT
from hotfire.runtime.masking import MASK, is_secret, masked_mapping, masked_text
from hotfire.runtime.plan import HostPlan
from hotfire.runtime.plan_image import TOOLS

_EFA = '$(for d in /dev/infiniband/uverbs*; do [ -e "$d" ] && printf " --device=%s" "$d"; done)'
_NEURON = '$(for d in /dev/neuron[0-9]*; do [ -e "$d" ] && printf " --device=%s" "$d"; done)'
_OMITTED = ("NVIDIA_VISIBLE_DEVICES", "HOTFIRE_DEVICE", "PATH")
"""They speak of emulated devices; a bare host has real ones."""


def script(plans: Sequence[HostPlan], *, gpus: bool, neuron: bool, efa: bool) -> str:
    """One block of lines for each host, to be pasted there.

    Args:
        gpus, neuron, efa: whether the instance type has them. Neuron and EFA nodes are found where the lines run.
    """
    hosts = [plan.spec.host for plan in plans]
    parts = []
    for plan in plans:
        lines = [*_introduction(plan, hosts), *_files(plan), *_run(plan, hosts, gpus, neuron, efa)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _introduction(plan: HostPlan, hosts: Sequence[str]) -> Iterator[str]:
    yield f"# {plan.spec.host}, one of {len(hosts)}: {plan.spec.job}"
    if len(hosts) > 1:
        names = ", ".join(_address(host).strip('"') for host in hosts)
        yield f"# Set {names} to the hosts' private IP addresses first, on every host."
    for mount in plan.spec.mounts:
        if mount.target != TOOLS:
            yield f"# {mount.target} is {_here(mount)} here: bring {mount.source} there."


def _address(host: str) -> str:
    """``"$ALGO_1"``: the shell variable that holds a host's address."""
    return f'"${host.upper().replace("-", "_")}"'


def _files(plan: HostPlan) -> Iterator[str]:
    folders = {"model", "output/data", "input/data"}
    folders |= {str(PurePosixPath(name).parent) for name in plan.files}
    folders |= {_beside(mount) for mount in plan.spec.mounts if mount.target != TOOLS}
    yield "mkdir -p " + " ".join(shlex.quote(f"ml/{name}") for name in sorted(folders))
    for name, text in plan.files.items():
        shown = _shown(name, text)
        if shown != text:
            yield f"# What {MASK} stands for in the next line is a secret: put it in."
        yield f"printf %s {shlex.quote(shown)} > {shlex.quote(f'ml/{name}')}"


def _shown(name: str, text: str) -> str:
    if name != "input/config/hyperparameters.json":
        return masked_text(text)
    values = json.loads(text)
    hidden = masked_mapping(values)
    return text if hidden == values else json.dumps(hidden, separators=(",", ":"))


def _beside(mount: Mount) -> str:
    """The folder below ./ml in which a mount's files are expected."""
    relative = _relative(mount)
    return (
        relative
        if mount.source.is_dir() or not PurePosixPath(relative).suffix
        else str(PurePosixPath(relative).parent)
    )


def _relative(mount: Mount) -> str:
    if mount.target.is_relative_to(ML_ROOT):
        return str(mount.target.relative_to(ML_ROOT))
    return str(mount.target).lstrip("/")


def _here(mount: Mount) -> str:
    return f"./ml/{_relative(mount)}"


def _run(
    plan: HostPlan, hosts: Sequence[str], gpus: bool, neuron: bool, efa: bool
) -> Iterator[str]:
    spec = plan.spec
    words = ["docker run --rm --init --stop-timeout 120", *_limits(spec)]
    if len(hosts) > 1:
        # The hosts are machines: their own network is the job's, and EFA needs it.
        words.append("--network host")
        words += [f"--add-host {host}:{_address(host)}" for host in hosts]
    if gpus:
        words.append("--gpus all")
    if neuron:
        words.append(_NEURON)
    if efa:
        words.append(_EFA)
    if neuron or efa:
        words.append("--cap-add IPC_LOCK")
    for name, value in spec.env.items():
        if name in _OMITTED:
            continue
        hidden = is_secret(name) or masked_text(value) != value
        words.append(f"-e {name}" if hidden else f"-e {shlex.quote(f'{name}={value}')}")
    words += _mounts(spec)
    if spec.entrypoint is not None:
        words.append(f"--entrypoint {shlex.quote(spec.entrypoint[0])}")
    arguments = [shlex.quote(word) for word in (*(spec.entrypoint or ())[1:], *spec.argv)]
    words.append(" ".join([shlex.quote(spec.image), *arguments]))
    yield " \\\n  ".join(words)


def _limits(spec: ContainerSpec) -> Iterator[str]:
    given = spec.resources
    if given.shm_bytes:
        yield f"--shm-size {given.shm_bytes >> 20}m"
    for name, value in given.ulimits.items():
        yield f"--ulimit {name}={value}"
    if given.cpus:
        yield f"--cpus {given.cpus:g}"
    if given.memory_bytes:
        yield f"--memory {given.memory_bytes >> 20}m"


def _mounts(spec: ContainerSpec) -> Iterator[str]:
    """Never over /opt/ml itself: images bring code in /opt/ml/code (contract 1.4)."""
    for name in ("input", "model", "output"):
        yield f'-v "$PWD/ml/{name}:{ML_ROOT}/{name}"'
    for mount in spec.mounts:
        inside = mount.target.is_relative_to(ML_ROOT / "input")
        if mount.target != TOOLS and not inside:
            end = ":ro" if mount.mode is MountMode.READ_ONLY else ""
            yield f'-v "$PWD/ml/{_relative(mount)}:{mount.target}{end}"'
