"""An S3 prefix at creation: listed, and refused with the service's own text when nothing is there."""

from __future__ import annotations

from collections.abc import Sequence

from hotfire.runtime.channel_parts import closest
from hotfire.runtime.errors import ValidationError
from hotfire.runtime.s3 import S3, S3Object
from hotfire.runtime.spec import TrainingJob
from hotfire.runtime.storage import S3Location


def find(job: TrainingJob, location: S3Location, s3: S3) -> Sequence[S3Object]:
    """Everything below the prefix, folder markers included, in S3's order.

    Raises:
        ValidationError: no object, no access, or a folder marker that holds something.
    """
    objects = tuple(s3.objects(location))
    if not objects:
        raise _no_objects(job, location, s3)
    if full := [one for one in objects if one.folder_marker and one.size]:
        raise ValidationError(
            f"{full[0].uri} ends in '/' and holds {full[0].size} bytes: it cannot be a file",
            do="Rename the object, or choose a narrower prefix.",
        )
    return objects


def _no_objects(job: TrainingJob, location: S3Location, s3: S3) -> ValidationError:
    """The service's own text (contract 9.3), with what is near."""
    near = closest(location.key, s3.neighbours(location))
    hint = (
        "Nearest: " + ", ".join(S3Location(location.bucket, one).uri for one in near) + "."
        if near
        else "The bucket is empty."
    )
    return ValidationError(
        f'No S3 objects found under S3 URL "{location.uri}" given in input data source. Please ensure that the '
        f"bucket exists in the selected region ({job.region}), that objects exist under that S3 prefix, and that the "
        f'role "{job.role_arn}" has "s3:ListBucket" permissions on bucket "{location.bucket}".',
        do=hint,
    )


def partial_folder(location: S3Location, objects: Sequence[S3Object]) -> bool:
    """Whether the prefix ends inside a name, which FastFile refuses (contract 3.6)."""
    key = location.key
    if not key or key.endswith("/"):
        return False
    return not all(one.key == key or one.key.startswith(key + "/") for one in objects)
