"""RecordIO chunks from a folder per class: what im2rec made, for Pipe channels and for readers of MXNet's layout."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hotfire.runtime.copies import put_local
from hotfire.runtime.data import mxnet, recordio
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.events import Note, Observer, Progress
from hotfire.runtime.s3 import S3
from hotfire.runtime.s3_upload import upload
from hotfire.runtime.sharding import shuffled
from hotfire.runtime.storage import (
    LocalLocation,
    Location,
    S3Location,
    local_fault,
)

CLASSES = "classes.json"
"""Beside the chunks: class name by label."""


@dataclass(frozen=True, kw_only=True)
class Example:
    path: Path
    label: int


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was written: chunks, records, bytes, and the classes in the order of their labels."""

    chunks: int
    records: int
    bytes: int
    classes: tuple[str, ...]


def pack(
    folder: Path,
    destination: Location,
    observer: Observer,
    *,
    chunk: int,
    seed: int = 0,
    s3: S3 | None = None,
) -> Packed:
    """Write ``part-00000.rec`` ... of about ``chunk`` bytes, and the names of the classes.

    Every sub-folder of ``folder`` is a class; its label is its place in the alphabet. The examples are shuffled by
    ``seed``, since a chunk of one class trains badly. A record is MXNet's header (label, number) and the file's bytes.

    Names that begin with a dot are left out, and so are files beside the sub-folders; a note says how many.

    Raises:
        ValidationError: no sub-folder, or nothing in them; or chunks of another run, which would be read as well.
        DataError: something cannot be read or written.
    """
    entries = _entries(folder)
    classes = tuple(sorted(path.name for path in entries if path.is_dir() and not _hidden(path)))
    examples = [
        Example(path=path, label=label)
        for label, name in enumerate(classes)
        for path in sorted(_files(folder / name))
    ]
    if not examples:
        raise ValidationError(
            f"{folder} has no folder with files", do="Give a directory with one folder per class."
        )
    ordered = [examples[n] for n in shuffled(range(len(examples)), seed, 0)]
    sender = _Sender(destination, observer, s3 or S3())
    sender.check(folder)
    if aside := len(entries) - len(classes):
        text = f"left out of {folder}, since hidden or not in the folder of a class: {aside}"
        observer(Note(text=text))
    total = sum(one.path.stat().st_size for one in examples)

    def report(before: int, done: int) -> None:
        observer(Progress(activity="packing", done=min(before + done, total), total=total))

    with tempfile.TemporaryDirectory(prefix="hotfire-pack-") as scratch:
        part = Path(scratch) / "part"
        numbered = iter(enumerate(ordered))
        count = size = 0
        while _fill(part, numbered, chunk, partial(report, size)):
            size += part.stat().st_size
            sender.send(part, f"part-{count:05d}.rec")
            count += 1
        part.write_text(json.dumps(dict(enumerate(classes)), ensure_ascii=False))
        sender.send(part, CLASSES)
    return Packed(chunks=count, records=len(ordered), bytes=size, classes=classes)


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise local_fault(error, folder, "Give a directory.", ValidationError) from error


def _files(folder: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _hidden(Path(name))]
        yield from (path for name in names if not _hidden(path := Path(directory, name)))


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _fill(
    part: Path,
    numbered: Iterator[tuple[int, Example]],
    chunk: int,
    report: Callable[[int], None],
) -> bool:
    """One chunk: at least one record, no further one once ``chunk`` bytes are reached; False when nothing is left."""
    written = 0
    with part.open("wb") as out:
        for number, example in numbered:
            try:
                payload = example.path.read_bytes()
            except OSError as error:
                raise local_fault(error, example.path, "Remove it, or make it readable.") from error
            for piece in recordio.framed(mxnet.pack(example.label, number, payload)):
                out.write(piece)
                written += len(piece)
            report(written)
            if written >= chunk:
                break
    return written > 0


class _Sender:
    def __init__(self, destination: Location, observer: Observer, s3: S3) -> None:
        self._destination, self._observer, self._s3 = destination, observer, s3

    def check(self, folder: Path) -> None:
        """Refuse what would mix chunks with other data: with those of another run, or with the examples."""
        to = self._destination
        if isinstance(to, LocalLocation):
            if to.path.resolve().is_relative_to(folder.resolve()):
                raise ValidationError(
                    f"{to.path} is in {folder}, and would be packed the next time",
                    do="Choose a destination elsewhere.",
                )
            there = any(to.path.glob("part-*.rec"))
        else:
            there = bool(self._s3.objects(self._at(to, "part-")))
        if there:
            raise ValidationError(
                f"{to.uri if isinstance(to, S3Location) else to.path} has chunks already (part-*.rec), which a "
                "channel would read as well",
                do="Remove them, or choose another destination.",
            )

    def send(self, source: Path, name: str) -> None:
        to = self._destination
        if isinstance(to, LocalLocation):
            put_local(source, to.path / name, self._observer, name)
            return
        upload(self._s3, [(source, self._at(to, name))], self._observer, name)

    def _at(self, to: S3Location, name: str) -> S3Location:
        return S3Location(to.bucket, f"{to.key.rstrip('/')}/{name}".lstrip("/"))
