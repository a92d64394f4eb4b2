"""hotfire: test-fires SageMaker training jobs on the ground. This package decides and supervises a job.

:func:`run` runs one job from Python; everything else is in the modules.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # every worker of a job imports this package, and typing would cost it two milliseconds
)
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def run(raw: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Run one CreateTrainingJob request in the foreground; see :func:`hotfire.runtime.service.run`."""
    from hotfire.runtime import service

    return service.run(raw, **options)
