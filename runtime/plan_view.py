"""What ``--dry-run`` prints: a plan as JSON or as text, secrets masked, and the command line that the script will see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from hotfire.runtime import instances, training_env
from hotfire.runtime.backend import ContainerSpec, MountMode
from hotfire.runtime.masking import masked_mapping, masked_text
from hotfire.runtime.plan import HostPlan
from hotfire.runtime.traits import printable

_MODES = {
    MountMode.READ_ONLY: "read-only",
    MountMode.READ_WRITE: "read-write",
    MountMode.COPY_ON_WRITE: "copy on write",
}
_CONFIG = "input/config"
_SHOWN = 2000


def to_json(
    plans: Sequence[HostPlan], devices: training_env.Devices | None = None
) -> list[dict[str, Any]]:
    """One object per host, with everything a backend will do, secrets masked.

    Args:
        devices: those of this machine; without them a host without emulated devices is taken to have none.
    """
    return [_host(plan, devices) for plan in plans]


def describe(plans: Sequence[HostPlan], devices: training_env.Devices | None = None) -> str:
    """The plan for a reader: the first host in full, of every further one what differs."""
    described = to_json(plans, devices)
    lines: list[str] = []
    for number, host in enumerate(described):
        lines += _text(host, described[0] if number else None)
    return "".join(f"{line}\n" for line in lines)


def script(
    plan: HostPlan, devices: training_env.Devices | None = None
) -> tuple[training_env.TrainingEnv, training_env.Launch]:
    """What ``train`` will derive on this host: the SM_* variables, the arguments, the launch. Secrets are masked.

    Raises:
        UnsupportedError: the job asks for a distribution that is not run.
    """
    env = training_env.derive(
        hyperparameters=_masked_hyperparameters(plan),
        resource_config=_config(plan, "resourceconfig.json"),
        input_data_config=_config(plan, "inputdataconfig.json"),
        environment=masked_mapping(plan.spec.env),
        devices=_devices(plan, devices),
        base_dir=PurePosixPath(plan.spec.place.ml_root),
    )
    built_in = env.program is None and env.submit_directory is None
    return env, training_env.decide(env, built_in=built_in)


def _host(plan: HostPlan, devices: training_env.Devices | None) -> dict[str, Any]:
    spec = plan.spec
    return {
        "job": spec.job,
        "host": spec.host,
        "hostname": spec.hostname,
        "address": spec.place.address,
        **_image(spec),
        "argv": [masked_text(word) for word in spec.argv],
        "cwd": spec.cwd,
        "environment": masked_mapping(spec.env),
        "ml_root": str(spec.place.ml_root),
        "directory": str(spec.dir.root),
        "mounts": [
            {"source": str(mount.source), "target": str(mount.target), "mode": mount.mode.value}
            for mount in spec.mounts
        ],
        "files": _files(plan),
        "executables": dict(plan.executables),
        "script": _script(plan, devices),
    }


def _image(spec: ContainerSpec) -> dict[str, Any]:
    if not spec.image:
        return {}
    entrypoint = None if spec.entrypoint is None else list(spec.entrypoint)
    given = {key: value for key, value in asdict(spec.resources).items() if value}
    return {"image": spec.image, "entrypoint": entrypoint, "resources": given}


def _files(plan: HostPlan) -> dict[str, str]:
    files = {path: masked_text(text) for path, text in plan.files.items()}
    path = f"{_CONFIG}/hyperparameters.json"
    if path in files:
        values = _masked_hyperparameters(plan)
        files[path] = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    return files


def _config(plan: HostPlan, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(plan.files.get(f"{_CONFIG}/{name}", "{}"))
    return content


def _masked_hyperparameters(plan: HostPlan) -> dict[str, str]:
    return masked_mapping(_config(plan, "hyperparameters.json"))


def _script(plan: HostPlan, devices: training_env.Devices | None) -> dict[str, Any] | None:
    """None when the host runs an entry point of the request's own."""
    in_image = plan.spec.image and plan.spec.entrypoint is None
    if "hotfire.entrypoints.train" not in plan.spec.argv and not in_image:
        return None
    env, launch = script(plan, devices)
    return {
        "program": training_env.BUILT_IN_PROGRAM if launch.built_in else env.program,
        "arguments": env.arguments(),
        "launcher": launch.launcher.value,
        "workers": launch.workers,
        "compiler": launch.compiler.value,
        "reason": launch.reason,
        "variables": env.variables(),
    }


def _devices(plan: HostPlan, found: training_env.Devices | None) -> training_env.Devices:
    found = found or training_env.Devices(cpus=1)
    if plan.spec.env.get("HOTFIRE_DEVICE") != "cpu":
        return found
    kind = _config(plan, "resourceconfig.json")["current_instance_type"]
    emulated = instances.table().get(kind)
    return training_env.Devices(
        cpus=found.cpus,
        gpus=(emulated.gpus or 0) if emulated else 0,
        neuron_cores=(emulated.neuron_cores or 0) if emulated else 0,
        tools=found.tools,
    )


def _text(host: Mapping[str, Any], first: Mapping[str, Any] | None) -> Iterable[str]:
    yield f"host {host['host']}  {host['address']}  {host['hostname']}"
    if first is None and "image" in host:
        entrypoint = "its ENTRYPOINT" if host["entrypoint"] is None else _words(host["entrypoint"])
        yield f"  image     {host['image']}, {entrypoint}"
        yield f"  given     {_words([f'{key}={value}' for key, value in host['resources'].items()])}"
    if first is None or host["argv"] != first["argv"]:
        yield f"  runs      {_words(host['argv'])}"
    yield from _script_text(host["script"], first and first["script"])
    if host["ml_root"] != "/opt/ml":
        yield f"  /opt/ml   is {host['ml_root']}"
    for mount in host["mounts"]:
        if first is None or mount not in first["mounts"]:
            mode = _MODES[MountMode(mount["mode"])]
            yield f"  mount     {mount['target']}  <- {mount['source']} ({mode})"
    yield from _differing("file      ", host, first, "files")
    yield from _differing("variable  ", host, first, "environment")
    names = sorted(host["executables"])
    if names and first is None:
        yield f"  stand-ins {', '.join(names)}"


def _script_text(
    script: Mapping[str, Any] | None, first: Mapping[str, Any] | None
) -> Iterable[str]:
    if script is None:
        return
    if first is None or script["reason"] != first["reason"]:
        yield f"  starts    {script['reason']}"
    if first is None and script["compiler"] != "none":
        yield f"  compiler  {script['compiler']}"
    if first is None or script["arguments"] != first["arguments"]:
        yield f"  script    {_words([script['program'] or '?', *script['arguments']])}"


def _differing(
    label: str, host: Mapping[str, Any], first: Mapping[str, Any] | None, member: str
) -> Iterable[str]:
    for name, text in host[member].items():
        if first is not None and first[member].get(name) == text:
            continue
        yield f"  {label}{name}{'=' if member == 'environment' else '  '}{_one_line(text)}"


def _one_line(text: str) -> str:
    first, *more = text.rstrip("\n").split("\n")
    if len(first) > _SHOWN:
        first = f"{first[:_SHOWN]}... ({len(first)} characters)"
    return printable(f"{first} ... ({len(more) + 1} lines)" if more else first)


def _words(words: Sequence[str]) -> str:
    """Only for reading: nothing is ever started through a shell."""
    import shlex

    return shlex.join(words)
