"""From a request to a prepared job: what is there is looked up, and what cannot run is refused, before anything starts."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotfire.runtime import (
    advice,
    channels,
    devices,
    hostenv,
    instances,
    plan,
    plan_image,
    preflight,
    request,
    runner,
)
from hotfire.runtime.backend import Backend
from hotfire.runtime.control import Trigger
from hotfire.runtime.data_settings import DataSettings, parse_size
from hotfire.runtime.errors import (
    UnsupportedError,
    ValidationError,
)
from hotfire.runtime.events import Note, Observer, ignore
from hotfire.runtime.handover import package_view
from hotfire.runtime.layout import JobDir
from hotfire.runtime.observe import patterns
from hotfire.runtime.observe.log_pieces import PIECE_BYTES
from hotfire.runtime.refusals import check_without_image
from hotfire.runtime.rehearse import Rehearsal
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import Locations
from hotfire.runtime.surroundings import Options, Surroundings


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


def log_piece(around: Surroundings) -> int:
    """Bytes of a piece of a log: HOTFIRE_LOG_PIECE."""
    text = around.environ.get("HOTFIRE_LOG_PIECE")
    return parse_size(text, "HOTFIRE_LOG_PIECE") if text else PIECE_BYTES


def _check_interruption(job: TrainingJob, words: str) -> None:
    Trigger.parse(words)
    if not job.enable_managed_spot_training:
        raise ValidationError(
            "--interrupt-after: the service interrupts jobs of managed spot training only.",
            do="Add --use-spot --max-wait SECONDS.",
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
    if options.interrupt_after:
        _check_interruption(job, options.interrupt_after)
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
        log_piece=log_piece(around),
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
