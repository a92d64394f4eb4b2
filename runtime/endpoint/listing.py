"""ListTrainingJobs: filters before pages, unlike moto and unlike the service, whose pages can be empty (contract 9.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hotfire.runtime.endpoint.index import Row
from hotfire.runtime.endpoint.paging import Key, page

DEFAULT_PAGE = 10
"""The model does not say; what the service was seen to send."""


def training_jobs(rows: list[Row], asked: Mapping[str, Any]) -> tuple[list[Row], str | None]:
    """The rows of one page, and NextToken. Newest first unless SortOrder says otherwise.

    Raises:
        ValidationError: NextToken is not one of ours.
    """
    by = asked.get("SortBy", "CreationTime")

    def key(row: Row) -> Key:
        first: Any = {"Name": row.name, "Status": row.status}.get(by, row.created)
        return (first, row.name)

    question = {name: value for name, value in asked.items() if name not in PAGING}
    return page(
        [row for row in rows if wanted(row, asked)],
        key,
        descending=asked.get("SortOrder", "Descending") == "Descending",
        limit=asked.get("MaxResults", DEFAULT_PAGE),
        token=asked.get("NextToken"),
        question=question,
    )


PAGING = ("NextToken", "MaxResults")
"""Members that do not decide which rows there are."""


class Listed(Protocol):
    """Training jobs and tuning jobs alike. Times are seconds since the epoch."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def created(self) -> float: ...
    @property
    def modified(self) -> float: ...


def wanted(row: Listed, asked: Mapping[str, Any]) -> bool:
    """Whether a row passes every filter of the request; name filters ignore case, as the service's do not say."""
    if asked.get("NameContains", "").lower() not in row.name.lower():
        return False
    if asked.get("StatusEquals", row.status) != row.status:
        return False
    # There is neither a warm pool nor a training plan here, so no job is in one.
    if asked.get("WarmPoolStatusEquals") or asked.get("TrainingPlanArnEquals"):
        return False
    return all(
        asked.get(f"{what}After", moment) <= moment <= asked.get(f"{what}Before", moment)
        for what, moment in (("CreationTime", row.created), ("LastModifiedTime", row.modified))
    )
