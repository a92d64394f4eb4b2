"""Machines that refuse something: what the process backend does instead, and what it says about it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotfire.runtime.backends import copying
from hotfire.runtime.backends.isolation import STALE_MARK
from hotfire.runtime.errors import DataError, ValidationError

if TYPE_CHECKING:
    from hotfire.runtime.backend import Mount
    from tests.runtime.backends.conftest import Lab, Machine

Make = Callable[[Path, str, str], "Mount"]

NO_USER_NAMESPACES = "echo 0 > /proc/sys/user/max_user_namespaces; "
UNPRIVILEGED = "exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all"
REFUSING = NO_USER_NAMESPACES + UNPRIVILEGED
OPT = "mount -t tmpfs opt /opt; "


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


# ---- namespaces, but not all of them ---------------------------------------------------------------------------------


def test_root_without_user_namespaces(machine: Machine, data: Path) -> None:
    found = machine.run(
        NO_USER_NAMESPACES + "exec",
        script="echo $$; hostname; cat /opt/ml/in/a.txt; echo x >> /opt/ml/in/a.txt; touch /opt/ml/ro/x",
        mounts=[[str(data), "in", "cow"], [str(data), "ro", "ro"]],
    )
    assert found["isolation"] == "namespace"
    assert found["notes"] == []
    assert found["logs"][0].startswith("1\nip-10-0-0-1.ec2.internal\nalpha\ntouch:")
    assert (data / "a.txt").read_text() == "alpha\n"


def test_a_private_network_without_user_namespaces(machine: Machine) -> None:
    found = machine.run(
        NO_USER_NAMESPACES + "exec",
        network="private",
        hosts=["algo-1", "algo-2"],
        script="getent hosts algo-2; ls /sys/class/net",
    )
    assert found["codes"] == [0, 0], found
    assert [log.split()[0][:3] for log in found["logs"]] == ["10.", "10."]
    assert {"eth0", "lo"} <= set(found["logs"][0].split())


def test_an_opt_ml_that_exists_is_hidden_and_untouched(machine: Machine) -> None:
    """The image's or the machine's own content is not the job's (contract 1.4)."""
    found = machine.run(
        OPT + "mkdir -p /opt/ml/model; touch /opt/ml/model/theirs; exec",
        script="ls -R /opt/ml/model; touch /opt/ml/model/ours",
    )
    assert (found["isolation"], found["logs"]) == ("namespace", ["/opt/ml/model:\n"])
    assert found["opt"] == ["/opt/ml", "/opt/ml/model", "/opt/ml/model/theirs"]


def test_forcing_namespaces_where_they_are_refused(machine: Machine) -> None:
    found = machine.run("export HOTFIRE_ISOLATION=namespace; " + REFUSING, script="true")
    assert found["error"] == "ValidationError"
    assert "user.max_user_namespaces is 0" in found["text"]
    assert "hotfire setup" in found["text"]


def test_a_proc_that_may_not_be_mounted_is_said(machine: Machine) -> None:
    """As in a container whose engine has masked parts of /proc."""
    found = machine.run(
        "for p in $(awk '$3 == \"proc\" { print $2 }' /proc/mounts); do mount -t tmpfs mask $p/sys; done; exec",
        script="ls /opt; echo $$; test -e /proc/self/status",
    )
    assert found.get("codes") == [0], found
    assert found["isolation"] == "namespace"
    assert "ml" in found["logs"][0].split()
    assert len(found["notes"]) == 1
    assert found["notes"][0].startswith("/proc is this machine's own: ")
    assert "hotfire setup" in found["notes"][0]


def test_an_overlay_that_is_refused_becomes_a_copy(machine: Machine, lab: Lab, data: Path) -> None:
    """The kernel takes no overlay as the upper layer of an overlay: the usual root of a container."""
    (data / "a.txt").chmod(0o444)
    before = contents(data)
    found = _on_overlay(machine, lab, data)
    assert found["codes"] == [0]
    assert found["logs"] == ["alpha\nbeta\nalpha\nw\nalpha\nw\n"]
    assert len(found["notes"]) == 2
    assert "11 bytes" in found["notes"][0] and "an overlay is refused here" in found["notes"][0]
    assert "6 bytes" in found["notes"][1]
    assert contents(data) == before


def _on_overlay(machine: Machine, lab: Lab, data: Path) -> dict[str, Any]:
    simple = lab.root.parent / "layers"
    for name in ("lower", "upper", "work", "merged"):
        (simple / name).mkdir(parents=True)
    layers = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
    return machine.run(
        f"cd '{simple}'; mount -t overlay o -o {layers} merged; cd /; exec",
        root=str(simple / "merged"),
        script="cd /opt/ml; cat in/a.txt in/sub/b.txt; echo w >> in/a.txt; echo w >> one;"
        " cat in/a.txt one",
        mounts=[[str(data), "in", "cow"], [str(data / "a.txt"), "one", "cow"]],
    )


def test_a_machine_without_opt(machine: Machine) -> None:
    """The root directory itself is replaced, with everything in it still there."""
    root = machine.lab.root.parent / "root"
    root.mkdir()
    new_root = (
        f"mount -t tmpfs root '{root}'; for d in /*; do"
        f" if test -L $d; then cp -P $d '{root}'; elif test -d $d && test $d != /opt; then"
        f" mkdir '{root}'$d; mount --rbind $d '{root}'$d; fi; done;"
        f" cd '{root}'; mkdir old; pivot_root . old; umount -l old; rmdir old; test ! -e /opt; exec"
    )
    found = machine.run(
        new_root, script="ls /opt; ls / | wc -l; ls -d /usr/bin /tmp; echo $$ > /opt/ml/model/m"
    )
    assert found["codes"] == [0], found
    names = {path.name for path in Path("/").iterdir() if path.is_dir()} | {"opt"}
    assert found["logs"] == [f"ml\n{len(names)}\n/tmp\n/usr/bin\n"]
    assert found["opt"] == []


def test_a_source_with_another_file_system_below(machine: Machine, data: Path) -> None:
    """An overlay shows what lies under a mount, not the mount: each mount needs its own."""
    quoted = str(data).replace("'", "'\\''")
    found = machine.run(
        f"mount -t tmpfs inner '{quoted}'/sub; echo inner > '{quoted}'/sub/i; exec",
        script="cd /opt/ml/in; cat a.txt sub/i; echo w >> sub/i; echo w > sub/new; cat sub/i; ls sub",
        mounts=[[str(data), "in", "cow"]],
    )
    assert (found["codes"], found["logs"]) == ([0], ["alpha\ninner\ninner\nw\ni\nnew\n"])


BEFORE_5_12 = """
import errno, os, sys
from hotfire.runtime.backends import mounts, syscalls

def refuse(target):
    raise OSError(errno.ENOSYS, "no such call")

syscalls.make_read_only = refuse
source, stage, target = (os.fsencode(path) for path in sys.argv[1:])
view = mounts.View(stage, [target])
view.bind(os.open(source, os.O_PATH), target, "ro", directory=True)
for path in (target + b"/x", target + b"/sub/x"):
    try:
        open(path, "w")
    except OSError as error:
        print(error.strerror)
"""


def test_read_only_on_a_kernel_before_5_12(lab: Lab, data: Path) -> None:
    """Without mount_setattr: every mount by itself, with the flags that a user namespace must keep."""
    stage, target = lab.root / "stage", lab.root / "target"
    stage.mkdir()
    target.mkdir()
    prepare = 'mount -t tmpfs -o nosuid,nodev,noexec inner "$1/sub"; exec unshare -Urm "$0" -c "$4" "$1" "$2" "$3"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-ec", prepare, sys.executable, data, stage, target, BEFORE_5_12],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _path()},
        check=False,
    )
    assert done.stdout == "Read-only file system\n" * 2, done.stderr


def _path() -> str:
    return os.pathsep.join(path for path in sys.path if path)


# ---- /opt/ml itself --------------------------------------------------------------------------------------------------


def test_opt_ml_itself_where_it_is_absent(machine: Machine, data: Path) -> None:
    before = contents(data)
    found = machine.run(
        OPT + REFUSING,
        script="echo m > /opt/ml/model/m; cat /opt/ml/in/a.txt; echo w >> /opt/ml/in/a.txt; ls -A /opt; pwd",
        mounts=[[str(data), "in", "cow"]],
    )
    assert found["isolation"] == "native"
    assert found["roots"] == ["/opt/ml"]
    assert (found["codes"], found["logs"]) == ([0], ["alpha\nml\n/\n"])
    assert found["opt"] == []
    assert len(found["notes"]) == 2
    assert "user.max_user_namespaces is 0" in found["notes"][0]
    assert all("hotfire setup" in note for note in found["notes"])
    ml = machine.lab.root / "job" / "algo-1" / "ml"
    assert (ml / "model" / "m").read_text() == "m\n"
    assert list((ml / "in").iterdir()) == []
    assert contents(data) == before


def test_opt_ml_itself_where_it_is_empty(machine: Machine) -> None:
    """A mount point cannot be replaced: links go into it, and what the host adds goes to the job."""
    found = machine.run(
        OPT + "mkdir /opt/ml /opt/other; mount -t tmpfs ml /opt/ml; " + REFUSING,
        script="echo m > /opt/ml/model/m; mkdir /opt/ml/checkpoints; echo c > /opt/ml/checkpoints/c",
    )
    assert (found["isolation"], found["codes"]) == ("native", [0])
    assert found["opt"] == ["/opt/ml", "/opt/other"]
    assert contents(machine.lab.root / "job" / "algo-1" / "ml") == {
        "model/m": "m\n",
        "checkpoints/c": "c\n",
    }


@pytest.mark.parametrize(
    ("prepare", "hosts", "reason"),
    [
        ("mkdir /opt/ml; touch /opt/ml/mine; ", 1, "/opt/ml is not empty"),
        ("touch /opt/ml; ", 1, "/opt/ml is not a writable directory"),
        ("", 2, "2 hosts cannot share /opt/ml"),
        ("exec 9< /opt; flock 9; ", 1, "another job uses /opt/ml"),
        ("chmod 555 /opt; ", 1, "/opt is not writable"),
    ],
)
def test_another_place_for_opt_ml(machine: Machine, prepare: str, hosts: int, reason: str) -> None:
    found = machine.run(
        OPT + prepare + REFUSING,
        hosts=[f"algo-{n + 1}" for n in range(hosts)],
        script='echo m > "$ML/model/m"; ls -A /opt',
    )
    assert (found["isolation"], found["codes"]) == ("relocated", [0] * hosts)
    assert len(found["notes"]) == 1
    assert reason in found["notes"][0] and "user.max_user_namespaces is 0" in found["notes"][0]
    for n, root in enumerate(found["roots"]):
        assert root == str(machine.lab.root / "job" / f"algo-{n + 1}" / "ml")
        assert Path(root, "model", "m").read_text() == "m\n"


def test_a_link_that_a_killed_session_left_is_recognised(machine: Machine) -> None:
    old = machine.lab.root.parent / "old"
    (old / "scratch").mkdir(parents=True)
    (old / "scratch" / STALE_MARK).touch()
    link = f"ln -s '{old}/ml' /opt/ml; "
    assert machine.run(OPT + link + REFUSING, script="true")["isolation"] == "native"
    (old / "scratch" / STALE_MARK).unlink()
    assert machine.run(OPT + link + REFUSING, script="true")["isolation"] == "relocated"


@pytest.mark.parametrize(
    ("isolation", "hosts", "reason"),
    [
        ("native", ("algo-1", "algo-2"), "2 hosts cannot share"),
        ("docker", ("algo-1",), "is not known"),
    ],
)
def test_forcing_the_impossible_is_refused(
    lab: Lab, isolation: str, hosts: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason), lab.open(*hosts, isolation=isolation):
        raise AssertionError("it was opened")


# ---- no namespaces: the rest of the contract -------------------------------------------------------------------------


def test_mounts_without_namespaces(lab: Lab, mount: Make, data: Path) -> None:
    before = contents(data)
    with lab.open(isolation="relocated") as session:
        root = session.places["algo-1"].ml_root
        assert str(root) == str(lab.directory().ml.root)
        code, text = lab.run(
            session,
            f'cd "{root}"'.replace('"é', '\\"é').replace("\\e", "\\\\e")
            + " && cat in/a.txt one && echo w >> in/a.txt && echo w >> one && rm in/sub/b.txt && cat ro/sub/b.txt"
            " && echo new > rw/new",
            mount(data, str(root / "in"), "cow"),
            mount(data / "a.txt", str(root / "one"), "cow"),
            mount(data, str(root / "ro"), "ro"),
            mount(data, str(root / "rw"), "rw"),
        )
        ml = lab.directory().ml.root
        assert [list((ml / name).iterdir()) for name in ("in", "ro", "rw")] == [[], [], []]
        assert not (ml / "one").exists()
    assert (code, text) == (0, "alpha\nalpha\nbeta\n")
    assert contents(data) == {**before, "new": "new\n"}
    assert sum("bytes" in note for note in lab.notes) == 2
    assert sum("read-only mounts need namespaces" in note for note in lab.notes) == 1


def test_mounts_that_need_namespaces_are_refused(lab: Lab, mount: Make, data: Path) -> None:
    with lab.open(isolation="relocated") as session:
        root = session.places["algo-1"].ml_root
        with pytest.raises(DataError, match="/fsx cannot be mounted"):
            lab.start(session, "true", mount(data, "/fsx", "ro"))
        with pytest.raises(DataError, match="inside another mount"):
            lab.start(
                session,
                "true",
                mount(data, str(root / "in"), "ro"),
                mount(data, str(root / "in" / "deeper"), "ro"),
            )
        with pytest.raises(DataError, match="not there"):
            lab.start(session, "true", mount(data / "nothing", str(root / "in"), "cow"))
        assert contents(lab.directory().ml.root) == {}
    assert not (data / "deeper").exists()


def test_nothing_survives_without_a_pid_namespace(lab: Lab) -> None:
    """A daemon with a session of its own and a new parent is still found."""
    script = "setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & sleep 1000 & echo up; sleep 0.2; exit 7"
    with lab.open(isolation="relocated") as session:
        container = lab.start(session, script)
        lab.until(lambda: len(container.pids()) >= 5)
        assert set(lab.living()) >= set(container.pids())
        assert container.wait(20) == 7
        assert lab.living() == []
        container = lab.start(
            session, "trap '' TERM; setsid sleep 1000 & echo up; sleep 1000; sleep 1000"
        )
        lab.until(lambda: len(lab.living()) >= 3)
        assert container.stop(0.2) == 137
        assert lab.living() == []
        assert lab.run(session, "kill -SEGV $$")[0] == 128 + signal.SIGSEGV
        assert lab.run(session, ("no-such-program",))[0] == 127


def test_no_space_for_a_copy_is_said_before_copying(lab: Lab, mount: Make, data: Path) -> None:
    with (data / "huge").open("wb") as file:
        file.truncate(1 << 43)
    with lab.open(isolation="relocated") as session:
        target = str(session.places["algo-1"].ml_root / "in")
        with pytest.raises(DataError, match=r"takes 8,796,093,022,\d+ bytes"):
            lab.start(session, "true", mount(data, target, "cow"))
        assert not list(lab.directory().ml.root.glob("in/*"))


def test_a_directory_is_not_copied_into_itself(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    (tmp_path / "home").mkdir()
    with pytest.raises(DataError, match="would hold itself"):
        copying.copy_tree(tmp_path, tmp_path / "home" / "copy")
    assert list((tmp_path / "home").iterdir()) == []


def test_copies_keep_times_links_and_modes(tmp_path: Path, data: Path) -> None:
    (data / "link").symlink_to("a.txt")
    (data / "a.txt").chmod(0o750)
    os.utime(data / "a.txt", ns=(10**18, 10**18))
    size, _ = copying.copy_tree(data, tmp_path / "copy")
    assert size == 11
    assert (tmp_path / "copy" / "link").readlink() == Path("a.txt")
    status = (tmp_path / "copy" / "a.txt").stat()
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (10**18, 0o750)


# ---- sudden deaths ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(machine: Machine, prepare: str, script: str) -> Iterator[subprocess.Popen[str]]:
    with machine.start(prepare, script=script) as process:
        try:
            machine.lab.until(lambda: len(machine.lab.living()) >= 3)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("prepare", "kind"), [("exec", "namespace"), (OPT + REFUSING, "native")])
def test_a_killed_supervisor_takes_its_hosts_with_it(
    machine: Machine, prepare: str, kind: str
) -> None:
    lab = machine.lab
    script = "trap '' TERM HUP; setsid sleep 1000 & sleep 1000 & sleep 1000; sleep 1000"
    with running(machine, prepare, script) as process:
        root = Path(f"/proc/{process.pid}/root/opt")
        assert kind == "namespace" or (root / "ml").is_symlink()
        process.send_signal(signal.SIGKILL)
        lab.until(lambda: lab.living() == [])
    for left in lab.root.glob("job/*/scratch"):  # the directory itself is for `hotfire delete`
        copying.remove_tree(left)


def test_a_killed_launcher_takes_its_host_with_it(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(session, "setsid sleep 1000 & sleep 1000; sleep 1000")
        lab.until(lambda: len(container.pids()) == 3)
        status = Path(f"/proc/{container.id}/status").read_text().splitlines()
        (parent,) = (int(line.split()[1]) for line in status if line.startswith("PPid:"))
        os.kill(parent, signal.SIGKILL)
        assert container.wait(20) == 137
        lab.until(lambda: lab.living() == [])


def test_an_interrupt_at_the_terminal_does_not_reach_the_hosts(lab: Lab) -> None:
    """Ctrl-C goes to the foreground group of the terminal's session, and hosts are in neither."""
    with lab.open() as session:
        container = lab.start(session, "sleep 1000; :")
        for pid in container.pids():
            assert os.getpgid(pid) != os.getpgrp()
            assert os.getsid(pid) != os.getsid(0)


# ---- hotfire shell ---------------------------------------------------------------------------------------------------

ENTER = """
import json, sys
from hotfire.runtime.backends.entering import enter
from hotfire.runtime.errors import DataError
pid, argv, env = json.loads(sys.argv[1])
try:
    sys.exit(enter(pid, argv, env, "/opt/ml/model"))
except DataError as error:
    print(error.what)
    sys.exit(99)
"""


def entered(pid: int | str, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    arguments = json.dumps([int(pid), ["/bin/sh", "-c", script], env])
    return subprocess.run(
        [sys.executable, "-B", "-c", ENTER, arguments],
        input="typed\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": _path()},
        check=False,
    )


@pytest.mark.parametrize("network", ["host", "private"])
def test_entering_a_live_host(lab: Lab, network: str) -> None:
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "NAME": "value"}
    with lab.open(network=network) as session:
        container = lab.start(session, "touch /opt/ml/model/mine; sleep 1000; :")
        lab.until(lambda: (lab.directory().ml.model / "mine").exists())
        script = "hostname; pwd; ls; id -u; echo $NAME; read line; echo $line; tr '\\0' ' ' < /proc/1/cmdline; exit 5"
        done = entered(container.id, script, env)
        assert done.stdout == (
            "ip-10-0-0-1.ec2.internal\n/opt/ml/model\nmine\n0\nvalue\ntyped\n"
            "/bin/sh -c touch /opt/ml/model/mine; sleep 1000; : "
        )
        assert done.returncode == 5
        assert entered(container.id, "kill -9 $$", env).returncode == 137
        assert entered(container.id, "exec /no/program", env).returncode == 127
        assert container.poll() is None
        container.kill()
        gone = entered(container.id, "true", env)
        assert (gone.returncode, gone.stdout) == (99, "the host is not running.\n")


def test_entering_a_host_without_namespaces(lab: Lab) -> None:
    with lab.open(isolation="relocated") as session:
        container = lab.start(session, "sleep 1000; :")
        done = entered(container.id, "echo $NAME", {"PATH": os.environ["PATH"], "NAME": "value"})
        assert (done.returncode, done.stdout) == (0, "value\n")


def test_who_entered_dies_with_the_host(lab: Lab) -> None:
    with lab.open() as session:
        container = lab.start(session, "sleep 1000; :")
        codes: list[int] = []
        env = {"PATH": "/usr/bin:/bin", "HOTFIRE_TEST_MARK": lab.mark}
        thread = threading.Thread(
            target=lambda: codes.append(entered(container.id, "sleep 1000; :", env).returncode)
        )
        thread.start()
        lab.until(lambda: len(container.pids()) == 4)
        container.kill()
        thread.join(20)
        assert codes == [137]
