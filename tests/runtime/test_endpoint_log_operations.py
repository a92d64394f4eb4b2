"""GetLogEvents and FilterLogEvents over jobs' own files: every line on one page, in any direction, in pieces or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotfire.runtime.endpoint.index import Index
from hotfire.runtime.endpoint.log_operations import GROUP, LogOperations
from hotfire.runtime.events import ignore
from hotfire.runtime.layout import HostDir, JobDir
from hotfire.runtime.observe.log_pieces import Rotation
from hotfire.runtime.status import JobRecord, SecondaryStatus, utc_now
from hotfire.runtime.store import write_json, write_record
from hotfire.runtime.surroundings import Surroundings

LINES = [f"line {number}" for number in range(60_000)]
"""So short that a mebibyte holds more of them than an answer may."""


def ended(around: Surroundings, name: str, text: bytes) -> HostDir:
    """A job that has ended, and what its host printed."""
    job_dir = JobDir(around.store.jobs / name)
    host = job_dir.host(1, "algo-1")
    host.scratch.mkdir(parents=True)
    host.log.write_bytes(text)
    write_json(job_dir.request, {"ResourceConfig": {"InstanceCount": 1}})
    record = JobRecord(name=name, creation_time=utc_now())
    write_record(job_dir, record.moved(SecondaryStatus.FAILED, "", utc_now()))
    return host


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return Surroundings.here({"HOTFIRE_HOME": str(tmp_path)})


@pytest.fixture(params=["a file", "pieces"])
def ask(around: Surroundings, request: pytest.FixtureRequest) -> Any:
    """GetLogEvents of one job."""
    text = "".join(line + "\n" for line in LINES).encode()
    host = ended(around, "job", text)
    if request.param == "pieces":
        rotation = Rotation(host.log, host.scratch, ignore, 100_000)
        rotation.read_to(len(text))
        rotation.finish(len(text))
    logs = LogOperations(around, Index(around.store))
    group = {"logGroupName": GROUP}
    (stream,) = logs.handle("DescribeLogStreams", group, "us-east-1")["logStreams"]

    def asked(**members: Any) -> tuple[list[str], dict[str, Any]]:
        document = {**group, "logStreamName": stream["logStreamName"], **members}
        answer = logs.handle("GetLogEvents", document, "us-east-1")
        return [event["message"] for event in answer["events"]], answer

    return asked


@pytest.mark.parametrize("limit", [{}, {"limit": 7_777}])
def test_pages_forward_and_backward_hold_every_line_once(ask: Any, limit: dict[str, int]) -> None:
    found: list[str] = []
    page, answer = ask(startFromHead=True, **limit)
    while page:
        found += page
        page, answer = ask(nextToken=answer["nextForwardToken"], **limit)
    assert found == LINES
    found = []
    page, answer = ask(**limit)
    while page:
        found = page + found
        page, answer = ask(nextToken=answer["nextBackwardToken"], **limit)
    assert found == LINES


def test_without_a_token_the_newest_come(ask: Any) -> None:
    page, answer = ask(limit=3)
    assert page == LINES[-3:]
    assert ask(nextToken=answer["nextForwardToken"])[0] == []
    assert ask(nextToken=answer["nextBackwardToken"], limit=2)[0] == LINES[-5:-3]
    assert ask(limit=2, startFromHead=True)[0] == LINES[:2]


def test_a_filter_goes_on_where_it_was_when_jobs_appear(around: Surroundings) -> None:
    logs = LogOperations(around, Index(around.store))
    asked: dict[str, Any] = {"logGroupName": GROUP, "filterPattern": "line", "limit": 2}
    for name in ("b", "c"):
        ended(around, name, b"line 1\nother\nline 2\nline 3\n")
    found, new = [], iter("adef")
    while True:
        answer = logs.handle("FilterLogEvents", asked, "us-east-1")
        found += [(one["logStreamName"][0], one["message"]) for one in answer["events"]]
        if "nextToken" not in answer:
            break
        asked["nextToken"] = answer["nextToken"]
        ended(around, next(new), b"")
    assert found == [(job, f"line {number}") for job in "bc" for number in (1, 2, 3)]
