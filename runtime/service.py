"""Training jobs as calls: create, describe, list, stop, delete. Values in, values out; errors are modelled.

The command line, the Python API and the HTTP endpoint are adapters over this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hotfire.runtime import (
    advice,
    artifacts,
    channels,
    control,
    credentials,
    devices,
    flags,
    hostenv,
    instances,
    masking,
    plan,
    plan_image,
    plan_view,
    preflight,
    request,
    runner,
    supervisor,
    training_env,
)
from hotfire.runtime.backend import Backend, Place
from hotfire.runtime.control import Interruption, Trigger
from hotfire.runtime.data_settings import DataSettings
from hotfire.runtime.errors import (
    ExitCode,
    PlatformError,
    ResourceInUse,
    ResourceNotFound,
    UnsupportedError,
    ValidationError,
)
from hotfire.runtime.events import Event, Note, Observer, ignore
from hotfire.runtime.layout import HostDir, JobDir, cache_home, hotfire_home
from hotfire.runtime.observe import patterns
from hotfire.runtime.observe.logs import LogPump
from hotfire.runtime.observe.samples import Usage, read_samples, summary_of, tree_bytes
from hotfire.runtime.refusals import check_without_image
from hotfire.runtime.rehearse import Rehearsal, play
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.status import JobRecord, SecondaryStatus, TrainingJobStatus, utc_now
from hotfire.runtime.storage import Locations
from hotfire.runtime.store import JobLock, Store, read_record, write_record

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


def remove_containers(job_dir: JobDir, environ: Mapping[str, str]) -> None:
    """Containers run on when their supervisor is killed: remove a job's, and note which they were."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(job_dir.options.read_text(encoding="utf-8")).get("backend") != "docker":
            return
        from hotfire.runtime.backends import docker_orphans

        found = docker_orphans.sweep(job_dir.root, environ)
        with job_dir.notes.open("a", encoding="utf-8") as out:
            for one in found:
                if one.kind == "container":
                    out.write(f"removed the container {one.name}, which the supervisor had left\n")


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


def devices_of(job: TrainingJob, machine: devices.Machine) -> plan.Devices | None:
    """Real where this machine has the accelerators of every instance type that the job asks for; else by the type."""
    for group in job.resource_config.instance_groups:
        wanted = instances.table().get(group.instance_type)
        if wanted is None or not wanted.devices:
            return None
        if (wanted.neuron_cores or 0) > machine.neuron_cores:
            return None
        if (wanted.gpus or 0) > len(machine.gpus):
            return None
    # Several hosts on one machine would share its devices: they are told apart by emulation alone.
    return plan.Devices.REAL if len(job.resource_config.hosts) == 1 else None


def script_of(job: TrainingJob, code: plan.Code) -> str | None:
    """The text of the job's script, where it is a file of this machine."""
    program = request.decoded(job.hyper_parameters.get("sagemaker_program", '""'))
    if code.kind is not plan.CodeKind.DIRECTORY or code.source is None or not program:
        return None
    try:
        return (code.source / str(program)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def versions_of(python: str) -> dict[str, str]:
    """Versions of the frameworks in the job's interpreter; nothing for an interpreter that is not our own."""
    if python != sys.executable:
        return {}
    import importlib.metadata

    found = {}
    for name in ("torch", "transformers", "datasets", "accelerate"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def package_view(cache: Path) -> Path:
    """A directory that holds the package ``hotfire`` and nothing else, for an interpreter that lacks it.

    Links to where the running hotfire is; its own site-packages must not reach the job's interpreter.
    """
    parts: dict[str, Path] = {}
    for name in ("containers", "entrypoints", "runtime"):
        found = importlib.util.find_spec(f"hotfire.{name}")
        assert found is not None and found.submodule_search_locations
        parts[name] = Path(found.submodule_search_locations[0]).resolve()
    key = hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:12]
    view = cache / "view" / key
    for name, source in parts.items():
        link = view / "hotfire" / name
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(source)
    return view


def make_backend(name: str, environ: Mapping[str, str]) -> Backend:
    """The backend of that name.

    Raises:
        UnsupportedError: there is none.
    """
    if name == "process":
        from hotfire.runtime.backends.process import ProcessBackend

        return ProcessBackend()
    if name == "docker":
        from hotfire.runtime.backends.docker import DockerBackend

        return DockerBackend(environ=environ)
    raise UnsupportedError(f"there is no backend {name!r}.", do="Use --backend process or docker.")


def image_of(
    job: TrainingJob,
    options: Options,
    around: Surroundings,
    observer: Observer,
    *,
    must_exist: bool,
) -> plan_image.Image | None:
    """The image that the job's hosts run; None where they are processes of this machine."""
    if options.backend != "docker":
        return None
    from hotfire.runtime.backends import docker_image

    wishes = docker_image.Wishes(
        shm_bytes=options.shm_bytes, limits=options.limits, must_exist=must_exist
    )
    return docker_image.choose(job, around.environ, wishes, observer)


def data_settings(
    options: Options, around: Surroundings, *, thorough: bool = False
) -> DataSettings:
    """What the options and the environment say about input data."""
    return DataSettings.parse(
        rules=options.data_rules,
        samples=options.samples,
        bandwidth=options.input_bandwidth,
        cache_limit=around.environ.get("HOTFIRE_CACHE_LIMIT", ""),
        thorough=thorough,
        containers=options.backend == "docker",
    )


def prepare(
    raw: Mapping[str, Any],
    options: Options,
    around: Surroundings,
    observer: Observer = ignore,
    *,
    to_run: bool = True,
) -> runner.Preparation:
    """Decide everything that can be decided, and refuse what must be refused: nothing is started or reserved.

    Args:
        to_run: False for a plan that may be another machine's, which has its own engine and images.

    Raises:
        ValidationError: the request, or this machine's part of it, is not good; all faults are in the message.
    """
    job = request.parse(raw, region=around.region, cache_dir=around.cache)
    if refusals := request.not_yet(job):
        raise UnsupportedError(refusals[0], do="\n       ".join(refusals[1:]))
    if options.backend != "docker":
        check_without_image(job)
    engine = patterns.Engine(options.regex)
    if definitions := job.algorithm_specification.metric_definitions:
        for text in patterns.check(definitions, engine):
            observer(Note(text=text, warning=True))
    base, passed = hostenv.taken_over(around.environ, options.pass_names)
    if passed:
        observer(Note(text="passed on from this environment: " + ", ".join(sorted(passed))))
    locations = Locations.parse(options.maps, around.cwd)
    staging = JobDir(around.store.jobs / job.training_job_name)
    settings = data_settings(options, around, thorough=not to_run)
    inputs = channels.plan_inputs(
        job, locations, staging.data, cache=around.cache, settings=settings
    )
    code = plan.code_of(job, locations)
    backend = make_backend(options.backend, around.environ)
    image = image_of(job, options, around, observer, must_exist=to_run)
    machine = devices.machine()
    notes = preflight.check(
        job,
        inputs,
        code,
        options,
        machine,
        around.store.home,
        locations=locations,
        cache=around.cache,
        path=base["PATH"],
        in_image=image is not None,
        elsewhere=not to_run,
    )
    for note in notes:
        observer(Note(text=note))
    for text in advice.advise(job, advice.Facts(script=script_of(job, code))):
        observer(Note(text=text, warning=True))
    setting = plan.Setting(
        python=options.python,
        base_env=base,
        devices=devices_of(job, machine),
        processes_per_host=options.processes_per_host,
        grace=options.grace,
        cache=around.cache,
        pythonpath=(package_view(around.cache),),
        image=image,
    )
    return runner.Preparation(
        job=job,
        setting=setting,
        backend=backend,
        locations=locations,
        inputs=inputs,
        code=code,
        network=options.network,
        spot_discount=options.spot_discount if job.enable_managed_spot_training else 0.0,
        regex=engine,
        rehearsal=Rehearsal(options.rehearse) if options.rehearse else None,
        passed=passed,
    )


def interpreter(chosen: str | None, around: Surroundings) -> str:
    """The absolute path of ``--python``; hotfire's own interpreter when nothing was chosen.

    Raises:
        ValidationError: there is no such program.
    """
    if chosen is None:
        return sys.executable
    found = shutil.which(chosen, path=around.environ.get("PATH"))
    if found is None:
        raise ValidationError(
            f"--python {chosen}: no such program.",
            do="Give the path of a Python 3.11-3.13 interpreter.",
        )
    return str(Path(found).absolute())


def run_prepared(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    observer: Observer,
    *,
    replace_existing: bool = False,
) -> JobRecord:
    """Reserve the name and run the job to its end, supervised by this process."""
    job_dir, lock = create(prepared, options, around, replace_existing=replace_existing)
    return _supervised(prepared, options, job_dir, lock, around, observer)


def create(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    *,
    replace_existing: bool = False,
) -> tuple[JobDir, JobLock]:
    """Reserve the name; the caller holds the job and must supervise it or hand the lock on.

    Raises:
        ResourceInUse: the name is taken.
        ResourceLimitExceeded: that is being rehearsed.
    """
    if prepared.rehearsal is not None and (no := play(prepared.rehearsal, prepared.job).refusal):
        raise no
    if replace_existing:
        with contextlib.suppress(ResourceNotFound):
            delete(prepared.job.training_job_name, around)
    return around.store.create(prepared.job, options.to_json(), utc_now())


def start_detached(
    prepared: runner.Preparation,
    options: Options,
    around: Surroundings,
    *,
    replace_existing: bool = False,
) -> str:
    """Create the job and leave it to a supervisor process of its own, which survives this one; returns the name."""
    job_dir, lock = create(prepared, options, around, replace_existing=replace_existing)
    detach(job_dir, lock, around, "hotfire.runtime.supervisor")
    return job_dir.name


def detach(
    job_dir: JobDir,
    lock: JobLock,
    around: Surroundings,
    module: str,
    words: Sequence[str] = (),
    descriptors: Sequence[int] = (),
) -> None:
    """Leave a created job to ``python -m MODULE NAME LOCK WORDS...``; the lock is closed here, whatever happens.

    The process has a session of its own and inherits ``descriptors`` beside the lock.
    """
    paths = [str(package_view(around.cache)), *filter(None, [around.environ.get("PYTHONPATH")])]
    with contextlib.closing(lock), (job_dir.root / "supervisor.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, job_dir.name, str(lock.fileno()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=(lock.fileno(), *descriptors),
            start_new_session=True,
            cwd="/",
            env={**around.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    # It outlives this process; while this process lives, it must not stay behind as a zombie.
    threading.Thread(target=process.wait, name=f"hotfire-{job_dir.name}", daemon=True).start()


def remembered(name: str, around: Surroundings) -> tuple[dict[str, Any], Options]:
    """The request and the options of an earlier job."""
    path = around.store.open(name).options
    options = Options.from_json(json.loads(path.read_text(encoding="utf-8")))
    return around.store.request(name), replace(options, interrupt_after="", rehearse="")


def next_name(name: str, around: Surroundings) -> str:
    """``NAME-2``, or the next number that is free; cut so that the service takes it."""
    taken = set(around.store.names())
    for number in itertools.count(2):
        fresh = f"{name[: 63 - len(str(number)) - 1].rstrip('-')}-{number}"
        if fresh not in taken:
            return fresh
    raise AssertionError


def resume(name: str, lock: JobLock, around: Surroundings) -> JobRecord:
    """Supervise a job that exists and whose lock is held: the detached supervisor's work."""
    job_dir = around.store.open(name)
    options = Options.from_json(json.loads(job_dir.options.read_text(encoding="utf-8")))
    try:
        prepared = prepare(around.store.request(name), options, around)
    except BaseException as error:
        # What was fine when the job was created is not any more; the job must not stay in progress.
        supervisor.fail(job_dir, lock, error)
        raise
    return _supervised(prepared, options, job_dir, lock, around, ignore)


def _supervised(
    prepared: runner.Preparation,
    options: Options,
    job_dir: JobDir,
    lock: JobLock,
    around: Surroundings,
    observer: Observer,
) -> JobRecord:
    with ExitStack() as undo:
        # Until the supervisor has it: an error here must not leave a job that is in progress for ever.
        undo.callback(lock.close)
        if not prepared.job.enable_network_isolation and credentials.at_hand(around.environ):
            server = undo.enter_context(credentials.CredentialServer(prepared.job.role_arn))
            prepared = with_credentials(prepared, server)
        trigger = Trigger.parse(options.interrupt_after) if options.interrupt_after else None
        return supervisor.supervise(prepared, job_dir, lock, observer, trigger)


def with_credentials(
    prepared: runner.Preparation, server: credentials.CredentialServer
) -> runner.Preparation:
    """The hosts find ``server`` at the service's own address where they have a network of their own, else by URL."""
    if prepared.network == "private" and prepared.backend.name == "process":
        from hotfire.runtime.backends.process import ProcessBackend

        where = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": server.path}
        prepared = replace(prepared, backend=ProcessBackend(serve=server.serve))
    else:
        where = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url}
    return replace(prepared, passed={**prepared.passed, **where})


def run(
    raw: Mapping[str, Any],
    *,
    options: Options | None = None,
    observer: Observer = ignore,
    environ: Mapping[str, str] | None = None,
    replace_existing: bool = False,
) -> dict[str, Any]:
    """Run one job in the foreground: what ``hotfire run`` does, from Python.

    Args:
        raw: a CreateTrainingJob request.
        options: what this machine contributes; see :class:`Options`.
        observer: receives log chunks, transitions, notes and progress, from several threads.
        environ: in place of ``os.environ``.

    Returns:
        DescribeTrainingJob's answer for the ended job. A job that failed is an answer and not an exception.

    Raises:
        ValidationError: the request is refused; nothing was started.
        ResourceInUse: the name is taken.
    """
    options = options or Options()
    around = Surroundings.here(environ)
    prepared = prepare(raw, options, around, observer)
    run_prepared(prepared, options, around, observer, replace_existing=replace_existing)
    return describe(prepared.job.training_job_name, around)


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What would run: the same plan as text for people and as a document for programs."""

    text: str
    document: dict[str, Any]
    docker_run: str = ""
    """The same as shell lines for bare hosts; empty where the hosts are processes."""


def dry_run(
    raw: Mapping[str, Any], options: Options, around: Surroundings, *, elsewhere: bool = False
) -> DryRun:
    """The plan of a job: its files, the argv the script will see, one container spec per host. Starts nothing.

    ``elsewhere``: the plan is for other machines; what this one lacks (engine, image, memory) is no reason to refuse.
    """
    notes: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    prepared = prepare(raw, options, around, observe, to_run=not elsewhere)
    hosts = prepared.job.resource_config.hosts
    job_dir = JobDir(around.store.jobs / prepared.job.training_job_name)
    dirs = {host: job_dir.host(1, host) for host in hosts}
    # Addresses and the port are chosen when the job starts; these stand for them.
    places = {
        host: Place(host=host, address=f"127.77.0.{number}")
        for number, host in enumerate(hosts, start=1)
    }
    planned = runner.make_plan(prepared, places, dirs, plan.MASTER_PORT)
    job = prepared.job
    facts = advice.Facts(
        script=script_of(job, prepared.code),
        versions=versions_of(options.python),
        python=platform.python_version() if options.python == sys.executable else "",
    )
    notes += [text for text in advice.advise(job, facts) if text not in notes]
    if job.role_arn != flags.DEFAULT_ROLE:
        notes += request.ignored(job)
    machine = devices.machine()
    found = training_env.Devices(
        cpus=machine.cpus, gpus=len(machine.gpus), neuron_cores=machine.neuron_cores
    )
    return DryRun(
        text="\n".join([plan_view.describe(planned, found), *(f"note: {note}" for note in notes)]),
        document={"Hosts": plan_view.to_json(planned, found), "Notes": notes},
        docker_run=docker_run(prepared, planned),
    )


def docker_run(prepared: runner.Preparation, planned: tuple[plan.HostPlan, ...]) -> str:
    """The ``docker run`` lines of a plan, with the devices that its instance types have."""
    if prepared.setting.image is None:
        return ""
    from hotfire.runtime import plan_docker_run

    groups = prepared.job.resource_config.instance_groups
    types = [instances.lookup(group.instance_type, prepared.setting.cache) for group in groups]
    # A type without numbers may have anything: the lines look for the nodes themselves.
    unknown = any(one.accelerator is instances.Accelerator.UNKNOWN for one in types)
    return plan_docker_run.script(
        planned,
        gpus=any(one.gpus for one in types),
        neuron=unknown or any(one.neuron_chips for one in types),
        efa=unknown or any(one.efa for one in types),
    )


def shell(
    name: str, host: str, command: tuple[str, ...], around: Surroundings, say: Callable[[str], None]
) -> int:
    """A shell (or ``command``) in a host of a job; the exit code is the command's.

    In a live host; else in a host prepared afresh from the job's request and options, which is gone afterwards.

    Raises:
        ResourceNotFound: no such job or host.
    """
    host_dirs(name, around, host=host, attempt=None)
    argv = command or (around.environ.get("SHELL", "/bin/sh"), "-i")
    terminal = {key: around.environ[key] for key in ("TERM", "COLORTERM") if key in around.environ}
    job_dir = around.store.open(name)
    attempts = job_dir.attempts()
    pid = runner.live_pid(job_dir.host(attempts[-1], host).pid) if attempts else None
    options = Options.from_json(json.loads(job_dir.options.read_text(encoding="utf-8")))
    docker = options.backend == "docker"
    if docker:
        from hotfire.runtime.backends import docker_shell
    else:
        from hotfire.runtime.backends import process
    if pid is not None:
        say(f"{host} of {name} is running: this shell is inside it.")
        if docker:
            found = docker_shell.container_of(name, host, job_dir.root, around.environ)
            return docker_shell.enter(found, command, around.environ)
        return process.enter(pid, argv, {**environment_of(pid), **terminal})
    prepared = prepare(around.store.request(name), options, around)
    say(
        f"{name} is not running: a fresh {host} with its inputs and no outputs; it is gone when you leave."
    )
    with ExitStack() as undo:
        around.store.home.mkdir(parents=True, exist_ok=True)
        folder = undo.enter_context(
            tempfile.TemporaryDirectory(prefix="shell-", dir=around.store.home)
        )
        fresh = JobDir(Path(folder))
        dirs = {one: fresh.host(1, one) for one in prepared.job.resource_config.hosts}
        session = undo.enter_context(runner.open_session(prepared, 1, dirs, ignore))
        undo.enter_context(channels.materialise(prepared.inputs, ignore, dirs))
        planned = runner.make_plan(prepared, session.places, dirs, plan.MASTER_PORT)
        (chosen,) = (one for one in planned if one.spec.host == host)
        runner.write_files([chosen])
        idle = ("/bin/sh", "-c", "while :; do sleep 3600; done")
        spec = replace(chosen.spec, argv=idle)
        if docker:
            spec = replace(spec, entrypoint=idle[:1], argv=idle[1:])
        container = session.start(runner.with_values(spec, prepared.passed))
        undo.callback(container.remove)
        if docker:
            return docker_shell.enter(container.id, command, around.environ)
        (first, *_) = container.pids()
        return process.enter(first, argv, {**chosen.spec.env, **prepared.passed, **terminal})


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a live process of ours was started with."""
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {key: value for key, _, value in pairs}


def describe(name: str, around: Surroundings, *, masked: bool = True) -> dict[str, Any]:
    """DescribeTrainingJob: the request with the service's defaults, and the record (contract 9.2).

    Times are ISO-8601 in UTC. ``masked``: what looks like a secret is hidden, since the answer is going to be printed;
    the service itself echoes everything. Raises ResourceNotFound for an unknown name.
    """
    record = around.store.record(name)
    asked = around.store.request(name)
    job = request.parse(asked, region=around.region, cache_dir=around.cache)
    algorithm = {"EnableSageMakerMetricsTimeSeries": False, **asked["AlgorithmSpecification"]}
    none = {"CompressionType": "None", "RecordWrapperType": "None"}
    answer: dict[str, Any] = {
        **asked,
        "TrainingJobName": name,
        "TrainingJobArn": job.training_job_arn,
        "ModelArtifacts": {"S3ModelArtifacts": record.s3_model_artifacts},
        "TrainingJobStatus": record.status.value,
        "SecondaryStatus": record.secondary_status.value,
        "AlgorithmSpecification": algorithm,
        "OutputDataConfig": {
            "KmsKeyId": "",
            "CompressionType": "GZIP",
            **asked["OutputDataConfig"],
        },
        "StoppingCondition": {
            "MaxRuntimeInSeconds": job.stopping_condition.max_runtime_in_seconds,
            **asked.get("StoppingCondition", {}),
        },
        "CreationTime": record.creation_time.isoformat(),
        "LastModifiedTime": (record.last_modified_time or record.creation_time).isoformat(),
        "SecondaryStatusTransitions": [visit.to_json() for visit in record.visits],
        "EnableNetworkIsolation": job.enable_network_isolation,
        "EnableInterContainerTrafficEncryption": bool(
            asked.get("EnableInterContainerTrafficEncryption", False)
        ),
        "EnableManagedSpotTraining": job.enable_managed_spot_training,
        "ProfilingStatus": "Disabled",
    }
    answer.pop("Tags", None)  # DescribeTrainingJob has no such member; ListTags has.
    if "InputDataConfig" in asked:
        answer["InputDataConfig"] = [{**none, **channel} for channel in asked["InputDataConfig"]]
    if metrics := record.receipt.get("metrics"):
        answer["FinalMetricDataList"] = metrics
    if record.failure_reason:
        answer["FailureReason"] = record.failure_reason
    if record.training_start_time is not None:
        answer["TrainingStartTime"] = record.training_start_time.isoformat()
    if record.training_end_time is not None:
        answer["TrainingEndTime"] = record.training_end_time.isoformat()
    if (seconds := record.training_seconds) is not None:
        answer["TrainingTimeInSeconds"] = seconds
        billable = int(record.receipt.get("billable_seconds", seconds))
        answer["BillableTimeInSeconds"] = (
            min(billable, seconds) if job.enable_managed_spot_training else seconds
        )
    for member in ("Environment", "HyperParameters") if masked else ():
        if member in answer:
            answer[member] = masking.masked_mapping(answer[member])
    return answer


def readable(name: str, around: Surroundings) -> JobRecord:
    """The record of a job; one that cannot be read counts as Failed, and must not hide all other jobs."""
    try:
        return around.store.record(name)
    except PlatformError as error:
        made = datetime.fromtimestamp(around.store.open(name).root.stat().st_mtime, UTC)
        blank = JobRecord(name=name, creation_time=made, failure_reason=error.what)
        return blank.moved(SecondaryStatus.FAILED, error.what, made)


def list_jobs(around: Surroundings) -> list[dict[str, Any]]:
    """TrainingJobSummaries, newest first, with ``DiskBytes`` beside the API's members."""
    around.store.sweep()
    found = [readable(name, around) for name in around.store.names()]
    found.sort(key=lambda record: record.creation_time, reverse=True)
    return [
        {
            "TrainingJobName": record.name,
            "CreationTime": record.creation_time.isoformat(),
            **(
                {"TrainingEndTime": record.training_end_time.isoformat()}
                if record.training_end_time
                else {}
            ),
            "LastModifiedTime": (record.last_modified_time or record.creation_time).isoformat(),
            "TrainingJobStatus": record.status.value,
            "SecondaryStatus": record.secondary_status.value,
            "DiskBytes": disk_bytes(record, around),
        }
        for record in found
    ]


def disk_bytes(record: JobRecord, around: Surroundings) -> int:
    """What a job holds on this disk; of one that has ended, as it was then."""
    if record.status.terminal and (known := record.receipt.get("disk_bytes")):
        return int(known)
    return tree_bytes(around.store.open(record.name).root)


def stop(name: str, around: Surroundings) -> None:
    """StopTrainingJob: ask the supervisor, and return.

    Raises:
        ResourceInUse: the job has ended already, with the service's text (contract 9.2).
    """
    record = around.store.record(name)
    if record.status.terminal:
        raise ResourceInUse(
            f"The request was rejected because the training job is in status {record.status.value}.",
            do=f"hotfire describe {name} shows how it ended.",
        )
    (around.store.open(name).control / control.STOP).touch()


def interrupt(name: str, around: Surroundings, notice: float) -> None:
    """A spot interruption now: SIGTERM, ``notice`` seconds, SIGKILL, and a restart on fresh hosts.

    Raises:
        ResourceInUse: the job has ended.
        ValidationError: the job does not use managed spot training, so the service would never interrupt it.
    """
    record = around.store.record(name)
    if record.status.terminal:
        raise ResourceInUse(
            f"training job {name} is in status {record.status.value}.",
            do="Only a job that runs can be interrupted.",
        )
    if not around.store.request(name).get("EnableManagedSpotTraining"):
        raise ValidationError(
            f"training job {name} does not use managed spot training.",
            do="Create it with --use-spot --max-wait SECONDS.",
        )
    Interruption(notice).request(around.store.open(name).control)


def wait(name: str, around: Surroundings, seconds: float | None = None) -> JobRecord:
    """The record of a job once it is terminal, or as it is after ``seconds``."""
    end = None if seconds is None else time.monotonic() + seconds
    while not (record := around.store.record(name)).status.terminal:
        if end is not None and time.monotonic() > end:
            break
        time.sleep(0.1)
    return record


def delete(name: str, around: Surroundings) -> None:
    """DeleteTrainingJob: all of the job's own directory goes, uploaded artifacts stay, the name is free again."""
    with around.store.removing(name):
        pass


def upload(name: str, around: Surroundings, observer: Observer = ignore) -> list[str]:
    """Bring to S3OutputPath what an upload that failed, or a supervisor that died, left here; the URIs.

    The job's status stays what it was. Nothing is left to do for a job whose artifacts were stored.

    Raises:
        ResourceInUse: the job is in progress.
        DataError: it failed again; what is left is kept, for another try.
    """
    around.store.record(name)  # made true first
    with around.store.holding(name, "uploaded") as job_dir:
        record = read_record(job_dir)
        if "artifacts" in record.receipt or not (attempts := job_dir.attempts()):
            return []
        job = request.parse(
            around.store.request(name), region=around.region, cache_dir=around.cache
        )
        _, options = remembered(name, around)
        locations = Locations.parse(options.maps, around.cwd)
        found = runner.collect(job, locations, job_dir, attempts[-1], observer, resume=True)
        to = artifacts.destinations(job).model
        held = tree_bytes(job_dir.root)
        receipt = {**record.receipt, "artifacts": found["artifacts"], "disk_bytes": held}
        write_record(job_dir, replace(record, receipt=receipt, s3_model_artifacts=to))
    return [one["uri"] for one in found["artifacts"]]


def older_than(age: str, around: Surroundings) -> list[str]:
    """Names of the jobs that ended longer ago than ``age``: a number and one of s, m, h, d.

    Raises:
        ValidationError: not an age.
    """
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = age[:-1], age[-1:]
    if unit not in units or not number.isdecimal():
        raise ValidationError(f"{age!r} is not an age.", do="Give for example 7d, 12h or 30m.")
    limit = utc_now().timestamp() - int(number) * units[unit]
    ended = []
    for name in around.store.names():
        record = readable(name, around)
        if record.status.terminal and record.visits[-1].start.timestamp() <= limit:
            ended.append(name)
    return ended


def host_dirs(
    name: str, around: Surroundings, *, host: str | None, attempt: int | None
) -> tuple[int, dict[str, HostDir]]:
    """The number of an attempt of a job (default: the last one), and the directories of its hosts, or of one.

    Raises:
        ResourceNotFound: no such job, host or attempt.
    """
    job_dir = around.store.open(name)
    attempts = job_dir.attempts()
    number = attempt if attempt is not None else (attempts[-1] if attempts else 1)
    if attempts and number not in attempts:
        raise ResourceNotFound(
            f"job {name} has no attempt {number}.", do=f"It has: {', '.join(map(str, attempts))}"
        )
    hosts = hosts_of(around.store.request(name))
    if host is not None and host not in hosts:
        raise ResourceNotFound(
            f"job {name} has no host {host!r}.", do=f"It has: {', '.join(hosts)}"
        )
    return number, {one: job_dir.host(number, one) for one in ([host] if host else hosts)}


def hosts_of(asked: Mapping[str, Any]) -> list[str]:
    """The host names of a request, in numeric order."""
    config = asked["ResourceConfig"]
    groups = config.get("InstanceGroups") or [config]
    return [f"algo-{n + 1}" for n in range(sum(group["InstanceCount"] for group in groups))]


def resource_samples(name: str, around: Surroundings) -> dict[str, list[Usage]]:
    """What each host of a job used, over all attempts; hosts without a sample are left out."""
    job_dir = around.store.open(name)
    found = {
        host: [
            row
            for attempt in job_dir.attempts()
            for row in read_samples(job_dir.host(attempt, host).samples)
        ]
        for host in hosts_of(around.store.request(name))
    }
    return {host: rows for host, rows in found.items() if rows}


def resource_summaries(name: str, around: Surroundings) -> dict[str, dict[str, Any]]:
    """Peaks and means of each host: of the last attempt once the job has ended, else of what was seen until now."""
    if known := around.store.record(name).receipt.get("resources"):
        return dict(known)
    return {host: summary_of(rows) for host, rows in resource_samples(name, around).items()}


def read_logs(
    name: str,
    around: Surroundings,
    begin: Callable[[int, Mapping[str, HostDir]], Any],
    *,
    host: str | None = None,
    attempt: int | None = None,
    follow: bool = False,
) -> None:
    """Hand the logs of one attempt (default: the last one) to the observer of chunks that ``begin`` makes for it.

    With ``follow``, go on until the job has ended, with the attempts that come meanwhile unless one was chosen.

    Raises:
        ResourceNotFound: no such job, host or attempt.
    """
    number, dirs = host_dirs(name, around, host=host, attempt=attempt)
    job_dir, over = around.store.open(name), False
    while True:
        logs = {one: directory.log for one, directory in dirs.items()}
        with LogPump(logs, begin(number, dirs)):
            while follow and not (over := around.store.record(name).status.terminal):
                if number < max(job_dir.attempts(), default=0):
                    break
                time.sleep(0.1)
        if not follow or attempt is not None:
            return
        if over and number >= max(job_dir.attempts(), default=0):
            return
        number, dirs = host_dirs(name, around, host=host, attempt=number + 1)


def samples_per_second(name: str, around: Surroundings) -> str:
    """The last training speed that the first host printed, or nothing."""
    _, dirs = host_dirs(name, around, host=None, attempt=None)
    path = next(iter(dirs.values())).log
    try:
        with path.open("rb") as source:
            source.seek(max(0, path.stat().st_size - (1 << 18)))
            tail = source.read()
    except OSError:
        return ""
    found = _SPEED.findall(tail)
    return found[-1].decode() if found else ""


_SPEED = re.compile(rb"(?:train_)?samples_per_sec(?:ond)?['\"]?\s*[:=]\s*([0-9]+(?:\.[0-9]+)?)")


def exit_code(record: JobRecord) -> ExitCode:
    """The command line's exit code for an ended job."""
    return {
        TrainingJobStatus.COMPLETED: ExitCode.COMPLETED,
        TrainingJobStatus.FAILED: ExitCode.FAILED,
        TrainingJobStatus.STOPPED: ExitCode.STOPPED,
    }.get(record.status, ExitCode.INTERNAL)
