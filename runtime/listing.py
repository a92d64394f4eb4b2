"""The objects that a channel's data source names, in S3 or on this machine, in the order of their list."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotfire.runtime import manifests
from hotfire.runtime.daemon_pool import DaemonPool
from hotfire.runtime.data_rules import DataRules
from hotfire.runtime.download import Wanted, download
from hotfire.runtime.errors import DataError, ValidationError
from hotfire.runtime.events import ignore
from hotfire.runtime.keys import KeyTree, key_tree
from hotfire.runtime.s3 import S3, S3Object, errors_as
from hotfire.runtime.storage import (
    LocalLocation,
    Locations,
    S3Location,
    local_fault,
    parse_uri,
)

_HEADS = 32
_LONGEST_MANIFEST = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalObject:
    """A file of this machine that stands for an object; ``uri`` and ``key`` are what the request calls it."""

    path: Path
    key: str
    size: int
    uri: str


Object = S3Object | LocalObject


@dataclass(frozen=True, kw_only=True)
class Listing:
    """``objects`` without folder markers; ``uris`` with them, for ``<channel>-manifest`` (contract 3.5)."""

    prefix: str
    """The key part of S3Uri, or of a manifest's prefix."""
    objects: tuple[Object, ...]
    uris: tuple[str, ...]
    cut: str | None = None
    """What keys lose on their way to a path; None leaves it to :func:`hotfire.runtime.keys.stripped`."""
    markers: tuple[str, ...] = ()

    def tree(self) -> KeyTree:
        """Raises ValidationError when the keys make no file tree."""
        keys = [*(one.key for one in self.objects), *self.markers]
        return key_tree(self.prefix, keys, cut=self.cut)


def of_prefix(location: S3Location, found: Sequence[S3Object], rules: DataRules) -> Listing:
    """What a prefix matches (contract 3.2)."""
    markers = [one.key for one in found if one.folder_marker]
    return Listing(
        prefix=location.key,
        objects=tuple(one for one in found if not one.folder_marker),
        uris=tuple(one.uri for one in found),
        cut=location.key if rules["prefix-cut"] == "prefix" else None,
        markers=tuple(markers) if rules["folder-markers"] == "directory" else (),
    )


def of_manifest(uri: str, locations: Locations, rules: DataRules, s3: S3) -> Listing:
    """What a ManifestFile names (contract 3.3), in its own order; every object is looked up.

    Raises:
        ValidationError: the manifest cannot be read, is none, or names something that is not there.
    """
    text = _text(uri, locations, s3)
    manifest = manifests.parse(text, uri)
    parse_uri(manifest.prefix)
    pool = DaemonPool(_HEADS, "manifest")
    try:
        found = [pool.submit(find, one, locations, s3) for one in manifest.uris]
        objects = tuple(one.result() for one in found)
    finally:
        pool.close()
    prefix = _key(manifest.prefix)
    return Listing(
        prefix=prefix,
        objects=objects,
        uris=manifest.uris,
        # The whole key, as one public report of a real job shows it (contract 3.3).
        cut="" if rules["manifest-path"] == "key" else prefix[: prefix.rfind("/") + 1],
    )


def _key(uri: str) -> str:
    location = parse_uri(uri)
    return location.key if isinstance(location, S3Location) else uri.removeprefix("file:///")


def find(uri: str, locations: Locations, s3: S3) -> Object:
    """The object that a manifest calls ``uri``.

    Raises:
        ValidationError: there is none.
    """
    location = locations.resolve(uri)
    if isinstance(location, S3Location):
        return s3.head(location)
    return local_object(location.path, uri)


def local_object(path: Path, uri: str) -> LocalObject:
    """The regular file ``path`` as an object.

    Raises:
        ValidationError: there is none, or it cannot be read.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise local_fault(error, path, f"{uri} leads there.", ValidationError) from error
    if not stat.S_ISREG(found.st_mode) or not os.access(path, os.R_OK):
        raise ValidationError(f"{path} is no file that can be read", do=f"{uri} leads there.")
    return LocalObject(path=path, key=_key(uri), size=found.st_size, uri=uri)


def _text(uri: str, locations: Locations, s3: S3) -> str:
    location = locations.resolve(uri)
    try:
        if isinstance(location, LocalLocation):
            return location.path.read_text(encoding="utf-8")
        with errors_as(ValidationError, uri, "read"):
            body = s3.client.get_object(Bucket=location.bucket, Key=location.key)["Body"]
            data: bytes = body.read(_LONGEST_MANIFEST)
        return data.decode("utf-8")
    except OSError as error:
        raise local_fault(
            error, Path(str(error.filename or uri)), "Correct the S3Uri.", ValidationError
        ) from error
    except UnicodeDecodeError as error:
        raise ValidationError(f"manifest {uri} is not UTF-8", do="Write it as UTF-8.") from error


def augmented(
    uri: str,
    attributes: manifests.Attributes,
    locations: Locations,
    cache: Path,
    s3: S3,
    *,
    missing: str,
) -> manifests.AugmentedManifest:
    """An AugmentedManifestFile, read through; from S3 it is kept below ``cache``, named after its ETag.

    Raises:
        ValidationError: it cannot be read, or a line is not good.
    """
    location = locations.resolve(uri)
    if isinstance(location, LocalLocation):
        path = location.path
    else:
        one = s3.head(location)
        path = cache / "manifests" / f"{one.etag}-{one.size}"
        if not path.exists():
            try:
                download(s3.client, [Wanted(one, path)], ignore, uri)
            except DataError as error:
                raise ValidationError(error.what, do=error.do) from error
    try:
        return manifests.index(path, uri, attributes, missing=missing)
    except OSError as error:
        raise local_fault(error, path, "Correct the S3Uri.", ValidationError) from error
