"""Which object goes to which host, and where it lies there: shards, manifests, samples, rules."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime import channel_advice, manifests
from hotfire.runtime.data_rules import RULES
from hotfire.runtime.data_settings import DataSettings, Sample, parse_rate
from hotfire.runtime.errors import DataError, UnsupportedError, ValidationError
from hotfire.runtime.sharding import Assignment, numeric, shuffled
from hotfire.runtime.spec import Channel, FileSystemDataSource

ROOT = Path(__file__).parents[3]


def files(top: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()
    }


def shown(one: Any, host: str) -> dict[str, bytes]:
    (mount,) = one.mounts(host)
    return files(mount.source)


class TestAssignment:
    @given(
        units=st.integers(0, 60),
        hosts=st.integers(1, 12),
        seed=st.none() | st.integers(-(2**63), 2**63 - 1),
        contiguous=st.booleans(),
        epoch=st.integers(0, 3),
    )
    def test_every_unit_goes_to_one_host_and_counts_differ_by_one(
        self, units: int, hosts: int, seed: int | None, contiguous: bool, epoch: int
    ) -> None:
        names = numeric(frozenset(f"algo-{n + 1}" for n in range(hosts)))
        one = Assignment(units=units, hosts=names, sharded=True, seed=seed, contiguous=contiguous)
        shares = [list(one.order(host, epoch)) for host in names]
        assert sorted(unit for share in shares for unit in share) == list(range(units))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1

    def test_the_observed_assignment(self) -> None:
        """contract 3.4: x_1, x_10, x_2 ... in list order; host k takes index mod n = k - 1."""
        one = Assignment(units=5, hosts=("algo-1", "algo-2"), sharded=True)
        assert [list(one.order(host)) for host in one.hosts] == [[0, 2, 4], [1, 3]]

    def test_hosts_count_by_number(self) -> None:
        assert numeric(frozenset(["algo-10", "algo-2", "algo-1"])) == (
            "algo-1",
            "algo-2",
            "algo-10",
        )

    def test_the_shuffle_is_the_documented_one(self) -> None:
        """Another hand at the page's description; the pinned list is for other Pythons."""
        seed = int.from_bytes(hashlib.sha256(b"59 1").digest()[:8], "big")
        numbers = random.Random(seed)
        deck = [*range(8)]
        for last in reversed(range(1, 8)):
            other = math.floor(numbers.random() * (last + 1))
            deck[last], deck[other] = deck[other], deck[last]
        assert shuffled(range(8), 59, 1) == deck == [4, 5, 1, 7, 0, 3, 2, 6]
        assert shuffled(range(8), 60, 0) != shuffled(range(8), 59, 0)

    def test_a_sample_is_seeded_and_in_order(self) -> None:
        def order(sample: Sample) -> list[int]:
            return list(Assignment(units=100, hosts=("algo-1",), sample=sample).order("algo-1"))

        five = order(DataSettings.parse(samples=["t=5%"]).samples["t"])
        assert len(five) == 5
        assert five == sorted(five) == order(DataSettings.parse(samples=["t=5"]).samples["t"])
        assert five != order(DataSettings.parse(samples=["t=5%@1"]).samples["t"])
        assert len(order(DataSettings.parse(samples=["t=0.001%"]).samples["t"])) == 1


class TestFileShards:
    def test_local_shards_are_links_and_the_manifest_lists_all(
        self, plane: Any, feed: Any, tree: Path
    ) -> None:
        one = plane.plan(tree.as_uri(), "File", hosts=2, sharded=True)
        feed(one)
        assert shown(one, "algo-1") == {"a-b": b"<a-b>", "b 2": b"<b 2>", "ü": "<ü>".encode()}
        assert shown(one, "algo-2") == {"a/1": b"<a/1>", "zero": b""}
        (mount,) = one.mounts("algo-1")
        assert (mount.source / "a-b").stat().st_ino == (tree / "a-b").stat().st_ino
        assert len(one.manifest().splitlines()) == 6

    def test_more_hosts_than_objects_leave_empty_directories(
        self, plane: Any, feed: Any, tree: Path
    ) -> None:
        one = plane.plan(tree.as_uri(), "File", hosts=7, sharded=True)
        feed(one)
        (mount,) = one.mounts("algo-7")
        assert mount.source.is_dir()
        assert shown(one, "algo-7") == {}
        assert "algo-6, algo-7 without data" in " ".join(one.notes)

    def test_s3_shards(self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str) -> None:
        for number in (1, 10, 2):
            s3_environ.client().put_object(Bucket=s3_bucket, Key=f"x_{number}", Body=b"%d" % number)
        one = plane.plan(f"s3://{s3_bucket}/x", "File", hosts=2, sharded=True)
        feed(one)
        assert shown(one, "algo-1") == {"x_1": b"1", "x_2": b"2"}
        assert shown(one, "algo-2") == {"x_10": b"10"}

    def test_contiguous_by_choice(self, plane: Any, feed: Any, tree: Path) -> None:
        settings = DataSettings.parse(rules=["shards=contiguous"])
        one = plane.plan(tree.as_uri(), "File", hosts=2, sharded=True, settings=settings)
        feed(one)
        assert set(shown(one, "algo-2")) == {"zero", "ü"}

    def test_a_sample_of_local_data(self, plane: Any, feed: Any, tree: Path) -> None:
        settings = DataSettings.parse(samples=["train=2"])
        one = plane.plan(tree.as_uri(), "File", settings=settings)
        feed(one)
        assert len(shown(one, "algo-1")) == 2
        assert shown(one, "algo-1").items() <= files(tree).items()

    def test_a_sample_of_s3_downloads_no_more(
        self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        for number in range(10):
            s3_environ.client().put_object(Bucket=s3_bucket, Key=f"p/{number}", Body=b"12345")
        settings = DataSettings.parse(samples=["train=20%"])
        one = plane.plan(f"s3://{s3_bucket}/p/", "File", settings=settings)
        assert one.to_download() == 10
        feed(one)
        assert len(shown(one, "algo-1")) == 2

    def test_a_sample_of_no_channel_is_refused(self, plane: Any, tree: Path) -> None:
        with pytest.raises(ValidationError, match="no such channel"):
            plane.plan(tree.as_uri(), settings=DataSettings.parse(samples=["trian=5%"]))


class TestManifestFile:
    @pytest.fixture
    def manifest(self, tmp_path: Path) -> Any:
        def manifest(content: Any) -> str:
            path = tmp_path / "train.manifest"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            return path.as_uri()

        return manifest

    def plan(self, plane: Any, uri: str, mode: str = "File", **more: Any) -> Any:
        return plane.plan(uri, mode, s3_data_type="ManifestFile", **more)

    def test_objects_lie_at_their_whole_key(
        self, plane: Any, feed: Any, manifest: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        for key in ("some/x/b.csv", "some/a.csv", "some/not.csv"):
            s3_environ.client().put_object(Bucket=s3_bucket, Key=key, Body=key.encode())
        uri = manifest([{"prefix": f"s3://{s3_bucket}/some/"}, "x/b.csv", "a.csv"])
        one = self.plan(plane, uri)
        feed(one)
        assert shown(one, "algo-1") == {
            "some/x/b.csv": b"some/x/b.csv",
            "some/a.csv": b"some/a.csv",
        }
        assert one.manifest() == (
            f"some/\ns3://{s3_bucket}/some/x/b.csv\ns3://{s3_bucket}/some/a.csv\n"
        )
        relative = DataSettings.parse(rules=["manifest-path=relative"])
        other = self.plan(plane, uri, name="other", settings=relative)
        feed(other)
        assert set(shown(other, "algo-1")) == {"x/b.csv", "a.csv"}

    def test_pipe_streams_in_the_order_of_the_array(
        self, plane: Any, feed: Any, manifest: Any, tree: Path
    ) -> None:
        uri = manifest([{"prefix": "s3://bucket/data/"}, "b 2", "a-b", "b 2"])
        one = self.plan(plane, uri, "Pipe", maps=(f"s3://bucket/data={tree}",))
        feed(one)
        assert (plane.data() / "train_0").read_bytes() == b"<b 2><a-b><b 2>"

    def test_the_same_object_twice_is_no_file_tree(
        self, plane: Any, manifest: Any, tree: Path
    ) -> None:
        uri = manifest([{"prefix": tree.as_uri() + "/"}, "a-b", "a-b"])
        with pytest.raises(ValidationError, match="both need the path"):
            self.plan(plane, uri)

    def test_an_object_that_is_not_there_is_refused(
        self, plane: Any, manifest: Any, s3_bucket: str
    ) -> None:
        uri = manifest([{"prefix": f"s3://{s3_bucket}/"}, "absent"])
        with pytest.raises(ValidationError, match="absent: the object does not exist"):
            self.plan(plane, uri)

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ("[", "is no JSON"),
            ({}, "no array"),
            ([], "no array"),
            (["s3://b/x"], "no array"),
            ([{"prefix": ""}, "a"], "no prefix"),
            ([{"prefix": "s3://b/", "more": 1}, "a"], "more than the prefix"),
            ([{"prefix": "s3://b/"}], "names no object"),
            ([{"prefix": "s3://b/"}, "a", 5], "at position 2"),
        ],
    )
    def test_what_is_no_manifest_is_refused(
        self, plane: Any, manifest: Any, content: Any, why: str
    ) -> None:
        with pytest.raises(ValidationError, match=why):
            self.plan(plane, manifest(content))

    def test_a_manifest_that_is_not_there(self, plane: Any, tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match="No such file"):
            self.plan(plane, (tmp_path / "absent").as_uri())


class TestAugmentedManifest:
    @pytest.fixture
    def lines(self, tmp_path: Path, tree: Path) -> str:
        rows = [
            {"source-ref": (tree / name).as_uri(), "label": label, "more": [1, {"a": None}]}
            for name, label in (("a-b", "cat ü"), ("a/1", 1), ("zero", 2.5))
        ]
        path = tmp_path / "augmented.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
        return path.as_uri()

    def plan(self, plane: Any, uri: str, names: tuple[str, ...], **more: Any) -> Any:
        return plane.plan(
            uri, "Pipe", s3_data_type="AugmentedManifestFile", attribute_names=names, **more
        )

    def test_records_follow_the_order_of_the_attributes(
        self, plane: Any, feed: Any, lines: str
    ) -> None:
        from hotfire.runtime.data import augmented, recordio

        names = ("label", "source-ref", "more")
        feed(self.plan(plane, lines, names, record_wrapper_type="RecordIO"))
        with (plane.data() / "train_0").open("rb") as stream:
            found = list(recordio.read(stream))
        assert found[:3] == ['"cat ü"'.encode(), b"<a-b>", b'[1, {"a": null}]']
        assert found[3::3] == [b"1", b"2.5"]
        while not (plane.data() / "train_1").exists():
            pass
        with (plane.data() / "train_1").open("rb") as stream:
            samples = list(augmented.read(stream, names))
        assert samples[0] == {"label": "cat ü", "source-ref": b"<a-b>", "more": [1, {"a": None}]}

    def test_the_line_is_the_unit_of_shards_and_shuffles(
        self, plane: Any, feed: Any, lines: str
    ) -> None:
        one = self.plan(plane, lines, ("label",), hosts=2, sharded=True)
        feed(one)
        assert (plane.data("algo-1") / "train_0").read_bytes() == '"cat ü"2.5'.encode()
        assert (plane.data("algo-2") / "train_0").read_bytes() == b"1"

    def test_from_s3_with_references_into_s3(
        self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        client = s3_environ.client()
        large = os.urandom(3 << 20)
        for key, body in (("large", large), ("empty", b"")):
            client.put_object(Bucket=s3_bucket, Key=key, Body=body)
        rows = [json.dumps({"x-ref": f"s3://{s3_bucket}/{key}"}) for key in ("large", "empty")]
        client.put_object(Bucket=s3_bucket, Key="m.jsonl", Body="\n".join(rows).encode())
        uri = f"s3://{s3_bucket}/m.jsonl"
        feed(self.plan(plane, uri, ("x-ref",)))
        assert (plane.data() / "train_0").read_bytes() == large

    def test_a_reference_to_nothing_fails_the_job(
        self, plane: Any, feed: Any, tmp_path: Path, s3_bucket: str
    ) -> None:
        (tmp_path / "m").write_text(json.dumps({"x-ref": f"s3://{s3_bucket}/absent"}))
        feeds = feed(self.plan(plane, (tmp_path / "m").as_uri(), ("x-ref",)))
        with (plane.data() / "train_0").open("rb"):
            while feeds.failure is None:
                pass
        with pytest.raises(DataError, match="absent: the object does not exist"):
            feeds.check()

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ('{"a": 1}\n{"b": 1}', r"line 2 has no attribute 'a'"),
            ('{"a": 1}\n[1]', "line 2 is no JSON object"),
            ('{"a": 1}\n\n{"a"', "line 3 is no JSON"),
            ("\n", "no line to read"),
        ],
    )
    def test_bad_lines_are_refused_with_their_number(
        self, plane: Any, tmp_path: Path, text: str, why: str
    ) -> None:
        (tmp_path / "m").write_text(text)
        with pytest.raises(ValidationError, match=why):
            self.plan(plane, (tmp_path / "m").as_uri(), ("a",))

    def test_incomplete_lines_can_be_left_out(self, plane: Any, feed: Any, tmp_path: Path) -> None:
        (tmp_path / "m").write_text('{"b": 1}\n{"a": "x"}')
        settings = DataSettings.parse(rules=["attribute-missing=skip", "attribute-text=bare"])
        feed(self.plan(plane, (tmp_path / "m").as_uri(), ("a",), settings=settings))
        assert (plane.data() / "train_0").read_bytes() == b"x"

    def test_incomplete_lines_can_fail_the_running_job(
        self, plane: Any, feed: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "m").write_text('{"a": 1}\n{"b": 1}')
        settings = DataSettings.parse(rules=["attribute-missing=fail"])
        feeds = feed(self.plan(plane, (tmp_path / "m").as_uri(), ("a",), settings=settings))
        end = time.monotonic() + 30
        with (plane.data() / "train_0").open("rb"):
            while feeds.failure is None and time.monotonic() < end:
                time.sleep(0.005)
        assert isinstance(feeds.failure, DataError)
        assert "has no attribute 'a' in the line {\"b\": 1}" in feeds.failure.what

    def test_a_reference_must_be_a_text(self, tmp_path: Path) -> None:
        (tmp_path / "m").write_text('{"a-ref": 5}')
        with pytest.raises(ValidationError, match="line 1: a-ref is no URI"):
            manifests.index(tmp_path / "m", "m", manifests.Attributes(names=("a-ref",)))


class TestFileSystems:
    def plan(self, plane: Any, root: Path, **fields: Any) -> Any:
        from hotfire.runtime.channel_plan import Planner
        from hotfire.runtime.s3 import S3
        from hotfire.runtime.storage import Locations

        values = {
            "file_system_id": "fs-0123456789abcdef0",
            "file_system_type": "EFS",
            "file_system_access_mode": "ro",
            "directory_path": "/sets/a",
        }
        channel = Channel(
            channel_name="train", data_source=FileSystemDataSource(**(values | fields))
        )
        job = plane.job(channel)
        planner = Planner(
            job=job,
            locations=Locations({"fs-0123456789abcdef0": root}),
            staging=root,
            cache=root,
            s3=S3(),
            settings=DataSettings(),
        )
        return planner.plan(channel)

    @pytest.mark.parametrize("mode", ["ro", "rw"])
    def test_efs_is_the_mapped_directory(self, plane: Any, tree: Path, mode: str) -> None:
        one = self.plan(plane, tree, directory_path="/a", file_system_access_mode=mode)
        (mount,) = one.mounts("algo-1")
        assert (mount.source, mount.mode.value) == (tree / "a", mode)
        assert one.manifest() is None
        assert "TCP 2049" in one.notes[0]

    def test_lustre_paths_begin_with_the_mount_name(self, plane: Any, tree: Path) -> None:
        one = self.plan(plane, tree, directory_path="/xyzab/a", file_system_type="FSxLustre")
        assert one.mounts("algo-1")[0].source == tree / "a"
        assert "988" in one.notes[0]

    def test_one_without_a_map_is_refused(self, plane: Any, tree: Path) -> None:
        with pytest.raises(UnsupportedError, match="fs-00000000 is not here") as caught:
            self.plan(plane, tree, file_system_id="fs-00000000")
        assert "--map fs-00000000=" in caught.value.do

    def test_a_path_out_of_it_is_refused(self, plane: Any, tree: Path) -> None:
        with pytest.raises(ValidationError, match="would leave"):
            self.plan(plane, tree, directory_path="/../etc")


class TestRules:
    def test_prefixes_and_markers(
        self, plane: Any, feed: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        for key in ("data/train-data.csv", "data/train/x/"):
            s3_environ.client().put_object(Bucket=s3_bucket, Key=key, Body=b"")
        uri = f"s3://{s3_bucket}/data/train"
        one = plane.plan(uri, "File")
        feed(one)
        assert shown(one, "algo-1") == {"train-data.csv": b""}
        assert (one.mounts("algo-1")[0].source / "train" / "x").is_dir()
        settings = DataSettings.parse(
            rules=["prefix-cut=prefix", "folder-markers=skip", "manifest-beside=never"]
        )
        other = plane.plan(uri, "File", name="other", settings=settings)
        feed(other)
        assert shown(other, "algo-1") == {"-data.csv": b""}
        assert not (other.mounts("algo-1")[0].source / "train").exists()
        assert other.manifest() is None

    def test_prefixes_of_mapped_data(self, plane: Any, feed: Any, tmp_path: Path) -> None:
        for path in ("train-data.csv", "train/x", "tr"):
            (tmp_path / "d" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "d" / path).write_bytes(path.encode())
        settings = DataSettings.parse(rules=["prefix-cut=prefix"])

        def files(key: str, name: str, settings: DataSettings | None = None) -> set[str]:
            maps = (f"s3://b/data={tmp_path / 'd'}",)
            one = plane.plan(f"s3://b/data/{key}", "File", name=name, maps=maps, settings=settings)
            feed(one)
            return {item.path for item in one.preview("algo-1", 0)}

        assert files("train", "a") == {"train-data.csv", "train/x"}
        assert files("train", "b", settings) == {"-data.csv", "x"}
        assert files("train/", "c", settings) == {"x"}
        assert files("tr", "d", settings) == {"ain-data.csv", "ain/x", "tr"}
        # One folder matches, and the prefix is not the whole of its name.
        (tmp_path / "d" / "train-data.csv").unlink()
        (tmp_path / "d" / "tr").unlink()
        assert files("tra", "e") == {"train/x"}
        assert files("tra", "f", settings) == {"in/x"}

    def test_a_manifest_beside_a_pipe(self, plane: Any, tree: Path) -> None:
        assert plane.plan(tree.as_uri()).manifest() is None
        settings = DataSettings.parse(rules=["manifest-beside=always"])
        text = plane.plan(tree.as_uri(), settings=settings).manifest()
        assert text.splitlines()[:2] == [str(tree), (tree / "a-b").as_uri()]

    def test_shuffle_and_shards_of_files(self, plane: Any, tree: Path) -> None:
        def share(*rules: str, mode: str = "File") -> list[str]:
            one = plane.plan(
                tree.as_uri(),
                mode,
                hosts=2,
                sharded=True,
                shuffle_seed=3,
                settings=DataSettings.parse(rules=rules),
            )
            return [Path(item.path).name for item in one.preview("algo-1", 0)]

        assert share() == ["a-b", "b 2", "ü"]
        assert share("file-shuffle=on") != ["a-b", "b 2", "ü"]
        assert len(share("fastfile-shards=off", mode="FastFile")) == 5

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ({"rules": ["shard=x"]}, "no rule 'shard'"),
            ({"rules": ["shards=x"]}, "cannot be 'x'"),
            ({"rules": ["pipe-timeout=SECONDS"]}, "cannot be"),
            ({"samples": ["train"]}, "is not CHANNEL"),
            ({"samples": ["train=101%"]}, "not a part"),
            ({"samples": ["train=0"]}, "not a part"),
            ({"bandwidth": "fast"}, "is not a size"),
            ({"cache_limit": "-1"}, "is not a size"),
        ],
    )
    def test_nonsense_is_refused(self, words: dict[str, Any], why: str) -> None:
        with pytest.raises(ValidationError, match=why):
            DataSettings.parse(**words)

    def test_rates(self) -> None:
        assert parse_rate("100MB/s") == 1e8
        assert parse_rate("1.5 GB") == 1.5e9

    def test_every_rule_is_documented_with_its_values(self) -> None:
        page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
        for rule in RULES:
            assert f"| `{rule.name}` | {', '.join(f'`{value}`' for value in rule.values)} |" in page
            assert rule.source in page


class TestAdvice:
    def test_a_bandwidth_gives_the_time_of_a_download(self, plane: Any, tree: Path) -> None:
        settings = DataSettings.parse(bandwidth="1kB/s")
        (note,) = plane.plan(tree.as_uri(), "File", settings=settings).notes
        assert "0.019 s at 1 kB/s" in note
        assert plane.plan(tree.as_uri(), "Pipe", settings=settings).notes == ()

    def test_many_small_local_files_are_told(
        self, plane: Any, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert plane.plan(tree.as_uri(), "File").notes == ()
        monkeypatch.setattr(channel_advice, "MANY_FILES", 5)
        settings = DataSettings.parse(thorough=True)
        (note,) = plane.plan(tree.as_uri(), "File", settings=settings).notes
        assert "5 objects of 4 bytes on average" in note
        assert plane.plan(tree.as_uri(), "FastFile", settings=settings).notes == ()

    def test_uneven_shards_are_told(self, plane: Any, tree: Path) -> None:
        (tree / "b 2").write_bytes(bytes(10_000))
        (note,) = plane.plan(tree.as_uri(), "File", hosts=2, sharded=True).notes
        assert "algo-1 gets 10 kB" in note
