"""One attempt at a job, from the empty directory to the outcome: :func:`run_attempt` reads top to bottom.

An ``ExitStack`` undoes everything in reverse, so an error or Ctrl-C at any line leaves nothing running or mounted.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hotfire.runtime import channels, keeping, plan
from hotfire.runtime.backend import Attempt, Backend, Container, ContainerSpec, Place, Session
from hotfire.runtime.backends.copying import remove_tree
from hotfire.runtime.control import Control
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Observer
from hotfire.runtime.host_files import read_failure, write_files, write_pid
from hotfire.runtime.hosts import started
from hotfire.runtime.journal import Journal
from hotfire.runtime.layout import HostDir, JobDir
from hotfire.runtime.observe.log_pieces import PIECE_BYTES, Rotation
from hotfire.runtime.observe.patterns import Engine
from hotfire.runtime.outcome import HostExit, StopCause
from hotfire.runtime.spec import InputMode, S3DataSource, TrainingJob
from hotfire.runtime.status import SecondaryStatus
from hotfire.runtime.storage import Locations
from hotfire.runtime.uploads import Uploads
from hotfire.runtime.watch import Limits, Watch

if TYPE_CHECKING:
    from hotfire.runtime.observe.samples import Sampler
    from hotfire.runtime.rehearse import Rehearsal


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What was decided about a job before anything starts; ``preflight`` has passed."""

    job: TrainingJob
    setting: plan.Setting
    backend: Backend
    locations: Locations
    inputs: tuple[channels.ChannelInput, ...]
    code: plan.Code
    network: str
    spot_discount: float = 0.0
    """Share of the price that managed spot training saves; 0 on demand."""
    regex: Engine = Engine.RE2
    """What searches the log for metrics."""
    log_piece: int = PIECE_BYTES
    """Bytes of a host's log that are closed as a piece of their own."""
    rehearsal: Rehearsal | None = None
    """The trouble of the service that the job is to meet."""
    passed: Mapping[str, str] = field(default_factory=dict)
    """Variables handed to the hosts by value from the caller's environment: never written to disk."""


@dataclass(frozen=True, kw_only=True)
class Attempted:
    """What one attempt came to. ``cause`` and ``interrupted`` say why the platform ended it, if it did."""

    exits: tuple[HostExit, ...]
    cause: StopCause | None
    interrupted: bool
    seconds: float
    """From the start of the download to the end of the last host."""
    receipt: dict[str, Any]
    trouble: DataError | None = None
    """After the hosts had ended: their last checkpoints could not be stored."""


def run_attempt(
    prepared: Preparation, number: int, journal: Journal, control: Control, limits: Limits
) -> Attempted:
    """Run the job's hosts once.

    Raises:
        StopAsked: asked to stop while no host was running.
        DataError: a download failed; the job is to end Failed with ClientError.
        HotfireError: any other refusal or fault of the platform side.
    """
    ended: list[Attempted] = []
    try:
        _run_hosts(prepared, number, journal, control, limits, ended.append)
    except DataError as error:
        if not ended:
            raise
        # The hosts are through; what they have left is still to be collected.
        return replace(ended[0], trouble=error)
    return ended[0]


def _run_hosts(
    prepared: Preparation,
    number: int,
    journal: Journal,
    control: Control,
    limits: Limits,
    ended: Callable[[Attempted], None],
) -> None:
    """:func:`run_attempt`; ``ended`` is told before the last checkpoints are stored, which may fail."""
    job = prepared.job
    hosts = job.resource_config.hosts
    dirs = {host: journal.job_dir.host(number, host) for host in hosts}
    with ExitStack() as undo:
        for directory in dirs.values():
            # Hosts that never started have no container that would do it.
            undo.callback(remove_tree, directory.scratch)
        session = undo.enter_context(open_session(prepared, number, dirs, journal))
        planned = make_plan(prepared, session.places, dirs, free_port(session.places))
        journal.move(SecondaryStatus.STARTING, "Preparing the instances for training")

        began = time.monotonic()
        first = {} if journal.record.training_start_time else {"training_start_time": journal.now()}
        journal.move(SecondaryStatus.DOWNLOADING, "Downloading input data", **first)
        with control.interruptible():
            feeds = undo.enter_context(channels.materialise(prepared.inputs, journal, dirs))
            write_files(planned)
            checkpoints = undo.enter_context(
                keeping.kept(
                    job,
                    dirs,
                    prepared.locations,
                    journal,
                    lambda: control.asks,
                    journal.job_dir.uploads,
                )
            )

        journal.move(
            SecondaryStatus.TRAINING, "Training image download completed. Training in progress."
        )
        watch = Watch(control, limits, journal, feeds)
        for directory in dirs.values():
            undo.callback(directory.pid.unlink, missing_ok=True)
        specs = [with_values(host.spec, prepared.passed) for host in planned]
        threading.Thread(target=_import_the_rest).start()
        containers = undo.enter_context(
            started(session, specs, lambda one: write_pid(one, dirs[one.host].pid))
        )
        from hotfire.runtime.observe.log_times import TimeNotes
        from hotfire.runtime.observe.logs import LogPump

        times = {host: TimeNotes(dirs[host].log_times) for host in hosts}
        logs = {host: dirs[host].log for host in hosts}
        rotations = {
            host: Rotation(dirs[host].log, dirs[host].scratch, journal, prepared.log_piece)
            for host in hosts
        }
        with (
            sampler(prepared, dirs, session.places, containers) as used,
            LogPump(
                logs,
                journal,
                seen=lambda host, offset: times[host].seen(offset),
                rotations=rotations,
            ),
        ):
            exits = watch.until_ended(containers)
        if watch.abrupt:
            checkpoints.lose()
        feeds.check()
        exits = tuple(
            replace(end, failure=read_failure(dirs[end.host].ml.failure)) for end in exits
        )
        receipt: dict[str, Any] = {
            "attempt": number,
            "exit_codes": {end.host: end.exit_code for end in exits},
            "resources": {
                one.host: used.summary(one.host, one.max_rss_bytes) for one in containers
            },
        }
        ended(
            Attempted(
                exits=exits,
                cause=watch.cause,
                interrupted=watch.interrupted,
                seconds=time.monotonic() - began,
                receipt=receipt,
            )
        )


def _import_the_rest() -> None:
    """What watching and ending a job takes, while its hosts start: that is waiting for other processes."""
    from hotfire.runtime import artifacts, daemon_pool, model_files  # noqa: F401
    from hotfire.runtime.observe import log_times, logs, nvml, samples  # noqa: F401


def sampler(
    prepared: Preparation,
    dirs: Mapping[str, HostDir],
    places: Mapping[str, Place],
    containers: Sequence[Container],
) -> Sampler:
    """What samples the hosts of an attempt. A File channel from S3 counts: the service copies it to the volume."""
    from hotfire.runtime.observe.nvml import Nvml
    from hotfire.runtime.observe.samples import Sampler

    files = [
        one
        for one in prepared.inputs
        if one.channel.input_mode is InputMode.FILE
        and isinstance(one.channel.data_source, S3DataSource)
    ]
    return Sampler(
        containers,
        folders={host: directory.root for host, directory in dirs.items()},
        inputs={
            host: [mount.source for one in files for mount in one.mounts(host, place.ml_root)]
            for host, place in places.items()
        },
        files={host: directory.samples for host, directory in dirs.items()},
        gpus=Nvml.open(),
    )


def collect(
    job: TrainingJob,
    locations: Locations,
    job_dir: JobDir,
    number: int,
    observer: Observer,
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """Pack and upload what the hosts of an attempt left: the artifacts' part of the receipt.

    ``resume``: after an upload that failed, do what is left of it.

    Raises:
        DataError: the destination cannot be written; everything that was packed is kept and named.
    """
    from hotfire.runtime import artifacts
    from hotfire.runtime.model_files import inspect
    from hotfire.runtime.s3_abort import take_all_back

    trees = [(host, job_dir.host(number, host).ml) for host in job.resource_config.hosts]
    stored = artifacts.store_outputs(
        job,
        trees,
        locations,
        job_dir.artifacts,
        observer,
        uploads=Uploads(job_dir.uploads / "artifacts"),
        resume=resume,
    )
    # Of a supervisor that was killed in an earlier attempt: nobody will go on with them.
    take_all_back(job_dir.uploads)
    found = (
        (stored.destinations.model, stored.model),
        (stored.destinations.output, stored.output),
    )
    models = inspect(*(tree.model for _, tree in trees))
    return {
        "artifacts": [
            {"uri": uri, "bytes": packed.bytes, "largest": packed.largest}
            for uri, packed in found
            if packed is not None
        ],
        "warnings": list(models.warnings),
    }


def open_session(
    prepared: Preparation, number: int, dirs: Mapping[str, HostDir], observer: Observer
) -> AbstractContextManager[Session]:
    """The backend's session for one attempt; the directories of its hosts exist from here on."""
    for directory in dirs.values():
        directory.scratch.mkdir(parents=True, exist_ok=True)
        directory.ml.root.mkdir(exist_ok=True)
    attempt = Attempt(
        job=prepared.job.training_job_name,
        number=number,
        dirs=dirs,
        network=prepared.network,
        isolated=prepared.job.enable_network_isolation,
    )
    return prepared.backend.open(attempt, observer)


def make_plan(
    prepared: Preparation, places: Mapping[str, Place], dirs: Mapping[str, HostDir], port: int
) -> tuple[plan.HostPlan, ...]:
    """The plan of one attempt from what was prepared and what the session found. Pure."""
    mounts = {
        host: (
            *(mount for one in prepared.inputs for mount in one.mounts(host, place.ml_root)),
            *keeping.mounts(prepared.job, dirs[host]),
        )
        for host, place in places.items()
    }
    manifests = {
        one.channel.channel_name: text for one in prepared.inputs if (text := one.manifest())
    }
    return plan.plan(
        prepared.job,
        replace(prepared.setting, master_port=port),
        places,
        dirs,
        mounts,
        prepared.code,
        manifests,
    )


def with_values(spec: ContainerSpec, passed: Mapping[str, str]) -> ContainerSpec:
    """The spec with the variables that must not be written down; what the plan says wins."""
    return replace(spec, env={**passed, **spec.env}) if passed else spec


def free_port(places: Mapping[str, Place]) -> int:
    """A port for MASTER_PORT that is free now on the first host's address (any, where that is not ours to bind)."""
    addresses = [place.address for _, place in sorted(places.items())]
    for address in (*addresses[:1], "127.0.0.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return 7777
