"""URIs, maps, and files that appear whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.runtime.copies import copy_file, put_local
from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import Event, Progress, ignore
from hotfire.runtime.storage import (
    LocalLocation,
    Locations,
    S3Location,
    human,
    parse_uri,
    replacing,
)


class TestUris:
    @pytest.mark.parametrize(
        ("uri", "expected"),
        [
            ("file:///a/b", LocalLocation(Path("/a/b"))),
            ("file:///a%20b/%C3%BC%23", LocalLocation(Path("/a b/ü#"))),
            ("file:///a#b?c", LocalLocation(Path("/a#b?c"))),
            ("s3://bucket", S3Location("bucket", "")),
            ("s3://bucket/", S3Location("bucket", "")),
            ("s3://bucket/a/b c", S3Location("bucket", "a/b c")),
            ("s3://bucket//a", S3Location("bucket", "/a")),
            ("https://b.c.s3.amazonaws.com/k/x%20y", S3Location("b.c", "k/x y")),
            ("https://b.s3.eu-west-1.amazonaws.com/k", S3Location("b", "k")),
            ("https://s3.us-west-2.amazonaws.com/b/k", S3Location("b", "k")),
            ("https://s3-us-west-2.amazonaws.com/b/k", S3Location("b", "k")),
        ],
    )
    def test_understood(self, uri: str, expected: object) -> None:
        assert parse_uri(uri) == expected

    @pytest.mark.parametrize(
        "uri",
        [
            "",
            "/plain",
            "file://host/a",
            "file://relative",
            "file:///a%00b",
            "s3:///key",
            "s3:/b/k",
            "gs://b/k",
            "https://example.com/b",
        ],
    )
    def test_refused(self, uri: str) -> None:
        with pytest.raises(ValidationError) as caught:
            parse_uri(uri)
        assert caught.value.do

    @given(st.binary(min_size=1, max_size=40).filter(lambda name: not set(name) & set(b"\0/")))
    def test_any_path_survives_as_uri(self, name: bytes) -> None:
        path = Path("/data") / os.fsdecode(name)
        assert parse_uri(path.as_uri()) == LocalLocation(path)


class TestMaps:
    def test_the_longest_prefix_wins_and_only_on_a_border(self) -> None:
        maps = Locations({"s3://b": "/all", "s3://b/data/": "/data", "s3://b/data/x": "/x"})
        assert maps.resolve("s3://b/data") == LocalLocation(Path("/data"))
        assert maps.resolve("s3://b/data/") == LocalLocation(Path("/data"))
        assert maps.resolve("s3://b/data/x") == LocalLocation(Path("/x"))
        assert maps.resolve("s3://b/data/xy/z") == LocalLocation(Path("/data/xy/z"), below=True)
        assert maps.resolve("s3://b/database") == LocalLocation(Path("/all/database"), below=True)
        assert maps.resolve("s3://b/database/") == LocalLocation(Path("/all/database"))
        assert maps.resolve("s3://bb/data") == S3Location("bb", "data")

    def test_files_are_not_mapped(self) -> None:
        assert Locations({"s3://b": "/b"}).resolve("file:///b/x") == LocalLocation(Path("/b/x"))

    @given(
        st.lists(st.sampled_from(["a", "ab", "b"]), max_size=4),
        st.lists(st.sampled_from(["a", "ab", "b"]), max_size=4),
    )
    def test_a_map_applies_exactly_below_its_parts(self, mapped: list[str], key: list[str]) -> None:
        source = "/".join(["s3://bucket", *mapped])
        uri = "/".join(["s3://bucket", *key])
        location = Locations({source: "/to"}).resolve(uri)
        if key[: len(mapped)] == mapped:
            assert isinstance(location, LocalLocation)
            assert location.path == Path("/to", *key[len(mapped) :])
        else:
            assert location == S3Location("bucket", "/".join(key))

    def test_a_key_cannot_leave_its_directory(self) -> None:
        with pytest.raises(ValidationError, match="would leave"):
            Locations({"s3://b": "/b"}).resolve("s3://b/../etc/passwd")

    def test_flags(self, tmp_path: Path) -> None:
        (tmp_path / "d=1").mkdir()
        (tmp_path / "e").mkdir()
        maps = Locations.parse(
            ["s3://b/dt=2026/=e", "s3://c=d=1", "fs-0123abcd=/mnt", "s3://d=new"], tmp_path
        )
        assert {key: str(to) for key, to in maps.maps.items()} == {
            "s3://b/dt=2026": str(tmp_path / "e"),
            "s3://c": str(tmp_path / "d=1"),
            "fs-0123abcd": "/mnt",
            "s3://d": str(tmp_path / "new"),
        }
        assert maps.file_system("fs-0123abcd") == Path("/mnt")
        assert maps.file_system("fs-00000000") is None

    @pytest.mark.parametrize(
        "texts", [["s3://b"], ["=x"], ["s3://b="], ["bucket=x"], ["s3://b=x", "s3://b/=y"]]
    )
    def test_bad_flags_are_refused(self, texts: list[str], tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match="--map"):
            Locations.parse(texts, tmp_path)


class TestReplacing:
    def test_nothing_shows_before_the_end_and_nothing_stays_after_an_error(
        self, tmp_path: Path
    ) -> None:
        target = tmp_path / "deep" / "file"
        with replacing(target) as temporary:
            temporary.write_text("new")
            assert not target.exists()
        assert target.read_text() == "new"
        with pytest.raises(KeyboardInterrupt), replacing(target) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt
        assert target.read_text() == "new"
        assert [path.name for path in target.parent.iterdir()] == ["file"]

    def test_the_users_umask_holds(self, tmp_path: Path) -> None:
        (tmp_path / "plain").touch()
        with replacing(tmp_path / "ours"):
            pass
        assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


class TestPut:
    def test_copies_and_reports(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(1_000_000))
        events: list[Event] = []
        put_local(source, tmp_path / "to" / "target", events.append, "upload")
        assert (tmp_path / "to" / "target").read_bytes() == source.read_bytes()
        assert events[-1] == Progress(activity="upload", done=1_000_000, total=1_000_000)

    def test_a_target_that_cannot_be_made_keeps_the_source(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_text("x")
        with pytest.raises(DataError) as caught:
            put_local(source, source / "below" / "target", ignore, "upload")
        assert f"{source} is kept" in caught.value.do
        assert source.read_text() == "x"

    def test_a_full_disk_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        """A file-size limit is the one full disk that every machine can have."""
        (tmp_path / "source").write_bytes(bytes(100_000))
        program = (
            "import resource, sys; from pathlib import Path\n"
            "from hotfire.runtime import copies, events, errors\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
            "source, target = map(Path, sys.argv[1:])\n"
            "try: copies.put_local(source, target, events.ignore, 'upload')\n"
            "except errors.DataError as error: print(error)\n"
        )
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                program,
                str(tmp_path / "source"),
                str(tmp_path / "to" / "file"),
            ],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert f"no space left to write {tmp_path / 'to' / 'file'}" in done.stdout
        assert f"{tmp_path / 'source'} is kept" in done.stdout
        assert list((tmp_path / "to").iterdir()) == []

    def test_files_without_a_size_are_copied_too(self, tmp_path: Path) -> None:
        """/proc files report no size, and some kernels copy nothing from them inside the kernel."""
        copy_file(Path("/proc/self/status"), tmp_path / "copy", lambda _: None)
        assert b"Name:" in (tmp_path / "copy").read_bytes()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1_400_000_000, "1.4 GB"), (2e12, "2 TB")],
)
def test_human(count: float, text: str) -> None:
    assert human(count) == text
