"""The trees of all hosts as one archive, or as one directory (contract 5.6)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime.copies import copy_file
from hotfire.runtime.errors import DataError
from hotfire.runtime.events import Note, Observer
from hotfire.runtime.storage import human, local_fault, nearest_existing, replacing
from hotfire.runtime.tarball import Meter, write_archive
from hotfire.runtime.trees import Merged, merge, printable


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One artifact: an archive, or with CompressionType NONE a directory."""

    path: Path
    """Where it was written; gone again when it went to S3."""
    bytes: int
    """On disk; equals ``source_bytes`` when uncompressed."""
    files: int
    source_bytes: int
    largest: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]


def pack(
    sources: Sequence[tuple[str, Path]], destination: Path, observer: Observer
) -> Packed | None:
    """One gzip archive of the merged trees, or None where there is nothing to pack.

    Members are relative without ``./``, directories included, owner 0:0 without names (contract 5.6), in byte order
    and with whole seconds, so that equal trees give equal archives. PAX headers carry long and non-ASCII names and
    files above 8 GiB. Hard links stay links.

    Raises:
        DataError: no room for the archive; the hosts' files stay.
    """
    merged = merge(sources)
    if not merged.members:
        return None
    activity = destination.name
    _mention_little_room(merged, destination, observer)
    try:
        with replacing(destination) as temporary:
            warnings = write_archive(merged, temporary, Meter(observer, activity, merged.size))
    except OSError as error:
        raise _no_artifact(error, destination, sources) from error
    return described(merged, destination, destination.stat().st_size, warnings, observer)


def lay(
    sources: Sequence[tuple[str, Path]], destination: Path, observer: Observer
) -> Packed | None:
    """The merged trees as the directory ``destination``, which appears whole and replaces an older one.

    Raises:
        DataError: no room; the hosts' files stay.
    """
    merged = merge(sources)
    if not merged.members:
        return None
    meter = Meter(observer, f"{destination.name}/", merged.size)
    try:
        with _replacing_directory(destination) as temporary:
            warnings = _copy_members(merged, temporary, meter)
    except OSError as error:
        raise _no_artifact(error, destination, sources) from error
    return described(merged, destination, merged.size, warnings, observer)


def described(
    merged: Merged, path: Path, size: int, warnings: Sequence[str], observer: Observer
) -> Packed:
    both = (*merged.warnings, *(f"{path.name}: {text}" for text in warnings))
    for text in both:
        observer(Note(text=text, warning=True))
    return Packed(
        path=path,
        bytes=size,
        files=len(merged.files),
        source_bytes=merged.size,
        largest=merged.largest(),
        warnings=both,
    )


def _no_artifact(
    error: OSError, destination: Path, sources: Sequence[tuple[str, Path]]
) -> DataError:
    kept = ", ".join(str(top) for _, top in sources)
    fault = local_fault(
        error,
        destination,
        f"Free space or choose another output path; the files are kept in {kept}",
    )
    return DataError(f"Artifact upload failed: {fault.what}", do=fault.do)


def _mention_little_room(merged: Merged, destination: Path, observer: Observer) -> None:
    """Weights hardly compress: what does not fit as it is will probably not fit packed."""
    free = shutil.disk_usage(nearest_existing(destination)).free
    if free < merged.size:
        text = f"{destination.name}: {human(merged.size)} to pack, {human(free)} free"
        observer(Note(text=text, warning=True))


def _copy_members(merged: Merged, top: Path, meter: Meter) -> list[str]:
    warnings = []
    for one in merged.members:
        target = top / one.name
        if one.is_dir:
            target.mkdir()
        elif one.link:
            target.symlink_to(one.link)
        else:
            try:
                copy_file(one.path, target, meter.moved)
            except (FileNotFoundError, PermissionError) as error:
                warnings.append(f"{printable(one.name)} on {one.host}: {error.strerror}; left out")
                continue
            target.chmod(one.status.st_mode & 0o777)
    meter.report()
    return warnings


@contextmanager
def _replacing_directory(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        new = scratch / "new"
        new.mkdir()
        yield new
        if target.exists():
            target.rename(scratch / "old")
        new.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
