"""Reads the disk before anything starts, and refuses here what would fail later: code, paths, space, memory, programs."""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from hotfire.runtime import instances
from hotfire.runtime.channel_parts import closest, nearest_names
from hotfire.runtime.channels import ChannelInput
from hotfire.runtime.devices import Machine
from hotfire.runtime.errors import HotfireError, ResourceLimitExceeded, ValidationError
from hotfire.runtime.plan import Code, CodeKind
from hotfire.runtime.request import decoded
from hotfire.runtime.s3 import S3
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import (
    LocalLocation,
    Locations,
    S3Location,
    human,
    nearest_existing,
)

WORKER_BYTES = 700_000_000
"""Memory of one torch_xla worker before any model (measured: 0.7 GB)."""

MARGIN = 500_000_000
"""Free bytes that a job directory needs beside its downloads: logs, checkpoints, the first model."""

_TORCHRUN = (
    "sagemaker_torch_distributed_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_pytorch_ddp_enabled",
)
_SCAN_LIMIT = 2000
_ARCHIVE_LIMIT = 50_000_000


class Options(Protocol):
    """What the caller chose, as far as it is checked here."""

    @property
    def python(self) -> str: ...

    @property
    def processes_per_host(self) -> int | None: ...


@dataclass(frozen=True)
class Fault:
    what: str
    do: str
    kind: type[HotfireError] = ValidationError


@dataclass(frozen=True, kw_only=True)
class _Check:
    job: TrainingJob
    inputs: Sequence[ChannelInput]
    code: Code
    options: Options
    machine: Machine
    home: Path
    cache: Path
    locations: Locations
    path: str | None
    s3: S3
    notes: list[str] = field(default_factory=list)


def check(
    job: TrainingJob,
    inputs: Sequence[ChannelInput],
    code: Code,
    options: Options,
    machine: Machine,
    home: Path,
    *,
    locations: Locations,
    cache: Path,
    path: str | None = None,
    s3: S3 | None = None,
    in_image: bool = False,
    elsewhere: bool = False,
) -> list[str]:
    """Everything that can be known to fail, all of it in one error; else notes, one line each.

    Args:
        home: where job directories are made; it need not exist yet.
        cache: where downloads go.
        path: PATH of the hosts, for programs they need (default: this process's).
        in_image: the hosts are containers, whose programs are the image's.
        elsewhere: other machines carry the job out: this one's memory and disk do not matter.

    Raises:
        ValidationError: what must be corrected; several faults are listed, one a line.
        ResourceLimitExceeded: nothing is wrong but memory or disk space.
    """
    looked = _Check(
        job=job,
        inputs=inputs,
        code=code,
        options=options,
        machine=machine,
        home=home,
        cache=cache,
        locations=locations,
        path=path,
        s3=s3 or S3(),
    )
    looked.notes.extend(note for one in inputs for note in one.notes)
    programs = () if in_image else (_python, _mpi)
    room = () if elsewhere else (_space, _memory)
    looks = (_code, *programs, _outputs, *room)
    faults = [fault for look in looks for fault in _looked(look, looked)]
    if faults:
        raise joined(faults)
    return looked.notes


def _looked(look: Callable[[_Check], Iterator[Fault]], at: _Check) -> Iterator[Fault]:
    try:
        yield from look(at)
    except OSError as error:
        yield Fault(f"{error.filename}: {error.strerror}", "Check its name and rights.")


def joined(faults: Sequence[Fault]) -> HotfireError:
    """One error for all of them: one fault as it is, several as a list."""
    kinds = {fault.kind for fault in faults}
    kind = kinds.pop() if len(kinds) == 1 else ValidationError
    if len(faults) == 1:
        return kind(faults[0].what, do=faults[0].do)
    lines = [f"  {fault.what} ({fault.do.rstrip('.')})" for fault in faults]
    what = "\n".join([f"{len(faults)} things are wrong:", *lines])
    return kind(what, do="Correct them and run it again; nothing was started.")


# --- code


def _code(look: _Check) -> Iterator[Fault]:
    program = decoded(look.job.hyper_parameters.get("sagemaker_program", '""'))
    address = decoded(look.job.hyper_parameters.get("sagemaker_submit_directory", '""'))
    if not isinstance(program, str) or not isinstance(address, str):
        yield Fault(
            "sagemaker_program and sagemaker_submit_directory must be texts",
            "Send them as JSON strings, as the SageMaker SDK does.",
        )
        return
    source = look.code.source
    if look.code.kind is CodeKind.DIRECTORY and source is not None:
        yield from _directory(source, program)
    elif look.code.kind is CodeKind.ARCHIVE and source is not None:
        yield from _archive(source, program)
    elif address.startswith("s3://"):
        yield from _remote_code(look, address)


def _directory(source: Path, program: str) -> Iterator[Fault]:
    if not source.is_dir():
        what = "is not a directory" if source.exists() else "does not exist"
        yield Fault(f"source directory {source} {what}", nearest_names(source))
        return
    if not program:
        return
    inside = _inside(program)
    if inside is None:
        yield Fault(
            f"script {program} is outside the source directory {source}",
            "Name it relative to the source directory; only that directory reaches the hosts.",
        )
    elif (source / inside).is_dir():
        yield Fault(f"script {program} is a directory in {source}", "Name a file.")
    elif not (source / inside).is_file() and not (source / "setup.py").is_file():
        # With a setup.py the program may be a module of the package that it installs.
        yield Fault(f"script {program} is not in {source}", _did_you_mean(inside, _scripts(source)))


def _inside(program: str) -> str | None:
    """The program's path below the source directory, or None when it leaves it."""
    path = posixpath.normpath(program)
    outside = path.startswith(("/", "../")) or path == ".."
    return None if outside else path


def _scripts(source: Path) -> list[str]:
    """Programs below ``source``, relative to it; large trees are looked through only in part."""
    found = islice(os.walk(source), _SCAN_LIMIT)
    files = (Path(directory, name) for directory, _, names in found for name in names)
    return sorted(
        path.relative_to(source).as_posix()
        for path in islice(files, _SCAN_LIMIT)
        if path.suffix in (".py", ".sh")
    )


def _did_you_mean(program: str, names: Sequence[str]) -> str:
    if not names:
        return "There is no .py or .sh file in it."
    same = [name for name in names if posixpath.basename(name) == posixpath.basename(program)]
    return f"It has: {', '.join(same or closest(program, names))}."


def _archive(source: Path, program: str) -> Iterator[Fault]:
    if not source.is_file():
        yield Fault(f"source archive {source} does not exist", nearest_names(source))
        return
    if source.stat().st_size > _ARCHIVE_LIMIT:
        return
    try:
        with tarfile.open(source, "r:*") as tar:
            names = [posixpath.normpath(one.name) for one in tar if one.isfile()]
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        yield Fault(f"source archive {source} cannot be read: {error}", "Make it with tar czf.")
        return
    inside = _inside(program) if program else ""
    if inside is None or (inside and inside not in names and "setup.py" not in names):
        scripts = [name for name in names if name.endswith((".py", ".sh"))]
        yield Fault(f"script {program} is not in {source}", _did_you_mean(program, scripts))


def _remote_code(look: _Check, address: str) -> Iterator[Fault]:
    location = look.locations.resolve(address)
    if not isinstance(location, S3Location):
        return
    try:
        found = look.s3.objects(location)
    except HotfireError as error:
        yield Fault(error.what, error.do)
        return
    if location.key not in [one.key for one in found]:
        yield Fault(f"source archive {address} does not exist", "Upload it, or correct the key.")


# --- programs


def _python(look: _Check) -> Iterator[Fault]:
    if shutil.which(look.options.python, path=look.path) is None:
        yield Fault(
            f"--python {look.options.python}: no such program",
            "Give the path of a Python 3.11-3.13 interpreter.",
        )


def _mpi(look: _Check) -> Iterator[Fault]:
    if not _asked(look.job, "sagemaker_mpi_enabled"):
        return
    beside = str(Path(look.options.python).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "") if look.path is None else look.path])
    if shutil.which("mpirun", path=path) is None:
        yield Fault(
            "the job asks for MPI and there is no mpirun on PATH",
            "Install Open MPI (apt install openmpi-bin), or use --distribution torch_distributed.",
        )


def _asked(job: TrainingJob, name: str) -> bool:
    return str(decoded(job.hyper_parameters.get(name, "false"))).lower() == "true"


# --- outputs


def _outputs(look: _Check) -> Iterator[Fault]:
    config = look.job.output_data_config
    yield from _output(look, "S3OutputPath", config.s3_output_path)
    if look.job.checkpoint_config is not None:
        yield from _output(look, "CheckpointConfig.S3Uri", look.job.checkpoint_config.s3_uri)


def _output(look: _Check, name: str, uri: str) -> Iterator[Fault]:
    try:
        location = look.locations.resolve(uri)
        if isinstance(location, S3Location):
            look.s3.check_bucket(location)
    except HotfireError as error:
        yield Fault(f"{name}: {error.what}", error.do)
        return
    if isinstance(location, LocalLocation) and (why := unwritable(location.path)):
        yield Fault(f"{name}: {why}", "Choose another directory, or change its rights.")


def unwritable(directory: Path) -> str:
    """Why nothing can be written in ``directory``, which need not exist yet; empty when something can."""
    existing = nearest_existing(directory)
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written"
    return ""


# --- disk and memory


def _space(look: _Check) -> Iterator[Fault]:
    if why := unwritable(look.home):
        yield Fault(f"job directory: {why}", "Set HOTFIRE_HOME to a directory of yours.")
        return
    fetched = sum(one.to_download() for one in look.inputs)
    cache, home = nearest_existing(look.cache), nearest_existing(look.home)
    if cache.stat().st_dev == home.stat().st_dev:
        yield from _room(home, fetched + MARGIN, "HOTFIRE_HOME")
        return
    # Hard links do not reach over file systems: then every channel from S3 lies in both.
    if fetched:
        yield from _room(cache, fetched, "HOTFIRE_CACHE")
    yield from _room(home, fetched + MARGIN, "HOTFIRE_HOME")


def _room(directory: Path, needed: int, variable: str) -> Iterator[Fault]:
    free = shutil.disk_usage(directory).free
    if free < needed:
        yield Fault(
            f"{directory} has {human(free)} free and the job needs {human(needed)}",
            f"Free space (hotfire delete --older-than 7d), or set {variable} to another disk.",
            ResourceLimitExceeded,
        )


def workers(job: TrainingJob, options: Options, machine: Machine) -> int:
    """Worker processes of the whole job under torchrun; 0 when it was not asked for."""
    per_host = options.processes_per_host
    if per_host is None and not any(_asked(job, name) for name in _TORCHRUN):
        return 0
    return sum(
        len(group.hosts) * (per_host or _devices(group.instance_type, machine))
        for group in job.resource_config.instance_groups
    )


def _devices(instance_type: str, machine: Machine) -> int:
    if instance_type == instances.LOCAL:
        return machine.workers
    known = instances.table().get(instance_type)
    return (known.devices if known else None) or 1


def _memory(look: _Check) -> Iterator[Fault]:
    count = workers(look.job, look.options, look.machine)
    needed = count * WORKER_BYTES
    has = look.machine.memory
    text = f"{count} workers take about {human(needed)} before any model"
    if needed > has:
        hosts = len(look.job.resource_config.hosts)
        fitting = max(1, has // WORKER_BYTES // hosts)
        yield Fault(
            f"{text}, and this machine has {human(has)}",
            f"Try --processes-per-host {fitting}"
            + (" and fewer hosts." if fitting * hosts * WORKER_BYTES > has else "."),
            ResourceLimitExceeded,
        )
    elif needed > look.machine.memory_free:
        look.notes.append(f"{text}; {human(look.machine.memory_free)} are free now")
