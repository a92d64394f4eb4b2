"""A job, where its hosts will live and what the caller chose become one :class:`HostPlan` per host. Pure.

The files are those of contract 2.2 to 2.5, the environment that of contract 1.2, the command line that of contract 1.1.
Nothing here holds credentials; what the caller passes on by value is added when a host is started.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from hotfire.runtime import config_files, instances, plan_image, spec
from hotfire.runtime.backend import ContainerSpec, Mount, MountMode, Place
from hotfire.runtime.layout import ML_ROOT, HostDir, MlTree
from hotfire.runtime.request import decoded

SUBMIT_DIRECTORY = config_files.SUBMIT_DIRECTORY
TRAIN = ("-m", "hotfire.entrypoints.train", "train")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MASTER_PORT = 7777
"""The training toolkit's (contract 4.4)."""


class Devices(StrEnum):
    EMULATED = "emulated"
    """Stand-ins answer for the devices of the instance type; computing happens on the CPU."""
    REAL = "real"


class CodeKind(StrEnum):
    NONE = "none"
    """Nothing to mount: no code, or code that the container side fetches or has."""
    DIRECTORY = "directory"
    """Mounted copy-on-write as /opt/ml/code."""
    ARCHIVE = "archive"
    """A tar.gz, mounted read-only as /opt/ml/input/code/sourcedir.tar.gz."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """How the submit directory of the request reaches the hosts."""

    kind: CodeKind = CodeKind.NONE
    source: Path | None = None
    """Directory or archive on this machine; None for :attr:`CodeKind.NONE`."""

    def target(self, ml_root: PurePosixPath) -> PurePosixPath:
        if self.kind is CodeKind.DIRECTORY:
            return ml_root / "code"
        return ml_root / "input" / "code" / "sourcedir.tar.gz"

    def mounts(self, ml_root: PurePosixPath) -> tuple[Mount, ...]:
        if self.source is None:
            return ()
        directory = self.kind is CodeKind.DIRECTORY
        mode = MountMode.COPY_ON_WRITE if directory else MountMode.READ_ONLY
        return (Mount(source=self.source, target=self.target(ml_root), mode=mode),)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the caller chose and found, for all hosts of an attempt."""

    python: str
    """Absolute path of the interpreter that runs ``train``."""
    base_env: Mapping[str, str] = field(default_factory=dict)
    """In the place of an image's ENV: PATH, LANG and whatever else the caller takes over."""
    master_port: int = MASTER_PORT
    processes_per_host: int | None = None
    grace: float = 120.0
    """Seconds between SIGTERM and SIGKILL."""
    devices: Devices | None = None
    """None: emulated for an ml.* type, real for ``local``."""
    pythonpath: tuple[Path, ...] = ()
    """Directories that ``python`` needs to find hotfire; empty when it has it."""
    cache: Path | None = None
    """This machine's cache, which ``train`` may share between jobs."""
    shims: str = ""
    """HOTFIRE_SHIMS: which shims of the XLA side to leave out, e.g. ``-compat,-guard``."""
    topology: bool = True
    """Write ``"topology": null`` into resourceconfig.json, as since late 2025 (contract 2.4)."""
    write_init_config: bool = False
    """Write the agent's own files of 2020 to 2022 as well (contract 2.1, open question 17)."""
    platform_env: Mapping[str, str] = field(default_factory=dict)
    """Further variables from the platform that are no secrets; they win over the request's."""
    image: plan_image.Image | None = None
    """Hosts are containers of this image; None: processes of this machine, started by ``python``."""


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """One host, complete: ``files`` are below its /opt/ml, ``executables`` in its ``bin``."""

    spec: ContainerSpec
    files: Mapping[str, str] = field(default_factory=dict)
    executables: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()
    """To exist, empty, before the host starts (contract 2.1)."""


def code_of(job: spec.TrainingJob, locations: Any = None) -> Code:
    """How the code that ``job`` names gets into its hosts.

    Args:
        locations: a :class:`hotfire.runtime.storage.Locations`, whose maps may lead an s3:// archive to a file.

    Raises:
        ValidationError: a ``file://`` address without an absolute path.
    """
    address = decoded(job.hyper_parameters.get(SUBMIT_DIRECTORY, '""'))
    if not isinstance(address, str) or not address.startswith(("file://", "s3://")):
        return Code()
    # Imported here: reading a plan back needs no storage.
    from hotfire.runtime.storage import LocalLocation, Locations

    found = (locations or Locations()).resolve(address)
    if not isinstance(found, LocalLocation):
        return Code()
    archive = found.path.name.endswith((".tar.gz", ".tgz"))
    return Code(kind=CodeKind.ARCHIVE if archive else CodeKind.DIRECTORY, source=found.path)


def plan(
    job: spec.TrainingJob,
    setting: Setting,
    places: Mapping[str, Place],
    dirs: Mapping[str, HostDir],
    mounts: Mapping[str, tuple[Mount, ...]],
    code: Code,
    manifests: Mapping[str, str] | None = None,
) -> tuple[HostPlan, ...]:
    """The plan of every host, in the order of resourceconfig.json.

    Args:
        mounts: the channels' mounts, by host.
        manifests: text of ``<channel>-manifest`` by channel (contract 3.5).
    """
    addresses = {host: places[host].address for host in job.resource_config.hosts}
    return tuple(
        _host(
            _Host(job=job, setting=setting, place=places[host], dir=dirs[host], code=code),
            addresses,
            mounts.get(host, ()),
            manifests or {},
        )
        for host in job.resource_config.hosts
    )


@dataclass(frozen=True, kw_only=True)
class _Host:
    """What the parts of one host's plan are made from."""

    job: spec.TrainingJob
    setting: Setting
    place: Place
    dir: HostDir
    code: Code

    @property
    def name(self) -> str:
        return self.place.host

    @property
    def instance(self) -> instances.Instance:
        kind = self.job.resource_config.group_of(self.name).instance_type
        known = instances.table().get(kind)
        return known or instances.lookup(kind, self.setting.cache)

    @property
    def emulated(self) -> bool:
        if self.setting.devices is None:
            return self.instance.name != instances.LOCAL
        return self.setting.devices is Devices.EMULATED

    @property
    def view(self) -> config_files.HostView:
        code = str(self.code.target(self.place.ml_root)) if self.code.source else None
        return config_files.HostView(job=self.job, place=self.place, submit_directory=code)


def _files(host: _Host, manifests: Mapping[str, str]) -> dict[str, str]:
    setting, view = host.setting, host.view
    files = config_files.config(view, topology=setting.topology)
    if setting.write_init_config:
        files |= config_files.agent_config(view)
    for channel in view.channels():
        if (text := manifests.get(channel.channel_name)) is not None:
            files[f"input/data/{channel.channel_name}-manifest"] = text
    return files


def _host(
    host: _Host,
    addresses: Mapping[str, str],
    mounts: tuple[Mount, ...],
    manifests: Mapping[str, str],
) -> HostPlan:
    name = hostname(host.job.training_job_name, host.name, host.job.region)
    executables = instances.stand_ins(host.instance) if host.emulated else {}
    container = ContainerSpec(
        job=host.job.training_job_name,
        host=host.name,
        hostname=name,
        argv=_argv(host),
        env=_environment(host, name, addresses),
        dir=host.dir,
        place=host.place,
        mounts=(*mounts, *host.code.mounts(host.place.ml_root)),
    )
    if host.setting.image is not None:
        container = _in_image(host, container, host.setting.image, tools=bool(executables))
    return HostPlan(
        spec=container,
        files=_files(host, manifests),
        executables=executables,
        directories=_directories(host),
    )


def _in_image(
    host: _Host, process: ContainerSpec, image: plan_image.Image, *, tools: bool
) -> ContainerSpec:
    """The same host as a container, which brings programs, variables and a network of its own."""
    setting, job = host.setting, host.job
    entrypoint, argv = plan_image.command(job.algorithm_specification)
    platform = {**_platform(host, process.hostname, {}), **setting.platform_env}
    return replace(
        process,
        image=image.name,
        entrypoint=entrypoint,
        argv=argv,
        env=plan_image.environment(image, job.environment, platform, tools=tools),
        mounts=(*process.mounts, *plan_image.tool_mounts(host.dir.bin, tools=tools)),
        resources=plan_image.resources(image, host.instance, emulated=host.emulated),
    )


def hostname(job: str, host: str, region: str) -> str:
    """``ip-10-a-b-c.ec2.internal``: made from the job's name, different for each host (contract 1.2)."""
    start = int.from_bytes(hashlib.sha256(job.encode()).digest()[:3])
    number = (start + int(host.rpartition("-")[2])) % 2**24
    a, b, c = number.to_bytes(3)
    domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
    return f"ip-10-{a}-{b}-{c}.{domain}"


def _argv(host: _Host) -> tuple[str, ...]:
    """Contract 1.1, with ``train`` in the place of the image's ENTRYPOINT. Arguments alone, which are for an entry point
    that only the image has, were refused with the request."""
    algorithm = host.job.algorithm_specification
    if not algorithm.container_entrypoint:
        return (host.setting.python, *TRAIN)
    words = (*algorithm.container_entrypoint, *algorithm.container_arguments)
    return tuple(map(host.view.relocated, words))


# --- environment -------------------------------------------------------------------------------


def _environment(host: _Host, name: str, addresses: Mapping[str, str]) -> dict[str, str]:
    """Image < Environment < platform, for the platform's own names (contract 1.2)."""
    setting = host.setting
    env = {
        "PATH": DEFAULT_PATH,
        "TMPDIR": str(_temporary(host.dir)),
        "PYTHONUNBUFFERED": "1",
        **setting.base_env,
        **{key: host.view.relocated(value) for key, value in host.job.environment.items()},
        **_platform(host, name, addresses),
        **setting.platform_env,
    }
    own = (str(host.dir.bin), str(Path(setting.python).parent))
    env["PATH"] = ":".join([*own, env["PATH"]])
    if setting.pythonpath:
        paths = [str(path) for path in setting.pythonpath]
        env["PYTHONPATH"] = ":".join([*paths, *filter(None, [env.get("PYTHONPATH")])])
    return env


def _platform(host: _Host, name: str, addresses: Mapping[str, str]) -> dict[str, str]:
    job, setting = host.job, host.setting
    env = {
        "TRAINING_JOB_NAME": job.training_job_name,
        "TRAINING_JOB_ARN": job.training_job_arn,
        "AWS_REGION": job.region,
        "AWS_EXECUTION_ENV": "AWS_ECS_EC2",
        "DMLC_INTERFACE": host.place.network_interface,
        "HOSTNAME": name,
        "HOME": str(host.dir.home),
        "PWD": "/",
        "HOTFIRE_HOSTS": config_files.compact(addresses),
        "HOTFIRE_MASTER_PORT": str(setting.master_port),
        "HOTFIRE_GRACE": f"{setting.grace:g}",
    }
    if setting.processes_per_host is not None:
        env["HOTFIRE_PROCESSES_PER_HOST"] = str(setting.processes_per_host)
    if setting.cache is not None:
        env["HOTFIRE_CACHE"] = str(setting.cache)
    if setting.shims:
        env["HOTFIRE_SHIMS"] = setting.shims
    if host.emulated:
        env["HOTFIRE_DEVICE"] = "cpu"
        # As on the service's hosts without GPU: there is none to see, whatever this machine has.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    if host.place.ml_root != ML_ROOT:
        env["SAGEMAKER_BASE_DIR"] = str(host.place.ml_root)
    if job.request.get("AlgorithmSpecification", {}).get("EnableSageMakerMetricsTimeSeries"):
        tree = host.place.ml_root / "output" / "metrics" / "sagemaker"
        env["SAGEMAKER_METRICS_DIRECTORY"] = str(tree)
    return env


def _temporary(directory: HostDir) -> Path:
    return directory.scratch / "tmp"


# --- directories -------------------------------------------------------------------------------


def _directories(host: _Host) -> tuple[Path, ...]:
    tree = host.dir.ml
    wanted: list[Path | None] = [
        *tree.directories(),
        host.dir.home,
        host.dir.bin,
        _temporary(host.dir),
    ]
    if host.job.checkpoint_config:
        wanted.append(_outside(tree, host.job.checkpoint_config.local_path))
    request = host.job.request
    for member, default in (
        ("DebugHookConfig", "/opt/ml/output/tensors"),
        ("TensorBoardOutputConfig", "/opt/ml/output/tensorboard"),
    ):
        if given := request.get(member):
            wanted.append(_outside(tree, given.get("LocalPath") or default))
    return tuple(path for path in wanted if path is not None)


def _outside(tree: MlTree, path: str) -> Path | None:
    """Where a path below /opt/ml lies on this machine; None for one that is elsewhere in the container."""
    inside = PurePosixPath(path)
    return tree.root / inside.relative_to(ML_ROOT) if inside.is_relative_to(ML_ROOT) else None
