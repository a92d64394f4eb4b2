"""The AWS query protocol (form in, XML out): errors, and the two answers of STS and IAM that are our own."""

from __future__ import annotations

from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from hotfire.entrypoints.http.messages import Response, request_id

ACCOUNT = "123456789012"
ROLE = "hotfire"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"
_TYPE = "text/xml"


def form(body: bytes) -> dict[str, str]:
    """The parameters of a call; empty for a body that is no form."""
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=10_000))
    except ValueError:
        return {}


def caller_identity() -> Response:
    """A role's session and not a user, because the SDKs take the execution role from it."""
    return _answer(
        "GetCallerIdentity",
        "https://sts.amazonaws.com/doc/2011-06-15/",
        f"<Arn>arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/local</Arn>"
        f"<UserId>AROAHOTFIREHOTFIREHO:local</UserId><Account>{ACCOUNT}</Account>",
    )


def simulated_policy(parameters: dict[str, str]) -> Response:
    """SimulatePrincipalPolicy: no policy is evaluated here, so every action is allowed."""
    actions = [
        value
        for name, value in sorted(parameters.items(), key=lambda pair: (len(pair[0]), pair[0]))
        if name.startswith("ActionNames.member.")
    ]
    resource = escape(parameters.get("ResourceArns.member.1", "*"))
    members = "".join(
        f"<member><EvalActionName>{escape(action)}</EvalActionName><EvalResourceName>{resource}</EvalResourceName>"
        "<EvalDecision>allowed</EvalDecision><MatchedStatements/><MissingContextValues/></member>"
        for action in actions
    )
    return _answer(
        "SimulatePrincipalPolicy",
        "https://iam.amazonaws.com/doc/2010-05-08/",
        f"<IsTruncated>false</IsTruncated><EvaluationResults>{members}</EvaluationResults>",
    )


def _answer(operation: str, namespace: str, result: str) -> Response:
    body = (
        f'<{operation}Response xmlns="{namespace}"><{operation}Result>{result}</{operation}Result>'
        f"<ResponseMetadata><RequestId>{request_id()}</RequestId></ResponseMetadata></{operation}Response>"
    )
    return Response(headers={"Content-Type": _TYPE}, body=body.encode())


def failure(code: str, message: str, status: int = 400) -> Response:
    """An error in the form of the protocol."""
    body = (
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        f"</Error><RequestId>{request_id()}</RequestId></ErrorResponse>"
    )
    return Response(status=status, headers={"Content-Type": _TYPE}, body=body.encode())
