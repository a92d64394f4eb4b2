"""Every phase of a job times every fault: how the job ends, what it leaves, and that the record says so.

A cell is a row of :data:`CELLS`. A fault is a generator: before its first ``yield`` it prepares the surroundings, then the
job is in the phase and it strikes and lets the job go on, and after its second ``yield`` the command has ended. The page
``docs/reliability.md`` holds the same table, and a test compares them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import description, service
from hotfire.runtime.errors import PlatformError, ResourceInUse
from hotfire.runtime.surroundings import Surroundings

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
OK, FAILED, REFUSED, STOPPED, INTERNAL = 0, 1, 2, 3, 70
KILLED = -signal.SIGKILL
PHASES = {
    "starting": "Starting",
    "downloading": "Downloading",
    "training": "Training",
    "checkpointing": "Training",
    "uploading": "Uploading",
    "finishing": "Uploading",
}
"""Each phase with the SecondaryStatus that the record shows meanwhile."""

STORED, KEPT, NONE = "stored", "kept", "none"
"""At its destination; on this machine, in the job's directory; there is none yet."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is promised when ``fault`` strikes in ``phase``."""

    fault: str
    phase: str
    status: str
    code: int
    model: str
    checkpoint: str
    reason: str = ""
    """A pattern that FailureReason starts with."""


Fault = Iterator[None]
LOST = r"InternalServerError: .*the process that supervised the job has gone"
SIGKILLED = r"AlgorithmError: .*exit code: 137$"


def cells(
    fault: str, phases: str, status: str, code: int, model: str, checkpoint: str, reason: str = ""
) -> list[Cell]:
    """The same promise for several phases."""
    return [
        Cell(
            fault=fault,
            phase=phase,
            status=status,
            code=code,
            model=model,
            checkpoint=checkpoint,
            reason=reason,
        )
        for phase in phases.split()
    ]


ALL = " ".join(PHASES)
CELLS = [
    *cells("supervisor killed", "starting downloading", "Failed", KILLED, NONE, NONE, LOST),
    *cells("supervisor killed", "training checkpointing", "Failed", KILLED, KEPT, KEPT, LOST),
    *cells("supervisor killed", "uploading", "Failed", KILLED, KEPT, STORED, LOST),
    *cells("supervisor killed", "finishing", "Failed", KILLED, STORED, STORED, LOST),
    *cells("train killed", "training checkpointing", "Failed", FAILED, STORED, STORED, SIGKILLED),
    *cells("script killed", "training checkpointing", "Failed", FAILED, STORED, STORED, SIGKILLED),
    *cells("Ctrl-C once", "starting downloading", "Stopped", STOPPED, NONE, NONE),
    *cells("Ctrl-C once", "training checkpointing", "Stopped", STOPPED, STORED, STORED),
    *cells("Ctrl-C once", "uploading finishing", "Completed", OK, STORED, STORED),
    *cells("Ctrl-C twice", "starting downloading", "Stopped", STOPPED, NONE, NONE),
    *cells("Ctrl-C twice", "training checkpointing", "Stopped", STOPPED, STORED, STORED),
    *cells(
        *("Ctrl-C twice", "uploading", "Failed", FAILED, KEPT, STORED),
        r"ClientError: Artifact upload failed: given up",
    ),
    *cells("Ctrl-C twice", "finishing", "Completed", OK, STORED, STORED),
    *cells(
        "disk full", "starting", "Failed", FAILED, NONE, NONE, r"ClientError: .*[Nn]o space left"
    ),
    *cells(
        "disk full", "downloading", "Failed", FAILED, NONE, NONE, r"ClientError: .*no space left"
    ),
    *cells(
        *("disk full", "training", "Failed", FAILED, KEPT, STORED),
        r"AlgorithmError: .*exit code: 1$",
    ),
    *cells("disk full", "checkpointing", "Completed", OK, STORED, STORED),
    *cells(
        *("disk full", "uploading", "Failed", FAILED, KEPT, STORED),
        r"ClientError: Artifact upload failed: no space left",
    ),
    *cells("disk full", "finishing", "Completed", OK, STORED, STORED),
    *cells("disk read-only", "starting downloading", "Failed", INTERNAL, NONE, NONE, LOST),
    *cells("disk read-only", "training", "Failed", INTERNAL, KEPT, STORED, LOST),
    *cells("disk read-only", "checkpointing", "Completed", OK, STORED, STORED),
    *cells(
        *("disk read-only", "uploading", "Failed", FAILED, KEPT, STORED),
        r"ClientError: Artifact upload failed: .*Read-only file system",
    ),
    *cells("disk read-only", "finishing", "Failed", INTERNAL, STORED, STORED, LOST),
    *cells("S3 away for seconds", ALL, "Completed", OK, STORED, STORED),
    *cells(
        *("S3 away for good", "starting downloading", "Failed", FAILED, NONE, NONE),
        r"ClientError: .*no connection",
    ),
    *cells(
        *("S3 away for good", "training checkpointing", "Failed", FAILED, KEPT, KEPT),
        r"ClientError: .*no connection",
    ),
    *cells(
        *("S3 away for good", "uploading", "Failed", FAILED, KEPT, STORED),
        r"ClientError: Artifact upload failed: .*no connection",
    ),
    *cells("S3 away for good", "finishing", "Completed", OK, STORED, STORED),
    *cells(
        "host lost of two", "training checkpointing", "Failed", FAILED, STORED, STORED, SIGKILLED
    ),
    *cells("clock an hour back", "starting training finishing", "Completed", OK, STORED, STORED),
    *cells(
        "clock a day ahead", "downloading checkpointing uploading", "Completed", OK, STORED, STORED
    ),
    *cells(
        *("out of memory", "training checkpointing", "Failed", FAILED, STORED, STORED),
        r"AlgorithmError: .*MemoryError.*exit code: 1$",
    ),
    *cells("worker killed", "training checkpointing", "Failed", FAILED, STORED, STORED, SIGKILLED),
    *cells("worker hangs", "training", "Stopped", STOPPED, STORED, STORED),
    *cells("record corrupt", ALL, "Completed", OK, STORED, STORED),
    *cells("second command", "starting downloading", "Completed", OK, STORED, STORED),
    *cells("second command", "training checkpointing", "Stopped", STOPPED, STORED, STORED),
    *cells("second command", "uploading finishing", "Completed", OK, STORED, STORED),
    *cells(
        "Docker: supervisor killed", "training checkpointing", "Failed", KILLED, KEPT, KEPT, LOST
    ),
    *cells(
        "Docker: host killed", "training checkpointing", "Failed", FAILED, STORED, STORED, SIGKILLED
    ),
    *cells("Docker: host lost of two", "training", "Failed", FAILED, STORED, STORED, SIGKILLED),
    *cells("Docker: Ctrl-C once", "training checkpointing", "Stopped", STOPPED, STORED, STORED),
    *cells("Docker: Ctrl-C twice", "training checkpointing", "Stopped", STOPPED, STORED, STORED),
    *cells(
        *("Docker: disk full", "training", "Failed", FAILED, KEPT, STORED),
        r"AlgorithmError: .*exit code: 1$",
    ),
    *cells(
        *("Docker: out of memory", "training", "Failed", FAILED, STORED, STORED),
        r"AlgorithmError: .*MemoryError.*exit code: 1$",
    ),
]


# --- holding a job in a phase


def hold(rig: Any, phase: str) -> None:
    """Before the start: see to it that the job stays in ``phase``."""
    if rig.at_start:
        rig.pause("hotfire.runtime.runner", "open_session")
    match phase:
        case "starting":
            rig.pause("hotfire.runtime.runner", "open_session")
        case "downloading":
            rig.proxy.hold(b"/d/x")
        case "checkpointing":
            rig.proxy.hold(b"/kept/c-")
        case "uploading":
            rig.go.touch()
            if rig.output:
                rig.pause("hotfire.runtime.runner", "collect")
            else:
                rig.proxy.hold(b"/out/job/")
        case "finishing":
            rig.go.touch()
            rig.pause("hotfire.runtime.supervisor", "finish")


def reach(rig: Any, phase: str) -> None:
    def there() -> bool:
        assert rig.process.poll() is None, rig.stderr() + rig.stdout()
        if phase == "training" or (phase == "checkpointing" and rig.checkpoints):
            return rig.stdout().count("training\n") == rig.hosts * rig.workers
        return rig.paused() or rig.proxy.held.is_set()

    if rig.at_start:
        rig.until(rig.paused, "the start")
        rig.at_start()
        (rig.top / "pause").unlink()
    rig.until(there, f"the phase {phase}")
    record = json.loads((rig.dir / "record.json").read_text())
    assert record["visits"][-1]["Status"] == PHASES[phase]


def let_go(rig: Any, order: str = "") -> None:
    """Whatever the job waits for has happened; ``order`` is for its script."""
    if not rig.go.exists():
        aside = rig.go.with_name("go-aside")
        aside.write_text(order)
        aside.rename(rig.go)
    (rig.top / "pause").unlink(missing_ok=True)
    rig.proxy.release()


# --- faults


def supervisor_killed(rig: Any, phase: str) -> Fault:
    yield
    rig.signal(signal.SIGKILL)
    rig.end()
    rig.proxy.down()
    let_go(rig)
    rig.proxy.up()
    yield


def train_killed(rig: Any, phase: str) -> Fault:
    yield
    os.kill(rig.train(), signal.SIGKILL)
    let_go(rig)
    yield


def script_killed(rig: Any, phase: str) -> Fault:
    yield
    (script,) = children(rig.train())
    os.kill(script, signal.SIGKILL)
    rig.until(lambda: gone(script), "the script's end")
    let_go(rig, "nothing")
    yield


def gone(pid: int) -> bool:
    """It has ended, whether or not its parent knows already."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                found += [int(entry.name)] * (int(words[1]) == parent)
    return found


def interrupt_once(rig: Any, phase: str) -> Fault:
    yield
    rig.signal(signal.SIGINT)
    if phase in ("training", "checkpointing"):
        rig.until(lambda: "SIGTERM" in rig.stderr(), "SIGTERM")
        rig.proxy.release()
    else:
        time.sleep(0.2)
        let_go(rig)
    yield


def interrupt_twice(rig: Any, phase: str) -> Fault:
    rig.more += ["-p", "stubborn=1"]
    yield
    rig.signal(signal.SIGINT)
    if phase in ("training", "checkpointing"):
        rig.until(lambda: "SIGTERM" in rig.stderr(), "SIGTERM")
    elif phase == "uploading":
        rig.until(lambda: "Ctrl-C again gives up" in rig.stderr(), "what one more would do")
    else:
        time.sleep(0.2)
    rig.signal(signal.SIGINT)
    if phase in ("training", "checkpointing"):
        rig.until(lambda: "SIGKILL to algo-1" in rig.stderr(), "SIGKILL")
        rig.proxy.release()
    elif phase != "uploading":  # there the endpoint does not answer until the end
        time.sleep(0.2)
        let_go(rig)
    yield
    rig.proxy.down()
    rig.proxy.up()


def disk_full(rig: Any, phase: str) -> Fault:
    where = {"downloading": "cache", "checkpointing": "kept", "uploading": "out"}.get(phase, "home")
    disk = rig.disk(rig.top / where)
    aim(rig, where)
    if phase == "downloading":
        rig.client.put_object(Bucket=rig.bucket, Key="d/big", Body=bytes(3 << 20))
    if where == "kept":
        disk.fill()
    yield
    disk.fill()
    let_go(rig, "fill" if phase == "training" else "")
    if where == "kept":
        time.sleep(1)
        disk.empty()
    yield
    rig.broken = description.describe("job", around(rig))["TrainingJobStatus"]
    disk.empty()


def disk_read_only(rig: Any, phase: str) -> Fault:
    where = {"checkpointing": "kept", "uploading": "out"}.get(phase, "home")
    disk = rig.disk(rig.top / where)
    aim(rig, where)
    if where == "kept":
        rig.at_start = disk.read_only  # before, it would be refused
    yield
    if where == "home":
        # A disk with open files cannot be turned read-only; a directory mounted over itself can.
        veil = rig.veil(rig.dir)
    elif where == "out":
        disk.read_only()
    let_go(rig)
    if where == "kept":
        time.sleep(1)
        disk.writable()
    yield
    rig.broken = description.describe("job", around(rig))["TrainingJobStatus"]
    if where == "home":
        veil.close()
    else:
        disk.writable()


def aim(rig: Any, where: str) -> None:
    if where == "kept":
        rig.checkpoints = str(rig.top / "kept")
    if where == "out":
        rig.output = str(rig.top / "out")


def s3_away(rig: Any, phase: str) -> Fault:
    del rig.env["AWS_MAX_ATTEMPTS"]  # as users have it
    yield
    rig.proxy.down()
    let_go(rig)
    time.sleep(10 if phase in ("downloading", "uploading") else 1)
    rig.proxy.up()
    yield


def s3_gone(rig: Any, phase: str) -> Fault:
    rig.env["FAULT_PATIENCE"] = "2"
    if phase == "training":  # whatever is written is held back until the endpoint is gone
        rig.proxy.hold(b"/kept/c-")
    yield
    rig.proxy.down()
    let_go(rig)
    yield
    rig.proxy.up()


def host_lost(rig: Any, phase: str) -> Fault:
    rig.hosts = 2
    yield
    if phase == "checkpointing":
        rig.until(lambda: rig.stdout().count("training\n") == 2, "both hosts")
    first = rig.train("algo-2")
    # The whole host at once: its first process, and the process of ours beside it.
    parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    rig.proxy.release()
    yield
    assert "algo-2 exited with code 137" in rig.stderr()


def clock(seconds: float) -> Callable[[Any, str], Fault]:
    def jump(rig: Any, phase: str) -> Fault:
        file = rig.top / "clock"
        file.write_text("0")
        rig.env["FAULT_CLOCK"] = str(file)
        began = time.monotonic()
        yield
        aside = rig.top / "clock-aside"
        aside.write_text(str(seconds))
        aside.rename(file)
        let_go(rig)
        yield
        described = description.describe("job", around(rig))
        assert described["TrainingTimeInSeconds"] <= time.monotonic() - began + 1

    return jump


def out_of_memory(rig: Any, phase: str) -> Fault:
    yield
    let_go(rig, "allocate")
    yield


def worker_killed(rig: Any, phase: str) -> Fault:
    rig.workers = 2
    yield
    os.kill(worker(rig, 1), signal.SIGKILL)
    rig.proxy.release()
    yield


def worker_hangs(rig: Any, phase: str) -> Fault:
    """One of two neither works nor ends; the other one has ended. Somebody stops the job."""
    rig.workers = 2
    rig.env["FAULT_GRACE"] = "1"
    yield
    os.kill(worker(rig, 1), signal.SIGSTOP)
    first = worker(rig, 0)
    let_go(rig)
    rig.until(lambda: gone(first), "the end of the other")
    service.stop("job", around(rig))
    yield


def worker(rig: Any, rank: int) -> int:
    """Process id of the script of a local rank, once it trains."""
    rig.until(lambda: rig.stdout().count("training\n") == 2, "both workers")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environ = (entry / "environ").read_bytes().split(b"\0")
            mine = b"LOCAL_RANK=%d" % rank in environ and os.fsencode(rig.go) in words
            found += [int(entry.name)] * mine
    (number,) = found
    return number


def in_docker(fault: Callable[[Any, str], Fault]) -> Callable[[Any, str], Fault]:
    """The same fault with hosts that are containers."""

    def strike(rig: Any, phase: str) -> Fault:
        rig.image = "hotfire-test/train"
        return fault(rig, phase)

    return strike


def container_killed(rig: Any, phase: str) -> Fault:
    yield
    rig.docker(
        "kill",
        *rig.docker("ps", "-q", *rig.labelled, "--filter", f"label=hotfire.host=algo-{rig.hosts}"),
    )
    rig.proxy.release()
    yield


def container_lost(rig: Any, phase: str) -> Fault:
    rig.hosts = 2
    yield from container_killed(rig, phase)
    assert "algo-2 exited with code 137" in rig.stderr()


def container_disk_full(rig: Any, phase: str) -> Fault:
    disk = rig.disk(rig.top / "home")
    yield
    aside = rig.go.with_name("go-aside")
    aside.write_text("fill")
    disk.fill()
    aside.rename(rig.go)
    yield
    rig.broken = description.describe("job", around(rig))["TrainingJobStatus"]
    disk.empty()


def record_corrupt(rig: Any, phase: str) -> Fault:
    yield
    (rig.dir / "record.json").write_text('{"name": "job", "visits": [{"Sta')
    with pytest.raises(PlatformError, match="record of job job cannot be read"):
        description.describe("job", around(rig))
    let_go(rig)
    yield


def second_command(rig: Any, phase: str) -> Fault:
    yield
    here = around(rig)
    if phase in ("training", "checkpointing"):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: service.stop("job", here), range(2)))
        rig.until(lambda: "SIGTERM" in rig.stderr(), "SIGTERM")
        rig.proxy.release()
    elif phase in ("downloading", "uploading"):
        with pytest.raises(ResourceInUse, match="cannot be deleted"):
            service.delete("job", here)
    else:
        words = rig.words() + (["--replace"] if phase == "finishing" else [])
        # It must not be held where the first one is.
        done = rig.command(*words)
        assert done.returncode == REFUSED, done.stderr
        assert re.search("already exists|in progress", done.stderr)
    let_go(rig)
    yield


FAULTS: dict[str, Callable[[Any, str], Fault]] = {
    "supervisor killed": supervisor_killed,
    "train killed": train_killed,
    "script killed": script_killed,
    "Ctrl-C once": interrupt_once,
    "Ctrl-C twice": interrupt_twice,
    "disk full": disk_full,
    "disk read-only": disk_read_only,
    "S3 away for seconds": s3_away,
    "S3 away for good": s3_gone,
    "host lost of two": host_lost,
    "clock an hour back": clock(-3600),
    "clock a day ahead": clock(86_400),
    "out of memory": out_of_memory,
    "worker killed": worker_killed,
    "worker hangs": worker_hangs,
    "record corrupt": record_corrupt,
    "second command": second_command,
    "Docker: supervisor killed": in_docker(supervisor_killed),
    "Docker: host killed": in_docker(container_killed),
    "Docker: host lost of two": in_docker(container_lost),
    "Docker: Ctrl-C once": in_docker(interrupt_once),
    "Docker: Ctrl-C twice": in_docker(interrupt_twice),
    "Docker: disk full": in_docker(container_disk_full),
    "Docker: out of memory": in_docker(out_of_memory),
}


# --- what is found afterwards


def around(rig: Any) -> Surroundings:
    return Surroundings.here(rig.env)


def model_of(rig: Any) -> str:
    """Where the model is: STORED only if the archive is whole and holds every host's part."""
    hosts = [f"algo-{number + 1}" for number in range(rig.hosts)]
    archive = b""
    if rig.output:
        with contextlib.suppress(FileNotFoundError):
            archive = Path(rig.output, "job", "output", "model.tar.gz").read_bytes()
    elif "out/job/output/model.tar.gz" in rig.objects():
        answer = rig.client.get_object(Bucket=rig.bucket, Key="out/job/output/model.tar.gz")
        archive = answer["Body"].read()
    if archive:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            found = {member.name: member.size for member in packed}
        assert all(found[f"w-{host}"] == 200_000 for host in hosts)
        return STORED
    files = rig.dir.glob("attempts/*/*/ml/model/w-*")
    return KEPT if any(file.stat().st_size == 200_000 for file in files) else NONE


def checkpoint_of(rig: Any) -> str:
    names = {f"c-algo-{number + 1}" for number in range(rig.hosts)}
    if rig.checkpoints:
        stored = {path.name: path.stat().st_size for path in Path(rig.checkpoints).glob("*")}
    else:
        listed = rig.objects().items()
        stored = {key.removeprefix("kept/"): size for key, size in listed if "kept/" in key}
    if all(stored.get(name) == 100_000 for name in names):
        return STORED
    files = rig.dir.glob("attempts/*/*/ml/checkpoints/c-*")
    return KEPT if any(file.stat().st_size == 100_000 for file in files) else NONE


def in_order(described: dict[str, Any]) -> None:
    """The transitions form one line in time, without holes, and only the last one may be open."""
    moments = []
    for visit in described["SecondaryStatusTransitions"]:
        moments += [visit["StartTime"], visit.get("EndTime", visit["StartTime"])]
    assert moments == sorted(moments, key=datetime.fromisoformat)


def marked(cell: Cell) -> Any:
    marks = [pytest.mark.docker] if cell.fault.startswith("Docker") else []
    marks += [pytest.mark.xla] if cell.fault.startswith("worker") else []
    return pytest.param(cell, marks=marks, id=f"{cell.phase}-{cell.fault}")


@pytest.mark.parametrize("cell", [marked(cell) for cell in CELLS])
def test_cell(rig: Any, cell: Cell, request: pytest.FixtureRequest) -> None:
    if cell.fault.startswith("Docker"):
        engine = request.getfixturevalue("docker_engine")
        rig.env["DOCKER_HOST"] = engine["DOCKER_HOST"]
        assert request.getfixturevalue("docker_train") == "hotfire-test/train:latest"
    fault = FAULTS[cell.fault](rig, cell.phase)
    next(fault)
    hold(rig, cell.phase)
    rig.start()
    reach(rig, cell.phase)
    next(fault)
    code = rig.end()
    with contextlib.suppress(StopIteration):
        next(fault)

    told = rig.stderr()
    assert code == cell.code, told + rig.stdout()
    assert "Traceback" not in told
    described = description.describe("job", around(rig))
    assert described["TrainingJobStatus"] == cell.status, told
    reason = described.get("FailureReason", "")
    assert re.match(cell.reason, reason, re.DOTALL) if cell.reason else not reason, reason
    if cell.status == "Failed" and code >= 0:
        assert code == INTERNAL or reason.splitlines()[0][:60].strip() in told
    assert rig.broken in ("", cell.status)
    in_order(described)
    assert (model_of(rig), checkpoint_of(rig)) == (cell.model, cell.checkpoint), told
    rig.until(
        lambda: not rig.left_behind(), lambda: f"an end without traces: {rig.left_behind()}", 30
    )
    service.delete("job", around(rig))
    assert list((rig.home / "jobs").iterdir()) == []


# --- the page


def table() -> str:
    """The matrix as the page shows it: status, and where the model and the checkpoint are."""
    rows = ["| fault | " + " | ".join(PHASES) + " |", "|---" * (len(PHASES) + 1) + "|"]
    for fault in FAULTS:
        found = {cell.phase: cell for cell in CELLS if cell.fault == fault}
        texts = [told(found[phase]) if phase in found else "" for phase in PHASES]
        rows.append(f"| {fault} | " + " | ".join(texts) + " |")
    return "\n".join(rows)


def told(cell: Cell) -> str:
    code = "SIGKILL" if cell.code == KILLED else str(cell.code)
    return f"{cell.status} ({code}); {cell.model}, {cell.checkpoint}"


def test_the_page_has_the_matrix_that_is_tested() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("HOTFIRE_WRITE_DOCS"):
        text = re.sub(r"\| fault \|.*?(?=\n\n)", lambda _: table(), text, flags=re.DOTALL)
        text = re.sub(r"\*\*\d+ cells\*\*", f"**{len(CELLS)} cells**", text)
        PAGE.write_text(text, encoding="utf-8")
    assert table() in text, "run: HOTFIRE_WRITE_DOCS=1 pytest tests/faults -k page"
    assert f"**{len(CELLS)} cells**" in text


def test_every_cell_is_there_once_and_every_fault_has_one() -> None:
    named = [(cell.fault, cell.phase) for cell in CELLS]
    assert len(named) == len(set(named)) >= 60
    assert {fault for fault, _ in named} == set(FAULTS)
    assert {phase for _, phase in named} == set(PHASES)
