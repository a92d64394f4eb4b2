"""Tags of training jobs: those of the request, until the first change writes a file of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hotfire.runtime.errors import ValidationError
from hotfire.runtime.layout import JobDir
from hotfire.runtime.store import write_json

LIMIT = 50
Tags = dict[str, str]


def read(job_dir: JobDir) -> Tags:
    """Key to value, in the order in which they were given."""
    try:
        return dict(json.loads(job_dir.tags.read_text(encoding="utf-8")))
    except FileNotFoundError:
        asked = json.loads(job_dir.request.read_text(encoding="utf-8"))
        return {tag["Key"]: tag["Value"] for tag in asked.get("Tags", ())}


def add(job_dir: JobDir, tags: Sequence[Mapping[str, str]]) -> Tags:
    """Add or replace.

    Raises:
        ValidationError: more than 50 in all (contract 9.1).
    """
    merged = read(job_dir) | {tag["Key"]: tag["Value"] for tag in tags}
    if len(merged) > LIMIT:
        raise ValidationError(f"A resource cannot have more than {LIMIT} tags.")
    write_json(job_dir.tags, merged)
    return merged


def remove(job_dir: JobDir, keys: Sequence[str]) -> None:
    """Remove what is there of ``keys``."""
    write_json(
        job_dir.tags, {key: value for key, value in read(job_dir).items() if key not in keys}
    )


def listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As the API words them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
