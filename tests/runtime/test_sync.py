"""A directory kept in step with a destination: real files, real events, a real disk that fails."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from hotfire.runtime import sync_trouble, sync_watcher
from hotfire.runtime.destinations import LocalDestination
from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import Event, Note, ignore
from hotfire.runtime.inotify import TooManyWatches
from hotfire.runtime.sync import Sync
from hotfire.runtime.synced import Signature


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def tree(root: Path, *, markers: bool = False) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (markers or ".sagemaker-" not in path.name)
    }


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "destination"


def start(
    local: Path, there: Path, observer: Callable[[Event], None] = ignore, **more: Any
) -> Sync:
    return Sync(local, LocalDestination(there), observer, **{"settle": 0.05, **more})


def test_closed_files_arrive_while_it_runs_and_deletions_too(local: Path, there: Path) -> None:
    with start(local, there) as running:
        (local / "checkpoint-1").mkdir()
        (local / "checkpoint-1" / "model.pt").write_bytes(b"one")
        (local / "top").write_bytes(b"2")
        eventually(lambda: tree(there) == {"checkpoint-1/model.pt": b"one", "top": b"2"})
        (local / "top").write_bytes(b"three")
        eventually(lambda: tree(there)["top"] == b"three")
        shutil.rmtree(local / "checkpoint-1", ignore_errors=True)
        eventually(lambda: tree(there) == {"top": b"three"})
        assert not (there / "checkpoint-1").exists(), "an empty folder is no folder on S3"
    assert (running.uploaded, running.deleted, running.bytes) == (3, 1, 3 + 1 + 5)


def test_an_open_file_is_left_alone_until_it_is_closed_or_the_end(local: Path, there: Path) -> None:
    local.mkdir()
    with contextlib.ExitStack() as after, start(local, there):
        slow = after.enter_context((local / "open").open("wb"))
        slow.write(b"half")
        slow.flush()
        (local / "closed").write_bytes(b"x")
        eventually(lambda: "closed" in tree(there))
        time.sleep(0.3)
        assert "open" not in tree(there)
    assert tree(there) == {"closed": b"x", "open": b"half"}


def test_a_flush_that_is_not_answered_can_be_given_up(local: Path, there: Path) -> None:
    stuck, free = threading.Event(), threading.Event()

    @dataclass(frozen=True)
    class Silent(LocalDestination):
        def put(self, *_: Any) -> None:
            stuck.set()
            free.wait(60)

    asks = itertools.count().__next__  # what was asked before the flush is of no account
    with (
        pytest.raises(DataError, match=r"checkpoints: a and 1 more could not be stored .*given up"),
        Sync(local, Silent(there, workers=1), ignore, asks=asks),
    ):
        (local / "a").touch()
        (local / "b").touch()
        assert stuck.wait(20)
    free.set()


def test_write_and_rename_uploads_the_last_name_only(local: Path, there: Path) -> None:
    put_names: set[str] = set()

    @dataclass(frozen=True)
    class Recording(LocalDestination):
        def put(
            self, source: BinaryIO, before: Signature, name: str, moved: Callable[[], bool]
        ) -> None:
            put_names.add(name)
            super().put(source, before, name, moved)

    with Sync(local, Recording(there), ignore, settle=0.3):
        for number in range(5):
            (local / f"{number}.tmp").write_bytes(b"x")
            (local / f"{number}.tmp").rename(local / f"{number}.pt")
        (local / "tmp-checkpoint").mkdir()
        (local / "tmp-checkpoint" / "a").write_bytes(b"x")
        (local / "tmp-checkpoint").rename(local / "checkpoint")
        eventually(lambda: "checkpoint/a" in tree(there))
    assert put_names == {"0.pt", "1.pt", "2.pt", "3.pt", "4.pt", "checkpoint/a"}
    assert set(tree(there)) == put_names


def test_the_markers_come_and_go_and_are_never_uploaded(local: Path, there: Path) -> None:
    seen: list[bool] = []

    @dataclass(frozen=True)
    class Looking(LocalDestination):
        def put(
            self, source: BinaryIO, before: Signature, name: str, moved: Callable[[], bool]
        ) -> None:
            seen.append((local / f"{name}.sagemaker-uploading").exists())
            seen.append(not (local / f"{name}.sagemaker-uploaded").exists())
            super().put(source, before, name, moved)

    uploaded = local / "a.sagemaker-uploaded"
    with Sync(local, Looking(there), ignore, settle=0.05) as running:
        for content in (b"1", b"22"):
            (local / "a").write_bytes(content)
            eventually(lambda content=content: tree(there) == {"a": content})  # type: ignore[misc]
            eventually(uploaded.exists)
            assert not (local / "a.sagemaker-uploading").exists()
        uploaded.unlink()  # as a container does that deletes what is safely stored
        (local / "a").unlink()
        eventually(lambda: running.deleted == 1)
        (local / "b").write_bytes(b"1")
        eventually((local / "b.sagemaker-uploaded").exists)
        (local / "b").unlink()
        eventually(lambda: not (local / "b.sagemaker-uploaded").exists())
    assert seen == [True] * 6
    assert tree(there, markers=True) == {}


def test_without_markers_none_is_written(local: Path, there: Path) -> None:
    with start(local, there, markers=False):
        (local / "a").write_bytes(b"1")
        eventually(lambda: tree(there) == {"a": b"1"})
    assert names(local) == ["a"]


def test_ignored_names_links_and_special_files(local: Path, there: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    with start(local, there):
        (local / "x.sagemaker-ignore").write_bytes(b"1")
        (local / "d.sagemaker-ignore").mkdir()
        (local / "d.sagemaker-ignore" / "a").write_bytes(b"1")
        os.mkfifo(local / "pipe")
        (local / "leaves").symlink_to(secret)
        (local / "dangling").symlink_to("nowhere")
        (local / "loop").symlink_to("loop")
        (local / "step-5").write_bytes(b"5")
        (local / "last").symlink_to("step-5")
        eventually(lambda: tree(there) == {"step-5": b"5", "last": b"5"})
    assert tree(there, markers=True) == {"step-5": b"5", "last": b"5"}


def test_what_others_put_there_stays_and_hosts_share_a_prefix(tmp_path: Path, there: Path) -> None:
    there.mkdir()
    (there / "foreign").write_bytes(b"0")
    hosts = [tmp_path / f"algo-{number}" for number in (1, 2, 3)]
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.enter_context(start(host, there))
        for host in hosts:
            (host / "shards").mkdir()
            (host / "shards" / host.name).write_bytes(host.name.encode())
        eventually(lambda: len(tree(there)) == 4)
        (hosts[0] / "shards" / "algo-1").unlink()
        eventually(lambda: len(tree(there)) == 3)
    assert tree(there) == {"foreign": b"0", "shards/algo-2": b"algo-2", "shards/algo-3": b"algo-3"}


def test_a_destination_that_fails_for_a_while_loses_nothing(
    local: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_trouble, "_TELL_AFTER", 0.1)
    events: list[Event] = []
    there.write_bytes(b"a file where the directory belongs")
    with start(local, there, events.append):
        for number in range(20):
            (local / f"f{number}").write_bytes(b"%d" % number)
        (local / "gone").write_bytes(b"x")
        eventually(lambda: any(isinstance(one, Note) and one.warning for one in events))
        (local / "gone").unlink()
        there.unlink()
        there.mkdir()
    assert tree(there) == {f"f{number}": b"%d" % number for number in range(20)}
    notes = [one.text for one in events if isinstance(one, Note)]
    assert len(notes) == 2, notes
    assert "does not take everything" in notes[0] and "takes files again" in notes[1]


def test_one_that_fails_for_good_is_an_error_with_the_files_kept(local: Path, there: Path) -> None:
    there.write_bytes(b"in the way")
    with pytest.raises(DataError) as raised, start(local, there, patience=0.5):
        (local / "model.pt").write_bytes(b"1")
        (local / "optimizer.pt").write_bytes(b"2")
    assert "model.pt and 1 more could not be stored" in raised.value.what
    assert str(local) in raised.value.do
    assert tree(local) == {"model.pt": b"1", "optimizer.pt": b"2"}


def test_an_error_in_the_block_is_not_hidden_and_the_files_are_flushed(
    local: Path, there: Path
) -> None:
    with pytest.raises(KeyboardInterrupt), start(local, there):
        (local / "a").write_bytes(b"1")
        raise KeyboardInterrupt
    assert tree(there) == {"a": b"1"}
    shutil.rmtree(there)
    there.write_bytes(b"in the way")
    notes: list[Event] = []
    with pytest.raises(KeyboardInterrupt), start(local, there, notes.append, patience=0.3):
        raise KeyboardInterrupt
    assert any(isinstance(one, Note) and "could not be stored" in one.text for one in notes)


def test_a_full_disk_is_named_and_leaves_no_half_file(local: Path, there: Path) -> None:
    local.mkdir()
    (local / "big").write_bytes(b"x" * 100_000)
    # A file-size limit stands for the disk: the kernel refuses the write in the same place.
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
    try:
        with pytest.raises(DataError, match="no space left"), start(local, there, patience=0.5):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert names(there) == []


def test_an_unreadable_file_does_not_hold_up_the_others(local: Path, there: Path) -> None:
    """A directory in the destination where the file belongs fails for that name alone, whoever runs the test."""
    (there / "bad" / "in the way").mkdir(parents=True)
    with pytest.raises(DataError, match="bad could not"), start(local, there, patience=1):
        (local / "bad").write_bytes(b"1")
        for number in range(50):
            (local / f"good{number}").write_bytes(b"1")
    assert len(tree(there)) == 50


def test_a_file_that_changes_during_its_upload_is_uploaded_again(local: Path, there: Path) -> None:
    started, go = threading.Event(), threading.Event()

    @dataclass(frozen=True)
    class Slow(LocalDestination):
        def put(
            self, source: BinaryIO, before: Signature, name: str, moved: Callable[[], bool]
        ) -> None:
            started.set()
            assert go.wait(20)
            super().put(source, before, name, moved)

    contents: list[bytes] = []
    with Sync(local, Slow(there), ignore, settle=0.0):
        (local / "a").write_bytes(b"old content")
        assert started.wait(20)
        with (local / "a").open("r+b") as file:
            file.write(b"new")
            file.flush()
            go.set()
            time.sleep(0.3)
            contents += tree(there).values()
            file.truncate(3)
    assert contents == [], "half old and half new was stored"
    assert tree(there) == {"a": b"new"}


def test_restored_files_are_not_uploaded_again_but_their_deletion_counts(
    local: Path, there: Path
) -> None:
    from hotfire.runtime.checkpoints import restore
    from hotfire.runtime.storage import LocalLocation

    (there / "d").mkdir(parents=True)
    for name in ("a", "d/b", "c"):
        (there / name).write_bytes(name.encode())
    (known,) = restore(LocalLocation(there), [local], ignore)
    with start(local, there, known=known) as running:
        (local / "d" / "b").unlink()
        (local / "c").write_bytes(b"changed")
    assert tree(there) == {"a": b"a", "c": b"changed"}
    assert (running.uploaded, running.deleted) == (1, 1)


@pytest.mark.parametrize("inner", ["", "sub"])
def test_a_destination_in_the_directory_is_refused(local: Path, inner: str) -> None:
    with pytest.raises(ValidationError, match="lie in each other"), start(local, local / inner):
        raise AssertionError("entered")


def test_without_inotify_it_looks_again_and_again(
    local: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(root: str, skip: object) -> None:
        raise TooManyWatches(24, "Too many open files")

    monkeypatch.setattr(sync_watcher, "TreeWatch", none)
    monkeypatch.setattr(sync_watcher, "POLL_SECONDS", 0.05)
    monkeypatch.setattr("hotfire.runtime.ledger.UNSURE_SECONDS", 0.1)
    events: list[Event] = []
    with start(local, there, events.append):
        (local / "a").write_bytes(b"1")
        eventually(lambda: tree(there) == {"a": b"1"})
        (local / "a").unlink()
        eventually(lambda: tree(there) == {})
    assert next(one.text for one in events if isinstance(one, Note)).startswith(
        "checkpoints: inotify is not available (Too many open files)"
    )


@pytest.mark.slow
def test_ten_thousand_small_files(local: Path, there: Path) -> None:
    with start(local, there) as running:
        for number in range(10_000):
            folder = local / f"step-{number // 1000}"
            folder.mkdir(exist_ok=True)
            (folder / f"shard-{number}").write_bytes(b"%d" % number)
        for number in range(0, 10_000, 10):
            (local / f"step-{number // 1000}" / f"shard-{number}").unlink()
    assert tree(there) == {
        f"step-{number // 1000}/shard-{number}": b"%d" % number
        for number in range(10_000)
        if number % 10
    }
    assert running.uploaded >= 9000


def test_a_sparse_file_of_five_gigabytes_stays_sparse(local: Path, there: Path) -> None:
    local.mkdir()
    size = 5 << 30
    with (local / "model.pt").open("wb") as file:
        file.truncate(size)
        file.seek(3 << 30)
        file.write(b"tensor")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with start(local, there):
        pass
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = (there / "model.pt").stat()
    assert found.st_size == size and found.st_blocks * 512 < 10 << 20
    with (there / "model.pt").open("rb") as file:
        file.seek((3 << 30) - 2)
        assert file.read(8) == b"\0\0tensor"
    assert grown < 200_000, "kB"


def test_no_thread_descriptor_or_temporary_file_is_left(local: Path, there: Path) -> None:
    there.mkdir()
    stale = there / ".hotfire-sync.killed"
    stale.write_bytes(b"half of a file")
    threads = threading.active_count()
    descriptors = len(names(Path("/proc/self/fd")))
    with start(local, there):
        (local / "a").write_bytes(b"1")
    assert names(there) == ["a"]
    assert threading.active_count() == threads
    assert len(names(Path("/proc/self/fd"))) == descriptors


def churn(root: Path) -> None:
    """Write checkpoints, rename them into place, rotate them, append to a log: as training scripts do."""
    for step in range(40):
        path = root / f"step-{step}"
        path.mkdir(parents=True)
        (path / "model.tmp").write_bytes(os.urandom(2000))
        (path / "model.tmp").rename(path / "model")
        with (root / "log").open("ab") as log:
            log.write(b"%d\n" % step)
        if step >= 2:
            shutil.rmtree(root / f"step-{step - 2}", ignore_errors=True)


def test_a_churning_directory_ends_up_the_same_on_both_sides(local: Path, there: Path) -> None:
    with start(local, there, settle=0.01), ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, [local / f"writer-{number}" for number in range(4)]))
    assert tree(there) == tree(local)
