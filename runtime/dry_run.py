"""The plan of a job that is not started."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotfire.runtime import (
    advice,
    devices,
    flags,
    instances,
    plan,
    plan_view,
    request,
    runner,
    training_env,
)
from hotfire.runtime.backend import Place
from hotfire.runtime.events import Event, Note
from hotfire.runtime.layout import JobDir
from hotfire.runtime.preparation import prepare, script_of, versions_of
from hotfire.runtime.surroundings import Options, Surroundings


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
