"""What this machine has: CPUs and memory as far as its cgroup lets us use them, GPUs, NeuronCores.

Reads /proc, /sys and /dev only; a tool is started only where the device nodes of its kind exist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_TOOL_SECONDS = 20.0
_CORES_PER_CHIP = 2
"""Of Trainium1 and Inferentia2 (contract 7.1), where neither neuron-ls nor sysfs says."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Memory in bytes; ``memory_free`` is what new processes can take without swapping."""

    cpus: int
    memory: int
    memory_free: int
    gpus: tuple[str, ...] = ()
    """Names of NVIDIA GPUs, in the driver's order; a MIG device counts within its GPU."""
    neuron_chips: int = 0
    neuron_cores: int = 0

    @property
    def workers(self) -> int:
        """Worker processes that a host on this machine runs: NeuronCores, else GPUs, else 1."""
        return self.neuron_cores or len(self.gpus) or 1


def machine(root: Path = Path("/"), path: str | None = None) -> Machine:
    """Look at this machine.

    ``root`` is where /proc, /sys and /dev are; ``path`` is the PATH on which the devices' tools are looked for
    (default: this process's).
    """
    groups = _Cgroups(root)
    total, free = _memory(root)
    limit, used = groups.memory()
    if limit < total:
        total, free = int(limit), min(free, max(0, int(limit) - used))
    chips, cores = _neuron(root, path)
    return Machine(
        cpus=_cpus(groups.cpus()),
        memory=total,
        memory_free=free,
        gpus=_gpus(root, path),
        neuron_chips=chips,
        neuron_cores=cores,
    )


def _cpus(quota: float) -> int:
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, int(quota))) if quota < allowed else allowed


def _memory(root: Path) -> tuple[int, int]:
    """MemTotal and MemAvailable of /proc/meminfo, which counts in KiB."""
    text = _read(root / "proc/meminfo")
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    total = int(values.get("MemTotal", 0)) << 10
    return total, int(values.get("MemAvailable", 0)) << 10 or total


# --- cgroups


class _Cgroups:
    """The limits that hold for this process: those of its own group and of every group above it, versions 1 and 2."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths = dict(self._own())
        self._mounts = list(self._mounted())

    def cpus(self) -> float:
        """CPUs' worth of time, infinite without a quota."""
        quotas = [float("inf")]
        for directory in self._directories("cpu"):
            quota, _, period = _read(directory / "cpu.max").strip().partition(" ")
            if not quota:
                quota = _read(directory / "cpu.cfs_quota_us").strip()
                period = _read(directory / "cpu.cfs_period_us").strip()
            if quota.isdecimal() and period.isdecimal() and int(period):
                quotas.append(int(quota) / int(period))
        return min(quotas)

    def memory(self) -> tuple[float, int]:
        """The lowest limit, and what counts against it now; page cache that can go does not."""
        found: tuple[float, int] = (float("inf"), 0)
        for directory in self._directories("memory"):
            for limit_file, used_file, cache in (
                ("memory.max", "memory.current", "inactive_file"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            ):
                limit = _read(directory / limit_file).strip()
                if limit.isdecimal() and int(limit) < found[0]:
                    used = int(_read(directory / used_file).strip() or 0)
                    stat = re.search(
                        rf"^{cache} (\d+)", _read(directory / "memory.stat"), re.MULTILINE
                    )
                    found = (int(limit), used - (int(stat[1]) if stat else 0))
        return found

    def _own(self) -> Iterator[tuple[str, str]]:
        """Controller to path of our group; version 2 has the controller ``""`` (cgroups(7))."""
        for line in _read(self._root / "proc/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for name in controllers.split(","):
                yield name, path

    def _mounted(self) -> Iterator[tuple[set[str], str, Path]]:
        """Controllers, the group that is visible at the top, and where (proc_pid_mountinfo(5))."""
        for line in _read(self._root / "proc/self/mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            fields, kind = left.split(" "), right.split(" ")
            if len(fields) < 5 or kind[0] not in ("cgroup", "cgroup2"):
                continue
            controllers = {""} if kind[0] == "cgroup2" else set(kind[-1].split(","))
            yield controllers, fields[3], self._root / fields[4].lstrip("/")

    def _directories(self, controller: str) -> Iterator[Path]:
        for controllers, top, mounted in self._mounts:
            for name in {controller, ""} & controllers:
                path = PurePosixPath(self._paths.get(name, "/"))
                try:
                    below = path.relative_to(top)
                except ValueError:
                    below = PurePosixPath()  # a container that sees only its own group, as the top
                for one in (below, *below.parents):
                    yield mounted / one


# --- accelerators


def _neuron(root: Path, path: str | None) -> tuple[int, int]:
    """Chips and cores. Every chip is a node /dev/neuronN (contract 7.1)."""
    numbers = _nodes(root / "dev", r"neuron(\d+)")
    if not numbers:
        return 0, 0
    try:
        chips = json.loads(_output(["neuron-ls", "-j"], path) or "[]")
        cores = sum(int(chip["nc_count"]) for chip in chips)
    except (ValueError, TypeError, KeyError):
        cores = 0
    return len(numbers), cores or sum(_cores_of(root, number) for number in numbers)


def _cores_of(root: Path, number: int) -> int:
    """The driver's own count in sysfs."""
    text = _read(
        root / "sys/devices/virtual/neuron_device" / f"neuron{number}" / "core_count"
    ).strip()
    return int(text) if text.isdecimal() else _CORES_PER_CHIP


def _gpus(root: Path, path: str | None) -> tuple[str, ...]:
    if not _nodes(root / "dev", r"nvidia(\d+)"):
        return ()
    listed = re.findall(
        r"^GPU \d+: (.*?)(?: \(UUID|$)", _output(["nvidia-smi", "-L"], path), re.MULTILINE
    )
    if listed:
        return tuple(listed)
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    names = [re.search(r"^Model:\s*(.*?)\s*$", _read(one), re.MULTILINE) for one in files]
    return tuple(name[1] if name else "NVIDIA GPU" for name in names)


def _nodes(directory: Path, pattern: str) -> list[int]:
    try:
        with os.scandir(directory) as found:
            matches = [re.fullmatch(pattern, entry.name) for entry in found]
    except OSError:
        return []
    return sorted(int(match[1]) for match in matches if match)


def _output(argv: list[str], path: str | None) -> str:
    """What a tool prints; nothing when it is not there, fails or does not answer."""
    program = shutil.which(argv[0], path=path) or shutil.which(argv[0], path="/opt/aws/neuron/bin")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
