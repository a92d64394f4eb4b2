"""What a job's hosts use, once a second: CPU, memory, disk, network, GPU (contract 6.3), as rows of a CSV and as peaks.

Percent are the service's: CPU 0 to 100 x vCPUs, GPU 0 to 100 x GPUs. The samples themselves may cost at most
:data:`BUDGET` of one core per host; where they are dear (very many processes or files), they come less often.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from hotfire.runtime.backend import Container

INTERVAL_SECONDS = 1.0
DISK_SECONDS = 10.0
"""Least time between two walks over a host's directory."""
BUDGET = 0.01
"""Share of one core per host that sampling may take."""

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One host at one moment; None where it cannot be told apart from the machine's, or is not there."""

    time: float
    """Seconds since the epoch."""
    cpu_percent: float | None
    """0 to 100 x vCPUs since the sample before; None in the first."""
    memory_bytes: int
    """Resident, without pages shared with files: those would count once per process."""
    disk_bytes: int | None
    """Of the volume: allocated below the host's directory, every :data:`DISK_SECONDS` or less often, and its inputs."""
    network_received_bytes: int | None
    """Since the host's start, over all interfaces but loopback; only where the host has its own network."""
    network_sent_bytes: int | None
    gpu_percent: float | None
    gpu_memory_bytes: int | None


class Gpus(Protocol):
    """Reads the accelerators of this machine."""

    def read(self, pids: Sequence[int] | None) -> tuple[float, int] | None:
        """Percent (0 to 100 x GPUs) and bytes in use on the GPUs that any of ``pids`` uses; of all if it is None."""


class Sampler:
    """Samples every host inside the ``with``; the first sample comes early, for short jobs.

    ``folders`` maps host to the directory whose disk space counts, ``inputs`` to what lies elsewhere on this machine and
    would be on the host's volume, ``files`` to the CSV that gets the rows. A disk that is full ends the rows, not the job.
    """

    def __init__(
        self,
        containers: Sequence[Container],
        *,
        folders: Mapping[str, Path] | None = None,
        inputs: Mapping[str, Sequence[Path]] | None = None,
        files: Mapping[str, Path] | None = None,
        gpus: Gpus | None = None,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._containers = list(containers)
        self._files = dict(files or {})
        self._interval = interval
        self._done = threading.Event()
        self._rows: dict[str, _Rows] = {}
        self._thread = threading.Thread(target=self._run, name="hotfire-samples", daemon=True)
        self._meters = {
            one.host: _Meter(
                one,
                (folders or {}).get(one.host),
                gpus,
                inputs=(inputs or {}).get(one.host, ()),
                alone=len(containers) == 1,
            )
            for one in containers
        }
        self.summaries: dict[str, Summary] = {one.host: Summary() for one in containers}
        self.seconds = 0.0
        """CPU time that sampling has taken."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        for host, meter in self._meters.items():
            # What was written since the last walk, and by hosts that ended before the first one.
            self.summaries[host].add_disk(meter.disk())

    def summary(self, host: str, max_rss_bytes: int | None) -> dict[str, Any]:
        """What ``host`` used; ``max_rss_bytes`` is the kernel's word on a peak that no sample met."""
        found = self.summaries[host]
        found.memory_bytes_peak = max(found.memory_bytes_peak, max_rss_bytes or 0)
        return found.to_json()

    def _run(self) -> None:
        with ExitStack() as stack:
            for host, path in self._files.items():
                self._rows[host] = stack.enter_context(_Rows(path))
            wait = self._interval / 8
            while not self._done.wait(wait):
                before = time.thread_time()
                for container in self._containers:
                    self._sample(container.host)
                cost = time.thread_time() - before
                self.seconds += cost
                # Half of the budget is for the disk's walks.
                least = cost / (BUDGET / 2 * max(1, len(self._containers)))
                wait = max(min(self._interval, wait * 2), least)

    def _sample(self, host: str) -> None:
        usage = self._meters[host].read()
        if usage is None:
            return
        self.summaries[host].add(usage)
        if host in self._rows:
            self._rows[host].write(usage)


@dataclass
class Summary:
    """Peaks and means of one host, for the receipt and ``describe``."""

    count: int = 0
    cpu_percent_mean: float = 0.0
    cpu_percent_peak: float = 0.0
    memory_bytes_peak: int = 0
    disk_bytes_peak: int | None = None
    network_received_bytes: int | None = None
    network_sent_bytes: int | None = None
    gpu_percent_mean: float | None = None
    gpu_percent_peak: float | None = None
    gpu_memory_bytes_peak: int | None = None
    _cpu_count: int = field(default=0, repr=False)
    _gpu_count: int = field(default=0, repr=False)

    def add(self, usage: Usage) -> None:
        self.count += 1
        if usage.cpu_percent is not None:
            self._cpu_count += 1
            self.cpu_percent_mean += (usage.cpu_percent - self.cpu_percent_mean) / self._cpu_count
            self.cpu_percent_peak = max(self.cpu_percent_peak, usage.cpu_percent)
        self.memory_bytes_peak = max(self.memory_bytes_peak, usage.memory_bytes)
        self.add_disk(usage.disk_bytes)
        if usage.network_received_bytes is not None:
            self.network_received_bytes = usage.network_received_bytes
            self.network_sent_bytes = usage.network_sent_bytes
        if usage.gpu_percent is not None:
            self._gpu_count += 1
            mean = self.gpu_percent_mean or 0.0
            self.gpu_percent_mean = mean + (usage.gpu_percent - mean) / self._gpu_count
            self.gpu_percent_peak = max(self.gpu_percent_peak or 0.0, usage.gpu_percent)
            self.gpu_memory_bytes_peak = max(
                self.gpu_memory_bytes_peak or 0, usage.gpu_memory_bytes or 0
            )

    def add_disk(self, used: int | None) -> None:
        if used is not None:
            self.disk_bytes_peak = max(self.disk_bytes_peak or 0, used)

    def to_json(self) -> dict[str, Any]:
        """What is known, without what is not."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name[0] != "_"}
        return {
            name: round(value, 1) if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }


def summary_of(rows: Iterable[Usage]) -> dict[str, Any]:
    """The summary of samples that were written down."""
    found = Summary()
    for one in rows:
        found.add(one)
    return found.to_json()


class _Meter:
    """One host's counters from one sample to the next."""

    def __init__(
        self,
        container: Container,
        folder: Path | None,
        gpus: Gpus | None,
        *,
        inputs: Sequence[Path],
        alone: bool,
    ) -> None:
        self._container = container
        self._folder = folder
        self._gpus = gpus
        self._inputs = inputs
        self._inputs_bytes: int | None = None
        self._alone = alone
        self._ticks: dict[int, int] = {}
        self._last: float | None = None
        self._disk: int | None = None
        self._disk_at = float("-inf")

    def read(self) -> Usage | None:
        """None once the host has ended: it uses nothing any more."""
        pids = self._container.pids()
        if not pids:
            return None
        now = time.monotonic()
        processes = {pid: found for pid in pids if (found := process_usage(pid))}
        ticks = {pid: found[0] for pid, found in processes.items()}
        network = own_network(pids[0])
        gpu = self._gpus.read(None if self._alone else pids) if self._gpus else None
        usage = Usage(
            time=time.time(),
            cpu_percent=self._cpu(ticks, now),
            memory_bytes=sum(memory for _, memory in processes.values()),
            disk_bytes=self._walk(now),
            network_received_bytes=network[0] if network else None,
            network_sent_bytes=network[1] if network else None,
            gpu_percent=gpu[0] if gpu else None,
            gpu_memory_bytes=gpu[1] if gpu else None,
        )
        self._ticks, self._last = ticks, now
        return usage

    def _cpu(self, ticks: Mapping[int, int], now: float) -> float | None:
        """Of a process that has gone, what it used since the last sample is not counted."""
        if self._last is None or now <= self._last:
            return None
        used = sum(max(0, count - self._ticks.get(pid, 0)) for pid, count in ticks.items())
        return round(100 * used / _TICK / (now - self._last), 1)

    def _walk(self, now: float) -> int | None:
        if self._folder is not None and now >= self._disk_at:
            before = time.thread_time()
            self._disk = self.disk()
            cost = time.thread_time() - before
            self._disk_at = now + max(DISK_SECONDS, cost / (BUDGET / 2))
        return self._disk

    def disk(self) -> int | None:
        """A walk; the inputs, which do not change, are walked over once."""
        if self._folder is None:
            return None
        if self._inputs_bytes is None:
            self._inputs_bytes = sum(map(tree_bytes, self._inputs))
        return self._inputs_bytes + tree_bytes(self._folder)


def process_usage(pid: int) -> tuple[int, int] | None:
    """Clock ticks of CPU so far, and bytes of resident memory that is not shared with files; None if it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()
        return int(stat[11]) + int(stat[12]), (int(pages[1]) - int(pages[2])) * _PAGE
    except (OSError, IndexError):
        return None


def tree_bytes(root: Path) -> int:
    """Bytes allocated on disk by ``root`` and all below it; other file systems and vanished files are not counted."""
    try:
        top = root.stat()
    except OSError:
        return 0
    total, pending = top.st_blocks * 512, [str(root)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if found.st_dev == top.st_dev:
                total += found.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return total


def own_network(pid: int) -> tuple[int, int] | None:
    """Bytes received and sent in the network namespace of ``pid``, loopback aside; None if it is also ours."""
    try:
        if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):  # noqa: PTH115
            return None
        lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    except OSError:
        return None
    received = sent = 0
    for line in lines:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            columns = numbers.split()
            received, sent = received + int(columns[0]), sent + int(columns[8])
    return received, sent


class _Rows:
    """The CSV of one host: a header, then a row per sample."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("a", encoding="utf-8", newline="", buffering=1)
            if not self._file.tell():
                self._file.write(",".join(COLUMNS) + "\n")
        except OSError:
            self._close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def write(self, usage: Usage) -> None:
        if self._file is None:
            return
        texts = [f"{usage.time:.3f}"]
        for name in COLUMNS[1:]:
            value = getattr(usage, name)
            texts.append("" if value is None else str(value))
        try:
            self._file.write(",".join(texts) + "\n")
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError:
                return  # what could not be written is lost, and said nowhere: samples are no result


COLUMNS = tuple(one.name for one in fields(Usage))


def read_samples(path: Path) -> Iterator[Usage]:
    """The rows of one host; none if there is no file. A last row that is half written is left out."""
    try:
        source = path.open(encoding="utf-8", newline="")
    except FileNotFoundError:
        return
    with source:
        for row in csv.DictReader(line for line in source if line.endswith("\n")):
            if None in row.values() or row["time"] == "time":
                continue
            yield Usage(**{name: _number(name, row[name]) for name in COLUMNS})  # type: ignore[arg-type]


def to_csv(samples: Mapping[str, Sequence[Usage]], out: TextIO) -> None:
    """``hotfire metrics NAME --resources``: the host, and the fields of :class:`Usage`."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("host", *COLUMNS))
    for host, rows in samples.items():
        for one in rows:
            writer.writerow((host, *(getattr(one, name) for name in COLUMNS)))


def _number(name: str, text: str) -> float | int | None:
    if not text:
        return None
    return int(text) if name.endswith("_bytes") else float(text)
