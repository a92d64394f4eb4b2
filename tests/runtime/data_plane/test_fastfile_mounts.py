"""FastFile: local data bound read-only, S3 by FUSE where it is, else downloaded and said so."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime import fastfile
from hotfire.runtime.backend import MountMode
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import Event, Note

ROOT = Path(__file__).parents[3]
needs_fuse = pytest.mark.skipif(bool(fastfile.missing()), reason=fastfile.missing() or "FUSE works")


@pytest.fixture
def objects(s3_environ: Any, s3_bucket: str) -> str:
    for key, data in {
        "p/a/1": b"one",
        "p/ü 2": os.urandom(5 << 20),
        "p/empty": b"",
        "p/marker/": b"",
        "pq": b"",
    }.items():
        s3_environ.client().put_object(Bucket=s3_bucket, Key=key, Body=data)
    return s3_bucket


def test_local_data_is_bound_read_only(plane: Any, feed: Any, tree: Path) -> None:
    one = plane.plan(tree.as_uri(), "FastFile")
    feed(one)
    (mount,) = one.mounts("algo-1")
    assert (mount.source, mount.mode) == (tree, MountMode.READ_ONLY)
    assert one.manifest() is None


def test_shards_of_local_data_are_read_only(plane: Any, feed: Any, tree: Path) -> None:
    one = plane.plan(tree.as_uri(), "FastFile", hosts=2, sharded=True)
    feed(one)
    (mount,) = one.mounts("algo-2")
    assert mount.mode is MountMode.READ_ONLY
    assert sorted(path.name for path in mount.source.rglob("*")) == ["1", "a", "zero"]


@pytest.mark.parametrize("where", ["s3", "map"])
def test_a_partial_prefix_is_refused(plane: Any, objects: str, tree: Path, where: str) -> None:
    maps = (f"s3://{objects}={tree}",) if where == "map" else ()
    uri = f"s3://{objects}/{'a' if where == 'map' else 'p'}"
    with pytest.raises(ValidationError, match="partial prefixes"):
        plane.plan(uri, "FastFile", maps=maps)


def test_without_fuse_it_is_a_download_and_says_so(
    plane: Any, feed: Any, objects: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fastfile, "DEVICE", tmp_path / "no-device")
    one = plane.plan(f"s3://{objects}/p/", "FastFile")
    (note,) = one.notes
    assert "FastFile is carried out as a download" in note
    assert "no-device does not open (No such file or directory)" in note
    feed(one)
    (mount,) = one.mounts("algo-1")
    assert mount.mode is MountMode.READ_ONLY
    assert (mount.source / "a" / "1").read_bytes() == b"one"


@needs_fuse
def test_fuse_shows_the_tree_and_reads_on_demand(
    plane: Any, feed: Any, objects: str, s3_environ: Any
) -> None:
    one = plane.plan(f"s3://{objects}/p/", "FastFile")
    assert one.to_download() == 0
    events: list[Event] = []
    feed(one, observer=events.append)
    (mount,) = one.mounts("algo-1")
    root = mount.source
    assert root.is_mount()
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == [
        "a",
        "a/1",
        "empty",
        "marker",
        "ü 2",
    ]
    whole = s3_environ.client().get_object(Bucket=objects, Key="p/ü 2")["Body"].read()
    with (root / "ü 2").open("rb") as file:
        file.seek(4 << 20)
        assert file.read(10) == whole[4 << 20 :][:10]
        file.seek(0)
        assert file.read() == whole
    assert (root / "empty").read_bytes() == b""
    with pytest.raises(OSError, match=r"Read-only|denied"):
        (root / "new").write_text("")
    assert any(isinstance(event, Note) and "FUSE" in event.text for event in events)


@pytest.mark.parametrize(("user", "configuration"), [(0, ""), (1000, "user_allow_other\n")])
def test_containers_need_a_mount_that_admits_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, configuration: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(fastfile, "CONFIGURATION", tmp_path / "fuse.conf")
    (tmp_path / "fuse.conf").write_text("# user_allow_other\n")
    assert not fastfile.others_may_read()
    (tmp_path / "fuse.conf").write_text(configuration)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert fastfile.others_may_read()


@needs_fuse
def test_fuse_leaves_nothing_mounted(plane: Any, objects: str) -> None:
    from hotfire.runtime.channels import materialise
    from hotfire.runtime.events import ignore

    one = plane.plan(f"s3://{objects}/p/", "FastFile")
    with materialise([one], ignore):
        (mount,) = one.mounts("algo-1")
        file = (mount.source / "a" / "1").open("rb")
    assert not mount.source.is_mount()
    with pytest.raises(OSError, match="not connected"):
        file.close()


HOLDS = """
import sys
from pathlib import Path
from hotfire.runtime import fastfile
server = fastfile._serve(Path(sys.argv[1]), {"files": {}, "directories": ["a"]})
print(server.pid, flush=True)
sys.stdin.read()
"""


@needs_fuse
def test_a_killed_supervisor_leaves_no_mount(tmp_path: Path, s3_environ: Any) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "m")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "view")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        server = os.pidfd_open(int(holder.stdout.readline()))
        assert (tmp_path / "m" / "a").is_dir()
        holder.kill()
    assert select.select([server], [], [], 30)[0]
    os.close(server)
    assert not (tmp_path / "m").is_mount()
    assert list((tmp_path / "m").iterdir()) == []


@needs_fuse
def test_an_object_that_changes_is_an_error_of_the_read(
    plane: Any, feed: Any, objects: str, s3_environ: Any
) -> None:
    one = plane.plan(f"s3://{objects}/p/", "FastFile")
    feed(one)
    s3_environ.client().put_object(Bucket=objects, Key="p/a/1", Body=b"new")
    (mount,) = one.mounts("algo-1")
    with pytest.raises(OSError, match="Input/output error"):
        (mount.source / "a" / "1").read_bytes()
