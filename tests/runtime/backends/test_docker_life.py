"""Jobs in containers beside their straight course: channels that flow, a shell, and trouble of every kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runtime.backends.conftest import Desk

pytestmark = pytest.mark.docker


def lines_until(stream: IO[str] | None, word: str) -> list[str]:
    """What is said up to the line with that word; all there is where none has it."""
    said = []
    for line in stream or ():
        said.append(line)
        if word in line:
            break
    return said


# --- channels ----------------------------------------------------------------------------------


def test_a_pipe_channel_flows_into_a_container(desk: Desk) -> None:
    """Twice: the FIFO of the second epoch has another name (contract 3.4)."""
    (desk.root / "data" / "g").write_text("!" * 200_000)
    desk.script(
        "import os\n"
        "for epoch in range(2):\n"
        "    with open(f\"{os.environ['SM_CHANNEL_TRAIN']}_{epoch}\", 'rb') as pipe: data = pipe.read()\n"
        "    print('epoch', epoch, len(data), data[:3])\n"
    )
    done = desk.run("--input", "train=data", "--input-mode", "train=Pipe")
    assert done.returncode == 0, done.stderr
    wanted = [f"epoch {epoch} 200002 b'42!'" for epoch in range(2)]
    assert [line for line in done.stdout.splitlines() if line.startswith("epoch")] == wanted


_READS = """
import os
top = os.environ["SM_CHANNEL_TRAIN"]
print("read", open(top + "/f").read(), sorted(os.listdir(top)))
try: open(top + "/new", "w"); print("written")
except OSError as error: print("refused")
"""


def test_a_fast_file_channel_is_read_only_in_a_container(desk: Desk) -> None:
    desk.script(_READS)
    done = desk.run("--input", "train=data", "--input-mode", "train=FastFile")
    assert done.returncode == 0, done.stderr
    assert "read 42 ['f']" in done.stdout
    assert "refused" in done.stdout


def test_objects_of_s3_are_read_in_a_container_as_they_are_needed(
    desk: Desk, s3_bucket: str, s3_server: object
) -> None:
    """By FUSE where this machine has it, by a download where not; the container sees no difference."""
    s3_server.client().put_object(Bucket=s3_bucket, Key="d/f", Body=b"42")  # type: ignore[attr-defined]
    desk.script(_READS)
    desk.environ |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    done = desk.run("--input", f"train=s3://{s3_bucket}/d/", "--input-mode", "train=FastFile")
    assert done.returncode == 0, done.stderr
    assert "read 42 ['f']" in done.stdout
    assert "refused" in done.stdout


# --- a shell -----------------------------------------------------------------------------------


def shell(desk: Desk, name: str, script: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hotfire.entrypoints", "shell", name, "--", "sh", "-c", script]
    return desk.call(argv)


def test_a_shell_in_a_live_host_and_in_a_fresh_one(desk: Desk) -> None:
    desk.script(
        "import os, time\nopen('/opt/ml/model/mine', 'w').close()\nprint('up', flush=True)\n"
        "while not os.path.exists('/opt/ml/model/go'): time.sleep(0.1)\n"
    )
    argv = desk.argv("--name", "asked", "--input", "train=data", "--env", "MINE=1")
    with subprocess.Popen(
        [*argv, "--output", str(desk.root / "out")],
        cwd=desk.root,
        env=desk.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        lines_until(process.stdout, "up")
        script = "ls /opt/ml/model; cat /opt/ml/input/data/train/f; echo $MINE; touch /opt/ml/model/go; exit 7"
        live = shell(desk, "asked", script)
        assert process.wait(60) == 0
    assert (live.returncode, live.stdout.split()) == (7, ["mine", "421"])
    script = "ls /opt/ml/model; cat /opt/ml/input/data/train/f; hostname; exit 8"
    fresh = shell(desk, "asked", script)
    assert fresh.returncode == 8, fresh.stderr
    assert fresh.stdout.startswith("42ip-10-")


# --- interrupted -------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["Starting", "Downloading", "Training", "up", "Uploading"])
def test_ctrl_c_at_every_phase_leaves_nothing(desk: Desk, moment: str) -> None:
    """The desk counts what is left. Whoever was not asked before its end has ended well."""
    # Packing this takes a moment.
    big = "open('/opt/ml/model/big', 'wb').write(os.urandom(100 << 20))\n"
    end = big if moment == "Uploading" else "time.sleep(600)\n"
    desk.script(
        "import os, signal, sys, time\n"
        "def stop(*_): open('/opt/ml/model/saved', 'w').close(); sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, stop)\nprint('up', flush=True)\n{end}"
    )
    argv = desk.argv("--name", "stopped", "--input", "train=data")
    with subprocess.Popen(
        [*argv, "--output", str(desk.root / "out")],
        cwd=desk.root,
        env=desk.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = lines_until(process.stdout, moment)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        said += process.stdout.readlines()
        code = process.wait(60)
    assert code == (0 if moment == "Uploading" else 3), "".join(said)
    if moment == "up":
        assert desk.members("stopped") == ["saved"]
    record = (desk.root / "home" / "jobs" / "stopped" / "record.json").read_text()
    assert ("Completed" if moment == "Uploading" else "Stopped") in record
    assert not list(Path(desk.root / "home").glob("jobs/*/attempts/*/*/scratch"))
