"""The cache of downloaded objects: what it lists, what it gives up, and what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotfire.runtime.object_cache import ObjectCache
from hotfire.runtime.s3 import S3Object


def put(cache: ObjectCache, key: str, size: int, used: float) -> S3Object:
    one = S3Object(bucket="b", key=key, size=size, etag=key)
    path = cache.path(one)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    cache.label([one])
    os.utime(path, (used, used))
    return one


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "cache")


def keys(cache: ObjectCache) -> set[str]:
    return {one.uri.rpartition("/")[2] for one in cache.entries()}


def test_it_says_what_it_has(cache: ObjectCache) -> None:
    put(cache, "ü x", 10, 1000)
    (one,) = cache.entries()
    assert (one.uri, one.bytes, one.used, one.linked) == ("s3://b/ü x", 10, 1000, False)


def test_the_longest_unused_go_first(cache: ObjectCache) -> None:
    for number, key in enumerate(("old", "middle", "new")):
        put(cache, key, 10, 1000 + number)
    assert cache.shrink(30) == 0
    assert cache.shrink(15) == 20
    assert keys(cache) == {"new"}


def test_using_an_object_saves_it(cache: ObjectCache) -> None:
    old = put(cache, "old", 10, 1000)
    put(cache, "new", 10, 2000)
    cache.touch(old)
    cache.shrink(10)
    assert keys(cache) == {"old"}


def test_what_a_job_links_to_stays(cache: ObjectCache, tmp_path: Path) -> None:
    linked = put(cache, "linked", 10, 1000)
    put(cache, "free", 10, 2000)
    (tmp_path / "job").hardlink_to(cache.path(linked))
    cache.shrink(5)
    assert keys(cache) == {"linked"}


def test_other_versions_are_other_objects(cache: ObjectCache) -> None:
    one = put(cache, "k", 10, 1000)
    assert cache.has(one)
    assert not cache.has(S3Object(bucket="b", key="k", size=10, etag="other"))
    assert not cache.has(S3Object(bucket="b", key="k", size=11, etag="k"))


def test_clearing_takes_half_downloads_too(cache: ObjectCache) -> None:
    one = put(cache, "k", 10, 1000)
    cache.path(one).with_name(cache.path(one).name + ".part").write_bytes(b"12345")
    files, size = cache.clear()
    assert files == 2
    assert size >= 15
    assert list(cache.entries()) == []
    assert cache.clear() == (0, 0)
