"""A request becomes a response: guarded, routed, carried out. Every error of a client is an answer of its protocol."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import urlencode

from hotfire.entrypoints.http import guard, json_api, query_api, s3_api
from hotfire.entrypoints.http.messages import Body, Request, Response
from hotfire.entrypoints.http.moto import SERVICES, Moto
from hotfire.entrypoints.http.routing import Route, route
from hotfire.runtime.endpoint.log_operations import GROUP, LogOperations
from hotfire.runtime.endpoint.metrics import Publisher
from hotfire.runtime.endpoint.objects import ObjectStore
from hotfire.runtime.endpoint.operations import Operations
from hotfire.runtime.errors import HotfireError, UnsupportedError

logger = logging.getLogger(__name__)

_TRUST = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"sagemaker.amazonaws.com"},'
    '"Action":"sts:AssumeRole"}]}'
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an application is made of."""

    operations: Operations
    logs: LogOperations
    objects: ObjectStore | None
    """None: S3 is elsewhere, and clients know."""
    region: str


class Application:
    """All services behind one address."""

    def __init__(self, parts: Parts, publisher: Publisher, moto: Moto) -> None:
        self._parts = parts
        self._publisher = publisher
        self._moto = moto
        self._s3 = s3_api.S3(parts.objects) if parts.objects else None

    def prepare(self) -> None:
        """Make what clients expect to find: the execution role, and the log group."""
        role = {
            "Action": "CreateRole",
            "Version": "2010-05-08",
            "RoleName": query_api.ROLE,
            "AssumeRolePolicyDocument": _TRUST,
        }
        call_moto(self._moto, "iam", urlencode(role).encode(), self._parts.region)
        group = f'{{"logGroupName": "{GROUP}"}}'.encode()
        target = "Logs_20140328.CreateLogGroup"
        call_moto(self._moto, "logs", group, self._parts.region, target)

    def __call__(self, request: Request) -> Response:
        """Answer. An error of ours that nobody foresaw is told as such, without its traceback."""
        try:
            found = route(request, self._parts.region)
        except ValueError:
            return json_api.failure("InvalidRequest", "The query cannot be read.")
        try:
            guard.check(request.headers)
            return self._answer(request, found)
        except guard.Forbidden as error:
            return json_api.failure(error.api_code, error.what, 403)
        except HotfireError as error:
            return _refused(request, found, error)
        except Exception:
            logger.exception("%s %s failed", request.method, found.service or "request")
            return _failed(request, found)

    def _answer(self, request: Request, found: Route) -> Response:
        match found.service:
            case "sagemaker":
                return self._sagemaker(request, found)
            case "s3" | "s3express":
                return self._objects(request, found)
            case "logs":
                return self._logs(request, found)
            case "sts" | "iam" | "monitoring" | "ecr":
                return self._others(request, found)
            case "":
                raise guard.Forbidden(
                    "The request is not signed. Any access key will do; `hotfire env` prints one."
                )
        raise UnsupportedError(
            f"{found.service} is not available at this endpoint.",
            do="Point this client at AWS for it.",
        )

    def _sagemaker(self, request: Request, found: Route) -> Response:
        operations = self._parts.operations
        known = operations.model.operations.get(found.operation)
        if known is None:
            text = f"{found.operation or 'A request without X-Amz-Target'} is no operation of SageMaker."
            return json_api.failure("UnknownOperationException", text)
        answer = operations.handle(found.operation, json_api.document(request), found.region)
        return json_api.answer(answer if known[1] else None)

    def _objects(self, request: Request, found: Route) -> Response:
        if self._s3 is None:
            raise UnsupportedError("S3 is not at this endpoint but where AWS_ENDPOINT_URL_S3 says.")
        return self._s3.handle(request, found.region)

    def _logs(self, request: Request, found: Route) -> Response:
        body = request.body.all()
        document = json_api.document(_with_body(request, body))
        if LogOperations.concerns(document):
            answer = self._parts.logs.handle(found.operation, document, found.region)
            return json_api.answer(answer)
        return self._through(request, found, body)

    def _others(self, request: Request, found: Route) -> Response:
        body = request.body.all()
        if found.service in ("sts", "iam"):
            asked = query_api.form(body) or request.parameters
            if asked.get("Action") == "GetCallerIdentity":
                return query_api.caller_identity()
            if asked.get("Action") == "SimulatePrincipalPolicy":
                return query_api.simulated_policy(asked)
        if found.service == "monitoring":
            self._publisher.publish(found.region)
        return self._through(request, found, body)

    def _through(self, request: Request, found: Route, body: bytes) -> Response:
        """moto's answer; where moto has none (it says 404 or 500 in HTML then), a refusal in the service's own form."""
        try:
            answer = self._moto.call(found.service, request, body, found.region)
        except NotImplementedError:
            answer = Response(status=500)
        kind = answer.headers.get("Content-Type", "")
        if answer.status >= 500 or (answer.status >= 400 and "html" in kind):
            name = found.operation or query_api.form(body).get("Action", "The operation")
            raise UnsupportedError(f"{name} of {found.service} is not available at this endpoint.")
        return answer


def call_moto(moto: Moto, service: str, body: bytes, region: str, target: str = "") -> Response:
    """A call of our own."""
    headers = _Fixed(
        {"Content-Type": json_api.TYPE, "X-Amz-Target": target}
        if target
        else {"Content-Type": "application/x-www-form-urlencoded"}
    )
    request = Request(
        method="POST", path="/", query="", headers=headers, body=Body(lambda count: b"", 0)
    )
    return moto.call(service, request, body, region)


class _Fixed(dict[str, str]):
    """Headers of our own, which nobody spells in another case."""

    def get(self, name: str, default: str = "", /) -> str:  # type: ignore[override]
        return super().get(name, default)


def _with_body(request: Request, body: bytes) -> Request:
    rest = [body]
    read = Body(lambda count: rest.pop() if rest else b"", len(body))
    return Request(
        method=request.method,
        path=request.path,
        query=request.query,
        headers=request.headers,
        body=read,
    )


def _is_query(request: Request, found: Route) -> bool:
    form = request.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded")
    return found.service in ("sts", "iam") or (form and not found.operation)


def _refused(request: Request, found: Route, error: HotfireError) -> Response:
    if found.service in ("s3", "s3express"):
        return s3_api.refused(request, error)
    if _is_query(request, found):
        return query_api.failure(error.api_code, error.what)
    if isinstance(error, UnsupportedError) and found.service not in (*SERVICES, "sagemaker"):
        return json_api.failure("UnknownOperationException", error.what)
    return json_api.refused(error)


def _failed(request: Request, found: Route) -> Response:
    text = "The endpoint failed; its own log says more."
    if _is_query(request, found):
        return query_api.failure("InternalFailure", text, 500)
    return json_api.failure("InternalFailure", text, 500)
