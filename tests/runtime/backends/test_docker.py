"""What is particular to containers: the engine's refusals, limits, credentials, ownership, what a crash leaves."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hotfire.containers.address import address
from hotfire.containers.engine import Engine, connect
from hotfire.containers.trouble import EngineGone
from hotfire.runtime.backend import Attempt, Container, ContainerSpec, Resources
from hotfire.runtime.backends import docker_doors, docker_network, docker_orphans
from hotfire.runtime.backends.docker import DockerBackend, DockerSession
from hotfire.runtime.backends.docker_container import DockerContainer
from hotfire.runtime.errors import HotfireError, PlatformError, ValidationError
from hotfire.runtime.events import Event, Note
from hotfire.runtime.hosts import started
from hotfire.runtime.layout import HostDir

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[3]


class Yard:
    """One session after another on the real engine."""

    def __init__(self, root: Path, environ: dict[str, str], image: str) -> None:
        self.root, self.environ, self.image = root, environ, image
        self.events: list[Event] = []
        self.directory = HostDir(root / "algo-1")

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    @contextlib.contextmanager
    def open(self, *hosts: str, isolated: bool = False) -> Iterator[DockerSession]:
        dirs = {host: HostDir(self.root / host) for host in hosts or ("algo-1",)}
        attempt = Attempt(job="job", number=1, dirs=dirs, isolated=isolated)
        for directory in dirs.values():
            for path in directory.ml.directories():
                path.mkdir(parents=True, exist_ok=True)
        with DockerBackend(environ=self.environ).open(attempt, self.events.append) as session:
            yield session

    def spec(
        self,
        session: DockerSession,
        *words: str,
        host: str = "algo-1",
        env: dict[str, str] | None = None,
    ) -> ContainerSpec:
        return ContainerSpec(
            job="job",
            host=host,
            hostname="ip-10-1-2-3.ec2.internal",
            image=self.image,
            entrypoint=words[:1] or None,
            argv=words[1:] or ("train",),
            env=env or {},
            dir=HostDir(self.root / host),
            place=session.places[host],
        )

    def ended(self, container: DockerContainer) -> tuple[int | None, str]:
        return container.wait(60), self.directory.log.read_text()


@pytest.fixture
def engine(docker_engine: dict[str, str]) -> Iterator[Engine]:
    with contextlib.closing(connect(docker_engine)) as connected:
        yield connected


@pytest.fixture
def yard(
    docker_engine: dict[str, str], docker_base: str, engine: Engine, tmp_path: Path
) -> Iterator[Yard]:
    """Afterwards the engine has no container, network or volume of ours."""
    yield Yard(tmp_path, docker_engine, docker_base)
    # Others may use the same engine meanwhile.
    left = [
        one
        for one in engine.owned("hotfire.session")
        if one.labels["hotfire.directory"].startswith(str(tmp_path))
    ]
    assert left == []


# --- refusals ----------------------------------------------------------------------------------


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no container engine answers") as caught:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert "systemctl start docker" in caught.value.do


def test_an_engine_elsewhere() -> None:
    with pytest.raises(ValidationError, match=r"tcp://10\.0\.0\.1"):
        connect({"DOCKER_HOST": "tcp://10.0.0.1:2375"})


def test_the_context_of_the_docker_command(tmp_path: Path) -> None:
    import hashlib

    key = hashlib.sha256(b"mine").hexdigest()
    meta = tmp_path / "contexts" / "meta" / key / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text('{"Endpoints": {"docker": {"Host": "unix:///run/mine.sock"}}}')
    (tmp_path / "config.json").write_text('{"currentContext": "mine"}')
    assert address({"DOCKER_CONFIG": str(tmp_path)}) == "unix:///run/mine.sock"


def test_podman_is_refused(tmp_path: Path) -> None:
    """By what Podman 4.3.1 answers; its socket is tried where Docker has none."""
    answers = {
        "version": {"Version": "4.3.1", "ApiVersion": "1.41", "MinAPIVersion": "1.24"},
        "info": {"ServerVersion": "4.3.1", "BuildahVersion": "1.28.2", "InitBinary": ""},
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path.rpartition("/")[2]]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "a socket file"

        def log_message(self, format: str, *args: object) -> None:
            pass

    path = Path("/tmp") / f"hotfire-podman-{os.getpid()}.sock"
    with socketserver.UnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(ValidationError, match="Podman") as caught:
                connect({"DOCKER_HOST": f"unix://{path}"})
        finally:
            server.shutdown()
            path.unlink()
    assert "DOCKER_HOST" in caught.value.do


def test_no_such_image(yard: Yard) -> None:
    with yard.open() as session, pytest.raises(ValidationError) as caught:
        session.start(replace(yard.spec(session, "true"), image="hotfire-neuron"))
    assert "hotfire images build neuron" in caught.value.do


@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize(("program", "code"), [("train", 127), ("/etc/passwd", 126)])
def test_an_entry_point_that_cannot_be_run(
    yard: Yard, init: bool, program: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with yard.open() as session:
        monkeypatch.setattr(session.engine, "has_init", init)
        spec = yard.spec(session)
        spec = spec if program == "train" else replace(spec, argv=(program,))
        found, text = yard.ended(session.start(spec))
    assert found == code
    assert program in text
    assert any("ENTRYPOINT" in note for note in yard.notes)


def test_a_device_that_is_not_here(yard: Yard) -> None:
    with yard.open() as session, pytest.raises(PlatformError, match="neuron99"):
        wanted = Resources(devices=("/dev/neuron99",))
        session.start(replace(yard.spec(session, "true"), resources=wanted))


def test_gpus_without_an_nvidia_runtime(yard: Yard, engine: Engine) -> None:
    if "nvidia" in engine.runtimes:
        pytest.skip("this engine has the NVIDIA runtime")
    with yard.open() as session, pytest.raises(PlatformError) as caught:
        session.start(replace(yard.spec(session, "true"), resources=Resources(gpus=-1)))
    assert "nvidia-container-toolkit" in caught.value.do


# --- what a host is ----------------------------------------------------------------------------


def test_shape_of_a_host(yard: Yard) -> None:
    wanted = Resources(
        shm_bytes=3 << 20,
        cpus=0.5,
        memory_bytes=512 << 20,
        ulimits={"nofile": 1234, "memlock": 65536},
    )
    script = (
        "ls /sys/class/net; df -B1 --output=size /dev/shm | tail -1; ulimit -n; ulimit -l; id -u; pwd;"
        " ls -A /opt/ml; cat /proc/1/comm; echo $HOME"
    )
    with yard.open() as session:
        spec = replace(yard.spec(session, "sh", "-c", script), resources=wanted)
        code, text = yard.ended(session.start(spec))
    assert code == 0
    words = text.split()
    assert words[:7] == ["eth0", "lo", str(3 << 20), "1234", "64", "0", "/"]
    assert words[7:10] == ["input", "model", "output"]
    assert words[10] in ("docker-init", "tini")
    assert words[11] == "/root"


def test_an_image_keeps_its_own_opt_ml_code(yard: Yard, tmp_path: Path) -> None:
    docker = shutil.which("docker", path=f"/usr/bin{os.pathsep}{os.environ['PATH']}")
    assert docker is not None
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {yard.image}\nRUN mkdir -p /opt/ml/code && echo mine > /opt/ml/code/f\n"
    )
    argv = [docker, "build", "-q", "-t", "hotfire-test/code", str(context)]
    subprocess.run(
        argv, check=True, capture_output=True, env={**yard.environ, "DOCKER_BUILDKIT": "0"}
    )
    try:
        with yard.open() as session:
            spec = replace(yard.spec(session, "cat", "/opt/ml/code/f"), image="hotfire-test/code")
            assert yard.ended(session.start(spec)) == (0, "mine\n")
    finally:
        subprocess.run([docker, "rmi", "hotfire-test/code"], check=True, capture_output=True)


def test_out_of_memory_is_137_and_said(yard: Yard) -> None:
    with yard.open() as session:
        spec = yard.spec(session, "python3", "-c", "x = bytearray(300 << 20); print(len(x))")
        spec = replace(spec, resources=Resources(memory_bytes=64 << 20))
        code, _ = yard.ended(session.start(spec))
    assert code == 128 + signal.SIGKILL
    assert any("lack of memory" in note for note in yard.notes)


def test_eight_hosts_meet_and_go_away(yard: Yard) -> None:
    hosts = [f"algo-{number}" for number in range(1, 9)]
    server = (
        "import socket; s = socket.create_server(('', 7000)); n = 0\n"
        "while n < 7: s.accept()[0].close(); n += 1\nprint(n)"
    )
    client = (
        "import socket, time\nwhile True:\n"
        "    try: socket.create_connection(('algo-1', 7000), 1); break\n    except OSError: time.sleep(0.1)\n"
    )
    with yard.open(*hosts) as session:
        specs = [
            yard.spec(session, "python3", "-c", server if host == "algo-1" else client, host=host)
            for host in hosts
        ]
        told: list[str] = []
        with started(session, specs, lambda one: told.append(one.host)) as containers:
            assert [container.host for container in containers] == hosts == sorted(told)
            assert [container.wait(60) for container in containers] == [0] * 8
        assert yard.directory.log.read_text() == "7\n"


def test_a_host_that_cannot_be_removed_keeps_no_other(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["algo-1", "algo-2", "algo-3"]
    with yard.open(*hosts) as session:
        specs = [yard.spec(session, "sleep", "600", host=host) for host in hosts]
        real = session.engine.remove_container
        stuck: list[str] = []

        def remove(container: str) -> None:
            if container in stuck:
                stuck.clear()
                raise PlatformError("device or resource busy")
            real(container)

        monkeypatch.setattr(session.engine, "remove_container", remove)
        with (
            pytest.raises(PlatformError, match="busy"),
            started(session, specs, lambda one: None) as containers,
        ):
            stuck.append(containers[1].id)
        states = [session.engine.state(one.id) for one in containers]
        assert [state is None for state in states] == [True, False, True]


def test_a_host_that_cannot_be_started_takes_the_others_along(yard: Yard) -> None:
    hosts = ["algo-1", "algo-2", "algo-3"]
    with yard.open(*hosts) as session:
        specs = [yard.spec(session, "sleep", "600", host=host) for host in hosts]
        specs[1] = replace(specs[1], resources=Resources(devices=("/dev/neuron99",)))
        up: list[Container] = []
        with pytest.raises(PlatformError, match="neuron99"), started(session, specs, up.append):
            raise AssertionError("it has started")
        assert all(session.engine.state(one.id) is None for one in up)


def test_networks_avoid_what_is_taken() -> None:
    import ipaddress

    assert [docker_network.prefix_for(n) for n in (1, 29, 30, 61, 62)] == [27, 27, 26, 26, 25]
    first = next(docker_network.candidates(27, "seed", []))
    taken = [ipaddress.IPv4Network(f"{first.network_address}/16", strict=False)]
    second = next(docker_network.candidates(27, "seed", taken))
    assert not second.overlaps(taken[0])
    with pytest.raises(ValidationError):
        docker_network.prefix_for(5000)


# --- doors -------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[str]:
    """A service on this machine's loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"you asked for {self.path}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


_ASK = """
import os, time, urllib.request
relative = os.environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
full = "http://169.254.170.2" + relative if relative else os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
for url in (full, os.environ["AWS_ENDPOINT_URL_S3"] + "/bucket"):
    for again in range(100):
        try: print(urllib.request.urlopen(url, timeout=2).read().decode()); break
        except OSError: time.sleep(0.1)
print("AWS_CONTAINER_CREDENTIALS_FULL_URI" in os.environ)
"""


@pytest.mark.parametrize("native", [True, False])
def test_credentials_and_an_endpoint_on_loopback_are_reachable(
    yard: Yard, service: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and os.geteuid() != 0:
        pytest.skip("only root enters the network of a container")
    monkeypatch.setattr(docker_doors, "can_enter", lambda engine: native)
    env = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{service}/v2/credentials/abc",
        "AWS_ENDPOINT_URL_S3": service,
    }
    threads = threading.active_count()
    with yard.open() as session:
        container = session.start(yard.spec(session, "python3", "-c", _ASK, env=env))
        code, text = yard.ended(container)
    assert (code, text.splitlines()) == (
        0,
        ["you asked for /v2/credentials/abc", "you asked for /bucket", str(not native)],
    )
    for _ in range(100):
        if threading.active_count() <= threads:
            break
        time.sleep(0.1)
    assert threading.active_count() <= threads


def test_an_isolated_host_has_no_doors(yard: Yard, service: str) -> None:
    env = {"AWS_ENDPOINT_URL_S3": service}
    script = "import os, urllib.request; urllib.request.urlopen(os.environ['AWS_ENDPOINT_URL_S3'], timeout=2)"
    with yard.open(isolated=True) as session:
        code, text = yard.ended(session.start(yard.spec(session, "python3", "-c", script, env=env)))
    assert code == 1
    assert "refused" in text


def test_certificates_of_this_machine_travel(yard: Yard, tmp_path: Path) -> None:
    bundle = tmp_path / "my ca.pem"
    bundle.write_text("CERTIFICATE")
    env = {
        "SSL_CERT_FILE": str(bundle),
        "AWS_CA_BUNDLE": str(bundle),
        "SSL_CERT_DIR": "/etc/ssl/certs",
    }
    script = 'cat "$SSL_CERT_FILE"; echo " $SSL_CERT_DIR"; test "$SSL_CERT_FILE" = "$AWS_CA_BUNDLE"'
    with yard.open() as session:
        spec = yard.spec(session, "sh", "-c", script, env=env)
        assert yard.ended(session.start(spec)) == (0, "CERTIFICATE \n")


# --- what a crash leaves -----------------------------------------------------------------------

_KILLED = """
import sys, time
from pathlib import Path
from hotfire.runtime.backend import Attempt, ContainerSpec
from hotfire.runtime.backends.docker import DockerBackend
from hotfire.runtime.layout import HostDir
root, image = Path(sys.argv[1]), sys.argv[2]
directory = HostDir(root / "algo-1")
attempt = Attempt(job="killed-job", number=1, dirs={"algo-1": directory})
with DockerBackend().open(attempt, print) as session:
    directory.ml.model.mkdir(parents=True)
    session.start(ContainerSpec(job="killed-job", host="algo-1", hostname="h", image=image,
        entrypoint=("sleep",), argv=("600",), dir=directory, place=session.places["algo-1"]))
    print("started", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_supervisor_left_is_found_and_removed(yard: Yard, tmp_path: Path) -> None:
    env = {**yard.environ, "PYTHONPATH": str(ROOT / "build" / "view")}
    argv = [sys.executable, "-c", _KILLED, str(tmp_path / "k"), yard.image]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "started" not in process.stdout.readline():
            assert process.poll() is None
        # Alive: nobody else's business.
        assert "killed-job" not in {one.job for one in docker_orphans.find(yard.environ)}
        process.kill()
    found = [one for one in docker_orphans.find(yard.environ) if one.job == "killed-job"]
    assert [one.kind for one in found] == ["container", "network"]
    assert all(one.sure for one in found)
    assert found[0].directory == tmp_path / "k"
    assert docker_orphans.sweep(tmp_path / "another", yard.environ) == []
    swept = docker_orphans.sweep(tmp_path / "k", yard.environ)
    assert [one.kind for one in swept] == ["container", "network"]
    assert [one for one in docker_orphans.find(yard.environ) if one.job == "killed-job"] == []


def test_two_jobs_of_one_name_do_not_clash(yard: Yard, tmp_path: Path) -> None:
    other = Yard(tmp_path / "other", yard.environ, yard.image)
    with yard.open() as one, other.open() as two:
        first = one.start(yard.spec(one, "sleep", "600"))
        second = two.start(other.spec(two, "true"))
        assert second.wait(60) == 0
        assert first.poll() is None
        assert one.places["algo-1"].address != two.places["algo-1"].address


@pytest.mark.parametrize("call", ["attach", "start", "state", "create"])
def test_an_interrupt_between_two_calls_leaves_nothing(
    yard: Yard, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The yard counts what is left."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), yard.open() as session:
        monkeypatch.setattr(session.engine, call, interrupted)
        session.start(yard.spec(session, "sleep", "600"))


def test_an_engine_that_goes_away_is_not_waited_for_for_ever(
    yard: Yard, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotfire.runtime.backends import docker_container

    monkeypatch.setattr(docker_container, "ENGINE_PATIENCE", 1.0)
    with yard.open() as session:
        real = session.engine.wait
        gone = threading.Event()

        def wait(container: str) -> int:
            gone.wait(10)
            raise EngineGone("the container engine stopped answering")

        def state(container: str) -> None:
            raise EngineGone("the container engine stopped answering")

        monkeypatch.setattr(session.engine, "wait", wait)
        container = session.start(yard.spec(session, "sleep", "600"))
        monkeypatch.setattr(session.engine, "state", state)
        gone.set()
        assert container.wait(20) == 128 + signal.SIGKILL
        monkeypatch.setattr(session.engine, "wait", real)
    assert any("stopped answering" in note for note in yard.notes)


# --- ownership ---------------------------------------------------------------------------------

_AS_USER = """
import sys, os
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from hotfire.runtime.backend import Attempt, ContainerSpec
from hotfire.runtime.backends.docker import DockerBackend
from hotfire.runtime.layout import HostDir
root, image = Path(sys.argv[1]), sys.argv[2]
directory = HostDir(root / "algo-1")
script = "umask 077; mkdir /opt/ml/model/d; echo w > /opt/ml/model/d/w; chown 7:7 /opt/ml/model/d/w; cat /opt/ml/input/data/train/f"
from hotfire.runtime.backend import Mount, MountMode
from pathlib import PurePosixPath
(root / "src").mkdir(); (root / "src" / "f").write_text("data")
with DockerBackend().open(Attempt(job="j", number=1, dirs={"algo-1": directory}), print) as session:
    for path in directory.ml.directories(): path.mkdir(parents=True)
    c = session.start(ContainerSpec(job="j", host="algo-1", hostname="h", image=image, entrypoint=("sh",),
        argv=("-c", script), dir=directory, place=session.places["algo-1"],
        mounts=(Mount(source=root / "src", target=PurePosixPath("/opt/ml/input/data/train"), mode=MountMode.COPY_ON_WRITE),)))
    code = c.wait(60); c.remove()
weights = directory.ml.model / "d" / "w"
print(code, os.getuid(), weights.stat().st_uid, oct(weights.stat().st_mode & 0o777), weights.read_text().strip(),
    directory.log.read_text(), directory.scratch.exists())
"""


def test_files_belong_to_the_user_afterwards(yard: Yard) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user who may use the engine")
    import tempfile

    import docker as sdk

    group = Path("/var/run/docker.sock").stat().st_gid
    home = Path(tempfile.mkdtemp(prefix="hotfire-user-"))
    try:
        site = home / "site"
        site.mkdir()
        packages = Path(sdk.__file__).parents[1]
        for name in ("docker", "requests", "urllib3", "idna", "certifi", "charset_normalizer"):
            shutil.copytree(
                packages / name, site / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
            )
        for part in ("runtime", "containers"):
            skipped = shutil.ignore_patterns("__pycache__", "xla", "assets")
            shutil.copytree(ROOT / part, site / "hotfire" / part, ignore=skipped)
        subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)
        work = home / "work"
        work.mkdir()
        os.chown(work, 65534, 65534)
        argv = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            f"--groups={group}",
            "/usr/bin/python3",
            "-I",
        ]
        argv += ["-c", _AS_USER, str(work), yard.image, str(site)]
        env = {"PATH": "/usr/bin:/bin", "HOME": str(work)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        last = done.stdout.strip().splitlines()[-1]
        assert last == "0 65534 65534 0o600 w data False", done.stdout
    finally:
        shutil.rmtree(home)


def test_explained_errors_are_ours(engine: Engine) -> None:
    with pytest.raises(HotfireError):
        engine.start("no-such-container")
    assert engine.state("no-such-container") is None
    assert engine.image("no-such-image") is None
    engine.signal("no-such-container", signal.SIGTERM)
    engine.remove_container("no-such-container")
