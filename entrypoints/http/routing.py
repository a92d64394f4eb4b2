"""Which service a request is for. The Host header says nothing: every service is behind the same address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotfire.entrypoints.http.messages import Request

_SCOPE = re.compile(
    r"Credential=[^/,\s]*/\d{8}/(?P<region>[\w-]*)/(?P<service>[\w-]+)/aws4_request"
)
_PRESIGNED = re.compile(r"[^/]*/\d{8}/(?P<region>[\w-]*)/(?P<service>[\w-]+)/aws4_request")
_TARGETS = {
    "SageMaker": "sagemaker",
    "Logs_20140328": "logs",
    "GraniteServiceVersion20100801": "monitoring",
    "AmazonEC2ContainerRegistry_V20150921": "ecr",
}


@dataclass(frozen=True, kw_only=True)
class Route:
    """``service`` as in credential scopes; empty when nothing tells. ``operation`` where the target says it."""

    service: str
    region: str
    operation: str = ""
    signed: bool = True


def route(request: Request, default_region: str) -> Route:
    """By the target, the scope of the signature, the kind of the presigned URL, in this order."""
    authorization = request.headers.get("Authorization", "")
    parameters = request.parameters
    scope = _SCOPE.search(authorization) or _PRESIGNED.match(parameters.get("X-Amz-Credential", ""))
    region = (scope["region"] if scope else "") or default_region
    service = scope["service"] if scope else ""
    prefix, _, operation = request.headers.get("X-Amz-Target", "").rpartition(".")
    if prefix:
        service = _TARGETS.get(prefix, service or prefix)
    if not service and (authorization.startswith("AWS ") or "AWSAccessKeyId" in parameters):
        service = "s3"
    return Route(service=service, region=region, operation=operation, signed=bool(service))
