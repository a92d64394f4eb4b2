"""Who is let in, and what becomes of requests that nobody should send."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SCOPE = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/{}/aws4_request, SignedHeaders=host, Signature=0"
TARGETS = [
    "CreateTrainingJob",
    "DescribeTrainingJob",
    "ListTrainingJobs",
    "StopTrainingJob",
    "UpdateTrainingJob",
    "DeleteTrainingJob",
    "ListTags",
    "AddTags",
    "DeleteTags",
    "Search",
]


def ask(
    endpoint: Any,
    method: str = "POST",
    path: str = "/",
    body: bytes = b"",
    service: str = "sagemaker",
    **headers: str,
) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
    fields = {"Authorization": SCOPE.format(service)} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    try:
        link.request(method, path, body, fields)
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def operation(endpoint: Any, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
    status, answer = ask(endpoint, body=body, X_Amz_Target=f"SageMaker.{name}")
    return status, json.loads(answer or b"{}")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:4599"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("service", ["sagemaker", "s3", "sts"])
def test_web_pages_are_refused(endpoint: Any, headers: dict[str, str], service: str) -> None:
    target = {"X_Amz_Target": "SageMaker.ListTrainingJobs"} if service == "sagemaker" else {}
    assert (
        ask(endpoint, "GET" if service == "s3" else "POST", service=service, **target, **headers)[0]
        == 403
    )


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1"])
def test_programs_are_let_in_under_the_machines_own_names(endpoint: Any, name: str) -> None:
    answer = ask(endpoint, X_Amz_Target="SageMaker.ListTrainingJobs", body=b"{}", Host=name)
    assert answer[0] == 200


def test_the_listener_is_on_the_loopback_interface_alone(endpoint: Any) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=5):
        pass
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", endpoint.port), timeout=5).close()


def test_unsigned_requests_and_motos_own_control_are_out_of_reach(endpoint: Any) -> None:
    for path in ("/", "/moto-api/reset", "/some-bucket/key"):
        link = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
        link.request("POST", path, b"")
        assert link.getresponse().status == 403
        link.close()
    assert ask(endpoint, path="/moto-api/reset", service="s3")[0] == 400
    assert ask(endpoint, path="/moto-api/reset", service="iam")[0] == 400
    endpoint.client("iam").get_role(RoleName="hotfire")


def test_the_role_and_its_identity(endpoint: Any) -> None:
    identity = endpoint.client("sts").get_caller_identity()
    assert identity["Arn"] == "arn:aws:sts::123456789012:assumed-role/hotfire/local"
    iam = endpoint.client("iam")
    role = iam.get_role(RoleName="hotfire")["Role"]
    statement = role["AssumeRolePolicyDocument"]["Statement"][0]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    simulated = iam.simulate_principal_policy(
        PolicySourceArn=role["Arn"], ActionNames=["s3:GetObject", "s3:PutObject"]
    )["EvaluationResults"]
    assert [(one["EvalActionName"], one["EvalDecision"]) for one in simulated] == [
        ("s3:GetObject", "allowed"),
        ("s3:PutObject", "allowed"),
    ]


def test_other_services(endpoint: Any) -> None:
    """moto's answers where it has them, refusals in the service's own form where it has none."""
    assert endpoint.client("ecr").describe_repositories()["repositories"] == []
    logs = endpoint.client("logs")
    logs.create_log_group(logGroupName="/other")
    groups = [one["logGroupName"] for one in logs.describe_log_groups()["logGroups"]]
    assert set(groups) >= {"/other", "/aws/sagemaker/TrainingJobs"}
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.create_log_stream(logGroupName="/aws/sagemaker/TrainingJobs", logStreamName="x")
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.get_log_events(logGroupName="/aws/sagemaker/TrainingJobs", logStreamName="no/algo-1-1")
    for call in (
        lambda: endpoint.client("dynamodb").list_tables(),
        lambda: endpoint.client("sts").decode_authorization_message(EncodedMessage="x"),
        lambda: endpoint.client("sagemaker-runtime").invoke_endpoint(EndpointName="e", Body=b""),
        lambda: endpoint.client("iam").generate_service_last_accessed_details(Arn="a" * 20),
    ):
        with pytest.raises(ClientError) as error:
            call()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b'"x"',
        b"null",
        b"{" * 100_000,
        b'{"a": NaN}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("name", ["CreateTrainingJob", "DescribeTrainingJob", "AddTags"])
def test_bodies_that_are_no_requests(endpoint: Any, name: str, body: bytes) -> None:
    status, answer = operation(endpoint, name, body)
    assert status == 400
    assert answer["__type"] in ("ValidationException", "SerializationException")
    assert "Traceback" not in answer["message"]


def test_bodies_that_are_too_large_or_framed_wrongly(endpoint: Any) -> None:
    target = {"X_Amz_Target": "SageMaker.ListTrainingJobs"}
    assert ask(endpoint, body=b" " * (9 << 20), **target)[0] == 400
    for raw in (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as link:
            link.sendall(raw)
            link.shutdown(socket.SHUT_WR)
            answer = b""
            while data := link.recv(65536):
                answer += data
        assert b" 5" not in answer.partition(b"\r\n")[0], answer
        assert b"Traceback" not in answer
    operation_status, _ = operation(endpoint, "ListTrainingJobs", b"{}")
    assert operation_status == 200


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.sampled_from(
        ["arn:aws:sagemaker:us-east-1:123456789012:training-job/x", "TrainingJob", "../.."]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
_MEMBERS = st.sampled_from(
    [
        "TrainingJobName",
        "ResourceArn",
        "Resource",
        "Tags",
        "TagKeys",
        "NextToken",
        "MaxResults",
        "SearchExpression",
        "CreationTimeAfter",
        "SortBy",
        "AlgorithmSpecification",
        "ResourceConfig",
        "HyperParameters",
        "InputDataConfig",
        "OutputDataConfig",
        "RoleArn",
        "StoppingCondition",
        "ProfilerConfig",
        "NameContains",
    ]
)


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(TARGETS), members=st.dictionaries(_MEMBERS, _VALUES, max_size=5))
def test_whatever_comes_the_answer_is_one(
    endpoint: Any, name: str, members: dict[str, Any]
) -> None:
    status, answer = operation(endpoint, name, json.dumps(members).encode())
    assert status in (200, 400), answer
    assert status == 200 or (answer["__type"] and answer["message"])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]),
    path=st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=20),
    query=st.sampled_from(
        [
            "",
            "?uploads",
            "?uploadId=x",
            "?delete",
            "?list-type=2&max-keys=x",
            "?partNumber=1&uploadId=%ff",
            "?acl",
        ]
    ),
    body=st.binary(max_size=50),
    headers=st.dictionaries(
        st.sampled_from(
            [
                "Range",
                "Content-MD5",
                "x-amz-copy-source",
                "Content-Encoding",
                "x-amz-content-sha256",
                "If-Match",
            ]
        ),
        st.sampled_from(
            ["bytes=0-", "x", "aws-chunked", "/a/b", "STREAMING-X", "bytes=" + "9" * 5000 + "-"]
        ),
        max_size=3,
    ),
)
def test_whatever_comes_to_s3_the_answer_is_one(
    endpoint: Any, method: str, path: str, query: str, body: bytes, headers: dict[str, str]
) -> None:
    safe = path.replace("?", "").replace("#", "").replace("\\", "")
    status, _ = ask(endpoint, method, f"/{safe}{query}", body, service="s3", **headers)
    assert status < 500


def test_logs_survive_nonsense_too(endpoint: Any) -> None:
    for members in (
        {"logStreamName": "x" * 600},
        {"logStreamName": "a/b", "nextToken": "f/x"},
        {"logStreamName": 5},
        {"logStreamNamePrefix": "..", "limit": "many"},
    ):
        for name in ("GetLogEvents", "DescribeLogStreams", "FilterLogEvents"):
            body = json.dumps({"logGroupName": "/aws/sagemaker/TrainingJobs", **members}).encode()
            status, answer = ask(
                endpoint, body=body, service="logs", X_Amz_Target=f"Logs_20140328.{name}"
            )
            assert status in (200, 400), answer
