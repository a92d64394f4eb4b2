"""Devices, CPUs and memory, read from directories that look like /proc, /sys and /dev."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotfire.runtime import devices
from hotfire.runtime.devices import machine

GIB = 1 << 30
ALLOWED = len(os.sched_getaffinity(0))


class Root:
    """A file system root in a temporary directory."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.write(
            "proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n"
        )

    def write(self, name: str, text: str = "") -> Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tool(self, name: str, body: str) -> None:
        self.write(f"bin/{name}", f"#!/bin/sh\n{body}\n").chmod(0o755)

    def look(self) -> devices.Machine:
        return machine(self.top, path=str(self.top / "bin"))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_this_machine() -> None:
    found = machine()
    assert 1 <= found.cpus <= ALLOWED
    assert 0 < found.memory_free <= found.memory
    assert found.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.neuron_chips == len(list(Path("/dev").glob("neuron[0-9]*")))


def test_no_limits_no_devices(root: Root) -> None:
    found = root.look()
    assert found == devices.Machine(cpus=ALLOWED, memory=16 * GIB, memory_free=8 * GIB)
    assert found.workers == 1


class TestVersion2:
    @pytest.fixture(autouse=True)
    def mounted(self, root: Root) -> None:
        root.write("proc/self/cgroup", "0::/user/job\n")
        root.write(
            "proc/self/mountinfo",
            "31 23 0:28 / /proc rw - proc proc rw\n"
            "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
        )

    def test_the_lowest_limit_of_all_groups_holds(self, root: Root) -> None:
        root.write("sys/fs/cgroup/user/memory.max", f"{4 * GIB}\n")
        root.write("sys/fs/cgroup/user/memory.current", f"{3 * GIB}\n")
        root.write("sys/fs/cgroup/user/memory.stat", f"anon 1\ninactive_file {GIB}\n")
        root.write("sys/fs/cgroup/user/job/memory.max", "max\n")
        root.write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
        root.write("sys/fs/cgroup/user/cpu.max", "100000 100000\n")
        found = root.look()
        assert (found.memory, found.memory_free) == (4 * GIB, 2 * GIB)
        assert found.cpus == 1

    def test_a_fraction_of_a_cpu_is_one(self, root: Root) -> None:
        root.write("sys/fs/cgroup/user/job/cpu.max", "20000 100000\n")
        assert root.look().cpus == 1

    def test_a_limit_above_the_machine_changes_nothing(self, root: Root) -> None:
        root.write("sys/fs/cgroup/user/memory.max", f"{64 * GIB}\n")
        assert root.look().memory == 16 * GIB


class TestVersion1:
    def test_in_a_container_that_sees_its_own_group_as_the_top(self, root: Root) -> None:
        root.write("proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n")
        root.write(
            "proc/self/mountinfo",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
            "36 31 0:33 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
        )
        root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
        root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
        root.write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 0\n")
        root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
        root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
        found = root.look()
        assert (found.memory, found.memory_free) == (2 * GIB, GIB)
        assert found.cpus == 1

    def test_no_quota_is_minus_one(self, root: Root) -> None:
        root.write("proc/self/cgroup", "4:cpu:/\n")
        root.write(
            "proc/self/mountinfo", "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        )
        root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
        root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
        assert root.look().cpus == ALLOWED


class TestNeuron:
    @pytest.fixture(autouse=True)
    def nodes(self, root: Root) -> None:
        for name in ("neuron0", "neuron1", "neuron_x", "null"):
            root.write(f"dev/{name}")

    def test_neuron_ls_says(self, root: Root) -> None:
        root.tool("neuron-ls", 'echo \'[{"nc_count": 8}, {"nc_count": 8}]\'')
        found = root.look()
        assert (found.neuron_chips, found.neuron_cores, found.workers) == (2, 16, 16)

    @pytest.mark.parametrize("body", ["exit 1", "echo broken", "echo '[{}]'"])
    def test_sysfs_says_when_the_tool_does_not(self, body: str, root: Root) -> None:
        root.tool("neuron-ls", body)
        root.write("sys/devices/virtual/neuron_device/neuron0/core_count", "8\n")
        assert root.look().neuron_cores == 8 + 2

    def test_without_a_tool(self, root: Root) -> None:
        assert root.look().neuron_cores == 4


class TestNvidia:
    def test_nvidia_smi_says(self, root: Root) -> None:
        root.write("dev/nvidia0")
        root.write("dev/nvidia1")
        root.tool(
            "nvidia-smi",
            "cat <<'END'\n"
            "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n"
            "  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n"
            "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)\n"
            "END",
        )
        found = root.look()
        assert found.gpus == ("NVIDIA A100-SXM4-40GB",) * 2
        assert found.workers == 2

    def test_the_driver_says_when_the_tool_does_not(self, root: Root) -> None:
        root.write("dev/nvidia0")
        root.tool("nvidia-smi", "exit 9")
        root.write(
            "proc/driver/nvidia/gpus/0000:00:1e.0/information", "Model: \t\t Tesla T4\nIRQ: 1\n"
        )
        assert root.look().gpus == ("Tesla T4",)

    def test_no_node_no_tool(self, root: Root) -> None:
        """The control nodes exist on machines without a GPU too, and a stray tool is not asked."""
        root.write("dev/nvidiactl")
        root.tool("nvidia-smi", f"touch {root.top}/asked; echo GPU 0: X")
        root.tool("neuron-ls", f"touch {root.top}/asked; echo '[]'")
        assert root.look().gpus == ()
        assert not (root.top / "asked").exists()
