"""Input channels on real directories and on a real S3 server."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from hotfire.runtime import channel_local, channels
from hotfire.runtime.backend import Mount, MountMode
from hotfire.runtime.channels import fetch, plan_inputs
from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import Event, Note, Progress, ignore
from hotfire.runtime.object_cache import ObjectCache
from hotfire.runtime.spec import (
    AlgorithmSpecification,
    Channel,
    InstanceGroup,
    OutputDataConfig,
    ResourceConfig,
    S3DataSource,
    TrainingJob,
)
from hotfire.runtime.storage import Locations


def make_job(*inputs: Channel) -> TrainingJob:
    group = InstanceGroup(
        instance_group_name="homogeneousCluster",
        instance_type="ml.m5.large",
        instance_count=2,
        hosts=("algo-1", "algo-2"),
    )
    return TrainingJob(
        training_job_name="job",
        role_arn="arn:aws:iam::000000000000:role/hotfire",
        region="us-east-1",
        algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
        output_data_config=OutputDataConfig(s3_output_path="file:///tmp/out"),
        resource_config=ResourceConfig(instance_groups=(group,)),
        input_data_config=inputs,
    )


def channel(uri: str, name: str = "train", **fields: Any) -> Channel:
    return Channel(channel_name=name, data_source=S3DataSource(s3_uri=uri, **fields))


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    def plan(*inputs: Channel, maps: tuple[str, ...] = (), staging: str = "staging") -> Any:
        return plan_inputs(
            make_job(*inputs),
            Locations.parse(maps, tmp_path),
            tmp_path / staging,
            tmp_path / "cache",
        )

    return plan


def shown(mounts: tuple[Mount, ...]) -> dict[str, Path]:
    assert all(one.mode is MountMode.COPY_ON_WRITE for one in mounts)
    return {str(one.target): one.source for one in mounts}


def files(top: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()
    }


def put(server: Any, bucket: str, **objects: bytes) -> None:
    for key, data in objects.items():
        server.client().put_object(Bucket=bucket, Key=key, Body=data)


class TestLocal:
    def test_a_directory_is_mounted_where_it_lies(self, tmp_path: Path, plan: Any) -> None:
        data = tmp_path / "data #1 ü"
        data.mkdir()
        (data / "a.csv").write_text("1\n")
        (one,) = plan(channel(data.as_uri()))
        assert shown(one.mounts("algo-1")) == {"/opt/ml/input/data/train": data}
        assert shown(one.mounts("algo-1", PurePosixPath("/x"))) == {"/x/input/data/train": data}
        assert one.to_download() == 0
        assert one.size() == channels.Size(1, 2)
        assert one.notes == ()
        fetch([one], ignore)
        assert not (tmp_path / "staging").exists()

    def test_a_file_appears_in_the_channel_under_its_own_name(
        self, tmp_path: Path, plan: Any
    ) -> None:
        (tmp_path / "real").write_text("x")
        (tmp_path / "a.csv").symlink_to("real")
        (one,) = plan(channel((tmp_path / "a.csv").as_uri()))
        assert shown(one.mounts("algo-1")) == {"/opt/ml/input/data/train/a.csv": tmp_path / "real"}

    def test_a_missing_path_is_refused_with_what_is_near(self, tmp_path: Path, plan: Any) -> None:
        (tmp_path / "imdb-train").mkdir()
        (tmp_path / "zebra").mkdir()
        with pytest.raises(ValidationError) as caught:
            plan(channel((tmp_path / "imdb-trian" / "deep").as_uri()))
        assert "channel train" in caught.value.what
        assert str(tmp_path / "imdb-trian" / "deep") in caught.value.what
        assert caught.value.do == f"{tmp_path} has: imdb-train."

    def test_a_path_below_a_file_is_refused(self, tmp_path: Path, plan: Any) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ValidationError, match="does not exist") as caught:
            plan(channel((tmp_path / "file" / "x").as_uri()))
        assert "is a file" in caught.value.do

    @pytest.mark.parametrize("name", ["x" * 300, "loop"])
    def test_a_path_that_cannot_be_looked_at_is_refused(
        self, name: str, tmp_path: Path, plan: Any
    ) -> None:
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(ValidationError, match=r"too long|Too many levels"):
            plan(channel((tmp_path / name).as_uri()))

    def test_a_fifo_is_refused(self, tmp_path: Path, plan: Any) -> None:
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(ValidationError, match="neither a directory nor a regular file"):
            plan(channel((tmp_path / "fifo").as_uri()))

    def test_an_empty_directory_is_noted(self, tmp_path: Path, plan: Any) -> None:
        (tmp_path / "empty").mkdir()
        (one,) = plan(channel((tmp_path / "empty").as_uri()))
        assert "is empty" in one.notes[0]

    def test_data_that_goes_after_the_check_fails_the_job(self, tmp_path: Path, plan: Any) -> None:
        (tmp_path / "data").mkdir()
        (one,) = plan(channel((tmp_path / "data").as_uri()))
        (tmp_path / "data").rmdir()
        with pytest.raises(DataError, match="Data download failed"):
            fetch([one], ignore)

    def test_the_manifest_names_files_up_to_the_limit(
        self, tmp_path: Path, plan: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = tmp_path / "data"
        (data / "b").mkdir(parents=True)
        (data / "b" / "x y").write_text("")
        (data / "a").write_text("")
        (one,) = plan(channel(data.as_uri()))
        assert one.manifest() == f"{data}\nfile://{data}/a\nfile://{data}/b/x%20y\n"
        monkeypatch.setattr(channel_local, "MANIFEST_LIMIT", 1)
        assert one.manifest() == f"{data}\n"

    def test_nothing_below_the_top_is_listed(self, tmp_path: Path, plan: Any) -> None:
        data = tmp_path / "data"
        (data / "deep" / "deeper").mkdir(parents=True)
        listed: list[str] = []
        watching = [True]

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if watching and event in ("os.scandir", "os.listdir"):
                listed.append(os.fspath(arguments[0]))

        sys.addaudithook(watch)
        (one,) = plan(channel(data.as_uri()))
        fetch([one], ignore)
        one.mounts("algo-1")
        watching.clear()
        assert listed == [str(data)]


class TestGroups:
    def test_a_channel_goes_only_to_the_hosts_of_its_groups(
        self, tmp_path: Path, plan: Any
    ) -> None:
        (one,) = plan(channel(tmp_path.as_uri(), instance_group_names=("homogeneousCluster",)))
        assert one.hosts == {"algo-1", "algo-2"}
        groups = tuple(
            InstanceGroup(
                instance_group_name=name, instance_type="t", instance_count=1, hosts=hosts
            )
            for name, hosts in (("data", ("algo-2",)), ("gpu", ("algo-1", "algo-3")))
        )
        job = make_job(channel(tmp_path.as_uri(), instance_group_names=("data",)))
        job = TrainingJob(
            **{**vars(job), "resource_config": ResourceConfig(instance_groups=groups)}
        )
        (one,) = plan_inputs(job, Locations(), tmp_path / "s", tmp_path / "c")
        assert one.mounts("algo-1") == () == one.mounts("algo-3")
        assert len(one.mounts("algo-2")) == 1

    def test_an_unknown_group_is_refused(self, tmp_path: Path, plan: Any) -> None:
        with pytest.raises(ValidationError, match="no instance group gpus"):
            plan(channel(tmp_path.as_uri(), instance_group_names=("gpus",)))


class TestMapped:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for name in ("data/train/a", "data/train2/b", "data/train-data.csv", "data/test/c"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        return tmp_path / "data"

    def test_below_a_map_the_key_is_a_string_prefix(self, tree: Path, plan: Any) -> None:
        (one,) = plan(channel("s3://b/p/train"), maps=("s3://b/p=data",))
        assert shown(one.mounts("algo-1")) == {
            "/opt/ml/input/data/train/train": tree / "train",
            "/opt/ml/input/data/train/train2": tree / "train2",
            "/opt/ml/input/data/train/train-data.csv": tree / "train-data.csv",
        }
        assert one.manifest() == (
            "p/train\ns3://b/p/train-data.csv\ns3://b/p/train/a\ns3://b/p/train2/b\n"
        )

    @pytest.mark.parametrize(
        ("uri", "mapping"),
        [
            ("s3://b/p/train/", "s3://b/p=data"),
            ("s3://b/p/train", "s3://b/p/train=data/train"),
            ("s3://b/p/train/", "s3://b/p/train/=data/train"),
        ],
    )
    def test_a_slash_or_an_exact_map_means_the_directory(
        self, uri: str, mapping: str, tree: Path, plan: Any
    ) -> None:
        (one,) = plan(channel(uri), maps=(mapping,))
        assert shown(one.mounts("algo-1")) == {"/opt/ml/input/data/train": tree / "train"}
        assert one.manifest().splitlines()[1:] == ["s3://b/p/train/a"]

    def test_one_directory_that_matches_becomes_the_channel(self, tree: Path, plan: Any) -> None:
        (one,) = plan(channel("s3://b/p/test"), maps=("s3://b/p=data",))
        assert shown(one.mounts("algo-1")) == {"/opt/ml/input/data/train": tree / "test"}


class TestS3:
    def test_objects_arrive_as_on_the_service(
        self, tmp_path: Path, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        objects = {
            "p/in/a b/ü.txt": b"text",
            "p/in/empty": b"",
            "p/in/marker/": b"",
            "p/in/x": b"1" * 1000,
        }
        put(s3_environ, s3_bucket, **objects)
        (one,) = plan(channel(f"s3://{s3_bucket}/p/in"))
        assert one.to_download() == 1004
        assert not (tmp_path / "staging").exists()
        events: list[Event] = []
        fetch([one], events.append)
        (source,) = shown(one.mounts("algo-2")).values()
        assert files(source) == {"a b/ü.txt": b"text", "empty": b"", "x": b"1" * 1000}
        assert (source / "marker").is_dir()
        assert one.manifest() == "p/in\n" + "".join(
            f"s3://{s3_bucket}/{key}\n" for key in sorted(objects)
        )
        moved = [event for event in events if isinstance(event, Progress)]
        assert (moved[-1].activity, moved[-1].done, moved[-1].total) == (
            "channel train",
            1004,
            1004,
        )

    def test_the_second_run_downloads_nothing_and_says_so(
        self, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"old", "p/b": b"same"})
        (one,) = plan(channel(f"s3://{s3_bucket}/p"))
        fetch([one], ignore)
        (two,) = plan(channel(f"s3://{s3_bucket}/p"), staging="second")
        assert two.to_download() == 0
        events: list[Event] = []
        fetch([two], events.append)
        (note,) = events
        assert isinstance(note, Note)
        assert "nothing was downloaded" in note.text
        (source,) = shown(two.mounts("algo-1")).values()
        assert files(source) == {"a": b"old", "b": b"same"}

        put(s3_environ, s3_bucket, **{"p/a": b"new"})
        (three,) = plan(channel(f"s3://{s3_bucket}/p"), staging="third")
        assert three.to_download() == 3
        fetch([three], ignore)
        (after,) = shown(three.mounts("algo-1")).values()
        assert files(after)["a"] == b"new"
        assert files(source)["a"] == b"old"

    def test_a_cut_cache_file_is_fetched_again(
        self, tmp_path: Path, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"whole"})
        (one,) = plan(channel(f"s3://{s3_bucket}/p"))
        fetch([one], ignore)
        (cached,) = (one.path for one in ObjectCache(tmp_path / "cache").entries())
        cached.write_bytes(b"wh")
        (two,) = plan(channel(f"s3://{s3_bucket}/p"), staging="second")
        fetch([two], ignore)
        assert files(tmp_path / "second" / "train") == {"a": b"whole"}

    def test_fetching_twice_into_the_same_job_is_harmless(
        self, tmp_path: Path, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"1"})
        (one,) = plan(channel(f"s3://{s3_bucket}/p"))
        fetch([one], ignore)
        fetch([one], ignore)
        assert files(tmp_path / "staging" / "train") == {"a": b"1"}

    def test_nothing_found_is_the_services_text_with_what_is_near(
        self, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"imdb/train/a": b"", "imdb/test/a": b"", "zoo": b""})
        with pytest.raises(ValidationError) as caught:
            plan(channel(f"s3://{s3_bucket}/imdb/trian"))
        assert caught.value.what.startswith(
            f'No S3 objects found under S3 URL "s3://{s3_bucket}/imdb/trian" given in input data source. '
            "Please ensure that the bucket exists in the selected region (us-east-1)"
        )
        assert f"Nearest: s3://{s3_bucket}/imdb/train/" in caught.value.do
        with pytest.raises(ValidationError) as caught:
            plan(channel(f"s3://{s3_bucket}/imbd/train/deep"))
        assert f"s3://{s3_bucket}/imdb/" in caught.value.do

    def test_a_missing_bucket_is_refused(self, plan: Any, s3_environ: Any) -> None:
        with pytest.raises(ValidationError, match="the bucket does not exist"):
            plan(channel("s3://no-such-bucket-here/p"))

    def test_an_object_that_changes_under_the_download_fails_the_job(
        self, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"old"})
        (one,) = plan(channel(f"s3://{s3_bucket}/p"))
        put(s3_environ, s3_bucket, **{"p/a": b"new"})
        with pytest.raises(DataError, match=r"Data download failed: .*changed after it was listed"):
            fetch([one], ignore)

    def test_a_cache_that_is_emptied_meanwhile_fails_the_job(
        self, tmp_path: Path, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"1"})
        (one,) = plan(channel(f"s3://{s3_bucket}/p"))

        def empty(event: Event) -> None:
            if isinstance(event, Note):
                shutil.rmtree(tmp_path / "cache")

        with pytest.raises(DataError, match="went from the cache"):
            fetch([one], empty)

    def test_a_deleted_object_fails_the_job(
        self, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"old"})
        (one,) = plan(channel(f"s3://{s3_bucket}/p"))
        s3_environ.client().delete_object(Bucket=s3_bucket, Key="p/a")
        with pytest.raises(DataError, match="the object does not exist"):
            fetch([one], ignore)

    def test_clashing_keys_are_refused_before_any_download(
        self, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/a": b"", "p/a/b": b""})
        with pytest.raises(ValidationError, match="both need the path 'a'"):
            plan(channel(f"s3://{s3_bucket}/p/"))

    def test_a_trailing_slash_with_content_is_refused(
        self, plan: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        put(s3_environ, s3_bucket, **{"p/odd/": b"content"})
        with pytest.raises(ValidationError, match="holds 7 bytes"):
            plan(channel(f"s3://{s3_bucket}/p"))
