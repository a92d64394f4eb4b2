"""SIGTERM and its kind at every stage, as PID 1 and below an init."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SAVES = """\
import signal, sys, time
from pathlib import Path
def save(number, frame):
    time.sleep(0.5)
    Path("saved").write_text(signal.Signals(number).name)
    sys.exit({code})
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
Path("ready").touch()
time.sleep(60)
"""
WAITS = "import time\nfrom pathlib import Path\nPath('ready').touch()\ntime.sleep(60)\n"


@pytest.fixture(params=["below an init", "as PID 1"])
def place(request: pytest.FixtureRequest, container: Any) -> Any:
    """The container in both positions; `signal_train` reaches ``train`` itself."""
    if request.param == "as PID 1":
        container.prefix = request.getfixturevalue("namespaces")
    return container


def signal_train(container: Any, process: Any, number: int) -> None:
    if not container.prefix:
        process.send_signal(number)
        return
    # unshare stays outside the namespace and passes nothing on; its child is PID 1 inside.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("code", [0, 4])
def test_the_script_may_save_and_its_exit_code_counts(
    place: Any, tools: Any, number: signal.Signals, code: int
) -> None:
    place.write("train.py", SAVES.format(code=code))
    place.configure(sagemaker_program="train.py")
    process = place.start()
    tools.wait_for((place.code / "ready").exists, "the script")
    signal_train(place, process, number)
    time.sleep(0.1)
    signal_train(place, process, number)
    result = place.finish(process)
    assert result.code == code
    assert (place.code / "saved").read_text() == number.name
    assert sum("passed on to the workers" in line for line in result.talk) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_script_that_does_not_care_dies_of_it(
    place: Any, tools: Any, number: signal.Signals, code: int
) -> None:
    place.write("train.py", WAITS)
    place.configure(sagemaker_program="train.py")
    process = place.start()
    tools.wait_for((place.code / "ready").exists, "the script")
    signal_train(place, process, number)
    result = place.finish(process)
    assert result.code == code
    assert result.failure.startswith(
        "rank 0: KeyboardInterrupt" if number == signal.SIGINT else "rank 0: ended by SIGTERM"
    )


def test_a_script_that_refuses_is_killed_after_the_grace_period(place: Any, tools: Any) -> None:
    place.write(
        "train.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    )
    place.configure(sagemaker_program="train.py")
    place.env["HOTFIRE_GRACE"] = "1"
    process = place.start()
    tools.wait_for((place.code / "ready").exists, "the script")
    signal_train(place, process, signal.SIGTERM)
    result = place.finish(process, timeout=15)
    assert result.code == 137
    assert result.failure.startswith("rank 0: killed, because it did not end within its time")


def test_data_loaders_live_on_while_the_script_saves(container: Any, tools: Any) -> None:
    """The script alone is told: signalling its whole group would end the workers it needs for saving."""
    script = (
        "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        + SAVES.format(code=0).replace(
            "time.sleep(0.5)", "time.sleep(0.5); assert child.poll() is None"
        )
    )
    container.write("train.py", script)
    container.configure(sagemaker_program="train.py")
    process = container.start()
    tools.wait_for((container.code / "ready").exists, "the script")
    process.send_signal(signal.SIGTERM)
    assert container.finish(process).code == 0


def test_a_program_behind_a_shell_is_told_too(container: Any, tools: Any) -> None:
    container.write("job.sh", f"#!/bin/sh\n{sys.executable} job.py\n")
    container.write("job.py", SAVES.format(code=0))
    container.configure(sagemaker_program="job.sh")
    process = container.start()
    tools.wait_for((container.code / "ready").exists, "the program")
    process.send_signal(signal.SIGTERM)
    container.finish(process)
    tools.wait_for((container.code / "saved").exists, "the save", timeout=1)


def test_other_signals_are_passed_on_and_end_nothing(place: Any, tools: Any) -> None:
    place.write(
        "train.py",
        "import signal, time\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGUSR1, lambda *_: Path('got').touch())\n"
        "Path('ready').touch()\n"
        "while not Path('got').exists(): time.sleep(0.05)\n",
    )
    place.configure(sagemaker_program="train.py")
    process = place.start()
    tools.wait_for((place.code / "ready").exists, "the script")
    signal_train(place, process, signal.SIGUSR1)
    assert place.finish(process).code == 0


def test_a_stop_while_a_device_tool_hangs(place: Any, tools: Any) -> None:
    hanging = place.root / "bin" / "neuron-ls"
    hanging.write_text(f"#!/bin/sh\ntouch {place.root}/asked\nexec sleep 60\n")
    hanging.chmod(0o755)
    place.write("train.py", "")
    process = place.start()
    tools.wait_for((place.root / "asked").exists, "neuron-ls")
    signal_train(place, process, signal.SIGTERM)
    result = place.finish(process, timeout=10)
    assert (result.code, result.failure) == (143, "stopped by SIGTERM before the script started")


def test_a_stop_while_hosts_are_waited_for(place: Any, tools: Any) -> None:
    place.write("train.py", "")
    place.hosts("algo-1", "no-such-host.invalid")
    place.configure(sagemaker_program="train.py")
    place.env["LOCALDOMAIN"] = "invalid"
    process = place.start()
    time.sleep(1.0)
    assert process.poll() is None
    signal_train(place, process, signal.SIGINT)
    assert place.finish(process, timeout=30).code == 130


def test_what_a_killed_container_left_goes_with_the_next_one(container: Any, tools: Any) -> None:
    container.write("train.py", WAITS)
    container.configure(sagemaker_program="train.py")
    killed, other = container.start(), container.start()
    for process in (killed, other):
        mark = f"hotfire-worker-{process.pid}-"
        tools.wait_for(lambda mark=mark: tools.processes("hotfire.runtime.xla.exec", mark), mark)
    killed.kill()
    for pid in tools.processes("hotfire.runtime.xla.exec", f"hotfire-worker-{killed.pid}-"):
        os.kill(pid, signal.SIGKILL)
    killed.communicate()
    left = list(Path("/dev/shm").glob(f"hotfire-worker-{killed.pid}-*"))
    container.write("next.py", "")
    container.configure(sagemaker_program="next.py")
    assert container.run().code == 0
    assert len(left) == 1
    assert not left[0].exists()
    # Another that still runs keeps its own.
    assert list(Path("/dev/shm").glob(f"hotfire-worker-{other.pid}-*"))
    other.send_signal(signal.SIGTERM)
    assert container.finish(other).code == 143


def test_orphans_are_reaped(place: Any, tools: Any) -> None:
    """Grandchildren whose parent is gone become train's; the script counts zombies among them."""
    place.write(
        "train.py",
        """\
import os, subprocess, time
from pathlib import Path

for _ in range(20):
    subprocess.run(["sh", "-c", "(sleep 0.1) & exit"], start_new_session=True)
lasting = subprocess.run(
    ["sh", "-c", "sleep 30 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True, check=True
).stdout.strip()
stat = Path(f"/proc/{lasting}/stat").read_text().rpartition(")")[2].split()
print("adopted:", int(stat[1]) == os.getppid())
time.sleep(1)

def zombies():
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += fields[0] == "Z" and int(fields[1]) == os.getppid()
    return found

end = time.monotonic() + 5
while zombies() and time.monotonic() < end:
    time.sleep(0.1)
print("zombies:", zombies(), "parent:", os.getppid())
""",
    )
    place.configure(sagemaker_program="train.py")
    result = place.run()
    assert result.code == 0
    assert result.out.startswith("adopted: True\nzombies: 0 ")
    assert ("parent: 1\n" in result.out) == bool(place.prefix)
