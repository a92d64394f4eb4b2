"""Brings the user's code to /opt/ml/code: from a directory, an archive, S3 or git."""

from __future__ import annotations

import filecmp
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hotfire.entrypoints.train import git
from hotfire.entrypoints.train.archive import unpack
from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.talk import hidden, say
from hotfire.runtime.errors import DataError

Fill = Callable[[Path], None]
"""Fills an empty directory."""


def bring(
    submit_directory: str | None,
    code: Path,
    children: Children,
    environment: Mapping[str, str],
    region: str = "",
) -> None:
    """Make ``code`` hold what ``submit_directory`` names; None means what is in ``code`` already.

    Code that the job names wins over code that the image holds; what was there is set aside, never deleted.

    Raises:
        DataError: the source is not there, cannot be fetched, or is unsafe.
        ValidationError: ``submit_directory`` is malformed.
    """
    code.mkdir(parents=True, exist_ok=True)
    if not submit_directory:
        return
    fill = _filler(submit_directory, code, children, environment, region)
    if fill is None:
        return
    # Beside the destination, on the same disk, so that it takes its place by a rename.
    with tempfile.TemporaryDirectory(prefix=".code-", dir=code.parent) as scratch:
        fresh = Path(scratch) / "code"
        fresh.mkdir()
        fill(fresh)
        _put(fresh, code, submit_directory)


def _filler(
    source: str, code: Path, children: Children, environment: Mapping[str, str], region: str
) -> Fill | None:
    """How to get ``source``; None when it is ``code`` itself."""
    if source.startswith(git.PREFIX):
        return _from_git(git.parse(source), children, environment)
    if source.startswith("s3://"):
        return _from_s3(source, environment, region)
    path = Path(unquote(urlsplit(source).path)) if source.startswith("file://") else Path(source)
    if path.is_dir():
        same = os.path.realpath(path) == os.path.realpath(code)
        return None if same else lambda fresh: _copy_directory(path, fresh)
    if path.is_file():
        return lambda fresh: _from_file(path, fresh)
    raise DataError(
        f"The source code is not there: sagemaker_submit_directory is {hidden(source)}.",
        do="Give a directory, a tar.gz, s3://..., or git+https://... .",
    )


def _from_git(source: git.GitSource, children: Children, environment: Mapping[str, str]) -> Fill:
    def fill(fresh: Path) -> None:
        from importlib import metadata

        try:
            installed: str | None = metadata.version("transformers")
        except metadata.PackageNotFoundError:
            installed = None
        if warning := git.transformers_warning(source, installed):
            say(warning)
        git.clone(source, fresh, children, environment)

    return fill


def _from_s3(source: str, environment: Mapping[str, str], region: str) -> Fill:
    def fill(fresh: Path) -> None:
        archive = fresh.parent / (source.rpartition("/")[2] or "sourcedir.tar.gz")
        say(f"code: downloading {source}")
        download(source, archive, environment, region)
        _from_file(archive, fresh)

    return fill


def download(uri: str, target: Path, environment: Mapping[str, str], region: str) -> None:
    """One object of S3 into ``target``. Honours AWS_ENDPOINT_URL, and the toolkit's S3_ENDPOINT_URL.

    Raises:
        DataError: boto3 is not installed, or the object cannot be had; names it and S3's reason.
    """
    try:
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise DataError(
            f"boto3 is not installed in this Python, and the source code is in {uri}.",
            do="Install boto3 in the image, or give the code as a directory or archive.",
        ) from error
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    endpoint = environment.get("S3_ENDPOINT_URL") or None
    try:
        client = boto3.client("s3", region_name=region or None, endpoint_url=endpoint)
        # Without threads, so that a stop can interrupt it.
        client.download_file(bucket, key, str(target), Config=TransferConfig(use_threads=False))
    except (BotoCoreError, ClientError) as error:
        raise DataError(
            f"The source code {uri} cannot be downloaded: {error}",
            do="Check the address and the job's credentials.",
        ) from error


def _from_file(path: Path, fresh: Path) -> None:
    if tarfile.is_tarfile(path):
        unpack(path, fresh)
    elif path.name.endswith((".tar.gz", ".tgz", ".tar")):
        raise DataError(
            f"{path.name} is not an archive: it is damaged or empty.",
            do="Pack the source directory again: tar -C src -czf sourcedir.tar.gz .",
        )
    else:
        shutil.copy(path, fresh)


def _copy_directory(source: Path, fresh: Path) -> None:
    # Links stay links: a broken one in the source is nobody's failure until it is used.
    shutil.copytree(
        source,
        fresh,
        symlinks=True,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def _put(fresh: Path, code: Path, source: str) -> None:
    if not any(code.iterdir()):
        _move_into(fresh, code)
    elif same_tree(fresh, code):
        say(f"code: {code} already holds what the job submits")
    else:
        aside = _set_aside(code, source)
        say(
            f"code: {code} was not empty and differs: set aside as {aside}, the submitted code runs"
        )
        code.mkdir()
        _move_into(fresh, code)


def _move_into(fresh: Path, code: Path) -> None:
    for entry in fresh.iterdir():
        shutil.move(entry, code / entry.name)


def _set_aside(code: Path, source: str) -> Path:
    number = 0
    while (aside := code.with_name(f"{code.name}.before{number or ''}")).exists():
        number += 1
    try:
        if os.path.ismount(code):
            raise OSError("it is a mount")
        shutil.move(code, aside)
    except OSError as error:
        raise DataError(
            f"The job submits code ({hidden(source)}), but {code} is not empty and cannot be set aside: {error}.",
            do="Mount nothing there, or leave sagemaker_submit_directory out.",
        ) from error
    return aside


def same_tree(left: Path, right: Path) -> bool:
    """Whether two directories hold the same names and bytes; compiled Python does not count."""
    compared = filecmp.dircmp(left, right, ignore=["__pycache__"], hide=[])
    if compared.left_only or compared.right_only or compared.funny_files or compared.common_funny:
        return False
    _same, different, unreadable = filecmp.cmpfiles(
        left, right, compared.common_files, shallow=False
    )
    return not (different or unreadable) and all(
        same_tree(left / name, right / name) for name in compared.common_dirs
    )
