"""Mounts of the process backend: what a host may change and what it may not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotfire.runtime.errors import DataError

if TYPE_CHECKING:
    from hotfire.runtime.backend import Mount
    from tests.runtime.backends.conftest import Lab

Make = Callable[[Path, str, str], "Mount"]
TRAIN = "/opt/ml/input/data/train"


def fingerprint(root: Path) -> list[tuple[str, int, int, str]]:
    """Names, modes, times and contents of everything in a directory."""
    found = []
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found.append((str(path), status.st_mode, status.st_mtime_ns, content))
    return found


def test_copy_on_write_directory(lab: Lab, mount: Make, data: Path) -> None:
    before = fingerprint(data)
    script = f"""set -e; cd {TRAIN}
        cat a.txt sub/b.txt; echo more >> a.txt; rm sub/b.txt; mkdir sub/c; echo new > sub/c/d; mv sub moved
        cat a.txt moved/c/d; rm -r moved; ls; chmod 600 a.txt"""
    with lab.open() as session:
        code, text = lab.run(session, script, mount(data, TRAIN, "cow"))
        assert list(lab.directory().ml.channel("train").iterdir()) == []
    assert (code, text) == (0, "alpha\nbeta\nalpha\nmore\nnew\na.txt\n")
    assert fingerprint(data) == before


def test_copy_on_write_copies_no_byte(lab: Lab, mount: Make, data: Path) -> None:
    with (data / "huge").open("wb") as file:
        file.truncate(1 << 50 >> 7)  # eight tebibytes, of which nothing is on the disk
    with lab.open() as session:
        code, text = lab.run(session, f"stat -c %s {TRAIN}/huge", mount(data, TRAIN, "cow"))
    assert (code, text) == (0, f"{1 << 43}\n")


def test_two_hosts_write_the_same_file_without_meeting(lab: Lab, mount: Make, data: Path) -> None:
    with lab.open("algo-1", "algo-2") as session:
        for host in ("algo-1", "algo-2"):
            code, text = lab.run(
                session,
                f"cd {TRAIN}; hostname >> a.txt; cat a.txt",
                mount(data, TRAIN, "cow"),
                host=host,
            )
            assert (code, text) == (0, f"alpha\nip-10-0-0-{host[-1]}.ec2.internal\n")
    assert (data / "a.txt").read_text() == "alpha\n"


def test_copy_on_write_file(lab: Lab, mount: Make, data: Path) -> None:
    before = fingerprint(data)
    target = "/opt/ml/input/code/sourcedir.tar.gz"
    with lab.open() as session:
        code, text = lab.run(
            session,
            f"set -e; cat {target}; echo more >> {target}; cat {target}; : > {target}; cat {target};"
            " ls /opt/ml/input/code",
            mount(data / "a.txt", target, "cow"),
        )
    assert (code, text) == (0, "alpha\nalpha\nmore\nsourcedir.tar.gz\n")
    assert fingerprint(data) == before


def test_links_as_sources(lab: Lab, mount: Make, data: Path) -> None:
    (lab.root / "dir link").symlink_to(data)
    (lab.root / "file link").symlink_to(data / "a.txt")
    before = fingerprint(data)
    with lab.open() as session:
        for mode in ("cow", "ro"):
            code, text = lab.run(
                session,
                "cat /opt/ml/d/sub/b.txt /opt/ml/f; echo x >> /opt/ml/f; echo x >> /opt/ml/d/a.txt; :",
                mount(lab.root / "dir link", "/opt/ml/d", mode),
                mount(lab.root / "file link", "/opt/ml/f", mode),
            )
            assert code == 0
            assert text.startswith("beta\nalpha\n")
    assert fingerprint(data) == before


def test_links_inside_the_source_stay_links(lab: Lab, mount: Make, data: Path) -> None:
    (data / "inner").symlink_to("sub/b.txt")
    (data / "dangling").symlink_to("no where")
    with lab.open() as session:
        code, text = lab.run(
            session,
            f"cd {TRAIN}; cat inner; readlink dangling; echo x >> inner; cat inner",
            mount(data, TRAIN, "cow"),
        )
    assert (code, text) == (0, "beta\nno where\nbeta\nx\n")
    assert (data / "sub" / "b.txt").read_text() == "beta\n"


def test_a_source_that_may_not_be_written(lab: Lab, mount: Make, data: Path) -> None:
    for path in (data / "a.txt", data / "sub" / "b.txt"):
        path.chmod(0o444)
    for path in (data / "sub", data):
        path.chmod(0o555)
    before = fingerprint(data)
    with lab.open() as session:
        code, text = lab.run(
            session,
            f"cd {TRAIN}; echo cache > new; cat new; rm -f a.txt; ls",
            mount(data, TRAIN, "cow"),
        )
    assert fingerprint(data) == before
    for path in (data, data / "sub"):
        path.chmod(0o755)
    assert (code, text) == (0, "cache\nnew\nsub\n")


def test_a_source_in_memory(lab: Lab, mount: Make) -> None:
    source = Path("/dev/shm") / f"hotfire {lab.mark}"
    source.mkdir()
    try:
        (source / "f").write_text("shm\n")
        with lab.open() as session:
            script = f"cat {TRAIN}/f; echo x > {TRAIN}/f; cat {TRAIN}/f"
            code, text = lab.run(session, script, mount(source, TRAIN, "cow"))
        assert (code, text) == (0, "shm\nx\n")
        assert (source / "f").read_text() == "shm\n"
    finally:
        (source / "f").unlink()
        source.rmdir()


def test_read_only_with_everything_below(lab: Lab, mount: Make, data: Path) -> None:
    before = fingerprint(data)
    with lab.open() as session:
        code, text = lab.run(
            session,
            f"cat {TRAIN}/a.txt /opt/ml/one; touch {TRAIN}/x; echo x >> {TRAIN}/sub/b.txt; rm {TRAIN}/a.txt;"
            f" echo x >> /opt/ml/one; mount -o remount,bind,rw {TRAIN} || umount {TRAIN} || echo kept",
            mount(data, TRAIN, "ro"),
            mount(data / "a.txt", "/opt/ml/one", "ro"),
        )
    assert text.startswith("alpha\nalpha\n")
    assert text.count("Read-only file system") >= 4
    assert code == 0
    assert fingerprint(data) == before


def test_read_write_reaches_the_source(lab: Lab, mount: Make, data: Path) -> None:
    with lab.open() as session:
        code, _ = lab.run(
            session,
            "echo w > /opt/ml/rw/new; echo w >> /opt/ml/one",
            mount(data, "/opt/ml/rw", "rw"),
            mount(data / "a.txt", "/opt/ml/one", "rw"),
        )
    assert code == 0
    assert (data / "new").read_text() == "w\n"
    assert (data / "new").stat().st_uid == os.getuid()
    assert (data / "a.txt").read_text() == "alpha\nw\n"


@pytest.mark.parametrize("outer", ["cow", "ro", "rw"])
@pytest.mark.parametrize("inner", ["cow", "ro"])
def test_nested_targets(lab: Lab, mount: Make, data: Path, outer: str, inner: str) -> None:
    other = lab.root / "other"
    other.mkdir()
    (other / "o.txt").write_text("other\n")
    before = fingerprint(other)
    with lab.open() as session:
        code, text = lab.run(
            session,
            f"cat {TRAIN}/a.txt {TRAIN}/sub/in/o.txt {TRAIN}/sub/b.txt; echo x >> {TRAIN}/sub/in/o.txt",
            mount(other, f"{TRAIN}/sub/in", inner),
            mount(data, TRAIN, outer),
        )
    assert text.startswith("alpha\nother\nbeta\n")
    assert (code == 0) == (inner == "cow")
    assert fingerprint(other) == before
    assert (data / "sub" / "in").exists() == (outer == "rw")


def test_targets_outside_opt_ml(lab: Lab, mount: Make, data: Path) -> None:
    """Missing directories appear in the host alone; existing ones keep what they have."""
    with lab.open() as session:
        code, text = lab.run(
            session,
            "cat /fsx/team/data/a.txt /usr/share/hotfire/a.txt; ls -d /usr/share/* | wc -l; ls /bin/sh; echo x > /fsx/y",
            mount(data, "/fsx/team/data", "ro"),
            mount(data, "/usr/share/hotfire", "ro"),
        )
    assert code == 0, text
    assert text.split()[:2] == ["alpha", "alpha"]
    assert int(text.split()[2]) == len(list(Path("/usr/share").iterdir())) + 1
    assert not Path("/fsx").exists()
    assert not Path("/usr/share/hotfire").exists()


def test_a_source_that_another_mount_would_hide(lab: Lab, mount: Make, data: Path) -> None:
    """The second source lies below the first target, where after the first mount it could not be found."""
    with lab.open() as session:
        inside = lab.directory().ml.root / "elsewhere"
        inside.mkdir()
        (inside / "i").write_text("inside\n")
        code, text = lab.run(
            session,
            "cat /opt/ml/input/data/later/i",
            mount(data, str(lab.directory().ml.root), "ro"),
            mount(inside, "/opt/ml/input/data/later", "cow"),
        )
    assert (code, text) == (0, "inside\n")


def test_a_missing_source_is_named(lab: Lab, mount: Make) -> None:
    with lab.open() as session:
        for mode in ("cow", "ro", "rw"):
            with pytest.raises(DataError, match="no such thing"):
                lab.start(session, "true", mount(lab.root / "no such thing", TRAIN, mode))
        assert lab.run(session, "exit 3")[0] == 3


def test_a_file_cannot_be_mounted_on_a_directory(lab: Lab, mount: Make, data: Path) -> None:
    with lab.open() as session:
        for mode in ("cow", "ro"):
            with pytest.raises(DataError, match="/opt/ml/model"):
                lab.start(session, "true", mount(data / "a.txt", "/opt/ml/model", mode))
