"""CloudWatch Logs for the group of training jobs: answered from the jobs' own files. Other groups are not ours."""

from __future__ import annotations

import base64
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hotfire.runtime import description
from hotfire.runtime.endpoint.index import Index, Row
from hotfire.runtime.endpoint.model import Model
from hotfire.runtime.endpoint.streams import EVENT_OVERHEAD, PAGE_BYTES, LogEvent, Stream
from hotfire.runtime.errors import HotfireError, ResourceNotFound
from hotfire.runtime.surroundings import Surroundings
from hotfire.runtime.traits import RequestInvalid

GROUP = "/aws/sagemaker/TrainingJobs"
PAGE_EVENTS = 10_000
PAGE_STREAMS = 50
Answer = dict[str, Any]


class LogGroupReadOnly(HotfireError):
    """The group holds what jobs print, and nobody else writes to it."""

    api_code = "InvalidParameterException"


class InvalidParameter(HotfireError):
    api_code = "InvalidParameterException"


class StreamNotFound(HotfireError):
    api_code = "ResourceNotFoundException"

    def __init__(self) -> None:
        super().__init__("The specified log stream does not exist.")


class LogOperations:
    """Reads the logs of one store's jobs."""

    def __init__(self, around: Surroundings, index: Index) -> None:
        self._store = around.store
        self._index = index
        self._streams: dict[tuple[str, int], dict[str, Stream]] = {}
        self._lock = threading.Lock()
        self._methods: dict[str, Callable[[Answer, str], Answer]] = {
            "DescribeLogStreams": self._describe_streams,
            "GetLogEvents": self._get_events,
            "FilterLogEvents": self._filter_events,
        }
        self.model = Model.load(tuple(self._methods), "logs")

    @staticmethod
    def concerns(document: Mapping[str, Any]) -> bool:
        """Whether a request is about the group of training jobs."""
        name = document.get("logGroupName") or document.get("logGroupIdentifier")
        if not isinstance(name, str):
            return False
        return name == GROUP or name.removesuffix(":*").endswith(f":log-group:{GROUP}")

    def handle(self, operation: str, document: Mapping[str, Any], region: str) -> Answer:
        """Carry out one operation on the group.

        Raises:
            HotfireError: as the service words it.
        """
        method = self._methods.get(operation)
        if method is None:
            raise LogGroupReadOnly(
                f"{operation}: the log group {GROUP} is written by training jobs and can only be read."
            )
        try:
            return method(self.model.check(operation, document), region)
        except RequestInvalid as error:
            raise InvalidParameter(error.what) from error

    def look(self) -> None:
        """Let the lines of jobs that run get their times. Called a few times a second."""
        for row in self._index.rows():
            if not row.ended:
                for stream in self._of(row).values():
                    stream.look(ended=False)

    # Streams

    def _of(self, row: Row) -> dict[str, Stream]:
        """The streams of a job, by name; one per host from the job's creation on."""
        created = int(row.created * 1000)
        with self._lock:
            known = self._streams.get((row.name, created))
            if known is None:
                try:
                    hosts = description.hosts_of(self._store.request(row.name))
                except (ResourceNotFound, FileNotFoundError):
                    return {}
                job_dir = self._store.open(row.name)
                made = [Stream(job_dir, host, created) for host in hosts]
                known = {stream.name: stream for stream in made}
                self._streams[row.name, created] = known
        return known

    def _stream(self, name: str) -> tuple[Stream, bool]:
        job, _, _ = name.partition("/")
        try:
            row = self._index.row(job)
        except ResourceNotFound as error:
            raise StreamNotFound from error
        stream = self._of(row).get(name)
        if stream is None:
            raise StreamNotFound
        return stream, row.ended

    def _describe_streams(self, asked: Answer, region: str) -> Answer:
        prefix = asked.get("logStreamNamePrefix", "")
        job, slash, _ = prefix.partition("/")
        rows = self._index.rows()
        if prefix:
            rows = [row for row in rows if (row.name == job if slash else row.name.startswith(job))]
        found = [
            self._described(stream, row, region)
            for row in rows
            for name, stream in self._of(row).items()
            if name.startswith(prefix)
        ]
        by_time = asked.get("orderBy") == "LastEventTime"
        found.sort(
            key=lambda one: (
                one.get("lastEventTimestamp", 0) if by_time else 0,
                one["logStreamName"],
            ),
            reverse=asked.get("descending", False),
        )
        begin = _number(asked.get("nextToken"), "s/")
        limit = asked.get("limit", PAGE_STREAMS)
        answer: Answer = {"logStreams": found[begin : begin + limit]}
        if len(found) > begin + limit:
            answer["nextToken"] = _token("s/", begin + limit)
        return answer

    def _described(self, stream: Stream, row: Row, region: str) -> Answer:
        log = stream.look(ended=row.ended)
        times = {}
        if log.times:
            times = {
                "firstEventTimestamp": log.times[0],
                "lastEventTimestamp": log.times[-1],
                "lastIngestionTime": log.times[-1],
            }
        return {
            "logStreamName": stream.name,
            "creationTime": stream.created,
            "arn": f"arn:aws:logs:{region}:123456789012:log-group:{GROUP}:log-stream:{stream.name}",
            "storedBytes": log.end,
            **times,
        }

    # Events

    def _get_events(self, asked: Answer, region: str) -> Answer:
        """A page; tokens are offsets, so they stay valid for ever and across restarts."""
        stream, ended = self._stream(asked["logStreamName"])
        log = stream.look(ended=ended)
        least = log.offset_at(asked.get("startTime"), 0)
        most = log.offset_at(asked.get("endTime"), log.end)
        token = asked.get("nextToken", "")
        limit = asked.get("limit", PAGE_EVENTS)
        forward = token.startswith("f/") or (not token and asked.get("startFromHead", False))
        if forward:
            begin = max(least, min(_number(token or None, "f/"), log.end))
            events = list(_page(log.forward(begin, most), limit))
            first, last = begin, (events[-1].end if events else begin)
        else:
            last = min(most, _number(token, "b/")) if token else most
            begin = log.start_of_page(last, least)
            newest = deque(log.forward(begin, last), maxlen=limit)
            events = list(_page(reversed(newest), limit))[::-1]
            first = events[0].begin if events else last
        return {
            "events": [_told(event) for event in events],
            "nextForwardToken": _token("f/", last),
            "nextBackwardToken": _token("b/", first),
        }

    def _filter_events(self, asked: Answer, region: str) -> Answer:
        pattern = asked.get("filterPattern", "").strip()
        if pattern.startswith(("{", "[", "%")) or "?" in pattern:
            raise InvalidParameter(
                'FilterLogEvents: filterPattern can only be words or a "phrase".'
            )
        words = [pattern.strip('"')] if pattern.startswith('"') else pattern.split()
        wanted = asked.get("logStreamNames", [])
        prefix = asked.get("logStreamNamePrefix", "")
        streams = sorted(
            (name, stream, row.ended)
            for row in self._index.rows()
            for name, stream in self._of(row).items()
            if (name in wanted if wanted else name.startswith(prefix))
        )
        first, offset = _place(asked.get("nextToken"))
        limit = asked.get("limit", PAGE_EVENTS)
        found: list[Answer] = []
        for name, stream, ended in streams:
            if name < first:
                continue
            log = stream.look(ended=ended)
            begin = log.offset_at(asked.get("startTime"), 0)
            end_time = asked.get("endTime")
            # endTime is included here, unlike in GetLogEvents.
            end = log.offset_at(None if end_time is None else end_time + 1, log.end)
            begin = max(begin, offset if name == first else 0)
            for event in log.forward(begin, end):
                if not all(word in event.message for word in words):
                    continue
                if len(found) >= limit:
                    # By name: streams that appear between two pages must not shift the place.
                    token = f"{event.begin}/{name}"
                    return {
                        "events": found,
                        "searchedLogStreams": [],
                        "nextToken": base64.urlsafe_b64encode(token.encode()).decode(),
                    }
                identity = f"{name}:{event.begin}"
                found.append({"logStreamName": name, "eventId": identity, **_told(event)})
        return {"events": found, "searchedLogStreams": []}


def _page(events: Iterator[LogEvent], limit: int) -> Iterator[LogEvent]:
    """As many as an answer may hold: ``limit`` events, a mebibyte."""
    room = PAGE_BYTES
    for count, event in enumerate(events):
        room -= len(event.message.encode()) + EVENT_OVERHEAD
        if count >= limit or (room < 0 and count):
            return
        yield event


def _told(event: LogEvent) -> Answer:
    return {"timestamp": event.time, "ingestionTime": event.time, "message": event.message}


def _token(kind: str, offset: int) -> str:
    return f"{kind}{offset:056d}"


def _number(token: str | None, kind: str) -> int:
    """The offset of a token.

    Raises:
        InvalidParameter: it is not one of ours.
    """
    if token is None:
        return 0
    digits = token.removeprefix(kind)
    if (
        not token.startswith(kind)
        or not digits.isascii()
        or not digits.isdecimal()
        or len(digits) > 60
    ):
        raise InvalidParameter("The specified nextToken is invalid.")
    return min(int(digits), 1 << 62)


def _place(token: str | None) -> tuple[str, int]:
    """The stream, and the offset in it, where FilterLogEvents goes on.

    Raises:
        InvalidParameter: the token is not one of ours.
    """
    if token is None:
        return "", 0
    try:
        offset, _, name = base64.urlsafe_b64decode(token.encode()).decode().partition("/")
        return name, int(offset)
    except ValueError as error:
        raise InvalidParameter("The specified nextToken is invalid.") from error
