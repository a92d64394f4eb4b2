"""What one host of the process backend is: its files, its names, its limits, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotfire.runtime.backends import spawn
from hotfire.runtime.errors import DataError

if TYPE_CHECKING:
    from tests.runtime.backends.conftest import Lab


def test_opt_ml_is_the_hosts_own_and_the_rest_of_opt_stays(lab: Lab) -> None:
    outside = {path.name for path in Path("/opt").glob("*")}
    with lab.open() as session:
        code, text = lab.run(session, "ls /opt; echo m > /opt/ml/model/weights; touch /opt/new")
        model = lab.directory().ml.model / "weights"
        assert code == 0
        assert model.read_text() == "m\n"
        assert model.stat().st_uid == os.getuid()
    assert set(text.split()) == outside | {"ml"}
    assert not Path("/opt/new").exists()


def test_two_hosts_each_see_their_own(lab: Lab) -> None:
    script = "hostname; pwd; id -u; echo $$; hostname > /opt/ml/model/me"
    with lab.open("algo-1", "algo-2") as session:
        for host in ("algo-1", "algo-2"):
            name = f"ip-10-0-0-{host[-1]}.ec2.internal\n"
            assert lab.run(session, script, host=host) == (0, name + "/\n0\n1\n")
            assert (lab.directory(host).ml.model / "me").read_text() == name


def test_names_of_the_job_resolve(lab: Lab) -> None:
    with lab.open("algo-1", "algo-2") as session:
        places = session.places
        code, text = lab.run(
            session, "getent hosts algo-1 algo-2 $(hostname) localhost", host="algo-2"
        )
    assert code == 0
    found = [line.split()[0] for line in text.splitlines()]
    assert found[:3] == [
        places["algo-1"].address,
        places["algo-2"].address,
        places["algo-2"].address,
    ]
    assert places["algo-1"].address != places["algo-2"].address
    assert all(place.address.startswith("127.") for place in places.values())
    assert not any(place.address.startswith("127.0.0.") for place in places.values())


def test_environment_descriptors_signals_and_umask_are_exactly_those_planned(lab: Lab) -> None:
    script = (
        "import os, signal, resource, sys\n"
        "print(sorted(os.environ.items()))\n"
        "print(sorted(os.listdir('/proc/self/fd')), os.readlink('/proc/self/fd/0'))\n"
        "print(oct(os.umask(0)), os.getsid(0) == os.getpid() == 1)\n"
        "print([n for n in signal.valid_signals() if n not in (2, 13, 25) and"
        " signal.getsignal(n) not in (signal.SIG_DFL, None)], signal.pthread_sigmask(0, ()))\n"
        "print([int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('SigBlk')])\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "print(soft == min(hard, 1 << 20) if hard > 0 else soft == 1 << 20)\n"
    )
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
    stray, stray_write = os.pipe()
    os.set_inheritable(stray_write, True)
    try:
        with lab.open() as session:
            code, text = lab.run(
                session,
                ("python3", "-I", "-c", script),
                env={"NAME": "é \n\"' \udcff"},
            )
    finally:
        signal.signal(signal.SIGUSR2, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(stray)
        os.close(stray_write)
    lines = text.splitlines()
    assert code == 0
    assert "('NAME', 'é \\n\"\\' \\udcff')" in lines[0] and lab.mark in lines[0]
    assert lines[0].count("('") <= 4  # PATH, MARK, NAME, and LC_CTYPE, which Python itself may add
    assert lines[1] == "['0', '1', '2', '3'] /dev/null"  # 3 is the listing itself
    assert lines[2] == "0o22 True"
    assert lines[3] == "[] set()"
    assert lines[4] == "[0]"
    assert lines[5] == "True"


def test_log_is_appended_to_by_both_streams_in_order(lab: Lab) -> None:
    with lab.open() as session:
        lab.directory().log.write_text("before\n")
        code, text = lab.run(session, "for i in 1 2; do echo out $i; echo err $i >&2; done")
    assert (code, text) == (0, "before\nout 1\nerr 1\nout 2\nerr 2\n")


def test_writes_after_a_truncation_leave_no_hole(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(session, "echo one; while ! test -e /opt/ml/go; do :; done; echo two")
        lab.until(lambda: lab.directory().log.read_text() == "one\n")
        os.truncate(lab.directory().log, 0)
        (lab.directory().ml.root / "go").touch()
        assert container.wait(20) == 0
        assert lab.directory().log.read_text() == "two\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 42", 42), ("exit 255", 255), ("kill -9 $$; exit 3", 3)],
)
def test_exit_codes(lab: Lab, script: str, code: int) -> None:
    with lab.open() as session:  # the first process of a pid namespace cannot be killed from inside
        assert lab.run(session, script)[0] == code


def test_death_by_signal_is_128_and_the_signal(lab: Lab) -> None:
    crash = "import ctypes, faulthandler; ctypes.string_at(0)"
    with lab.open() as session:
        assert lab.run(session, ("python3", "-I", "-c", crash))[0] == 128 + signal.SIGSEGV
        container = lab.start(session, "sleep 100")
        container.kill()
        assert container.wait() == container.poll() == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("no-such-program",), 127, "hotfire: no-such-program: not found"),
        (("/no/such/program",), 127, "hotfire: /no/such/program: not found"),
        (("/etc/passwd",), 126, "hotfire: /etc/passwd: Permission denied"),
        (("/opt/ml",), 126, "hotfire: /opt/ml: Permission denied"),
    ],
)
def test_a_program_that_cannot_be_executed(
    lab: Lab, argv: tuple[str, ...], code: int, said: str
) -> None:
    with lab.open() as session:
        assert lab.run(session, argv) == (code, said + "\n")


def test_a_working_directory_that_is_not_there_is_refused(lab: Lab) -> None:
    with lab.open() as session, pytest.raises(DataError, match="/no/where"):
        lab.start(session, "true", cwd="/no/where")


def test_nothing_survives_the_first_process(lab: Lab) -> None:
    """Background children, one in a session of its own, that hold stdout open and ignore signals."""
    script = (
        "trap '' TERM HUP; sleep 1000 & setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' &"
        " echo up; sleep 0.2; exit 7"
    )
    with lab.open() as session:
        container = lab.start(session, script)
        lab.until(lambda: len(container.pids()) >= 5)
        first, *others = container.pids()
        assert container.id == str(first)
        assert set(lab.living()) >= {first}
        assert container.wait(20) == 7
        assert container.pids() == []
        assert lab.living() == []
        assert not any(Path(f"/proc/{pid}").exists() for pid in others)


def test_stop_lets_the_program_end_itself(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(
            session, "trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.02; done"
        )
        lab.until(lambda: "up" in lab.directory().log.read_text())
        assert container.stop(20) == 5
        assert lab.directory().log.read_text() == "up\nasked\n"


def test_stop_kills_after_the_grace_period(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(session, "trap '' TERM; echo up; sleep 1000 & wait; sleep 1000")
        lab.until(lambda: "up" in lab.directory().log.read_text())
        began = time.monotonic()
        assert container.stop(0.3) == 137
        assert time.monotonic() - began >= 0.3
        assert lab.living() == []


def test_signals_go_to_the_first_process_and_are_harmless_after_its_end(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(
            session,
            "trap 'echo one' USR1; trap 'exit 3' USR2; echo up; while :; do sleep 0.02; done",
        )
        lab.until(lambda: "up" in lab.directory().log.read_text())
        assert container.poll() is None
        assert container.wait(0.05) is None
        container.signal(signal.SIGUSR1)
        lab.until(lambda: "one" in lab.directory().log.read_text())
        container.signal(signal.SIGUSR2)
        assert container.wait(10) == 3
        container.signal(signal.SIGUSR2)
        container.kill()
        assert container.stop(1) == 3
        container.remove()
        container.remove()
        assert container.wait() == 3


def test_several_threads_wait_for_one_host(lab: Lab) -> None:
    codes: list[int | None] = []
    with lab.open() as session:
        container = lab.start(session, "sleep 0.3; exit 9")
        threads = [
            threading.Thread(target=lambda: codes.append(container.wait())) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert codes == [9] * 6


def test_a_host_outlives_the_thread_that_started_it(lab: Lab) -> None:
    started = []
    with lab.open() as session:
        thread = threading.Thread(
            target=lambda: started.append(lab.start(session, "sleep 0.4; exit 4"))
        )
        thread.start()
        thread.join()
        assert started[0].wait(20) == 4


def test_a_launcher_that_is_warm_answers_and_then_starts_the_host(lab: Lab) -> None:
    spawn.warm_up()
    (warm,) = spawn._ready
    for _ in range(2):
        assert spawn.ask("probe", {"tries": [("nothing", 0)]}) == {"found": {"nothing": 0}}
    assert spawn._ready == [warm]
    with lab.open() as session:
        assert lab.run(session, "echo done") == (0, "done\n")
    assert spawn._ready == []
    assert warm.process.poll() is not None


def test_a_warm_launcher_that_was_killed_is_not_missed(lab: Lab) -> None:
    spawn.warm_up()
    (warm,) = spawn._ready
    warm.process.kill()
    warm.process.wait()
    with lab.open() as session:
        assert lab.run(session, "echo done") == (0, "done\n")
    assert spawn._ready == []


def test_a_warm_launcher_ends_with_whoever_never_needed_it(lab: Lab) -> None:
    code = (
        "from hotfire.runtime.backends import spawn\n"
        "spawn.warm_up()\n"
        "print(spawn._ready[0].process.pid)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    lab.until(lambda: not Path(f"/proc/{done.stdout.strip()}/exe").exists())


def test_leaving_the_session_ends_hosts_that_still_run(lab: Lab) -> None:
    with pytest.raises(KeyboardInterrupt), lab.open("algo-1", "algo-2") as session:
        containers = [
            lab.start(session, "sleep 1000 & sleep 1000", host=h) for h in ("algo-1", "algo-2")
        ]
        lab.until(lambda: len(lab.living()) >= 4)
        raise KeyboardInterrupt
    assert [container.poll() for container in containers] == [137, 137]
    assert lab.living() == []


def test_shared_memory_is_the_hosts_own(lab: Lab) -> None:
    with lab.open() as session:
        code, text = lab.run(
            session,
            f"ls -A /dev/shm; echo x > /dev/shm/{lab.mark}; stat -f -c %T /dev/shm; stat -c %a /dev/shm",
        )
    assert (code, text) == (0, "tmpfs\n1777\n")
    assert not Path(f"/dev/shm/{lab.mark}").exists()


def test_peak_memory_of_the_largest_process(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(session, ("python3", "-I", "-c", "x = b'x' * 100_000_000"))
        assert container.wait(20) == 0
        assert container.max_rss_bytes is not None
        assert 100_000_000 < container.max_rss_bytes < 200_000_000


def test_the_scratch_directory_goes_whatever_is_in_it(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(session, "sleep 100")
        deep = lab.directory().scratch / "x" / "y"
        deep.mkdir(parents=True)
        (deep / "f").touch()
        deep.chmod(0)
        deep.parent.chmod(0)
        container.remove()
        assert not lab.directory().scratch.exists()
        assert lab.directory().ml.model.is_dir()
        assert lab.directory().log.is_file()
