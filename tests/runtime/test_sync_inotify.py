"""The kernel's events as names: real directories, real files."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotfire.runtime.inotify import Change, Happened, TreeWatch


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[TreeWatch]:
    (tmp_path / "old").mkdir()
    with TreeWatch(str(tmp_path), lambda name: "skip" in name) as one:
        yield one


def heard(watch: TreeWatch) -> list[Happened]:
    """Everything up to a quiet moment."""
    found: list[Happened] = []
    while more := watch.wait(0.2):
        found += more
    return found


def test_only_a_close_after_writing_counts(watch: TreeWatch, tmp_path: Path) -> None:
    with (tmp_path / "old" / "a").open("wb") as file:
        file.write(b"1")
        file.flush()
        assert heard(watch) == []
    assert heard(watch) == [Happened("old/a", Change.CLOSED)]
    (tmp_path / "old" / "a").read_bytes()
    assert heard(watch) == []


def test_renames_deletions_and_symbolic_links(watch: TreeWatch, tmp_path: Path) -> None:
    (tmp_path / "a.tmp").write_bytes(b"1")
    (tmp_path / "a.tmp").rename(tmp_path / "a")
    (tmp_path / "last").symlink_to("a")
    (tmp_path / "a").unlink()
    assert heard(watch) == [
        Happened("a.tmp", Change.CLOSED),
        Happened("a.tmp", Change.GONE),
        Happened("a", Change.CLOSED),
        Happened("last", Change.APPEARED),
        Happened("a", Change.GONE),
    ]


def test_a_hard_link_is_heard_of(watch: TreeWatch, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    heard(watch)
    os.link(tmp_path / "a", tmp_path / "b")
    assert heard(watch) == [Happened("b", Change.APPEARED)]


def test_new_directories_are_watched_with_what_is_in_them_already(
    watch: TreeWatch, tmp_path: Path
) -> None:
    inner = tmp_path / "checkpoint-1" / "global_step"
    inner.mkdir(parents=True)
    (inner / "early").write_bytes(b"1")
    assert Happened("checkpoint-1/global_step/early", Change.APPEARED) in heard(watch)
    (inner / "late").write_bytes(b"1")
    assert heard(watch) == [Happened("checkpoint-1/global_step/late", Change.CLOSED)]


def test_a_directory_keeps_being_watched_under_its_new_name(
    watch: TreeWatch, tmp_path: Path
) -> None:
    (tmp_path / "tmp-checkpoint" / "deep").mkdir(parents=True)
    heard(watch)
    (tmp_path / "tmp-checkpoint").rename(tmp_path / "checkpoint")
    assert Happened("tmp-checkpoint", Change.GONE) in heard(watch)
    (tmp_path / "checkpoint" / "deep" / "a").write_bytes(b"1")
    assert heard(watch) == [Happened("checkpoint/deep/a", Change.CLOSED)]
    shutil.rmtree(tmp_path / "checkpoint")
    assert Happened("checkpoint", Change.GONE) in heard(watch)
    (tmp_path / "checkpoint").mkdir()
    heard(watch)
    (tmp_path / "checkpoint" / "b").write_bytes(b"1")
    assert heard(watch) == [Happened("checkpoint/b", Change.CLOSED)]


def test_a_directory_that_moves_out_is_no_longer_heard_of(
    watch: TreeWatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "old"
    (tmp_path / "old").rename(outside)
    heard(watch)
    (outside / "a").write_bytes(b"1")
    assert heard(watch) == []


def test_what_is_skipped_and_links_to_directories_are_not_entered(
    watch: TreeWatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (tmp_path / "skip").mkdir()
    (tmp_path / "away").symlink_to(outside)
    heard(watch)
    (tmp_path / "skip" / "a").write_bytes(b"1")
    (outside / "a").write_bytes(b"1")
    assert heard(watch) == []


def test_names_are_bytes(watch: TreeWatch, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \n'x")
    (tmp_path / name).write_bytes(b"1")
    assert heard(watch) == [Happened(name, Change.CLOSED)]


def test_wake_ends_a_wait(watch: TreeWatch) -> None:
    watch.wake()
    start = time.monotonic()
    assert watch.wait(30) == []
    assert time.monotonic() - start < 20


def test_dropped_events_are_said(watch: TreeWatch, tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 20_000:
        pytest.skip(f"max_queued_events is {limit}: too many files to make")
    path = tmp_path / "a"
    for number in range(
        limit // 2 + 10
    ):  # two events each, of alternating names so that none is merged
        (tmp_path / f"b{number}").write_bytes(b"")
    path.write_bytes(b"1")
    found = heard(watch)
    assert Happened("", Change.LOST) in found
