"""S3 over :mod:`hotfire.runtime.endpoint.objects`: path-style requests, objects of any size in constant memory.

What training jobs, SDKs, the AWS CLI and s3fs use; everything else of S3 (versions, policies, ACLs, life cycles,
encryption of our own) is refused by name.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import quote, unquote

from hotfire.entrypoints.http import s3_xml as xml
from hotfire.entrypoints.http.messages import Request, Response, request_id
from hotfire.entrypoints.http.s3_bodies import Upload
from hotfire.runtime.endpoint.objects import Object, ObjectStore, Part, S3Error
from hotfire.runtime.errors import HotfireError

SMALLEST_PART = 5 << 20
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_KEPT = {
    "content-type",
    "content-encoding",
    "content-disposition",
    "content-language",
    "cache-control",
    "expires",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-storage-class",
}
# What a query may hold without being another operation: presigned signatures, paging, overrides of headers.
_PLAIN = re.compile(
    r"(?i)(x-amz-|x-id$|awsaccesskeyid$|signature$|expires$|response-|prefix$|delimiter$|marker$|max-keys$"
    r"|encoding-type$|list-type$|continuation-token$|start-after$|fetch-owner$|partnumber$|uploadid$"
    r"|max-uploads$|key-marker$|upload-id-marker$|max-parts$|part-number-marker$|max-buckets$|bucket-region$)"
)
Operation = Callable[["S3", "Call"], Response]


class Call:
    """One request, taken apart."""

    def __init__(self, request: Request, region: str) -> None:
        try:
            bucket, _, key = unquote(request.path[1:], errors="strict").partition("/")
        except UnicodeDecodeError as error:
            raise S3Error("InvalidURI", "Couldn't parse the specified URI.") from error
        self.request = request
        self.region = region
        self.bucket, self.key = bucket, key
        self.parameters = request.parameters
        self.headers = {name.lower(): value for name, value in request.headers.items()}

    @property
    def subresource(self) -> str:
        """``uploads``, ``delete``, ``location`` ... or nothing."""
        return next((name for name in self.parameters if not _PLAIN.match(name)), "")

    def number(self, name: str, default: int, most: int) -> int:
        """A parameter that is a number from 0 on; larger ones than ``most`` count as that.

        Raises:
            S3Error: it is none.
        """
        text = self.parameters.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise S3Error("InvalidArgument", f"Provided {name} not an integer or within range")
        return min(int(text), most)


class S3:
    """The S3 API of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def handle(self, request: Request, region: str) -> Response:
        """Answer; errors are answers as well."""
        identity = request_id()
        try:
            found = self._answer(Call(request, region))
        except S3Error as error:
            found = Response(
                status=error.status,
                headers={"Content-Type": "application/xml"},
                body=xml.error(error.api_code, error.what, request.path, identity),
            )
        except HotfireError as error:
            found = refused(request, error)
        return replace(found, headers={**found.headers, "x-amz-request-id": identity})

    def _answer(self, call: Call) -> Response:
        level = "object" if call.key else "bucket" if call.bucket else "service"
        kind = call.subresource
        if level == "object" and "uploadId" in call.parameters:
            kind = "upload"
        operation = _OPERATIONS.get((level, call.request.method, kind))
        if operation is None:
            what = f"{call.request.method} {level}{f' ?{kind}' if kind else ''}"
            raise S3Error("NotImplemented", f"{what} is not available at this endpoint.", 400)
        return operation(self, call)

    # Buckets

    def list_buckets(self, call: Call) -> Response:
        members = "".join(
            f"<Bucket><Name>{name}</Name><CreationDate>{xml.moment(created)}</CreationDate></Bucket>"
            for name, created in self._store.buckets()
        )
        return _xml("ListAllMyBucketsResult", f"{xml.OWNER}<Buckets>{members}</Buckets>")

    def create_bucket(self, call: Call) -> Response:
        call.request.body.all()
        self._store.create_bucket(call.bucket, call.region)
        return Response(headers={"Location": f"/{call.bucket}"})

    def head_bucket(self, call: Call) -> Response:
        region = self._store.region_of(call.bucket)
        return Response(headers={"x-amz-bucket-region": region})

    def delete_bucket(self, call: Call) -> Response:
        self._store.delete_bucket(call.bucket)
        return Response(status=204)

    def location(self, call: Call) -> Response:
        region = self._store.region_of(call.bucket)
        body = "" if region == "us-east-1" else region
        return _xml("LocationConstraint", body)

    def versioning(self, call: Call) -> Response:
        self._store.region_of(call.bucket)
        return _xml("VersioningConfiguration", "")

    def list_objects(self, call: Call) -> Response:
        """Both versions; the first tells NextMarker with a delimiter only, the second always a token."""
        ask = call.parameters
        second = ask.get("list-type") == "2"
        prefix, delimiter = ask.get("prefix", ""), ask.get("delimiter", "")
        limit = call.number("max-keys", 1000, 1000)
        after = ask.get("start-after", "") if second else ask.get("marker", "")
        if second and "continuation-token" in ask:
            after = _from_token(ask["continuation-token"])
        encode = ask.get("encoding-type") == "url"
        page = self._store.page(call.bucket, prefix, delimiter, after, limit)
        more = page.more and limit > 0

        def told(name: str, value: str) -> str:
            return xml.element(name, quote(value, safe="/") if encode else value)

        head = xml.element("Name", call.bucket) + told("Prefix", prefix)
        head += told("Delimiter", delimiter) if delimiter else ""
        head += xml.element("MaxKeys", limit) + xml.element("IsTruncated", str(more).lower())
        head += xml.element("EncodingType", "url") if encode else ""
        if second:
            count = len(page.objects) + len(page.prefixes)
            head += xml.element("KeyCount", count)
            head += told("StartAfter", ask["start-after"]) if "start-after" in ask else ""
            if "continuation-token" in ask:
                head += xml.element("ContinuationToken", ask["continuation-token"])
            if more:
                token = base64.urlsafe_b64encode(page.last.encode()).decode()
                head += xml.element("NextContinuationToken", token)
        else:
            head += told("Marker", after)
            head += told("NextMarker", page.last) if more else ""
        owner = not second or ask.get("fetch-owner") == "true"
        return _xml("ListBucketResult", head + xml.listing(page, encode=encode, owner=owner))

    def delete_objects(self, call: Call) -> Response:
        keys, quiet = xml.keys_to_delete(call.request.body.all())
        self._store.region_of(call.bucket)
        for key in keys:
            self._store.delete(call.bucket, key)
        told = (
            ""
            if quiet
            else "".join(f"<Deleted>{xml.element('Key', key)}</Deleted>" for key in keys)
        )
        return _xml("DeleteResult", told)

    def list_uploads(self, call: Call) -> Response:
        members = "".join(
            f"<Upload>{xml.element('Key', key)}<UploadId>{identity}</UploadId>"
            f"<Initiated>{xml.moment(begun)}</Initiated></Upload>"
            for key, identity, begun in self._store.uploads(call.bucket)
            if key.startswith(call.parameters.get("prefix", ""))
        )
        head = xml.element("Bucket", call.bucket) + "<IsTruncated>false</IsTruncated>"
        return _xml("ListMultipartUploadsResult", head + members)

    # Objects

    def get_object(self, call: Call) -> Response:
        spans: list[tuple[int, int] | None] = []

        def choose(found: Object) -> tuple[int, int]:
            _check_conditions(call, found)
            spans.append(_span(call.headers.get("range", ""), found.size))
            return spans[0] or (0, found.size)

        try:
            found, reading = self._store.open(call.bucket, call.key, choose)
        except _NotModified as error:
            headers = _without_checksums(xml.described(error.found))
            return Response(status=304, headers=headers)
        part = spans[0] is not None
        begin, end = spans[0] or (0, found.size)
        headers = _object_headers(call, found)
        if part:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{found.size}"
            headers = _without_checksums(headers)
        if call.request.method == "HEAD":
            reading.close()
            return Response(status=206 if part else 200, headers=headers, length=end - begin)
        return Response(
            status=206 if part else 200, headers=headers, body=reading, length=end - begin
        )

    def put_object(self, call: Call) -> Response:
        if "x-amz-copy-source" in call.headers:
            return self._copy_object(call)
        self._store.region_of(call.bucket)  # before a large body is taken in
        upload = Upload(call.request)
        piece, md5 = self._store.receive(upload.read)
        try:
            sums = upload.check(md5)
            kept = {**_kept(call.headers), **sums}
            found = _new(call.key, piece, md5, kept)
            absent = call.headers.get("if-none-match") == "*"
            self._store.put(call.bucket, found, only_if_absent=absent)
        except BaseException:
            self._store.discard(piece)
            raise
        return Response(headers={"ETag": f'"{md5}"', **sums, **_encryption(kept)})

    def _copy_object(self, call: Call) -> Response:
        (piece, md5), source = self._received_copy(call)
        try:
            fresh = call.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
            kept = _kept(call.headers) if fresh else dict(source.headers)
            found = _new(call.key, piece, md5, _without_checksums(kept))
            self._store.put(call.bucket, found)
        except BaseException:
            self._store.discard(piece)
            raise
        body = f"<LastModified>{xml.moment(found.modified)}</LastModified><ETag>&quot;{md5}&quot;</ETag>"
        return _xml("CopyObjectResult", body)

    def _received_copy(self, call: Call) -> tuple[tuple[tuple[str, int], str], Object]:
        """The bytes that x-amz-copy-source names, once more."""
        call.request.body.all()
        where = unquote(call.headers["x-amz-copy-source"].partition("?")[0]).lstrip("/")
        bucket, _, key = where.partition("/")
        span = call.headers.get("x-amz-copy-source-range", "")
        source, reading = self._store.open(
            bucket, key, lambda found: _span(span, found.size) or (0, found.size)
        )
        try:
            return self._store.receive(reading.read), source
        finally:
            reading.close()

    def delete_object(self, call: Call) -> Response:
        self._store.delete(call.bucket, call.key)
        return Response(status=204)

    # Multipart uploads

    def create_upload(self, call: Call) -> Response:
        call.request.body.all()
        identity = self._store.begin_upload(call.bucket, call.key, _kept(call.headers))
        return _xml("InitiateMultipartUploadResult", _whose(call, identity))

    def upload_part(self, call: Call) -> Response:
        identity = call.parameters["uploadId"]
        number = call.number("partNumber", 0, 1 << 30)
        if not 1 <= number <= 10_000:
            text = "Part number must be an integer between 1 and 10000, inclusive"
            raise S3Error("InvalidArgument", text)
        self._store.upload_headers(call.bucket, call.key, identity)
        copied = "x-amz-copy-source" in call.headers
        sums: dict[str, str] = {}
        if copied:
            (piece, md5), _ = self._received_copy(call)
        else:
            upload = Upload(call.request)
            piece, md5 = self._store.receive(upload.read)
            try:
                sums = upload.check(md5)
            except BaseException:
                self._store.discard(piece)
                raise
        self._store.put_part(identity, number, piece, md5)
        if copied:
            body = f"<LastModified>{xml.moment(time.time())}</LastModified><ETag>&quot;{md5}&quot;</ETag>"
            return _xml("CopyPartResult", body)
        return Response(headers={"ETag": f'"{md5}"', **sums})

    def list_parts(self, call: Call) -> Response:
        identity = call.parameters["uploadId"]
        self._store.upload_headers(call.bucket, call.key, identity)
        members = "".join(
            f"<Part><PartNumber>{part.number}</PartNumber><ETag>&quot;{part.etag}&quot;</ETag><Size>{part.size}</Size>"
            f"<LastModified>{xml.moment(time.time())}</LastModified></Part>"
            for part in self._store.parts(identity)
        )
        return _xml(
            "ListPartsResult", _whose(call, identity) + "<IsTruncated>false</IsTruncated>" + members
        )

    def complete_upload(self, call: Call) -> Response:
        identity = call.parameters["uploadId"]
        self._store.upload_headers(call.bucket, call.key, identity)
        asked = xml.parts_to_complete(call.request.body.all())
        chosen = _chosen(asked, {part.number: part for part in self._store.parts(identity)})
        absent = call.headers.get("if-none-match") == "*"
        found = self._store.complete(call.bucket, call.key, identity, chosen, only_if_absent=absent)
        body = f"<Location>/{quote(call.bucket)}/{quote(call.key)}</Location>" + _whose(call)
        return _xml("CompleteMultipartUploadResult", f"{body}<ETag>&quot;{found.etag}&quot;</ETag>")

    def abort_upload(self, call: Call) -> Response:
        self._store.abort(call.bucket, call.key, call.parameters["uploadId"])
        return Response(status=204)


_OPERATIONS: Mapping[tuple[str, str, str], Operation] = {
    ("service", "GET", ""): S3.list_buckets,
    ("bucket", "PUT", ""): S3.create_bucket,
    ("bucket", "HEAD", ""): S3.head_bucket,
    ("bucket", "DELETE", ""): S3.delete_bucket,
    ("bucket", "GET", ""): S3.list_objects,
    ("bucket", "GET", "location"): S3.location,
    ("bucket", "GET", "versioning"): S3.versioning,
    ("bucket", "GET", "uploads"): S3.list_uploads,
    ("bucket", "POST", "delete"): S3.delete_objects,
    ("object", "GET", ""): S3.get_object,
    ("object", "HEAD", ""): S3.get_object,
    ("object", "PUT", ""): S3.put_object,
    ("object", "DELETE", ""): S3.delete_object,
    ("object", "POST", "uploads"): S3.create_upload,
    ("object", "PUT", "upload"): S3.upload_part,
    ("object", "GET", "upload"): S3.list_parts,
    ("object", "POST", "upload"): S3.complete_upload,
    ("object", "DELETE", "upload"): S3.abort_upload,
}


def refused(request: Request, error: HotfireError) -> Response:
    """Any error in the form of S3."""
    status = 403 if error.api_code == "AccessDeniedException" else 400
    code = "AccessDenied" if status == 403 else error.api_code
    body = xml.error(code, error.what, request.path, request_id())
    return Response(status=status, headers={"Content-Type": "application/xml"}, body=body)


def _xml(root: str, body: str) -> Response:
    return Response(headers={"Content-Type": "application/xml"}, body=xml.document(root, body))


def _whose(call: Call, upload: str = "") -> str:
    body = xml.element("Bucket", call.bucket) + xml.element("Key", call.key)
    return body + (xml.element("UploadId", upload) if upload else "")


def _new(key: str, piece: tuple[str, int], md5: str, headers: Mapping[str, str]) -> Object:
    if len(key.encode()) > 1024:
        raise S3Error("KeyTooLongError", "Your key is too long")
    return Object(
        key=key, size=piece[1], etag=md5, modified=time.time(), headers=headers, pieces=(piece,)
    )


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """What an object keeps of the request that made it."""
    kept = {
        name: value
        for name, value in headers.items()
        if name in _KEPT or name.startswith("x-amz-meta-")
    }
    kept.setdefault("content-type", "binary/octet-stream")
    # The framing of the request is not a property of the object.
    coding = [word.strip() for word in kept.pop("content-encoding", "").split(",")]
    if rest := [word for word in coding if word and word != "aws-chunked"]:
        kept["content-encoding"] = ",".join(rest)
    return kept


def _encryption(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if "server-side-encryption" in name}


def _without_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in headers.items() if not name.startswith("x-amz-checksum-")
    }


def _object_headers(call: Call, found: Object) -> dict[str, str]:
    headers = xml.described(found)
    if call.headers.get("x-amz-checksum-mode", "").upper() != "ENABLED":
        headers = _without_checksums(headers)
    for name, value in call.parameters.items():
        if name.startswith("response-") and value.isprintable() and value.isascii():
            headers[name.removeprefix("response-")] = value
    return headers


class _NotModified(Exception):
    def __init__(self, found: Object) -> None:
        self.found = found


def _check_conditions(call: Call, found: Object) -> None:
    """If-Match and If-None-Match; the conditions on time are ignored, as times have the precision of seconds only."""
    wanted = call.headers.get("if-match")
    if wanted is not None and wanted.strip('"') not in (found.etag, "*"):
        text = "At least one of the pre-conditions you specified did not hold"
        raise S3Error("PreconditionFailed", text, 412)
    unwanted = call.headers.get("if-none-match")
    if unwanted is not None and unwanted.strip('"') in (found.etag, "*"):
        raise _NotModified(found)


def _span(text: str, size: int) -> tuple[int, int] | None:
    """The bytes ``[begin, end)`` of a Range header; None for the whole, also when it is not one that S3 reads.

    Raises:
        S3Error: it begins behind the end.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if match[1]:
        begin = int(match[1])
        end = min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < begin:
            return None
    else:
        begin, end = max(size - int(match[2]), 0), size
    if begin >= end:
        raise S3Error("InvalidRange", "The requested range is not satisfiable", 416)
    return begin, end


def _from_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError as error:
        text = "The continuation token provided is incorrect"
        raise S3Error("InvalidArgument", text) from error


def _chosen(asked: list[tuple[int, str]], parts: Mapping[int, Part]) -> list[Part]:
    """The parts of a complete object.

    Raises:
        S3Error: one is missing, out of order, or too small to be followed by another.
    """
    numbers = [number for number, _ in asked]
    if numbers != sorted(set(numbers)):
        raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order.")
    chosen = []
    for number, etag in asked:
        part = parts.get(number)
        if part is None or part.etag != etag:
            raise S3Error("InvalidPart", "One or more of the specified parts could not be found.")
        chosen.append(part)
    if any(part.size < SMALLEST_PART for part in chosen[:-1]):
        raise S3Error(
            "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"
        )
    return chosen
