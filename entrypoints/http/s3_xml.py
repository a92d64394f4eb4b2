"""The XML of S3."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import quote
from xml.sax.saxutils import escape

from hotfire.runtime.endpoint.objects import Object, Page, S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
OWNER = "<Owner><ID>hotfire</ID><DisplayName>hotfire</DisplayName></Owner>"


def document(root: str, body: str) -> bytes:
    return f'{_HEAD}<{root} xmlns="{NAMESPACE}">{body}</{root}>'.encode("utf-8", "replace")


def error(code: str, message: str, resource: str, identity: str) -> bytes:
    body = (
        f"<Code>{escape(code)}</Code><Message>{_text(message)}</Message><Resource>{_text(resource)}</Resource>"
        f"<RequestId>{identity}</RequestId>"
    )
    return f"{_HEAD}<Error>{body}</Error>".encode("utf-8", "replace")


def element(name: str, value: object) -> str:
    return f"<{name}>{_text(str(value))}</{name}>"


def _text(text: str) -> str:
    """Escaped, without what XML cannot hold at all."""
    return escape("".join(c for c in text if c >= " " or c in "\t\n\r"))


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def http_date(seconds: float) -> str:
    return formatdate(seconds, usegmt=True)


def listing(page: Page, *, encode: bool, owner: bool) -> str:
    """Contents and CommonPrefixes, as both versions of ListObjects have them."""

    def key(text: str) -> str:
        return quote(text, safe="/") if encode else _text(text)

    contents = "".join(
        f"<Contents><Key>{key(one.key)}</Key><LastModified>{moment(one.modified)}</LastModified>"
        f"<ETag>&quot;{one.etag}&quot;</ETag><Size>{one.size}</Size>{OWNER * owner}"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for one in page.objects
    )
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{key(one)}</Prefix></CommonPrefixes>" for one in page.prefixes
    )
    return contents + prefixes


def _parse(body: bytes) -> ET.Element:
    try:
        # A document type could define entities; no client sends one.
        if b"<!DOCTYPE" in body:
            raise ValueError
        return ET.fromstring(body)
    except (ET.ParseError, ValueError) as failure:
        raise S3Error(
            "MalformedXML", "The XML you provided was not well-formed or did not validate."
        ) from failure


def _children(node: ET.Element, name: str) -> Iterable[ET.Element]:
    return (child for child in node if child.tag.rpartition("}")[2] == name)


def _child(node: ET.Element, name: str) -> str:
    return next((child.text or "" for child in _children(node, name)), "")


def keys_to_delete(body: bytes) -> tuple[list[str], bool]:
    """Of DeleteObjects: the keys, and whether only failures are to be told.

    Raises:
        S3Error: it is not such a document.
    """
    root = _parse(body)
    keys = [_child(one, "Key") for one in _children(root, "Object")]
    if not keys or len(keys) > 1000 or "" in keys:
        raise S3Error("MalformedXML", "Give between 1 and 1000 keys.")
    return keys, _child(root, "Quiet") == "true"


def parts_to_complete(body: bytes) -> list[tuple[int, str]]:
    """Of CompleteMultipartUpload: numbers and ETags.

    Raises:
        S3Error: it is not such a document.
    """
    try:
        found = [
            (int(_child(one, "PartNumber")), _child(one, "ETag").strip('"'))
            for one in _children(_parse(body), "Part")
        ]
    except ValueError as failure:
        raise S3Error("MalformedXML", "A part has no number.") from failure
    if not found:
        raise S3Error("MalformedXML", "You must specify at least one part")
    return found


def described(found: Object) -> dict[str, str]:
    """The headers of an object."""
    return {
        **found.headers,
        "ETag": f'"{found.etag}"',
        "Last-Modified": http_date(found.modified),
        "Accept-Ranges": "bytes",
    }
