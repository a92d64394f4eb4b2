"""Buckets on disk: files for the bytes, one SQLite table for what is where. Any size in constant memory.

An object is a list of files, so completing a multipart upload copies nothing, and a file never changes once it has a
name: whoever reads an object reads the version that was there when he asked. Kept over a restart, and over a kill.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotfire.runtime.errors import HotfireError

STEP = 1 << 20
Piece = tuple[str, int]
"""Name and size of one of an object's files."""
Reader = Callable[[int], bytes]
"""Gives at most that many bytes; nothing at the end."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created REAL NOT NULL, region TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
  bucket TEXT NOT NULL, key BLOB NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL, modified REAL NOT NULL,
  headers TEXT NOT NULL, pieces TEXT NOT NULL, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
  id TEXT PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, headers TEXT NOT NULL, begun REAL NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
  upload TEXT NOT NULL, number INTEGER NOT NULL, file TEXT NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL,
  PRIMARY KEY (upload, number)) WITHOUT ROWID;
"""


class S3Error(HotfireError):
    """An error of S3: ``api_code`` is its Code, ``status`` the HTTP status."""

    def __init__(self, code: str, what: str, status: int = 400) -> None:
        super().__init__(what)
        self.api_code = code
        self.status = status


def no_such_key() -> S3Error:
    return S3Error("NoSuchKey", "The specified key does not exist.", 404)


def no_such_upload() -> S3Error:
    text = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
    return S3Error("NoSuchUpload", f"{text}completed.", 404)


@dataclass(frozen=True, kw_only=True)
class Object:
    """``headers``: what the client sent along, lower-cased names; ``modified`` in seconds since the epoch."""

    key: str
    size: int
    etag: str
    """Without quotes."""
    modified: float
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    number: int
    size: int
    etag: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """``last``: the key or common prefix that was told last; what comes after it is the next page."""

    objects: tuple[Object, ...]
    prefixes: tuple[str, ...]
    more: bool
    last: str


class ObjectStore:
    """Buckets below ``root``. Safe to share between threads; one process at a time."""

    def __init__(self, root: Path) -> None:
        self._files = root / "files"
        self._files.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(root / "index.sqlite", check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_SCHEMA)
        self._lock = threading.RLock()
        self._open: dict[str, int] = {}
        self._doomed: set[str] = set()
        self._sweep()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _sweep(self) -> None:
        """Remove files that no object and no upload names: what a killed server left."""
        with self._change() as database:
            database.execute("DELETE FROM parts WHERE upload NOT IN (SELECT id FROM uploads)")
        used = {row[0] for row in self._ask("SELECT file FROM parts")}
        for (pieces,) in self._ask("SELECT pieces FROM objects"):
            used.update(name for name, _ in json.loads(pieces))
        for path in self._files.iterdir():
            if path.name not in used:
                path.unlink(missing_ok=True)

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction; not to be nested."""
        with self._lock, self._database:
            yield self._database

    # Buckets

    def buckets(self) -> list[tuple[str, float]]:
        """Names and times of creation."""
        return [
            (name, created)
            for name, created in self._ask("SELECT name, created FROM buckets ORDER BY name")
        ]

    def create_bucket(self, name: str, region: str) -> None:
        """Creating a bucket of one's own again changes nothing.

        Raises:
            S3Error: not a bucket's name.
        """
        if not _is_bucket_name(name):
            raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
        with self._change() as database:
            database.execute(
                "INSERT OR IGNORE INTO buckets VALUES (?, ?, ?)", (name, time.time(), region)
            )

    def region_of(self, bucket: str) -> str:
        """The region that a bucket was created in.

        Raises:
            S3Error: no such bucket.
        """
        found = self._ask("SELECT region FROM buckets WHERE name = ?", bucket)
        if not found:
            raise S3Error("NoSuchBucket", "The specified bucket does not exist", 404)
        return str(found[0][0])

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket.

        Raises:
            S3Error: no such bucket, or it is not empty.
        """
        self.region_of(name)
        with self._change() as database:
            if self._ask("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", name):
                text = "The bucket you tried to delete is not empty"
                raise S3Error("BucketNotEmpty", text, 409)
            database.execute("DELETE FROM buckets WHERE name = ?", (name,))

    # Bytes

    def receive(self, read: Reader) -> tuple[Piece, str]:
        """Take bytes in until there are no more: the file, which nothing names yet, and the MD5 in hexadecimal.

        Raises:
            S3Error: the disk is full.
        """
        name = uuid.uuid4().hex
        digest = hashlib.md5(usedforsecurity=False)
        size = 0
        path = self._files / name
        try:
            with path.open("xb") as out:
                while data := read(STEP):
                    digest.update(data)
                    out.write(data)
                    size += len(data)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno == 28:
                text = "No space is left on the disk of the endpoint; AWS_ENDPOINT_URL_S3 may point elsewhere."
                raise S3Error("EntityTooLarge", text) from error
            raise
        return (name, size), digest.hexdigest()

    def discard(self, *pieces: Piece) -> None:
        """Remove files that nothing names any more, as soon as nobody reads them."""
        with self._lock:
            for name, _ in pieces:
                if self._open.get(name):
                    self._doomed.add(name)
                else:
                    (self._files / name).unlink(missing_ok=True)

    def open(
        self, bucket: str, key: str, choose: Callable[[Object], tuple[int, int]]
    ) -> tuple[Object, Reading]:
        """An object and its bytes ``[begin, end)`` as ``choose`` decides, which may raise to refuse.

        Raises:
            S3Error: no such bucket or key.
        """
        with self._lock:
            found = self.get(bucket, key)
            begin, end = choose(found)
            names = [name for name, _ in found.pieces]
            for name in names:
                self._open[name] = self._open.get(name, 0) + 1
        spans = []
        for name, size in found.pieces:
            first, last = max(begin, 0), min(end, size)
            begin, end = begin - size, end - size
            if first < last:
                spans.append((self._files / name, first, last))
        return found, Reading(spans, lambda: self._let_go(names))

    def _let_go(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._open[name] -= 1
                if not self._open[name]:
                    del self._open[name]
                    if name in self._doomed:
                        self._doomed.discard(name)
                        (self._files / name).unlink(missing_ok=True)

    # Objects

    def put(self, bucket: str, found: Object, *, only_if_absent: bool = False) -> None:
        """Give received bytes a key; what was there under it is gone.

        Raises:
            S3Error: no such bucket, or the key is taken and must not be. The bytes stay the caller's.
        """
        with self._change() as database:
            before = self._put(database, bucket, found, only_if_absent)
        self.discard(*before)

    def _put(
        self, database: sqlite3.Connection, bucket: str, found: Object, only_if_absent: bool
    ) -> list[Piece]:
        self.region_of(bucket)
        before = self._pieces(bucket, found.key)
        if only_if_absent and before is not None:
            text = "At least one of the pre-conditions you specified did not hold"
            raise S3Error("PreconditionFailed", text, 412)
        pieces = json.dumps(found.pieces)
        headers = json.dumps(dict(found.headers))
        database.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
            (bucket, _blob(found.key), found.size, found.etag, found.modified, headers, pieces),
        )
        return before or []

    def _pieces(self, bucket: str, key: str) -> list[Piece] | None:
        found = self._ask(
            "SELECT pieces FROM objects WHERE bucket = ? AND key = ?", bucket, _blob(key)
        )
        return [(name, size) for name, size in json.loads(found[0][0])] if found else None

    def get(self, bucket: str, key: str) -> Object:
        """Raises S3Error: no such bucket or key."""
        self.region_of(bucket)
        found = self._ask(f"{_SELECT} WHERE bucket = ? AND key = ?", bucket, _blob(key))
        if not found:
            raise no_such_key()
        return _object(found[0])

    def delete(self, bucket: str, key: str) -> None:
        """Deleting what is not there is fine.

        Raises:
            S3Error: no such bucket.
        """
        self.region_of(bucket)
        with self._change() as database:
            pieces = self._pieces(bucket, key)
            database.execute(
                "DELETE FROM objects WHERE bucket = ? AND key = ?", (bucket, _blob(key))
            )
        self.discard(*(pieces or ()))

    def page(self, bucket: str, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        """Keys in the order of their UTF-8 bytes, those with a common prefix up to ``delimiter`` as one.

        Raises:
            S3Error: no such bucket.
        """
        self.region_of(bucket)
        objects: list[Object] = []
        prefixes: list[str] = []
        start, last, more = _blob(prefix), after, False
        if after:
            told = delimiter and after.startswith(prefix) and after.endswith(delimiter)
            start = max(start, _beyond(_blob(after)) if told else _blob(after) + b"\0")
        for found in self._from(bucket, start, prefix, delimiter):
            if len(objects) + len(prefixes) >= limit:
                more = True
                break
            if isinstance(found, str):
                prefixes.append(found)
                last = found
            else:
                objects.append(found)
                last = found.key
        return Page(objects=tuple(objects), prefixes=tuple(prefixes), more=more, last=last)

    def _from(
        self, bucket: str, start: bytes, prefix: str, delimiter: str
    ) -> Iterator[Object | str]:
        """Objects and common prefixes from ``start`` on; each common prefix is jumped over by a new query."""
        while True:
            rows = self._ask(
                f"{_SELECT} WHERE bucket = ? AND key >= ? ORDER BY key LIMIT 1000", bucket, start
            )
            for row in rows:
                found = _object(row)
                if not found.key.startswith(prefix):
                    return
                rest = found.key[len(prefix) :]
                if delimiter and delimiter in rest:
                    common = prefix + rest.partition(delimiter)[0] + delimiter
                    yield common
                    start = _beyond(_blob(common))
                    break
                yield found
                start = _blob(found.key) + b"\0"
            else:
                if len(rows) < 1000:
                    return

    # Multipart uploads

    def begin_upload(self, bucket: str, key: str, headers: Mapping[str, str]) -> str:
        """The id of a new upload.

        Raises:
            S3Error: no such bucket.
        """
        self.region_of(bucket)
        identity = uuid.uuid4().hex
        with self._change() as database:
            database.execute(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, ?)",
                (identity, bucket, _blob(key), json.dumps(dict(headers)), time.time()),
            )
        return identity

    def upload_headers(self, bucket: str, key: str, identity: str) -> dict[str, str]:
        """Raises S3Error: no such upload."""
        found = self._ask(
            "SELECT headers FROM uploads WHERE id = ? AND bucket = ? AND key = ?",
            identity,
            bucket,
            _blob(key),
        )
        if not found:
            raise no_such_upload()
        return dict(json.loads(found[0][0]))

    def uploads(self, bucket: str) -> list[tuple[str, str, float]]:
        """Key, id and time of the uploads in progress."""
        self.region_of(bucket)
        rows = self._ask("SELECT key, id, begun FROM uploads WHERE bucket = ? ORDER BY key", bucket)
        return [(bytes(key).decode(), identity, begun) for key, identity, begun in rows]

    def put_part(self, identity: str, number: int, piece: Piece, etag: str) -> None:
        """Add a received part, or replace it."""
        with self._change() as database:
            before = self._ask(
                "SELECT file, size FROM parts WHERE upload = ? AND number = ?", identity, number
            )
            database.execute(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)",
                (identity, number, *piece, etag),
            )
        self.discard(*((name, size) for name, size in before))

    def parts(self, identity: str) -> list[Part]:
        """The parts of an upload so far."""
        rows = self._ask(
            "SELECT number, file, size, etag FROM parts WHERE upload = ? ORDER BY number", identity
        )
        return [
            Part(number=number, file=file, size=size, etag=etag)
            for number, file, size, etag in rows
        ]

    def complete(
        self, bucket: str, key: str, identity: str, chosen: list[Part], *, only_if_absent: bool
    ) -> Object:
        """Make the object of the chosen parts; the others are dropped.

        Raises:
            S3Error: no such upload or bucket, or the key is taken and must not be.
        """
        digests = b"".join(bytes.fromhex(part.etag) for part in chosen)
        digest = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        found = Object(
            key=key,
            size=sum(part.size for part in chosen),
            etag=f"{digest}-{len(chosen)}",
            modified=time.time(),
            headers=self.upload_headers(bucket, key, identity),
            pieces=tuple((part.file, part.size) for part in chosen),
        )
        with self._change() as database:
            before = self._put(database, bucket, found, only_if_absent)
            dropped = self._forget(database, identity, {part.file for part in chosen})
        self.discard(*before, *dropped)
        return found

    def abort(self, bucket: str, key: str, identity: str) -> None:
        """Drop an upload with all its parts.

        Raises:
            S3Error: no such upload.
        """
        self.upload_headers(bucket, key, identity)
        with self._change() as database:
            dropped = self._forget(database, identity, set())
        self.discard(*dropped)

    def _forget(self, database: sqlite3.Connection, identity: str, kept: set[str]) -> list[Piece]:
        dropped = [(part.file, part.size) for part in self.parts(identity) if part.file not in kept]
        database.execute("DELETE FROM parts WHERE upload = ?", (identity,))
        database.execute("DELETE FROM uploads WHERE id = ?", (identity,))
        return dropped


class Reading:
    """Bytes of an object, in steps. To be closed, also when nobody has read."""

    def __init__(self, spans: Sequence[tuple[Path, int, int]], done: Callable[[], None]) -> None:
        self._pieces = self._read(spans)
        self._done = done
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def read(self, count: int) -> bytes:
        """The next step, whatever ``count`` says: a :data:`Reader`."""
        return next(self._pieces, b"")

    def close(self) -> None:
        self._pieces.close()
        if not self._closed:
            self._closed = True
            self._done()

    @staticmethod
    def _read(spans: Sequence[tuple[Path, int, int]]) -> Generator[bytes, None, None]:
        for path, first, last in spans:
            with path.open("rb") as source:
                source.seek(first)
                while first < last and (data := source.read(min(STEP, last - first))):
                    first += len(data)
                    yield data


_SELECT = "SELECT key, size, etag, modified, headers, pieces FROM objects"


def _object(row: tuple[Any, ...]) -> Object:
    key, size, etag, modified, headers, pieces = row
    return Object(
        key=bytes(key).decode(),
        size=size,
        etag=etag,
        modified=modified,
        headers=json.loads(headers),
        pieces=tuple((name, length) for name, length in json.loads(pieces)),
    )


def _blob(key: str) -> bytes:
    return key.encode()


def _beyond(prefix: bytes) -> bytes:
    """The first byte string after all that begin with ``prefix``; UTF-8 holds no 0xff."""
    return prefix + b"\xff"


def _is_bucket_name(name: str) -> bool:
    letters = set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    return (
        3 <= len(name) <= 63
        and set(name) <= letters
        and name[0] not in ".-"
        and name[-1] not in ".-"
        and ".." not in name
    )
