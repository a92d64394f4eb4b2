"""Samples of real processes."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotfire.runtime.observe.nvml import Nvml
from hotfire.runtime.observe.samples import (
    COLUMNS,
    Sampler,
    Summary,
    Usage,
    own_network,
    process_usage,
    read_samples,
    summary_of,
    to_csv,
)

BUSY = "import time\nkeep = bytearray(80_000_000)\nprint('up', flush=True)\nwhile True: sum(range(1000))"
IDLE = "import time\nprint('up', flush=True)\ntime.sleep(600)"


@dataclass
class Host:
    """The part of a Container that is sampled, over a real process."""

    host: str
    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        return [self.process.pid] if self.process.poll() is None else []

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"sampling used {name}")


@pytest.fixture
def started() -> Iterator[Callable[[str, str], Host]]:
    hosts: list[Host] = []

    def start(name: str, script: str) -> Host:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        hosts.append(Host(name, process))
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return hosts[-1]

    yield start
    for host in hosts:
        host.process.kill()
        host.process.communicate()


@dataclass
class FakeGpus:
    asked: list[Sequence[int] | None] = field(default_factory=list)

    def read(self, pids: Sequence[int] | None) -> tuple[float, int] | None:
        self.asked.append(pids)
        return 75.0, 1000


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_two_hosts_are_told_apart(tmp_path: Path, started: Callable[[str, str], Host]) -> None:
    busy, idle = started("algo-1", BUSY), started("algo-2", IDLE)
    (tmp_path / "algo-1").mkdir()
    (tmp_path / "algo-1" / "data").write_bytes(b"x" * 3_000_000)
    files = {name: tmp_path / f"{name}.csv" for name in ("algo-1", "algo-2")}
    gpus = FakeGpus()
    (tmp_path / "channel").mkdir()
    (tmp_path / "channel" / "data").write_bytes(b"x" * 2_000_000)
    (tmp_path / "one-file").write_bytes(b"x" * 1_000_000)
    with Sampler(
        [busy, idle],  # type: ignore[list-item]
        folders={"algo-1": tmp_path / "algo-1"},
        inputs={"algo-1": [tmp_path / "channel", tmp_path / "one-file"]},
        files=files,
        gpus=gpus,
        interval=0.2,
    ) as sampler:
        wait_for(lambda: min(one.count for one in sampler.summaries.values()) >= 6)
    one, two = sampler.summaries["algo-1"], sampler.summaries["algo-2"]
    assert one.memory_bytes_peak > 80_000_000 > two.memory_bytes_peak > 1_000_000
    assert one.cpu_percent_peak > 1 > two.cpu_percent_mean, "it gets little of a busy machine"
    assert one.disk_bytes_peak is not None and 6_000_000 <= one.disk_bytes_peak < 9_000_000
    assert two.disk_bytes_peak is None
    assert one.network_received_bytes is None, "the host shares the machine's network"
    assert one.gpu_percent_mean == 75.0
    assert [busy.process.pid] in gpus.asked and None not in gpus.asked
    rows = list(read_samples(files["algo-1"]))
    assert len(rows) == one.count
    assert rows[0].cpu_percent is None and rows[-1].cpu_percent is not None
    assert rows[-1].memory_bytes > 80_000_000
    assert len(list(read_samples(files["algo-2"]))) == two.count
    assert one.to_json()["gpu_memory_bytes_peak"] == 1000
    assert "disk_bytes_peak" not in two.to_json()


def test_a_host_that_ends_is_no_longer_sampled(started: Callable[[str, str], Host]) -> None:
    host = started("algo-1", IDLE)
    with Sampler([host], interval=0.05) as sampler:  # type: ignore[list-item]
        wait_for(lambda: sampler.summaries["algo-1"].count >= 2)
        host.process.kill()
        host.process.wait()
        count = sampler.summaries["algo-1"].count
        time.sleep(0.3)
    assert sampler.summaries["algo-1"].count <= count + 1, "one may have been under way"
    assert sampler.summary("algo-1", None)["memory_bytes_peak"] > 0
    assert sampler.summary("algo-1", 10**12)["memory_bytes_peak"] == 10**12


def test_rows_of_a_full_disk_and_half_a_row(
    tmp_path: Path, started: Callable[[str, str], Host]
) -> None:
    host = started("algo-1", IDLE)
    with Sampler([host], files={"algo-1": Path("/dev/full")}, interval=0.05) as sampler:  # type: ignore[list-item]
        wait_for(lambda: sampler.summaries["algo-1"].count >= 3)
    path = tmp_path / "samples.csv"
    path.write_text(",".join(COLUMNS) + "\n1.5,,10,,,,,\n2.5,3.0,")
    (row,) = read_samples(path)
    assert (row.time, row.cpu_percent, row.memory_bytes, row.disk_bytes) == (1.5, None, 10, None)
    assert list(read_samples(tmp_path / "none")) == []


def test_sampling_keeps_to_its_budget(started: Callable[[str, str], Host]) -> None:
    """Not a time: the share of CPU that the sampler itself counts, when each sample is made dear."""
    host = started("algo-1", IDLE)

    @dataclass
    class Dear:
        def read(self, pids: Sequence[int] | None) -> tuple[float, int] | None:
            end = time.thread_time() + 0.005
            while time.thread_time() < end:
                pass
            return None

    begin = time.monotonic()
    with Sampler([host], gpus=Dear(), interval=0.01) as sampler:  # type: ignore[list-item]
        wait_for(lambda: sampler.summaries["algo-1"].count >= 3)
        took = time.monotonic() - begin
    # Half of one per cent, and the sample whose rest is still to come.
    assert sampler.seconds - 0.02 < 0.01 * took


def test_a_network_of_its_own_is_counted() -> None:
    assert own_network(os.getpid()) is None
    assert own_network(2**22 + 1) is None
    unshare = shutil.which("unshare")
    script = "import sys; print(open('/proc/self/net/dev').read().count(':'), flush=True); sys.stdin.read()"
    argv = [unshare or "unshare", "--user", "--net", sys.executable, "-c", script]
    if (
        unshare is None
        or subprocess.run([*argv[:3], "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine refuses new network namespaces")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert own_network(process.pid) == (0, 0)
        process.communicate(b"")


def test_processes() -> None:
    found = process_usage(os.getpid())
    assert found is not None and found[1] > 1_000_000
    assert process_usage(2**22 + 1) is None


def test_summaries_average_what_was_measured() -> None:
    summary = Summary()
    for cpu, memory in ((None, 5), (100.0, 9), (50.0, 7)):
        summary.add(
            Usage(
                time=0,
                cpu_percent=cpu,
                memory_bytes=memory,
                disk_bytes=None,
                network_received_bytes=memory,
                network_sent_bytes=1,
                gpu_percent=None,
                gpu_memory_bytes=None,
            )
        )
    assert summary.to_json() == {
        "count": 3,
        "cpu_percent_mean": 75.0,
        "cpu_percent_peak": 100.0,
        "memory_bytes_peak": 9,
        "network_received_bytes": 7,
        "network_sent_bytes": 1,
    }


@pytest.mark.gpu
def test_real_gpus() -> None:
    gpus = Nvml.open()
    if gpus is None:
        pytest.skip("there is no NVIDIA driver with a GPU")
    found = gpus.read(None)
    assert found is not None and found[0] >= 0 and found[1] > 0
    assert gpus.read([2**22 + 1]) == (0.0, 0)


def test_without_a_driver_there_are_no_gpus() -> None:
    if os.path.exists("/dev/nvidiactl"):  # noqa: PTH110
        pytest.skip("there is a driver")
    assert Nvml.open() is None


def test_what_a_host_writes_before_its_end_counts(
    tmp_path: Path, started: Callable[[str, str], Host]
) -> None:
    host = started("algo-1", IDLE)
    with Sampler([host], folders={"algo-1": tmp_path}, interval=600) as sampler:  # type: ignore[list-item]
        (tmp_path / "late").write_bytes(b"x" * 2_000_000)
    assert sampler.summary("algo-1", None)["disk_bytes_peak"] >= 2_000_000


def test_samples_as_csv_and_in_sum(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(",".join(COLUMNS) + "\n1.5,,10,,,,,\n2.5,3.0,12,7,,,,\n")
    rows = list(read_samples(path))
    out = io.StringIO()
    to_csv({"algo-2": rows}, out)
    assert out.getvalue().splitlines()[1:] == ["algo-2,1.5,,10,,,,,", "algo-2,2.5,3.0,12,7,,,,"]
    assert summary_of(rows)["memory_bytes_peak"] == 12
