"""Framings of bodies: whatever is framed comes out, however it arrives; whatever is broken is refused."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotfire.entrypoints.http.messages import BadBody
from hotfire.entrypoints.http.s3_bodies import AwsChunked
from hotfire.entrypoints.http.server import _Chunks


def framed(chunks: list[bytes], trailer: bytes) -> bytes:
    body = b"".join(b"%x;chunk-signature=0\r\n%b\r\n" % (len(one), one) for one in chunks if one)
    return body + b"0;chunk-signature=0\r\n" + trailer + b"\r\n"


def dribbling(data: bytes, step: int) -> Callable[[int], bytes]:
    source = io.BytesIO(data)
    return lambda count: source.read(min(count, step))


def everything(read: Callable[[int], bytes], step: int) -> bytes:
    found = bytearray()
    while data := read(step):
        assert len(data) <= step
        found += data
    return bytes(found)


@given(
    chunks=st.lists(st.binary(max_size=40), max_size=6),
    step=st.integers(1, 50),
    asked=st.integers(1, 50),
)
def test_frames_of_aws(chunks: list[bytes], step: int, asked: int) -> None:
    body = AwsChunked(dribbling(framed(chunks, b"x-amz-checksum-crc32: AAAA\r\n"), step))
    assert everything(body.read, asked) == b"".join(chunks)
    assert body.trailers == {"x-amz-checksum-crc32": "AAAA"}
    assert body.read(1) == b""


@given(data=st.binary(max_size=80), step=st.integers(1, 20))
def test_broken_frames_end_in_an_error_or_in_data(data: bytes, step: int) -> None:
    with contextlib.suppress(BadBody):
        everything(AwsChunked(dribbling(data, step)).read, 7)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_frames_that_end_too_early(cut: int) -> None:
    whole = framed([b"0123456789", b"abcdefghij"], b"")
    with pytest.raises(BadBody):
        everything(AwsChunked(dribbling(whole[:cut], 100)).read, 100)


@given(chunks=st.lists(st.binary(max_size=40), max_size=6), asked=st.integers(1, 50))
def test_chunks_of_http(chunks: list[bytes], asked: int) -> None:
    source = io.BytesIO(framed(chunks, b"Some: trailer\r\n") + b"NEXT")
    assert everything(_Chunks(source.read, source.readline).read, asked) == b"".join(chunks)
    assert source.read() == b"NEXT"


@given(data=st.binary(max_size=80))
def test_broken_chunks_end_in_an_error_or_in_data(data: bytes) -> None:
    source = io.BytesIO(data)
    with contextlib.suppress(BadBody):
        everything(_Chunks(source.read, source.readline).read, 7)
