"""What every backend promises: one suite, each test against processes and against containers."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from hotfire.runtime.backend import (
    Attempt,
    Backend,
    Container,
    ContainerSpec,
    Mount,
    MountMode,
    Session,
)
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Event, Note
from hotfire.runtime.layout import HostDir

pytestmark = pytest.mark.docker


@dataclass
class Bench:
    """One backend, and what it takes to start a shell script in a host of it."""

    root: Path
    make: Callable[[], Backend]
    image: str = ""
    events: list[Event] = field(default_factory=list)
    dirs: dict[str, HostDir] = field(default_factory=dict)

    @contextlib.contextmanager
    def open(self, *hosts: str, isolated: bool = False) -> Iterator[Session]:
        base = self.root / f"attempt {len(list(self.root.iterdir()))}"
        self.dirs = {host: HostDir(base / host) for host in hosts or ("algo-1",)}
        network = "private" if isolated else "host"
        attempt = Attempt(
            job="A-job.1", number=1, dirs=self.dirs, network=network, isolated=isolated
        )
        with self.make().open(attempt, self.events.append) as session:
            for directory in self.dirs.values():
                for path in directory.ml.directories():
                    path.mkdir(parents=True)
            yield session

    def spec(
        self,
        session: Session,
        script: str,
        *mounts: Mount,
        host: str = "algo-1",
        env: dict[str, str] | None = None,
    ) -> ContainerSpec:
        words = ("/bin/sh", "-c", script)
        return ContainerSpec(
            job="A-job.1",
            host=host,
            hostname=f"ip-10-0-0-{host[-1]}.ec2.internal",
            argv=words[1:] if self.image else words,
            entrypoint=words[:1] if self.image else None,
            image=self.image,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})},
            dir=self.dirs[host],
            place=session.places[host],
            mounts=mounts,
        )

    def start(
        self,
        session: Session,
        script: str,
        *mounts: Mount,
        host: str = "algo-1",
        env: dict[str, str] | None = None,
    ) -> Container:
        return session.start(self.spec(session, script, *mounts, host=host, env=env))

    def run(
        self,
        script: str,
        *mounts: Mount,
        env: dict[str, str] | None = None,
    ) -> tuple[int | None, str]:
        """One host from its start to its end: exit code and log."""
        with self.open() as session:
            container = self.start(session, script, *mounts, env=env)
            code = container.wait(60)
            container.remove()
            return code, self.dirs["algo-1"].log.read_text()


@pytest.fixture(params=["process", "docker"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    root = tmp_path / "a b,c:d\\e'\"é=f"
    root.mkdir()
    if request.param == "process":
        from hotfire.runtime.backends.process import ProcessBackend

        return Bench(root, ProcessBackend)
    from hotfire.runtime.backends.docker import DockerBackend

    environ = request.getfixturevalue("docker_engine")
    image = request.getfixturevalue("docker_base")
    return Bench(root, lambda: DockerBackend(environ=environ), image=image)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def test_exit_code_output_and_files(bench: Bench) -> None:
    script = "echo out; echo err >&2; echo m > /opt/ml/model/weights; hostname; exit 3"
    code, text = bench.run(script)
    assert code == 3
    assert sorted(text.splitlines()) == ["err", "ip-10-0-0-1.ec2.internal", "out"]
    assert (bench.dirs["algo-1"].ml.model / "weights").read_text() == "m\n"


def test_success_and_an_empty_log(bench: Bench) -> None:
    assert bench.run("true") == (0, "")


def test_death_by_signal_is_128_and_the_signal(bench: Bench) -> None:
    # A child of the shell: a first process is immune to its own signals without a handler.
    code, _ = bench.run("sh -c 'kill -SEGV $$'; exit $?")
    assert code == 128 + signal.SIGSEGV


def test_environment_reaches_the_program_byte_for_byte(bench: Bench) -> None:
    value = "a\nb 'c' \"d\" $HOME `x` \\ é %"
    code, text = bench.run('printf %s "$ODD"', env={"ODD": value})
    assert (code, text) == (0, value)


def test_nothing_of_the_callers_environment_is_inherited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLERS_SECRET", "s3cret")
    code, text = bench.run("env")
    assert code == 0
    assert "CALLERS_SECRET" not in text


def test_there_is_no_terminal_and_no_input(bench: Bench) -> None:
    code, text = bench.run("test -t 0 || test -t 1 || echo none; cat | wc -c")
    assert (code, text.split()) == (0, ["none", "0"])


def test_three_kinds_of_mounts(bench: Bench) -> None:
    sources = {}
    for name in ("ro", "rw", "cow"):
        sources[name] = bench.root / f"my, {name}: x'y"
        sources[name].mkdir()
        (sources[name] / "old").write_text(name)
    mounts = [
        Mount(
            source=source,
            target=PurePosixPath("/opt/ml/input/data") / name,
            mode=MountMode(name),
        )
        for name, source in sources.items()
    ]
    script = (
        "cd /opt/ml/input/data; cat */old; echo; for n in ro rw cow; do "
        "(echo new > $n/new) 2>/dev/null && echo $n; done; echo changed > cow/old; cat cow/old"
    )
    code, text = bench.run(script, *mounts)
    assert code == 0
    assert text.splitlines() == ["cowrorw", "rw", "cow", "changed"]
    assert sorted(path.name for path in sources["rw"].iterdir()) == ["new", "old"]
    assert [path.name for path in sources["cow"].iterdir()] == ["old"]
    assert (sources["cow"] / "old").read_text() == "cow"


def test_a_file_as_a_mount(bench: Bench) -> None:
    source = bench.root / "one file.tar.gz"
    source.write_text("content")
    target = PurePosixPath("/opt/ml/input/code/sourcedir.tar.gz")
    mount = Mount(source=source, target=target, mode=MountMode.READ_ONLY)
    assert bench.run(f"cat {target}", mount) == (0, "content")


def test_a_missing_source_is_named(bench: Bench) -> None:
    gone = bench.root / "gone"
    mount = Mount(source=gone, target=PurePosixPath("/opt/ml/x"), mode=MountMode.READ_ONLY)
    with bench.open() as session, pytest.raises(DataError, match="gone is not there"):
        bench.start(session, "true", mount)


def test_hosts_find_each_other_by_name_and_have_trees_of_their_own(bench: Bench) -> None:
    with bench.open("algo-1", "algo-2") as session:
        places = session.places
        script = "getent hosts algo-1 algo-2; hostname > /opt/ml/model/me"
        for host in ("algo-1", "algo-2"):
            assert bench.start(session, script, host=host).wait(60) == 0
        for host in ("algo-1", "algo-2"):
            words = bench.dirs[host].log.read_text().split()
            assert words == [places["algo-1"].address, "algo-1", places["algo-2"].address, "algo-2"]
            me = (bench.dirs[host].ml.model / "me").read_text()
            assert me == f"ip-10-0-0-{host[-1]}.ec2.internal\n"


_SERVER = (
    "import socket; s = socket.create_server(('algo-1', 7777)); c, a = s.accept(); print(c.recv(9))"
)
_CLIENT = (
    "import socket, time\n"
    "for _ in range(200):\n"
    "    try: c = socket.create_connection(('algo-1', 7777), 1); break\n"
    "    except OSError: time.sleep(0.05)\n"
    "c.sendall(b'gradients')\n"
)


def test_hosts_talk(bench: Bench) -> None:
    with bench.open("algo-1", "algo-2") as session:
        server = bench.start(session, f'exec python3 -c "{_SERVER}"')
        client = bench.start(session, f'exec python3 -c "{_CLIENT}"', host="algo-2")
        assert (client.wait(60), server.wait(60)) == (0, 0)
        assert bench.dirs["algo-1"].log.read_text() == "b'gradients'\n"


_KNOCK = (
    "import socket, sys\n"
    "for address in sys.argv[2:]:\n"
    "    try: socket.create_connection((address, int(sys.argv[1])), 1); print('in', address)\n"
    "    except OSError: print('out')\n"
)


def test_isolated_hosts_reach_each_other_and_not_this_machine(bench: Bench) -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as listener,
        bench.open("algo-1", "algo-2", isolated=True) as session,
    ):
        server = bench.start(session, f'exec python3 -c "{_SERVER}"')
        client = bench.start(session, f'exec python3 -c "{_CLIENT}"', host="algo-2")
        assert (client.wait(60), server.wait(60)) == (0, 0)
        client.remove()
        port = listener.getsockname()[1]
        addresses = {
            one[4][0] for one in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)
        }
        own = session.places["algo-2"].address.rpartition(".")[0]
        gateways = {f"{own}.{last}" for last in (1, 33, 65, 97, 129, 161, 193, 225)}
        tried = " ".join(sorted(addresses | gateways | {"172.17.0.1"}))
        script = f'exec python3 -c "{_KNOCK}" {port} {tried}'
        bench.dirs["algo-2"].log.unlink()
        assert bench.start(session, script, host="algo-2").wait(60) == 0
        found = set(bench.dirs["algo-2"].log.read_text().splitlines())
        # The machine's own name may be a loopback address, which is then the host's own.
        assert {line for line in found if not line.startswith("in 127.")} == {"out"}


_PATIENT = "trap 'echo saved; exit 7' TERM; touch /opt/ml/model/up; while :; do sleep 0.05; done"
_DEAF = "trap '' TERM; touch /opt/ml/model/up; while :; do sleep 0.05; done"


def ready(bench: Bench) -> Callable[[], bool]:
    return (bench.dirs["algo-1"].ml.model / "up").exists


def test_stop_lets_the_program_end_itself(bench: Bench) -> None:
    with bench.open() as session:
        container = bench.start(session, _PATIENT)
        wait_until(ready(bench))
        assert container.poll() is None
        assert container.wait(0.05) is None
        assert container.stop(60) == 7
        assert container.poll() == 7
        assert bench.dirs["algo-1"].log.read_text() == "saved\n"


def test_stop_kills_after_the_grace_period(bench: Bench) -> None:
    with bench.open() as session:
        container = bench.start(session, _DEAF)
        wait_until(ready(bench))
        assert container.stop(0.3) == 128 + signal.SIGKILL


def test_signals_reach_the_program_and_are_harmless_after_its_end(bench: Bench) -> None:
    script = "trap 'exit 9' USR1; touch /opt/ml/model/up; while :; do sleep 0.05; done"
    with bench.open() as session:
        container = bench.start(session, script)
        wait_until(ready(bench))
        container.signal(signal.SIGUSR1)
        assert container.wait(60) == 9
        container.signal(signal.SIGTERM)
        container.kill()
        assert container.stop(1) == 9


def test_several_threads_wait(bench: Bench) -> None:
    codes: list[int | None] = []
    with bench.open() as session:
        container = bench.start(session, "sleep 0.3; exit 4")
        threads = [
            threading.Thread(target=lambda: codes.append(container.wait(60))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert codes == [4] * 4


def test_process_ids_are_this_machines(bench: Bench) -> None:
    with bench.open() as session:
        container = bench.start(session, "touch /opt/ml/model/up; sleep 60 & wait")
        wait_until(ready(bench))
        wait_until(lambda: len(container.pids()) >= 2)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in container.pids()]
        assert any(b"sleep\x0060" in command for command in commands)
        container.kill()
        assert container.pids() == []


def test_a_child_that_keeps_the_log_open_does_not_keep_the_host_alive(bench: Bench) -> None:
    with bench.open() as session:
        container = bench.start(session, "(trap '' TERM HUP; sleep 600) & exit 5")
        assert container.wait(30) == 5


def test_leaving_the_session_ends_what_still_runs(bench: Bench) -> None:
    with bench.open() as session:
        container = bench.start(session, _DEAF)
        wait_until(ready(bench))
        pid = container.pids()[0]
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert not bench.dirs["algo-1"].scratch.exists()


def test_an_exception_inside_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), bench.open() as session:
        pid = bench.start(session, "sleep 600").pids()[0]
        raise ZeroDivisionError
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_nothing_is_said_that_needs_no_saying(bench: Bench) -> None:
    bench.run("true")
    said = [event.text for event in bench.events if isinstance(event, Note)]
    assert [text for text in said if "ulimit" not in text] == []
