"""Code from directories, archives, git and S3, hostile archives among them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotfire.entrypoints.train import git
from hotfire.entrypoints.train.archive import unpack
from hotfire.runtime.errors import DataError, ValidationError

HELLO = "print('hello from', __file__.rsplit('/', 1)[1])\n"


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, data


def test_an_archive_is_unpacked_and_run(container: Any) -> None:
    source = archive(
        container.root / "sourcedir.tar.gz",
        member("./", tarfile.DIRTYPE),
        member("./train.py", data=HELLO.encode()),
        member("lib/link.py", tarfile.SYMTYPE, "../train.py"),
        member("lib/hard.py", tarfile.LNKTYPE, "train.py"),
    )
    container.configure(sagemaker_program="lib/link.py", sagemaker_submit_directory=str(source))
    result = container.run()
    assert (result.code, result.out) == (0, "hello from link.py\n")
    assert (container.code / "lib" / "hard.py").read_text() == HELLO


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([member("/etc/evil")], "outside the source directory: '/etc/evil'"),
        ([member("a/../../evil")], "outside the source directory"),
        ([member("evil", tarfile.SYMTYPE, "/etc/passwd")], "a link that leaves"),
        ([member("evil", tarfile.SYMTYPE, "../outside")], "a link that leaves"),
        ([member("evil", tarfile.LNKTYPE, "../outside")], "outside the source directory"),
        ([member("evil", tarfile.LNKTYPE, "nothing")], "a hard link to nothing"),
        ([member("evil", tarfile.CHRTYPE)], "no file: 'evil'"),
        ([member("evil", tarfile.FIFOTYPE)], "no file: 'evil'"),
        # Through a link: down into a directory, then up from where it really is.
        (
            [
                member("a/b/c", tarfile.DIRTYPE),
                member("short", tarfile.SYMTYPE, "a/b/c"),
                member("a/out", tarfile.SYMTYPE, "../../outside"),
            ],
            "a link that leaves",
        ),
        (
            [member("d", tarfile.SYMTYPE, "."), member("d/e", tarfile.SYMTYPE, "../outside")],
            "a link that leaves",
        ),
    ],
)
def test_a_hostile_archive_is_refused_and_writes_nothing_outside(
    tmp_path: Path, members: list[Any], reason: str
) -> None:
    (tmp_path / "outside").mkdir()
    destination = tmp_path / "code"
    destination.mkdir()
    path = archive(tmp_path / "source.tar.gz", *members)
    with pytest.raises(DataError, match=reason):
        unpack(path, destination)
    assert listing(tmp_path) == ["code", "outside", "source.tar.gz"]
    assert not listing(tmp_path / "outside")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    destination = tmp_path / "code"
    destination.mkdir()
    path = archive(
        tmp_path / "source.tar.gz",
        member("way", tarfile.SYMTYPE, "../outside"),
        member("way/evil", data=b"evil"),
    )
    with pytest.raises((DataError, OSError)):
        unpack(path, destination)
    assert not listing(tmp_path / "outside")


def test_set_id_bits_are_dropped(tmp_path: Path) -> None:
    info, data = member("run", data=b"#!/bin/sh\n")
    info.mode = 0o6755
    destination = tmp_path / "code"
    destination.mkdir()
    unpack(archive(tmp_path / "source.tar.gz", (info, data)), destination)
    assert (destination / "run").stat().st_mode & 0o7777 == 0o755


def test_an_archive_larger_than_the_disk_is_refused_before_it_fills_it(tmp_path: Path) -> None:
    """A bomb says its size in the header: nothing of it is written."""
    info = tarfile.TarInfo("zeros")
    info.size = 2**60
    path = tmp_path / "bomb.tar"
    path.write_bytes(info.tobuf() + b"\0" * 1024)
    destination = tmp_path / "code"
    destination.mkdir()
    with pytest.raises(DataError, match="more than the disk"):
        unpack(path, destination)
    assert not listing(destination)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"text" * 9]
)
def test_a_damaged_archive_is_named(container: Any, damage: Callable[[bytes], bytes]) -> None:
    path = archive(container.root / "sourcedir.tar.gz", member("train.py", data=os.urandom(50_000)))
    path.write_bytes(damage(path.read_bytes()))
    container.configure(sagemaker_program="train.py", sagemaker_submit_directory=str(path))
    result = container.run()
    assert result.code == 1
    assert "sourcedir.tar.gz" in result.failure
    assert not listing(container.code)


def test_submitted_code_wins_and_what_was_there_is_kept(container: Any) -> None:
    container.write("train.py", "print('of the image')\n")
    source = archive(container.root / "s.tar.gz", member("train.py", data=HELLO.encode()))
    container.configure(sagemaker_program="train.py", sagemaker_submit_directory=str(source))
    result = container.run()
    assert result.out == "hello from train.py\n"
    assert any("was not empty and differs: set aside as" in line for line in result.talk)
    assert (container.ml / "code.before" / "train.py").read_text() == "print('of the image')\n"

    again = container.run()
    assert again.out == "hello from train.py\n"
    assert any("already holds what the job submits" in line for line in again.talk)
    assert not (container.ml / "code.before1").exists()


def test_a_directory_is_copied_and_its_own_broken_links_harm_nobody(container: Any) -> None:
    source = container.root / "with space"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg" / "__init__.py").touch()
    (source / "train.py").write_text("import pkg\n" + HELLO)
    (source / "broken").symlink_to("nowhere")
    for spelled in (str(source), source.as_uri()):
        container.configure(sagemaker_program="train.py", sagemaker_submit_directory=spelled)
        assert container.run().out == "hello from train.py\n"
    assert (source / "train.py").exists()


def test_the_code_directory_itself_is_used_as_it_is(container: Any) -> None:
    container.write("train.py", HELLO)
    container.configure(
        sagemaker_program="train.py", sagemaker_submit_directory=str(container.code) + "/"
    )
    result = container.run()
    assert result.out == "hello from train.py\n"
    assert not any(line.startswith("code:") for line in result.talk)


def test_code_that_is_not_there_is_named(container: Any) -> None:
    container.configure(sagemaker_program="train.py", sagemaker_submit_directory="/no/such/dir")
    result = container.run()
    assert result.code == 1
    assert "sagemaker_submit_directory is /no/such/dir" in result.failure


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("../train.py", "must be a path inside the source directory"),
        ("/bin/true", "must be a path inside the source directory"),
        ("--version", "must be a path inside the source directory"),
        ("escape.py", "leads outside the source directory"),
        ("trian.py", "Did you mean train.py?"),
        ("deep.py", "Did you mean sub/deep.py?"),
        ("sub", "is a directory in"),
    ],
)
def test_a_script_outside_or_missing(container: Any, program: str, reason: str) -> None:
    container.write("train.py", HELLO)
    container.write("sub/deep.py", HELLO)
    (container.root / "other.py").write_text(HELLO)
    (container.code / "escape.py").symlink_to(container.root / "other.py")
    container.configure(sagemaker_program=program)
    result = container.run()
    assert (result.code, result.out) == (1, "")
    assert reason in result.failure


def test_a_name_that_the_toolkit_refuses_runs_with_a_warning(container: Any) -> None:
    container.write("my script.py", HELLO)
    container.configure(sagemaker_program="my script.py")
    result = container.run()
    assert result.out == "hello from my script.py\n"
    assert any("sagemaker-training 5.1.4 refuses the name" in line for line in result.talk)


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository with three commits on main: the second is tagged v1, the third is on branch next alone."""
    path = tmp_path / "repository"
    identity = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    for role in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{role}_NAME": "n", f"GIT_{role}_EMAIL": "n@example.com"}

    def run(*argv: str) -> str:
        return subprocess.run(
            ["git", *argv],
            cwd=path,
            env=os.environ | identity,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    (path / "examples").mkdir(parents=True)
    run("init", "--quiet", "--initial-branch", "main")
    commits = []
    for number in range(3):
        if number == 2:
            run("checkout", "--quiet", "-b", "next/one")
        (path / "examples" / "train.py").write_text(f"print('commit {number}')\n")
        run("add", ".")
        run("commit", "--quiet", "-m", str(number))
        commits.append(run("rev-parse", "HEAD"))
        if number == 1:
            run("tag", "-a", "v1", "-m", "v1")
    run("checkout", "--quiet", "main")
    return path, commits


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("", "commit 1"),
        ("@main", "commit 1"),
        ("@v1", "commit 1"),
        ("@next/one", "commit 2"),
        ("@{0}", "commit 0"),
        ("@{0:.8}", "commit 0"),
    ],
)
def test_code_from_git(
    container: Any, repository: tuple[Path, list[str]], revision: str, said: str
) -> None:
    path, commits = repository
    source = f"git+{path.as_uri()}{revision.format(commits[0])}#subdirectory=examples"
    container.configure(sagemaker_program="train.py", sagemaker_submit_directory=source)
    result = container.run()
    assert (result.code, result.out) == (0, f"{said}\n"), result.err
    assert listing(container.code) == ["train.py"]


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        ("@nothing", "has no branch, tag or commit 'nothing'"),
        ("#subdirectory=nothing", "has no directory 'nothing'"),
        ("#subdirectory=../..", "outside the repository"),
        ("@--upload-pack=evil", "begins with a dash"),
    ],
)
def test_what_a_repository_lacks_is_named(
    container: Any, repository: tuple[Path, list[str]], suffix: str, reason: str
) -> None:
    source = f"git+{repository[0].as_uri()}{suffix}"
    container.configure(sagemaker_program="train.py", sagemaker_submit_directory=source)
    result = container.run()
    assert result.code == 1
    assert reason in result.failure


def test_a_login_is_neither_said_nor_on_a_command_line(container: Any) -> None:
    spy = container.root / "bin" / "git"
    spy.write_text(
        f'#!/bin/sh\necho "$@" "$GIT_CONFIG_KEY_0" >> {container.root}/calls\n[ $1 = init ]\n'
    )
    spy.chmod(0o755)
    source = "git+https://user:pa55@git.invalid/repo@main"
    container.configure(sagemaker_program="train.py", sagemaker_submit_directory=source)
    result = container.run()
    assert result.code == 1
    assert "pa55" not in result.err + result.failure
    calls = (container.root / "calls").read_text()
    assert "url.https://user:pa55@git.invalid/.insteadOf" in calls
    assert "fetch --quiet --depth 1 https://git.invalid/repo main" in calls


def test_addresses_are_read_as_pip_reads_them() -> None:
    source = git.parse("git+ssh://git@host.example/team/repo.git@feature/x#subdirectory=a/b")
    assert (source.url, source.login) == ("ssh://git@host.example/team/repo.git", "")
    assert (source.revision, source.subdirectory) == ("feature/x", "a/b")
    with pytest.raises(ValidationError, match="git over ext is not known"):
        git.parse("git+ext::sh -c evil")


@pytest.mark.parametrize(
    ("revision", "installed", "warns"),
    [
        ("v4.26.0", "4.57.6", True),
        ("v4.57-release", "4.57.6", False),
        ("v4.57.1", "4.57.6", False),
        ("v4.5", "4.57.6", True),
        ("main", "4.57.6", False),
        ("v4.26.0", None, False),
    ],
)
def test_examples_of_another_transformers_get_a_warning(
    revision: str, installed: str | None, warns: bool
) -> None:
    url = "git+https://github.com/huggingface/transformers.git"
    assert bool(git.transformers_warning(git.parse(f"{url}@{revision}"), installed)) == warns
    other = git.parse(f"git+https://github.com/me/transformers-fork@{revision}")
    assert git.transformers_warning(other, installed) is None


def test_code_from_s3(container: Any, s3_server: Any, s3_bucket: str) -> None:
    source = archive(container.root / "s.tar.gz", member("train.py", data=HELLO.encode()))
    s3_server.client().upload_file(str(source), s3_bucket, "job/source/sourcedir.tar.gz")
    container.env |= {
        "AWS_ENDPOINT_URL": s3_server.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    container.configure(
        sagemaker_program="train.py",
        sagemaker_region="us-east-1",
        sagemaker_submit_directory=f"s3://{s3_bucket}/job/source/sourcedir.tar.gz",
    )
    result = container.run()
    assert (result.code, result.out) == (0, "hello from train.py\n"), result.err

    container.configure(sagemaker_submit_directory=f"s3://{s3_bucket}/no.tar.gz")
    failed = container.run()
    assert failed.code == 1
    assert failed.failure.startswith(f"The source code s3://{s3_bucket}/no.tar.gz cannot be")
    assert "404" in failed.failure
