"""Samples of an augmented-manifest channel: its records, taken together by attribute (contract 3.9)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hotfire.runtime.data import recordio


def read(stream: recordio.Readable, attributes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One mapping per line of the manifest; ``attributes`` in the order of the request's AttributeNames.

    An attribute whose name ends in ``-ref`` is the object's bytes, any other its JSON value. The channel's
    RecordWrapperType must be RecordIO: without it nothing tells where a value ends.

    Raises:
        RecordError: the stream ends inside a sample, or a value is no JSON.
    """
    records = recordio.read(stream)
    while sample := list(_taken(records, len(attributes))):
        if len(sample) != len(attributes):
            raise recordio.RecordError(
                f"the stream ends inside a sample: {len(sample)} of {len(attributes)} attributes"
            )
        yield {name: _value(name, record) for name, record in zip(attributes, sample, strict=True)}


def _taken(records: Iterator[bytes], count: int) -> Iterator[bytes]:
    for _, record in zip(range(count), records, strict=False):
        yield record


def _value(name: str, record: bytes) -> Any:
    if name.endswith("-ref"):
        return record
    try:
        return json.loads(record)
    except ValueError as error:
        raise recordio.RecordError(
            f"the record of {name} is no JSON: are the attributes in the request's order?"
        ) from error
