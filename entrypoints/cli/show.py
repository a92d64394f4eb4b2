"""What a person sees: log lines on stdout, talk on stderr, and the receipt at the end. ``NO_COLOR`` is honoured."""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import datetime
from typing import Any

import click

from hotfire.entrypoints.cli import give_up_stdout
from hotfire.runtime.events import Event, LogChunk, Metrics, Note, Progress, Transition
from hotfire.runtime.observe.logs import LogPrinter
from hotfire.runtime.trees import printable

_COLORS = {"Completed": "green", "Failed": "red", "Stopped": "yellow"}
PROGRESS_AFTER_SECONDS = 2.0
METRICS_SECONDS = 2.0
"""Least time between two lines about metrics."""


def styled(text: str, **style: Any) -> str:
    """``text`` with colours, where stderr is a terminal and the user has not said no."""
    plain = os.environ.get("NO_COLOR") or not sys.stderr.isatty()
    return text if plain else click.style(text, **style)


def size(count: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Console:
    """The observer of ``hotfire run``. Called from several threads."""

    def __init__(self, hosts: tuple[str, ...], *, logs_to_stderr: bool, quiet: bool) -> None:
        stream = sys.stderr if logs_to_stderr else sys.stdout
        self._printer = LogPrinter(stream.buffer, hosts, live=stream.isatty())
        self._shares_terminal = stream.isatty() and sys.stderr.isatty()
        self._quiet = quiet
        self._lock = threading.Lock()
        self._bars: dict[str, float] = {}
        self._bar_shown = False
        self._several = len(hosts) > 1
        self._metrics: dict[str, float] = {}
        self._metrics_at = float("-inf")

    def __call__(self, event: Event) -> None:
        match event:
            case LogChunk():
                self._printer(event)
            case Transition():
                # The SDK's own line: <time> <Status> - <Message>.
                moment = event.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
                color = _COLORS.get(event.status.value, "cyan")
                status = styled(event.status.value, fg=color)
                self._say(f"{moment} {status} - {event.message}")
            case Note(warning=True):
                self._say(f"{styled('warning:', fg='yellow')} {event.text}")
            case Note():
                self._say(f"{styled('note:', dim=True)} {event.text}")
            case Progress():
                self._progress(event)
            case Metrics():
                self._measured(event)
            case _:
                pass

    def close(self) -> None:
        """After the last log chunk: write what never got its newline."""
        self._printer.close()
        if self._printer.lost is not None:
            give_up_stdout()
            self._say("warning: the reader of the log went away; hotfire logs shows all of it.")

    def _say(self, line: str) -> None:
        if self._quiet:
            return
        with self._lock:
            if self._shares_terminal:
                self._printer.interrupt()
            if self._bar_shown:
                click.echo(err=True)
                self._bar_shown = False
            click.echo(line, err=True)

    def _measured(self, event: Metrics) -> None:
        """For a person who watches: what is new, in one line now and then. A script's log has the values anyway."""
        if not sys.stderr.isatty():
            return
        for point in event.points:
            host = f" ({point.host})" if self._several else ""
            self._metrics[printable(point.name) + host] = point.value
        now = time.monotonic()
        if now - self._metrics_at >= METRICS_SECONDS:
            self._metrics_at = now
            values = ", ".join(f"{name} = {value:.6g}" for name, value in self._metrics.items())
            self._metrics.clear()
            self._say(f"{styled('metric:', fg='cyan')} {values}")

    def _progress(self, event: Progress) -> None:
        """A live line on a terminal, a line every two seconds elsewhere; nothing for what is quick."""
        now = time.monotonic()
        with self._lock:
            last = self._bars.setdefault(event.activity, now)
            finished = event.total is not None and event.done >= event.total
            wait = 0.1 if self._bar_shown and sys.stderr.isatty() else PROGRESS_AFTER_SECONDS
            if self._quiet or (now - last < wait and not (finished and self._bar_shown)):
                return
            self._bars[event.activity] = now
            of = f" of {size(event.total)}" if event.total is not None else ""
            line = f"{event.activity}: {size(event.done)}{of}"
            if sys.stderr.isatty():
                click.echo(f"\r\x1b[K{line}", err=True, nl=False)
                self._bar_shown = True
            else:
                click.echo(line, err=True)


def receipt(described: dict[str, Any], facts: dict[str, Any], samples_per_second: str) -> str:
    """The end of ``hotfire run``: status, seconds, speed, peaks, artifacts with their largest files, warnings."""
    status = described["TrainingJobStatus"]
    lines = [
        f"{styled(status, fg=_COLORS.get(status, 'cyan'), bold=True)} "
        f"{described['TrainingJobName']}"
        + (f" ({described['SecondaryStatus']})" if status != described["SecondaryStatus"] else "")
    ]
    if reason := described.get("FailureReason"):
        # A failure text may have several lines; they stay together.
        lines.append("  reason     " + reason.strip().replace("\n", "\n             "))
    if seconds := described.get("TrainingTimeInSeconds"):
        speed = f", {samples_per_second} samples/s" if samples_per_second else ""
        lines.append(f"  time       {seconds} s{speed}")
        lines += [f"             {line}" for line in bill_lines(described, facts, seconds)]
    for one in facts.get("metric_counts", []):
        name = printable(one["name"]) + (f" = {one['last']:g}" if one["last"] is not None else "")
        lines.append(f"  metric     {name} ({printable(one['counts'])})")
    volume = described["ResourceConfig"].get("VolumeSizeInGB", 0)
    for host, used in facts.get("resources", {}).items():
        lines.append(f"  used       {host} {usage(used, volume)}")
    for artifact in facts.get("artifacts", []):
        lines.append(f"  artifact   {artifact['uri']} ({size(artifact['bytes'])})")
        for name, count in artifact["largest"]:
            lines.append(f"             {size(count):>9}  {printable(name)}")
    for warning in facts.get("warnings", []):
        lines.append(f"  {styled('warning', fg='yellow')}    {warning}")
    return "\n".join(lines)


def usage(used: dict[str, Any], volume_gb: int) -> str:
    """What one host used, in the service's units: CPU is 0 to 100 x vCPUs, the volume is in GiB."""
    found = [f"memory {size(used['memory_bytes_peak'])}"]
    if used.get("cpu_percent_peak"):
        found.insert(
            0, f"CPU {used['cpu_percent_mean']:.0f} % (peak {used['cpu_percent_peak']:.0f})"
        )
    if "gpu_percent_peak" in used:
        found.append(
            f"GPU {used['gpu_percent_mean']:.0f} % (peak {used['gpu_percent_peak']:.0f}), "
            f"GPU memory {size(used['gpu_memory_bytes_peak'])}"
        )
    if "network_received_bytes" in used:
        received, sent = used["network_received_bytes"], used["network_sent_bytes"]
        found.append(f"network {size(received)} in, {size(sent)} out")
    disk = used.get("disk_bytes_peak", 0)
    unused = ""
    if volume_gb:
        share = 100 * (1 - disk / (volume_gb << 30))
        unused = (
            f" of VolumeSizeInGB {volume_gb} ({share:.0f} % unused)"
            if share >= 0
            else f", more than VolumeSizeInGB {volume_gb}: the service's disk would have been full"
        )
    return ", ".join([*found, f"disk {size(disk)}{unused}"])


def bill_lines(described: dict[str, Any], facts: dict[str, Any], seconds: int) -> list[str]:
    """The SDK's own lines about the bill, times the number of instances, as there; and what they assume."""
    config = described["ResourceConfig"]
    groups = config.get("InstanceGroups") or [config]
    hosts = sum(group["InstanceCount"] for group in groups)
    billable = described["BillableTimeInSeconds"]
    lines = [f"Training seconds: {seconds * hosts}", f"Billable seconds: {billable * hosts}"]
    if described.get("EnableManagedSpotTraining"):
        saving = (1 - billable / seconds) * 100
        lines.append(f"Managed Spot Training savings: {saving:.1f}%")
    if (discount := facts.get("spot_discount")) is not None:
        lines.append(f"(assumed: --spot-discount {discount:g}; the bill's rule is the provider's)")
    return lines


def moment(value: object) -> str:
    """A time for a table, in local time to the second."""
    if not isinstance(value, str):
        return ""
    return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )
