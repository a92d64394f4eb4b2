"""model.tar.gz and output.tar.gz: read back by Python's tarfile and by GNU tar."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from hotfire.runtime import tarball
from hotfire.runtime.archives import lay, pack
from hotfire.runtime.artifacts import destinations, store_outputs
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Event, Note, Progress, ignore
from hotfire.runtime.layout import MlTree
from hotfire.runtime.s3 import S3
from hotfire.runtime.spec import (
    AlgorithmSpecification,
    InstanceGroup,
    OutputDataConfig,
    ResourceConfig,
    TrainingJob,
)
from hotfire.runtime.storage import Locations
from hotfire.runtime.trees import merge


def make_job(output: str, compression: str = "GZIP") -> TrainingJob:
    group = InstanceGroup(
        instance_group_name="homogeneousCluster",
        instance_type="ml.m5.large",
        instance_count=2,
        hosts=("algo-1", "algo-2"),
    )
    return TrainingJob(
        training_job_name="job-1",
        role_arn="arn:aws:iam::000000000000:role/hotfire",
        region="us-east-1",
        algorithm_specification=AlgorithmSpecification(training_image="hotfire"),
        output_data_config=OutputDataConfig(s3_output_path=output, compression_type=compression),
        resource_config=ResourceConfig(instance_groups=(group,)),
    )


def tree(top: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return top


def gnu(archive: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        ["tar", *arguments, "--quoting-style=literal", "-f", str(archive)],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
    )
    assert done.stderr == b""
    return done.stdout.decode("utf-8", "surrogateescape").splitlines()


def read_back(archive: Path) -> dict[str, bytes | str | None]:
    """Name to contents, link target, or None for a directory; extracted for real."""
    found: dict[str, bytes | str | None] = {}
    with tarfile.open(archive, "r:gz") as tar:
        for one in tar:
            if one.isfile() or one.islnk():
                file = tar.extractfile(one)
                assert file is not None
                found[one.name] = file.read()
            else:
                found[one.name] = one.linkname if one.issym() else None
    return found


class TestPack:
    def test_members_are_as_the_service_makes_them(self, tmp_path: Path) -> None:
        model = tree(tmp_path / "model", **{"b/c.txt": "c", "a": "a", "ü ñ/文": "x"})
        (model / "empty").mkdir()
        (model / "b" / "link").symlink_to("../a")
        (model / "folder").symlink_to("b")
        (model / "a").chmod(0o640)
        packed = pack([("algo-1", model)], tmp_path / "out" / "model.tar.gz", ignore)
        assert packed is not None
        assert (packed.files, packed.source_bytes, packed.warnings) == (3, 3, ())
        assert packed.bytes == packed.path.stat().st_size
        assert read_back(packed.path) == {
            "a": b"a",
            "b": None,
            "b/c.txt": b"c",
            "b/link": "../a",
            "empty": None,
            "folder": "b",
            "ü ñ": None,
            "ü ñ/文": b"x",
        }
        with tarfile.open(packed.path) as tar:
            members = tar.getmembers()
        assert {(one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, "", "")}
        assert members[0].mode == 0o640
        assert members[0].mtime == int((model / "a").stat().st_mtime)
        assert gnu(packed.path, "-tz") == [
            "a",
            "b/",
            "b/c.txt",
            "b/link",
            "empty/",
            "folder",
            "ü ñ/",
            "ü ñ/文",
        ]
        assert [path.name for path in packed.path.parent.iterdir()] == ["model.tar.gz"]

    def test_equal_trees_give_equal_archives(self, tmp_path: Path) -> None:
        model = tree(tmp_path / "model", a="a", **{"b/c": os.urandom(3_000_000)})
        first = pack([("algo-1", model)], tmp_path / "1.tar.gz", ignore)
        second = pack([("algo-1", model)], tmp_path / "2.tar.gz", ignore)
        assert first is not None and second is not None
        assert first.path.read_bytes() == second.path.read_bytes()

    @pytest.mark.parametrize("exists", [True, False])
    def test_an_empty_directory_gives_no_archive(self, exists: bool, tmp_path: Path) -> None:
        if exists:
            (tmp_path / "model").mkdir()
        assert pack([("algo-1", tmp_path / "model")], tmp_path / "m.tar.gz", ignore) is None
        assert not (tmp_path / "m.tar.gz").exists()

    def test_hard_links_stay_links(self, tmp_path: Path) -> None:
        model = tree(tmp_path / "model", **{"a/weights": b"w" * 2_000_000})
        (model / "z").hardlink_to(model / "a" / "weights")
        packed = pack([("algo-1", model)], tmp_path / "m.tar.gz", ignore)
        assert packed is not None
        with tarfile.open(packed.path) as tar:
            assert tar.getmember("z").islnk()
        assert read_back(packed.path)["z"] == b"w" * 2_000_000

    def test_what_does_not_belong_in_an_archive_is_left_out_with_a_warning(
        self, tmp_path: Path
    ) -> None:
        model = tree(tmp_path / "model", good="x")
        tree(tmp_path, **{"outside": "secret", "model2/x": "y"})
        (model / "absolute").symlink_to("/etc/passwd")
        (model / "up").symlink_to("../outside")
        (model / "sibling").symlink_to("../model2")
        (model / "here").symlink_to(".")
        (model / "around").symlink_to("here/../../outside")
        (model / "dangling").symlink_to("later")
        os.mkfifo(model / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(model / "socket"))
        events: list[Event] = []
        packed = pack([("algo-1", model)], tmp_path / "m.tar.gz", events.append)
        assert packed is not None
        assert set(read_back(packed.path)) == {"good", "here", "dangling"}
        said = " ".join(packed.warnings)
        for name in ("absolute", "up", "sibling", "around", "fifo", "socket"):
            assert f"{name} on algo-1" in said
        warned = [one.text for one in events if isinstance(one, Note) and one.warning]
        assert tuple(warned) == packed.warnings
        with tarfile.open(packed.path) as tar:
            tar.extractall(tmp_path / "x", filter="data")

    def test_only_a_fifo_is_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        os.mkfifo(tmp_path / "model" / "fifo")
        assert pack([("algo-1", tmp_path / "model")], tmp_path / "m.tar.gz", ignore) is None

    def test_names_that_are_not_utf8(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        model.mkdir()
        name = os.fsdecode(b"caf\xe9\x1b[2J")
        (model / name).write_text("x")
        (model / ("n" * 250)).write_text("y")
        long = os.fsdecode(b"\xe9" * 250)
        (model / "link").symlink_to(long)
        packed = pack([("algo-1", model)], tmp_path / "m.tar.gz", ignore)
        assert packed is not None
        assert read_back(packed.path) == {name: b"x", "n" * 250: b"y", "link": long}
        assert set(gnu(packed.path, "-tz")) == {name, "n" * 250, "link"}

    def test_a_file_that_shrinks_or_grows_or_goes_leaves_a_good_archive(
        self, tmp_path: Path
    ) -> None:
        """The observer hears of every 8 MB, so a change made there falls between a file's header and its end."""
        model = tree(
            tmp_path / "model",
            a=bytes(20_000_000),
            b=b"b" * 20_000_000,
            c=b"c",
            d=b"d",
        )
        done: list[str] = []

        def meddle(event: Event) -> None:
            if isinstance(event, Progress) and event.done < 20_000_000 and "a" not in done:
                done.append("a")
                os.truncate(model / "a", 100)
                (model / "c").unlink()
            if isinstance(event, Progress) and event.done > 20_000_000 and "b" not in done:
                done.append("b")
                with (model / "b").open("ab") as file:
                    file.write(b"more")

        packed = pack([("algo-1", model)], tmp_path / "m.tar.gz", meddle)
        assert packed is not None
        assert done == ["a", "b"]
        found = read_back(packed.path)
        assert found == {"a": bytes(20_000_000), "b": b"b" * 20_000_000, "d": b"d"}
        said = " ".join(packed.warnings)
        assert "a on algo-1: changed" in said
        assert "b on algo-1: changed" in said
        assert "c on algo-1: No such file" in said

    def test_progress_reaches_the_total(self, tmp_path: Path) -> None:
        model = tree(tmp_path / "model", a=bytes(10_000_000), b="x")
        events: list[Event] = []
        pack([("algo-1", model)], tmp_path / "model.tar.gz", events.append)
        assert events[-1] == Progress(activity="model.tar.gz", done=10_000_001, total=10_000_001)
        assert len(events) > 1

    def test_a_file_above_8_gib(self, tmp_path: Path) -> None:
        """Its size no longer fits the octal field of the old header. The archive is sparse: nobody reads 8 GiB here."""
        model = tree(tmp_path / "model", z="end")
        size = (8 << 30) + 5
        os.truncate(model / "z", size)
        (member,) = merge([("algo-1", model)]).members
        archive = tmp_path / "m.tar"
        archive.write_bytes(tarball.encoded(tarball.header(member)))
        os.truncate(archive, archive.stat().st_size + size + 507 + 1024)
        (line,) = gnu(archive, "-tv", "--numeric-owner")
        assert line.split()[2] == str(size)
        with tarfile.open(archive) as tar:
            assert [(one.name, one.size) for one in tar] == [("z", size)]

    def test_holes(self, tmp_path: Path) -> None:
        """A sparse file reads as the zeros that it stands for."""
        model = tree(tmp_path / "model", a="start")
        os.truncate(model / "a", 30_000_000)
        packed = pack([("algo-1", model)], tmp_path / "m.tar.gz", ignore)
        assert packed is not None
        assert read_back(packed.path) == {"a": b"start".ljust(30_000_000, b"\0")}
        assert packed.bytes < 100_000

    @pytest.mark.parametrize(("size", "limit"), [(60_000_000, 1_500_000), (100_000, 50_000)])
    def test_a_full_disk_leaves_no_archive_and_says_where_the_files_are(
        self, size: int, limit: int, tmp_path: Path
    ) -> None:
        """Found at once, not after the rest of a large model; and found when only the last block does not fit."""
        model = tree(tmp_path / "model", a=os.urandom(size))
        program = (
            "import resource, sys; from pathlib import Path\n"
            "from hotfire.runtime import archives, events, errors\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
            "model, target = map(Path, sys.argv[1:])\n"
            "seen = []\n"
            "try: archives.pack([('algo-1', model)], target, seen.append)\n"
            "except errors.DataError as error: print(error)\n"
            "print(max((one.done for one in seen if isinstance(one, events.Progress)), default=0))\n"
        )
        target = tmp_path / "out" / "model.tar.gz"
        done = subprocess.run(
            [sys.executable, "-c", program, str(model), str(target)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        what, do, read = done.stdout.splitlines()
        assert what.startswith(f"Artifact upload failed: no space left to write {target}")
        assert str(model) in do
        assert int(read) < 30_000_000
        assert list(target.parent.iterdir()) == []

    def test_an_interruption_leaves_nothing(self, tmp_path: Path) -> None:
        model = tree(tmp_path / "model", a=os.urandom(20_000_000))

        def interrupt(event: Event) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack([("algo-1", model)], tmp_path / "out" / "m.tar.gz", interrupt)
        assert list((tmp_path / "out").iterdir()) == []
        assert threading.active_count() == 1 + sum(
            "moto" in one.name or one.daemon for one in threading.enumerate()[1:]
        )


NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.tuples(NAMES) | st.tuples(NAMES, NAMES), st.binary(max_size=2000), max_size=6
    )
)
def test_any_tree_comes_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[tuple[str, ...], bytes]
) -> None:
    top = tmp_path_factory.mktemp("tree")
    model = top / "model"
    model.mkdir()
    expected: dict[str, bytes] = {}
    for parts, data in files.items():
        path = model.joinpath(*parts)
        if any(parent.is_file() for parent in path.parents) or path.is_dir():
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        expected["/".join(parts)] = data
    packed = pack([("algo-1", model)], top / "m.tar.gz", ignore)
    if packed is None:
        assert not expected
    else:
        found = read_back(packed.path)
        assert {name: data for name, data in found.items() if data is not None} == expected
        assert len(gnu(packed.path, "-tz", "--show-transformed-names")) >= len(found)
    shutil.rmtree(top)


class TestMerge:
    def test_hosts_are_merged_and_the_last_wins_with_a_warning(self, tmp_path: Path) -> None:
        one = tree(tmp_path / "1", same="s", clash="one", mine="1", **{"d/x": "1"})
        two = tree(tmp_path / "2", same="s", clash="two", **{"d/y": "2"})
        packed = pack([("algo-1", one), ("algo-2", two)], tmp_path / "m.tar.gz", ignore)
        assert packed is not None
        assert read_back(packed.path) == {
            "clash": b"two",
            "d": None,
            "d/x": b"1",
            "d/y": b"2",
            "mine": b"1",
            "same": b"s",
        }
        assert packed.warnings == (
            "clash: algo-1 and algo-2 wrote different contents; algo-2's is kept",
        )

    def test_a_file_replaces_a_directory_and_the_other_way_round(self, tmp_path: Path) -> None:
        one = tree(tmp_path / "1", **{"a/x": "1", "b": "file"})
        two = tree(tmp_path / "2", **{"a": "file", "b/y": "2"})
        packed = pack([("algo-1", one), ("algo-2", two)], tmp_path / "m.tar.gz", ignore)
        assert packed is not None
        assert read_back(packed.path) == {"a": b"file", "b": None, "b/y": b"2"}
        assert len(packed.warnings) == 2


class TestStore:
    @pytest.fixture
    def trees(self, tmp_path: Path) -> list[tuple[str, MlTree]]:
        hosts = []
        for number in (1, 2):
            ml = MlTree(tmp_path / f"algo-{number}")
            ml.model.mkdir(parents=True)
            ml.output_data.mkdir(parents=True)
            hosts.append((f"algo-{number}", ml))
        tree(hosts[0][1].model, **{"model.bin": "weights", "sub/x": "x"})
        tree(hosts[0][1].output_data, log="1")
        tree(hosts[0][1].output, failure="not packed", beside="not packed")
        return hosts

    def test_where_artifacts_go(self) -> None:
        found = destinations(make_job("s3://b/p/"))
        assert found.model == "s3://b/p/job-1/output/model.tar.gz"
        assert found.output == "s3://b/p/job-1/output/output.tar.gz"
        found = destinations(make_job("s3://b", "NONE"))
        assert found.model == "s3://b/job-1/output/model/"
        assert found.output == "s3://b/job-1/output/data/"

    def test_to_this_machine(self, tmp_path: Path, trees: Any) -> None:
        job = make_job((tmp_path / "out dir").as_uri())
        events: list[Event] = []
        stored = store_outputs(job, trees, Locations(), tmp_path / "staging", events.append)
        out = tmp_path / "out dir" / "job-1" / "output"
        assert read_back(out / "model.tar.gz") == {
            "model.bin": b"weights",
            "sub": None,
            "sub/x": b"x",
        }
        assert read_back(out / "output.tar.gz") == {"log": b"1"}
        assert stored.model is not None
        assert stored.model.path == out / "model.tar.gz"
        assert sorted(path.name for path in out.iterdir()) == ["model.tar.gz", "output.tar.gz"]
        assert not (tmp_path / "staging").exists()
        assert not [event for event in events if isinstance(event, Note)]

    def test_a_second_host_in_output_data_is_mentioned(self, tmp_path: Path, trees: Any) -> None:
        tree(trees[1][1].output_data, log2="2")
        events: list[Event] = []
        job = make_job((tmp_path / "out").as_uri())
        store_outputs(job, trees, Locations(), tmp_path / "staging", events.append)
        (note,) = [event for event in events if isinstance(event, Note)]
        assert "algo-2 wrote to output/data" in note.text
        assert set(read_back(tmp_path / "out/job-1/output/output.tar.gz")) == {"log", "log2"}

    def test_an_s3_path_that_is_mapped(self, tmp_path: Path, trees: Any) -> None:
        maps = Locations({"s3://b/p": tmp_path / "mapped"})
        store_outputs(make_job("s3://b/p/out"), trees, maps, tmp_path / "staging", ignore)
        assert (tmp_path / "mapped/out/job-1/output/model.tar.gz").is_file()

    def test_to_s3(self, tmp_path: Path, trees: Any, s3_environ: Any, s3_bucket: str) -> None:
        job = make_job(f"s3://{s3_bucket}/p/")
        stored = store_outputs(job, trees, Locations(), tmp_path / "staging", ignore)
        client = s3_environ.client()
        client.download_file(s3_bucket, "p/job-1/output/model.tar.gz", tmp_path / "back")
        assert set(read_back(tmp_path / "back")) == {"model.bin", "sub", "sub/x"}
        assert list((tmp_path / "staging").iterdir()) == []
        assert stored.output is not None

    def test_a_refused_upload_keeps_the_archives(
        self, tmp_path: Path, trees: Any, s3_environ: Any
    ) -> None:
        job = make_job("s3://there-is-no-such-bucket/p")
        with pytest.raises(DataError, match="Artifact upload failed") as caught:
            store_outputs(job, trees, Locations(), tmp_path / "staging", ignore)
        assert str(tmp_path / "staging" / "model.tar.gz") in caught.value.do
        assert set(read_back(tmp_path / "staging" / "model.tar.gz")) == {
            "model.bin",
            "sub",
            "sub/x",
        }
        assert (tmp_path / "staging" / "output.tar.gz").is_file()

    def test_uncompressed_to_this_machine(self, tmp_path: Path, trees: Any) -> None:
        (trees[0][1].model / "link").symlink_to("model.bin")
        job = make_job((tmp_path / "out").as_uri(), "NONE")
        stored = store_outputs(job, trees, Locations(), tmp_path / "staging", ignore)
        out = tmp_path / "out/job-1/output"
        assert (out / "model/model.bin").read_text() == "weights"
        assert (out / "model/link").readlink() == Path("model.bin")
        assert (out / "data/log").read_text() == "1"
        assert stored.model is not None
        assert stored.model.bytes == stored.model.source_bytes == 8

    def test_uncompressed_keeps_holes(self, tmp_path: Path, trees: Any) -> None:
        with (trees[0][1].model / "sparse").open("wb") as file:
            file.truncate(200 << 20)
        job = make_job((tmp_path / "out").as_uri(), "NONE")
        store_outputs(job, trees, Locations(), tmp_path / "staging", ignore)
        found = (tmp_path / "out/job-1/output/model/sparse").stat()
        assert (found.st_size, found.st_blocks < 100) == (200 << 20, True)

    def test_uncompressed_to_s3(
        self, tmp_path: Path, trees: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        job = make_job(f"s3://{s3_bucket}/p", "NONE")
        store_outputs(job, trees, Locations(), tmp_path / "staging", ignore)
        listed = s3_environ.client().list_objects_v2(Bucket=s3_bucket)["Contents"]
        assert [one["Key"] for one in listed] == [
            "p/job-1/output/data/log",
            "p/job-1/output/model/model.bin",
            "p/job-1/output/model/sub/x",
        ]

    def test_what_was_sent_is_not_sent_again(
        self, tmp_path: Path, trees: Any, s3_environ: Any, s3_bucket: str
    ) -> None:
        (trees[0][1].model / "sub" / "link").symlink_to("../model.bin")
        job = make_job(f"s3://{s3_bucket}/p", "NONE")
        s3 = S3()
        sent: list[str] = []

        def refused_once(params: dict[str, Any], **_: Any) -> None:
            key = unquote(params["url_path"]).partition("/p/job-1/output/")[2]
            sent.append(key)
            if key == "model/sub/x" and sent.count(key) == 1:
                raise ClientError({"Error": {"Code": "AccessDenied"}}, "PutObject")

        s3.client.meta.events.register("before-call.s3.PutObject", refused_once)
        where = job, trees, Locations(), tmp_path / "staging", ignore
        with pytest.raises(DataError, match="Then: hotfire upload job-1"):
            store_outputs(*where, s3=s3)
        stored = store_outputs(*where, s3=s3, resume=True)
        assert sent[0] == "model/sub/link", "before its target goes"
        assert sorted(sent[1:]) == [
            "data/log",
            "data/log",
            *["model/model.bin", *["model/sub/x"] * 2],
        ]
        listed = s3_environ.client().list_objects_v2(Bucket=s3_bucket)["Contents"]
        assert len(listed) == 4
        assert stored.model is not None and stored.model.files == 2
        assert list((tmp_path / "staging").iterdir()) == []

    def test_nothing_written_is_nothing_stored(self, tmp_path: Path) -> None:
        trees = [("algo-1", MlTree(tmp_path / "ml"))]
        job = make_job((tmp_path / "out").as_uri())
        stored = store_outputs(job, trees, Locations(), tmp_path / "staging", ignore)
        assert (stored.model, stored.output, stored.warnings) == (None, None, ())
        assert not (tmp_path / "out").exists()


def test_a_laid_tree_replaces_the_old_one(tmp_path: Path) -> None:
    tree(tmp_path / "to", old="x")
    model = tree(tmp_path / "model", **{"new/a": "1"})
    packed = lay([("algo-1", model)], tmp_path / "to", ignore)
    assert packed is not None
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "model",
        "model/new",
        "model/new/a",
        "to",
        "to/new",
        "to/new/a",
    ]
