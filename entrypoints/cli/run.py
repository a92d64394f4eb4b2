"""``hotfire run``: one job, from flags or from a CreateTrainingJob document, in the foreground."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

DOCUMENT_SUFFIXES = (".json", ".yaml", ".yml")
# Flags that say something about this machine and not about the request; the only ones a document may be joined with.
LOCAL = frozenset(
    [
        "target",
        "name",
        "replace",
        "maps",
        "samples",
        "data_rules",
        "input_bandwidth",
        "backend",
        "network",
        "python",
        "processes_per_host",
        "shm_size",
        "limits",
        "env",
        "dry_run",
        "form",
        "as_json",
        "quiet",
        "region",
        "source_dir",
        "detach",
        "interrupt_after",
        "rehearse",
        "regex",
        "spot_discount",
    ]
)


@click.command(short_help="Run a training job and wait for it.")
@click.argument("target", required=False)
@click.option("--name", help="Job name (default: the script's name and the time).")
@click.option("--source-dir", help="Directory with the script; goes to /opt/ml/code.")
@click.option("--git-repo", help="Take the source from this git repository instead.")
@click.option("--git-branch", help="Branch or tag of --git-repo.")
@click.option("--git-commit", help="Commit of --git-repo.")
@click.option("--input", "inputs", multiple=True, metavar="CHANNEL=PATH|S3URI")
@click.option("--input-mode", "input_modes", multiple=True, metavar="CHANNEL=File|Pipe|FastFile")
@click.option("--sharding", multiple=True, metavar="CHANNEL=FullyReplicated|ShardedByS3Key")
@click.option("--record-wrapper", multiple=True, metavar="CHANNEL=None|RecordIO")
@click.option("--compression", multiple=True, metavar="CHANNEL=None|Gzip")
@click.option("--shuffle", multiple=True, metavar="CHANNEL=SEED")
@click.option(
    "--sample", "samples", multiple=True, metavar="CHANNEL=5%", help="Only a seeded part of it."
)
@click.option(
    "--input-bandwidth", metavar="100MB/s", help="Tell what downloading File channels would take."
)
@click.option(
    "--data-rule",
    "data_rules",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another reading of an undocumented rule: docs/data.md.",
)
@click.option(
    "-p",
    "--hyperparameter",
    "hyperparameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="JSON is sent as it is, else as a string; KEY:=TEXT forces a string.",
)
@click.option(
    "--env", multiple=True, metavar="K=V|K", help="Environment of the job; K alone passes yours on."
)
@click.option("--instance-type", help="Emulate this type, e.g. ml.trn1.2xlarge (default: local).")
@click.option("--instance-count", type=int, help="Number of hosts.")
@click.option("--distribution", help="torch_distributed, mpi, pytorchxla ...")
@click.option("--processes-per-host", type=click.IntRange(min=1), help="Workers on each host.")
@click.option(
    "--compiler",
    type=click.Choice(["xla", "inductor", "none"]),
    help="What compiles the training step (default: xla on Neuron and for the built-in program, else none).",
)
@click.option(
    "--compiler-debug",
    is_flag=True,
    help="Keep the compiler's metrics, graphs and IR below output/data/compiler.",
)
@click.option("--max-run", type=int, metavar="SECONDS", help="MaxRuntimeInSeconds.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="MetricDefinition; repeatable."
)
@click.option(
    "--regex",
    type=click.Choice(["re2", "python"]),
    default="re2",
    show_default=True,
    help="python: look-around and back-references, under a time limit.",
)
@click.option("--use-spot", is_flag=True, help="Managed spot training; needs --max-wait.")
@click.option("--max-wait", type=int, metavar="SECONDS", help="MaxWaitTimeInSeconds.")
@click.option(
    "--checkpoint-s3-uri", "checkpoints", metavar="PATH|S3URI", help="Keep checkpoints there."
)
@click.option("--checkpoint-local-path", metavar="PATH", help="Default: /opt/ml/checkpoints.")
@click.option(
    "--interrupt-after",
    metavar="90s|TEXT",
    help="Rehearse a spot interruption then (TEXT: in the log).",
)
@click.option(
    "--rehearse",
    type=click.Choice(["capacity", "quota", "unhealthy-host", "download-error"]),
    help="Play this trouble of the service, with its messages and its end.",
)
@click.option(
    "--spot-discount",
    type=click.FloatRange(0, 1),
    default=0.7,
    show_default=True,
    help="Assumed saving of spot over on-demand; only for the billable seconds shown.",
)
@click.option("--output", help="S3OutputPath: directory or s3:// (default: ./hotfire-out).")
@click.option(
    "--output-compression",
    type=click.Choice(["GZIP", "NONE"], case_sensitive=False),
    default="GZIP",
    show_default=True,
    help="NONE: the files of the model and the output as they are.",
)
@click.option(
    "--map", "maps", multiple=True, metavar="s3://...=DIR", help="Read DIR for that prefix."
)
@click.option(
    "--backend", type=click.Choice(["process", "docker"]), default="process", show_default=True
)
@click.option("--image", help="TrainingImage; what --backend docker runs.")
@click.option("--shm-size", metavar="SIZE", help="/dev/shm of a container, e.g. 8g (half of RAM).")
@click.option(
    "--limits", is_flag=True, help="Containers get the instance type's CPUs and memory, no more."
)
@click.option(
    "--network",
    type=click.Choice(["host", "private"]),
    default="host",
    show_default=True,
    help="private: a network namespace per host.",
)
@click.option("--python", help="Interpreter for the job (default: hotfire's own).")
@click.option("--region", help="Region of the job's ARN and AWS_REGION.")
@click.option("--replace", is_flag=True, help="Delete a finished job of the same name first.")
@click.option("-d", "--detach", is_flag=True, help="Leave the job to a process of its own.")
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing.")
@click.option(
    "--as",
    "form",
    type=click.Choice(["plan", "docker-run"]),
    default="plan",
    help="Form of --dry-run: docker-run prints lines to paste on bare hosts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout; logs go to stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Only the job's own log and the receipt.")
@click.pass_context
def run(ctx: click.Context, /, **flags: Any) -> int:
    """Run TARGET: a script, or a CreateTrainingJob document (.json, .yaml).

    Without TARGET, the built-in program fine-tunes a Hugging Face text classifier.
    Exit code: 0 completed, 1 failed, 2 refused, 3 stopped, 70 internal error.
    """
    if flags["backend"] == "process" and not (flags["dry_run"] or flags["detach"]):
        from hotfire.runtime.backends import spawn

        spawn.warm_up()  # beside the imports that follow
    from dataclasses import replace

    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    if flags["region"]:
        around = replace(around, environ={**around.environ, "AWS_REGION": flags["region"]})
    given = {name for name in flags if ctx.get_parameter_source(name).name != "DEFAULT"}  # type: ignore[union-attr]
    raw = request_of(flags, given, around)
    options = options_of(flags, around)
    if flags["dry_run"]:
        from hotfire.runtime import dry_run

        lines = flags["form"] == "docker-run"
        dry = dry_run.dry_run(raw, options, around, elsewhere=lines)
        if lines:
            if not dry.docker_run:
                raise click.UsageError("--as docker-run needs --backend docker.")
            click.echo(dry.docker_run)
            return 0
        click.echo(json.dumps(dry.document, indent=2) if flags["as_json"] else dry.text)
        return 0
    return carry_out(raw, options, around, flags)


def request_of(flags: dict[str, Any], given: set[str], around: Any) -> dict[str, Any]:
    """The CreateTrainingJob request that the command line stands for.

    Raises:
        ValidationError: flags that contradict a document, or that say nothing sensible.
    """
    from hotfire.runtime import documents
    from hotfire.runtime import flags as shorthand
    from hotfire.runtime.errors import ValidationError
    from hotfire.runtime.status import utc_now

    target = flags["target"]
    if target is None or not target.endswith(DOCUMENT_SUFFIXES):
        home = around.environ.get("HOME", "~")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in flags.items()
            if name in shorthand.NAMES
        }
        # A shell leaves the ~ of NAME=~/data alone.
        values["inputs"] = tuple(word.replace("=~/", f"={home}/", 1) for word in flags["inputs"])
        # A bare name is a variable to pass on by value; it is no part of the request.
        values["environment"] = tuple(pair for pair in flags["env"] if "=" in pair)
        return shorthand.to_request(
            shorthand.Flags(script=target, **values),
            now=utc_now(),
            cwd=around.cwd,
            region=around.region,
        )
    if stray := sorted(given - LOCAL):
        raise ValidationError(
            f"{target} is the whole request; --{stray[0].replace('_', '-')} cannot be added to it.",
            do="Change the document, or describe the job with flags alone.",
        )
    try:
        text = Path(target).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(
            f"{target} cannot be read: {getattr(error, 'strerror', None) or error}.",
            do="Give a script, or a CreateTrainingJob document in JSON or YAML.",
        ) from error
    raw = documents.load_text(text, target)
    return shorthand.overridden(
        raw, name=flags["name"], source_dir=flags["source_dir"], cwd=around.cwd
    )


def options_of(flags: dict[str, Any], around: Any) -> Any:
    """What the flags say about this machine."""
    from hotfire.runtime import preparation
    from hotfire.runtime.storage import Locations
    from hotfire.runtime.surroundings import Options

    mapped = Locations.parse(flags["maps"], around.cwd).maps
    return Options(
        backend=flags["backend"],
        network=flags["network"],
        maps=tuple(f"{source}={directory}" for source, directory in mapped.items()),
        python=preparation.interpreter(flags["python"], around),
        processes_per_host=flags["processes_per_host"],
        samples=flags["samples"],
        data_rules=flags["data_rules"],
        input_bandwidth=flags["input_bandwidth"] or "",
        interrupt_after=flags["interrupt_after"] or "",
        rehearse=flags["rehearse"] or "",
        regex=flags["regex"],
        spot_discount=flags["spot_discount"],
        pass_names=tuple(name for name in flags["env"] if "=" not in name),
        shm_bytes=bytes_of(flags["shm_size"]),
        limits=flags["limits"],
    )


def bytes_of(text: str | None) -> int | None:
    """A size as the docker command takes it: ``512m``, ``8g``.

    Raises:
        ValidationError: it is none.
    """
    from hotfire.runtime.errors import ValidationError

    if text is None:
        return None
    units = {"b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
    number, unit = (text[:-1], text[-1].lower()) if not text.isdecimal() else (text, "b")
    if not number.isdecimal() or unit not in units or int(number) == 0:
        raise ValidationError(f"--shm-size {text}: not a size.", do="Give for example 512m or 8g.")
    return int(number) << units[unit]


def carry_out(raw: dict[str, Any], options: Any, around: Any, flags: dict[str, Any]) -> int:
    """Run the job with this terminal as its console."""
    from hotfire.entrypoints.cli.show import Console, receipt
    from hotfire.runtime import description, preparation, service

    console: Console | None = None
    pending: list[Any] = []

    def observe(event: Any) -> None:
        # Notes can come before the hosts are known; nothing else does.
        if console is None:
            pending.append(event)
        else:
            console(event)

    prepared = preparation.prepare(raw, options, around, observe)
    console = Console(
        prepared.job.resource_config.hosts,
        logs_to_stderr=flags["as_json"],
        quiet=flags["quiet"],
    )
    for event in pending:
        console(event)
    name = prepared.job.training_job_name
    if flags["detach"]:
        service.start_detached(prepared, options, around, replace_existing=flags["replace"])
        arn = {"TrainingJobArn": prepared.job.training_job_arn}
        click.echo(json.dumps(arn) if flags["as_json"] else name)
        return 0
    record = service.run_prepared(
        prepared, options, around, observe, replace_existing=flags["replace"]
    )
    console.close()
    described = description.describe(name, around)
    if flags["as_json"]:
        click.echo(json.dumps(described, indent=2))
    else:
        speed = description.samples_per_second(name, around)
        sys.stdout.flush()
        click.echo(receipt(described, record.receipt, speed), err=True)
    return int(service.exit_code(record))


@click.command(short_help="Run a job's request again, under another name.")
@click.argument("name")
@click.option("--name", "fresh", help="The new job's name (default: NAME-2, NAME-3 ...).")
@click.option("-d", "--detach", is_flag=True, help="Leave the job to a process of its own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout; logs go to stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Only the job's own log and the receipt.")
def retry(name: str, **flags: Any) -> int:
    """Run job NAME once more: the same request and the same choices for this machine."""
    from hotfire.runtime import flags as shorthand
    from hotfire.runtime import service
    from hotfire.runtime.surroundings import Surroundings

    around = Surroundings.here()
    raw, options = service.remembered(name, around)
    fresh = flags.pop("fresh") or service.next_name(name, around)
    raw = shorthand.overridden(raw, name=fresh, cwd=around.cwd)
    return carry_out(raw, options, around, {**flags, "replace": False})
