"""Pipe mode as a script sees it: epochs, order, framing, and every way of reading badly."""

from __future__ import annotations

import errno
import gzip
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.channels import materialise
from hotfire.runtime.data import recordio
from hotfire.runtime.data_settings import DataSettings
from hotfire.runtime.errors import DataError, PlatformError, ValidationError
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import HostDir

LIST_ORDER = b"<a-b><a/1><b 2><\xc3\xbc>"


def waited(condition: Any, seconds: float = 10) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def epoch(directory: Path, number: int, name: str = "train") -> bytes:
    path = directory / f"{name}_{number}"
    waited(path.exists)
    return path.read_bytes()


class TestStream:
    def test_an_epoch_is_everything_in_list_order(self, plane: Any, feed: Any, tree: Path) -> None:
        feed(plane.plan(tree.as_uri()))
        assert [epoch(plane.data(), n) for n in range(3)] == [LIST_ORDER] * 3

    def test_the_next_fifo_is_there_and_the_used_one_is_gone(
        self, plane: Any, feed: Any, tree: Path
    ) -> None:
        feed(plane.plan(tree.as_uri()))
        assert names(plane.data()) == ["train_0"]
        with (plane.data() / "train_0").open("rb") as stream:
            waited((plane.data() / "train_1").exists)
            assert stream.read() == LIST_ORDER
        assert waited(lambda: names(plane.data()) == ["train_1"])

    def test_rules_of_fifos_can_be_switched(self, plane: Any, feed: Any, tree: Path) -> None:
        settings = DataSettings.parse(rules=["pipe-next=at-start", "pipe-used=keep"])
        feed(plane.plan(tree.as_uri(), settings=settings))
        assert names(plane.data()) == ["train_0", "train_1"]
        epoch(plane.data(), 0)
        epoch(plane.data(), 1)
        assert {"train_0", "train_1", "train_2"} <= set(names(plane.data()))

    def test_a_restart_begins_anew_or_goes_on(self, plane: Any, tree: Path) -> None:
        dirs = {"algo-1": HostDir(plane.root / "algo-1")}
        goes_on = DataSettings.parse(rules=["pipe-restart=continue"])
        for settings, first in ((None, 0), (None, 0), (goes_on, 0), (goes_on, 2), (goes_on, 4)):
            with materialise([plane.plan(tree.as_uri(), settings=settings)], ignore, dirs):
                assert names(plane.data()) == [f"train_{first}"]
                assert [epoch(plane.data(), first + n) for n in range(2)] == [LIST_ORDER] * 2

    def test_records_are_whole_objects(self, plane: Any, feed: Any, tree: Path) -> None:
        (tree / "zz").write_bytes(b"x" * 200_001)
        feed(plane.plan(tree.as_uri(), record_wrapper_type="RecordIO"))
        with (plane.data() / "train_0").open("rb") as stream:
            found = list(recordio.read(stream))
        assert found == [b"<a-b>", b"<a/1>", b"<b 2>", b"", b"x" * 200_001, "<ü>".encode()]

    @pytest.mark.parametrize("wrapper", ["None", "RecordIO"])
    def test_gzip_is_unpacked_member_by_member(
        self, plane: Any, feed: Any, tmp_path: Path, wrapper: str
    ) -> None:
        (tmp_path / "d").mkdir()
        large = os.urandom(1 << 16) * 80
        (tmp_path / "d" / "1.gz").write_bytes(
            gzip.compress(b"one") + gzip.compress(b"two") + bytes(64)
        )
        (tmp_path / "d" / "2.gz").write_bytes(gzip.compress(large))
        one = plane.plan(
            (tmp_path / "d").as_uri(), compression_type="Gzip", record_wrapper_type=wrapper
        )
        feed(one)
        with (plane.data() / "train_0").open("rb") as stream:
            found = stream.read() if wrapper == "None" else list(map(bytes, recordio.read(stream)))
        assert found == (b"onetwo" + large if wrapper == "None" else [b"onetwo", large])

    def test_hosts_share_what_is_shuffled_anew(self, plane: Any, feed: Any, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        for number in range(20):
            (tmp_path / "d" / f"{number:02}").write_text(f"{number:02} ")
        one = plane.plan((tmp_path / "d").as_uri(), hosts=3, sharded=True, shuffle_seed=59)
        feed(one)
        seen = []
        for number in range(2):
            shares = [epoch(plane.data(f"algo-{host}"), number).split() for host in (1, 2, 3)]
            assert sorted(map(len, shares)) == [6, 7, 7]
            assert sorted(word for share in shares for word in share) == sorted(
                f"{n:02}".encode() for n in range(20)
            )
            seen.append(shares)
            for host, share in enumerate(shares, start=1):
                planned = [Path(item.uri).name for item in one.preview(f"algo-{host}", number)]
                assert [word.decode() for word in share] == planned
        assert seen[0] != seen[1]

    def test_channels_are_independent(self, plane: Any, feed: Any, tree: Path) -> None:
        feed(plane.plan(tree.as_uri(), name="a"), plane.plan(tree.as_uri(), name="b"))
        with (plane.data() / "a_0").open("rb"):
            for number in range(3):
                assert epoch(plane.data(), number, "b") == LIST_ORDER

    def test_fifos_need_the_hosts_directories(self, plane: Any, tree: Path) -> None:
        with (
            pytest.raises(PlatformError, match="directories"),
            materialise([plane.plan(tree.as_uri())], ignore),
        ):
            pass

    def test_a_file_above_a_record_is_split(self, plane: Any, feed: Any, tmp_path: Path) -> None:
        size = (1 << 29) + 5
        (tmp_path / "d").mkdir()
        with (tmp_path / "d" / "big").open("wb") as out:
            out.truncate(size)
        feed(plane.plan((tmp_path / "d").as_uri(), record_wrapper_type="RecordIO"))
        with (plane.data() / "train_0").open("rb") as stream:
            head = stream.read(8)
            for _ in range(recordio.LARGEST_PART >> 20):
                stream.read(1 << 20)
            stream.read(recordio.LARGEST_PART % (1 << 20))
            last = stream.read()
        (first, _), (second, rest) = recordio.parts(size)
        assert head == first
        assert last == second + bytes(rest) + recordio.padding(rest)

    def test_such_a_file_is_refused_by_choice(self, plane: Any, feed: Any, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        with (tmp_path / "d" / "big").open("wb") as out:
            out.truncate(1 << 29)
        settings = DataSettings.parse(rules=["recordio-large=refuse"])
        feeds = feed(
            plane.plan((tmp_path / "d").as_uri(), record_wrapper_type="RecordIO", settings=settings)
        )
        with (plane.data() / "train_0").open("rb"):
            assert "big" in waited(lambda: feeds.failure).what


class TestReaders:
    """Each of these reads as some public reader does, or worse; the feed fixture looks for what is left."""

    @pytest.fixture
    def large(self, tmp_path: Path) -> Path:
        (tmp_path / "large").mkdir()
        with (tmp_path / "large" / "x").open("wb") as out:
            out.truncate(64 << 20)
        return tmp_path / "large"

    def test_nobody_opens(self, plane: Any, feed: Any, large: Path) -> None:
        assert feed(plane.plan(large.as_uri())).failure is None

    def test_an_early_close_ends_the_epoch(self, plane: Any, feed: Any, large: Path) -> None:
        feeds = feed(plane.plan(large.as_uri()))
        for number in range(3):
            path = plane.data() / f"train_{number}"
            waited(path.exists)
            with path.open("rb") as stream:
                assert len(stream.read(10)) == 10
        assert feeds.failure is None

    def test_a_killed_reader_is_followed_by_the_next_epoch(
        self, plane: Any, feed: Any, large: Path
    ) -> None:
        feed(plane.plan(large.as_uri()))
        code = "import sys, time; f = open(sys.argv[1], 'rb'); f.read(1); print(flush=True); time.sleep(60)"
        reader = subprocess.Popen(
            [sys.executable, "-c", code, plane.data() / "train_0"], stdout=subprocess.PIPE
        )
        assert reader.stdout is not None
        reader.stdout.readline()
        reader.kill()
        reader.wait()
        reader.stdout.close()
        assert waited(lambda: not (plane.data() / "train_0").exists())
        assert len(epoch(plane.data(), 1)) == 64 << 20

    def test_a_slow_reader_does_not_hold_the_end_up(self, plane: Any, large: Path) -> None:
        dirs = {"algo-1": HostDir(plane.root / "algo-1")}
        with materialise([plane.plan(large.as_uri())], ignore, dirs):
            reader = os.open(plane.data() / "train_0", os.O_RDONLY)
            assert len(os.read(reader, 1)) == 1  # the writer is in the middle of its 64 MiB
        os.close(reader)

    def test_two_readers_of_one_fifo_get_all_of_it_between_them(
        self, plane: Any, feed: Any, large: Path
    ) -> None:
        feed(plane.plan(large.as_uri()))
        with (plane.data() / "train_0").open("rb") as one:
            first = one.read(1)
            with (plane.data() / "train_0").open("rb") as two:
                assert len(first) + len(two.read()) + len(one.read()) == 64 << 20

    def test_a_late_second_open_finds_nothing_rather_than_waiting(
        self, plane: Any, feed: Any, tree: Path
    ) -> None:
        feed(plane.plan(tree.as_uri()))
        epoch(plane.data(), 0)
        waited(lambda: not (plane.data() / "train_0").exists())
        with pytest.raises(FileNotFoundError):
            (plane.data() / "train_0").open("rb")

    def test_non_blocking_open_and_select(self, plane: Any, feed: Any, tree: Path) -> None:
        feed(plane.plan(tree.as_uri()))
        for number in range(2):
            path = plane.data() / f"train_{number}"
            waited(path.exists)
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            found = b""
            while True:
                assert select.select([handle], [], [], 10)[0]
                try:
                    data = os.read(handle, 7)
                except OSError as error:
                    assert error.errno == errno.EAGAIN
                    continue
                if not data:
                    break
                found += data
            os.close(handle)
            assert found == LIST_ORDER

    def test_polling_with_sleeps(self, plane: Any, feed: Any, tree: Path) -> None:
        feed(plane.plan(tree.as_uri()))
        for number in range(3):
            pause = 0.001
            while not (path := plane.data() / f"train_{number}").exists():
                time.sleep(pause)
                pause = min(2 * pause, 1)
            with path.open("rb") as stream:
                stream.read(
                    3
                )  # and closes early, as XGBoost's reader of protobuf does on its last batch

    def test_a_name_removed_by_the_script(self, plane: Any, feed: Any, tree: Path) -> None:
        feed(plane.plan(tree.as_uri()))
        (plane.data() / "train_0").unlink()

    def test_a_channel_that_nobody_opens_can_time_out(
        self, plane: Any, feed: Any, tree: Path
    ) -> None:
        settings = DataSettings.parse(rules=["pipe-timeout=0.05"])
        feeds = feed(plane.plan(tree.as_uri(), settings=settings))
        assert "timed out" in waited(lambda: feeds.failure).what
        assert isinstance(feeds.failure, PlatformError)


class TestFaults:
    @pytest.mark.parametrize("how", ["broken", "short", "none"])
    def test_bad_gzip_fails_the_job_and_never_looks_like_an_end(
        self, plane: Any, feed: Any, tmp_path: Path, how: str
    ) -> None:
        (tmp_path / "d").mkdir()
        sound = gzip.compress(os.urandom(300_000))
        bad = {
            "broken": sound[:1000] + b"?" * 100 + sound[1100:],
            "short": sound[:-9],
            "none": b"text",
        }
        (tmp_path / "d" / "1.gz").write_bytes(gzip.compress(b"good"))
        (tmp_path / "d" / "2.gz").write_bytes(bad[how])
        feeds = feed(plane.plan((tmp_path / "d").as_uri(), compression_type="Gzip"))
        handle = os.open(plane.data() / "train_0", os.O_RDONLY)
        error = waited(lambda: feeds.failure)
        assert isinstance(error, DataError)
        assert "2.gz is not a sound gzip file" in error.what
        os.set_blocking(handle, False)
        with pytest.raises(BlockingIOError):
            while os.read(handle, 1 << 20):
                pass
        os.close(handle)
        with pytest.raises(DataError):
            feeds.check()

    def test_a_file_that_goes_fails_the_job(self, plane: Any, feed: Any, tree: Path) -> None:
        one = plane.plan(tree.as_uri())
        (tree / "b 2").unlink()
        feeds = feed(one)
        with (plane.data() / "train_0").open("rb"):
            assert "b%202" in waited(lambda: feeds.failure).what

    def test_an_empty_prefix_of_the_disk_is_refused(self, plane: Any, tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match="does not exist"):
            plane.plan((tmp_path / "absent").as_uri())


class TestS3:
    def test_objects_stream_in_order(
        self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        client = s3_environ.client()
        large = os.urandom(5 << 20)
        objects = {"p/a b": b"1", "p/empty": b"", "p/large": large, "p/marker/": b"", "p/ü": b"2"}
        for key, data in objects.items():
            client.put_object(Bucket=s3_bucket, Key=key, Body=data)
        feed(plane.plan(f"s3://{s3_bucket}/p", record_wrapper_type="RecordIO"))
        for number in range(2):
            path = plane.data() / f"train_{number}"
            waited(path.exists)
            with path.open("rb") as stream:
                assert list(recordio.read(stream)) == [b"1", b"", large, b"2"]

    def test_an_object_that_changes_fails_the_job(
        self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        client = s3_environ.client()
        client.put_object(Bucket=s3_bucket, Key="p/a", Body=b"old")
        feeds = feed(plane.plan(f"s3://{s3_bucket}/p"))
        client.put_object(Bucket=s3_bucket, Key="p/a", Body=b"new")
        with (plane.data() / "train_0").open("rb"):
            assert "changed after it was listed" in waited(lambda: feeds.failure).what

    def test_early_close_of_a_large_object(
        self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        s3_environ.client().put_object(Bucket=s3_bucket, Key="p", Body=bytes(20 << 20))
        feeds = feed(plane.plan(f"s3://{s3_bucket}/p"))
        for number in range(2):
            waited((plane.data() / f"train_{number}").exists)
            with (plane.data() / f"train_{number}").open("rb") as stream:
                stream.read(100)
        assert feeds.failure is None
