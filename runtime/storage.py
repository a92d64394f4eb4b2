"""Where data lives: ``file://`` and ``s3://`` URIs, and ``--map``, which turns an s3:// prefix into a local directory."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from hotfire.runtime.errors import DataError, HotfireError, ValidationError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# S3Uri may be an https URL (contract 3.1): virtual-hosted or path style.
_HTTPS = re.compile(
    r"https://(?:(?P<host>[^/]+)\.)?s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com(?:\.cn)?/(?P<path>.*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class LocalLocation:
    """A path of this machine.

    ``below`` is set when a map led here from a key below the mapped prefix: then, as on S3, the path is a plain string
    prefix of names (contract 3.2), not necessarily a whole one.
    """

    path: Path
    below: bool = False


@dataclass(frozen=True)
class S3Location:
    bucket: str
    key: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


Location = LocalLocation | S3Location


def parse_uri(uri: str) -> Location:
    """A location without any map applied.

    ``file://`` takes an absolute path without a host; percent escapes are bytes of the path.

    Raises:
        ValidationError: neither ``file:///absolute/path`` nor ``s3://bucket[/key]``.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "file":
        return LocalLocation(_file_path(uri, rest))
    if separator and scheme == "s3":
        bucket, _, key = rest.partition("/")
        if bucket:
            return S3Location(bucket, key)
    if match := _HTTPS.fullmatch(uri):
        whole = f"{match['host']}/{match['path']}" if match["host"] else match["path"]
        bucket, _, key = whole.partition("/")
        return S3Location(bucket, os.fsdecode(unquote_to_bytes(key)))
    raise ValidationError(
        f"not a location: {uri!r}",
        do="Use s3://BUCKET/PREFIX or file:///ABSOLUTE/PATH (three slashes).",
    )


def _file_path(uri: str, rest: str) -> Path:
    if not rest.startswith("/"):
        raise ValidationError(
            f"{uri!r} names a host or a relative path, and file:// takes neither",
            do="Write file:///ABSOLUTE/PATH with three slashes.",
        )
    path = os.fsdecode(unquote_to_bytes(rest))
    if "\0" in path:
        raise ValidationError(f"{uri!r} holds a NUL byte", do="Correct the percent escapes.")
    return Path(path)


_NO_MAPS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Locations:
    """URIs to locations, through the job's maps. The longest mapped prefix wins, and only on a ``/`` border.

    ``maps``: from ``s3://bucket[/prefix]`` or a file-system id to an absolute directory of this machine.

    Raises:
        ValidationError: a map's source is neither, or its directory is relative.
    """

    maps: Mapping[str, str | Path] = field(default_factory=lambda: _NO_MAPS)

    def __post_init__(self) -> None:
        for source, directory in self.maps.items():
            _check_map(source, Path(directory))

    @classmethod
    def parse(cls, texts: Iterable[str], cwd: Path) -> Locations:
        """The values of ``--map FROM=TO``; a relative TO is below ``cwd``.

        Raises:
            ValidationError: no ``=``, FROM neither an s3:// prefix nor a file-system id, or FROM given twice.
        """
        maps: dict[str, str | Path] = {}
        for text in texts:
            source, directory = _parse_map(text, cwd)
            if source in maps:
                raise ValidationError(f"--map gives {source} twice", do="Keep one directory.")
            maps[source] = directory
        return cls(maps)

    def resolve(self, uri: str) -> Location:
        """Where ``uri`` is.

        Raises:
            ValidationError: not a URI of ours, or a key that would leave its mapped directory.
        """
        location = parse_uri(uri)
        if isinstance(location, LocalLocation):
            return location
        whole = location.uri
        sources = {source.rstrip("/"): Path(to) for source, to in self.maps.items()}
        fitting = [source for source in sources if (whole + "/").startswith(source + "/")]
        if not fitting:
            return location
        best = max(fitting, key=len)
        return _below(best, sources[best], whole[len(best) + 1 :], uri)

    def file_system(self, identity: str) -> Path | None:
        """The directory that stands for an EFS or FSx file system, if a map names one."""
        directory = self.maps.get(identity)
        return None if directory is None else Path(directory)


def _below(source: str, directory: Path, rest: str, uri: str) -> LocalLocation:
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in rest:
        raise ValidationError(
            f"{uri} would leave {directory}, which --map gives for {source}",
            do="S3 keys are not paths; name the object without '..'.",
        )
    below = bool(parts) and not rest.endswith("/")
    return LocalLocation(directory.joinpath(*parts), below=below)


def _check_map(source: str, directory: Path) -> None:
    if not re.fullmatch(r"s3://[^/]+(/.*)?|fs-[0-9a-f]{8,}", source, re.DOTALL):
        raise ValidationError(
            f"--map cannot map {source!r}",
            do="FROM is an s3://bucket/prefix or a file-system id such as fs-0123456789abcdef0.",
        )
    if not directory.is_absolute():
        raise ValidationError(
            f"the map of {source} leads to {directory}, a relative path",
            do="Give an absolute directory.",
        )


def _parse_map(text: str, cwd: Path) -> tuple[str, Path]:
    """Keys may hold ``=`` (``dt=2026-01-01``), and so may directories: the split whose directory exists wins."""
    splits = [(text[:at], text[at + 1 :]) for at, char in enumerate(text) if char == "="]
    splits = [(source, to) for source, to in splits if source and to]
    if not splits:
        raise ValidationError(
            f"--map {text!r} is not FROM=TO", do="For example: --map s3://bucket/prefix=./data"
        )
    existing = (split for split in splits if (cwd / Path(split[1]).expanduser()).exists())
    source, to = next(existing, splits[-1])
    return source.rstrip("/"), Path(os.path.normpath(cwd / Path(to).expanduser()))


def no_room(error: OSError) -> bool:
    """True when ``error`` says that the file system, a quota or a file-size limit is exhausted."""
    return error.errno in _NO_ROOM


def local_fault(
    error: OSError, path: Path, do: str, kind: type[HotfireError] = DataError
) -> HotfireError:
    """``error`` met at ``path`` as one of ours; a full disk says how full."""
    if not no_room(error):
        return kind(f"{path}: {error.strerror or error}", do=do)
    free = shutil.disk_usage(nearest_existing(path)).free
    return kind(f"no space left to write {path} ({human(free)} free now)", do=do)


def nearest_existing(path: Path) -> Path:
    """``path`` or the closest of its parents that exists."""
    # Not Path.exists, which raises where a parent may not be searched.
    return next((one for one in (path, *path.parents) if os.path.exists(one)), Path("/"))  # noqa: PTH110


def human(count: float) -> str:
    """Bytes for people: ``1.4 GB`` (powers of 1000, as disks and S3 bills count)."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5 or (unit == "bytes" and count < 1000):
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A name beside ``target`` to write to; it becomes ``target`` when the block ends well, else it goes.

    Nobody ever sees half a file under ``target``. Parents are made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent
    )
    temporary = Path(name)
    try:
        # mkstemp makes 0600; the umask of everything else that the user writes applies instead.
        os.fchmod(handle, 0o666 & ~_umask())
        os.close(handle)
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """This process's umask, read without setting it: other threads may be creating files."""
    status = Path("/proc/self/status")
    try:
        text = status.read_text()
    except OSError:
        return 0o022
    match = re.search(r"^Umask:\s*(\d+)", text, re.MULTILINE)
    return int(match[1], 8) if match else 0o022
