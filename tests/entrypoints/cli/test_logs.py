"""``hotfire logs`` over logs in pieces: while they grow, afterwards, of several hosts, and after a killed supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

OK, INTERNAL, INTERRUPTED = 0, 70, 130
SMALL = {"HOTFIRE_LOG_PIECE": "20kB"}

Eventually = Callable[[Callable[[], object]], None]


def pieces(directory: Path) -> list[Path]:
    return sorted(directory.glob("log.*.gz"))


def numbers(text: str) -> list[int]:
    """Of the lines ``line N`` in a log, whatever else there is."""
    found = (line.rpartition("| ")[2] for line in text.splitlines())
    return [int(line.removeprefix("line ")) for line in found if line.startswith("line ")]


def test_two_hosts_are_followed_from_piece_to_piece(hotfire: Any, eventually: Eventually) -> None:
    hotfire.script(
        "import os, time\n"
        "print('up', flush=True)\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.02)\n"
        "for part in range(40):\n"
        "    for i in range(250): print('line', 250 * part + i)\n"
        "    time.sleep(0.02)\n"
        "print('tab\\t = 7')\n"
    )
    hotfire.env |= SMALL
    go = hotfire.cwd / "go"
    words = ("run", "train.py", "--name", "long", "--instance-count", "2", "--env", f"GO={go}")
    metric = ("--metric", "line=line ([0-9]+)", "--metric", "tab=tab#011 = ([0-9]+)")
    assert hotfire(*words, *metric, "--detach").returncode == OK
    eventually(lambda: hotfire("logs", "long").stdout.count("up\n") == 2)
    followers = [hotfire.start("logs", "-f", "long", *more) for more in ((), (), ("--json",))]
    go.touch()
    plain, other, documents = (one.communicate(timeout=240)[0] for one in followers)
    assert hotfire("wait", "long").returncode == OK

    whole = hotfire("logs", "long").stdout
    assert sorted(plain.splitlines()) == sorted(other.splitlines()) == sorted(whole.splitlines())
    for host in ("algo-1", "algo-2"):
        directory = hotfire.home / "jobs" / "long" / "attempts" / "1" / host
        assert not (directory / "log").exists() and len(pieces(directory)) >= 4
        assert numbers(hotfire("logs", "long", "--host", host).stdout) == list(range(10_000))
        for text in (plain, other, whole):
            lines = [line for line in text.splitlines() if line.startswith(host)]
            assert numbers("\n".join(lines)) == list(range(10_000))
    told = [json.loads(line) for line in documents.splitlines()]
    assert len(told) == len(whole.splitlines())
    assert {one["message"] for one in told} >= {"up", "line 0", "line 9999", "tab#011 = 7"}
    later = [json.loads(line) for line in hotfire("logs", "long", "--json").stdout.splitlines()]
    assert len(later) == len(told)
    for host in ("algo-1", "algo-2"):
        times = [one["timestamp"] for one in later if one["host"] == host]
        assert times == sorted(times)
    found = json.loads(hotfire("metrics", "long", "--json").stdout)["Statistics"]
    assert [(one["name"], one["matches"]) for one in found] == [("line", 20_000), ("tab", 2)]


def test_a_supervisor_killed_among_pieces_loses_and_doubles_no_line(
    hotfire: Any, eventually: Eventually, supervisors: Callable[[], list[int]]
) -> None:
    """Two attempts, the first of them without an end, and nothing left after the deletion."""
    hotfire.script(
        "import itertools, os, time\n"
        "mark = '/opt/ml/checkpoints/mark'\n"
        "first = not os.path.exists(mark)\n"
        "open(mark, 'w').close()\n"
        "for part in itertools.count() if first else range(20):\n"
        "    for i in range(250): print('line', 250 * part + i)\n"
        "    time.sleep(0.005)\n"
    )
    hotfire.retried("cut")
    hotfire.env |= SMALL
    assert hotfire("run", "job.json", "--source-dir", ".", "--detach").returncode == OK
    job = hotfire.home / "jobs" / "cut"
    eventually((hotfire.cwd / "kept" / "mark").exists)
    eventually(lambda: len(pieces(job / "attempts" / "1" / "algo-1")) >= 3)
    (supervisor,) = supervisors()
    os.kill(supervisor, signal.SIGKILL)
    assert hotfire("wait", "cut").returncode == OK

    first = numbers(hotfire("logs", "cut", "--attempt", "1").stdout)
    assert first == list(range(len(first))) and len(first) > 5_000
    assert (job / "attempts" / "1" / "algo-1" / "log").exists(), "nobody has closed the last piece"
    assert numbers(hotfire("logs", "cut").stdout) == list(range(5_000))
    assert hotfire("delete", "cut").returncode == OK
    assert list((hotfire.home / "jobs").iterdir()) == []


def test_output_that_nobody_takes(hotfire: Any) -> None:
    """A reader that has gone is no error, and no output at all is none; a full disk is one, and says so."""
    hotfire.script("print('loss = 1')")
    metric = ("--metric", "loss=loss = ([0-9]+)")
    assert hotfire("run", "train.py", "--name", "told", *metric).returncode == OK
    for words in (
        ("logs", "told"),
        ("logs", "told", "--json"),
        ("metrics", "told", "--csv"),
        ("ps",),
    ):
        reader, gone = os.pipe()
        os.close(reader)
        with os.fdopen(gone, "wb") as pipe, Path("/dev/full").open("wb") as full:
            for out, code, said in ((pipe, OK, ""), (full, INTERNAL, "No space left")):
                done = subprocess.run(
                    hotfire.argv(*words),
                    env=hotfire.env,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                )
                assert (done.returncode, said in done.stderr) == (code, True), done.stderr
                assert "Traceback" not in done.stderr and bool(done.stderr) is bool(said)
        closed = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *hotfire.argv(*words)],
            env=hotfire.env,
            capture_output=True,
            check=False,
        )
        assert (closed.returncode, closed.stderr) == (OK, b"")


def test_ctrl_c_of_a_follower_leaves_the_job_alone(hotfire: Any, eventually: Eventually) -> None:
    hotfire.script("import time\nprint('up', flush=True)\ntime.sleep(100)\n")
    assert hotfire("run", "train.py", "--name", "calm", "--detach").returncode == OK
    follower = hotfire.start("logs", "-f", "calm")
    while follower.stdout.readline() != "up\n":
        assert follower.poll() is None
    follower.send_signal(signal.SIGINT)
    _, stderr = follower.communicate(timeout=60)
    assert (follower.returncode, "interrupted" in stderr) == (INTERRUPTED, True)
    assert hotfire.describe("calm")["TrainingJobStatus"] == "InProgress"
    assert hotfire("stop", "calm").returncode == OK
    hotfire("wait", "calm")
